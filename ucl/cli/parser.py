"""The parser of the command `ucl`; parsed options have `verb`, the parser of the verb, and `command`, its function."""

from __future__ import annotations

import argparse
import functools
import inspect
import os
from collections.abc import Callable
from typing import Any, NoReturn

import ucl
from ucl.catalogue import PICTURES, SHOWN, helps
from ucl.cli import texts, verbs
from ucl.evidence.paper import GRIDS
from ucl.fields import FIELDS
from ucl.records.measures import MEANINGS


class Parser(argparse.ArgumentParser):
    """argparse's parser with errors in one line and examples as they are written; full flags only."""

    def __init__(self, **options: Any) -> None:
        formatter: Any = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=30, width=110)
        super().__init__(**options, formatter_class=formatter, allow_abbrev=False)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        print(end="", flush=True)  # after a help text, so that `main` answers an error
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    main = Parser(prog="ucl", description=ucl.__doc__, epilog=texts.EXIT_CODES)
    main.add_argument("--version", action="version", version=f"ucl {ucl.__version__}")
    all_verbs = main.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Callable, *further: str, inside: Any = all_verbs) -> Any:
        """The parser of a verb; the help has the docstring of its function, further texts and the examples."""
        about = inspect.getdoc(command) or ""
        description = "\n\n".join([about, *further])
        summary = about.split("\n")[0].replace("%", "%%")
        verb = inside.add_parser(name, help=summary, description=description, epilog=texts.EXAMPLES.get(name))
        verb.set_defaults(command=command, verb=verb)
        return verb

    run = add("run", verbs.run, texts.SPLIT)
    _add_config(run.add_argument_group("the experiment"))
    where = run.add_argument_group("where and how")
    where.add_argument("--config", type=path, metavar="FILE", help="start from the fields in a JSON or YAML file")
    where.add_argument("--published-code", action="store_true", help="all choices of the reference implementation")
    _add_store(where)
    _add_machine(where, "all cores")

    sweep = add("sweep", verbs.sweep, _lines("tables", GRIDS))
    _add_grid(sweep)
    text = "runs at a time; auto: as many as cores and memory suffice for, with one thread each (default: %(default)s)"
    sweep.add_argument("--jobs", type=number_or_auto, default=1, metavar="N", help=text)
    _add_machine(sweep, "all cores divided by --jobs, 1 with auto")

    status = add("status", verbs.status)
    _add_grid(status)
    status.add_argument("--device", default="auto", help="device of the time estimates (default: %(default)s)")
    _add_data(status)

    title = "measures, in per cent; with --balanced-accuracy, A and average are balanced over the classes, too"
    measures = _lines(title, MEANINGS)
    results = add("results", verbs.results, measures, texts.TIMES, texts.WHERE)
    _add_selection(results)
    text = "first columns of the table, by which the rows are sorted: names that --where accepts"
    results.add_argument("--by", nargs="+", action="extend", default=[], metavar="NAME", help=text)
    _add_measure(results)

    compare = add("compare", verbs.compare, measures, texts.WHERE)
    _add_selection(compare)
    compare.add_argument("first", metavar="FIRST", help="conditions that select a method")
    compare.add_argument("second", metavar="SECOND", help="conditions that select the method to subtract")
    _add_measure(compare)

    plot = add("plot", verbs.plot, _lines("pictures", helps(PICTURES)), texts.WHERE)
    _add_selection(plot)
    plot.add_argument("picture", metavar="PICTURE", choices=PICTURES, help=f"one of {', '.join(PICTURES)}")
    text = "for differences: conditions that select the method to subtract"
    plot.add_argument("--against", default="", metavar="CONDITION", help=text)
    text = "the picture: a file in a format of matplotlib, such as .png, .pdf or .svg (default: PICTURE.png)"
    plot.add_argument("--output", type=path, metavar="FILE", help=text)

    book = add("reproduce", verbs.reproduce)
    book.add_argument("notebook", nargs="*", help="names or paths of notebooks (default: all)")
    text = "a value for the notebooks' parameter cell, in YAML: -p seeds '[0, 1]' -p compute true"
    book.add_argument("-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help=text)
    book.add_argument("--jobs", type=int, default=1, metavar="N", help="notebooks at a time (default: %(default)s)")
    text = "folder of the pages (default: %(default)s)"
    book.add_argument("--output", type=path, default="reproduced", metavar="DIR", help=text)

    _add_benchmark(add("benchmark", verbs.benchmark))

    text = "List, download and check data sets"
    data = all_verbs.add_parser("data", help=text, description=text).add_subparsers(required=True, metavar="ACTION")
    _add_data(add("list", verbs.data_list, inside=data))
    check = add("check", verbs.data_check, texts.SPLIT, inside=data)
    text = "a name, a path to an .npz or a folder of class folders, or package.module:function"
    check.add_argument("dataset", nargs="+", help=text)
    text = "pixels per side, see ucl run --help (default: the data set's own, 32 for a folder)"
    check.add_argument("--image-size", type=int, metavar="N", help=text)
    _add_data(check)
    return main


def _lines(title: str, helps: dict[str, str]) -> str:
    return "\n".join([f"{title}:", *(f"  {name:12} {text}" for name, text in helps.items())])


# Types of arguments: argparse names them in its errors


def path(text: str) -> str:
    """A path with the home folder in place of ~, which a shell does not replace in `--data=~/images`."""
    if not text:  # as an unset shell variable is; it would act on the working folder
        raise ValueError
    return os.path.expanduser(text)


def number_or_auto(text: str) -> int | str:
    """The whole number of a text, or "auto"."""
    return text if text == "auto" else int(text)


def part(text: str) -> tuple[int, int]:
    """The pair I, N of a text I/N, with I from 1 to N."""
    i, n = map(int, text.split("/"))
    if not 1 <= i <= n:
        raise ValueError
    return i, n


# Arguments that belong together, and those of several verbs


def _add_config(group: Any) -> None:
    """Add a flag per field of `Config`."""
    types: dict[str, tuple[Callable, str]] = {"int": (int, "N"), "float": (float, "X"), "str": (str, "NAME")}
    for field in FIELDS.values():
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


def _add_grid(verb: Any) -> None:
    verb.add_argument("table", nargs="*", help=f"any of {', '.join(GRIDS)}")
    text = "your own runs: YAML or JSON with Config fields, each with a value or a list of values, or a record"
    verb.add_argument("--config", type=path, nargs="+", action="extend", default=[], metavar="FILE", help=text)
    text = "seeds of each run (default: 0 1 2; with --config those of the files)"
    verb.add_argument("--seeds", nargs="+", action="extend", type=int, metavar="N", help=text)
    text = "a field of Config for all runs: --set refresh 2 rescores two stored images per class instead of all"
    verb.add_argument("--set", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help=text)
    text = "only the I-th of N equal parts, I from 1 to N"
    verb.add_argument("--shard", type=part, default=(1, 1), metavar="I/N", help=text)
    _add_store(verb)


def _add_machine(verb: Any, threads: str) -> None:
    """Add the flags of a machine; `threads` says how many threads a run gets by default."""
    verb.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, …; auto uses a GPU if there is one")
    verb.add_argument("--threads", type=int, metavar="N", help=f"CPU threads per run (default: {threads})")
    text = "whether a GPU repeats its work from CUDA graphs (default: with built-in methods and networks)"
    verb.add_argument("--graphs", action=argparse.BooleanOptionalAction, help=text)
    text = "folder for the networks after each task: ucl.models.load(record) in Python"
    verb.add_argument("--weights", type=path, metavar="DIR", help=text)
    text = "folder for one .npz file per run: the predicted class of each test image after each task"
    verb.add_argument("--predictions", type=path, metavar="DIR", help=text)
    _add_data(verb)


def _add_benchmark(verb: Any) -> None:
    """Add the arguments of `ucl.benchmarks.measure.benchmark`; those that are not given have its defaults."""
    flag = functools.partial(verb.add_argument, default=argparse.SUPPRESS)
    text = f"any of {', '.join(SHOWN)}, your own score as module:function, or leaderboard; fields of ucl run may follow"
    flag("--methods", nargs="+", metavar="NAME", help=f"{text}: 'BI refresh=2' (default: those of the paper)")
    text = "images in the memory (default: 500 1000)"
    flag("--memory-sizes", type=int, nargs="+", metavar="N", help=text)
    flag("--dataset", metavar="NAME", help="default: noise in the shape of CIFAR-10, which needs no data")
    flag("--n-tasks", type=int, metavar="N", help="number of tasks (default: that of the data set)")
    text = "timed batches per method, memory size and task (default: 5)"
    flag("--repeats", type=int, metavar="N", help=text)
    flag("--precision", metavar="NAME", help="arithmetic of the scoring passes: auto, float32, bfloat16")
    flag("--device", help="cpu, cuda, cuda:1, …; auto uses a GPU if there is one")
    text = "also measure whole runs, N at a time; needs --dataset"
    flag("--jobs", type=int, nargs="+", default=[], metavar="N", help=text)
    flag("--threads", type=int, metavar="N", help="CPU threads (default: all cores)")
    _add_data(verb)
    text = "writes PATH.csv and, with --jobs, PATH_runs.csv (default: %(default)s)"
    verb.add_argument("--output", type=path, default="figures/benchmark", metavar="PATH", help=text)


def _add_data(verb: Any) -> None:
    text = "folder of the data sets (default: $UCL_DATA or ~/.cache/ucl)"
    verb.add_argument("--data", type=path, metavar="DIR", help=text)


def _add_store(verb: Any) -> None:
    text = "folder of the records (default: %(default)s)"
    verb.add_argument("--store", type=path, default="runs", metavar="DIR", help=text)


def _add_selection(verb: Any) -> None:
    _add_store(verb)
    text = "only runs that meet all these conditions"
    verb.add_argument("--where", nargs="+", action="extend", default=[], metavar="CONDITION", help=text)


def _add_measure(verb: Any) -> None:
    # Without a default here: further values would be added to it.
    text = "measures of the table, see above (default: A F)"
    verb.add_argument("--measure", nargs="+", action="extend", metavar="MEASURE", help=text)
    text = "also save the table: a file that ends in .csv, .md or .tex"
    verb.add_argument("--output", type=path, metavar="FILE", help=text)
