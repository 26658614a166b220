"""The verbs of the command `ucl`: functions from parsed options (`ucl.cli.parser`) to an exit code.

Their docstrings are the help of the command. They import torch and pandas themselves, so that help and most wrong
input are answered at once.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import ucl
from ucl import naming
from ucl.cli import printing, texts
from ucl.config import Config
from ucl.errors import MOST_AT_ONCE, InputError, one_of, whole_number
from ucl.evidence.paper import GRIDS
from ucl.fields import FIELDS, known_fields
from ucl.machine.files import check_writable
from ucl.machine.terminal import log_messages, show_note
from ucl.records import RecordStore, failures, load_records
from ucl.records.store import report, report_missing_files
from ucl.sweeps.grid import from_yaml, grid, shard

if TYPE_CHECKING:
    import pandas as pd


def run(options: argparse.Namespace) -> int:
    """Measure one run: accuracy and forgetting on a stream of images, each seen once, task after task.

    An incomplete last batch of a task is dropped. If it has more than a tenth of the task's images, a line says so.

    A record of the run (accuracy matrix, memory contents, timings, versions, data fingerprint) is written to the store.
    A run that already has a record there is not repeated.
    """
    given = {name: value for name, value in vars(options).items() if name in FIELDS and value is not None}
    start, *others = grid(options.config) if options.config else [Config()]
    if others:
        raise InputError("config", options.config, f"has {1 + len(others)} runs; run them with ucl sweep --config")
    config = start.replace(**{**(naming.PUBLISHED_CODE if options.published_code else {}), **given})
    for name in sorted(given.keys() & config.idle.keys()):
        if name != "score" or not naming.score_is_unused(config):  # `ucl.run` warns of the score.
            show_note(naming.no_effect(config, name))
    store = RecordStore(options.store, options.data)
    stored, is_new = store.lookup(config), False
    report([stored])
    files = {"weights": options.weights, "predictions": options.predictions}
    if stored.record is None:
        import torch

        from ucl.sweeps.one_run import measure_once
        from ucl.sweeps.sweep import check_inputs

        check_inputs([config], options.data)
        check_writable(store=store.folder, **files)
        if options.threads:
            torch.set_num_threads(options.threads)
        settings = dict(device=options.device, root=options.data, graphs=options.graphs, **files)
        with log_messages(show_note):
            stored, is_new = measure_once(store, config, **settings)
    if stored.record is None:
        reason = "another process is measuring this run there; wait for it, or give another folder"
        raise InputError("store", options.store, reason)
    if not is_new:
        print(f"already measured on {stored.record.date[:10]}; delete the record to measure again")
        report_missing_files([stored], **files)
    print(stored.record)
    print(stored.path)
    return 0


def _grid(options: argparse.Namespace) -> list[Config]:
    """The runs of a sweep, from the command line of `sweep` or `status`."""
    if not options.table and not options.config:
        raise InputError("", None, f"name a table ({', '.join(GRIDS)}), or give --config FILE")
    fields = known_fields({name: from_yaml(text, name) for name, text in options.set}, "set")
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
    """Measure many runs: those of the paper's tables, or your own, that have no record in the store yet.

    Each run writes its record when it ends. A sweep that was stopped at any moment continues with the same command.
    Several sweeps on one folder, on one machine or many, divide the runs between them: a run that another process is
    measuring is skipped, tried once more at the end, and otherwise reported. Each run reads its images again: shrink
    large photos first.
    """
    configs = _grid(options)
    from ucl.sweeps.sweep import SweepError
    from ucl.sweeps.sweep import sweep as measure

    names = ("jobs", "device", "threads", "graphs", "weights", "predictions")
    settings = {name: getattr(options, name) for name in names}
    try:
        with log_messages(show_note):
            records = measure(configs, options.store, root=options.data, **settings)
    except SweepError as error:
        print(f"ucl sweep: {error}", file=sys.stderr)
        return 1
    failed = failures(records)
    print(f"all {len(configs)} runs are in {options.store}" + (f"; {failed}" if failed else ""))
    return 0


def status(options: argparse.Namespace) -> int:
    """Show the progress of a sweep: one line per data set, memory size and method.

    It lists the seeds that a process is measuring now (locked), those without a record (missing), and about how long
    the missing runs would take here, one after another (left). The time is estimated from the measured runs of the same
    line on the same processor (the GPU, or the CPU of a run without one); "unknown" if there are none.
    """
    configs = _grid(options)
    RecordStore(options.store)  # raises an InputError, before the imports, if it is not a folder
    from ucl.sweeps.progress import status as progress_of

    table = progress_of(configs, options.store, options.device, options.data)
    print(printing.progress(table))
    print(f"{table['measured'].sum()} of {table['runs'].sum()} runs are in {options.store}")
    return int(table["measured"].sum() < table["runs"].sum())


def _records(options: argparse.Namespace) -> pd.DataFrame:
    """The records of a store that --where selects.

    Raises:
        InputError: there is no such folder, it has no records, or the conditions cannot be used or select none.
    """
    records = load_records(options.store)
    if records.empty:
        raise InputError("store", options.store, "has no record; give a folder in which a run has ended")
    return ucl.where(records, *options.where)


def results(options: argparse.Namespace) -> int:
    """Show the records of a store as a table: mean and sample standard deviation over n seeds.

    Runs are averaged over seeds and over nothing else: runs with other settings, images or versions of your own objects
    have rows of their own. Runs that diverged do not enter a mean and are counted under left_out.
    """
    records = _records(options)
    from ucl.evidence import averages, tables

    table = averages.results(records, options.by, options.measure or averages.METRICS)
    files = [tables.save(table, options.output)] if options.output else []  # before any output, which may fail
    print(printing.averages(table, options.by), *files, sep="\n")
    return 0


def compare(options: argparse.Namespace) -> int:
    """Compare two methods: the mean difference, first minus second, over pairs of runs, with its 95 % interval.

    FIRST and SECOND are filters, each of pairs separated by spaces, or a query. Each must select one method. The runs
    of a pair share the stream (data set, images, memory size, tasks) and the seed. A field of the stream that both
    filters name may differ, except the data set. Over several streams each has the same weight.
    """
    records = _records(options)
    from ucl.evidence import paired, tables

    table = paired.compare(records, options.first, options.second, options.measure or ("A", "F"))
    files = [tables.save(table, options.output)] if options.output else []  # before any output, which may fail
    print(printing.differences(table), *files, sep="\n")
    return 0


def plot(options: argparse.Namespace) -> int:
    """Draw a picture of the records of a store.

    Methods have the same order and colours in every picture. All pictures but differences show one data set and memory
    size, and one setting per method; confusion shows one method.
    """
    import matplotlib
    from matplotlib.backend_bases import FigureCanvasBase

    file = options.output or f"{options.picture}.png"
    one_of("output", Path(file).suffix[1:].lower(), FigureCanvasBase.get_supported_filetypes(), "format of a picture")
    records = _records(options)
    matplotlib.use("Agg")  # No window is opened, and none is needed.
    from ucl.plots import save

    print(save(ucl.plot(records, options.picture, options.against), file))
    return 0


def reproduce(options: argparse.Namespace) -> int:
    """Execute notebooks with papermill, one process each, and write HTML pages.

    If a notebook fails, its error is reported, and the others continue. Parameters that a notebook does not have are
    refused. The folders -p store and -p output are relative to the working folder.
    """
    from ucl.reproduction.batch import reproduce as execute

    parameters = {name: from_yaml(text, name) for name, text in options.parameter}
    outcomes = execute(options.notebook, parameters, options.output, options.jobs)
    for outcome in outcomes:
        print(f"{outcome.name:32} {outcome.seconds:6.0f} s  {outcome.error or 'done'}")
    print(Path(options.output) / "index.html")
    return int(any(outcome.error for outcome in outcomes))


def benchmark(options: argparse.Namespace) -> int:
    """Measure the milliseconds per batch of each method, by part, and whole runs per hour."""
    check_writable(output=Path(options.output).parent)  # before minutes of measurements
    from ucl.benchmarks import measure
    from ucl.report.costs import by_part

    given = {k: v for k, v in vars(options).items() if k not in ("command", "verb", "output", "data", "jobs")}
    for n in options.jobs:
        whole_number("jobs", n, 1, MOST_AT_ONCE)
    if options.jobs and "dataset" not in given:
        raise InputError("dataset", None, "whole runs need images: give --dataset with --jobs")
    table, file = measure.benchmark(**given, root=options.data), f"{options.output}.csv"
    table.to_csv(file, index=False, float_format="%.5g")
    print(by_part(table).to_string(index=False, na_rep="", float_format="%.1f"))
    facts = table.iloc[0]
    print(f"scoring in {facts['scoring_precision']}, threads: {facts['threads']}, load {facts['load']:g} at the start")
    print(file)
    if options.jobs:
        settings = {name: value for name, value in given.items() if name not in ("repeats", "threads")}
        runs, file = measure.runs_per_hour(options.jobs, root=options.data, **settings), f"{options.output}_runs.csv"
        runs.to_csv(file, index=False, float_format="%.5g")
        print(runs.loc[:, :"dataset"].round(1).to_string(index=False), file, sep="\n")
    return 0


def data_list(options: argparse.Namespace) -> int:
    """List the data sets known by name, and their files."""
    print(f"data folder: {ucl.datasets.data_folder(options.data)}")
    print(f"{'name':16} {'classes':>7} {'pixels':>7}  {'source':16} here")
    for row in ucl.datasets.available(options.data):
        here = row.where or f"no: ucl data check {row.name} downloads it"
        print(f"{row.name:16} {row.classes:7} {row.image_size:7}  {row.source:16} {here}")
    print(texts.OTHER_DATA)
    return 0


def data_check(options: argparse.Namespace) -> int:
    """Read data sets completely and show their contents; those not here yet are downloaded first, checksummed."""
    code = 0
    for name in options.dataset:
        try:
            print(printing.contents(ucl.datasets.check(name, options.data, options.image_size)))
        except InputError as error:
            code = printing.refuse(options.verb, error)
    return code
