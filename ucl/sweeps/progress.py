"""Progress of a sweep: a bar with the time left, and which runs have a record."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import torch

from ucl import naming
from ucl.config import Config, unique
from ucl.machine.hardware import environment, resolve_device
from ucl.machine.terminal import duration, progress_bar
from ucl.records import RecordStore, failures
from ucl.records.record import processor_of
from ucl.records.store import report
from ucl.sweeps import locks
from ucl.sweeps.one_run import Outcome


class SweepProgress:
    """Shows the progress over the runs of a sweep and the time left, as a bar or as one line per run.

    Args:
        total: number of runs.
        show: whether to show the bar; None shows it in a terminal or notebook, and prints lines otherwise, for example
            in the log of a job.
    """

    def __init__(self, total: int, show: bool | None) -> None:
        self._total, self._done, self._begin = total, 0, time.monotonic()
        self._bar = progress_bar(total, "sweep", show)
        self._bar.bar_format = "{l_bar}{bar}| {n_fmt}/{total_fmt} runs, {elapsed}<{remaining}"
        self._has_lines = show is None and self._bar.disable
        self._print(f"runs to measure: {total}")

    def __enter__(self) -> SweepProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def finished(self, config: Config, outcome: Outcome) -> None:
        """Count a run that has ended."""
        self._done += 1
        self._bar.update()
        text = outcome.text if outcome.state == "measured" else f"failed: {outcome.text}"
        if left := self._total - self._done:
            text += f"; about {duration((time.monotonic() - self._begin) / self._done * left)} left"
        self._print(f"{self._done} of {self._total}: {naming.run_name(config)}: {text}")

    def _print(self, line: str) -> None:
        if self._has_lines:
            with suppress(BrokenPipeError):  # The reader of the lines has ended; the runs have not.
                print(line, file=sys.stderr, flush=True)


def status(
    configs: Iterable[Config], store: str | Path = "runs", device: str = "auto", root: str | Path | None = None
) -> pd.DataFrame:
    """The progress of a sweep as a table.

    Args:
        configs: the experiments of the sweep.
        store: folder of the records.
        device: device of the missing runs, for the estimate of their time.
        root: folder of the data sets to compare with, see `ucl.datasets.load`.

    Returns:
        One row per stream, memory size and method: dataset (see `ucl.naming.stream_of`), memory_size (NA without a
        memory), label (see `ucl.naming.name_of`), runs, measured, failed (how many of
        the measured runs diverged, such as "1 diverged"), locked (seeds that a process is measuring now),
        missing (other seeds without a record) and seconds (the time of the missing runs here, one after another: the
        mean of the row's measured runs with the same `Record.processor`, times their number; NaN without such runs).

    Raises:
        InputError: (a ValueError) the store or the device can't be used.
    """
    configs, records = unique(configs), RecordStore(store, root)
    stored = records.find(configs)
    report(stored.values())
    processor = processor_of(environment(resolve_device(device), torch.float32))
    groups: dict[tuple[Any, ...], list[Config]] = defaultdict(list)
    for config in configs:
        memory = config.relevant.get("memory_size")
        groups[config.dataset, naming.stream_of(config), memory, naming.name_of(config)].append(config)
    rows = []
    for (_, *group), runs in groups.items():
        measured = [record for record in (stored[run.key].record for run in runs) if record is not None]
        absent = [run for run in runs if stored[run.key].record is None]
        locked = [run.seed for run in absent if not locks.is_free(locks.path_of(records.folder, run))]
        missing = [run.seed for run in absent if run.seed not in locked]
        times = [r.timing["total"] for r in measured if r.diverged_after is None and r.processor == processor]
        seconds = len(missing) * fmean(times or [nan]) if missing else 0.0
        rows.append((*group, len(runs), len(measured), failures(measured), locked, missing, seconds))
    columns = ["dataset", "memory_size", "label", "runs", "measured", "failed", "locked", "missing", "seconds"]
    return pd.DataFrame(rows, columns=columns).astype({"memory_size": "Int64"})
