"""Timing of a run by part: training, memory updates, tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Clock:
    """Measures the seconds of each part of a run; on a GPU only of the tests, as the other parts overlap there."""

    PARTS = ("training", "memory", "evaluation", "readings")
    TESTS = ("evaluation", "readings")

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._parts: dict[str, float] = {}
        self._begin = time.perf_counter()

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        begin = self._now(wait=part in self.TESTS)
        yield
        self._parts[part] = self._parts.get(part, 0.0) + self._now(wait=part in self.TESTS) - begin

    def state_dict(self) -> dict[str, Any]:
        return {"parts": dict(self._parts), "total": self._now() - self._begin}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._parts = dict(state["parts"])
        self._begin = time.perf_counter() - state["total"]

    def seconds(self, batches: int) -> dict[str, Any]:
        """The timing entry of the record."""
        total = self._now() - self._begin
        reported = self.PARTS if self._device.type == "cpu" else self.TESTS
        seconds = {part: round(self._parts.get(part, 0.0), 3) if part in reported else None for part in self.PARTS}
        return {"total": round(total, 3), **seconds, "batches": batches}

    def _now(self, wait: bool = True) -> float:
        """The time in seconds; by default after the work that a GPU has been given."""
        if wait and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
