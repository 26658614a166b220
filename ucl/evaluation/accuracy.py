"""Tests after each task, on the test images of all tasks seen so far."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ucl import scorers
from ucl.machine.determinism import seed_for, seeded_draws
from ucl.models import Network
from ucl.models.passes import in_evaluation_mode
from ucl.streams import ClassIncrementalStream, LazyImages, Task
from ucl.streams.class_incremental import thinned

DROPOUT_PASSES = 20
NO_CLASS = -1  # the prediction for an image whose logits are NaN, or that is not tested


@torch.no_grad()
def predictions(model: Network, images_NCHW: Tensor | LazyImages) -> np.ndarray:
    """Predicted class of each image, such as those of a task's test: (N,), labels, or `NO_CLASS`.

    The network chooses among all classes of the stream (class-incremental). A network with dropout predicts with the
    mean probabilities of 20 dropout passes. BatchNorm uses the running statistics.
    """
    passes = DROPOUT_PASSES if model.dropout_rate else 1
    network = in_evaluation_mode(model, dropout=passes > 1)
    labels = []
    for images in images_NCHW.split(128):  # With dropout, another number gives other masks.
        x_NCHW = model.normalize(images)
        logits_PNC = torch.stack([network.logits(x_NCHW) for _ in range(passes)])
        labels.append(most_probable(scorers.mean_probabilities(logits_PNC)[0]))
    return torch.cat(labels).cpu().numpy()


def most_probable(logits_NC: Tensor) -> Tensor:
    """The class (N,) with the largest logit, or `NO_CLASS`; nothing here waits for the device."""
    return logits_NC.argmax(-1).masked_fill(logits_NC.isnan().any(-1), NO_CLASS)


def task_predictions(model: Network, task: Task, seed: int) -> np.ndarray:
    """The `predictions` for a task's test images, with dropout masks that only the seed of the run decides."""
    with seeded_draws(seed_for(seed, f"evaluation on task {task.number}"), model.mean.device):
        return predictions(model, task.test_images)


class Evaluation:
    """Test results of one run, or of one of its readings; `add` fills one row after each task.

    Args:
        stream: its tasks hold the test images.
        seed: seed of the run. The dropout masks of the tests have their own generator, so that testing does not change
            the training.
        all_tasks: whether each test is of all tasks seen so far; otherwise only the one after the last task is, and the
            others are of the task just learnt, see `Config.evaluate_tasks`.

    Attributes:
        labels_N, tasks_N, positions_N: label, task, from 0, and `Task.test_positions` of each test image, in the order
            of the stream.
        predictions_TN: the predicted label of each test image after each task; `NO_CLASS` for images not tested.
        shift_T: of a reading, the distance of its statistics from those of training after each task.
    """

    def __init__(self, stream: ClassIncrementalStream, seed: int, all_tasks: bool = True) -> None:
        self._tasks, self._seed, self._all_tasks = stream.tasks, seed, all_tasks
        self._class_order = stream.class_order
        truth = [task.test_labels.cpu().numpy() for task in stream]
        self.labels_N = np.concatenate(truth)
        self.tasks_N = np.repeat(np.arange(len(truth)), [len(labels) for labels in truth])
        self.positions_N = np.concatenate([task.test_positions for task in stream])
        self.predictions_TN = np.full((len(truth), len(self.labels_N)), NO_CLASS, np.int16)
        self.shift_T = np.full(len(truth), np.nan)

    def add(
        self, model: Network, number: int, predict: Callable[[Network, Task, int], np.ndarray] = task_predictions
    ) -> bool:
        """Test the network after a task, by its number from 0, and fill this row of the results.

        `predict` takes the network, a task and the seed of the run, and returns the predicted labels (N,) of all test
        images of the task. If one of them is `NO_CLASS`, the row is not filled, and the result is False.
        """
        first = 0 if self._all_tasks or number + 1 == len(self._tasks) else number
        predicted_N = np.concatenate([predict(model, task, self._seed) for task in self._tasks[first : number + 1]])
        if (predicted_N == NO_CLASS).any():
            return False
        self.predictions_TN[number, (self.tasks_N >= first) & (self.tasks_N <= number)] = predicted_N
        return True

    def thinned(self, imbalance: float) -> Evaluation:
        """The results for those test images only that a `Config.long_tailed_test` with this imbalance would use."""
        indices_of_class = [np.flatnonzero(self.labels_N == c) for c in range(len(self._class_order))]
        retained = np.sort(np.concatenate(thinned(indices_of_class, self._class_order, imbalance)))
        fewer = copy.copy(self)
        fewer.labels_N, fewer.tasks_N = self.labels_N[retained], self.tasks_N[retained]
        fewer.predictions_TN = self.predictions_TN[:, retained]
        return fewer

    def state_dict(self) -> dict[str, Any]:
        return {name: torch.from_numpy(getattr(self, name)) for name in ("predictions_TN", "shift_T")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, values in state.items():
            getattr(self, name)[:] = values.numpy()

    @property
    def accuracy(self) -> np.ndarray:
        """Accuracy matrix (T, T): a[t, i] in [0, 1] is the accuracy on task i after task t; NaN if not tested."""
        return self._share_correct(self.tasks_N, len(self._tasks))

    @property
    def class_recall(self) -> np.ndarray:
        """Recall of each class after each task: (T, C), in [0, 1]; NaN if no image of the class is tested."""
        return self._share_correct(self.labels_N, len(self._class_order))

    @property
    def answer_shares(self) -> np.ndarray:
        """Share of the predictions after task t, on all tasks seen, that are a class of task i: (T, T), in [0, 1].

        NaN for tasks not seen yet, although the network may predict their classes too, and in the row of a test that is
        not of all tasks seen.
        """
        shares = np.full((len(self._tasks), len(self._tasks)), np.nan)
        for number, predicted_N in enumerate(self.predictions_TN):
            seen = self.tasks_N <= number
            if (predicted_N[seen] != NO_CLASS).all():
                classes = [task.classes for task in self._tasks[: number + 1]]
                shares[number, : number + 1] = [np.isin(predicted_N[seen], of_task).mean() for of_task in classes]
        return shares

    def _share_correct(self, groups_N: np.ndarray, n_groups: int) -> np.ndarray:
        """The share of the tested images of each group that are predicted correctly after each task: (T, groups)."""
        shares = np.full((len(self._tasks), n_groups), np.nan)
        for share, predicted_N in zip(shares, self.predictions_TN):
            tested_N = predicted_N != NO_CLASS
            correct_N = tested_N & (predicted_N == self.labels_N)
            n_tested = np.bincount(groups_N[tested_N], minlength=n_groups)
            n_correct = np.bincount(groups_N[correct_N], minlength=n_groups)
            np.divide(n_correct, n_tested, out=share, where=n_tested > 0)
        return shares
