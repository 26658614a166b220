"""The highest throughput of a machine: forward passes alone, and the product of two large matrices."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from ucl.models import FoldedNetwork, SlimResNet18
from ucl.models.network import in_mode
from ucl.models.passes import TrainingModeNetwork

CHUNKS = {"cpu": (32, 64, 128, 256), "cuda": (128, 512, 2048, 8192)}  # images per forward pass, see `BareForward`
CANDIDATES = 32  # images per class, see `training_mode_images_per_s`
MATRIX = {"cpu": 2048, "cuda": 8192}  # rows and columns of the matrices that are multiplied


class BareForward:
    """The upper bound of the throughput: forward passes of the folded network alone, on images already in its dtype.

    Args:
        model: the network, on the device.
        image_size: pixels per side.
        dtype: arithmetic.
    """

    def __init__(self, model: SlimResNet18, image_size: int, dtype: torch.dtype) -> None:
        self._model, self._network = model, FoldedNetwork(model, dtype)
        self._time_of = Stopwatch(model.mean.device)
        self.sizes = CHUNKS[model.mean.device.type]
        x_NCHW = torch.randn(self.sizes[-1], model.conv1.in_channels, image_size, image_size, device=model.mean.device)
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
        with self._time_of("forwards"):
            for x_NCHW in self._x_NCHW.split(chunk):
                self._network.one_pass(x_NCHW)
        return 1000 * len(self._x_NCHW) / self._time_of.read()["forwards"]

    def best_chunk(self, repeats: int = 5) -> tuple[int, float]:
        """The fastest chunk size and its throughput in images per second, a median; the sizes are timed in turns."""
        rounds = [[self.images_per_s(size) for size in self.sizes] for _ in range(1 + repeats)]
        rates = np.median(rounds[1:], axis=0)
        return self.sizes[int(rates.argmax())], float(rates.max())


@torch.no_grad()
def training_mode_images_per_s(
    model: SlimResNet18, image_size: int, dtype: torch.dtype, repeats: int = 5
) -> tuple[float, float]:
    """Throughput of 12 passes in training mode, without a gradient, over the views of one class, in two variants.

    The two variants are timed in turns.

    Args:
        model: the network, on the device; its running statistics change.
        image_size: pixels per side.
        dtype: arithmetic of the convolutions in the first variant.
        repeats: timed repetitions, after one repetition for warm-up.

    Returns:
        Images (views) per second, medians: with `TrainingModeNetwork`, and with successive passes of the network
        itself, in float32.
    """
    device = model.mean.device
    time_of = Stopwatch(device)
    x_PNHWC = torch.randn(12, CANDIDATES, image_size, image_size, model.conv1.in_channels, device=device)
    x_PNCHW = x_PNHWC.permute(0, 1, 4, 2, 3)
    milliseconds = []
    model.train()
    for _ in range(1 + repeats):
        with time_of("together"):
            TrainingModeNetwork(model, dtype).logits(x_PNCHW)
        with time_of("plain"):
            for x_NCHW in x_PNCHW:
                model.logits(x_NCHW)
        milliseconds.append(time_of.read())
    medians = [statistics.median(turn[variant] for turn in milliseconds[1:]) for variant in ("together", "plain")]
    together, plain = (1000 * 12 * CANDIDATES / median for median in medians)
    return together, plain


def matrix_product_gflop_per_s(device: torch.device, dtype: torch.dtype) -> float:
    """Throughput of the product of two large square matrices, in 1e9 operations per second: the median of ten."""
    n, time_of = MATRIX[device.type], Stopwatch(device)
    a, b = torch.randn(2, n, n, device=device).to(dtype)
    milliseconds = []
    for _ in range(1 + 10):
        with time_of("product"):
            torch.mm(a, b)
        milliseconds.append(time_of.read()["product"])
    return 2e-6 * n**3 / statistics.median(milliseconds[1:])


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
