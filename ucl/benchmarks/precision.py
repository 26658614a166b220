"""Whether scoring in a lower precision keeps the same images as float32, at each memory update of a real run."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import torch

from ucl.assembly import assemble
from ucl.buffers import UncertaintyBuffer
from ucl.config import Config
from ucl.machine.determinism import repeatable
from ucl.models import Network
from ucl.scorers import Scorer
from ucl.streams import Batch, datasets


def count_kept_by_both(model: Network, batch: Batch, buffer: UncertaintyBuffer) -> tuple[int, int, int]:
    """Update a memory, and count the images that it would also keep with float32 scores of the same views.

    Returns:
        The number of classes in the batch, the number of images of these classes that the update keeps, and how many
        of these images a copy of the memory with a float32 scorer keeps too.
    """
    float32_buffer = copy.deepcopy(buffer)  # with a generator of its own, which draws the same views
    assert isinstance(float32_buffer.scorer, Scorer)
    float32_buffer.scorer.passes.dtype = torch.float32
    # The model is copied, because scoring in training mode changes its running statistics.
    float32_buffer.update(copy.deepcopy(model), batch)
    buffer.update(model, batch)
    classes = np.unique(batch.host_labels)
    both = (buffer, float32_buffer)
    kept, kept_in_float32 = (set(b.positions.cpu().numpy()[np.isin(b.labels, classes)].tolist()) for b in both)
    return len(classes), len(kept), len(kept & kept_in_float32)


def kept_by_both(config: Config, every: int = 1) -> pd.DataFrame:
    """Repeat a run on the CPU with scores in bfloat16, and count the images that float32 scores would also keep.

    Args:
        config: the run; its population is "uncertainty".
        every: with a full memory, only one update in `every` is compared, because float32 scores take twice the time.

    Returns:
        One row per task: dataset, memory_size, seed, task (from 1), and sums over the compared batches of classes, kept
        and kept_by_both, see `count_kept_by_both`.
    """
    data = datasets.load(config.dataset, image_size=config.image_size)
    counts, n_full = [], 0
    with repeatable(config.seed, torch.device("cpu")):
        stream, model, buffer, method = assemble(config.replace(precision="bfloat16"), data)
        assert isinstance(buffer, UncertaintyBuffer)
        for task in stream:
            for batch in task:
                method.learn(model, batch, buffer)
                n_full += buffer.n_stored + len(batch) > buffer.size
                if n_full and n_full % every == 0:
                    counts.append((task.number + 1, *count_kept_by_both(model, batch, buffer)))
                else:
                    buffer.update(model, batch)
    rows = [(config.dataset, config.memory_size, config.seed, *row) for row in counts]
    run_columns, counts_of_batch = ["dataset", "memory_size", "seed", "task"], ["classes", "kept", "kept_by_both"]
    return pd.DataFrame(rows, columns=run_columns + counts_of_batch).groupby(run_columns, as_index=False).sum()
