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
from ucl.sweeps.grid import as_configs
from ucl.sweeps.progress import cost_class, labels


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
        another experiment: a sweep names the file, and does not measure them), missing (other seeds without a record)
        and seconds (the time of the missing runs here, one after another, estimated from the store's records of runs
        with the same cost and `Record.processor`; NaN if there are none).

    Raises:
        InputError: (a ValueError) the store or the device can't be used.
    """
    configs, records = unique(as_configs(configs)), RecordStore(store, root)
    found = records.find(configs)
    versions.report(found.values())
    rows: dict[tuple, dict[str, Any]] = {}
    here = processor_of(environment(resolve_device(device), torch.float32))
    seconds: dict[str, list[float]] = defaultdict(list)
    for stored in records:
        if stored.diverged_after is None and stored.processor == here:
            seconds[cost_class(stored.config)].append(stored.timing["total"])
    names = labels(configs)
    for config in configs:
        memory_size = config.relevant.get("memory_size")
        group = {"dataset": config.dataset, "memory_size": memory_size, "label": names[config.key]}
        row = rows.setdefault(
            tuple(group.values()),
            {**group, "runs": 0, "measured": 0, "failed": [], "damaged": [], "missing": [], "seconds": 0.0},
        )
        row["runs"] += 1
        record, error = found[config.key].record, found[config.key].error
        if record is not None:
            row["measured"] += 1
            row["failed"].append(record)
        elif error:
            row["damaged"].append(config.seed)
        else:
            row["missing"].append(config.seed)
            row["seconds"] += fmean(seconds.get(cost_class(config), [nan]))
    for row in rows.values():
        row["failed"] = failures(row["failed"])
    columns = ["dataset", "memory_size", "label", "runs", "measured", "failed", "damaged", "missing", "seconds"]
    return pd.DataFrame(list(rows.values()), columns=columns).astype({"memory_size": "Int64"})
