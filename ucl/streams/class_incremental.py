"""The stream: the classes are split into tasks; each task is seen once, in small batches.

With gradual or blurry boundaries (`ucl.streams.boundaries`) a task is a period of the stream. The task is still tested
on its own classes: those whose main share of images it has. Some of their images come in other tasks, and images of
other classes come in this one. Before its period a task's accuracy is undefined (NaN), although some of its images may
have come. With `blur=1` a blurry class has no main share; it belongs to its task in the class order.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ucl.config import Config
from ucl.errors import InputError, first_of
from ucl.fields import classes_in
from ucl.machine.determinism import seed_for
from ucl.streams.boundaries import blurry, disjoint_classes, gradual
from ucl.streams.held_out import n_in_share, whole_patients
from ucl.streams.image_dataset import ImageDataset
from ucl.streams.task import LazyImages, Task, images_on

_log = logging.getLogger(__name__)


def long_tailed_counts(n_max: int, n_classes: int, imbalance: float) -> list[int]:
    """Class sizes of a long tail (Cui et al., 2019): n_max * imbalance^(c / (C - 1)), rounded down, at least 1.

    Args:
        n_max: size of the first class.
        n_classes: C.
        imbalance: size of the last class divided by that of the first, in (0, 1]; 1 gives equal sizes.

    Returns:
        C sizes, largest first, in the order of the stream.

    Raises:
        InputError: `imbalance` is not in (0, 1], such as 100 for a largest class of 100 times the last.
    """
    if not 0 < imbalance <= 1:
        raise InputError("imbalance", imbalance, "give a number in (0, 1]")
    exponents = np.arange(n_classes) / max(n_classes - 1, 1)
    return [max(1, int(n)) for n in n_max * imbalance**exponents + 1e-9]


class ClassIncrementalStream:
    """A class-incremental stream (paper, section 5.1.1); iterating over it gives its tasks.

    Class order, held-out images, boundaries and the order of the images have a generator each.

    Args:
        config: its fields of the stream, the tests, the seed, `batch_size`, `replay` and `method` are used. With the
            method "joint" the training images of all tasks are mixed: each task has as many images as before, but of
            all classes; its classes and its test images stay the same. With `replay` "all" batches have no number of
            their task.
        dataset: the images. Its validation set, if it has one, replaces the held-out images.
        device: device of the images and labels.

    Log messages (level WARNING, which Python shows without any set-up) name what is not learnt or not tested: more than
    a tenth of a task's images, or a class. Another one says if `imbalance` does not give a long tail, because some
    classes have fewer images than their place in it.

    Attributes:
        tasks: the tasks in order.
        class_order: labels in the order of the stream; if boundaries are not clear, in the order of their tasks.

    Raises:
        InputError: there are fewer classes than tasks; an explicit class order or explicit tasks do not have each class
            once; or a task has fewer images than a batch or no test images.
    """

    def __init__(self, config: Config, dataset: ImageDataset, device: torch.device | str = "cpu") -> None:
        indices_of_class = [np.flatnonzero(dataset.train_labels == c) for c in range(dataset.n_classes)]
        classes_of_task = _classes_of_task(config, dataset, indices_of_class)
        self.class_order: tuple[int, ...] = tuple(c for classes in classes_of_task for c in classes)

        train, self._validation = _hold_out(config, dataset, indices_of_class)
        test_set = _Tests(dataset.test_images, dataset.test_labels, np.arange(len(dataset.test_labels)))
        tested = test_set if config.evaluate_on == "test" else self._validation
        test = [tested.of_classes([c]) for c in range(dataset.n_classes)]
        train = thinned(train, self.class_order, config.imbalance)
        sizes = [len(train[c]) for c in self.class_order]
        if config.imbalance < 1 and any(later > 1.1 * size + 1 for size, later in itertools.pairwise(sizes)):
            advice = "let the classes come in the order of their sizes, as class_order 'size' does"
            _log.warning("%s: no long tail, because some classes are small; %s", dataset.name, advice)
        if config.long_tailed_test:
            test = thinned(test, self.class_order, config.imbalance)

        positions_of_task = _learnt_in_order(config, train, classes_of_task)
        self.tasks: list[Task] = []
        for number, (classes, positions) in enumerate(zip(classes_of_task, positions_of_task, strict=True)):
            if len(positions) < config.batch_size:
                reason = f"task {number + 1} of {dataset.name} has {len(positions)} training images"
                raise InputError("batch_size", config.batch_size, f"{reason}; give that or less, or fewer tasks")
            test_rows = np.concatenate([test[c] for c in classes])
            if not len(test_rows):
                reason = f"task {number + 1} of {dataset.name} has no {config.evaluate_on} images"
                advice = "give a larger validation share, or images of every class to the test or validation set"
                raise InputError("evaluate_on", config.evaluate_on, f"{reason}; {advice}")
            labels = dataset.train_labels[positions]
            self.tasks.append(
                Task(
                    number=number,
                    classes=classes,
                    images=images_on(dataset.train_images, positions, device),
                    labels=torch.from_numpy(labels).to(device),
                    host_labels=labels,
                    positions=torch.from_numpy(positions).to(device),
                    test_images=images_on(tested.images, test_rows, device),
                    test_labels=torch.from_numpy(tested.labels[test_rows]).to(device),
                    test_positions=test_rows,
                    batch_size=config.batch_size,
                    numbered=config.replay == "earlier",
                )
            )
        _log_left_out(self.tasks, dataset)
        _warn_of("classes that are not tested", [len(rows) for rows in test], dataset)
        if config.evaluate_every:
            validated = [len(self._validation.of_classes([c])) for c in range(dataset.n_classes)]
            _warn_of("classes that are not tested between task ends", validated, dataset)

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    @property
    def n_batches(self) -> int:
        """Number of batches in the whole stream."""
        return sum(len(task) for task in self.tasks)

    def validation_tests(self) -> list[tuple[Tensor | LazyImages, np.ndarray]]:
        """For each task the validation images of its classes, as `Task.test_images` has test images, and their labels.

        They come from the data set's validation set, or, without one, are the held-out training images.
        """
        images, labels, _ = self._validation
        device = self.tasks[0].images.device
        rows_of_task = [self._validation.of_classes(task.classes) for task in self.tasks]
        return [(images_on(images, rows, device), labels[rows]) for rows in rows_of_task]


def _draws(config: Config, purpose: str) -> np.random.Generator:
    return np.random.default_rng(seed_for(config.seed, purpose))


def _classes_of_task(
    config: Config, dataset: ImageDataset, indices_of_class: Sequence[np.ndarray]
) -> list[tuple[int, ...]]:
    if config.tasks != "equal":
        return _labels_in("tasks", config.tasks, dataset)
    n_classes = dataset.n_classes
    if config.n_tasks > n_classes:
        raise InputError("n_tasks", config.n_tasks, f"{dataset.name} has {n_classes} classes; give that or fewer")
    if config.class_order == "seed":
        order = _draws(config, "class order").permutation(n_classes)
    elif config.class_order == "size":
        order = np.argsort([-len(indices) for indices in indices_of_class], kind="stable")
    else:
        order = np.concatenate(_labels_in("class_order", config.class_order, dataset))
    return [tuple(classes.tolist()) for classes in np.array_split(order, config.n_tasks)]


def _labels_in(field: str, text: str, dataset: ImageDataset) -> list[tuple[int, ...]]:
    """The labels of the classes in each task of an explicit list; what is a name and an index counts as the name."""
    label_of = {str(c): c for c in range(dataset.n_classes)} | {name: c for c, name in enumerate(dataset.classes)}
    tasks = classes_in(text)
    unknown = [name for task in tasks for name in task if name not in label_of]
    times = Counter(label_of[name] for task in tasks for name in task if name in label_of)
    twice = [dataset.classes[c] for c, n in times.items() if n > 1]
    missing = [name for c, name in enumerate(dataset.classes) if c not in times]
    for problem, classes in {"unknown": unknown, "given twice": twice, "missing": missing}.items():
        if classes:
            advice = f"give each of the {dataset.n_classes} classes of {dataset.name} once, by name or index from 0"
            raise InputError(field, text, f"{first_of(classes)} {problem}; {advice}")
    return [tuple(label_of[name] for name in task) for task in tasks]


class _Tests(NamedTuple):
    """Images for testing: those in `rows` of `images`."""

    images: np.ndarray
    labels: np.ndarray
    rows: np.ndarray

    def of_classes(self, classes: Sequence[int]) -> np.ndarray:
        return self.rows[np.isin(self.labels[self.rows], classes)]


def _hold_out(
    config: Config, dataset: ImageDataset, indices_of_class: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], _Tests]:
    """For each class its training images in random order, and the validation images of all classes.

    These are the data set's own or, without any, a share of the training images: whole patients if they are known.
    """
    share, draw = config.validation, _draws(config, "validation")
    shuffled = [draw.permutation(indices) for indices in indices_of_class]
    if dataset.val_images is not None and dataset.val_labels is not None:
        return shuffled, _Tests(dataset.val_images, dataset.val_labels, np.arange(len(dataset.val_labels)))
    if dataset.train_patients is None:
        last = [indices[len(indices) - n_in_share(share, len(indices)) :] for indices in shuffled]
        is_held_out = np.isin(np.arange(len(dataset.train_labels)), np.concatenate(last))
    else:
        is_held_out = whole_patients(dataset.train_patients, indices_of_class, share, draw)
    train = [indices[~is_held_out[indices]] for indices in shuffled]
    held_out = np.concatenate([indices[is_held_out[indices]] for indices in shuffled])
    return train, _Tests(dataset.train_images, dataset.train_labels, held_out)


def _learnt_in_order(
    config: Config, train: Sequence[np.ndarray], classes_of_task: Sequence[tuple[int, ...]]
) -> list[np.ndarray]:
    """For each task the positions of its images in the stream's order; `train` has those of each class."""
    boundary_draws = _draws(config, "boundaries")
    if config.boundaries == "blurry":
        disjoint = disjoint_classes(classes_of_task, config.disjoint, boundary_draws)
        positions_of_task = blurry(train, classes_of_task, disjoint, config.blur)
    else:
        positions_of_task = [np.concatenate([train[c] for c in classes]) for classes in classes_of_task]
    if config.method == "joint":
        ends = np.cumsum([len(positions) for positions in positions_of_task])[:-1]
        mixed = _draws(config, "joint training").permutation(np.concatenate(positions_of_task))
        positions_of_task = np.split(mixed, ends)
    positions_of_task = [
        _draws(config, f"batches of task {number}").permutation(positions)
        for number, positions in enumerate(positions_of_task)
    ]
    if config.boundaries == "gradual":
        positions_of_task = gradual(positions_of_task, config.blur, boundary_draws)
    return positions_of_task


def thinned(indices_of_class: Sequence[np.ndarray], class_order: Sequence[int], imbalance: float) -> list[np.ndarray]:
    """For each class its first images, as many as `long_tailed_counts` gives it, or all if it has fewer."""
    counts = long_tailed_counts(max(map(len, indices_of_class)), len(indices_of_class), imbalance)
    size = dict(zip(class_order, counts, strict=True))
    return [indices[: size[c]] for c, indices in enumerate(indices_of_class)]


def _log_left_out(tasks: Sequence[Task], dataset: ImageDataset) -> None:
    """Log the tasks that lose more than a tenth of their images, and the classes of which no image is learnt."""
    for task in tasks:
        if task.n_left_out > 0.1 * len(task.host_labels):
            numbers = dataset.name, task.number + 1, task.n_left_out, len(task.host_labels), task.batch_size
            reason = "%s: task %d does not learn %d of its %d images: the last batch of %d is incomplete"
            _log.warning(f"{reason}; a smaller batch_size leaves out fewer", *numbers)
    learnt = np.concatenate([task.host_labels[: task.n_learnt] for task in tasks])
    _warn_of("classes of which no image is learnt", np.bincount(learnt, minlength=dataset.n_classes), dataset)


def _warn_of(what: str, counts: Sequence[int] | np.ndarray, dataset: ImageDataset) -> None:
    """Log the names of the classes without any image."""
    if without := [name for name, n in zip(dataset.classes, counts, strict=True) if not n]:
        _log.warning("%s: %s: %s", dataset.name, what, first_of(without))
