"""The verbs of the command `ucl`: functions from parsed options to an exit code.

A verb imports torch only when it is needed, so that wrong input is refused at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import ucl
from ucl.cli.arguments import as_typed, refuse
from ucl.config import Config, shard
from ucl.errors import InputError, UserExit, exits_are_failures
from ucl.fields import as_text, known_fields
from ucl.machine import checkpoints
from ucl.machine.terminal import duration
from ucl.records import RecordStore, curves, failures, versions
from ucl.sweeps import locks
from ucl.sweeps.grid import grid

_MOST_CLASSES, _AT_ENDS = 12, 4  # that `ucl data check` names


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
    for stream in dict.fromkeys(
        (config.dataset, config.n_tasks, options.data, config.image_size) for config in configs
    ):
        ucl.datasets.check_tasks(*stream)
    where: dict[str, Any] = dict(
        device=options.device,
        root=options.data,
        threads=options.threads,
        graphs=options.graphs,
        curves=options.curves,
    )
    try:
        with nullcontext() if options.scheduler is None else dask_executor(options.scheduler) as workers:
            records = sweep(configs, options.store, workers, options.jobs, **where)
    except SweepError as error:
        print(f"ucl sweep: {error}", file=sys.stderr)
        return 1
    failed = failures(records)
    print(f"all {len(configs)} runs are in {options.store}" + (f"; {failed}" if failed else ""))
    return 0


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
        missing = "; ".join(filter(None, (missing, damaged, row.failed)))
        counts = f"{row.measured} of {row.runs}"
        print(f"{row.dataset:{names}} {memory:>6}  {row.label:{methods}} {counts:>9}  {missing}".rstrip())
    runs, measured = table["runs"].sum(), table["measured"].sum()
    unknown = table.loc[table["seconds"].isna(), "missing"].map(len).sum()
    known = table["missing"].map(len).sum() - unknown
    cost = f"; {known} of the others would take {_cost(table['seconds'].sum())} here" if known else ""
    cost += f"; of {unknown} the cost is unknown" if unknown else ""
    nowhere = "" if Path(options.store).exists() else ", a folder that does not exist"
    print(f"{measured} of {runs} runs are in {options.store}{nowhere}{cost}")
    return int(measured < runs)


def _seeds(seeds: list[int]) -> str:
    return " ".join(map(str, sorted(set(seeds))))


def _cost(seconds: float) -> str:
    return "unknown" if math.isnan(seconds) else f"about {duration(seconds)}"


def run(options: argparse.Namespace) -> int:
    """Measure one run and store its record; print the stored record if there is one already."""
    config = _config(options)
    notes = _without_effect(config, _given(options))
    store, record = RecordStore(options.store, options.data), None
    found = store.lookup(config)
    versions.report([found])
    if not found.there:
        store.check_writable()
        ucl.datasets.check_tasks(config.dataset, config.n_tasks, options.data, config.image_size)
        import torch

        from ucl.sweeps.one_run import measure_once

        if options.threads:
            torch.set_num_threads(options.threads)
        how: dict[str, Any] = dict(device=options.device, root=options.data, graphs=options.graphs)
        with warnings.catch_warnings(), _log_messages() as logged:
            warnings.filterwarnings("ignore", "the network diverged")  # The summary reports it.
            found, record = measure_once(store, config, options.curves, partial(print, flush=True), **how)
        notes += logged
        if record is None and not found.there:
            reason = "another process is measuring this run there; wait for it, or give another folder"
            raise InputError("store", options.store, reason)
    if record is None:
        record = found.record or store.load(config)  # load raises for a damaged record.
        print(f"already measured on {record.date[:10]}; delete the record to measure again")
        print(record)
        if options.curves:
            curves.save(record.accuracy, record.accuracy_so_far, curves.path_of(options.curves, found.path))
    locks.clear(store.folder)
    checkpoints.clear(store.folder)
    print(found.path)
    for note in notes:  # Not before the run: wrong input is reported in one line, with nothing beside it.
        print(f"ucl run: {note}", file=sys.stderr)
    return 0


@contextmanager
def _log_messages() -> Iterator[list[str]]:
    """Collect the package's log messages in the block: images that a stream leaves out, a run that continues."""
    messages: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if (message := record.getMessage()) not in messages:  # A run reads some data sets twice.
                messages.append(message)

    logger, collect = logging.getLogger("ucl"), Collect()
    level = logger.level
    logger.addHandler(collect)
    logger.setLevel(logging.INFO)
    try:
        yield messages
    finally:
        logger.setLevel(level)
        logger.removeHandler(collect)


def data_list(options: argparse.Namespace) -> int:
    """Print the data sets known by name, with their files."""
    print(f"data folder: {ucl.datasets.data_folder(options.data)}")
    print(f"{'name':16} {'classes':>7} {'pixels':>7}  {'source':16} here")
    for row in ucl.datasets.available(options.data):
        here = row.where or f"no: ucl data get {row.name}"
        print(f"{row.name:16} {row.classes:7} {row.image_size:7}  {row.source:16} {here}")
    print("A name with -lt at the end is the long-tailed version. Instead of a name you can give a path to an .npz in")
    print("MedMNIST's layout or to a folder of class folders, or your own function as package.module:function.")
    return 0


def data_check(options: argparse.Namespace) -> int:
    """Print the contents of data sets, which are downloaded first if they are not here.

    All data sets are read, also after one that cannot be used; returns 2 if there was such a one.
    """
    code = 0
    for name in options.dataset:
        try:
            with _log_messages() as notes, exits_are_failures():
                facts = ucl.datasets.check(name, options.data, options.image_size)
        except InputError as error:
            of = "" if error.name == "dataset" else f"{name}: "
            what = as_typed(error, options.verb) if error.value != "" else "'': "
            code = refuse(options.verb.prog, f"{of}{what}{error.reason}")
        except UserExit as error:
            code = refuse(options.verb.prog, f"{name}: {error}")
        except OSError as error:
            code = refuse(options.verb.prog, f"{name}: can't be read ({error})")
        else:
            print("\n".join([*_contents(facts), *(f"  {note}" for note in notes)]))
    return code


def _contents(facts: dict[str, Any]) -> list[str]:
    """The facts about a data set in one line, those of its classes in a line each, and what is equal in two places."""
    found = {key: value for key, value in facts.items() if not isinstance(value, list) and value != 0}
    repeated = {key: found.pop(key) for key in ucl.datasets.REPEATED if key in found}
    lines = [", ".join(f"{key} {value}" for key, value in found.items())]
    for split, prefix in {"training": "", "test": "test ", "validation": "val "}.items():
        for what, key in {"images": f"{prefix}class sizes", "patients": f"{prefix}class patients"}.items():
            if facts.get(key):
                lines.append(f"  {split} {what} per class{_sizes_in_words(facts[key])}")
    lines += [f"  warning: {n} {ucl.datasets.REPEATED[what] if n == 1 else what}" for what, n in repeated.items()]
    return lines


def _sizes_in_words(sizes: list[tuple[str, int]]) -> str:
    """All class sizes; of many classes one size if all are equal, otherwise the smallest and the largest."""
    if len(sizes) <= _MOST_CLASSES:
        return f": {_in_words(sizes)}"
    by_size = sorted(sizes, key=lambda size: size[1])
    if by_size[0][1] == by_size[-1][1]:
        return f": {by_size[0][1]}"
    smallest, largest = _in_words(by_size[:_AT_ENDS]), _in_words(by_size[: -_AT_ENDS - 1 : -1])
    return f", smallest first: {smallest}; largest first: {largest}"


def _in_words(sizes: list[tuple[str, int]]) -> str:
    return ", ".join(f"{name}: {size}" for name, size in sizes)


def reproduce_notebooks(options: argparse.Namespace) -> int:
    """Execute notebooks with papermill; returns 1 if some failed."""
    from ucl.reproduction.batch import reproduce

    outcomes = reproduce(options.notebook, dict(options.parameter), options.output, options.jobs)
    for outcome in outcomes:
        print(f"{outcome.name:32} {outcome.seconds:6.0f} s  {outcome.error or 'done'}")
    print(Path(options.output) / "index.html")
    return int(any(outcome.error for outcome in outcomes))
