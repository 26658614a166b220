"""The command `ucl`: runs, sweeps, data sets. Its flags are made from `Config`, so that they never differ from it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd

import ucl
from ucl.config import Config, InputError
from ucl.records import Record, RecordStore
from ucl.sweep import SweepError, dask_executor, duration, shard, status, sweep

_RUN = """Learn a stream of images once, task after task, and measure what is remembered.

A record of the run (accuracy matrix, memory contents, timings, versions, data fingerprint) is written to the store; a
run that is there already is not run again."""

_EXAMPLES = """examples:
  ucl run                                              the paper's method on digits, in half a minute
  ucl run --dataset bloodcell --memory-size 160        BloodCell, Bregman Information, bottom-k
  ucl run --dataset cifar10 --population reservoir     experience replay (ER)
  ucl run --dataset cifar10 --population class-balanced  class-balancing reservoir sampling (CBR)
  ucl run --dataset path/to/folder --score mine:score  your images, your score
  ucl run --config runs/some-record.json --seed 7      the run of a record, with another seed"""


_SWEEP = """Measure the runs behind the paper's tables, or runs of your own, that the store lacks.

Each run writes its record as it ends. Stopped at any moment, the same command goes on where it was; started several
times on one folder, on one machine or many, the sweeps divide the runs between them.

tables:
{tables}"""

_SWEEP_EXAMPLES = """examples:
  ucl sweep bloodcell --seeds 0 1 2                    the BloodCell columns of Table 3, 60 runs, one after another
  ucl sweep table1 table2 --jobs 4                     four worker processes, a share of the cores each
  ucl sweep --config mine.json --seeds 0 1 2           your own: [{"dataset": "path/to/folder", "score": "mine:score"}]
  ucl status table1                                    what is there, what is missing and what it would cost

a SLURM job array, each job a twentieth of the table, all records in one shared folder:
  ucl data get cifar10 --data /shared/data             once, so that the jobs need no download
  sbatch --array=1-20 --cpus-per-task=4 --time=04:00:00 --wrap 'ucl sweep table1 \\
      --shard $SLURM_ARRAY_TASK_ID/20 --threads 4 --store /shared/runs --data /shared/data'
  A job that was stopped is submitted again with the same line. In a Kubernetes indexed job, which counts from 0:
  --shard $((JOB_COMPLETION_INDEX + 1))/20

workers of dask, on any machines that share the folders (python -m pip install distributed):
  dask scheduler                                       prints tcp://host:8786
  dask worker tcp://host:8786 --nworkers 8 --nthreads 1  on each machine
  ucl sweep table1 --scheduler tcp://host:8786 --store /shared/runs --data /shared/data

exit codes: 0 all runs are there, 1 some failed (each is named, the others are kept), 2 wrong input, 130 interrupted"""

_STATUS = """How much of a sweep the store holds: a line for each data set, memory size and method.

Beside what is missing stands what it would take here, one run after another, judging by the store's records from such
a processor and device that cost alike; "unknown" where there is none yet."""

_STATUS_EXAMPLES = """examples:
  ucl status table1 --store figures/runs
  ucl status table3 --shard 2/20 --store /shared/runs  the part of one job of an array

exit codes: 0 all runs are there, 1 some are missing, 2 wrong input"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SystemExit(_refuse(self.prog, message))


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=110)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    parser = _parser()
    options = parser.parse_args(arguments)
    warnings.showwarning = lambda message, *_, **__: print(f"ucl: {message}", file=sys.stderr)
    try:
        return options.command(options)
    except InputError as error:
        name = f"--{error.name.replace('_', '-')} {error.value}: " if error.name else ""
        return _refuse(f"ucl {options.verb}", name + error.reason)
    except KeyboardInterrupt:
        print(f"ucl {options.verb}: interrupted; what was finished is kept", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"ucl {options.verb}: {error}", file=sys.stderr)
        return 1


def _refuse(who: str, message: str) -> int:
    print(f"{who}: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="ucl", description=ucl.__doc__, formatter_class=_Help)
    parser.add_argument("--version", action="version", version=f"ucl {ucl.__version__}")
    verbs = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    run = verbs.add_parser(
        "run", help="one run, one record", description=_RUN, epilog=_EXAMPLES, formatter_class=_Help, allow_abbrev=False
    )
    run.set_defaults(command=_run, verb="run")
    _add_config_flags(run.add_argument_group("the experiment"))
    where = run.add_argument_group("where and how")
    where.add_argument("--config", metavar="FILE", help="start from a JSON file of fields, or from a record's run")
    where.add_argument("--published-code", action="store_true", help="all choices of the published implementation")
    where.add_argument("--store", default="runs", metavar="DIR", help="folder of the records (default: %(default)s)")
    _add_machine_flags(where)

    sweep = _add_grid_verb(
        verbs, "sweep", _sweep, "many runs: a table of the paper, or your own", _SWEEP, _SWEEP_EXAMPLES
    )
    sweep.add_argument("--jobs", type=_count, default=1, metavar="N", help="runs at a time (default: %(default)s)")
    sweep.add_argument("--scheduler", metavar="ADDRESS", help="run on the workers of a dask scheduler: tcp://host:port")
    _add_machine_flags(sweep)
    status = _add_grid_verb(verbs, "status", _status, "what of a sweep is there", _STATUS, _STATUS_EXAMPLES)
    status.add_argument("--device", default="auto", help="where the missing runs would compute (default: %(default)s)")

    data = verbs.add_parser("data", help="the data sets", description="The data sets.", formatter_class=_Help)
    actions = data.add_subparsers(required=True, metavar="ACTION", parser_class=_Parser)
    for name, command, text in (
        ("list", _data_list, "the data sets known by name, and which are here"),
        ("get", _data_check, "download what is not here, checksummed, and tell what is in it"),
        ("check", _data_check, "read data sets whole and tell what is in them"),
    ):
        action = actions.add_parser(name, help=text, description=text.capitalize() + ".", formatter_class=_Help)
        action.set_defaults(command=command, verb=f"data {name}")
        if name != "list":
            action.add_argument("dataset", nargs="+", help="a name, or a path to an .npz or a folder of class folders")
        _add_data_flag(action)
    return parser


def _add_grid_verb(verbs: Any, name: str, command: Any, text: str, description: str, epilog: str) -> Any:
    tables = "\n".join(f"  {table:12} {what}" for table, what in ucl.paper.GRIDS.items())
    description = description.replace("{tables}", tables)
    parser = verbs.add_parser(
        name, help=text, description=description, epilog=epilog, formatter_class=_Help, allow_abbrev=False
    )
    parser.set_defaults(command=command, verb=name)
    parser.add_argument("table", nargs="*", help=f"any of {', '.join(ucl.paper.GRIDS)}")
    parser.add_argument(
        "--config",
        nargs="+",
        default=[],
        metavar="FILE",
        help="runs of your own: a JSON list of Config fields, or a record",
    )
    parser.add_argument(
        "--seeds",
        nargs="+",
        type=_integer,
        metavar="N",
        help="seeds of each run (default: 0 1 2; with --config the files' own)",
    )
    parser.add_argument(
        "--shard", type=_shard, default=(1, 1), metavar="I/N", help="only the I-th of N equal parts, the first being 1"
    )
    parser.add_argument("--store", default="runs", metavar="DIR", help="folder of the records (default: %(default)s)")
    return parser


def _add_data_flag(parser: Any) -> None:
    parser.add_argument("--data", metavar="DIR", help="folder of the data sets (default: $UCL_DATA, else ~/.cache/ucl)")


def _add_machine_flags(parser: Any) -> None:
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, …; auto takes a GPU where there is one")
    parser.add_argument("--threads", type=_count, metavar="N", help="processor threads a run (default: all cores)")
    _add_data_flag(parser)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text}: give a whole number from 1 to 1024")
    return int(text)


def _shard(text: str) -> tuple[int, int]:
    i, slash, n = text.partition("/")
    if not (slash and i.isdecimal() and n.isdecimal() and 1 <= int(i) <= int(n)):
        raise argparse.ArgumentTypeError(f"{text}: give I/N with I from 1 to N, such as 3/20")
    return int(i), int(n)


def _add_config_flags(group: Any) -> None:
    for field in dataclasses.fields(Config):
        flag = f"--{field.name.replace('_', '-')}"
        text = field.metadata["help"]
        if field.metadata["choices"]:
            text += ". " + "; ".join(f"{k}: {v}" if v else k for k, v in field.metadata["choices"].items())
        if field.default is not None:
            text += f" (default: {field.default})"
        text = text.replace("%", "%%")
        kind = str(field.type).removesuffix(" | None")
        if kind == "bool":
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            metavar = {"int": "N", "float": "X", "str": "NAME"}[kind]
            group.add_argument(
                flag, type={"int": _integer, "float": _number, "str": str}[kind], metavar=metavar, help=text
            )


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None


def _config(options: argparse.Namespace) -> Config:
    given = {f.name: getattr(options, f.name) for f in dataclasses.fields(Config)}
    given = {name: value for name, value in given.items() if value is not None}
    base: dict[str, Any] = {}
    if options.config:
        base, *others = _read_fields(options.config)
        if others:
            raise InputError(
                "config", options.config, f"holds {1 + len(others)} runs; run them with ucl sweep --config"
            )
    if options.published_code:
        base = {**base, **ucl.paper.PUBLISHED_CODE}
    return Config.from_json(json.dumps({**base, **given}))


def _read_fields(file: str) -> list[dict[str, Any]]:
    """The `Config` fields of each run that a JSON file names: a list of objects, one object, or a record."""
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError("config", file, f"can't be read as JSON ({error})") from None
    found = found if isinstance(found, list) else [found]
    if not found or not all(isinstance(fields, dict) for fields in found):
        raise InputError("config", file, "give a JSON object of Config fields, a list of them, or a record")
    return [fields.get("config", fields) for fields in found]


def _grid(options: argparse.Namespace) -> list[Config]:
    """The runs that a sweep or its status is about."""
    if not options.table and not options.config:
        raise InputError("", None, f"name a table ({', '.join(ucl.paper.GRIDS)}), or give --config FILE")
    configs = []
    for table in options.table:
        try:
            configs += ucl.paper.grid(table, seeds=options.seeds or range(3))
        except InputError as error:
            if error.name != "table":
                raise
            raise InputError("", table, f"{table}: {error.reason}") from None
    for file in options.config:
        for fields in _read_fields(file):
            try:
                config = Config.from_json(json.dumps(fields))
                configs += [config.replace(seed=seed) for seed in options.seeds or [config.seed]]
            except InputError as error:
                raise InputError("config", file, str(error)) from None
    return shard(configs, *options.shard)


def _sweep(options: argparse.Namespace) -> int:
    configs = _grid(options)
    if options.scheduler and options.jobs != 1:
        raise InputError("jobs", options.jobs, "the scheduler's workers decide how many run at a time; leave this out")
    sys.path.insert(0, "")  # a score of the user's own lies in the working folder
    where: dict[str, Any] = dict(device=options.device, root=options.data, threads=options.threads)
    before = signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # a job that is cancelled leaves no claims behind
    try:
        with dask_executor(options.scheduler) if options.scheduler else nullcontext() as workers:
            sweep(configs, options.store, workers, options.jobs, **where)
    except SweepError as error:
        print(f"ucl sweep: {error}", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)
    print(f"all {len(configs)} runs are in {options.store}")
    return 0


def _status(options: argparse.Namespace) -> int:
    table = status(_grid(options), options.store, options.device)
    print(f"{'dataset':16} {'memory':>6}  {'method':16} {'measured':>9}  missing")
    for row in table.itertuples():
        memory = "" if pd.isna(row.memory_size) else row.memory_size
        seeds = " ".join(map(str, sorted(set(row.missing))))
        missing = f"seeds {seeds}: {_cost(row.seconds)}" if row.missing else ""
        counts = f"{row.measured} of {row.runs}"
        print(f"{row.dataset:16} {memory:>6}  {row.label:16} {counts:>9}  {missing}".rstrip())
    runs, measured = table["runs"].sum(), table["measured"].sum()
    unknown = table.loc[table["seconds"].isna(), "missing"].map(len).sum()
    known = runs - measured - unknown
    cost = f"; {known} of the others would take {_cost(table['seconds'].sum())} here" if known else ""
    cost += f"; of {unknown} the cost is unknown" if unknown else ""
    print(f"{measured} of {runs} runs are in {options.store}{cost}")
    return int(measured < runs)


def _cost(seconds: float) -> str:
    return "unknown" if pd.isna(seconds) else f"about {duration(seconds)}"


def _run(options: argparse.Namespace) -> int:
    import torch

    config = _config(options)
    sys.path.insert(0, "")  # a score of the user's own lies in the working folder
    store = RecordStore(options.store)
    if config in store:
        record = store.load(config)
        print(f"measured already on {record.date[:10]}; delete the record to measure anew")
    else:
        store.check_writable()
        if options.threads:
            torch.set_num_threads(options.threads)
        record = ucl.run(config, device=options.device, root=options.data)
        store.save(record)
    print(summary(record))
    print(store.path(config))
    return 0


def summary(record: Record) -> str:
    """A run's result in a few lines, for a terminal."""
    config = record.config
    memory = "" if config.method == "finetune" else f", memory {config.memory_size}"
    lines = [
        f"{config.dataset}, {config.n_tasks} tasks{memory}, {config.label}, seed {config.seed}",
        "accuracy in per cent on each task (columns) after each task (rows):",
        *(" ".join("     ." if a != a else f"{100 * a:6.1f}" for a in row) for row in record.accuracy),
        f"last accuracy {100 * record.last_accuracy:.1f} %"
        + (" (balanced)" if config.balanced_accuracy else "")
        + f", last forgetting {100 * record.last_forgetting:.1f} %",
        f"{record.timing['total']:.1f} s, {1000 * record.seconds_per_batch:.1f} ms a batch, "
        f"peak memory {record.environment['peak_memory_mib']} MiB",
    ]
    return "\n".join(lines)


def _data_list(options: argparse.Namespace) -> int:
    print(f"data folder: {ucl.datasets.data_folder(options.data)}")
    print(f"{'name':16} {'classes':>7} {'pixels':>7}  {'source':16} here")
    for row in ucl.datasets.available(options.data):
        here = row.where or f"no: ucl data get {row.name}"
        print(f"{row.name:16} {row.classes:7} {row.image_size:7}  {row.source:16} {here}")
    print(
        "-lt after a name makes it long-tailed; a path to an .npz in MedMNIST's layout or to a folder of class folders"
    )
    print("works wherever a name does.")
    return 0


def _data_check(options: argparse.Namespace) -> int:
    for name in options.dataset:
        facts = ucl.datasets.check(name, options.data)
        print(", ".join(f"{key} {value}" for key, value in facts.items() if value != 0))
    return 0
