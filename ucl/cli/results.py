"""The verbs that show what a store has: `ucl results`, `compare` and `plot`, and their flags."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ucl.cli import texts
from ucl.cli.arguments import check_output
from ucl.cli.tables import note_on_times, table_of_differences, table_of_results
from ucl.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


def add_results(add_parser: Callable) -> None:
    from ucl.evidence.averages import NAMES
    from ucl.evidence.filters import NAMES as COLUMNS

    parser = add_parser(description=texts.RESULTS, epilog=texts.RESULTS_EXAMPLES)
    parser.set_defaults(command=results, verb=parser)
    _add_store(parser)
    text = "first columns of the table, by which the rows are sorted: any names that --where accepts"
    parser.add_argument("--by", nargs="+", action="extend", default=[], metavar="NAME", choices=COLUMNS, help=text)
    _add_where(parser)
    text = f"what to average (default: A F): {', '.join(NAMES)}"
    _add_measure(parser, text, NAMES)
    _add_output(parser)


def add_compare(add_parser: Callable) -> None:
    from ucl.records.measures import NAMES

    parser = add_parser(description=texts.COMPARE, epilog=texts.COMPARE_EXAMPLES)
    parser.set_defaults(command=compare, verb=parser)
    _add_store(parser)
    parser.add_argument("first", metavar="FIRST", help='a method, such as "score=BI selection=bottom"')
    parser.add_argument("second", metavar="SECOND", help="the method to subtract, such as population=class-balanced")
    _add_where(parser)
    text = f"what to compare (default: A F): {', '.join(NAMES)}"
    _add_measure(parser, text, NAMES)
    _add_output(parser)


def add_plot(add_parser: Callable) -> None:
    from ucl.catalogue import PICTURES, helps

    pictures = "\n".join(f"  {name:12} {text}" for name, text in helps(PICTURES).items())
    parser = add_parser(description=texts.PLOT.replace("{pictures}", pictures), epilog=texts.PLOT_EXAMPLES)
    parser.set_defaults(command=plot, verb=parser)
    _add_store(parser)
    parser.add_argument("picture", metavar="PICTURE", choices=PICTURES, help=f"one of {', '.join(PICTURES)}")
    _add_where(parser)
    text = "for differences: the method to subtract, such as population=class-balanced"
    parser.add_argument("--against", default="", metavar="CONDITION", help=text)
    text = "the picture: a file that ends in .png, .pdf or .svg (default: PICTURE.png)"
    parser.add_argument("--output", metavar="FILE", help=text)


def results(options: argparse.Namespace) -> int:
    """Print the records of a store, averaged over their seeds."""
    _check_output(options.output, (".csv", ".md", ".tex"))
    records = selected(options)
    from ucl.evidence import averages, tables

    measures = list(dict.fromkeys(options.measure or averages.METRICS))
    table = averages.results(records, options.by, measures)
    files = tables.save(table, options.output) if options.output else []  # before any output, which may fail
    print(table_of_results(table, options.by, measures))
    if any(map(averages.is_time, measures)) and (note := note_on_times(records, options.by)):
        print(note)
    if files:
        print(*files)
    return 0


def compare(options: argparse.Namespace) -> int:
    """Print the paired differences of two methods."""
    for name in ("first", "second"):
        text = getattr(options, name)
        if "=" not in text and Path(text).is_dir():
            raise InputError(name, text, "is a folder; give STORE FIRST SECOND, a folder and two methods")
    _check_output(options.output, (".csv", ".md", ".tex"))
    records = selected(options)
    from ucl.evidence import paired, tables

    table = paired.compare(records, options.first, options.second, list(dict.fromkeys(options.measure or ("A", "F"))))
    files = tables.save(table, options.output) if options.output else []  # before any output, which may fail
    print(table_of_differences(table))
    if files:
        print(*files)
    return 0


def plot(options: argparse.Namespace) -> int:
    """Draw a picture of the records of a store and print its path."""
    if options.picture == "differences" and not options.against:
        reason = "needs the method to subtract; give --against CONDITION, such as --against population=class-balanced"
        raise InputError("picture", options.picture, reason)
    if options.against and options.picture != "differences":
        raise InputError("against", options.against, "only the picture differences has it; leave it out")
    output = options.output or f"{options.picture}.png"
    _check_output(output, (".png", ".pdf", ".svg"))
    records = selected(options)
    import matplotlib

    matplotlib.use("Agg")  # No window is opened, and none is needed.
    from ucl.plots import save
    from ucl.plots.standard import plot as drawn

    print(save(drawn(records, options.picture, options.against), output))
    return 0


def selected(options: argparse.Namespace) -> pd.DataFrame:
    """The records of a store that the filter selects.

    Raises:
        InputError: there is no such folder, it has no records, or the filter cannot be used or selects none.
    """
    from ucl.evidence import filters
    from ucl.records import RecordStore, load_records

    folder = RecordStore(options.store).folder  # raises an InputError if it is a file
    records = load_records(folder) if not folder.is_dir() or any(folder.glob("*.json")) else ()
    if not len(records):
        raise InputError(
            "store", options.store, "has no record; give the folder that `ucl run` or `ucl sweep` wrote to"
        )
    return filters.where(records, *options.where)


def _add_store(parser: argparse.ArgumentParser) -> None:
    text = "folder of the records (default: %(default)s)"
    parser.add_argument("store", nargs="?", default="runs", metavar="STORE", help=text)


def _add_where(parser: argparse.ArgumentParser) -> None:
    text = "only runs that meet all these conditions: --where dataset=bloodcell 'seed<5'"
    parser.add_argument("--where", nargs="+", action="extend", default=[], metavar="CONDITION", help=text)


def _add_measure(parser: argparse.ArgumentParser, text: str, names: Sequence[str]) -> None:
    # Without a default here: further values would be added to it.
    parser.add_argument("--measure", nargs="+", action="extend", metavar="MEASURE", choices=names, help=text)


def _add_output(parser: argparse.ArgumentParser) -> None:
    text = "also save the table: a file that ends in .csv, .md or .tex"
    parser.add_argument("--output", metavar="FILE", help=text)


def _check_output(file: str | None, endings: Sequence[str]) -> None:
    if file is None:
        return
    if Path(file).suffix not in endings:
        raise InputError("output", file, f"give a file that ends in {', '.join(endings[:-1])} or {endings[-1]}")
    check_output(file)
