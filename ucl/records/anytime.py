"""Results between task ends: correctly predicted validation images of each task, after various numbers of batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ucl import metrics

MEASURES = ("anytime", "worst_case")
"""Names of the measures of such results, as in `Record.measures`."""


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
