"""Memories that keep a random sample: reservoir sampling and class-balancing reservoir sampling."""

from __future__ import annotations

from typing import Any

import numpy as np

from ucl.buffers.buffer import Buffer
from ucl.models import Network
from ucl.streams import Batch


class ReservoirBuffer(Buffer):
    """Reservoir sampling: every sample seen so far is in memory with the same probability (Vitter, 1985).

    Args:
        *arguments, **named: those of `Buffer`.
        inclusive: whether a full memory draws a new sample's index among all samples seen, including the new one. False
            draws it among those before it, which favours recent samples slightly.
    """

    def __init__(self, *arguments: Any, inclusive: bool = True, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.inclusive = inclusive

    def update(self, model: Network, batch: Batch) -> None:
        rest = np.arange(self.store(batch), len(batch))
        ranks = self.n_seen + rest + int(self.inclusive)
        indices = (self.draw.random(len(rest)) * ranks).astype(np.int64)
        enters = indices < self.size
        self.replace(indices[enters], batch, rest[enters])
        self.n_seen += len(batch)


class ClassBalancedBuffer(Buffer):
    """Class-balancing reservoir sampling (Chrysakis & Moens, 2020, algorithm 1).

    In a full memory, a sample of a class that was never the largest one replaces a random sample of the largest class.
    A class that is or once was the largest one of a full memory keeps a reservoir of its own samples.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._seen_of: dict[int, int] = {}  # number of samples of each class so far
        self._full: list[int] = []  # classes that are or once were the largest

    def update(self, model: Network, batch: Batch) -> None:
        stored = self.store(batch)
        labels = self.labels.copy()  # labels of the slots after each sample of the batch
        sample_of_slot: dict[int, int] = {}
        for index, label in enumerate(batch.host_labels.tolist()):
            self._seen_of[label] = self._seen_of.get(label, 0) + 1
            if index < stored:
                continue
            slot = self._slot_for(label, labels)
            if slot is not None:
                sample_of_slot[slot] = index
                labels[slot] = label
        self.replace(list(sample_of_slot), batch, list(sample_of_slot.values()))
        self.n_seen += len(batch)

    def _slot_for(self, label: int, labels: np.ndarray) -> int | None:
        """The slot of a new sample, drawn at random; None if the sample is not stored."""
        counts = np.bincount(labels)
        largest = np.flatnonzero(counts == counts.max())
        self._full += [other for other in largest.tolist() if other not in self._full]
        if label not in self._full:
            return int(self.draw.choice(np.flatnonzero(labels == self.draw.choice(largest))))
        slots = np.flatnonzero(labels == label)
        if self.draw.random() < len(slots) / self._seen_of[label]:
            return int(self.draw.choice(slots))
        return None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "seen_of": dict(self._seen_of), "full": list(self._full)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._seen_of, self._full = dict(state["seen_of"]), list(state["full"])
