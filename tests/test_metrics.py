"""Last accuracy, forgetting and their kin, against matrices worked out by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score

from ucl import metrics

NAN = math.nan

# After task 3: mean of 0.2, 0.5, 0.8 is 0.5. Task 1 was best after task 1 (0.9), task 2 after task 3 - but of the
# rows before the last its best is 0.45, after task 2. Forgotten: 0.9 - 0.2 = 0.7 and 0.45 - 0.5 = -0.05.
THREE_TASKS = np.array(
    [
        [0.9, NAN, NAN],
        [0.6, 0.45, NAN],
        [0.2, 0.5, 0.8],
    ]
)


@st.composite
def matrices(draw, least=1):
    tasks = draw(st.integers(least, 7))
    values = draw(st.lists(st.floats(0, 1), min_size=tasks**2, max_size=tasks**2))
    a = np.array(values).reshape(tasks, tasks)
    a[np.triu_indices(tasks, 1)] = NAN
    return a


def test_last_accuracy_is_the_mean_of_the_last_row():
    assert metrics.last_accuracy(THREE_TASKS) == pytest.approx(0.5)


def test_average_accuracy_weighs_every_task_of_the_stream_alike():
    assert metrics.average_accuracy(THREE_TASKS) == pytest.approx((0.9 + 0.525 + 0.5) / 3)


def test_forgetting_compares_with_the_best_before_the_last_task():
    """The paper's eq. 9 takes the maximum over l in 1..T-1: what is best at the very end counts as gained."""
    assert metrics.task_forgetting(THREE_TASKS) == pytest.approx([0.7, -0.05])
    assert metrics.last_forgetting(THREE_TASKS) == pytest.approx(0.325)
    with_the_last_row_in_the_maximum = ((0.9 - 0.2) + (0.5 - 0.5)) / 2
    assert metrics.last_forgetting(THREE_TASKS) != pytest.approx(with_the_last_row_in_the_maximum)


def test_forgetting_compares_with_the_best_not_with_the_first():
    a = np.array([[0.3, NAN, NAN, NAN], [0.7, 0.5, NAN, NAN], [0.5, 0.4, 0.9, NAN], [0.1, 0.2, 0.3, 1.0]])
    assert metrics.task_forgetting(a) == pytest.approx([0.6, 0.3, 0.6])
    assert metrics.last_forgetting(a) == pytest.approx(0.5)


def test_the_last_task_cannot_be_forgotten():
    a = np.array([[1.0, NAN], [0.5, 0.0]])
    assert metrics.task_forgetting(a) == pytest.approx([0.5])
    assert metrics.last_forgetting(a) == pytest.approx(0.5)


def test_everything_kept_is_no_forgetting_and_everything_lost_is_all():
    kept, lost = np.tril(np.ones((4, 4))), np.eye(4)
    assert (metrics.last_forgetting(kept), metrics.last_accuracy(kept)) == (0, 1)
    assert (metrics.last_forgetting(lost), metrics.last_accuracy(lost)) == (1, 0.25)


def test_a_single_task_is_not_forgotten():
    a = np.array([[0.75]])
    assert (metrics.last_accuracy(a), metrics.average_accuracy(a), metrics.last_forgetting(a)) == (0.75, 0.75, 0.0)
    assert metrics.task_forgetting(a).shape == (0,)
    assert math.isnan(metrics.kept_accuracy(a))


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
    assert metrics.average_accuracy(a) == pytest.approx(math.fsum(seen) / len(seen), abs=1e-12)
    best = math.fsum(max(a[row, i] for row in range(last) if row >= i) for i in range(last)) / last
    assert metrics.kept_accuracy(a) == pytest.approx(best - metrics.last_forgetting(a), abs=1e-12)
    assert 0 <= metrics.last_accuracy(a) <= 1 and -1 <= metrics.last_forgetting(a) <= 1


@settings(deadline=None)
@given(a=matrices())
def test_what_stands_above_the_diagonal_does_not_count(a):
    filled = np.nan_to_num(a, nan=1.0)
    for metric in (metrics.last_accuracy, metrics.average_accuracy, metrics.last_forgetting):
        value = metric(a)
        assert isinstance(value, float)
        assert metric(filled) == value
        assert metric(a.tolist()) == value


METRICS = [
    metrics.last_accuracy,
    metrics.average_accuracy,
    metrics.last_forgetting,
    metrics.task_forgetting,
    metrics.kept_accuracy,
]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("place", [(t, i) for t, i in itertools.product(range(3), range(3)) if i <= t])
def test_a_missing_accuracy_is_refused_not_averaged_over(metric, place):
    a = THREE_TASKS.copy()
    a[place] = NAN
    with pytest.raises(ValueError, match="NaN on or below the diagonal"):
        metric(a)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("shape", [(0, 0), (3,), (2, 3), (3, 2), (1, 2, 2), (0, 3), ()])
def test_what_is_no_square_matrix_is_refused(metric, shape):
    with pytest.raises(ValueError, match="square"):
        metric(np.zeros(shape))


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), n_classes=st.integers(2, 12))
def test_balanced_accuracy_is_scikit_learns(seed, n_classes):
    """Class sizes differ widely, as in BloodMNIST, so that the plain accuracy would differ."""
    draw = np.random.default_rng(seed)
    truth = np.concatenate([np.arange(n_classes), draw.integers(0, n_classes, 200) * draw.integers(0, 2, 200)])
    predicted = np.where(draw.random(len(truth)) < 0.6, truth, draw.integers(0, n_classes, len(truth)))
    recall = np.array([(predicted[truth == c] == c).mean() for c in range(n_classes)])
    assert metrics.balanced_accuracy(recall) == pytest.approx(balanced_accuracy_score(truth, predicted))


def test_balanced_accuracy_is_not_the_plain_one():
    truth, predicted = np.array([0] * 9 + [1]), np.zeros(10, int)
    recall = np.array([(predicted[truth == c] == c).mean() for c in range(2)])
    assert metrics.balanced_accuracy(recall) == 0.5
    assert balanced_accuracy_score(truth, predicted) == 0.5
    assert (predicted == truth).mean() == 0.9


def test_a_class_without_test_images_does_not_count():
    """As in scikit-learn, which averages over the classes that occur."""
    truth, predicted = np.array([0, 0, 2]), np.array([0, 2, 2])
    assert metrics.balanced_accuracy(np.array([0.5, NAN, 1.0])) == balanced_accuracy_score(truth, predicted) == 0.75
