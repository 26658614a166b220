"""The contents of memories over the stream: their images at several moments, each with all scores.

A run is repeated and its memory is observed. At a few moments of each task, the last one at its end, each stored image
is scored by the network of that moment, with BatchNorm in evaluation mode, in float32. An image gets the same 12 views
at each moment and in each run, so its score changes only with the network. MC scores 20 dropout passes; a network
without dropout gets dropout of rate 0.3 for these passes only.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from ucl import scorers
from ucl.catalogue import SCORES, method_order
from ucl.config import Config
from ucl.errors import InputError, whole_number
from ucl.evaluation.accuracy import DROPOUT_PASSES
from ucl.machine.determinism import seed_for, seeded_draws
from ucl.models import Network
from ucl.scorers import Scorer, ScoringPasses
from ucl.streams import datasets
from ucl.studies.steps import Moment, check_memory, watched_run

_STREAM_FIELDS = (
    *("dataset", "image_size", "n_tasks", "class_order", "tasks", "imbalance", "validation", "batch_size", "seed"),
    *("boundaries", "blur", "disjoint"),
)
_DROPOUT = 0.3  # the default rate of runs whose score is MC


def explore(
    configs: Sequence[Config],
    own_scores: Sequence[str] = (),
    per_task: int = 2,
    device: str = "auto",
    root: str | Path | None = None,
    progress: bool | None = None,
) -> dict[str, pd.DataFrame]:
    """Repeat two runs of one stream, and describe what their memories contain at the same moments.

    Args:
        configs: the two runs; they see the same stream.
        own_scores: user scores, as ``package.module:function``, in addition to the seven of the paper.
        per_task: moments per task, evenly spaced; the last one is the end of the task.
        device, root, progress: see `ucl.run`.

    Returns:
        One table per run, by its name: the method, with the fields that differ if both have the same method; baselines
        come first. A table has one row per moment and stored image: batch (batches seen), task (from 1), slot, position
        (among the training images), label, entry (the batch after which the image was first in the memory), and a
        column per score, see `scores_of`.

    Raises:
        InputError: there are not two different runs, they differ in the stream, one has no memory or a memory with
            fewer slots than classes, or a score cannot be used.
    """
    whole_number("per_task", per_task, 1, 1000)
    named = _checked(configs)
    for path in own_scores:
        scorers.resolve(path)
    data = datasets.load(configs[0].dataset, root, configs[0].image_size)
    for config in configs:
        check_memory(config, data)
    tables = {}
    for name, config in named.items():
        parts = []
        for moment in watched_run(config, data, device, progress):
            ends = {math.ceil(len(moment.task) * part / per_task) for part in range(1, per_task + 1)}
            if moment.batch_in_task in ends:
                parts.append(_described(moment, own_scores, config.seed))
        tables[name] = pd.concat(parts, ignore_index=True)
    return tables


def _checked(configs: Sequence[Config]) -> dict[str, Config]:
    """The two runs by their names, in the order of methods, after the checks of `explore`."""
    labels = [config.label for config in configs]
    if len(configs) != 2 or configs[0].key == configs[1].key:
        raise InputError("policies", labels, "give two different runs")
    one, other = configs
    for field in _STREAM_FIELDS:
        if getattr(one, field) != getattr(other, field):
            reason = f"the other run has {getattr(other, field)!r}; give both runs the same stream"
            raise InputError(field, getattr(one, field), reason)
    if labels[0] == labels[1]:
        differing = [field for field, value in one.relevant.items() if other.relevant.get(field) != value]
        settings = [", ".join(f"{field}={getattr(config, field)}" for field in differing) for config in configs]
        return {f"{labels[0]} ({text})": config for text, config in zip(settings, configs, strict=True)}
    by_label = dict(zip(labels, configs, strict=True))
    return {label: by_label[label] for label in method_order(labels)}


def _described(moment: Moment, own_scores: Sequence[str], seed: int) -> pd.DataFrame:
    buffer, n = moment.buffer, moment.buffer.n_stored
    if not n:  # A policy that acts at the end of a task may store nothing before.
        return pd.DataFrame()
    scores = scores_of(moment.model, buffer.images[:n], buffer.positions[:n], buffer.labels[:n], own_scores, seed)
    when = {"batch": moment.batch, "task": moment.task.number + 1}
    return pd.concat([pd.DataFrame(when, index=range(n)), moment.watched.slots().assign(**scores)], axis=1)


@torch.no_grad()
def scores_of(
    model: Network,
    images_NCHW: Tensor,
    positions_N: Tensor,
    labels_N: np.ndarray,
    own_scores: Sequence[str] = (),
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """All scores of some images by one network, which does not change; see the docstring of the module.

    Args:
        model: the network.
        images_NCHW, labels_N: the images, uint8, and their classes, int64.
        positions_N: their indices among the training images, which choose their views.
        own_scores: see `explore`.
        seed: of the views.

    Returns:
        (N,) values by the name of the score; NaN if the score is not finite. MC is missing for a user's network
        without a dropout layer.
    """
    device = images_NCHW.device

    def passes(dropout_passes: int = 0) -> ScoringPasses:
        """Every score sees the same views."""
        draw = torch.Generator().manual_seed(seed_for(seed, "explored views"))
        return ScoringPasses(draw, dropout_passes, view_draws="fixed")

    scores: dict[str, Tensor] = {}
    with seeded_draws(seed_for(seed, "explored scores"), device):
        logits_PNC = passes().logits(model, [images_NCHW], [positions_N])
        with_dropout = model if model.dropout_rate else _with_dropout(model)
        for name, row in SCORES.items():
            if not row.dropout_passes:
                scores[name] = scorers.SCORES[name](logits_PNC)
            elif with_dropout is not None:
                scores[name] = scorers.SCORES[name](passes(DROPOUT_PASSES).logits(with_dropout, [images_NCHW]))
        classes = np.unique(labels_N)
        indices = [torch.from_numpy(np.flatnonzero(labels_N == label)).to(device) for label in classes]
        for path in own_scores:
            groups = [images_NCHW[i] for i in indices], [positions_N[i] for i in indices]
            values = Scorer(scorers.resolve(path), passes(), path=path)(model, *groups, classes.tolist())
            scores[path] = torch.empty(len(labels_N), dtype=torch.float64, device=device)
            scores[path][torch.cat(indices)] = torch.cat(values)
    return {name: values.masked_fill(~values.isfinite(), math.nan).cpu().numpy() for name, values in scores.items()}


def _with_dropout(model: Network) -> Network | None:
    """A copy of a network without dropout, with rate `_DROPOUT` in its dropout layers; None if it has no such layer."""
    model = copy.deepcopy(model)
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Dropout)]
    for layer in layers:
        layer.p = _DROPOUT
    model.dropout_rate = _DROPOUT
    return model if layers else None
