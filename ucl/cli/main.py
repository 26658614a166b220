"""The command `ucl`: its verbs, flags and help. The flags of a run are made from `Config`, never written twice."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ucl
from ucl.cli.arguments import Parameter, Parser, count, integer, number, refuse, shard
from ucl.errors import InputError, Stopped, UserExit

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
  ucl sweep table1 table2 --jobs 4                     four worker processes, a share of the cores each, or of the GPU
  ucl sweep --config mine.json --seeds 0 1 2           your own: [{"dataset": "path/to/folder", "score": "mine:score"}]
  ucl sweep table3 --set refresh 2                     with fewer scores a batch: the other choices of a run as well
  ucl status table1                                    what is there, what is missing and what it would cost

a SLURM job array, each job a twentieth of the table, all records in one shared folder:
  ucl data get cifar10 --data /shared/data             once, so that the jobs need no download
  sbatch --array=1-20 --cpus-per-task=4 --time=04:00:00 --wrap 'ucl sweep table1 \\
      --shard $SLURM_ARRAY_TASK_ID/20 --threads 4 --store /shared/runs --data /shared/data'
  A job that was stopped is submitted again with the same line. In a Kubernetes indexed job, which counts from 0:
  --shard $((JOB_COMPLETION_INDEX + 1))/20

workers of dask, on any machines that share the folders (python -m pip install distributed); 10.0.0.1
and 10.0.0.2 stand for the scheduler's and a worker machine's address in your private network:
  dask scheduler --host 10.0.0.1 --no-dashboard        listens at this address alone, on port 8786
  dask worker tcp://10.0.0.1:8786 --host 10.0.0.2 --nworkers 8 --nthreads 1 --no-dashboard  on each machine
  ucl sweep table1 --scheduler tcp://10.0.0.1:8786 --store /shared/runs --data /shared/data
  Whoever reaches the scheduler or a worker can make the workers execute any code. Use a network whose every user you
  trust, or TLS: tls://10.0.0.1:8786, with the certificates that dask's configuration names on all machines.

Without a terminal, as in the log of a job, a line says of each run as it ends what it gave and what is left.

exit codes: 0 all runs are there, 1 some failed (each is named, the others are kept), 2 wrong input, 130 interrupted,
143 ended by SIGTERM, as when a job is cancelled"""

_STATUS = """How much of a sweep the store holds: a line for each data set, memory size and method.

Beside what is missing stands what it would take here, one run after another, judging by the store's records from such
a processor and device that cost alike; "unknown" where there is none yet."""

_STATUS_EXAMPLES = """examples:
  ucl status table1 --store figures/runs
  ucl status table3 --shard 2/20 --store /shared/runs  the part of one job of an array

exit codes: 0 all runs are there, 1 some are missing, 2 wrong input"""


_REPRODUCE = """Execute notebooks through papermill, a process each, and write pages to browse.

A notebook that fails is named with its cell and error; the others go on. Parameters that a notebook does not have are
refused."""

_REPRODUCE_EXAMPLES = """examples:
  ucl reproduce                                        all notebooks, pages in reproduced/index.html
  ucl reproduce table1_cifar10 claims --jobs 2         two of them, at a time
  ucl reproduce table1_cifar10 -p compute true         measure what has no record yet
  ucl reproduce -p profile smoke table1_cifar10        a minute of real training on digits

exit codes: 0 all ran to their end, 1 some failed, 2 wrong input, 130 interrupted, 143 ended by SIGTERM"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 done, 1 failed, 2 wrong input, 130 or 143 interrupted or ended."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser(arguments[0] if arguments else "").parse_args(arguments)
    warnings.showwarning = lambda message, *_, **__: print(f"ucl: {message}", file=sys.stderr)
    who = options.verb.prog
    absent = _absent_folders(options)
    try:
        with _stopped_by_signals():
            return options.command(options)
    except InputError as error:
        for folder in absent:
            with suppress(OSError, ValueError):  # not made after all, in use by another process, or no name of a folder
                folder.rmdir()
        return refuse(who, _as_typed(error, options.verb) + error.reason)
    except Stopped as stop:
        how = "interrupted" if stop.signal == signal.SIGINT else "ended by SIGTERM"
        print(f"{who}: {how}; what was finished is kept", file=sys.stderr)
        return 128 + stop.signal
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, UserExit) as error:
        print(f"{who}: {error}", file=sys.stderr)
        return 1


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Raise `Stopped` on Ctrl-C, and on the SIGTERM of a job that is cancelled, so that all is left in order."""

    def stop(number: int, _: Any) -> None:
        # A second Ctrl-C ends it at once; a second SIGTERM changes nothing, as some schedulers send several.
        signal.signal(number, signal.SIG_DFL if number == signal.SIGINT else signal.SIG_IGN)
        raise Stopped(number)

    if threading.current_thread() is not threading.main_thread():  # only there does Python allow it
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _absent_folders(options: argparse.Namespace) -> list[Path]:
    """Where a verb is to write, what does not exist yet, the innermost first: wrong input leaves none of it behind."""
    places = [Path(getattr(options, name)) for name in ("store", "output") if hasattr(options, name)]
    return [folder for place in places for folder in (place, *place.parents) if not os.path.exists(folder)]


def _as_typed(error: InputError, verb: argparse.ArgumentParser) -> str:
    """A refused value as it was typed, after its flag or alone; under its name where it was not typed at all."""
    if not error.name:
        return ""
    flags = {action.dest: action.option_strings[:1] for action in verb._actions}
    return " ".join([*flags.get(error.name, [error.name]), str(error.value)]) + ": "


def _parser(asked: str) -> argparse.ArgumentParser:
    """The parser of the whole command; of the verbs, only the one that was asked for knows its flags."""
    parser = Parser(prog="ucl", description=ucl.__doc__)
    parser.add_argument("--version", action="version", version=f"ucl {ucl.__version__}")
    verbs = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    for name, (text, add) in _VERBS.items():
        if name == asked:
            add(lambda text=text, name=name, **how: verbs.add_parser(name, help=text, **how))
        else:
            verbs.add_parser(name, help=text)
    return parser


def _verb(parser: argparse.ArgumentParser, command: str) -> None:
    """Let a parser's options be answered by a function of `ucl.cli.commands`, imported when it is called."""

    def answer(options: argparse.Namespace) -> int:
        return getattr(importlib.import_module("ucl.cli.commands"), command)(options)

    parser.set_defaults(command=answer, verb=parser)


def _add_run(add_parser: Callable) -> None:
    run = add_parser(description=_RUN, epilog=_EXAMPLES)
    _verb(run, "run")
    _add_config_flags(run.add_argument_group("the experiment"))
    where = run.add_argument_group("where and how")
    where.add_argument("--config", metavar="FILE", help="start from a JSON file of fields, or from a record's run")
    where.add_argument("--published-code", action="store_true", help="all choices of the reference implementation")
    where.add_argument("--store", default="runs", metavar="DIR", help="folder of the records (default: %(default)s)")
    _add_machine_flags(where)


def _add_sweep(add_parser: Callable) -> None:
    sweep = _add_grid_verb(add_parser, "sweep_grid", _SWEEP, _SWEEP_EXAMPLES)
    sweep.add_argument("--jobs", type=count, default=1, metavar="N", help="runs at a time (default: %(default)s)")
    sweep.add_argument("--scheduler", metavar="ADDRESS", help="run on the workers of a dask scheduler: tcp://host:port")
    _add_machine_flags(sweep)


def _add_status(add_parser: Callable) -> None:
    status = _add_grid_verb(add_parser, "status_of_grid", _STATUS, _STATUS_EXAMPLES)
    status.add_argument("--device", default="auto", help="where the missing runs would compute (default: %(default)s)")
    _add_data_flag(status)


def _add_reproduce(add_parser: Callable) -> None:
    reproduce = add_parser(description=_REPRODUCE, epilog=_REPRODUCE_EXAMPLES)
    _verb(reproduce, "reproduce_notebooks")
    reproduce.add_argument("notebook", nargs="*", help="names or paths of notebooks (default: all)")
    reproduce.add_argument(
        "-p",
        "--parameter",
        nargs=2,
        action=Parameter,
        default=[],
        metavar=("NAME", "VALUE"),
        help="a value for the notebooks' cell of parameters, in YAML: -p seeds '[0, 1]' -p compute true",
    )
    reproduce.add_argument("--jobs", type=count, default=1, metavar="N", help="notebooks at a time (default: 1)")
    reproduce.add_argument("--output", default="reproduced", metavar="DIR", help="for the pages (default: %(default)s)")


def _add_benchmark(add_parser: Callable) -> None:
    from ucl.benchmarks.report import add_arguments, command

    benchmark = add_parser(description="Measure the milliseconds per batch of each method, by part.")
    benchmark.set_defaults(command=command, verb=benchmark)
    add_arguments(benchmark)


def _add_data(add_parser: Callable) -> None:
    actions = add_parser(description="The data sets.").add_subparsers(
        required=True, metavar="ACTION", parser_class=Parser
    )
    for name, command, text in (
        ("list", "data_list", "the data sets known by name, and which are here"),
        ("get", "data_check", "download what is not here, checksummed, and tell what is in it"),
        ("check", "data_check", "read data sets whole and tell what is in them"),
    ):
        action = actions.add_parser(name, help=text, description=text.capitalize() + ".")
        _verb(action, command)
        if name != "list":
            action.add_argument("dataset", nargs="+", help="a name, or a path to an .npz or a folder of class folders")
        _add_data_flag(action)


_VERBS: dict[str, tuple[str, Callable[[Callable], None]]] = {
    "run": ("one run, one record", _add_run),
    "sweep": ("many runs: a table of the paper, or your own", _add_sweep),
    "status": ("what of a sweep is there", _add_status),
    "reproduce": ("notebooks in batch", _add_reproduce),
    "benchmark": ("what a batch costs here, by part", _add_benchmark),
    "data": ("the data sets", _add_data),
}


def _add_grid_verb(add_parser: Callable, command: str, description: str, epilog: str) -> Any:
    from ucl.evidence.paper import GRIDS

    tables = "\n".join(f"  {table:12} {what}" for table, what in GRIDS.items())
    parser = add_parser(description=description.replace("{tables}", tables), epilog=epilog)
    _verb(parser, command)
    parser.add_argument("table", nargs="*", help=f"any of {', '.join(GRIDS)}")
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
        type=integer,
        metavar="N",
        help="seeds of each run (default: 0 1 2; with --config the files' own)",
    )
    parser.add_argument(
        "--set",
        nargs=2,
        action=Parameter,
        default=[],
        metavar=("NAME", "VALUE"),
        help="a field of Config for all runs: --set refresh 2 rescores two stored images per class, not all",
    )
    parser.add_argument(
        "--shard", type=shard, default=(1, 1), metavar="I/N", help="only the I-th of N equal parts, the first being 1"
    )
    parser.add_argument("--store", default="runs", metavar="DIR", help="folder of the records (default: %(default)s)")
    return parser


def _add_data_flag(parser: Any) -> None:
    parser.add_argument("--data", metavar="DIR", help="folder of the data sets (default: $UCL_DATA, else ~/.cache/ucl)")


def _add_machine_flags(parser: Any) -> None:
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, …; auto takes a GPU where there is one")
    parser.add_argument("--threads", type=count, metavar="N", help="processor threads a run (default: all cores)")
    text = "on a GPU, repeat training steps from CUDA graphs, each checked against a plain step when it is captured"
    parser.add_argument("--graphs", action="store_true", help=text)
    _add_data_flag(parser)


def _add_config_flags(group: Any) -> None:
    import dataclasses

    from ucl.config import Config

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
                flag, type={"int": integer, "float": number, "str": str}[kind], metavar=metavar, help=text
            )
