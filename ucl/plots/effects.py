"""Figures of paired differences: a panel per measure, and for each stream a row per method and setting."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ucl.catalogue import method_order
from ucl.evidence.hypotheses import MARGINS
from ucl.evidence.leaderboard import AT_EQUAL_SECONDS, DATASET, MEMORY_SIZE, leaderboard_name
from ucl.plots.style import WIDTH, color, legend, plain, styled, widest

PAPER: dict[str, Any] = {"marker": "D", "color": "black", "mfc": "none", "ms": 4, "alpha": 0.7}  # the paper's value
_MARKERS = {  # of settings, readings and comparators: the marker, and whether it is filled
    "everything rescored": ("o", True),
    "refresh=2": ("o", False),
    "published settings": ("s", True),
    "displaced": ("o", True),
    "running": ("s", True),
    "memory+stream": ("o", False),
    "at equal updates": ("o", True),
    "at equal seconds": ("o", False),
}
_REACH = 45.0  # points shown on either side of 0; a longer interval says only that n is too small
_SMALL = 7.0  # points
_SCREEN = 9.0  # inches: a figure that is higher does not fit a screen


@styled
def means_with_intervals(table: pd.DataFrame, panels: Mapping[str, str]) -> Figure:
    """Means, 95 % intervals and the paper's values, in points; rows have the order of the table.

    An arrow marks an interval that reaches beyond the panel.

    Args:
        table: a row per mean: columns panel, dataset, memory_size, label (of the method, for the colour), setting (for
            the mark), n, mean, low and high. Optional columns: name (of the row, by default the label) and published
            (the paper's value, or NaN).
        panels: the text below each panel, by its name in the table.
    """
    names, reach = table.get("name", table["label"]), _reach_of(table)
    texts = [textwrap.fill(f"{name}, n={n}", 32) for name, n in zip(names, table["n"], strict=True)]
    lines = max((text.count("\n") + 1 for text in texts), default=1)
    width = min(7.0, max(WIDTH, 5 + widest(texts, _SMALL)))
    figure, axes = plt.subplots(1, len(panels), figsize=(width, 1), sharey=True)
    ax_of = dict(zip(panels, axes, strict=True))
    beside, y, ticks, streams = ("axes fraction", "data"), 0.0, [], []
    table = table.assign(text=texts, name=names)
    # Each row is named once: it may have no mean in the last panel.
    table["is_named"] = ~table.duplicated(["dataset", "memory_size", "name", "setting"], keep="last")
    for stream, group in table.groupby(["dataset", "memory_size"], sort=False, dropna=False):
        streams.append(stream_name(*stream))
        indices = group.groupby(["name", "setting"], sort=False).ngroup()
        n_rows = indices.max() + 1
        height = max(n_rows, len(streams[-1].splitlines()) / lines)  # a name needs space, too
        for row, row_y in zip(group.to_dict("records"), y + (height - n_rows) / 2 + indices):
            ax, shade = ax_of[row["panel"]], color(row["label"])
            marker, filled = _MARKERS.get(row["setting"], ("o", True))
            low, high = np.clip([row["low"], row["high"]], -reach, reach)
            ax.plot([low, high], [row_y, row_y], color=shade, lw=1.4, solid_capstyle="butt")
            for end, is_longer, arrow in ((low, row["low"] < -reach, "<"), (high, row["high"] > reach, ">")):
                if is_longer:
                    ax.plot(end, row_y, arrow, color=shade, ms=5)
            ax.plot(row["mean"], row_y, marker, color=shade, mfc=shade if filled else "white", ms=4.5, zorder=3)
            if pd.notna(row.get("published")):
                ax.plot(row["published"], row_y, **PAPER, zorder=4)
            if row["is_named"]:
                axes[-1].annotate(row["text"], (1.03, row_y), xycoords=beside, va="center", fontsize=_SMALL)
        for ax in axes if y else ():
            ax.axhline(y - 0.9, color="0.85", lw=0.8)
        ticks.append(y + (height - 1) / 2)
        y += height + 0.8
    figure.set_figheight(1 + 0.155 * lines * y)
    for panel, ax in ax_of.items():
        ax.axvline(0, color="black", lw=0.8)
        ax.set_xlim(-reach - 2, reach + 2)
        ax.set_xlabel(panels[panel], fontsize=_SMALL)
        ax.tick_params(axis="y", length=0)
        if figure.get_figheight() > _SCREEN:  # repeated above the panel
            ax.set_title(panels[panel], fontsize=_SMALL)
            ax.tick_params(axis="x", top=True, labeltop=True)
    axes[0].set_yticks(ticks, streams)
    axes[0].set_ylim(y - 0.4, -0.8)
    marks = {setting: mark for setting, mark in _MARKERS.items() if setting in {*table["setting"]}}
    handles = [Line2D([], [], color="0.3", marker=m, mfc="0.3" if f else "white", ls="") for m, f in marks.values()]
    if "published" in table and table["published"].notna().any():
        handles, marks = [*handles, paper_mark()], marks | {"the paper": ("D", False)}
    beyond = ", arrows: longer" if (table[["low", "high"]].abs() > reach).any(axis=None) else ""
    legend(figure, handles, list(marks), f"paired differences: mean and 95 % interval{beyond}")
    return figure


def _reach_of(table: pd.DataFrame) -> float:
    """The points to show on either side of 0: enough for means, the paper, and intervals up to `_REACH`."""
    largest = table.reindex(columns=["mean", "low", "high", "published"]).astype(float).abs().max()
    ends = largest[["low", "high"]].max()
    return float(np.nanmax([min(_REACH, ends), *(1.15 * largest[["mean", "published"]])]))


def stream_name(dataset: str, memory_size: float) -> str:
    """A stream in lines of at most 24 characters, with its memory size in the last line, if it has one."""
    name = textwrap.fill(plain(dataset), 24)
    return name if pd.isna(memory_size) else f"{name}\nmemory {memory_size:g}"


def paper_mark() -> Line2D:
    """The paper's mark in a legend."""
    return Line2D([], [], color="black", marker="D", mfc="none", ls="")


def forest(effects: pd.DataFrame) -> Figure:
    """Differences in A and in F from one comparator, a row per stream, name and setting.

    The table is as that of `ucl.report.results.effects`, with the optional columns of `means_with_intervals`.
    """
    comparator = " and ".join(effects["comparator"].unique())
    # A lower F is not always better: a network that learns less has less to forget.
    sides = {"A": "better: right", "F": "left: more retained,\nor less learnt"}
    texts = {m: textwrap.fill(f"difference in {m} from {comparator} [points]", 30) + f"\n({sides[m]})" for m in "AF"}
    return means_with_intervals(effects.assign(panel=effects["metric"]), texts)


def decisive(judged: pd.DataFrame) -> Figure:
    """F of BI and EN minus that of ER and of kept uniform, per stream and over all: mean and 95 % interval.

    Dotted: the margin; an interval that lies right of it fails. Of the table of `ucl.evidence.hypotheses.judged`, the
    comparisons that expect "less" are shown.
    """
    shown = judged[judged["expected"] == "less"].sort_values(["dataset", "memory"], kind="stable")
    shown = shown.sort_values("memory_size", key=pd.isna, kind="stable")  # over all streams in the last rows
    n = [f"{n} of {planned}" if n < planned else n for n, planned in zip(shown["n"], shown["planned"], strict=True)]
    table = shown.assign(panel=shown["other_memory"], label=shown["memory"], setting="everything rescored", n=n)
    panels = {name: f"difference in F\nfrom {name} [points]" for name in ("ER", "kept uniform")}
    figure = means_with_intervals(table, panels)
    for ax in figure.axes:
        plt.setp([line for line in ax.lines if line.get_marker() == "o"], ms=3)  # smaller than the intervals
        ax.axvline(-MARGINS["F"], color="black", lw=0.8, ls=":")
    return figure


def leaderboard(gaps: pd.DataFrame) -> Figure:
    """Differences in A and in F from CBR, see `ucl.evidence.leaderboard.gaps`: sorted by A at equal updates.

    At equal seconds are shown the policies that are then compared with more updates of CBR.
    """
    at_seconds = (gaps["comparator"] == AT_EQUAL_SECONDS) & (gaps["updates"] > 1)  # with 1 it is the same comparison
    shown = gaps[(gaps["comparator"] == "CBR") | at_seconds]
    by_a = shown[(shown["metric"] == "A") & (shown["comparator"] == "CBR")].sort_values("mean", ascending=False)
    shown = shown.sort_values("policy", key=lambda names: names.map([*by_a["policy"]].index), kind="stable")
    settings = shown["comparator"].map({"CBR": "at equal updates", AT_EQUAL_SECONDS: "at equal seconds"})
    stream = {"dataset": DATASET, "memory_size": MEMORY_SIZE}
    return forest(shown.assign(**stream, name=shown["policy"], setting=settings, comparator="CBR"))


def swaps(differences: pd.DataFrame, comparator: str) -> Figure:
    """What memories change in one frozen state, see `ucl.studies.memory_swap.against`: a panel per measure."""
    measures = {"retained": "retained\n(earlier tasks)", "last": "last\n(task learnt)", "A": "A\n(all tasks so far)"}
    panels = {name: f"difference in {text}\nfrom {comparator} [points]" for name, text in measures.items()}
    methods = method_order(differences["method"])
    shown = differences.sort_values("method", key=lambda names: names.map(methods.index), kind="stable")
    names = shown["method"].map(leaderboard_name)
    return means_with_intervals(
        shown.assign(panel=shown["measure"], label=shown["method"], name=names, setting=""), panels
    )
