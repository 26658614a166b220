"""How one task turns into the next: clear, gradual and blurry boundaries, as pure functions of image positions.

Each function returns the images of a stream period after period. There are as many periods as tasks, and every image
is in exactly one period. A period ends where one with clear boundaries would (gradual), or with its share of all
images (blurry); it is what `ucl.streams.Task` calls a task.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import numpy as np


def gradual(of_task: Sequence[np.ndarray], blur: float, draw: np.random.Generator) -> list[np.ndarray]:
    """Mix neighbouring tasks: over a transition the share of the old task falls linearly from 1 to 0.

    The transition between two tasks takes the last h images of the old one and the first h of the new one, with
    h = blur / 2 of the smaller task, rounded down. Of its 2h images the i-th, from 0, is of the new task with
    probability (i + 1/2) / 2h, and each part of the transition has the expected number of them to less than one image.
    Its middle is the end of a period. So a period has as many images as its task, and at least about 3/4 of them are
    the task's own.

    The fuzzy split of Lee et al. (2020, "A neural Dirichlet process mixture model for task-free continual learning")
    has shares of 9:1, 7:3, 5:5, 3:7 and 1:9 between the middles of neighbouring tasks; `blur=1` is its linear limit,
    without drawing an image twice.

    Args:
        of_task: for each task the positions of its images, in the order of the stream.
        blur: length of a transition over the images of the smaller of its two tasks, in [0, 1]; 0 leaves clear
            boundaries.
        draw: draws where each transition begins to alternate.

    Returns:
        For each period the positions of its images, in the order of the stream.
    """
    halves = [int(blur * min(len(a), len(b)) / 2) for a, b in itertools.pairwise(of_task)]
    opening = [np.array([], dtype=np.int64)]  # of each period: the second half of the transition before it
    closing = []  # the first half of the one after it
    for (old, new), half in zip(itertools.pairwise(of_task), halves, strict=True):
        mixed = _fade(old[len(old) - half :], new[:half], draw)
        closing.append(mixed[:half])
        opening.append(mixed[half:])
    closing.append(np.array([], dtype=np.int64))
    own = [
        task[before : len(task) - after]
        for task, before, after in zip(of_task, [0, *halves], [*halves, 0], strict=True)
    ]
    return [np.concatenate(parts) for parts in zip(opening, own, closing, strict=True)]


def blurry(
    of_class: Sequence[np.ndarray], classes_of_task: Sequence[Sequence[int]], disjoint: Collection[int], blur: float
) -> list[np.ndarray]:
    """i-Blurry (Koh et al., 2022): disjoint classes come in one task, blurry ones in all.

    i-Blurry-N-M: N % of the classes are disjoint. Of each other class, (100 - M) % of the images come in the class's
    own task, and M % are shared out equally over all tasks, the own one included, as in the authors' published splits
    (https://github.com/naver-ai/i-Blurry, `collections`). There the M % of all classes are mixed before they are
    shared out; here they are dealt in turn, so that the tasks' numbers of images of a class differ by at most one.

    Args:
        of_class: for each class the positions of its images, in random order.
        classes_of_task: for each task the classes whose main share it has.
        disjoint: the disjoint classes.
        blur: M / 100, in [0, 1].

    Returns:
        For each task the positions of its images, class by class: the caller mixes them.
    """
    n_tasks = len(classes_of_task)
    n_shared = [0 if c in disjoint else round(blur * len(images)) for c, images in enumerate(of_class)]
    main = [images[: len(images) - n] for images, n in zip(of_class, n_shared, strict=True)]
    in_order = [c for classes in classes_of_task for c in classes]
    shared = np.concatenate([of_class[c][len(main[c]) :] for c in in_order])
    return [
        np.concatenate([*(main[c] for c in classes), shared[task::n_tasks]])
        for task, classes in enumerate(classes_of_task)
    ]


def disjoint_classes(
    classes_of_task: Sequence[Sequence[int]], share: float, draw: np.random.Generator
) -> frozenset[int]:
    """Draw the disjoint classes of `blurry`: this share of all, rounded, and equally many per task up to one.

    Args:
        classes_of_task: for each task its classes, equally many.
        share: N / 100, in [0, 1].
        draw: draws which classes, and which tasks have one more.
    """
    n_tasks, n_classes = len(classes_of_task), sum(map(len, classes_of_task))
    per_task, more = divmod(round(share * n_classes), n_tasks)
    with_more = set(draw.permutation(n_tasks)[:more].tolist())
    return frozenset(
        int(c)
        for task, classes in enumerate(classes_of_task)
        for c in draw.permutation(classes)[: per_task + (task in with_more)]
    )


def _fade(old: np.ndarray, new: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Equally many old and new images, each in their order, new ones ever more often."""
    half = len(old)
    # Up to image i, i^2 / 4h new ones are expected. Whole numbers, as a rounding error could add or lose an image.
    expected_times_4h = np.arange(2 * half + 1, dtype=np.int64) ** 2
    start = draw.integers(max(4 * half, 1))
    is_new = np.diff((expected_times_4h + start) // max(4 * half, 1)) == 1
    mixed = np.empty(2 * half, dtype=np.int64)
    mixed[~is_new], mixed[is_new] = old, new
    return mixed
