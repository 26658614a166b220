"""The progress of a sweep: which of its runs have a record, and what the others would take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import torch

from ucl.config import Config, unique
from ucl.machine.hardware import environment, resolve_device
from ucl.records import RecordStore, failures, versions
from ucl.records.record import processor_of
from ucl.sweeps import locks
from ucl.sweeps.grid import as_configs
from ucl.sweeps.progress import labels

COLUMNS = (
    *("dataset", "memory_size", "label", "runs", "measured", "failed"),
    *("damaged", "locked", "missing", "seconds"),
)


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
        One row per data set, memory size, method and settings: dataset, memory_size (NA without a memory), label (with
        the fields that differ within the sweep, see `ucl.sweeps.progress.labels`), runs, measured, failed (how many of
        the measured runs diverged or collapsed, such as "1 diverged"), damaged (seeds whose file can't be read or is of
        another experiment: a sweep names the file, and does not measure them), locked (seeds that a process is
        measuring now), missing (other seeds without a record) and seconds (the time of the missing runs here, one after
        another: the mean of the row's measured runs with the same `Record.processor`, times their number; NaN without
        such runs).

    Raises:
        InputError: (a ValueError) the store or the device can't be used.
    """
    configs, records = unique(as_configs(configs)), RecordStore(store, root)
    found = records.find(configs)
    versions.report(found.values())
    processor = processor_of(environment(resolve_device(device), torch.float32))
    names = labels(configs)
    groups: dict[tuple[Any, ...], list[Config]] = defaultdict(list)
    for config in configs:
        groups[config.dataset, config.relevant.get("memory_size"), names[config.key]].append(config)
    rows = []
    for group, runs in groups.items():
        measured = [record for record in (found[run.key].record for run in runs) if record is not None]
        damaged = [run.seed for run in runs if not found[run.key].record and found[run.key].error]
        absent = [run for run in runs if not found[run.key].exists]
        locked = [run.seed for run in absent if not locks.is_free(locks.path_of(records.folder, run))]
        missing = [run.seed for run in absent if run.seed not in locked]
        times = [r.timing["total"] for r in measured if r.diverged_after is None and r.processor == processor]
        seconds = len(missing) * fmean(times or [nan]) if missing else 0.0
        rows.append((*group, len(runs), len(measured), failures(measured), damaged, locked, missing, seconds))
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"memory_size": "Int64"})
