"""Whether scoring in a coarse arithmetic keeps the images that float32 keeps, update by update of a real run."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from ucl.assembly import assemble
from ucl.buffers import UncertaintyBuffer
from ucl.config import Config
from ucl.machine.determinism import repeatable
from ucl.models import SlimResNet18
from ucl.scorers import Scorer
from ucl.streams import Batch, datasets


def kept_beside_float32(model: SlimResNet18, batch: Batch, buffer: UncertaintyBuffer) -> tuple[int, int, int]:
    """Update a memory, and count what float32 scores of the same views would have kept.

    Args:
        model, batch, buffer: of the update; its scorer is a `ucl.scorers.Scorer`.

    Returns:
        Of the batch's classes: how many there are, the images that the update kept of them, and those of these images
        that a copy of the memory with a float32 scorer keeps too.
    """
    assert isinstance(buffer.scorer, Scorer)
    views = torch.Generator().set_state(buffer.scorer.generator.get_state())
    exact = dataclasses.replace(buffer.scorer, dtype=torch.float32, generator=views)
    beside = copy.deepcopy(buffer, {id(buffer.scorer): exact})
    beside.update(copy.deepcopy(model), batch)  # in training mode, scoring moves the running statistics
    buffer.update(model, batch)
    classes = np.unique(batch.host_labels)
    ours, theirs = (set(b.positions.cpu().numpy()[np.isin(b.labels, classes)].tolist()) for b in (buffer, beside))
    return len(classes), len(ours), len(ours & theirs)


def kept_by_both(
    config: Config, every: int = 1, dtype: torch.dtype = torch.bfloat16, root: str | Path | None = None
) -> pd.DataFrame:
    """Repeat a run on the processor, its memory following scores in `dtype`, and count what float32 would keep of it.

    Args:
        config: the run; its population is "uncertainty".
        every: compare at one update of a full memory in so many; float32 scores take twice the time.
        dtype: arithmetic of the scores that the memory follows.
        root: folder of the data sets.

    Returns:
        A row a task: dataset, memory_size, seed, task (from 1), classes (of batches, compared), kept (images of
        these classes that the updates kept) and kept_by_both (those that float32 scores of the same views keep too).
    """
    data = datasets.load(config.dataset, root, config.image_size)
    counts, n_full = [], 0
    with repeatable(config.seed, torch.device("cpu")):
        stream, model, buffer, method = assemble(config, data, dtype=dtype)
        assert isinstance(buffer, UncertaintyBuffer)
        for task in stream:
            for batch in task:
                method.learn(model, batch, buffer)
                n_full += buffer.n_stored + len(batch) > buffer.size
                if n_full and n_full % every == 0:
                    counts.append((task.number + 1, *kept_beside_float32(model, batch, buffer)))
                else:
                    buffer.update(model, batch)
    table = pd.DataFrame(counts, columns=["task", "classes", "kept", "kept_by_both"])
    table = table.groupby("task", as_index=False).sum()
    table = table.assign(dataset=config.dataset, memory_size=config.memory_size, seed=config.seed)
    return table[["dataset", "memory_size", "seed", "task", "classes", "kept", "kept_by_both"]]
