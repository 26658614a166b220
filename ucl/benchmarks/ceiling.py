"""What a machine can do at most: forward passes alone, and the product of two large matrices."""

from __future__ import annotations

import copy
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
from ucl.models.passes import TrainingModeNetwork

CHUNKS = {"cpu": (32, 64, 128, 256), "cuda": (128, 512, 2048, 8192)}  # images a bare forward pass, see `BareForward`
CANDIDATES = 32  # images of a class, see `training_mode_images_per_s`
MATRIX = {"cpu": 2048, "cuda": 8192}  # rows and columns of the matrices that are multiplied


class BareForward:
    """The yardstick: forward passes of the folded network alone, over images that are there in its arithmetic already.

    Args:
        model: the network, on the device.
        image_size: pixels a side.
        dtype: arithmetic.
    """

    def __init__(self, model: SlimResNet18, image_size: int, dtype: torch.dtype) -> None:
        self._network, self._time_of = FoldedNetwork(model, dtype), Stopwatch(model.mean.device)
        self.sizes = CHUNKS[model.mean.device.type]
        x_NCHW = torch.randn(self.sizes[-1], model.conv1.in_channels, image_size, image_size, device=model.mean.device)
        self._x_NCHW = x_NCHW.to(dtype, memory_format=torch.channels_last)

    @property
    def gflop(self) -> float:
        """What a forward pass of one image computes, a multiplication and an addition counted as two, in 1e9."""
        plain = copy.copy(self._network)
        plain.fused = False  # the counter knows the plain convolutions only
        with FlopCounterMode(display=False) as counter:
            plain.logits(self._x_NCHW[:1])
        return counter.get_total_flops() / 1e9

    def images_per_s(self, chunk: int) -> float:
        """Time one pass over so many images at a time."""
        with self._time_of("forwards"):
            self._network.chunk = chunk
            self._network.logits(self._x_NCHW)
        return 1000 * len(self._x_NCHW) / self._time_of.read()["forwards"]

    def best_chunk(self, repeats: int = 5) -> tuple[int, float]:
        """The chunk size with the most images a second, and those: the median of so many passes, the sizes in turns."""
        turns = [[self.images_per_s(size) for size in self.sizes] for _ in range(1 + repeats)]
        rates = np.median(turns[1:], axis=0)
        return self.sizes[int(rates.argmax())], float(rates.max())


@torch.no_grad()
def training_mode_images_per_s(
    model: SlimResNet18, image_size: int, dtype: torch.dtype, repeats: int = 5
) -> tuple[float, float]:
    """Time the 12 passes in training mode over a class's views, without a gradient, in two ways and in turns.

    Args:
        model: the network, on the device; its running statistics move.
        image_size: pixels a side.
        dtype: arithmetic of the convolutions in the first way.
        repeats: timed turns; one more before them warms up.

    Returns:
        Images (views) per second, medians: of `TrainingModeNetwork`, and of one pass after another through the network
        itself in float32.
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
    ways = [statistics.median(turn[way] for turn in milliseconds[1:]) for way in ("together", "plain")]
    together, plain = (1000 * 12 * CANDIDATES / way for way in ways)
    return together, plain


def matrix_product_gflop_per_s(device: torch.device, dtype: torch.dtype) -> float:
    """What a device computes in the product of two large square matrices, in 1e9 a second: the median of ten."""
    n, time_of = MATRIX[device.type], Stopwatch(device)
    a, b = torch.randn(2, n, n, device=device).to(dtype)
    milliseconds = []
    for _ in range(1 + 10):
        with time_of("product"):
            torch.mm(a, b)
        milliseconds.append(time_of.read()["product"])
    return 2e-6 * n**3 / statistics.median(milliseconds[1:])


class Stopwatch:
    """Milliseconds by part: by the clock, or, where the host runs ahead of a GPU, by events in the GPU's own queue."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spans: list[tuple[str, Any, Any]] = []

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        begin = self._now()
        yield
        self._spans.append((part, begin, self._now()))

    def read(self) -> dict[str, float]:
        """The milliseconds of each part since this was last asked; waits for the device."""
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
