"""The measures of a record, and its further tests: between task ends, and with other BatchNorm statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ucl import metrics

MEANINGS = {
    "A": "last accuracy: mean over all tasks at the end",
    "F": "last forgetting: mean fall of the earlier tasks, not balanced, from their best before the last task",
    "learning": "accuracy on each task right after it was learnt",
    "best": "accuracy on the earlier tasks at their best",
    "retained": "accuracy on the earlier tasks at the end: best minus F",
    "last": "accuracy on the last task",
    "average": "mean over the stream of A after each task",
    "last_share": "share of the final predictions that are a class of the last task",
    "backward": "backward transfer: mean change of the earlier tasks since each was learnt",
    "balanced": "mean recall of the classes at the end: balanced A, of any run",
    "balanced_F": "mean fall of the recall of the earlier tasks' classes: F of classes",
    "worst_class": "lowest recall of a class at the end",
    "anytime": "average anytime accuracy of a run with evaluate_every",
    "worst_case": "worst-case accuracy of a run with evaluate_every",
}
"""The measures of a record (`Record.measures`): all in [0, 1], but F, backward and balanced_F in [-1, 1]."""
FURTHER_MEASURES = ("backward", "anytime", "worst_case")
"""Measures that tables show only for records that were evaluated between task ends."""
MEASURES = ("A", "F", "learning", "best", "retained", "last", "average", "last_share")
"""Measures that tables always show; those of the classes (balanced, balanced_F, worst_class) are shown if named."""


def accuracy_so_far(accuracy: np.ndarray, class_recall: np.ndarray, balanced: bool) -> np.ndarray:
    """A after each task: the accuracy on all tasks learnt so far, (T,), in [0, 1]; NaN where the accuracy is.

    The first two arguments are those of a `Record`; `balanced` makes A the balanced accuracy.
    """
    if not balanced:
        return metrics.accuracy_so_far(accuracy)
    tested = ~np.isnan(metrics.accuracy_so_far(accuracy))
    return np.array([metrics.balanced_accuracy(r) if done else np.nan for r, done in zip(class_recall, tested)])


def to_lists(values: np.ndarray) -> list:
    """Nested lists of the numbers of an array, None for NaN."""
    lists: list = np.where(np.isnan(values), np.array(None), values).tolist()
    return lists


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
        """The JSON form: whole numbers, None for NaN."""
        correct = [[None if np.isnan(n) else int(n) for n in row] for row in self.correct]
        return {"batches": self.batches.tolist(), "correct": correct, "images": self.images.tolist()}

    @classmethod
    def from_raw(cls, raw: dict[str, Any]) -> Anytime:
        """The results that `to_raw` returned."""
        types = {"batches": np.int64, "correct": np.float64, "images": np.int64}
        return cls(**{name: np.array(raw[name], kind) for name, kind in types.items()})


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
        """The JSON form: None for NaN."""
        return {name: to_lists(values) for name, values in vars(self).items()}

    @classmethod
    def from_raw(cls, raw: dict[str, Any]) -> Reading:
        """The results that `to_raw` returned."""
        return cls(**{name: np.array(values, np.float64) for name, values in raw.items()})
