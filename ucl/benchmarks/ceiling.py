"""Timing by part, and the highest throughput of a machine: forward passes alone."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ucl.models import FoldedNetwork, SlimResNet18

CHUNKS = {"cpu": (32, 64, 128, 256), "cuda": (128, 512, 2048, 8192)}  # images per forward pass, see `bare_forward`


class Stopwatch:
    """Measures milliseconds by part: with the clock, or, on a GPU (which is asynchronous), with events in its queue."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spans: list[tuple[str, Any, Any]] = []

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        begin = self._now()
        yield
        self._spans.append((part, begin, self._now()))

    def read(self) -> dict[str, float]:
        """The milliseconds of each part since the last call; waits for the device."""
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            torch.cuda.synchronize(self._device)
        sums: dict[str, float] = defaultdict(float)
        for part, begin, end in self._spans:
            sums[part] += begin.elapsed_time(end) if on_gpu else 1000 * (end - begin)
        self._spans.clear()
        return dict(sums)

    def _now(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def bare_forward(model: SlimResNet18, image_size: int, dtype: torch.dtype, repeats: int) -> Callable[[], float]:
    """The upper bound of the throughput: forward passes of the folded network alone, on images already in its dtype.

    Args:
        model: the network, on the device.
        image_size: pixels per side.
        dtype: arithmetic.
        repeats: rounds in which the chunk sizes are timed in turns, after one round for warm-up.

    Returns:
        A function that measures the images per second of one pass over all images, by chunks of the fastest size.
    """
    network, device = FoldedNetwork(model, dtype), model.mean.device
    sizes = CHUNKS[device.type]
    x_NCHW = torch.randn(sizes[-1], model.conv1.in_channels, image_size, image_size, device=device)
    x_NCHW = x_NCHW.to(dtype, memory_format=torch.channels_last)

    def images_per_s(chunk: int) -> float:
        watch = Stopwatch(device)
        with watch("pass"):
            for part_NCHW in x_NCHW.split(chunk):
                network.one_pass(part_NCHW)
        return 1000 * len(x_NCHW) / watch.read()["pass"]

    rounds = [[images_per_s(size) for size in sizes] for _ in range(1 + repeats)]
    medians = map(statistics.median, zip(*rounds[1:], strict=True))
    _, fastest = max(zip(medians, sizes, strict=True))
    return partial(images_per_s, fastest)
