"""The time of a memory update without scoring, by size of the memory; the scores are random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
import torch

from ucl.benchmarks.ceiling import median_ms
from ucl.buffers import UncertaintyBuffer
from ucl.buffers.selection import bottom_k
from ucl.models import SlimResNet18
from ucl.scorers import RandomScores
from ucl.streams import Batch

SIZES = ((32, 500), (32, 5_000), (32, 50_000), (224, 500), (224, 2_000))  # pixels per side, images in the memory
_CLASSES = 10


def update_times(
    sizes: Sequence[tuple[int, int]] = SIZES, repeats: int = 50, device: torch.device | str = "cpu"
) -> pd.DataFrame:
    """Time the update of a full memory of ten classes with a batch of ten images of two classes and `refresh=2`.

    The updates of the memories alternate, so that other work of the machine affects all of them equally.

    Args:
        sizes: pairs of pixels per side and images in the memory, 10 or more.
        repeats: timed updates per memory, after one for warm-up.
        device: device of the memories.

    Returns:
        One row per memory: image_size, memory_size and update_ms, a median.
    """
    model = SlimResNet18(_CLASSES).to(device)
    work = {}
    for image_size, size in sizes:
        shape = (3, image_size, image_size)
        memory = UncertaintyBuffer(size, shape, device, scorer=RandomScores(0), selection=bottom_k, refresh=2)
        memory.update(model, _noise(np.arange(size) % _CLASSES, image_size, device))
        memory.update(model, _noise(np.arange(_CLASSES), image_size, device))  # scores every class for the first time
        batch = _noise(np.arange(10) % 2, image_size, device)
        work[image_size, size] = partial(memory.update, model, batch)
    times = median_ms(torch.device(device), repeats, work)
    return pd.Series(times, name="update_ms").rename_axis(["image_size", "memory_size"]).reset_index()


def _noise(labels: np.ndarray, image_size: int, device: torch.device | str) -> Batch:
    n = len(labels)
    images_NHWC = torch.randint(0, 256, (n, image_size, image_size, 3), dtype=torch.uint8, device=device)
    on_device = torch.from_numpy(labels).to(device)
    return Batch(images_NHWC.permute(0, 3, 1, 2), on_device, labels, torch.arange(n, device=device), 0)
