"""The verbs of the command `ucl`: functions from parsed options to an exit code.

A verb imports torch only when it is needed, so that wrong input is refused at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import warnings
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import ucl
from ucl.config import Config
from ucl.errors import InputError
from ucl.fields import as_text, known_fields
from ucl.machine import checkpoints
from ucl.machine.messages import log_messages
from ucl.machine.terminal import duration
from ucl.records import RecordStore, curves, failures, versions
from ucl.sweeps import locks
from ucl.sweeps.grid import grid, shard


def _config(options: argparse.Namespace) -> Config:
    """The configuration of `ucl run`: flags of fields override --published-code, which overrides --config."""
    given = _given(options)
    start, *others = grid(options.config) if options.config else [Config()]
    if others:
        raise InputError("config", options.config, f"has {1 + len(others)} runs; run them with ucl sweep --config")
    published = ucl.paper.PUBLISHED_CODE if options.published_code else {}
    return start.replace(**{**published, **given})


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of `Config` that have a flag on the command line."""
    fields = {f.name: getattr(options, f.name) for f in dataclasses.fields(Config)}
    return {name: value for name, value in fields.items() if value is not None}


def _without_effect(config: Config, given: dict[str, Any]) -> list[str]:
    """A line for each field that was given and cannot change the result of the run."""
    lines = []
    for name in given.keys() & config.idle.keys():
        value, decides = given[name], config.idle[name]
        flag = f"--{'no-' if value is False else ''}{name.replace('_', '-')}"
        typed = flag if isinstance(value, bool) else f"{flag} {as_text(value)}"
        lines.append(f"{typed} has no effect: {decides}={as_text(getattr(config, decides))}")
    return sorted(lines)


def _grid(options: argparse.Namespace) -> list[Config]:
    """The runs of a sweep, from the command line of `sweep` or `status`."""
    if not options.table and not options.config:
        raise InputError("", None, f"name a table ({', '.join(ucl.paper.GRIDS)}), or give --config FILE")
    fields, configs = _fields_for_all(dict(options.set)), []
    try:
        for table in options.table:
            if table not in ucl.paper.GRIDS and Path(table).is_file():
                raise InputError("table", table, f"is a file; give --config {table}")
            if table not in ucl.paper.GRIDS and Path(table).is_dir():
                raise InputError("table", table, f"is a folder; if it has the records, give --store {table}")
            configs += ucl.paper.grid(table, seeds=options.seeds or range(3), **fields)
        for file in options.config:
            own = grid(file)
            if options.seeds:
                own = [config.replace(seed=seed) for seed in options.seeds for config in own]
            configs += [config.replace(**fields) for config in own]
    except InputError as error:
        if error.name in fields:
            raise InputError("set", f"{error.name} {error.value}", error.reason) from None
        if error.name == "seed" and options.seeds:
            raise InputError("seeds", error.value, error.reason) from None
        raise
    return shard(configs, *options.shard)


def _fields_for_all(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that --set gives to all runs: any field of `Config` except the seed, which has its own flag."""
    for name, value in fields.items():
        if name in ("seed", "seeds"):
            raise InputError("set", f"{name} {value}", f"seeds have their own flag; give --seeds {value}")
    return known_fields(fields, "set")


def sweep_grid(options: argparse.Namespace) -> int:
    """Measure the runs of a grid that have no record in the store; returns 1 if some failed."""
    configs = _grid(options)
    from ucl.sweeps.sweep import SweepError, sweep
    from ucl.sweeps.workers import dask_executor

    if options.scheduler is not None and options.jobs != 1:
        raise InputError("jobs", options.jobs, "the scheduler's workers decide how many run at a time; leave this out")
    for dataset, n_tasks in dict.fromkeys((config.dataset, config.n_tasks) for config in configs):
        ucl.datasets.check_tasks(dataset, n_tasks, options.data)
    where: dict[str, Any] = dict(
        device=options.device,
        root=options.data,
        threads=options.threads,
        graphs=options.graphs,
        curves=options.curves,
    )
    try:
        scheduler = nullcontext() if options.scheduler is None else dask_executor(options.scheduler)
        with scheduler as workers, log_messages(_tell):
            records = sweep(configs, options.store, workers, options.jobs, **where)
    except SweepError as error:
        print(f"ucl sweep: {error}", file=sys.stderr)
        return 1
    failed = failures(records)
    print(f"all {len(configs)} runs are in {options.store}" + (f"; {failed}" if failed else ""))
    return 0


def _tell(note: str) -> None:
    """Print a remark above the progress bar, if there is one."""
    from tqdm import tqdm

    with suppress(BrokenPipeError):  # The reader of the lines has ended; the runs have not.
        tqdm.write(f"ucl sweep: {note}", sys.stderr)


def status_of_grid(options: argparse.Namespace) -> int:
    """Print which runs of a grid are in a store; returns 1 if some are missing."""
    configs = _grid(options)
    RecordStore(options.store)  # Raises InputError early if the store is not a folder.
    import pandas as pd

    from ucl.sweeps.status import status

    table = status(configs, options.store, options.device, options.data)
    names, methods = (max(16, *map(len, table[column]), 0) for column in ("dataset", "label"))
    print(f"{'dataset':{names}} {'memory':>6}  {'method':{methods}} {'measured':>9}  missing")
    for row in table.itertuples():
        memory = "" if pd.isna(row.memory_size) else row.memory_size
        missing = f"seeds {_seeds(row.missing)}: {_cost(row.seconds)}" if row.missing else ""
        damaged = f"seeds {_seeds(row.damaged)}: damaged or misnamed files, ucl sweep names them" if row.damaged else ""
        locked = f"seeds {_seeds(row.locked)}: being measured now" if row.locked else ""
        missing = "; ".join(filter(None, (missing, locked, damaged, row.failed)))
        counts = f"{row.measured} of {row.runs}"
        print(f"{row.dataset:{names}} {memory:>6}  {row.label:{methods}} {counts:>9}  {missing}".rstrip())
    runs, measured = table["runs"].sum(), table["measured"].sum()
    unknown = table.loc[table["seconds"].isna(), "missing"].map(len).sum()
    known = table["missing"].map(len).sum() - unknown
    cost = f"; {known} of the others would take {_cost(table['seconds'].sum())} here" if known else ""
    cost += f"; {unknown} {'has' if unknown == 1 else 'have'} no estimate" if unknown else ""
    nowhere = "" if Path(options.store).exists() else ", a folder that does not exist"
    print(f"{measured} of {runs} runs are in {options.store}{nowhere}{cost}")
    return int(measured < runs)


def _seeds(seeds: list[int]) -> str:
    return " ".join(map(str, sorted(set(seeds))))


def _cost(seconds: float) -> str:
    return "unknown" if math.isnan(seconds) else f"about {duration(seconds)}"


def _absolute(folder: str | None) -> Path | None:
    """The whole path of a folder, if it is given: the user's modules may change the working folder."""
    return None if folder is None else Path(folder).absolute()


def run(options: argparse.Namespace) -> int:
    """Measure one run and store its record; print the stored record if there is one already."""
    config = _config(options)
    notes = _without_effect(config, _given(options))
    RecordStore(options.store)  # Raises an InputError that names the folder as it was typed.
    data, curve_folder = _absolute(options.data), _absolute(options.curves)
    store, record = RecordStore(Path(options.store).absolute(), data), None
    found = store.lookup(config)
    versions.report([found])
    if not found.there:
        try:
            store.check_writable()
        except InputError as error:  # It names the absolute folder.
            raise InputError("store", options.store, error.reason) from None
        ucl.datasets.check_tasks(config.dataset, config.n_tasks, data)
        import torch

        from ucl.sweeps.one_run import measure_once

        if options.threads:
            torch.set_num_threads(options.threads)
        how: dict[str, Any] = dict(device=options.device, root=data, graphs=options.graphs)
        with warnings.catch_warnings(), log_messages() as logged:
            warnings.filterwarnings("ignore", "the network diverged")  # The summary reports it.
            found, record = measure_once(store, config, curve_folder, partial(print, flush=True), **how)
        notes += logged
        if record is None and not found.there:
            reason = "another process is measuring this run there; wait for it, or give another folder"
            raise InputError("store", options.store, reason)
    if record is None:
        record = found.record or store.load(config)  # load raises for a damaged record.
        print(f"already measured on {record.date[:10]}; delete the record to measure again")
        print(record)
        if curve_folder:
            curves.save(record.accuracy, record.accuracy_so_far, curves.path_of(curve_folder, found.path))
    locks.clear(store.folder)
    checkpoints.clear(store.folder)
    print(Path(options.store) / found.path.name)
    for note in notes:  # Not before the run: wrong input is reported in one line, with nothing beside it.
        print(f"ucl run: {note}", file=sys.stderr)
    return 0


def reproduce_notebooks(options: argparse.Namespace) -> int:
    """Execute notebooks with papermill; returns 1 if some failed."""
    from ucl.reproduction.batch import reproduce

    outcomes = reproduce(options.notebook, dict(options.parameter), options.output, options.jobs)
    for outcome in outcomes:
        print(f"{outcome.name:32} {outcome.seconds:6.0f} s  {outcome.error or 'done'}")
    print(Path(options.output) / "index.html")
    return int(any(outcome.error for outcome in outcomes))
