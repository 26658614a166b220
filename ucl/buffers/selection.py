"""What a memory keeps: which candidates of a class, given their uncertainty, and how many of each class (paper, section
4.2.4 and Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Selection = Callable[[Tensor, int], Tensor]  # scores of a class's candidates and how many to keep, to their indices


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
    """The k most uncertain, the easiest to forget, in descending order; otherwise like `bottom_k`."""
    return torch.argsort(scores, descending=True, stable=True)[: _checked(scores, k)]


def step_sized(scores: Tensor, k: int) -> Tensor:
    """k candidates evenly spaced from the least to the most uncertain, both included; otherwise like `bottom_k`."""
    _checked(scores, k)
    n = len(scores)
    # i * (n - 1) / (k - 1), rounded half up in whole numbers: distinct indices for every k <= n
    chosen = [(2 * i * (n - 1) + k - 1) // (2 * (k - 1)) for i in range(k)] if k > 1 else [0] * k
    # as a list they would be an index that waits for the device
    at = torch.tensor(chosen, dtype=torch.int64).to(scores.device, non_blocking=True)
    return torch.argsort(scores, stable=True)[at]


def _checked(scores: Tensor, k: int) -> int:
    if not 0 <= k <= len(scores):
        raise ValueError(f"k={k}: give 0 to {len(scores)}, the number of scores")
    return k


SELECTIONS: dict[str, Selection] = {"bottom": bottom_k, "step": step_sized, "top": top_k}
"""The selection rules by the names that `Config.selection` takes."""


def quotas(available: Mapping[int, int], size: int) -> dict[int, int]:
    """How many of each class a memory of `size` keeps: equal shares, and the memory stays full.

    A class with less than an equal share keeps all it has; the others share what is left equally. What does not
    divide goes to the first classes of the mapping, one each.

    Args:
        available: samples at hand of each class, in the order in which the classes came.
        size: of the memory.

    Returns:
        For each class its quota: at most what is available, `size` in all, or all there is where that is less.
    """
    quota: dict[int, int] = {}
    left = size
    smallest_first = sorted(available, key=lambda c: available[c])
    for i, label in enumerate(smallest_first):
        share = left // (len(smallest_first) - i)
        if available[label] > share:
            sharing = set(smallest_first[i:])
            remainder = left - share * len(sharing)
            for c in available:
                if c in sharing:
                    extra = remainder > 0
                    quota[c] = share + extra
                    remainder -= extra
            break
        quota[label] = available[label]
        left -= available[label]
    return {c: quota[c] for c in available}
