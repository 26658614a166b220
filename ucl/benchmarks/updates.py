"""The time of a memory update without scoring, by size of the memory; the scores are random numbers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from ucl.benchmarks.ceiling import Stopwatch
from ucl.buffers import UncertaintyBuffer
from ucl.buffers.selection import bottom_k
from ucl.models import SlimResNet18
from ucl.scorers import RandomScores
from ucl.streams import Batch

SIZES = ((32, 500), (32, 5_000), (32, 50_000), (224, 500), (224, 2_000))  # pixels per side, images in the memory
_CLASSES = 10
_BATCH = 10


def update_times(
    sizes: Sequence[tuple[int, int]] = SIZES, repeats: int = 50, device: torch.device | str = "cpu"
) -> pd.DataFrame:
    """Time the update of a full memory of ten classes with a batch of ten images of two classes and `refresh=2`.

    The updates of the memories alternate, so that other work of the machine affects all of them equally.

    Args:
        sizes: pairs of pixels per side and images in the memory, 10 or more.
        repeats: timed updates per memory, after two for warm-up.
        device: device of the memories.

    Returns:
        One row per memory: image_size, memory_size, update_ms, and sorting_ms, the time to sort the scores of the two
        classes alone; medians.
    """
    model, watch = SlimResNet18(_CLASSES).to(device), Stopwatch(torch.device(device))
    memories = [_full_memory(image_size, size, model, device) for image_size, size in sizes]
    times: list[list[tuple[float, float]]] = [[] for _ in memories]
    for number in range(2 + repeats):
        labels = np.repeat([number % _CLASSES, (number + 1) % _CLASSES], _BATCH // 2)
        for (image_size, _), memory, own in zip(sizes, memories, times, strict=True):
            batch = _noise(labels, image_size, device)
            with watch("update"):
                memory.update(model, batch)
            candidates = [memory.scores[torch.from_numpy(memory.labels == c).to(device)] for c in set(labels.tolist())]
            with watch("sorting"):
                for scores in candidates:
                    bottom_k(scores, len(scores))
            read = watch.read()
            own.append((read["update"], read["sorting"]))
    medians = [[statistics.median(values) for values in zip(*own[2:], strict=True)] for own in times]
    rows = [(*size, *of_size) for size, of_size in zip(sizes, medians, strict=True)]
    return pd.DataFrame(rows, columns=["image_size", "memory_size", "update_ms", "sorting_ms"])


def _full_memory(image_size: int, size: int, model: SlimResNet18, device: torch.device | str) -> UncertaintyBuffer:
    memory = UncertaintyBuffer(size, (3, image_size, image_size), device, RandomScores(0), bottom_k, refresh=2)
    memory.update(model, _noise(np.arange(size) % _CLASSES, image_size, device))
    memory.update(model, _noise(np.arange(_CLASSES), image_size, device))  # scores every class for the first time
    return memory


def _noise(labels: np.ndarray, image_size: int, device: torch.device | str) -> Batch:
    n = len(labels)
    images_NHWC = torch.randint(0, 256, (n, image_size, image_size, 3), dtype=torch.uint8, device=device)
    on_device = torch.from_numpy(labels).to(device)
    return Batch(images_NHWC.permute(0, 3, 1, 2), on_device, labels, torch.arange(n, device=device), 0)
