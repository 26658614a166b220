"""Which candidates are retained, compared with sorting by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ucl.buffers.selection import SELECTIONS, bottom_k, step_sized, top_k


@st.composite
def scores_and_k(draw):
    """Up to 60 scores, many of them equal, and how many to keep."""
    value = st.sampled_from([0.0, 0.25, 0.5, 1.0, -3.0]) | st.floats(-1e6, 1e6, width=32)
    scores = draw(st.lists(value, max_size=60))
    return scores, draw(st.integers(0, len(scores)))


def ascending(scores):
    return sorted(range(len(scores)), key=lambda place: scores[place])  # Python's sort keeps the order of equals


def descending(scores):
    return sorted(range(len(scores)), key=lambda place: -scores[place])


def tensor(scores):
    return torch.tensor(scores, dtype=torch.float64)


@settings(deadline=None)
@given(given=scores_and_k())
def test_bottom_keeps_the_least_uncertain_in_order(given):
    scores, k = given
    assert bottom_k(tensor(scores), k).tolist() == ascending(scores)[:k]


@settings(deadline=None)
@given(given=scores_and_k())
def test_top_keeps_the_most_uncertain_in_order(given):
    scores, k = given
    assert top_k(tensor(scores), k).tolist() == descending(scores)[:k]


@settings(deadline=None)
@given(given=scores_and_k())
def test_step_is_evenly_spaced_over_the_sorted_candidates_ends_included(given):
    scores, k = given
    kept, order = step_sized(tensor(scores), k).tolist(), ascending(scores)
    ranks = [order.index(place) for place in kept]
    gaps = np.diff(ranks)
    if k >= 1:
        assert ranks[0] == 0
    if k >= 2:
        assert ranks[-1] == len(scores) - 1
        assert gaps.min() >= 1 and gaps.max() - gaps.min() <= 1
    even = np.arange(k) * (len(scores) - 1) / max(k - 1, 1)
    assert np.abs(np.array(ranks) - even).max(initial=0) <= 0.5


@settings(deadline=None)
@given(given=scores_and_k(), rule=st.sampled_from(sorted(SELECTIONS)))
def test_k_distinct_positions_come_back_and_the_scores_stay(given, rule):
    scores, k = given
    before = tensor(scores)
    kept = SELECTIONS[rule](before, k)
    assert (kept.dtype, kept.shape) == (torch.int64, (k,))
    assert len(set(kept.tolist())) == k
    assert set(kept.tolist()) <= set(range(len(scores)))
    assert before.tolist() == scores


@pytest.mark.parametrize("n", [1, 2, 17, 300])
@pytest.mark.parametrize("rule", sorted(SELECTIONS))
def test_equal_scores_keep_their_order(rule, n):
    kept = SELECTIONS[rule](torch.zeros(n), n)
    assert kept.tolist() == list(range(n))


def test_some_of_eleven_evenly_spaced():
    """By hand: k of the ranks 0 to 10. For k = 5 these are 0, 2.5, 5, 7.5 and 10; halves may round up or down."""
    scores = torch.arange(11.0).flip(0)  # rank r is at index 10 - r
    assert step_sized(scores, 6).tolist() == [10, 8, 6, 4, 2, 0]
    assert step_sized(scores, 5).tolist()[::2] == [10, 5, 0]
    assert step_sized(scores, 3).tolist() == [10, 5, 0]
    assert step_sized(scores, 2).tolist() == [10, 0]
    assert step_sized(scores, 1).tolist() == [10]


@pytest.mark.parametrize("rule", sorted(SELECTIONS))
@pytest.mark.parametrize(("n", "k"), [(5, 6), (5, -1), (0, 1), (0, -1), (3, 10**9)])
def test_more_than_there_are_or_less_than_none_is_refused(rule, n, k):
    with pytest.raises(ValueError, match="k="):
        SELECTIONS[rule](torch.zeros(n), k)
