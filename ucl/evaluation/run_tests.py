"""The tests of a run after each task, its progress bar and its final memory, as listeners."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from ucl import scorers
from ucl.buffers import Buffer
from ucl.catalogue import STATISTICS
from ucl.config import Config
from ucl.evaluation.accuracy import Evaluation
from ucl.evaluation.readings import published_test, with_statistics
from ucl.evaluation.running_statistics import Statistics, TrainingStatistics, shift, statistics_of
from ucl.fields import decimal
from ucl.listeners import Diverged, Listener
from ucl.machine.clock import Clock
from ucl.machine.determinism import seed_for
from ucl.machine.hardware import scoring_dtype
from ucl.models import Network
from ucl.models.network import norms_of
from ucl.records import Reading
from ucl.records.measures import accuracy_so_far
from ucl.streams import ClassIncrementalStream, Task


@torch.no_grad()
def has_diverged(model: Network) -> bool:
    """Whether weights or BatchNorm statistics are NaN or infinite.

    The check waits for the device, so a run makes it once per task.
    """
    statistics = [values for norm in norms_of(model) for values in (norm.running_mean, norm.running_var)]
    return not torch.stack([values.isfinite().all() for values in [*model.parameters(), *statistics]]).all()


class RunTests(Listener):
    """The tests of a run after each task, with `Config.readings` in all readings.

    Attributes:
        evaluation: results with the statistics of `Config.test_batchnorm`: the run's accuracy.
        tested: after a task, the network of its test, with the statistics of `Config.test_batchnorm`.
    """

    def __init__(
        self, config: Config, model: Network, stream: ClassIncrementalStream, buffer: Buffer | None, clock: Clock
    ) -> None:
        self._config, self._model, self._stream, self._buffer, self._clock = config, model, stream, buffer, clock
        self._dtype = scoring_dtype(config, model.mean.device) if config.uses_scores else torch.float32
        evaluation = partial(Evaluation, stream, config.seed, all_tasks=config.evaluate_tasks == "all")
        self.evaluation = evaluation()
        self._readings = {}
        if config.readings and model.has_running_statistics:
            self._readings = {name: evaluation() for name in STATISTICS}
            if model.dropout_rate:
                self._readings["published test"] = evaluation()
        self.tested = model
        needed = config.readings or config.test_batchnorm != "running"
        # A user's method or memory policy may make passes in training mode for any purpose.
        by_user = {"method", "population"} & config.user_objects.keys()
        changed = config.relevant.get("scoring_batchnorm") == "train" or by_user
        self._parts: dict[str, Any] = {"evaluation": self.evaluation, **self._readings}
        self._statistics: Callable[[], Statistics] = partial(statistics_of, model)  # after the training steps alone
        if needed and changed and model.has_running_statistics:
            self._statistics = self._parts["trained"] = TrainingStatistics(model)

    def after_task(self, task: Task) -> None:
        """Test the network with the statistics of `Config.test_batchnorm`, then in each reading.

        Raises:
            Diverged: the network has diverged, or logits of the first test are NaN. A reading with such logits is left
                out of the record instead.
        """
        if has_diverged(self._model):
            raise Diverged(task)
        with self._clock("evaluation"):
            self.tested = self._with_statistics(self._config.test_batchnorm, task) or self._model
            if self.tested is self._model and self._config.test_batchnorm != "running":
                reason = "the memory is empty, so the test reads the running statistics"
                warnings.warn(f"{reason} after task {task.number + 1}", stacklevel=2)
            finite = self.evaluation.add(self.tested, task.number)
        if not finite:
            raise Diverged(task)
        with self._clock("readings"):
            for name, evaluation in self._readings.items():
                if not self._fill_row(name, evaluation, task):
                    what = f"the reading {name!r} after task {task.number + 1}"
                    warnings.warn(f"logits in {what} are NaN, so the record leaves this reading out", stacklevel=2)

    def _fill_row(self, name: str, evaluation: Evaluation, task: Task) -> bool:
        """Test the network in one reading, if it is possible after this task; returns False if logits are NaN."""
        number = task.number
        if name == "published test":
            return evaluation.add(self._model, number, published_test)
        if (probe := self._with_statistics(name, task)) is None:
            return True
        evaluation.shift_T[number] = shift(statistics_of(probe), self._statistics())
        return evaluation.add(probe, number)

    def _with_statistics(self, name: str, task: Task) -> Network | None:
        if name == "running":
            return self._model
        seen, seed = self._stream.tasks[: task.number + 1], self._config.seed
        return with_statistics(name, self._model, self._statistics(), seen, self._buffer, seed, self._dtype)

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self._parts.items():
            part.load_state_dict(state[name])

    def finish(self) -> dict[str, Any]:
        """The results of the tests, without readings that are not possible after each task."""
        results, is_tested = self.evaluation, ~np.isnan(self.evaluation.accuracy)
        evaluations, config = dict(self._readings), self._config
        if evaluations and config.imbalance < 1 and not config.long_tailed_test:
            evaluations["thinned"] = results.thinned(config.imbalance)
        readings = {
            name: Reading(tests.accuracy, tests.class_recall, tests.answer_shares, tests.shift_T)
            for name, tests in evaluations.items()
            if is_tested.any() and np.array_equal(~np.isnan(tests.accuracy), is_tested)
        }
        return {
            "accuracy": results.accuracy,
            "class_recall": results.class_recall,
            "answer_shares": results.answer_shares,
            "readings": readings,
        }


class Progress(Listener):
    """A progress bar of batches, with the accuracy on the tasks learnt so far."""

    def __init__(self, bar: Any, evaluation: Evaluation, balanced: bool) -> None:
        self._bar, self._evaluation, self._balanced = bar, evaluation, balanced

    def after_batch(self, task: Task) -> None:
        self._bar.update()

    def after_task(self, task: Task) -> None:
        accuracy_T = accuracy_so_far(self._evaluation.accuracy, self._evaluation.class_recall, self._balanced)
        if not np.isnan(accuracy_T[task.number]):
            self._bar.set_postfix_str(f"A {decimal(100 * accuracy_T[task.number])} %")


def final_memory(config: Config, model: Network, buffer: Buffer | None) -> dict[str, list]:
    """The memory at the end of a run, with the uncertainty of the final model, by the same views for every method."""
    if buffer is None or not buffer.n_stored:
        return {}
    n = buffer.n_stored
    draw = torch.Generator().manual_seed(seed_for(config.seed, "final views"))
    logits_PNC = scorers.ScoringPasses(draw).logits(model, buffer.images[:n])
    scores = buffer.scores[:n].tolist() if config.uses_scores else [math.nan] * n
    return {
        "position": buffer.positions[:n].tolist(),
        "label": buffer.labels[:n].tolist(),
        "score": [_short(score) for score in scores],
        "confidence": [_short(1 - score) for score in scorers.least_confidence(logits_PNC).tolist()],
        "bregman_information": [_short(score) for score in scorers.bregman_information(logits_PNC).tolist()],
    }


def _short(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
