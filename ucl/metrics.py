"""Metrics of the accuracy matrix, and of the accuracies between task ends, as pure functions.

`a` is the accuracy matrix (T, T): a[t, i], in [0, 1], is the accuracy on the test data of task i after task t. It is
NaN where task i has not been learnt yet (i > t). "Last" means: at the end of the stream. A metric is NaN if an accuracy
that it needs is NaN because the task was not tested (`Config.evaluate_tasks`).

`a_ET` has one row for each of E evaluations along the stream (`Config.evaluate_every`): a_ET[e, i], in [0, 1], is the
accuracy on task i; it is NaN where task i has not begun yet. The last evaluation is at the end of the stream.

In a stream with gradual or blurry boundaries, task i means its classes, which have the main share of their images in
it, and it begins where its period of the stream begins.
"""

from __future__ import annotations

import numpy as np


def last_accuracy(a: np.ndarray) -> float:
    """Mean accuracy over all tasks at the end (paper, eq. 7): mean_i a[T, i], in [0, 1]."""
    return float(np.mean(_checked(a)[-1]))


def accuracy_so_far(a: np.ndarray) -> np.ndarray:
    """Mean accuracy on the tasks seen after each task t: mean_{i <= t} a[t, i], (T,), in [0, 1]."""
    return np.array([row[: t + 1].mean() for t, row in enumerate(a)])


def task_forgetting(a: np.ndarray) -> np.ndarray:
    """Forgetting of each task except the last: (T - 1,), max over l < T of a[l, i] minus a[T, i].

    The maximum is over the rows before the last, as in the paper's eq. 8. A task whose accuracy is highest at the end
    has a negative value.
    """
    a = _checked(a)
    return _best_before_end(a) - a[-1, :-1]


def last_forgetting(a: np.ndarray) -> float:
    """Mean of `task_forgetting` (paper, eq. 8), in [-1, 1]; NaN for a single task."""
    return float(np.mean(task_forgetting(a))) if len(_checked(a)) > 1 else np.nan


def retained_accuracy(a: np.ndarray) -> float:
    """Mean accuracy at the end on all tasks except the last, in [0, 1]; NaN for a single task.

    `last_forgetting` is `best_accuracy` minus this. It is therefore low where much is retained, and also where little
    was learnt.
    """
    return float(np.mean(_checked(a)[-1, :-1])) if len(_checked(a)) > 1 else np.nan


def best_accuracy(a: np.ndarray) -> float:
    """Mean best accuracy before the end, over all tasks except the last, in [0, 1]; NaN for a single task.

    `last_forgetting` is this minus `retained_accuracy`.
    """
    a = _checked(a)
    return float(np.mean(_best_before_end(a))) if len(a) > 1 else np.nan


def learning_accuracy(a: np.ndarray) -> float:
    """Mean accuracy on each task right after it was learnt (Riemer et al., 2019): mean_t a[t, t], in [0, 1]."""
    return float(np.mean(np.diagonal(_checked(a))))


def backward_transfer(a: np.ndarray) -> float:
    """Mean change of the earlier tasks since each was learnt (Lopez-Paz & Ranzato, 2017, section 2), in [-1, 1].

    mean_{i < T} (a[T, i] - a[i, i]); negative where tasks are forgotten. `last_forgetting` differs in its sign, and in
    that it starts from a task's best accuracy instead of the one right after learning it. NaN for a single task.
    """
    a = _checked(a)
    return float(np.mean(a[-1, :-1] - np.diagonal(a)[:-1])) if len(a) > 1 else np.nan


def average_anytime_accuracy(a_ET: np.ndarray) -> float:
    """Mean over all evaluations of the mean accuracy on the tasks begun so far, in [0, 1].

    AAA of Caccia et al. (2022), as Soutif-Cormerais et al. (2023) use it: all evaluations have equal weight. Their code
    (https://github.com/AlbinSou/ocl_survey, `post_metrics.py`) averages over the images of the tasks, which is the same
    if tasks have equally many. A_AUC of i-Blurry (Koh et al., 2022) is the mean over time of the accuracy on all
    classes that have occurred; in a blurry stream, these include classes of tasks that have not begun here.
    """
    return float(np.mean([row[:n].mean() for row, n in zip(np.asarray(a_ET), _n_begun(a_ET), strict=True)]))


def worst_case_accuracy(a_ET: np.ndarray) -> float:
    """Mean over the tasks of each earlier task's lowest accuracy and the last task's accuracy at the end, in [0, 1].

    WC-ACC of De Lange et al. (2023) at the end of the stream, as Soutif-Cormerais et al. (2023) use it:
    a[T, T] / T + (1 - 1/T) * mean_{i < T} min_e a[e, i], the minimum over the evaluations after the end of task i,
    which are during later tasks. The more evaluations, the lower the minimum can be: compare runs with the same
    `Config.evaluate_every`, and expect noise where tasks have few validation images.
    """
    a_ET, n_begun = np.asarray(a_ET), _n_begun(a_ET)
    n_tasks = a_ET.shape[1]
    lowest = [a_ET[n_begun > i + 1, i].min() for i in range(n_tasks - 1)]
    return float((a_ET[-1, -1] + sum(lowest)) / n_tasks)


def balanced_accuracy(class_recall: np.ndarray) -> float:
    """Mean recall of the classes, in [0, 1]: accuracy with an equal weight for every class.

    Args:
        class_recall: (C,), share of each class's test images that is predicted correctly; NaN for a class without test
            images, which does not count.
    """
    return float(np.nanmean(class_recall))


def class_forgetting(recall_TC: np.ndarray) -> float:
    """`last_forgetting` with an equal weight for every class of the earlier tasks, in [-1, 1].

    Args:
        recall_TC: recall of each class after each task; NaN for classes not learnt yet, and without test images.

    Returns:
        Mean over these classes c of max over t < T of recall_TC[t, c] minus recall_TC[T, c]; NaN for a single task, and
        if a class was not tested after each later task.
    """
    tested_TC = ~np.isnan(recall_TC)
    earlier_C = tested_TC[:-1].any(0)
    if not earlier_C.any() or (np.logical_or.accumulate(tested_TC) & ~tested_TC).any():
        return np.nan
    return float(np.mean(np.nanmax(recall_TC[:-1, earlier_C], 0) - recall_TC[-1, earlier_C]))


def _best_before_end(a: np.ndarray) -> np.ndarray:
    """The best accuracy on each task except the last, before the last row: (T - 1,)."""
    return np.array([np.max(a[i:-1, i]) for i in range(len(a) - 1)])


def _checked(a: np.ndarray) -> np.ndarray:
    a = np.asarray(a, dtype=np.float64)
    if a.ndim != 2 or a.shape[0] != a.shape[1] or not len(a):
        raise ValueError(f"accuracy matrix of shape {a.shape}: give a square matrix (T, T) with T at least 1")
    return a


def _n_begun(a_ET: np.ndarray) -> np.ndarray:
    """How many tasks have begun at each evaluation (E,)."""
    return np.where(np.isnan(a_ET), 0, np.arange(1, np.shape(a_ET)[1] + 1)).max(1)
