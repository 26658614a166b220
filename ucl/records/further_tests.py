"""Results of further tests of a run's networks: between task ends, and with other BatchNorm statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ucl import metrics
from ucl.records.json_form import to_arrays, to_lists


@dataclass
class Anytime:
    """Evaluations along the stream, see `Config.evaluate_every` and `ucl.evaluation.AnytimeEvaluation`.

    Attributes:
        batches: (E,), int64, ascending: number of batches learnt before each evaluation.
        correct: (E, T), float64: number of correctly predicted validation images of each task; NaN for tasks that had
            not begun. An evaluation after the last batch of a task belongs to that task: the next one has not begun.
        images: (T,), int64, at least 1: number of validation images of each task.
    """

    batches: np.ndarray
    correct: np.ndarray
    images: np.ndarray

    @property
    def accuracy(self) -> np.ndarray:
        """Accuracy on each task at each evaluation: (E, T), in [0, 1]; NaN for tasks that had not begun."""
        return self.correct / self.images

    def measures(self) -> dict[str, float]:
        """Average anytime accuracy and worst-case accuracy, see `ucl.metrics`."""
        a_ET = self.accuracy
        return {"anytime": metrics.average_anytime_accuracy(a_ET), "worst_case": metrics.worst_case_accuracy(a_ET)}

    def to_raw(self) -> dict[str, list]:
        """JSON lists of whole numbers, None for NaN."""
        correct = [[None if np.isnan(n) else int(n) for n in row] for row in self.correct]
        return {"batches": self.batches.tolist(), "correct": correct, "images": self.images.tolist()}

    @classmethod
    def from_raw(cls, raw: dict[str, Any]) -> Anytime:
        """The results from the lists that `to_raw` returned."""
        correct = np.array(raw["correct"], dtype=np.float64)
        return cls(np.array(raw["batches"], np.int64), correct, np.array(raw["images"], np.int64))


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
