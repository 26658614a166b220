"""Records grouped by method, for figures: whether they can be averaged, names, mixed arithmetic, and lines of means."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.legend import Legend
from matplotlib.lines import Line2D

from ucl.catalogue import method_order
from ucl.errors import InputError
from ucl.plots.style import color, dash
from ucl.records import Record, failures
from ucl.records.runs import count_range, in_words, varying


def by_label(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records of each method, by its label."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.config.label, []).append(record)
    return groups


def same_but_for_seed(records: Iterable[Record]) -> None:
    """Check that records can be averaged: there are some, and those of each method differ only in the seed.

    Raises:
        InputError: there is none, or two records of a method differ in more than the seed, or two records of a data set
            were measured on different images.
    """
    records = list(records)
    if not records:
        raise InputError(
            "", None, "there is nothing to draw: none of these runs is measured; `ucl.sweep` measures them"
        )
    images: dict[str, str] = {}
    for record in records:
        known = images.setdefault(record.config.dataset, record.version.images)
        if known != record.version.images:
            reason = f"were measured on images of fingerprint {known} and {record.version.images}"
            advice = f"add a condition (in Python: ucl.where), such as --where fingerprint={known}"
            raise InputError("records", record.config.dataset, f"{reason}; {advice}")
    for label, own in by_label(records).items():
        if differing := varying(own, ["readings"]):  # They are further results of the same run.
            reason = f"differ in {in_words(differing)}, and means are over seeds alone; choose some by ucl.where"
            raise InputError("records", label, reason)


def name_mixed_arithmetic(figure: Figure, records: Iterable[Record], above: Legend | None = None) -> None:
    """Write above a figure which methods have runs scored in different arithmetics; nothing if none has.

    The note is the figure's title. Where a legend is above the axes (`above`), the note is the title of the legend.
    """
    used = {label: {record.arithmetic for record in own} - {""} for label, own in by_label(records).items()}
    mixed = [f"{label} scored in {' and '.join(sorted(names))}" for label, names in used.items() if len(names) > 1]
    if mixed:
        note = textwrap.fill("; ".join(mixed), int(14 * figure.get_figwidth()))
        if above is not None:  # matplotlib would print the figure's title over this legend
            above.set_title(note, FontProperties(size="small"))
        else:
            figure.suptitle(note, fontsize="small")


def draw_means(
    ax: Axes, table: pd.DataFrame, names: Mapping[str, str], column: str, x: str, by: str, **look: Any
) -> list[Line2D]:
    """Draw the mean of each method over its seeds as a line, with a band of one sample standard deviation.

    The table has a row per run and test: its label, the number of the test (`by`), and the columns `x` and `column`.
    Returns the lines, in the order of the names.
    """
    lines = []
    for label, name in names.items():
        # Without rows, because all runs failed, a column may be of objects.
        of_test = table[table["label"] == label].astype({x: float, column: float}).groupby(by)
        at, mean, std = of_test[x].mean(), of_test[column].mean(), of_test[column].std(ddof=1)
        # Not clipped and drawn over the axis, so that 0 % is visible. Finetune's dots are smaller: A-GEM's stay visible
        # behind them.
        style = dict(color=color(label), ls=dash(label), ms=2.5 if label == "Finetune" else 4, clip_on=mean.empty)
        lines += ax.plot(at, mean, label=name, zorder=3, **style, **look)
        ax.fill_between(at, mean - std, mean + std, color=color(label), alpha=0.15, lw=0)
    return lines


def spread(records: Iterable[Record]) -> str | None:
    """What lines and bands of `draw_means` show, with the number of seeds; None if each method has one."""
    counts = [sum(not record.failure for record in own) for own in by_label(records).values()]
    return f"mean ± std, n = {count_range(counts)}" if max(counts) > 1 else None


def names_of(records: Iterable[Record]) -> dict[str, str]:
    """The name of each method in a figure: its label and, in brackets, how many of its runs failed and are left out.

    A long name, such as that of a user's own score, has several lines.
    """
    failed = {label: failures(own) for label, own in by_label(records).items()}
    names = {label: f"{label} ({failed[label]})" if failed[label] else label for label in method_order(failed)}
    return {label: textwrap.fill(name, 32) for label, name in names.items()}
