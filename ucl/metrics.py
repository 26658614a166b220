"""Metrics of the accuracy matrix, as pure functions.

`a` is the accuracy matrix (T, T): a[t, i], in [0, 1], is the accuracy on the test data of task i after task t. It is
NaN where task i has not been learnt yet (i > t). "Last" means: at the end of the stream.
"""

from __future__ import annotations

import numpy as np


def last_accuracy(a: np.ndarray) -> float:
    """Mean accuracy over all tasks at the end (paper, eq. 8): mean_i a[T, i], in [0, 1]."""
    return float(np.mean(_checked(a)[-1]))


def average_accuracy(a: np.ndarray) -> float:
    """Mean over t of the mean accuracy on the tasks seen after task t: mean_t mean_{i <= t} a[t, i], in [0, 1]."""
    return float(np.mean([row[: t + 1].mean() for t, row in enumerate(_checked(a))]))


def task_forgetting(a: np.ndarray) -> np.ndarray:
    """Forgetting of each task except the last: (T - 1,), max over l < T of a[l, i] minus a[T, i].

    The maximum is over the rows before the last, as in the paper's eq. 9. A task whose accuracy is highest at the end
    has a negative value.
    """
    a = _checked(a)
    return np.array([np.max(a[i:-1, i]) - a[-1, i] for i in range(len(a) - 1)])


def last_forgetting(a: np.ndarray) -> float:
    """Mean of `task_forgetting` (paper, eq. 9), in [-1, 1]; 0 for a single task."""
    return float(np.mean(task_forgetting(a))) if len(_checked(a)) > 1 else 0.0


def kept_accuracy(a: np.ndarray) -> float:
    """Mean accuracy at the end on all tasks except the last, in [0, 1]; NaN for a single task.

    `last_forgetting` is `best_accuracy` minus this. It is therefore low where much is retained, and also where little
    was learnt.
    """
    return float(np.mean(_checked(a)[-1, :-1])) if len(_checked(a)) > 1 else np.nan


def best_accuracy(a: np.ndarray) -> float:
    """Mean best accuracy before the end, over all tasks except the last, in [0, 1]; NaN for a single task.

    `last_forgetting` is this minus `kept_accuracy`.
    """
    a = _checked(a)
    return float(np.mean([np.max(a[i:-1, i]) for i in range(len(a) - 1)])) if len(a) > 1 else np.nan


def learning_accuracy(a: np.ndarray) -> float:
    """Mean accuracy on each task right after it was learnt (Riemer et al., 2019): mean_t a[t, t], in [0, 1]."""
    return float(np.mean(np.diagonal(_checked(a))))


def last_task_accuracy(a: np.ndarray) -> float:
    """Accuracy on the last task at the end: a[T, T], in [0, 1]."""
    return float(_checked(a)[-1, -1])


def balanced_accuracy(class_recall: np.ndarray) -> float:
    """Mean recall of the classes, in [0, 1]: accuracy with an equal weight for every class.

    Args:
        class_recall: (C,), share of each class's test images that is predicted correctly; NaN for a class without test
            images, which does not count.
    """
    return float(np.nanmean(class_recall))


def _checked(a: np.ndarray) -> np.ndarray:
    a = np.asarray(a, dtype=np.float64)
    if a.ndim != 2 or a.shape[0] != a.shape[1] or not len(a):
        raise ValueError(f"accuracy matrix of shape {a.shape}: give a square matrix (T, T) with T at least 1")
    if np.isnan(a[np.tril_indices(len(a))]).any():
        raise ValueError("accuracy matrix with NaN on or below the diagonal: give a number for every task seen")
    return a
