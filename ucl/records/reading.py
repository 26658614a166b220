"""Results of a run's networks tested in another way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ucl.records.json_form import to_arrays, to_lists


@dataclass
class Reading:
    """Results of a run's networks tested in another way, mostly with other statistics, see `ucl.evaluation.readings`.

    Attributes:
        accuracy, class_recall, answer_shares: as in `Record`.
        shift: (T,), >= 0: distance of the statistics' means after each task from the means that training alone gives,
            in standard deviations, averaged over all channels; NaN for a reading that does not set statistics.
    """

    accuracy: np.ndarray
    class_recall: np.ndarray
    answer_shares: np.ndarray
    shift: np.ndarray

    def to_raw(self) -> dict[str, list]:
        """JSON lists of numbers, None for NaN."""
        tables = {name: to_lists(getattr(self, name)) for name in ("accuracy", "class_recall", "answer_shares")}
        return {**tables, "shift": to_lists(self.shift[None])[0]}

    @classmethod
    def from_raw(cls, raw: dict[str, Any]) -> Reading:
        """The results from the lists that `to_raw` returned."""
        return cls(**to_arrays(raw, ("accuracy", "class_recall", "answer_shares", "shift")))
