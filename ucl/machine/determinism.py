"""What makes a run repeat bit for bit: a seed for each purpose, generators of its own, exact arithmetic."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_for(seed: int, purpose: str) -> int:
    """A seed of its own for each purpose, so that two methods at one seed share all draws but their own."""
    return int(np.random.SeedSequence([seed, zlib.crc32(purpose.encode())]).generate_state(1, np.uint64)[0]) >> 1


@contextmanager
def repeatable(seed: int, device: torch.device) -> Iterator[None]:
    """Within the block, what torch draws and computes is decided by the seed, bit for bit."""
    # Dropout draws from the global generator, which is the caller's.
    with own_draws(seed_for(seed, "dropout"), device), exact_arithmetic():
        yield


@contextmanager
def own_draws(seed: int, device: torch.device | str) -> Iterator[None]:
    """Within the block torch's global generators draw by this seed; afterwards they are as the caller had them."""
    place = torch.device(device)
    with torch.random.fork_rng([place] if place.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Within the block float32 is computed in full, and the same result each time; afterwards as the caller had it."""
    backends: Any = torch.backends  # typed for the newest torch alone
    cudnn, matmul, mkldnn = backends.cudnn, backends.cuda.matmul, backends.mkldnn
    settings: list[tuple[Any, str, Any]] = [(cudnn, "deterministic", True), (cudnn, "benchmark", False)]
    if hasattr(cudnn, "conv"):  # torch 2.9, whose older switches raise where the newer ones were used
        settings += [(place, "fp32_precision", "ieee") for place in (cudnn.conv, matmul, mkldnn.conv, mkldnn.matmul)]
    else:
        settings += [(place, "allow_tf32", False) for place in (cudnn, matmul)]
    before = [getattr(place, name) for place, name, _ in settings]
    try:
        for setting in settings:
            setattr(*setting)
        yield
    finally:
        for (place, name, _), value in zip(settings, before, strict=True):
            setattr(place, name, value)
