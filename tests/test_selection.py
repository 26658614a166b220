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
    return sorted(range(len(scores)), key=lambda i: scores[i])  # Python's sort keeps the order of equals


def descending(scores):
    return sorted(range(len(scores)), key=lambda i: -scores[i])


@settings(deadline=None)
@given(given=scores_and_k())
def test_bottom_and_top_keep_the_least_and_the_most_uncertain_in_order(given):
    scores, k = given
    for rule, order in ((bottom_k, ascending), (top_k, descending)):
        given = torch.tensor(scores, dtype=torch.float64)
        selected = rule(given, k)
        assert selected.tolist() == order(scores)[:k] and selected.dtype == torch.int64
        assert given.tolist() == scores


@settings(deadline=None)
@given(given=scores_and_k())
def test_step_is_evenly_spaced_over_the_sorted_candidates_ends_included(given):
    scores, k = given
    selected, order = step_sized(torch.tensor(scores, dtype=torch.float64), k), ascending(scores)
    ranks = [order.index(i) for i in selected.tolist()]
    assert len(ranks) == k and selected.dtype == torch.int64
    if k >= 2:
        gaps = np.diff(ranks)
        assert ranks[-1] == len(scores) - 1
        assert gaps.min() >= 1 and gaps.max() - gaps.min() <= 1
    even = np.arange(k) * (len(scores) - 1) / max(k - 1, 1)
    assert np.abs(np.array(ranks) - even).max(initial=0) <= 0.5


@pytest.mark.parametrize("rule", SELECTIONS.values())
@pytest.mark.parametrize(("n", "k"), [(5, 6), (5, -1), (0, 1), (0, -1), (3, 10**9)])
def test_more_than_there_are_or_less_than_none_is_refused(rule, n, k):
    with pytest.raises(ValueError, match="k="):
        rule(torch.zeros(n), k)
