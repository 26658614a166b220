"""The standard pictures of any records, by name: `ucl.plot`."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterable

import pandas as pd
from matplotlib.figure import Figure

from ucl import naming
from ucl.catalogue import PICTURES, method_order
from ucl.errors import InputError, one_of
from ucl.evidence import paired
from ucl.evidence.effects import ALL_STREAMS
from ucl.plots.effects import forest
from ucl.plots.style import STYLE, plain
from ucl.records import Record, as_table
from ucl.records.runs import latest


def plot(records: pd.DataFrame | Iterable[Record], picture: str, against: str = "") -> Figure:
    """Draw a standard picture of any records.

    Methods have the same order and colours in every picture. Runs that failed (`Record.failure`) do not count.

    Args:
        records: of `ucl.load_records` or `ucl.sweep`. All pictures except "differences" show one stream (data set and
            memory size; methods without a memory may be included) and one setting per method: choose them with
            `ucl.where`.
        picture: a name in `ucl.catalogue.PICTURES`. The numbers of "classes" are the last row of `Record.class_recall`,
            and the maximum of each column above it.
        against: for "differences", a filter (`ucl.where`) that selects the method to subtract.

    Returns:
        The figure; `ucl.plots.save` writes it to a file.

    Raises:
        InputError: `records` are not records, the name is unknown, there is nothing to draw, or runs of a method
            differ in more than the seed; the message says in what.
    """
    records = as_table(records)
    one_of("picture", picture, PICTURES)
    if picture == "differences":
        return _differences(records, against)
    if against:
        raise InputError("against", against, "only the picture differences has it; leave it out")
    figure = PICTURES[picture].resolve()(records)
    stream = textwrap.fill(_stream(records), int(16 * figure.get_figwidth()))  # characters per inch at this size
    figure.supxlabel(stream, fontsize=STYLE["legend.fontsize"], x=0.99, ha="right", color="0.4")
    figure.set_figheight(figure.get_figheight() + 0.2)
    return figure


def _stream(records: pd.DataFrame) -> str:
    """The stream of the records, such as "bloodcell, memory 40"."""
    config = max((record.config for record in records["record"]), key=lambda config: config.uses_memory)
    return plain(naming.stream_and_memory(config))


def _differences(records: pd.DataFrame, against: str) -> Figure:
    """The forest plot of each method minus one other, over all streams that both have."""
    if not against:
        raise InputError("against", against, "name the method to subtract, such as population=class-balanced")
    records = records.reset_index(drop=True)  # tables joined by pd.concat repeat their row labels
    other = paired.one_method(records, against, "against")
    reference = naming.name_of(other["record"].iloc[0].config)
    runs = latest(records[~records.index.isin(other.index)])
    runs = runs.assign(name=[naming.name_of(record.config) for record in runs["record"]])
    runs = runs[runs["name"] != reference]
    effects, problems = [], {}
    for label in method_order(runs["label"]):
        for name, rows in runs[runs["label"] == label].groupby("name"):
            try:
                paired.check_one_method(rows["record"], "", name)
                table = paired.between(rows, other, [name, reference], ("A", "F"))
                effects.append(table.assign(name=name, label=label, setting=name))
            except InputError as error:
                problems[name] = error
    if not effects:
        raise next(iter(problems.values()), InputError("against", against, "there is no run of another method"))
    for name, problem in problems.items():
        warnings.warn(f"{name} is not drawn: {problem.reason}", stacklevel=2)
    table = pd.concat(effects)
    # Streams without a pair of sound runs have no row, nor has a mean over a single stream.
    table = table[(table["n"] > 0) & ~((table["dataset"] == ALL_STREAMS) & (table["streams"] == 1))]
    last = table["dataset"] == ALL_STREAMS
    table.loc[last, "name"] += [f", {n} streams" for n in table.loc[last, "streams"]]
    return forest(pd.concat([table[~last].sort_values(["dataset", "memory_size"], kind="stable"), table[last]]))
