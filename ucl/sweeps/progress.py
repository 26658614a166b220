"""Progress of a sweep, with the time left, and the names of its runs."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ucl.config import Config
from ucl.fields import as_text, decimal
from ucl.machine.terminal import duration, progress_bar
from ucl.sweeps.one_run import Outcome


def labels(configs: Sequence[Config]) -> dict[str, str]:
    """The name of each run's method and settings within a sweep, by `Config.key`; it is the same for all seeds.

    It is the run's label, followed by the fields that differ within the sweep between runs of one data set, memory size
    and label: "EN bottom, refresh=2".
    """
    named = ("dataset", "memory_size", "seed", "method", "population", "score", "selection")
    settings = {config.key: {k: v for k, v in config.relevant.items() if k not in named} for config in configs}
    values: dict[tuple[Any, ...], set[Any]] = defaultdict(set)
    for config in configs:
        for name, value in settings[config.key].items():
            values[config.dataset, config.relevant.get("memory_size"), config.label, name].add(value)
    varying = {name for (*_, name), found in values.items() if len(found) > 1}
    found = {}
    for config in configs:
        shown = [f"{name}={as_text(value)}" for name, value in settings[config.key].items() if name in varying]
        found[config.key] = ", ".join([config.label, *shown])
    return found


def run_name(config: Config, label: str) -> str:
    """A run in words: "bloodcell M=40 EN bottom, refresh=2, seed 0", where the label is one of `labels`."""
    memory = f" M={config.memory_size}" if config.uses_memory else ""
    return f"{config.dataset_name}{memory} {label}, seed {config.seed}"


class SweepProgress:
    """Shows the progress over the runs of a sweep and the time left, as a bar or as one line per run.

    Args:
        total: number of runs.
        show: whether to show the bar; None shows it in a terminal or notebook, and prints lines otherwise, for example
            in the log of a job.
    """

    def __init__(self, total: int, show: bool | None) -> None:
        self._total, self._done, self._measured = total, 0, 0
        self._errors: set[str] = set()
        self._begin = time.monotonic()
        self._bar = progress_bar(total, "sweep", show)
        self._bar.bar_format = "{l_bar}{bar}| {n_fmt}/{total_fmt} runs, {elapsed}{postfix}"
        self._lines = show is None and self._bar.disable
        self._print(f"{total} {'run' if total == 1 else 'runs'} to measure")

    def __enter__(self) -> SweepProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def finished(self, name: str, outcome: Outcome) -> None:
        """Count a run that has ended."""
        self._done += 1
        self._measured += outcome.state == "measured"
        left = self._time_left()
        self._bar.set_postfix_str(left, refresh=False)
        self._bar.update()
        text = _as_text(outcome) if outcome.error not in self._errors else "failed, with the same error"
        self._errors |= {outcome.error} - {""}
        self._print(f"{self._done} of {self._total}: {name}: {text}{'; ' if left else ''}{left}")

    def _time_left(self) -> str:
        if not self._measured or self._done == self._total:
            return ""
        elapsed = time.monotonic() - self._begin
        return f"about {duration(elapsed / self._measured * (self._total - self._done))} left"

    def _print(self, line: str) -> None:
        if self._lines:
            with suppress(BrokenPipeError):  # The reader of the lines has ended; the runs have not.
                print(line, file=sys.stderr, flush=True)


def _as_text(outcome: Outcome) -> str:
    if outcome.state == "failed":
        return f"failed: {outcome.error}"
    if outcome.state == "exists":
        return "measured by another process"
    A, F = decimal(100 * outcome.last_accuracy), decimal(100 * outcome.last_forgetting)
    result = "" if outcome.failure == "diverged" else f"A {A} %, F {F} %"
    return ", ".join(filter(None, [outcome.failure, result, duration(outcome.seconds)]))
