"""The verbs of the command `ucl`: the parser of their flags, and functions from parsed options to an exit code.

Functions import torch and pandas themselves, so that help and most wrong input are answered at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ucl
from ucl.catalogue import PICTURES, helps
from ucl.cli import texts
from ucl.cli.flags import (
    Parser,
    add_benchmark_flags,
    add_config_flags,
    add_data_flag,
    add_grid_flags,
    add_machine_flags,
    add_measure,
    add_selection,
    add_store_flag,
    as_typed,
    file_with,
    path,
    refuse,
)
from ucl.config import Config
from ucl.errors import InputError
from ucl.evidence.paper import GRIDS
from ucl.fields import as_text, known_fields
from ucl.machine.terminal import log_messages, show_note
from ucl.machine.yaml_form import from_yaml
from ucl.records import RecordStore, curves, failures, load_records
from ucl.records.store import report as report_found
from ucl.sweeps import locks
from ucl.sweeps.grid import grid, shard

if TYPE_CHECKING:
    import pandas as pd


def parser() -> argparse.ArgumentParser:
    """The parser of the command; parsed options have `verb`, the parser of the verb, and `command`, its function."""
    main = Parser(prog="ucl", description=ucl.__doc__)
    main.add_argument("--version", action="version", version=f"ucl {ucl.__version__}")
    verbs = main.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Callable | None, text: str, inside: Any = verbs, **options: Any) -> Any:
        verb = inside.add_parser(name, help=text, **options)
        verb.set_defaults(command=command, verb=verb)
        return verb

    run_ = add("run", run, "measure one run", description=texts.RUN, epilog=texts.RUN_EXAMPLES)
    add_config_flags(run_.add_argument_group("the experiment"))
    where = run_.add_argument_group("where and how")
    where.add_argument("--config", type=path, metavar="FILE", help="start from the fields in a JSON or YAML file")
    where.add_argument("--published-code", action="store_true", help="all choices of the reference implementation")
    add_store_flag(where)
    add_machine_flags(where, "all cores")

    tables = "\n".join(f"  {table:12} {what}" for table, what in GRIDS.items())
    text = "measure many runs: a table of the paper, or your own"
    description = texts.SWEEP.format(tables=tables)
    sweep_ = add("sweep", sweep, text, description=description, epilog=texts.SWEEP_EXAMPLES)
    add_grid_flags(sweep_)
    sweep_.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time (default: %(default)s)")
    sweep_.add_argument("--scheduler", metavar="ADDRESS", help="use the workers of a dask scheduler: tcp://host:port")
    add_machine_flags(sweep_, "all cores divided by --jobs; with --scheduler those of its workers")

    text = "show the progress of a sweep"
    status_ = add("status", status, text, description=texts.STATUS, epilog=texts.STATUS_EXAMPLES)
    add_grid_flags(status_)
    status_.add_argument("--device", default="auto", help="device of the time estimates (default: %(default)s)")
    add_data_flag(status_)

    text = "show the records of a store as a table"
    results_ = add("results", results, text, description=texts.RESULTS, epilog=texts.RESULTS_EXAMPLES)
    add_selection(results_)
    text = "first columns of the table, by which the rows are sorted: names that --where accepts"
    results_.add_argument("--by", nargs="+", action="extend", default=[], metavar="NAME", help=text)
    add_measure(results_)

    text = "compare two methods by paired differences"
    compare_ = add("compare", compare, text, description=texts.COMPARE, epilog=texts.COMPARE_EXAMPLES)
    add_selection(compare_)
    compare_.add_argument("first", metavar="FIRST", help="conditions that select a method")
    compare_.add_argument("second", metavar="SECOND", help="conditions that select the method to subtract")
    add_measure(compare_)

    pictures = "\n".join(f"  {name:12} {text}" for name, text in helps(PICTURES).items())
    text, description = "draw a picture of the records of a store", texts.PLOT.replace("{pictures}", pictures)
    plot_ = add("plot", plot, text, description=description, epilog=texts.PLOT_EXAMPLES)
    add_selection(plot_)
    plot_.add_argument("picture", metavar="PICTURE", choices=PICTURES, help=f"one of {', '.join(PICTURES)}")
    text = "for differences: conditions that select the method to subtract"
    plot_.add_argument("--against", default="", metavar="CONDITION", help=text)
    text = "the picture: a file that ends in .png, .pdf or .svg (default: PICTURE.png)"
    plot_.add_argument("--output", type=file_with(".png", ".pdf", ".svg"), metavar="FILE", help=text)

    text = "execute notebooks and write HTML pages"
    book = add("reproduce", reproduce, text, description=texts.REPRODUCE, epilog=texts.REPRODUCE_EXAMPLES)
    book.add_argument("notebook", nargs="*", help="names or paths of notebooks (default: all)")
    text = "a value for the notebooks' parameter cell, in YAML: -p seeds '[0, 1]' -p compute true"
    book.add_argument("-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help=text)
    book.add_argument("--jobs", type=int, default=1, metavar="N", help="notebooks at a time (default: %(default)s)")
    text = "folder of the pages (default: %(default)s)"
    book.add_argument("--output", type=path, default="reproduced", metavar="DIR", help=text)

    text = "measure the time per batch, by part"
    add_benchmark_flags(add("benchmark", benchmark, text, description=texts.BENCHMARK))

    data = add("data", None, "list, download and check data sets").add_subparsers(required=True, metavar="ACTION")
    for name, command, text, more in (
        ("list", data_list, "list the data sets known by name, and their files", ""),
        ("get", data_check, "download data sets that are not here yet, checksummed, and show their contents", ""),
        ("check", data_check, "read data sets completely and show their contents", f"\n\n{texts.SPLIT}"),
    ):
        action = add(name, command, text, data, description=f"{text.capitalize()}.{more}")
        if name != "list":
            text = "a name, a path to an .npz or a folder of class folders, or package.module:function"
            action.add_argument("dataset", nargs="+", help=text)
            text = "pixels per side, see ucl run --help (default: the data set's own, 32 for a folder)"
            action.add_argument("--image-size", type=int, metavar="N", help=text)
        add_data_flag(action)
    return main


def _values(pairs: list[tuple[str, str]], flag: str) -> dict[str, Any]:
    """The values in YAML of a flag with a name and a value."""
    values = {}
    for name, text in pairs:
        try:
            values[name] = from_yaml(text)
        except ValueError as error:
            raise InputError(flag, f"{name} {text}", f"not valid YAML; quote it ({error})") from None
    return values


def run(options: argparse.Namespace) -> int:
    """Measure one run and store its record; print the stored record if there is one already."""
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(Config)}
    given = {name: value for name, value in given.items() if value is not None}
    start, *others = grid(options.config) if options.config else [Config()]
    if others:
        raise InputError("config", options.config, f"has {1 + len(others)} runs; run them with ucl sweep --config")
    config = start.replace(**{**(ucl.paper.PUBLISHED_CODE if options.published_code else {}), **given})
    for name in sorted(given.keys() & config.idle.keys()):
        decides = config.idle[name]
        cause = f"{decides}={as_text(getattr(config, decides))}"
        show_note(f"{name}={as_text(given[name])} has no effect: {cause}")
    store = RecordStore(options.store, options.data)
    found = store.lookup(config)
    report_found([found])
    record = None
    if found.record is None:
        store.check_writable()
        import torch

        from ucl.machine import checkpoints
        from ucl.sweeps.one_run import measure_once

        if options.threads:
            torch.set_num_threads(options.threads)
        settings = dict(device=options.device, root=options.data, graphs=options.graphs)
        with log_messages(show_note):
            found, record = measure_once(store, config, options.curves, print, **settings)
        checkpoints.clear(store.folder)
    if record is None:
        record = found.record
        if record is None:
            reason = "another process is measuring this run there; wait for it, or give another folder"
            raise InputError("store", options.store, reason)
        print(f"already measured on {record.date[:10]}; delete the record to measure again")
        print(record)
        if options.curves:
            curves.save(record.accuracy, record.accuracy_so_far, curves.path_of(options.curves, found.path))
    locks.clear(store.folder)
    print(found.path)
    return 0


def _grid(options: argparse.Namespace) -> list[Config]:
    """The runs of a sweep, from the command line of `sweep` or `status`."""
    if not options.table and not options.config:
        raise InputError("table", None, f"name a table ({', '.join(GRIDS)}), or give --config FILE")
    fields = known_fields(_values(options.set, "set"), "set")
    if "seed" in fields:
        raise InputError("set", "seed", "seeds have their own flag, --seeds")
    configs = []
    for table in options.table:
        configs += ucl.paper.grid(table, seeds=options.seeds or range(3), **fields)
    for file in options.config:
        runs = grid(file)
        if options.seeds:
            runs = [config.replace(seed=seed) for seed in options.seeds for config in runs]
        configs += [config.replace(**fields) for config in runs]
    return shard(configs, *options.shard)


def sweep(options: argparse.Namespace) -> int:
    """Measure the runs of a grid that have no record in the store; returns 1 if some failed."""
    configs = _grid(options)
    from ucl.sweeps.sweep import SweepError
    from ucl.sweeps.sweep import sweep as measure
    from ucl.sweeps.workers import dask_executor

    names = ("jobs", "device", "threads", "graphs", "curves")
    settings = {name: getattr(options, name) for name in names}
    try:
        scheduler = nullcontext() if options.scheduler is None else dask_executor(options.scheduler)
        with scheduler as executor, log_messages(show_note):
            records = measure(configs, options.store, executor, root=options.data, **settings)
    except SweepError as error:
        print(f"ucl sweep: {error}", file=sys.stderr)
        return 1
    failed = failures(records)
    print(f"all {len(configs)} runs are in {options.store}" + (f"; {failed}" if failed else ""))
    return 0


def status(options: argparse.Namespace) -> int:
    """Print which runs of a grid are in a store; returns 1 if some are missing."""
    configs = _grid(options)
    RecordStore(options.store)  # raises an InputError, before the imports, if it is not a folder
    from ucl.cli.printing import progress
    from ucl.sweeps.progress import status as progress_of

    table = progress_of(configs, options.store, options.device, options.data)
    print(progress(table))
    print(f"{table['measured'].sum()} of {table['runs'].sum()} runs are in {options.store}")
    return int(table["measured"].sum() < table["runs"].sum())


def _records(options: argparse.Namespace) -> pd.DataFrame:
    """The records of a store that --where selects.

    Raises:
        InputError: there is no such folder, it has no records, or the conditions cannot be used or select none.
    """
    if not RecordStore(options.store).folder.is_dir():  # raises an InputError if it is a file
        raise InputError("store", options.store, "no such folder; give one that ucl run or ucl sweep wrote to")
    records = load_records(options.store)
    if records.empty:
        raise InputError("store", options.store, "has no record; give a folder that ucl run or ucl sweep wrote to")
    return ucl.where(records, *options.where)


def results(options: argparse.Namespace) -> int:
    """Print the records of a store, averaged over their seeds."""
    records = _records(options)
    from ucl.cli import printing
    from ucl.evidence import averages, tables

    measures = list(dict.fromkeys(options.measure or averages.METRICS))
    table = averages.results(records, options.by, measures)
    files = tables.save(table, options.output) if options.output else []  # before any output, which may fail
    lines = [printing.averages(table, options.by, measures)]
    if any(map(averages.is_time, measures)):
        lines += printing.mixed_machines(records, options.by)
    print(*lines, *files, sep="\n")
    return 0


def compare(options: argparse.Namespace) -> int:
    """Print the paired differences of two methods."""
    records = _records(options)
    from ucl.cli import printing
    from ucl.evidence import paired, tables

    table = paired.compare(records, options.first, options.second, list(dict.fromkeys(options.measure or ("A", "F"))))
    files = tables.save(table, options.output) if options.output else []  # before any output, which may fail
    print(printing.differences(table), *files, sep="\n")
    return 0


def plot(options: argparse.Namespace) -> int:
    """Draw a picture of the records of a store and print its path."""
    records = _records(options)
    import matplotlib

    matplotlib.use("Agg")  # No window is opened, and none is needed.
    from ucl.plots import save

    print(save(ucl.plot(records, options.picture, options.against), options.output or f"{options.picture}.png"))
    return 0


def reproduce(options: argparse.Namespace) -> int:
    """Execute notebooks with papermill; returns 1 if some failed."""
    from ucl.reproduction.batch import reproduce as execute

    outcomes = execute(options.notebook, _values(options.parameter, "parameter"), options.output, options.jobs)
    for outcome in outcomes:
        print(f"{outcome.name:32} {outcome.seconds:6.0f} s  {outcome.error or 'done'}")
    print(Path(options.output) / "index.html")
    return int(any(outcome.error for outcome in outcomes))


def benchmark(options: argparse.Namespace) -> int:
    """Measure, write tables and a picture, and print a summary."""
    from ucl.machine.files import try_writing

    try_writing(Path(options.output).parent)  # before minutes of measurements
    import torch

    from ucl.benchmarks import measure, report, updates
    from ucl.machine.hardware import resolve_device
    from ucl.records.record import processor_of

    others = ("command", "verb", "output", "data")
    given = {name: value for name, value in vars(options).items() if name not in others}
    table = measure.benchmark(**given, root=options.data)
    files = [*report.write(table, options.output), f"{options.output}_updates.csv"]
    facts = table.iloc[0]
    torch.set_num_threads(int(facts["threads"]))  # `measure.benchmark` has restored the number from before it.
    times = updates.update_times(device=resolve_device(given.get("device", "auto")))
    of_machine = times.assign(processor=processor_of(facts.to_dict()), threads=facts["threads"])
    of_machine.to_csv(files[-1], index=False, float_format="%.3g")
    print(
        report.summary(table), "memory update without scoring:", times.round(2).to_string(index=False), *files, sep="\n"
    )  # at the end, as it fails on a closed pipe
    return 0


def data_list(options: argparse.Namespace) -> int:
    """Print the data sets known by name, with their files."""
    print(f"data folder: {ucl.datasets.data_folder(options.data)}")
    print(f"{'name':16} {'classes':>7} {'pixels':>7}  {'source':16} here")
    for row in ucl.datasets.available(options.data):
        here = row.where or f"no: ucl data get {row.name}"
        print(f"{row.name:16} {row.classes:7} {row.image_size:7}  {row.source:16} {here}")
    print(texts.OTHER_DATA)
    return 0


def data_check(options: argparse.Namespace) -> int:
    """Print the contents of data sets, which are downloaded first if they are not here.

    All data sets are read, also after one that cannot be used; returns 2 if there was such a one.
    """
    from ucl.cli.printing import contents

    code = 0
    for name in options.dataset:
        try:
            print(contents(ucl.datasets.check(name, options.data, options.image_size)))
        except InputError as error:
            code = refuse(options.verb.prog, as_typed(error, options.verb))
    return code
