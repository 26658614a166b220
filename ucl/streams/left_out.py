"""What a stream does not learn or test, in one line each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ucl.errors import first_of
from ucl.streams.image_dataset import ImageDataset
from ucl.streams.task import Task

REPORTED_SHARE = 0.1
"""A larger share of a task's training images that no batch has is reported."""


def left_out(tasks: Sequence[Task], dataset: ImageDataset, n_tests: Sequence[int], evaluate_on: str) -> list[str]:
    """What the tasks do not learn or test: images, classes without a learnt image, classes without a test image.

    Args:
        tasks: the tasks of a stream of the data set.
        dataset: the images.
        n_tests: for each class the number of images in the tests.
        evaluate_on: "test" or "validation": what the tasks are tested on.

    Returns:
        One line for each of the three that occurs.
    """
    lines = _images(tasks, dataset.name), _unlearnt(tasks, dataset), _untested(n_tests, dataset, evaluate_on)
    return [line for line in lines if line]


def _images(tasks: Sequence[Task], name: str) -> str:
    """The task that loses the largest share of its images; "" if no share is above `REPORTED_SHARE`."""
    shares = [task.n_left_out / len(task.host_labels) for task in tasks]
    worst = max(range(len(tasks)), key=shares.__getitem__)
    if shares[worst] <= REPORTED_SHARE:
        return ""
    task, n_tasks = tasks[worst], sum(share > REPORTED_SHARE for share in shares)
    what = f"task {worst + 1} of {name} does not learn {task.n_left_out} of its {len(task.host_labels)} training images"
    why = f"an incomplete last batch is dropped ({n_tasks} of {len(tasks)} tasks lose more than {REPORTED_SHARE:.0%})"
    return f"{what}: {why}; a batch_size below {task.batch_size} may leave out fewer"


def _unlearnt(tasks: Sequence[Task], dataset: ImageDataset) -> str:
    """The classes none of whose training images is in a batch; "" if there are none."""
    learnt = np.concatenate([task.host_labels[: len(task) * task.batch_size] for task in tasks])
    missing = [name for c, name in enumerate(dataset.classes) if c not in learnt]
    classes = f"{len(missing)} of {dataset.n_classes} classes ({first_of(missing)})"
    return f"{dataset.name}: no image of {classes} is learnt: all are in incomplete last batches" if missing else ""


def _untested(n_tests: Sequence[int], dataset: ImageDataset, evaluate_on: str) -> str:
    """The classes without images in the tests; "" if there are none."""
    missing = [name for name, n in zip(dataset.classes, n_tests, strict=True) if not n]
    classes = f"{len(missing)} classes have no {evaluate_on} images"
    return f"{classes} and are not in A and F: {first_of(missing)}" if missing else ""
