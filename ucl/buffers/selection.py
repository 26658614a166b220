"""Which candidates of a class a memory keeps (paper, section 4.2.4), and how many of each class.

The paper calls its memory management class-balanced (section 4.1), but does not say how many samples of a class stay.
`quotas` is what this package makes of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from ucl import catalogue
from ucl.catalogue import resolved

Selection = Callable[[Tensor, int], Tensor]
"""A selection rule: takes the scores (N,) of a class's candidates and k, and returns the k indices to keep."""


def bottom_k(scores: Tensor, k: int) -> Tensor:
    """The indices (k,), int64, of the k least uncertain candidates; in the paper, the easiest to remember.

    They are in ascending order of the scores (N,), the uncertainty; equal scores keep their order.

    Raises:
        ValueError: k is negative or above N.
    """
    return torch.argsort(scores, stable=True)[: _checked(scores, k)]


def top_k(scores: Tensor, k: int) -> Tensor:
    """The k most uncertain (in the paper, the easiest to forget), in descending order; otherwise like `bottom_k`."""
    return torch.argsort(scores, descending=True, stable=True)[: _checked(scores, k)]


def step_sized(scores: Tensor, k: int) -> Tensor:
    """k candidates evenly spaced from the least to the most uncertain, both included; otherwise like `bottom_k`.

    For k = 1 it is the least uncertain one.
    """
    _checked(scores, k)
    n = len(scores)
    # i * (n - 1) / (k - 1), rounded half up with whole numbers: distinct ranks for every k <= n.
    ranks = [(2 * i * (n - 1) + k - 1) // (2 * (k - 1)) for i in range(k)] if k > 1 else [0] * k
    # Indexing with a list would wait for the device.
    indices = torch.tensor(ranks, dtype=torch.int64).to(scores.device, non_blocking=True)
    return torch.argsort(scores, stable=True)[indices]


def _checked(scores: Tensor, k: int) -> int:
    if not 0 <= k <= len(scores):
        raise ValueError(f"k={k}: give 0 to {len(scores)}, the number of scores")
    return k


SELECTIONS: dict[str, Selection] = resolved(catalogue.SELECTIONS)
"""The selection rules by the names that `Config.selection` takes."""


def quotas(available: Mapping[int, int], size: int) -> dict[int, int]:
    """How many samples of each class a memory keeps: equal shares, and the memory stays full.

    A class with fewer samples than an equal share keeps all of them; the other classes share the rest of the memory
    equally. If the rest is not divisible, the first of these classes get one more each; with fewer slots than classes,
    only these keep a sample.

    Args:
        available: number of available samples of each class. Its order decides which classes are the first: in an
            `UncertaintyBuffer` those that came first, in a `TaskEndBuffer` those that come first in the slots.
        size: size of the memory.

    Returns:
        The quota of each class, at most what is available. The quotas sum to `size`, or to all available samples if
        these are fewer.
    """
    n_of = np.array([*available.values()], dtype=np.int64)
    # The largest equal share for which there is room.
    share = bisect_right(range(size + 1), size, key=lambda share: np.minimum(n_of, share).sum()) - 1
    quota = np.minimum(n_of, share)
    quota[np.flatnonzero(n_of > share)[: size - quota.sum()]] += 1
    return dict(zip(available, quota.tolist(), strict=True))
