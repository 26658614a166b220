"""Held-out images: how many a share is, and the test images of data sets that come without test images.

`ucl.streams.patients` has the rules for patients.
"""

from __future__ import annotations

import numpy as np


def held_out_images(labels: np.ndarray) -> np.ndarray:
    """(N,), True for an evenly spaced fifth of each class, at least one image; nothing is drawn at random."""
    test = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        indices = np.flatnonzero(labels == label)
        test[indices[evenly_spaced(len(indices), max(1, round(len(indices) / 5)))]] = True
    return test


def n_in_share(share: float, n: int) -> int:
    """How many of n images a share in [0, 1] is, rounded down: 29 for 0.29 of 100."""
    return int(share * n + 1e-9)  # The product may be slightly below a whole number, as 0.29 * 100 is.


def evenly_spaced(n: int, k: int) -> np.ndarray:
    """(k,): k of the indices below n, each in the middle of one of k equal parts."""
    return (2 * np.arange(k) + 1) * n // (2 * max(k, 1))
