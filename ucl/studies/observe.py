"""The memory of one run over the stream: how long each image stays, and its images at several moments with all scores.

A run is repeated and its memory is observed after each batch. At a few moments of each task, the last one at its end,
each stored image is scored by the network of that moment, with BatchNorm in evaluation mode, in float32. An image gets
the same 12 views at each moment and in each run, so its score changes only with the network. MC scores 20 dropout
passes; a network without dropout gets dropout of rate 0.3 for these passes only.
"""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from ucl import scorers
from ucl.catalogue import SCORES
from ucl.config import Config
from ucl.evaluation.accuracy import DROPOUT_PASSES
from ucl.machine.determinism import seed_for, seeded_draws
from ucl.models import Network
from ucl.scorers import ScoringPasses
from ucl.streams import datasets
from ucl.studies.steps import Moment, watched_run

_DROPOUT = 0.3  # the default rate of runs whose score is MC


class Observed(NamedTuple):
    """What a memory has held.

    Attributes:
        stays: one row per stay of an image: position (among the training images), label, task, entry and exit (the
            batches after which it was first in the memory, and first no longer in it; NaN if it stays), replays (how
            often it was drawn; MIR replays some of the images that it draws), first_score and last_score (NaN without
            one).
        moments: one row per moment and stored image: batch (batches seen), task (from 1), slot, position, label, entry,
            and a column per score, see `scores_of`.
    """

    stays: pd.DataFrame
    moments: pd.DataFrame


def observe(config: Config, per_task: int = 2, device: str = "auto", progress: bool | None = None) -> Observed:
    """Repeat a run and observe its memory; nothing is stored.

    Args:
        config: the run.
        per_task: moments per task, evenly spaced; the last one is the end of the task.
        device, progress: see `ucl.run`.

    Raises:
        InputError: the run has no memory, or a memory with fewer slots than classes.
    """
    parts = []
    for moment in watched_run(config, datasets.load(config.dataset, image_size=config.image_size), device, progress):
        ends = {math.ceil(len(moment.task) * part / per_task) for part in range(1, per_task + 1)}
        if moment.batch_in_task in ends:
            parts.append(_described(moment, config.seed))
    return Observed(moment.watched.stays(), pd.concat(parts, ignore_index=True))


def _described(moment: Moment, seed: int) -> pd.DataFrame:
    buffer, n = moment.buffer, moment.buffer.n_stored
    if not n:  # A policy that acts at the end of a task may store nothing before.
        return pd.DataFrame()
    scores = scores_of(moment.model, buffer.images[:n], buffer.positions[:n], seed)
    when = {"batch": moment.batch, "task": moment.task.number + 1}
    return pd.concat([pd.DataFrame(when, index=range(n)), moment.watched.slots().assign(**scores)], axis=1)


@torch.no_grad()
def scores_of(model: Network, images_NCHW: Tensor, positions_N: Tensor, seed: int = 0) -> dict[str, np.ndarray]:
    """All scores of some images by one network, which does not change; see the docstring of the module.

    Args:
        model: the network.
        images_NCHW: the images, uint8.
        positions_N: their indices among the training images, which choose their views.
        seed: of the views.

    Returns:
        (N,) values by the name of the score; NaN if the score is not finite. MC is missing for a user's network
        without a dropout layer.
    """

    def passes(dropout_passes: int = 0) -> ScoringPasses:
        """Every score sees the same views."""
        draw = torch.Generator().manual_seed(seed_for(seed, "explored views"))
        return ScoringPasses(draw, dropout_passes, view_draws="fixed")

    scores: dict[str, Tensor] = {}
    with seeded_draws(seed_for(seed, "explored scores"), images_NCHW.device):
        logits_PNC = passes().logits(model, [images_NCHW], [positions_N])
        with_dropout = model if model.dropout_rate else _with_dropout(model)
        for name, row in SCORES.items():
            if not row.dropout_passes:
                scores[name] = scorers.SCORES[name](logits_PNC)
            elif with_dropout is not None:
                scores[name] = scorers.SCORES[name](passes(DROPOUT_PASSES).logits(with_dropout, [images_NCHW]))
    return {name: values.masked_fill(~values.isfinite(), math.nan).cpu().numpy() for name, values in scores.items()}


def _with_dropout(model: Network) -> Network | None:
    """A copy of a network without dropout, with rate `_DROPOUT` in its dropout layers; None if it has no such layer."""
    model = copy.deepcopy(model)
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Dropout)]
    for layer in layers:
        layer.p = _DROPOUT
    model.dropout_rate = _DROPOUT
    return model if layers else None
