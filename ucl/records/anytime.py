"""Results between task ends: how many validation images of each task are recognised after so many batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ucl import metrics

MEASURES = ("anytime", "worst_case")
"""The measures of a record that has such results, by the names of `Record.measures`."""


@dataclass
class Anytime:
    """Evaluations along the stream, see `Config.evaluate_every` and `ucl.evaluation.AnytimeEvaluation`.

    Attributes:
        batches: (E,), int64, ascending: after how many batches of the stream each evaluation was.
        correct: (E, T), float64: number of correctly predicted validation images of each task; NaN for tasks that had
            not begun. An evaluation counts for the task whose last batch has not been learnt before it.
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
        """What `to_raw` wrote."""
        correct = np.array(raw["correct"], dtype=np.float64)
        return cls(np.array(raw["batches"], np.int64), correct, np.array(raw["images"], np.int64))
