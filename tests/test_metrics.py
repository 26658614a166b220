"""Last accuracy, forgetting and related metrics, compared with their sums written out."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score

from ucl import metrics

NAN = math.nan

THREE_TASKS = np.array([[0.9, NAN, NAN], [0.6, 0.45, NAN], [0.2, 0.5, 0.8]])


@st.composite
def matrices(draw, least=1):
    tasks = draw(st.integers(least, 7))
    values = draw(st.lists(st.floats(0, 1), min_size=tasks**2, max_size=tasks**2))
    a = np.array(values).reshape(tasks, tasks)
    a[np.triu_indices(tasks, 1)] = NAN
    return a


def test_the_forgetting_of_a_single_task_is_not_defined():
    a = np.array([[0.75]])
    assert metrics.last_accuracy(a) == 0.75
    for name in ("last_forgetting", "class_forgetting", "retained_accuracy", "best_accuracy", "backward_transfer"):
        assert math.isnan(getattr(metrics, name)(a))


@settings(deadline=None)
@given(a=matrices(least=2))
def test_metrics_are_their_sums_written_out(a):
    last = len(a) - 1
    accuracy = math.fsum(a[last, i] for i in range(last + 1)) / (last + 1)
    forgotten = [max(a[row, i] for row in range(last) if row >= i) - a[last, i] for i in range(last)]
    seen = [math.fsum(a[t, i] for i in range(t + 1)) / (t + 1) for t in range(last + 1)]
    assert metrics.last_accuracy(a) == pytest.approx(accuracy, abs=1e-12)
    assert metrics.task_forgetting(a) == pytest.approx(forgotten, abs=1e-12)
    assert metrics.last_forgetting(a) == pytest.approx(math.fsum(forgotten) / last, abs=1e-12)
    assert metrics.accuracy_so_far(a) == pytest.approx(seen, abs=1e-12)
    retained, best = metrics.retained_accuracy(a), metrics.best_accuracy(a)
    assert retained == pytest.approx(math.fsum(a[last, :last]) / last, abs=1e-12)
    assert best - retained == pytest.approx(metrics.last_forgetting(a), abs=1e-12)
    moved = math.fsum(a[last, i] - a[i, i] for i in range(last)) / last
    assert metrics.backward_transfer(a) == pytest.approx(moved, abs=1e-12)
    assert metrics.learning_accuracy(a) == pytest.approx(math.fsum(np.diagonal(a)) / (last + 1), abs=1e-12)
    assert 0 <= metrics.last_accuracy(a) <= 1 and -1 <= metrics.last_forgetting(a) <= 1


@st.composite
def along_the_stream(draw):
    n_tasks = draw(st.integers(1, 5))
    begun = sorted([*draw(st.lists(st.integers(1, n_tasks), max_size=12)), n_tasks])
    values = draw(st.lists(st.floats(0, 1), min_size=len(begun) * n_tasks, max_size=len(begun) * n_tasks))
    a = np.array(values).reshape(len(begun), n_tasks)
    a[np.arange(n_tasks) >= np.array(begun)[:, None]] = NAN
    return a, begun


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
@settings(deadline=None)
@given(along=along_the_stream(), missing=st.integers(0, 99))
def test_measures_between_task_ends_are_their_sums_written_out(along, missing):
    a, begun = along
    seen = [math.fsum(a[e, i] for i in range(n)) / n for e, n in enumerate(begun)]
    assert metrics.average_anytime_accuracy(a) == pytest.approx(math.fsum(seen) / len(seen), abs=1e-12)
    n_tasks = a.shape[1]
    lowest = [min(a[e, i] for e, n in enumerate(begun) if n > i + 1) for i in range(n_tasks - 1)]
    mean_lowest = math.fsum(lowest) / (n_tasks - 1) if lowest else 0.0
    by_definition = a[-1, -1] / n_tasks + (1 - 1 / n_tasks) * mean_lowest
    assert metrics.worst_case_accuracy(a) == pytest.approx(by_definition, abs=1e-12)
    assert metrics.worst_case_accuracy(a) <= a[-1].mean() + 1e-12
    for metric in (metrics.average_anytime_accuracy, metrics.worst_case_accuracy):
        assert isinstance(metric(a), float) and 0 <= metric(a.tolist()) <= 1
    e = missing % len(a)
    a[e, 0] = NAN  # also where later tasks have numbers
    assert math.isnan(metrics.average_anytime_accuracy(a))
    assert math.isnan(metrics.worst_case_accuracy(a)) == (begun[e] > 1 or a.shape == (e + 1, 1))


@settings(deadline=None)
@given(a=matrices(least=2))
def test_what_stands_above_the_diagonal_does_not_count(a):
    filled = np.nan_to_num(a, nan=1.0)
    for metric in (metrics.last_accuracy, metrics.last_forgetting):
        value = metric(a)
        assert isinstance(value, float)
        assert metric(filled) == value
        assert metric(a.tolist()) == value


METRICS = [metrics.last_accuracy, metrics.last_forgetting]
METRICS += [metrics.task_forgetting, metrics.retained_accuracy, metrics.backward_transfer]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("place", [(t, i) for t, i in itertools.product(range(3), range(3)) if i <= t])
def test_a_missing_accuracy_is_not_averaged_over(metric, place):
    """The metric is NaN, or equal to that of the complete matrix whatever the missing number is."""
    a = THREE_TASKS.copy()
    a[place] = NAN
    without = metric(a)
    if np.isnan(without).any():
        return
    for number in (0, 0.5, 1):
        a[place] = number
        assert np.array_equal(metric(a), without)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("shape", [(0, 0), (3,), (2, 3), (1, 2, 2)])
def test_accuracies_that_are_no_square_matrix_are_refused(metric, shape):
    with pytest.raises(ValueError):
        metric(np.zeros(shape))


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), n_classes=st.integers(2, 12))
def test_balanced_accuracy_is_scikit_learns(seed, n_classes):
    """Class sizes differ widely, as in BloodMNIST, so that the plain accuracy would differ."""
    draw = np.random.default_rng(seed)
    truth = np.concatenate([np.arange(n_classes), draw.integers(0, n_classes, 200) * draw.integers(0, 2, 200)])
    predicted = np.where(draw.random(len(truth)) < 0.6, truth, draw.integers(0, n_classes, len(truth)))
    recall = np.array([(predicted[truth == c] == c).mean() for c in range(n_classes)])
    for recalls in (recall, [*recall, NAN]):  # A class without test images does not count.
        assert metrics.balanced_accuracy(np.array(recalls)) == pytest.approx(balanced_accuracy_score(truth, predicted))


def test_the_forgetting_of_classes_is_that_of_tasks_with_one_class_each():
    assert metrics.class_forgetting(THREE_TASKS) == pytest.approx(metrics.last_forgetting(THREE_TASKS))
    without_tests = np.insert(THREE_TASKS, 1, NAN, axis=1)
    assert metrics.class_forgetting(without_tests) == metrics.class_forgetting(THREE_TASKS)
    without_tests[1, 0] = NAN  # the class was tested after the first task, and not after the second
    assert math.isnan(metrics.class_forgetting(without_tests))
