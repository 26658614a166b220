"""Timing, and the highest throughput of a machine: forward passes alone, and the product of two large matrices."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from ucl.models import FoldedNetwork, SlimResNet18
from ucl.models.network import in_mode
from ucl.models.passes import TrainingModeNetwork

CHUNKS = {"cpu": (32, 64, 128, 256), "cuda": (128, 512, 2048, 8192)}  # images per forward pass, see `BareForward`
CANDIDATES = 32  # images per class, see `training_mode_images_per_s`
MATRIX = {"cpu": 2048, "cuda": 8192}  # rows and columns of the matrices that are multiplied


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


def median_ms(device: torch.device, repeats: int, work: Mapping[Any, Callable[[], object]]) -> dict[Any, float]:
    """The median milliseconds of some functions, called in turns `repeats` times after one round for warm-up."""
    rounds = [[time_once(device, function) for function in work.values()] for _ in range(1 + repeats)]
    return dict(zip(work, map(statistics.median, zip(*rounds[1:])), strict=True))


def time_once(device: torch.device, function: Callable[[], object]) -> float:
    """The milliseconds of one call."""
    watch = Stopwatch(device)
    with watch("call"):
        function()
    return watch.read()["call"]


class BareForward:
    """The upper bound of the throughput: forward passes of the folded network alone, on images already in its dtype.

    Args:
        model: the network, on the device.
        image_size: pixels per side.
        dtype: arithmetic.
    """

    def __init__(self, model: SlimResNet18, image_size: int, dtype: torch.dtype) -> None:
        self._model, self._network, self._device = model, FoldedNetwork(model, dtype), model.mean.device
        self._sizes = CHUNKS[self._device.type]
        x_NCHW = torch.randn(self._sizes[-1], model.conv1.in_channels, image_size, image_size, device=self._device)
        self._x_NCHW = x_NCHW.to(dtype, memory_format=torch.channels_last)

    @property
    def gflop(self) -> float:
        """Operations of a forward pass per image, in 1e9; a multiplication and an addition count as two."""
        # Of the network itself: the counter does not know fused convolutions, and channels of zeros do not count.
        with FlopCounterMode(display=False) as counter, in_mode(self._model, training=False), torch.no_grad():
            self._model.logits(self._x_NCHW[:1].float())
        return counter.get_total_flops() / 1e9

    def images_per_s(self, chunk: int) -> float:
        """Throughput in images per second of one pass over all images, `chunk` at a time."""
        return 1000 * len(self._x_NCHW) / time_once(self._device, partial(self._forward, chunk))

    def best_chunk(self, repeats: int = 5) -> tuple[int, float]:
        """The fastest chunk size and its throughput in images per second, a median; the sizes are timed in turns."""
        times = median_ms(self._device, repeats, {size: partial(self._forward, size) for size in self._sizes})
        best = min(self._sizes, key=times.__getitem__)
        return best, 1000 * len(self._x_NCHW) / times[best]

    def _forward(self, chunk: int) -> None:
        for x_NCHW in self._x_NCHW.split(chunk):
            self._network.one_pass(x_NCHW)


@torch.no_grad()
def training_mode_images_per_s(
    model: SlimResNet18, image_size: int, dtype: torch.dtype, repeats: int = 5
) -> tuple[float, float]:
    """Throughput of 12 passes in training mode, without a gradient, over the views of one class, in two variants.

    Args:
        model: the network, on the device; its running statistics change.
        image_size: pixels per side.
        dtype: arithmetic of the convolutions in the first variant.
        repeats: timed repetitions, in turns.

    Returns:
        Images (views) per second, medians: with `TrainingModeNetwork`, and with successive passes of the network
        itself, in float32.
    """
    device = model.mean.device
    x_PNHWC = torch.randn(12, CANDIDATES, image_size, image_size, model.conv1.in_channels, device=device)
    x_PNCHW = x_PNHWC.permute(0, 1, 4, 2, 3)
    model.train()
    variants: dict[str, Callable[[], object]] = {
        "together": lambda: TrainingModeNetwork(model, dtype).logits(x_PNCHW),
        "plain": lambda: [model.logits(x_NCHW) for x_NCHW in x_PNCHW],
    }
    times = median_ms(device, repeats, variants)
    return 12_000 * CANDIDATES / times["together"], 12_000 * CANDIDATES / times["plain"]


def matrix_product_gflop_per_s(device: torch.device, dtype: torch.dtype) -> float:
    """Throughput of the product of two large square matrices, in 1e9 operations per second: the median of ten."""
    n = MATRIX[device.type]
    a, b = torch.randn(2, n, n, device=device).to(dtype)
    return 2e-6 * n**3 / median_ms(device, 10, {"product": lambda: torch.mm(a, b)})["product"]
