"""Tests between task ends, on the validation images."""

from __future__ import annotations

from typing import Any

import numpy as np

from ucl.config import Config
from ucl.errors import InputError
from ucl.evaluation import accuracy
from ucl.listeners import Listener
from ucl.machine.clock import Clock
from ucl.machine.determinism import seed_for, seeded_draws
from ucl.models import Network
from ucl.records import Anytime
from ucl.streams import ClassIncrementalStream, Task


class AnytimeEvaluation(Listener):
    """Tests a run after every `Config.evaluate_every` batches and at the end of the stream, on the tasks begun so far.

    They use the validation images, as in the survey of Soutif-Cormerais et al. (2023): these are few, and choices made
    by looking at the curves do not use the test images. The tests do not change what is learnt: dropout masks have
    their own generator.

    Raises:
        InputError: a task has no validation images.
    """

    def __init__(self, config: Config, model: Network, stream: ClassIncrementalStream, clock: Clock) -> None:
        self._config, self._model, self._clock, self._n_batches = config, model, clock, stream.n_batches
        self._tests = stream.validation_tests() if config.evaluate_every else []
        for task, (_, labels) in zip(stream, self._tests):
            if not len(labels):
                reason = f"task {task.number + 1} has no validation images to test on"
                advice = "give 0, or a larger validation share"
                raise InputError("evaluate_every", config.evaluate_every, f"{reason}; {advice}")
        self._n_learnt = 0
        self._correct: dict[int, list[float]] = {}  # by the number of batches learnt, see `Anytime`

    def after_batch(self, task: Task) -> None:
        self._n_learnt += 1
        every = self._config.evaluate_every
        if every and (self._n_learnt % every == 0 or self._n_learnt == self._n_batches):
            with self._clock("evaluation"):
                self._correct[self._n_learnt] = self._n_correct(task.number + 1)

    def _n_correct(self, n_begun: int) -> list[float]:
        """The number of correct predictions for each task; NaN for those that have not begun."""
        correct_T = np.full(len(self._tests), np.nan)
        purpose = f"anytime evaluation after batch {self._n_learnt}"
        with seeded_draws(seed_for(self._config.seed, purpose), self._model.mean.device):
            for number, (images, labels) in enumerate(self._tests[:n_begun]):
                correct_T[number] = np.sum(accuracy.predictions(self._model, images) == labels)
        return correct_T.tolist()

    def finish(self) -> dict[str, Any]:
        """The results; None if there was no test."""
        if not self._correct:
            return {"anytime": None}
        images = np.array([len(labels) for _, labels in self._tests])
        return {"anytime": Anytime(np.array(list(self._correct)), np.array(list(self._correct.values())), images)}

    def state_dict(self) -> dict[str, Any]:
        return {"n_learnt": self._n_learnt, "correct": self._correct}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._n_learnt, self._correct = state["n_learnt"], state["correct"]
