"""Evaluation: the network is tested after each task on the test images of all tasks seen so far."""

from __future__ import annotations

import numpy as np
import torch

from ucl import scorers
from ucl.machine.checkpoints import State
from ucl.machine.determinism import own_draws, seed_for
from ucl.models import SlimResNet18
from ucl.models.passes import in_evaluation_mode
from ucl.streams import ClassIncrementalStream, Task

DROPOUT_PASSES = 20


@torch.no_grad()
def answers(model: SlimResNet18, task: Task, chunk: int = 128) -> np.ndarray:
    """Predicted class of each test image of a task: (N,), labels.

    The network chooses among all classes of the stream (class-incremental). A network with dropout predicts with the
    mean probabilities of 20 dropout passes. BatchNorm uses the running statistics.
    """
    passes = DROPOUT_PASSES if model.dropout_rate else 1
    network = in_evaluation_mode(model, dropout=passes > 1)
    labels = []
    for images in task.test_images.split(chunk):
        x_NCHW = network.normalize(images)
        logits_PNC = torch.stack([network.logits(x_NCHW) for _ in range(passes)])
        labels.append(scorers.mean_probabilities(logits_PNC)[0].argmax(-1))
    return torch.cat(labels).cpu().numpy()


class Evaluation:
    """Test results of one run, or of one of its readings; `add` fills a row after each task.

    Args:
        stream: its tasks hold the test images.
        seed: seed of the run. The dropout masks of the tests have their own generator, so that testing does not change
            the training.

    Attributes:
        correct_TC: number of correctly predicted test images of each class after each task; NaN for classes not seen
            yet.
        answered_TT: of the test images of all tasks seen so far, how many are predicted as a class of each task; NaN
            for tasks not seen yet, although the network may predict their classes too.
    """

    def __init__(self, stream: ClassIncrementalStream, seed: int) -> None:
        self._tasks, self._seed = stream.tasks, seed
        n_classes = len(stream.class_order)
        self._truth = [task.test_labels.cpu().numpy() for task in stream]
        self._tests_C = np.bincount(np.concatenate(self._truth), minlength=n_classes)
        self.correct_TC = np.full((len(stream), n_classes), np.nan)
        self.answered_TT = np.full((len(stream), len(stream)), np.nan)

    def add(self, model: SlimResNet18, number: int) -> None:
        """Test the network after task `number`, counted from 0."""
        seen = self._tasks[: number + 1]
        given = []
        for task in seen:
            with own_draws(seed_for(self._seed, f"evaluation on task {task.number}"), model.mean.device):
                given.append(answers(model, task))
        self.answered_TT[number, : number + 1] = [
            sum(np.isin(labels, task.classes).sum() for labels in given) for task in seen
        ]
        for task, labels, truth in zip(seen, given, self._truth):
            hits_C = np.bincount(truth[labels == truth], minlength=self.correct_TC.shape[1])
            self.correct_TC[number, list(task.classes)] = hits_C[list(task.classes)]

    def state(self) -> State:
        return {"correct": self.correct_TC, "answered": self.answered_TT}

    def restore(self, state: State) -> None:
        self.correct_TC[:], self.answered_TT[:] = state["correct"], state["answered"]

    @property
    def accuracy(self) -> np.ndarray:
        """Accuracy matrix (T, T): a[t, i] in [0, 1] is the accuracy on task i after task t; NaN above the diagonal."""
        of_task = [list(task.classes) for task in self._tasks]
        return np.stack([self.correct_TC[:, c].sum(1) / self._tests_C[c].sum() for c in of_task], axis=1)

    @property
    def class_recall(self) -> np.ndarray:
        """Recall of each class after each task: (T, C), in [0, 1]; NaN if not seen yet or without test images."""
        return self.correct_TC / np.where(self._tests_C > 0, self._tests_C, np.nan)

    @property
    def answer_shares(self) -> np.ndarray:
        """Share of the predictions after task t, on all tasks seen, that are a class of task i: (T, T), in [0, 1]."""
        tests_T = np.cumsum([len(labels) for labels in self._truth])
        return self.answered_TT / tests_T[:, None]
