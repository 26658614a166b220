"""Metrics of the accuracy matrix: pure functions.

`a` is the accuracy matrix (T, T): a[t, i], in [0, 1], is the accuracy on the test data of task i after learning task
t, NaN where task i has not been learnt yet (i > t). "Last" means: at the end of the stream.
"""

from __future__ import annotations

import numpy as np


def last_accuracy(a: np.ndarray) -> float:
    """Mean accuracy over all tasks at the end (paper, eq. 8): mean_i a[T, i], in [0, 1]."""
    return float(np.mean(_checked(a)[-1]))


def average_accuracy(a: np.ndarray) -> float:
    """Mean over the tasks t of the mean accuracy on the tasks seen by then: mean_t mean_{i <= t} a[t, i], in [0, 1]."""
    return float(np.mean([row[: t + 1].mean() for t, row in enumerate(_checked(a))]))


def task_forgetting(a: np.ndarray) -> np.ndarray:
    """How far each task but the last fell from its best: (T - 1,), max over l < T of a[l, i] minus a[T, i].

    The best is taken over the rows before the last, as in the paper's eq. 9, so a task that is best at the end has a
    negative value.
    """
    a = _checked(a)
    return np.array([np.max(a[i:-1, i]) - a[-1, i] for i in range(len(a) - 1)])


def last_forgetting(a: np.ndarray) -> float:
    """Mean of `task_forgetting` (paper, eq. 9), in [-1, 1]; 0 for a single task."""
    return float(np.mean(task_forgetting(a))) if len(_checked(a)) > 1 else 0.0


def kept_accuracy(a: np.ndarray) -> float:
    """Mean accuracy at the end on all tasks but the last, in [0, 1]; NaN for a single task.

    `last_forgetting` is what these tasks had at their best less this: it is low where much is kept, and also where
    little was learnt.
    """
    return float(np.mean(_checked(a)[-1, :-1])) if len(_checked(a)) > 1 else np.nan


def best_accuracy(a: np.ndarray) -> float:
    """Mean over all tasks but the last of their best accuracy before the end, in [0, 1]; NaN for a single task.

    `last_forgetting` is this less `kept_accuracy`.
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
    """Mean recall of the classes, in [0, 1]: the accuracy where every class weighs the same.

    Args:
        class_recall: (C,), the share of each class's test images that is recognised; NaN for a class without any,
            which does not count.
    """
    return float(np.nanmean(class_recall))


def _checked(a: np.ndarray) -> np.ndarray:
    a = np.asarray(a, dtype=np.float64)
    if a.ndim != 2 or a.shape[0] != a.shape[1] or not len(a):
        raise ValueError(f"accuracy matrix of shape {a.shape}: give a square one, (T, T)")
    if np.isnan(a[np.tril_indices(len(a))]).any():
        raise ValueError("accuracy matrix with NaN on or below the diagonal: every task seen has an accuracy")
    return a
