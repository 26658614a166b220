"""The flags of the command `ucl`: its parser, types of arguments, and flags that several verbs have."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ucl.catalogue import ORDER
from ucl.config import Config
from ucl.errors import InputError
from ucl.evidence.paper import GRIDS


class Parser(argparse.ArgumentParser):
    """argparse's parser with errors in one line and examples as they are written; full flags only."""

    def __init__(self, **options: Any) -> None:
        def formatter(prog: str) -> argparse.HelpFormatter:
            return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=110)

        super().__init__(**options, formatter_class=formatter, allow_abbrev=False)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        print(end="", flush=True)  # after a help text, so that `main` answers an error
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def refuse(who: str, message: str) -> int:
    """Print in one line what cannot be used; returns the exit code."""
    print(f"{who}: {' '.join(message.split())}", file=sys.stderr)
    return 2


def as_typed(error: InputError, verb: argparse.ArgumentParser) -> str:
    """The refused value after its flag, and the reason; after its name if the verb has no such argument."""
    flags = {action.dest: action.option_strings[:1] for action in verb._actions} | {"root": ["--data"]}
    typed = [*flags.get(error.name, [error.name]), str(error.value) or "''"]
    return f"{' '.join(typed)}: {error.reason}" if error.name else error.reason


def path(text: str) -> str:
    """A path with the home folder in place of ~, which a shell does not replace in `--data=~/images`."""
    if not text:  # as an unset shell variable is; it would act on the working folder
        raise argparse.ArgumentTypeError("the path is empty")
    return os.path.expanduser(text)


def file_with(*endings: str) -> Callable[[str], str]:
    """A type of arguments: the path of a file with one of the endings."""

    def typed(text: str) -> str:
        if Path(text).suffix not in endings:
            raise argparse.ArgumentTypeError(f"{text}: give a file that ends in {' or '.join(endings)}")
        return path(text)

    return typed


def part(text: str) -> tuple[int, int]:
    """The pair I, N of a text I/N, with I from 1 to N."""
    try:
        i, n = map(int, text.split("/"))
    except ValueError:
        i, n = 0, 0
    if not 1 <= i <= n:
        raise argparse.ArgumentTypeError(f"{text}: give I/N with I from 1 to N, such as 3/20")
    return i, n


def add_config_flags(group: Any) -> None:
    types: dict[str, tuple[Callable, str]] = {"int": (int, "N"), "float": (float, "X"), "str": (str, "NAME")}
    for field in dataclasses.fields(Config):
        flag, text = f"--{field.name.replace('_', '-')}", field.metadata["help"]
        if field.metadata["choices"]:
            text += ". " + "; ".join(f"{k}: {v}" if v else k for k, v in field.metadata["choices"].items())
        text = f"{text} (default: {field.default})" if field.default is not None else text
        text = text.replace("%", "%%")
        kind = str(field.type).removesuffix(" | None")
        if kind == "bool":
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            group.add_argument(flag, type=types[kind][0], metavar=types[kind][1], help=text)


def add_grid_flags(verb: Any) -> None:
    verb.add_argument("table", nargs="*", help=f"any of {', '.join(GRIDS)}")
    text = "your own runs: YAML or JSON with Config fields, each with a value or a list of values, or a record"
    verb.add_argument("--config", type=path, nargs="+", action="extend", default=[], metavar="FILE", help=text)
    text = "seeds of each run (default: 0 1 2; with --config those of the files)"
    verb.add_argument("--seeds", nargs="+", action="extend", type=int, metavar="N", help=text)
    text = "a field of Config for all runs: --set refresh 2 rescores two stored images per class instead of all"
    verb.add_argument("--set", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help=text)
    text = "only the I-th of N equal parts, I from 1 to N"
    verb.add_argument("--shard", type=part, default=(1, 1), metavar="I/N", help=text)
    add_store_flag(verb)


def add_machine_flags(verb: Any, threads: str) -> None:
    """Add the flags of a machine; `threads` says how many threads a run gets by default."""
    verb.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, …; auto uses a GPU if there is one")
    verb.add_argument("--threads", type=int, metavar="N", help=f"CPU threads per run (default: {threads})")
    text = "on a GPU, repeat training steps from CUDA graphs; each graph is checked against an ordinary step"
    verb.add_argument("--graphs", action="store_true", help=text)
    text = "folder for one CSV file per run: accuracy and forgetting, one row per task, written during the run"
    verb.add_argument("--curves", type=path, metavar="DIR", help=text)
    add_data_flag(verb)


def add_benchmark_flags(verb: Any) -> None:
    """Add the arguments of `ucl.benchmarks.measure.benchmark`; those that are not given have its defaults."""
    text = f"any of {', '.join(ORDER)}, your own score as module:function, or leaderboard (default: those of the paper)"
    names: dict[str, tuple[str, dict[str, Any]]] = {
        "methods": (text, {"metavar": "NAME", "nargs": "+"}),
        "memory_sizes": ("images in the memory (default: 500 1000)", {"type": int, "metavar": "N", "nargs": "+"}),
        "dataset": ("default: noise in the shape of CIFAR-10, which needs no data", {"metavar": "NAME"}),
        "n_tasks": ("number of tasks (default: that of the data set)", {"type": int, "metavar": "N"}),
        "repeats": ("timed batches per method, memory size and task (default: 5)", {"type": int, "metavar": "N"}),
        "refresh": ("how many stored images of a class are rescored, see ucl run", {"type": float, "metavar": "X"}),
        "precision": ("arithmetic of the scoring passes: auto, float32, bfloat16", {"metavar": "NAME"}),
        "device": ("cpu, cuda, cuda:1, …; auto uses a GPU if there is one", {}),
        "threads": ("CPU threads (default: all cores)", {"type": int, "metavar": "N"}),
    }
    for name, (text, options) in names.items():
        verb.add_argument(f"--{name.replace('_', '-')}", default=argparse.SUPPRESS, help=text, **options)
    add_data_flag(verb)
    text = "writes PATH.csv, PATH_updates.csv, PATH.png and PATH.pdf (default: %(default)s)"
    verb.add_argument("--output", type=path, default="figures/benchmark", metavar="PATH", help=text)


def add_data_flag(verb: Any) -> None:
    text = "folder of the data sets (default: $UCL_DATA or ~/.cache/ucl)"
    verb.add_argument("--data", type=path, metavar="DIR", help=text)


def add_store_flag(verb: Any) -> None:
    text = "folder of the records (default: %(default)s)"
    verb.add_argument("--store", type=path, default="runs", metavar="DIR", help=text)


def add_selection(verb: Any) -> None:
    text = "folder of the records (default: %(default)s)"
    verb.add_argument("store", type=path, nargs="?", default="runs", metavar="STORE", help=text)
    text = "only runs that meet all these conditions"
    verb.add_argument("--where", nargs="+", action="extend", default=[], metavar="CONDITION", help=text)


def add_measure(verb: Any) -> None:
    # Without a default here: further values would be added to it.
    text = "measures of the table, see above (default: A F)"
    verb.add_argument("--measure", nargs="+", action="extend", metavar="MEASURE", help=text)
    text = "also save the table: a file that ends in .csv, .md or .tex"
    verb.add_argument("--output", type=file_with(".csv", ".md", ".tex"), metavar="FILE", help=text)
