"""Tests after each task, on the test images of all tasks seen so far.

`mc_test_as_published` and `thinned_tests` are for two tests that the reference implementation does in a different way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ucl import scorers
from ucl.machine.determinism import seed_for, seeded_draws
from ucl.models import Network
from ucl.models.passes import in_evaluation_mode, in_training_mode
from ucl.streams import ClassIncrementalStream, LazyImages, Task
from ucl.streams.class_incremental import thinned

DROPOUT_PASSES = 20
PUBLISHED_BATCH = 10  # test images that the published test of MC normalises together
NO_CLASS = -1  # the prediction for an image whose logits are NaN


@torch.no_grad()
def predictions(model: Network, images_NCHW: Tensor | LazyImages, chunk: int = 128) -> np.ndarray:
    """Predicted class of each image, such as those of a task's test: (N,), labels, or `NO_CLASS`.

    The network chooses among all classes of the stream (class-incremental). A network with dropout predicts with the
    mean probabilities of 20 dropout passes. BatchNorm uses the running statistics.
    """
    passes = DROPOUT_PASSES if model.dropout_rate else 1
    network = in_evaluation_mode(model, dropout=passes > 1)
    labels = []
    for images in images_NCHW.split(chunk):
        x_NCHW = network.normalize(images)
        logits_PNC = torch.stack([network.logits(x_NCHW) for _ in range(passes)])
        labels.append(_answers(scorers.mean_probabilities(logits_PNC)[0]))
    return torch.cat(labels).cpu().numpy()


def _answers(logits_NC: Tensor) -> Tensor:
    """The class (N,) with the largest logit, or `NO_CLASS`; nothing here waits for the device."""
    return logits_NC.argmax(-1).masked_fill(logits_NC.isnan().any(-1), NO_CLASS)


@torch.no_grad()
def mc_test_as_published(model: Network, task: Task, seed: int) -> np.ndarray:
    """Predicted class of each test image of a task, in training mode, by the mean of the logits of 20 dropout passes.

    The test images are shuffled and come in batches of ten. BatchNorm normalises each pass by its batch. `predictions`
    differs: it uses the running statistics and averages probabilities.

    Args:
        model: the network, which has dropout; it does not change.
        task: the task with the test images.
        seed: seed of the run, for the order of the images and the dropout masks.

    Returns:
        (N,), labels or `NO_CLASS`, in the order of the task's test images.
    """
    network, device = in_training_mode(copy.deepcopy(model)), model.mean.device
    draw = np.random.default_rng(seed_for(seed, f"published test of task {task.number}"))
    order = torch.from_numpy(draw.permutation(len(task.test_labels))).to(device)
    predicted = torch.empty_like(task.test_labels)
    with seeded_draws(seed_for(seed, f"masks of the published test of task {task.number}"), device):
        for batch in order.split(PUBLISHED_BATCH):
            x_NCHW: Tensor = model.normalize(task.test_images[batch])
            predicted[batch] = _answers(network.logits(x_NCHW.expand(DROPOUT_PASSES, -1, -1, -1, -1)).mean(0))
    return predicted.cpu().numpy()


def thinned_tests(stream: ClassIncrementalStream, imbalance: float) -> list[np.ndarray]:
    """Which test images a long-tailed test would use: the reading "thinned" counts the predictions for these only.

    Args:
        stream: the stream, with the complete test set.
        imbalance: imbalance of the training classes, see `ucl.streams.long_tailed_counts`.

    Returns:
        For each task an array (N,): True for the test images that remain with `Config.long_tailed_test`.
    """
    truth = [task.test_labels.cpu().numpy() for task in stream]
    labels = np.concatenate(truth)
    indices_of_class = [np.flatnonzero(labels == c) for c in range(len(stream.class_order))]
    counted = np.zeros(len(labels), bool)
    counted[np.concatenate(thinned(indices_of_class, stream.class_order, imbalance))] = True
    return np.split(counted, np.cumsum([len(labels) for labels in truth])[:-1])


class Evaluation:
    """Test results of one run, or of one of its readings; `add` fills one row after each task.

    Tasks may share classes, for example in a domain-incremental stream: a task's accuracy is that on its test
    images, and a class's recall is that on its test images of all tasks seen so far.

    Args:
        stream: its tasks hold the test images.
        seed: seed of the run. The dropout masks of the tests have their own generator, so that testing does not change
            the training.
        counted: for each task an array (N,), True for the test images that count, see `thinned_tests`; by default all
            count.
        all_tasks: whether each test is of all tasks seen so far; otherwise only the one after the last task is, and the
            others are of the task just learnt, see `Config.evaluate_tasks`.

    Attributes:
        correct_TT: number of correctly predicted test images of each task after each task; NaN for tasks not tested.
        correct_TC: the same of each class, in all tasks tested; NaN for classes of no such task.
        answered_TT: number of test images, of all tasks seen so far, that are predicted as a class of each task; NaN
            for tasks not seen yet, although the network may predict their classes too. A row is NaN
            if not all tasks seen so far are tested.
        shift_T: of a reading, the distance of its statistics from those of training after each task.
    """

    _RESULTS = ("correct_TT", "correct_TC", "answered_TT", "shift_T")

    def __init__(
        self,
        stream: ClassIncrementalStream,
        seed: int,
        counted: Sequence[np.ndarray] | None = None,
        all_tasks: bool = True,
    ) -> None:
        self._tasks, self._seed, self._all_tasks = stream.tasks, seed, all_tasks
        n_classes = len(stream.class_order)
        truth = [task.test_labels.cpu().numpy() for task in stream]
        self._counted = [np.ones(len(labels), bool) for labels in truth] if counted is None else list(counted)
        self._truth = [labels[counts] for labels, counts in zip(truth, self._counted, strict=True)]
        tests_TC = np.array([np.bincount(labels, minlength=n_classes) for labels in self._truth])
        self._tests_TC = tests_TC.cumsum(0)
        if not all_tasks:
            self._tests_TC[:-1] = tests_TC[:-1]
        self.correct_TT = np.full((len(stream), len(stream)), np.nan)
        self.correct_TC = np.full((len(stream), n_classes), np.nan)
        self.answered_TT = np.full((len(stream), len(stream)), np.nan)
        self.shift_T = np.full(len(stream), np.nan)

    def add(self, model: Network, number: int) -> list[np.ndarray]:
        """Test the network after task `number`, counted from 0; returns its predictions, see `count`."""

        def predict(task: Task) -> np.ndarray:
            with seeded_draws(seed_for(self._seed, f"evaluation on task {task.number}"), model.mean.device):
                return predictions(model, task.test_images)

        return self.count(predict, number)

    def count(self, predict: Callable[[Task], np.ndarray], number: int) -> list[np.ndarray]:
        """Fill row `number` of the results; it stays NaN if there is a prediction `NO_CLASS`.

        Args:
            predict: function from a task to the predicted labels (N,) of all its test images.
            number: number of the task just learnt, from 0.

        Returns:
            The predicted labels of each task tested; the last ones are of the task just learnt.
        """
        seen = self._tasks[: number + 1]
        first = 0 if self._all_tasks or number + 1 == len(self._tasks) else number
        predicted = [predict(task) for task in seen[first:]]
        if any((labels == NO_CLASS).any() for labels in predicted):
            return predicted
        tested = [labels[counts] for labels, counts in zip(predicted, self._counted[first:])]
        hits = [truth[labels == truth] for labels, truth in zip(tested, self._truth[first:])]
        self.correct_TT[number, first : number + 1] = [len(labels) for labels in hits]
        classes = sorted({label for task in seen[first:] for label in task.classes})
        hits_C = np.bincount(np.concatenate(hits), minlength=self.correct_TC.shape[1])
        self.correct_TC[number, classes] = hits_C[classes]
        if first == 0:
            self.answered_TT[number, : number + 1] = [
                sum(np.isin(labels, task.classes).sum() for labels in tested) for task in seen
            ]
        return predicted

    def has_row(self, number: int) -> bool:
        """Whether row `number` of the results is filled."""
        return not np.isnan(self.correct_TT[number, number])

    def state_dict(self) -> dict[str, Any]:
        return {name: torch.from_numpy(getattr(self, name).copy()) for name in self._RESULTS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self._RESULTS:
            getattr(self, name)[:] = state[name].numpy()

    @property
    def accuracy(self) -> np.ndarray:
        """Accuracy matrix (T, T): a[t, i] in [0, 1] is the accuracy on task i after task t; NaN if not tested."""
        return self.correct_TT / np.array([len(labels) for labels in self._truth])

    @property
    def class_recall(self) -> np.ndarray:
        """Recall of each class after each task: (T, C), in [0, 1]; NaN if not tested, see `correct_TC`."""
        return self.correct_TC / np.where(self._tests_TC > 0, self._tests_TC, np.nan)

    @property
    def answer_shares(self) -> np.ndarray:
        """Share of the predictions after task t, on all tasks seen, that are a class of task i: (T, T), in [0, 1]."""
        tests_T = np.cumsum([len(labels) for labels in self._truth])
        return self.answered_TT / tests_T[:, None]
