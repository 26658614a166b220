"""Progress of a sweep, and the time left, estimated from finished runs of the same cost."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from statistics import fmean
from typing import Any

from ucl.choices import SCORE_NAMES
from ucl.config import Config
from ucl.fields import as_text, decimal
from ucl.machine.terminal import duration, progress_bar
from ucl.sweeps.workers import Outcome

_ANY_SIZE = ("reservoir", "class-balanced")  # populations whose update takes the same time at any memory size


def cost_class(config: Config) -> str:
    """A key that is equal for runs of the same cost; it ignores the settings that do not change the time of a run."""
    plain = dict(seed=0, selection="bottom", averaging="scores")
    if config.population in _ANY_SIZE:
        plain["memory_size"] = 1
    if config.score in SCORE_NAMES and config.score != "MC":
        plain["score"] = "BI"  # These scores use the same passes over the same views.
    return config.replace(**plain).key


def labels(configs: Sequence[Config]) -> dict[str, str]:
    """The name of each run's method and settings within a sweep, by `Config.key`; it is the same for all seeds.

    It is the run's label, followed by the fields that differ within the sweep between runs of one data set, memory size
    and label: "EN bottom, refresh=2".
    """
    shown = ("dataset", "memory_size", "seed", "method", "population", "score", "selection")
    fields = {config.key: {k: v for k, v in config.relevant.items() if k not in shown} for config in configs}
    values: dict[tuple, dict[str, set]] = defaultdict(lambda: defaultdict(set))
    for config in configs:
        group = config.dataset, config.relevant.get("memory_size"), config.label
        for name, value in fields[config.key].items():
            values[group][name].add(value)
    varying = {name for of_group in values.values() for name, found in of_group.items() if len(found) > 1}
    return {config.key: ", ".join([config.label, *_settings(fields[config.key], varying)]) for config in configs}


def _settings(fields: dict[str, Any], names: set[str]) -> list[str]:
    return [f"{name}={as_text(value)}" for name, value in fields.items() if name in names]


def run_name(config: Config, label: str) -> str:
    """A run in words: "bloodcell M=40 EN bottom, refresh=2, seed 0", where the label is one of `labels`."""
    memory = f" M={config.memory_size}" if config.uses_memory else ""
    return f"{config.dataset_name}{memory} {label}, seed {config.seed}"


class SweepProgress:
    """Shows the progress over the runs of a sweep and the time left, as a bar or as one line per run.

    Args:
        missing: the runs.
        labels: the names of their methods and settings, see `labels`.
        show: whether to show the bar; None shows it in a terminal or notebook, and prints lines otherwise, for example
            in the log of a job.
    """

    def __init__(self, missing: list[Config], labels: dict[str, str], show: bool | None) -> None:
        self._total, self._labels = len(missing), labels
        self._left = {config.key: cost_class(config) for config in missing}
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._spent = 0.0  # seconds of the runs that have ended, as far as this sweep ran them
        self._elapsed = 0.0  # seconds until the last of them ended; later ones belong to runs that have not ended
        self._errors: dict[str, int] = {}  # number of the first run that failed with this error
        self._begin = time.monotonic()
        self._bar = progress_bar(len(missing), "sweep", show)
        self._bar.bar_format = "{l_bar}{bar}| {n_fmt}/{total_fmt} runs, {elapsed}{postfix}"
        self._lines = show is None and self._bar.disable
        self._say(f"{self._total} {'run' if self._total == 1 else 'runs'} to measure")

    def __enter__(self) -> SweepProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def finished(self, config: Config, outcome: Outcome) -> None:
        """Count a run that has ended, in this sweep or in another one."""
        group = self._left.pop(config.key)
        if outcome.state == "measured":
            self._seconds[group].append(outcome.seconds)
            self._elapsed = time.monotonic() - self._begin
            self._spent += min(outcome.seconds, self._elapsed)
        self._bar.update()
        run, number = run_name(config, self._labels[config.key]), self._total - len(self._left)
        words = _in_words(outcome)
        if outcome.state == "failed" and (first := self._errors.setdefault(outcome.error, number)) < number:
            words = f"failed, with the error of run {first}"
        self._say(f"{number} of {self._total}: {run}: {'; '.join([words, *self._time_left()])}")

    def report(self, elsewhere: int) -> None:
        """Show the time left, and the number of runs that another sweep is running now."""
        waiting = [f"{elsewhere} running elsewhere"] if elsewhere else []
        self._bar.set_postfix_str(", ".join([*self._time_left(), *waiting]))

    def _time_left(self) -> list[str]:
        spent = [s for seconds in self._seconds.values() for s in seconds]
        if not spent or not self._left:
            return []
        of_any, of_group = fmean(spent), {group: fmean(seconds) for group, seconds in self._seconds.items()}
        left = sum(of_group.get(group, of_any) for group in self._left.values())
        runs_at_a_time = self._spent / self._elapsed
        return [f"about {duration(left / runs_at_a_time)} left"]

    def _say(self, line: str) -> None:
        if self._lines:
            with suppress(BrokenPipeError):  # The reader of the lines has ended; the runs have not.
                print(line, file=sys.stderr, flush=True)


def _in_words(outcome: Outcome) -> str:
    if outcome.state == "failed":
        return f"failed: {outcome.error}"
    if outcome.state == "there":
        return "measured elsewhere"
    A, F = decimal(100 * outcome.last_accuracy), decimal(100 * outcome.last_forgetting)
    result = "" if outcome.failure == "diverged" else f"A {A} %, F {F} %"
    return ", ".join(filter(None, [outcome.failure, result, duration(outcome.seconds)]))
