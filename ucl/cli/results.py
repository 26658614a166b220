"""The verbs that show what a store has: `ucl results`, `compare` and `plot`, their flags, help and printed tables."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ucl.cli.arguments import check_output
from ucl.errors import InputError
from ucl.fields import as_text, decimal
from ucl.machine.terminal import text_table
from ucl.own.path import split_outside_arguments

if TYPE_CHECKING:
    import pandas as pd

_WHERE = """conditions:
  NAME=VALUE, also with != < <= > >=. Several values of = and != are separated by commas, and an empty value means
  that there is none: score=BI,EN  'seed<5'  settings= (only defaults). Names are the fields of ucl run, label
  (the name of a method in tables, such as ER or BI bottom), settings (what differs from the defaults), fingerprint (of
  the images), source (of your own objects), arithmetic, device, processor (the GPU, or the CPU of a run without one),
  threads and date. Quote < and > in a shell.
"""
_MEASURES = """measures, in per cent; with --balanced-accuracy, A and average are balanced over the classes, too:
  A                    last accuracy: mean over all tasks at the end
  F                    last forgetting: mean fall of the earlier tasks from their best accuracy
  best, retained       accuracy on the earlier tasks at their best and at the end; F is the difference
  learning             accuracy on each task right after it was learnt
  last, last_share     accuracy on the last task, and share of the final predictions that are one of its classes
  average              mean over the stream of A after each task
  backward             backward transfer: mean change of the earlier tasks since each was learnt
  balanced             mean recall of the classes at the end: A with --balanced-accuracy, but of any run
  worst_class          lowest recall of a class at the end
  anytime, worst_case  average anytime and worst-case accuracy of runs with --evaluate-every"""
_RESULTS = f"""Show the records of a store as a table: mean and sample standard deviation over n seeds.

Runs are averaged over seeds and over nothing else: runs with other settings, images or versions of your own objects
have rows of their own. Runs that diverged or collapsed do not enter a mean and are counted under left_out.

{_MEASURES}

{_WHERE}"""
_RESULTS_EXAMPLES = """examples:
  ucl results                                          the store runs
  ucl results figures/runs --where dataset=bloodcell settings= --measure A F learning seconds
  ucl results --by lr --where score=BI                 a column of learning rates, sorted by them
  ucl results --by seed                                each run
  ucl results --measure A balanced worst_class         if the classes differ in size
  ucl results --output table.csv                       all digits; .md and .tex: mean ± std"""

_MACHINE = {"device": "devices", "processor": "processors", "threads": "numbers of threads"}  # on which times depend

_COMPARE = f"""Compare two methods: the mean difference, first minus second, over pairs of runs, with its 95 % interval.

FIRST and SECOND are filters, each of one or several conditions separated by spaces. Each must select one method. The
runs of a pair share the stream (data set, images, memory size, tasks) and the seed. A field of the stream that both
filters name may differ, except the data set. Over several streams each has the same weight.

{_MEASURES}

{_WHERE}"""
_COMPARE_EXAMPLES = """examples:
  ucl compare score=EN population=class-balanced       in the store runs
  ucl compare figures/runs "label=BI bottom settings=" "label=CBR settings=" --where dataset=bloodcell
  ucl compare "score=BI refresh=1" "score=BI refresh=2" --measure A F learning
  ucl compare "label=ER memory_size=40" "label=ER memory_size=160" --output difference.csv"""

_PLOT = f"""Draw a picture of the records of a store. Methods have the same order and colours in every picture.

All pictures but differences show one data set and memory size, and one setting per method.

pictures:
{{pictures}}

{_WHERE}"""
_PLOT_EXAMPLES = """examples:
  ucl plot accuracy                                    the store runs, as accuracy.png
  ucl plot figures/runs forgetting --where dataset=bloodcell memory_size=40, settings= --output forgetting.pdf
      (the comma after 40 adds the runs without a memory)
  ucl plot figures/runs differences --against "label=CBR settings=" --where dataset=bloodcell refresh=1,"""


def add_results(add_parser: Callable) -> None:
    from ucl.evidence.averages import NAMES
    from ucl.evidence.filters import NAMES as COLUMNS

    parser = add_parser(description=_RESULTS, epilog=_RESULTS_EXAMPLES)
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

    parser = add_parser(description=_COMPARE, epilog=_COMPARE_EXAMPLES)
    parser.set_defaults(command=compare, verb=parser)
    _add_store(parser)
    parser.add_argument("first", metavar="FIRST", help='a method, such as "score=BI selection=bottom"')
    parser.add_argument("second", metavar="SECOND", help="the method to subtract, such as population=class-balanced")
    _add_where(parser)
    text = f"what to compare (default: A F): {', '.join(NAMES)}"
    _add_measure(parser, text, NAMES)
    _add_output(parser)


def add_plot(add_parser: Callable) -> None:
    from ucl.choices import PICTURES

    pictures = "\n".join(f"  {name:12} {text}" for name, text in PICTURES.items())
    parser = add_parser(description=_PLOT.replace("{pictures}", pictures), epilog=_PLOT_EXAMPLES)
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
    from ucl.evidence import filters

    for name in ("first", "second"):
        text = getattr(options, name)
        if "=" not in text and Path(text).is_dir():
            raise InputError(name, text, "is a folder; give STORE FIRST SECOND, a folder and two methods")
        filters.conditions([text], name)
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
    from ucl.evidence import filters

    if options.picture == "differences" and not options.against:
        reason = "needs the method to subtract; give --against CONDITION, such as --against population=class-balanced"
        raise InputError("picture", options.picture, reason)
    if options.against and options.picture != "differences":
        raise InputError("against", options.against, "only the picture differences has it; leave it out")
    filters.conditions([options.against] if options.against else [], "against")
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
    """The records of a store that the filter selects; the filter is checked before the records are read.

    Raises:
        InputError: there is no such folder, it has no records, or the filter cannot be used or selects none.
    """
    from ucl.evidence import filters
    from ucl.records import RecordStore, load_records

    filters.conditions(options.where)
    folder = RecordStore(options.store).folder  # raises an InputError if it is a file
    records = load_records(folder) if not folder.is_dir() or any(folder.glob("*.json")) else ()
    if not len(records):
        raise InputError(
            "store", options.store, "has no record; give the folder that `ucl run` or `ucl sweep` wrote to"
        )
    return filters.where(records, *options.where)


def table_of_results(table: pd.DataFrame, by: Sequence[str], measures: Sequence[str]) -> str:
    """The table of `ucl.results` as text; values that are the same in all rows are in a line above the table.

    Args:
        table: see `ucl.results`; with a standard deviation for each measure.
        by: columns that are always shown.
        measures: names of measures.
    """
    from ucl.evidence.averages import is_time

    numbers = ["n", *measures, *(f"{name}_std" for name in measures)]
    notes = [name for name in ("arithmetic", "left_out") if name in table]
    words = [name for name in table if name not in (*numbers, *notes)]
    each = [split_outside_arguments(settings, ", ") for settings in table["settings"]]
    shared = set.intersection(*map(set, each))
    table = table.assign(settings=[", ".join(s for s in own if s not in shared) for own in each])
    same = [name for name in words if name not in (*by, "label") and table[name].nunique(dropna=False) == 1]
    words = [*(name for name in words if name not in same), *notes]
    head = [*words, "n", *(f"{name} [{'s' if is_time(name) else '%'}]" for name in measures)]
    rows = [
        [
            *(_word(row[name]) for name in words),
            str(row["n"]),
            *(_mean_and_std(row[name], row[f"{name}_std"], is_time(name)) for name in measures),
        ]
        for row in table.to_dict("records")
    ]
    above = [f"{name} {_word(table[name].iloc[0])}" for name in same if _word(table[name].iloc[0])]
    lines = [
        ", ".join([*above, *sorted(filter(None, shared))]),
        text_table(head, rows, len(words)),
        "mean ± sample standard deviation over n seeds",
        *(_why_empty(name) for name in measures if table.loc[table["n"] > 0, name].isna().any()),
    ]
    return "\n".join(filter(None, lines))


def note_on_times(records: pd.DataFrame, by: Sequence[str]) -> str:
    """Of which devices, processors and numbers of threads the times of a table are; "" if its columns say it.

    Args:
        records: of the table, see `ucl.load_records`.
        by: columns of the table that are always shown.
    """
    from ucl.evidence import filters
    from ucl.records.runs import listed

    cells = {name: filters.values(records, name) for name in _MACHINE}

    def n_kinds(names: Sequence[str]) -> int:
        return len(set(zip(*(cells[name] for name in names), strict=True))) if names else 1

    shown, mixed = [name for name in _MACHINE if name in by], []
    for name in _MACHINE:
        if n_kinds([*shown, name]) > n_kinds(shown):  # A GPU is a device and a processor: one of both is enough.
            shown.append(name)
            mixed.append(name)
    several = " and ".join(f"{_MACHINE[name]} ({listed(cells[name])})" for name in mixed)
    return f"times are of several {several}; --by {' '.join(mixed)} gives each its own rows" if mixed else ""


def table_of_differences(table: pd.DataFrame) -> str:
    """The table of `ucl.compare` as text, with notes below."""
    from ucl.report.markdown import interval, number, with_interval

    head = ["data set", "memory", "measure", "n", "first", "second", "difference [95 %]", "detectable"]
    rows, notes, clustered = [], [], []
    for row in table.to_dict("records"):
        change = with_interval(row["mean"], row["low"], row["high"])
        words = [row["dataset"], _word(row["memory_size"]), row["metric"], str(row["n"])]
        numbers = [number(row["of_label"]), number(row["of_comparator"]), change, number(row["detectable"])]
        rows.append([*words, *numbers])
        stream = f"{words[0]}, memory {words[1]}" if words[1] else words[0]
        if by_seed := row["streams"] > 1 and interval(row["low_by_seed"], row["high_by_seed"]):
            clustered.append(f"{stream}, {row['metric']}: {by_seed} with the seed as cluster, as streams share seeds")
        for text, name in (("left out", "left_out"), ("scored in", "arithmetic")):
            notes.append(f"{stream}, {text}: {row[name]}" if row.get(name) else "")
    lines = [
        f"first: {table['label'].iloc[0]}",
        f"second: {table['comparator'].iloc[0]}",
        "first minus second, paired by seed within stream; A, F and other shares in per cent",
        "",
        text_table(head, rows, 3),
        "",
        *dict.fromkeys(filter(None, notes)),
        *clustered,
    ]
    if table["low"].notna().any():
        lines += [
            "detectable: the true difference that a test at 5 % finds with 80 % power at this n and spread",
            "An interval that contains 0: not distinguishable at this n.",
        ]
    elif table["n"].any():
        lines.append("no interval: a single pair per stream; measure more seeds")
    return "\n".join(lines)


def _why_empty(measure: str) -> str:
    """Why a table has no mean of a measure for runs that did not fail."""
    from ucl.records import COLUMNS, anytime

    further = measure in {*anytime.MEASURES, *(COLUMNS[name] for name in anytime.MEASURES)}
    reason = "; only runs with --evaluate-every do" if further else ""
    return f"{measure} is empty where a run of the row does not have it{reason}"


def _word(value: Any) -> str:
    """A value as text; "" for a missing one."""
    return "" if value is None or str(value) in ("<NA>", "nan") else as_text(value)


def _mean_and_std(mean: float, std: float, in_seconds: bool) -> str:
    """Such as "12.3 ± 4.5"; less than a second with three significant digits; "" for a NaN."""
    digits = 2 - math.floor(math.log10(mean)) if in_seconds and 0 < mean < 1 else 1
    return "" if math.isnan(mean) else decimal(mean, digits) + ("" if math.isnan(std) else f" ± {std:.{digits}f}")


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
