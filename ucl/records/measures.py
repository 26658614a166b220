"""The measures of a record: their names, their columns in the table of `load_records`, and how they are computed."""

from __future__ import annotations

import numpy as np

from ucl import metrics

COLUMNS = {
    "A": "last_accuracy",
    "F": "last_forgetting",
    "learning": "learning_accuracy",
    "best": "best_accuracy",
    "retained": "retained_accuracy",
    "last": "last_task_accuracy",
    "average": "average_accuracy",
    "last_share": "last_share",
    "backward": "backward_transfer",
    "balanced": "balanced_last_accuracy",
    "worst_class": "worst_class_recall",
    "anytime": "average_anytime_accuracy",
    "worst_case": "worst_case_accuracy",
}
"""The measures of a record (`Record.measures`) and their columns in the table of `load_records`."""
NAMES = tuple(dict.fromkeys([*COLUMNS, *COLUMNS.values()]))
"""The names by which a measure can be asked for: its own, or that of its column."""
ANYTIME = ("anytime", "worst_case")
"""Measures of records that were evaluated between task ends."""
FURTHER_MEASURES = ("backward", *ANYTIME)
"""Measures that tables show only for records that were evaluated between task ends."""
MEASURES = ("A", "F", "learning", "best", "retained", "last", "average", "last_share")
"""Measures that tables always show; those of the classes, balanced and worst_class, are shown if they are named."""


def accuracy_so_far(accuracy: np.ndarray, class_recall: np.ndarray, balanced: bool) -> np.ndarray:
    """A after each task: the accuracy on all tasks learnt so far, (T,), in [0, 1]; NaN where the accuracy is.

    Args:
        accuracy, class_recall: see `Record`.
        balanced: whether A is the balanced accuracy.
    """
    if not balanced:
        return metrics.accuracy_so_far(accuracy)
    learnt = ~np.isnan(np.diagonal(accuracy))
    return np.array([metrics.balanced_accuracy(r) if known else np.nan for r, known in zip(class_recall, learnt)])


def measures_at_task_ends(
    accuracy: np.ndarray, class_recall: np.ndarray, answer_shares: np.ndarray | None, balanced: bool
) -> dict[str, float]:
    """The measures that are computed from the results at the end of each task, see `Record.measures`.

    Args:
        accuracy, class_recall, answer_shares: see `Record`.
        balanced: whether A is the balanced accuracy.
    """
    so_far = accuracy_so_far(accuracy, class_recall, balanced)
    return {
        "A": float(so_far[-1]),
        "F": metrics.last_forgetting(accuracy),
        "learning": metrics.learning_accuracy(accuracy),
        "best": metrics.best_accuracy(accuracy),
        "retained": metrics.retained_accuracy(accuracy),
        "last": metrics.last_task_accuracy(accuracy),
        "average": float(so_far.mean()),
        "last_share": np.nan if answer_shares is None else float(answer_shares[-1, -1]),
        "backward": metrics.backward_transfer(accuracy),
        "balanced": metrics.balanced_accuracy(class_recall[-1]),
        "worst_class": float(np.nanmin(class_recall[-1])),
    }
