"""Which candidates a memory keeps, given their uncertainty (paper, section 4.2.4): scores to positions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def bottom_k(scores: Tensor, k: int) -> Tensor:
    """The k least uncertain: the easiest to remember.

    Args:
        scores: (N,) uncertainty.
        k: how many to keep, 0 to N.

    Returns:
        (k,) positions, int64, in ascending order of uncertainty; equal scores keep their order.

    Raises:
        ValueError: k is negative or above N.
    """
    return torch.argsort(scores, stable=True)[: _checked(scores, k)]


def top_k(scores: Tensor, k: int) -> Tensor:
    """The k most uncertain, the easiest to forget, in descending order; else as `bottom_k`."""
    return torch.argsort(scores, descending=True, stable=True)[: _checked(scores, k)]


def step_sized(scores: Tensor, k: int) -> Tensor:
    """k candidates evenly spaced from the least to the most uncertain, both included; else as `bottom_k`."""
    _checked(scores, k)
    n = len(scores)
    # i * (n - 1) / (k - 1), rounded half up in whole numbers: distinct places for every k <= n
    places = [(2 * i * (n - 1) + k - 1) // (2 * (k - 1)) for i in range(k)] if k > 1 else [0] * k
    return torch.argsort(scores, stable=True)[places]


def _checked(scores: Tensor, k: int) -> int:
    if not 0 <= k <= len(scores):
        raise ValueError(f"k={k}: give 0 to {len(scores)}, the number of scores")
    return k


SELECTIONS: dict[str, Callable[[Tensor, int], Tensor]] = {"bottom": bottom_k, "step": step_sized, "top": top_k}
