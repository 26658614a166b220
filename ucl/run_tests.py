"""The tests of a run: what is tested after which batch, and the results for the record and the checkpoint."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ucl.buffers import Buffer
from ucl.catalogue import STATISTICS
from ucl.config import Config
from ucl.evaluation import AnytimeEvaluation, Evaluation, mc_test_as_published, thinned_tests
from ucl.machine.checkpoints import State
from ucl.machine.clock import Clock
from ucl.models import Network
from ucl.readings import under
from ucl.records import Reading
from ucl.records import curves as curve_file
from ucl.records.measures import accuracy_so_far
from ucl.running_statistics import Statistics, TrainingStatistics, shift, statistics_of
from ucl.streams import ClassIncrementalStream, Task


class RunTests:
    """The tests of a run: after each task, with `Config.readings` in all readings, and between task ends.

    If passes other than those of the training steps may change the network's running statistics, it keeps those of the
    training steps alone, too.

    Args:
        config: the run.
        model: the network of the run.
        stream: the stream of the run.
        clock: measures the seconds of the tests.
        dtype: arithmetic of the scoring passes.
        curves: a CSV file for the accuracy, written after each task, see `ucl.records.curves`; None for none.

    Attributes:
        batches: number of batches learnt.
        evaluation: results with the statistics of `Config.test_batchnorm`: the run's accuracy.
        anytime: results between task ends, see `Config.evaluate_every`.
    """

    def __init__(
        self,
        config: Config,
        model: Network,
        stream: ClassIncrementalStream,
        clock: Clock,
        dtype: torch.dtype = torch.float32,
        curves: str | Path | None = None,
    ) -> None:
        self._config, self._model, self._stream, self._clock, self._curves = config, model, stream, clock, curves
        self._dtype = dtype if config.uses_scores else torch.float32
        self.batches = 0
        self.evaluation = Evaluation(stream, config.seed)
        self.anytime = AnytimeEvaluation(stream, config.evaluate_every, config.seed)
        self._evaluations = {}
        if config.readings and model.has_running_statistics:
            self._evaluations = {name: Evaluation(stream, config.seed) for name in STATISTICS}
            if model.dropout_rate:
                self._evaluations["published test"] = Evaluation(stream, config.seed)
            if config.imbalance < 1 and not config.long_tailed_test:
                counted = thinned_tests(stream, config.imbalance)
                self._evaluations["thinned"] = Evaluation(stream, config.seed, counted)
        self._shifts = {name: np.full(len(stream), np.nan) for name in self._evaluations}
        self._predictions: list[np.ndarray] = []
        needed = config.readings or config.test_batchnorm != "running"
        scores = (config.uses_scores or config.method == "mir") and config.scoring_batchnorm == "train"
        # A method or a memory policy of the user's own may make passes in training mode for any purpose.
        changed = model.has_running_statistics and (scores or bool({"method", "population"} & config.own.keys()))
        self._trained = TrainingStatistics(model) if needed and changed else None

    def after_batch(self, task: Task) -> None:
        """Count a batch of the task, and test the network if a test between task ends is due."""
        self.batches += 1
        if self.anytime.is_due(self.batches):
            with self._clock("evaluation"):
                self.anytime.add(self._model, task, self.batches)

    def after_task(self, task: Task, buffer: Buffer | None) -> None:
        """Test the network after a task, write the curve, and test the network in each reading."""
        with self._clock("evaluation"):
            self._evaluate(task, buffer)
        if self._curves is not None:
            tested, balanced = self.evaluation, self._config.balanced_accuracy
            so_far = accuracy_so_far(tested.accuracy, tested.class_recall, balanced)
            curve_file.save(tested.accuracy, so_far, self._curves)
        with self._clock("readings"):
            self._read(task, buffer)

    def _evaluate(self, task: Task, buffer: Buffer | None) -> None:
        """Test the network after a task, with the statistics of `Config.test_batchnorm`."""
        name = self._config.test_batchnorm
        tested = self._model if name == "running" else self._under(name, task, buffer)
        self._predictions = self.evaluation.add(tested or self._model, task.number)

    def _read(self, task: Task, buffer: Buffer | None) -> None:
        """Test the network after a task in each reading; call `_evaluate` first."""
        # Then the statistics of "training" are the network's own, and `_evaluate` has tested them.
        is_training_tested = self._trained is None and self._config.test_batchnorm == "running"
        for name, evaluation in self._evaluations.items():
            if name == "published test":
                evaluation.count(partial(mc_test_as_published, self._model, seed=self._config.seed), task.number)
            elif name == "thinned" or (name == "training" and is_training_tested):
                evaluation.count(lambda earlier: self._predictions[earlier.number], task.number)
                if name == "training":
                    self._shifts[name][task.number] = 0.0
            elif (probe := self._under(name, task, buffer)) is not None:
                evaluation.add(probe, task.number)
                self._shifts[name][task.number] = shift(statistics_of(probe), self._statistics())

    def state(self) -> State:
        readings = {
            name: {**evaluation.state(), "shift": self._shifts[name]} for name, evaluation in self._evaluations.items()
        }
        return {
            "batches": self.batches,
            "evaluation": self.evaluation.state(),
            "anytime": self.anytime.state(),
            "readings": readings,
            "trained": {} if self._trained is None else self._trained.state(),
        }

    def restore(self, state: State) -> None:
        self.batches = state["batches"]
        self.evaluation.restore(state["evaluation"])
        self.anytime.restore(state["anytime"])
        for name, evaluation in self._evaluations.items():
            evaluation.restore(state["readings"][name])
            self._shifts[name][:] = state["readings"][name]["shift"]
        if self._trained is not None:
            self._trained.restore(state["trained"])

    def results(self) -> dict[str, Any]:
        """The entries of the record that the tests give, see `Record`.

        Readings that this run does not allow after each task, such as "memory" without a memory or with one that is
        still empty after the first task, are left out.
        """
        tested = ~np.isnan(self.evaluation.accuracy)
        readings = {
            name: Reading(found.accuracy, found.class_recall, found.answer_shares, self._shifts[name])
            for name, found in self._evaluations.items()
            if tested.any() and np.array_equal(~np.isnan(found.accuracy), tested)
        }
        return {
            "accuracy": self.evaluation.accuracy,
            "class_recall": self.evaluation.class_recall,
            "answer_shares": self.evaluation.answer_shares,
            "readings": readings,
            "anytime": self.anytime.results,
        }

    def _under(self, name: str, task: Task, buffer: Buffer | None) -> Network | None:
        seen = self._stream.tasks[: task.number + 1]
        return under(name, self._model, self._statistics(), seen, buffer, self._config.seed, self._dtype)

    def _statistics(self) -> Statistics:
        return statistics_of(self._model) if self._trained is None else self._trained()
