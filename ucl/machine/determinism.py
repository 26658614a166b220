"""Runs that repeat bit for bit: a seed for each purpose, separate generators, deterministic arithmetic."""

from __future__ import annotations

import random
import threading
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

_one_at_a_time = threading.RLock()  # Generators and the default dtype belong to the whole process.


def seed_for(seed: int, purpose: str) -> int:
    """A separate seed for each purpose, so that two methods with the same seed share every draw that both make."""
    return int(np.random.SeedSequence([seed, zlib.crc32(purpose.encode())]).generate_state(1, np.uint64)[0]) >> 1


@contextmanager
def repeatable(seed: int, device: torch.device) -> Iterator[None]:
    """Within the block, draws from global generators and torch's results depend on the seed only, bit for bit.

    That holds for operations that torch computes deterministically on the device. All modes are those of
    `default_modes`, so other threads wait at their own blocks.
    """
    # Dropout draws from torch's global generator, which belongs to the caller.
    with default_modes(device), seeded_draws(seed_for(seed, "dropout"), device), exact_arithmetic():
        yield


@contextmanager
def default_modes(device: torch.device | str = "cpu") -> Iterator[None]:
    """Within the block, torch's modes are those of a new process, whatever the caller or a user's module has set.

    That is: gradients, no autocast, float32 and the CPU as defaults. The caller's modes return. One thread at a time
    executes such blocks; they may be nested.
    """
    with _one_at_a_time, torch.inference_mode(False), torch.enable_grad(), ExitStack() as modes:
        for kind in {"cpu", torch.device(device).type}:
            # With a cache, an autocast in a user's network would go on with old weights: only the outermost clears it.
            modes.enter_context(torch.autocast(kind, enabled=False, cache_enabled=False))
        if torch.get_default_device().type != "cpu":  # Otherwise the context would slow down each call.
            modes.enter_context(torch.device("cpu"))
        modes.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        yield


@contextmanager
def seeded_draws(seed: int, device: torch.device | str) -> Iterator[None]:
    """Within the block, the global generators have this seed; afterwards their earlier state is restored."""
    device = torch.device(device)
    with restored_draws(device):
        # `torch.manual_seed` seeds all GPUs, also those whose state is not restored.
        torch.manual_seed(seed) if device.type == "cuda" else torch.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        yield


@contextmanager
def restored_draws(device: torch.device) -> Iterator[None]:
    """Within the block, the global generators go on from their state; afterwards this state is restored.

    They are those of torch, numpy and Python. The package draws from torch's only, a user's code from any of them.
    """
    generators = GlobalGenerators(device)
    state = generators.state_dict()
    try:
        yield
    finally:
        generators.load_state_dict(state)


class GlobalGenerators:
    """The global generators of torch, from which dropout draws, of numpy and of Python, as a part with state."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def state_dict(self) -> dict[str, Any]:
        numpy_state: Any = np.random.get_state()
        name, words, *others = numpy_state
        state = {"torch": torch.get_rng_state(), "numpy": [name, words.tolist(), *others], "python": random.getstate()}
        return state | ({"cuda": torch.cuda.get_rng_state(self._device)} if self._device.type == "cuda" else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["torch"])
        np.random.set_state(tuple(state["numpy"]))
        random.setstate(state["python"])
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda"], self._device)


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Within the block, float32 is computed in full precision and deterministically; the caller's settings return."""
    backends: Any = torch.backends  # Its types fit the newest torch only.
    cudnn, matmul, mkldnn = backends.cudnn, backends.cuda.matmul, backends.mkldnn
    settings: list[tuple[Any, str, Any]] = [(cudnn, "deterministic", True), (cudnn, "benchmark", False)]
    # From torch 2.9 on, the older settings raise if the newer ones have been used.
    if hasattr(cudnn, "conv"):
        newer = (cudnn.conv, cudnn.rnn, matmul, mkldnn.conv, mkldnn.rnn, mkldnn.matmul)
        settings += [(backend, "fp32_precision", "ieee") for backend in newer]
    else:
        settings += [(backend, "allow_tf32", False) for backend in (cudnn, matmul)]
    with ExitStack() as before:
        for backend, name, value in settings:
            before.callback(setattr, backend, name, getattr(backend, name))
            setattr(backend, name, value)
        yield
