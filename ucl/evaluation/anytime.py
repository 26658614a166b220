"""Tests between task ends, on the validation images."""

from __future__ import annotations

from typing import Any

import numpy as np

from ucl.errors import InputError
from ucl.evaluation import accuracy
from ucl.machine.determinism import seed_for, seeded_draws
from ucl.models import Network
from ucl.records import Anytime
from ucl.streams import ClassIncrementalStream, Task


class AnytimeEvaluation:
    """Tests of one run after every `every` batches and at the end of the stream, on the tasks begun so far.

    They use the validation images, as in the survey of Soutif-Cormerais et al. (2023): these are few, and choices made
    by looking at the curves do not use the test images. The tests do not change what is learnt: dropout masks have
    their own generator.

    Args:
        stream: its tasks have the validation images.
        every: number of batches between two tests; 0 for no tests.
        seed: seed of the run.

    Raises:
        InputError: a task has no validation images.
    """

    def __init__(self, stream: ClassIncrementalStream, every: int, seed: int) -> None:
        self._every, self._seed, self._n_batches = every, seed, stream.n_batches
        tests = stream.validation_tests() if every else []
        for task, (_, labels) in zip(stream, tests):
            if not len(labels):
                reason = f"task {task.number + 1} has no validation images to test on"
                raise InputError("evaluate_every", every, f"{reason}; give 0, or a larger validation share")
        self._images = [images for images, _ in tests]
        self._truth = [labels.cpu().numpy() for _, labels in tests]
        self._batches: list[int] = []
        self._correct: list[list[float]] = []

    def is_due(self, n_learnt: int) -> bool:
        """Whether a test is due after `n_learnt` batches of the stream."""
        return self._every > 0 and (n_learnt % self._every == 0 or n_learnt == self._n_batches)

    def add(self, model: Network, task: Task, n_learnt: int) -> None:
        """Test the network after `n_learnt` batches of the stream, on the tasks up to the current one, `task`."""
        truth = self._truth[: task.number + 1]
        with seeded_draws(seed_for(self._seed, f"anytime evaluation after batch {n_learnt}"), model.mean.device):
            predicted = [accuracy.predictions(model, images) for images in self._images[: len(truth)]]
        correct_T = np.full(len(self._truth), np.nan)
        correct_T[: len(truth)] = [np.sum(answers == labels) for answers, labels in zip(predicted, truth, strict=True)]
        self._batches.append(n_learnt)
        self._correct.append(correct_T.tolist())

    @property
    def results(self) -> Anytime | None:
        """The results so far; None if there was no test."""
        if not self._batches:
            return None
        images = np.array([len(labels) for labels in self._truth])
        return Anytime(np.array(self._batches), np.array(self._correct), images)

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self._batches, "correct": self._correct}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._batches, self._correct = state["batches"], state["correct"]
