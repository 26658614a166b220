"""Timing by part, and the highest throughput of a machine: forward passes alone."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ucl.models import FoldedNetwork, SlimResNet18

CHUNKS = {"cpu": (32, 64, 128, 256), "cuda": (128, 512, 2048, 8192)}  # images per forward pass, see `BareForward`


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


class BareForward:
    """The upper bound of the throughput: forward passes of the folded network alone, on images already in its dtype.

    Args:
        model: the network, on the device.
        image_size: pixels per side.
        dtype: arithmetic.
    """

    def __init__(self, model: SlimResNet18, image_size: int, dtype: torch.dtype) -> None:
        self._network, self._device = FoldedNetwork(model, dtype), model.mean.device
        self._sizes = CHUNKS[self._device.type]
        x_NCHW = torch.randn(self._sizes[-1], model.conv1.in_channels, image_size, image_size, device=self._device)
        self._x_NCHW = x_NCHW.to(dtype, memory_format=torch.channels_last)

    def images_per_s(self, chunk: int) -> float:
        """Throughput in images per second of one pass over all images, `chunk` at a time."""
        watch = Stopwatch(self._device)
        with watch("pass"):
            for x_NCHW in self._x_NCHW.split(chunk):
                self._network.one_pass(x_NCHW)
        return 1000 * len(self._x_NCHW) / watch.read()["pass"]

    def best_chunk(self, repeats: int) -> int:
        """The fastest chunk size, by medians; the sizes are timed in turns, after one round for warm-up."""
        rounds = [[self.images_per_s(size) for size in self._sizes] for _ in range(1 + repeats)]
        medians = map(statistics.median, zip(*rounds[1:], strict=True))
        return max(zip(medians, self._sizes, strict=True))[1]
