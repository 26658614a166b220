"""Whether scoring in a coarse arithmetic keeps the images that float32 keeps, update by update of a real run."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ucl import datasets
from ucl.buffers import UncertaintyBuffer
from ucl.config import Config
from ucl.experiment import build_buffer, build_model, build_stream, repeatable
from ucl.methods import METHODS
from ucl.models import SlimResNet18
from ucl.streams import Batch, seed_for


class SideBySideBuffer(UncertaintyBuffer):
    """An uncertainty-managed memory that follows its scorer, and counts what float32 scores of the same views keep.

    Attributes:
        every: an update in so many is compared.
        counts: for each class of a batch at such an update (task from 1, images kept, of these kept by float32 too).
    """

    every = 1
    counts: list[tuple[int, int, int]]

    def _score(
        self, model: SlimResNet18, batch: Batch, places: Mapping[int, np.ndarray]
    ) -> list[tuple[Tensor, Tensor]]:
        self._exact: list[tuple[Tensor, Tensor]] = []
        if self._updates % self.every == 0:
            own, scored, self.scorer = self.scorer, set(self._scored), copy.copy(self.scorer)
            self.scorer.dtype = torch.float32
            self.scorer.generator = torch.Generator().set_state(own.generator.get_state())
            self._exact = super()._score(model, batch, places)
            self.scorer, self._scored = own, scored
        return super()._score(model, batch, places)

    def _keep(
        self,
        batch: Batch,
        places: Mapping[int, np.ndarray],
        quota: Mapping[int, int],
        scored: Mapping[int, tuple[Tensor, Tensor]],
    ) -> None:
        for label, (exact, _) in zip(places, self._exact):
            ours, theirs = (set(self.selection(s, quota[label]).tolist()) for s in (scored[label][0], exact))
            self.counts.append((batch.task + 1, len(ours), len(ours & theirs)))
        super()._keep(batch, places, quota, scored)


def kept_by_both(
    config: Config, every: int = 1, dtype: torch.dtype = torch.bfloat16, root: str | Path | None = None
) -> pd.DataFrame:
    """Repeat a run on the processor, its memory following scores in `dtype`, and count what float32 would keep of it.

    Args:
        config: the run; its population is "uncertainty".
        every: compare at one update in so many; float32 scores take twice the time.
        dtype: arithmetic of the scores that the memory follows.
        root: folder of the data sets.

    Returns:
        A row a task: dataset, memory_size, seed, task (from 1), classes (of batches, compared), kept (images of
        these classes that the updates kept) and kept_by_both (those that float32 scores of the same views keep too).
    """
    data = datasets.load(config.dataset, root, config.image_size)
    with repeatable(config.seed, torch.device("cpu")):
        stream, model = build_stream(config, data), build_model(config, data)
        buffer = build_buffer(config, data, dtype=dtype)
        buffer.__class__, buffer.every, buffer.counts = SideBySideBuffer, every, []
        method = METHODS[config.method](model, config.lr, seed_for(config.seed, "replay"))
        for task in stream:
            for batch in task:
                method.learn(model, batch, buffer)
                buffer.update(model, batch)
    counts = pd.DataFrame(buffer.counts, columns=["task", "kept", "kept_by_both"]).assign(classes=1)
    table = counts.groupby("task", as_index=False).sum()
    table = table.assign(dataset=config.dataset, memory_size=config.memory_size, seed=config.seed)
    return table[["dataset", "memory_size", "seed", "task", "classes", "kept", "kept_by_both"]]
