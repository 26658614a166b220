"""The command `ucl`: its verbs, flags and help. The flags of a run are generated from the fields of `Config`."""

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

_RUN = """Train on a stream of images, each seen once, task after task, and measure accuracy and forgetting.

A record of the run (accuracy matrix, memory contents, timings, versions, data fingerprint) is written to the store. A
run that already has a record there is not repeated."""

_EXAMPLES = """examples:
  ucl run                                              the paper's method on digits, in half a minute
  ucl run --dataset bloodcell --memory-size 160        BloodCell, Bregman Information, bottom-k
  ucl run --dataset cifar10 --population reservoir     experience replay (ER)
  ucl run --dataset cifar10 --population class-balanced  class-balancing reservoir sampling (CBR)
  ucl run --dataset path/to/folder --score mine:score  your images, your score
  ucl run --config runs/some-record.json --seed 7      the run of a record, with another seed"""


_SWEEP = """Measure runs of the paper's tables, or your own runs, that have no record in the store yet.

Each run writes its record when it ends. A sweep that was stopped at any moment continues with the same command. Several
sweeps on one folder, on one machine or many, divide the runs between them.

tables:
{tables}"""

_SWEEP_EXAMPLES = """examples:
  ucl sweep bloodcell --seeds 0 1 2                    the BloodCell columns of Table 3, 60 runs, one after another
  ucl sweep table1 table2 --jobs 4                     four worker processes that share the cores, or the GPU
  ucl sweep --config mine.json --seeds 0 1 2           your own: [{"dataset": "path/to/folder", "score": "mine:score"}]
  ucl sweep table3 --set refresh 2                     fewer scores per batch; --set works for all fields but the seed
  ucl status table1                                    runs measured, runs missing and their estimated time

a SLURM job array: each job runs a twentieth of the table, all records go into one shared folder:
  ucl data get cifar10 --data /shared/data             once, so that the jobs need no download
  sbatch --array=1-20 --cpus-per-task=4 --time=04:00:00 --wrap 'ucl sweep table1 \\
      --shard $SLURM_ARRAY_TASK_ID/20 --threads 4 --store /shared/runs --data /shared/data'
  To continue a job that was stopped, submit it again with the same line. In a Kubernetes indexed job, which counts
  from 0: --shard $((JOB_COMPLETION_INDEX + 1))/20

dask workers, on any machines that share the folders (python -m pip install distributed); 10.0.0.1
and 10.0.0.2 are example addresses of the scheduler and of a worker machine in your private network:
  dask scheduler --host 10.0.0.1 --no-dashboard        listens at this address only, on port 8786
  dask worker tcp://10.0.0.1:8786 --host 10.0.0.2 --nworkers 8 --nthreads 1 --no-dashboard  on each machine
  ucl sweep table1 --scheduler tcp://10.0.0.1:8786 --store /shared/runs --data /shared/data
  Anyone who can reach the scheduler or a worker can make the workers execute any code. Use a network in which you trust
  every user, or TLS: tls://10.0.0.1:8786, with the certificates named in dask's configuration on all machines.

Without a terminal, for example in the log of a job, one line per finished run reports its result and the time left.

exit codes: 0 all runs have records, 1 some failed (each is named, the other records are kept), 2 wrong input,
130 interrupted, 143 ended by SIGTERM, for example because a job was cancelled"""

_STATUS = """Show how many runs of a sweep the store contains: one line per data set, memory size and method.

For missing runs it shows the time that they would take here, one after another. The time is estimated from the store's
records of runs with the same cost, processor and device; "unknown" if there are none."""

_STATUS_EXAMPLES = """examples:
  ucl status table1 --store figures/runs
  ucl status table3 --shard 2/20 --store /shared/runs  the runs of one job of an array

exit codes: 0 all runs have records, 1 some are missing, 2 wrong input"""


_REPRODUCE = """Execute notebooks with papermill, one process each, and write HTML pages.

If a notebook fails, its cell and error are reported, and the others continue. Parameters that a notebook does not have
are refused."""

_REPRODUCE_EXAMPLES = """examples:
  ucl reproduce                                        all notebooks, pages in reproduced/index.html
  ucl reproduce tables claims --jobs 2                 two notebooks, both at the same time
  ucl reproduce tables -p compute true                 measure runs that have no record yet
  ucl reproduce -p profile smoke tables                a minute of real training on digits

exit codes: 0 all were executed completely, 1 some failed, 2 wrong input, 130 interrupted, 143 ended by SIGTERM"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 done, 1 failed, 2 wrong input, 130 or 143 interrupted or ended."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    who = "ucl"
    try:
        with _stopped_by_signals():
            options = _parser(arguments[0] if arguments else "").parse_args(arguments)
            warnings.showwarning = lambda message, *_, **__: print(f"ucl: {message}", file=sys.stderr)
            who, absent = options.verb.prog, _absent_folders(options)
            return options.command(options)
    except InputError as error:
        for folder in absent:
            with suppress(OSError, ValueError):  # It was not created, is in use, or its name is not valid.
                folder.rmdir()
        return refuse(who, _as_typed(error, options.verb) + error.reason)
    except Stopped as stop:
        how = "interrupted" if stop.signal == signal.SIGINT else "ended by SIGTERM"
        print(f"{who}: {how}; finished results are kept", file=sys.stderr)
        return 128 + stop.signal
    except BrokenPipeError:  # The reader of the output has closed it, as `head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, UserExit) as error:
        print(f"{who}: {error}", file=sys.stderr)
        return 1


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Raise `Stopped` on Ctrl-C and on SIGTERM, which ends a cancelled job, so that all cleanup code is executed."""

    def stop(number: int, _: Any) -> None:
        # A second Ctrl-C ends the process at once. A second SIGTERM is ignored, because some schedulers send several.
        signal.signal(number, signal.SIG_DFL if number == signal.SIGINT else signal.SIG_IGN)
        raise Stopped(number)

    if threading.current_thread() is not threading.main_thread():  # Python sets handlers in the main thread only.
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _absent_folders(options: argparse.Namespace) -> list[Path]:
    """Output folders of a verb that do not exist yet, the innermost first: after wrong input they are removed again."""
    outputs = [Path(getattr(options, name)) for name in ("store", "output") if hasattr(options, name)]
    return [folder for output in outputs for folder in (output, *output.parents) if not os.path.exists(folder)]


def _as_typed(error: InputError, verb: argparse.ArgumentParser) -> str:
    """A refused value with its flag, or alone for a positional argument; with its name if it has no flag."""
    if not error.name:
        return ""
    flags = {action.dest: action.option_strings[:1] for action in verb._actions}
    return " ".join([*flags.get(error.name, [error.name]), str(error.value)]) + ": "


def _parser(asked: str) -> argparse.ArgumentParser:
    """The parser of the command. Only the verb `asked` gets its flags, so that imports for other verbs are avoided."""
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
    """Let a function of `ucl.cli.commands` execute a parser's options; the module is imported when it is called."""

    def answer(options: argparse.Namespace) -> int:
        return getattr(importlib.import_module("ucl.cli.commands"), command)(options)

    parser.set_defaults(command=answer, verb=parser)


def _add_run(add_parser: Callable) -> None:
    run = add_parser(description=_RUN, epilog=_EXAMPLES)
    _verb(run, "run")
    _add_config_flags(run.add_argument_group("the experiment"))
    where = run.add_argument_group("where and how")
    where.add_argument("--config", metavar="FILE", help="start from the fields in a JSON file, or from a record's run")
    where.add_argument("--published-code", action="store_true", help="all choices of the reference implementation")
    where.add_argument("--store", default="runs", metavar="DIR", help="folder of the records (default: %(default)s)")
    _add_machine_flags(where)


def _add_sweep(add_parser: Callable) -> None:
    sweep = _add_grid_verb(add_parser, "sweep_grid", _SWEEP, _SWEEP_EXAMPLES)
    sweep.add_argument("--jobs", type=count, default=1, metavar="N", help="runs at a time (default: %(default)s)")
    sweep.add_argument("--scheduler", metavar="ADDRESS", help="use the workers of a dask scheduler: tcp://host:port")
    _add_machine_flags(sweep)


def _add_status(add_parser: Callable) -> None:
    status = _add_grid_verb(add_parser, "status_of_grid", _STATUS, _STATUS_EXAMPLES)
    status.add_argument("--device", default="auto", help="device of the time estimates (default: %(default)s)")
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
        help="a value for the notebooks' parameter cell, in YAML: -p seeds '[0, 1]' -p compute true",
    )
    reproduce.add_argument("--jobs", type=count, default=1, metavar="N", help="notebooks at a time (default: 1)")
    reproduce.add_argument(
        "--output", default="reproduced", metavar="DIR", help="folder of the pages (default: %(default)s)"
    )


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
        ("list", "data_list", "list the data sets known by name, and their files"),
        ("get", "data_check", "download data sets that are not here yet, checksummed, and show their contents"),
        ("check", "data_check", "read data sets completely and show their contents"),
    ):
        action = actions.add_parser(name, help=text, description=text.capitalize() + ".")
        _verb(action, command)
        if name != "list":
            action.add_argument("dataset", nargs="+", help="a name, or a path to an .npz or a folder of class folders")
        _add_data_flag(action)


_VERBS: dict[str, tuple[str, Callable[[Callable], None]]] = {
    "run": ("measure one run", _add_run),
    "sweep": ("measure many runs: a table of the paper, or your own", _add_sweep),
    "status": ("show the progress of a sweep", _add_status),
    "reproduce": ("execute notebooks and write HTML pages", _add_reproduce),
    "benchmark": ("measure the time per batch, by part", _add_benchmark),
    "data": ("list, download and check data sets", _add_data),
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
        help="your own runs: a JSON list of objects of Config fields, or a record",
    )
    parser.add_argument(
        "--seeds",
        nargs="+",
        type=integer,
        metavar="N",
        help="seeds of each run (default: 0 1 2; with --config those of the files)",
    )
    parser.add_argument(
        "--set",
        nargs=2,
        action=Parameter,
        default=[],
        metavar=("NAME", "VALUE"),
        help="a field of Config for all runs: --set refresh 2 rescores two stored images per class instead of all",
    )
    parser.add_argument(
        "--shard", type=shard, default=(1, 1), metavar="I/N", help="only the I-th of N equal parts, I from 1 to N"
    )
    parser.add_argument("--store", default="runs", metavar="DIR", help="folder of the records (default: %(default)s)")
    return parser


def _add_data_flag(parser: Any) -> None:
    parser.add_argument("--data", metavar="DIR", help="folder of the data sets (default: $UCL_DATA or ~/.cache/ucl)")


def _add_machine_flags(parser: Any) -> None:
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, …; auto uses a GPU if there is one")
    parser.add_argument("--threads", type=count, metavar="N", help="CPU threads per run (default: all cores)")
    text = "on a GPU, repeat training steps from CUDA graphs; each graph is checked against an ordinary step"
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
