"""Gradual and blurry boundaries between tasks, as pure functions of image positions.

`gradual` and `blurry` return the images of each period of a stream. There are as many periods as tasks, and every image
is in exactly one period. `ucl.streams.Task` calls a period a task.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from ucl.streams.held_out import n_in_share


def gradual(positions_of_task: Sequence[np.ndarray], blur: float, draw: np.random.Generator) -> list[np.ndarray]:
    """Mix neighbouring tasks: during a transition the share of the old task falls linearly from 1 to 0.

    The transition between two tasks takes the last h images of the old one and the first h of the new one, with
    h = blur / 2 of the smaller task, rounded down. Image i of its 2h images, counted from 0, is of the new task with
    probability (i + 1/2) / 2h, and the number of new images so far differs from the expected one by less than one. The
    middle of the transition is the end of a period, which therefore has as many images as its task.

    The fuzzy split of Lee et al. (2020, "A neural Dirichlet process mixture model for task-free continual learning")
    has shares of 9:1, 7:3, 5:5, 3:7 and 1:9 between the middles of neighbouring tasks. `blur=1` is the linear limit of
    these shares, without drawing an image twice.

    Args:
        positions_of_task: for each task the positions of its images, in the order of the stream, as in the result.
        blur: length of a transition divided by the number of images of the smaller of its two tasks, in [0, 1]; 0 gives
            clear boundaries.
        draw: draws an offset for each transition, which decides where exactly old and new images alternate.
    """
    halves = [n_in_share(blur / 2, min(len(a), len(b))) for a, b in itertools.pairwise(positions_of_task)]
    periods = [period.copy() for period in positions_of_task]
    for number, half in enumerate(halves):
        old, new = positions_of_task[number : number + 2]
        mixed = _fade(old[len(old) - half :], new[:half], draw)
        periods[number][len(old) - half :], periods[number + 1][:half] = mixed[:half], mixed[half:]
    return periods


def blurry(
    positions: Sequence[np.ndarray], classes_of_task: Sequence[Sequence[int]], disjoint: Collection[int], blur: float
) -> list[np.ndarray]:
    """i-Blurry (Koh et al., 2022): disjoint classes come in one task, blurry ones in all.

    i-Blurry-N-M: N % of the classes are disjoint. Of each other class, (100 - M) % of the images come in the class's
    own task. The other M % are shared out equally over all tasks, including the class's own, as in the authors'
    published splits (https://github.com/naver-ai/i-Blurry, `collections`). There they are mixed first. Here they are
    dealt in turn, so that the tasks' numbers of images of a class differ by at most one.

    Args:
        positions: for each class the positions of its images, in random order.
        classes_of_task: for each task the classes whose main share it has.
        disjoint: the disjoint classes.
        blur: M / 100, in [0, 1].

    Returns:
        For each task the positions of its images, not mixed: those of its own classes, then its shared images.
    """
    n_tasks = len(classes_of_task)
    n_shared = [0 if c in disjoint else round(blur * len(images)) for c, images in enumerate(positions)]
    main = [images[: len(images) - n] for images, n in zip(positions, n_shared, strict=True)]
    in_order = [c for classes in classes_of_task for c in classes]
    shared = np.concatenate([positions[c][len(main[c]) :] for c in in_order])
    return [
        np.concatenate([*(main[c] for c in classes), shared[task::n_tasks]])
        for task, classes in enumerate(classes_of_task)
    ]


def disjoint_classes(
    classes_of_task: Sequence[Sequence[int]], share: float, draw: np.random.Generator
) -> frozenset[int]:
    """Draw the disjoint classes of `blurry`: a share of all classes, rounded, spread over the tasks.

    The numbers of disjoint classes of two tasks differ by at most one, unless a smaller task has no more classes. The
    share is N / 100, in [0, 1]; it is drawn which classes are disjoint, and which tasks have one more of them.
    """
    n_tasks, n_classes = len(classes_of_task), sum(map(len, classes_of_task))
    turns = draw.permutation(n_tasks).tolist()
    rounds = range(max(map(len, classes_of_task)))
    in_turn = [task for n_before in rounds for task in turns if len(classes_of_task[task]) > n_before]
    n_of = Counter(in_turn[: round(share * n_classes)])
    return frozenset(
        int(c) for task, classes in enumerate(classes_of_task) for c in draw.permutation(classes)[: n_of[task]]
    )


def _fade(old: np.ndarray, new: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Mix equally many old and new images, with more and more new ones; old and new images stay in their orders."""
    half = len(old)
    # Up to image i, i^2 / 4h new ones are expected. Whole numbers, as a rounding error could add or lose an image.
    expected_times_4h = np.arange(2 * half + 1, dtype=np.int64) ** 2
    start = draw.integers(max(4 * half, 1))
    is_new = np.diff((expected_times_4h + start) // max(4 * half, 1)) == 1
    mixed = np.empty(2 * half, dtype=np.int64)
    mixed[~is_new], mixed[is_new] = old, new
    return mixed
