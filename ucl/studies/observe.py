"""The memory of one run over the stream: how long each image stays, and its images at several moments with all scores.

A run is repeated and its memory is observed after each batch. In the middle and at the end of each task, each
stored image is scored by the network of that moment, with BatchNorm in evaluation mode, in float32. An image gets
the same 12 views at each moment and in each run, so its score changes only with the network. MC, which only networks
with dropout have, scores 20 dropout passes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ucl import scorers
from ucl.assembly import assemble
from ucl.buffers import Buffer
from ucl.catalogue import SCORES
from ucl.config import Config
from ucl.errors import InputError
from ucl.evaluation.accuracy import DROPOUT_PASSES
from ucl.machine.determinism import repeatable, seed_for, seeded_draws
from ucl.machine.hardware import resolve_device
from ucl.machine.terminal import progress_bar
from ucl.models import Network
from ucl.scorers import ScoringPasses
from ucl.streams import datasets


class Observed(NamedTuple):
    """What a memory has held.

    Attributes:
        stays: one row per stay of an image: position (among the training images), label, task, entry and exit (the
            batches after which it was first in the memory, and first no longer in it; NaN if it stays), replays (how
            often it was drawn; MIR replays some of the images that it draws), first_score and last_score (NaN without
            one).
        moments: one row per moment and stored image: batch (batches seen), task (from 1), position, label, entry, and a
            column per score, see `scores_of`.
    """

    stays: pd.DataFrame
    moments: pd.DataFrame


def observe(config: Config, device: str = "auto", progress: bool | None = None) -> Observed:
    """Repeat a run and observe its memory; nothing is tested or stored. The moments are the middles and ends of tasks.

    Args:
        config: the run.
        device, progress: see `ucl.run`.

    Raises:
        InputError: the run has no memory, or a memory with fewer slots than classes.
    """
    data, chosen = datasets.load(config.dataset, image_size=config.image_size), resolve_device(device)
    if not config.uses_memory:
        raise InputError("method", config.method, "has no memory; give a method with one, such as er")
    contents: list[pd.DataFrame] = []  # of the memory after each batch
    scored = []  # its images at each moment
    with repeatable(config.seed, chosen):
        stream, model, buffer, _ = parts = assemble(config, data, chosen)
        assert buffer is not None
        replays = _count_replays(buffer)
        with progress_bar(stream.n_batches, config.label, progress) as bar:
            for task in stream:
                for batch_in_task, _ in enumerate(parts.steps(task), 1):
                    bar.update()
                    n = buffer.n_stored  # A policy that acts at the end of a task may store nothing before.
                    images = {"position": buffer.positions[:n].cpu().numpy(), "label": buffer.labels[:n]}
                    facts = {"task": buffer.tasks[:n], "score": buffer.scores[:n].cpu().double().numpy()}
                    contents.append(pd.DataFrame({"batch": len(contents) + 1, **images, **facts}))
                    if n and batch_in_task in (math.ceil(len(task) / 2), len(task)):
                        scores = scores_of(model, buffer.images[:n], buffer.positions[:n], config.seed)
                        moment = {"batch": len(contents), "task": task.number + 1, **images, "entry": 0}
                        scored.append(pd.DataFrame({**moment, **scores}))
    held, moments = pd.concat(contents), pd.concat(scored, ignore_index=True)
    moments["entry"] = moments["position"].map(held.groupby("position")["batch"].min())
    return Observed(_stays(held, replays), moments)


def _count_replays(buffer: Buffer) -> Counter[int]:
    """How often each image, by its position, is drawn from the memory from now on."""
    draw, replays = buffer.drawn_slots, Counter[int]()

    def counted(*arguments: Any, **named: Any) -> np.ndarray:
        slots = draw(*arguments, **named)
        replays.update(buffer.positions.cpu().numpy()[slots].tolist())
        return slots

    buffer.drawn_slots = counted  # type: ignore[method-assign]
    return replays


def _stays(held: pd.DataFrame, replays: Mapping[int, int]) -> pd.DataFrame:
    """One row per stay, see `Observed`, of an image that is `held` after some batches; a stream has each image once."""
    stays = held.groupby("position").agg(
        label=("label", "first"),
        task=("task", "first"),
        entry=("batch", "min"),
        exit=("batch", "max"),
        first_score=("score", "first"),  # NaN is skipped
        last_score=("score", "last"),
    )
    stays["exit"] = (stays["exit"] + 1).where(stays["exit"] < held["batch"].max())
    stays.insert(4, "replays", [replays[position] for position in stays.index])
    return stays.reset_index().sort_values(["entry", "position"], ignore_index=True)


@torch.no_grad()
def scores_of(model: Network, images_NCHW: Tensor, positions_N: Tensor, seed: int = 0) -> dict[str, np.ndarray]:
    """All scores of some images by one network, which does not change; see the docstring of the module.

    Args:
        model: the network.
        images_NCHW: the images, uint8.
        positions_N: their indices among the training images, which choose their views.
        seed: of the views.

    Returns:
        (N,) values by the name of the score; NaN if the score is not finite. MC is there if the network has dropout.
    """

    def passes(dropout_passes: int = 0) -> ScoringPasses:
        """Every score sees the same views."""
        draw = torch.Generator().manual_seed(seed_for(seed, "explored views"))
        return ScoringPasses(draw, dropout_passes, view_draws="fixed")

    scores: dict[str, Tensor] = {}
    with seeded_draws(seed_for(seed, "explored scores"), images_NCHW.device):
        logits_PNC = passes().logits(model, images_NCHW, positions_N)
        for name, row in SCORES.items():
            if not row.dropout_passes:
                scores[name] = scorers.SCORES[name](logits_PNC)
            elif model.dropout_rate:
                scores[name] = scorers.SCORES[name](passes(DROPOUT_PASSES).logits(model, images_NCHW))
    return {name: values.masked_fill(~values.isfinite(), math.nan).cpu().numpy() for name, values in scores.items()}
