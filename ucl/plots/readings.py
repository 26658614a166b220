"""Figures of readings: the same networks, tested with several sets of BatchNorm statistics."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ucl.catalogue import READINGS, method_order
from ucl.evidence.run_measures import TESTED
from ucl.plots import rows
from ucl.plots.style import color, legend, styled

_PARTS = {
    "A": "last accuracy A",
    "F": "last forgetting F",
    "best": "earlier tasks\nat their best",
    "retained": "earlier tasks\nat the end",
    "last": "last task",
}
_BELOW = 0.3  # how far a row's further marks are below its first, in rows
_SHORTEST = 3.0  # points; a shorter arrow has no room between its marks
_READINGS = {"displaced": ("o", True), "running": ("s", True), "memory+stream": ("o", False)}


@styled
def parts_of_f(table: pd.DataFrame) -> Figure:
    """The same networks with several BatchNorm statistics: A, F and the accuracies behind F, one row per reading.

    Each method has its colour, and in the legend its number of seeds. Large dots are means over them, small dots single
    seeds. Bars reach one sample standard deviation to either side of the mean, but not beyond 0 % and 100 %
    (F: -100 % and 100 %).

    Args:
        table: see `ucl.evidence.run_measures.by_reading`; of one data set and memory size.
    """
    names = [name for name in ("running", *READINGS) if name in set(table["reading"])]
    methods = method_order(list(table["method"]))
    figure, axes = plt.subplots(1, len(_PARTS), figsize=(12, 1.6 + 0.45 * len(names)), sharey=True)
    for ax, (column, title) in zip(axes, _PARTS.items()):
        for (method, reading), values in table.groupby(["method", "reading"])[column]:
            y = names.index(reading) + (methods.index(method) - (len(methods) - 1) / 2) * 0.7 / len(methods)
            mean, spread = values.mean(), values.std(ddof=1) if len(values) > 1 else 0
            ends = np.clip([mean - spread, mean + spread], -100 if column == "F" else 0, 100)
            ax.plot(values, np.full(len(values), y), ".", color=color(method), ms=3, alpha=0.5)
            ax.plot(ends, [y, y], color=color(method), lw=1.2)
            ax.plot(mean, y, "o", color=color(method), ms=5)
        ax.set(title=title, xlabel="[%]")
        ax.grid(axis="x", color="0.9")
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    note = "small dots: seeds; large dots and bars: mean ± one standard deviation"
    figure.supxlabel(f"{note}, for accuracies cut off at 0 % and 100 %", fontsize="small")
    handles = [Line2D([], [], color=color(method), marker="o", ls="") for method in methods]
    numbers = table.groupby("method")["seed"].nunique()
    legend(figure, handles, [f"{method}, n = {numbers[method]}" for method in methods])
    return figure


@styled
def differences(effects: pd.DataFrame) -> Figure:
    """The effect of the statistics alone on A and F, one row per stream, method and reading: mean and 95 % interval.

    Filled circles: `displaced`; squares: `running`, the run's own statistics, changed by its scoring; open circles:
    `memory+stream`. Hollow diamonds: the paper's gain, BI with bottom-k minus ER; it is not a difference of readings.

    Args:
        effects: differences from the reading `training`, see `ucl.evidence.run_measures.between_readings`, with columns
            reading and published in addition.
    """
    table = effects.assign(
        stream=effects.groupby(["dataset", "memory_size"], sort=False).ngroup(),
        reading=pd.Categorical(effects["reading"], list(_READINGS)),
        method=pd.Categorical(effects["method"], method_order(effects["method"])),
    ).sort_values(["stream", "reading", "method"], kind="stable")
    table["label"], table["setting"] = table["method"].astype(str), table["reading"].astype(str)
    table["name"] = table["label"] + ": " + table["setting"]
    table["published"] = table["published"].mask(table.duplicated(["stream", "metric"]))
    figure = rows.differences_by_stream(table, _READINGS, rows.REACH, ' from "training"', 13, 1.6)
    handles = [*(rows.mark(*look) for look in _READINGS.values()), rows.paper_mark()]
    legend(figure, handles, [*_READINGS, "the paper, BI minus ER"])
    return figure


@styled
def moved_by_scoring(means: pd.DataFrame) -> Figure:
    """Mean A and F of the same networks, before and after scoring passes moved the statistics that the test reads.

    Hollow circles: the statistics of training. Filled circles: moved by the added passes of `displaced`. Squares, where
    the run itself has scored: moved by its own passes. An arrow goes to each that is more than 3 points away. Hollow
    diamonds: the paper's means.

    Args:
        means: see `ucl.evidence.run_measures.moved_by_scoring`.
    """
    streams = list(means.groupby(["dataset", "memory_size"], sort=False))
    height = 1.9 + 0.42 * (len(means) + len(streams))
    figure, axes = plt.subplots(1, 2, figsize=(10, height), sharex=True, sharey=True)
    y, ticks, names = 0.0, [], []
    for stream, group in streams:
        ticks.append(y + (len(group) - 1) / 2)
        names.append(f"{rows.stream_name(*stream)}\nn = {group['n'].iloc[0]}")
        for row in group.to_dict("records"):
            for ax, metric in zip(axes, "AF"):
                before, *moved = (row[f"{metric}_{reading}"] for reading in TESTED)
                shade, at = color(row["method"]), y
                arrow = {"arrowstyle": "->", "color": shade, "lw": 1.6, "shrinkA": 4, "shrinkB": 4}
                for reading, after in zip(TESTED[1:], moved, strict=True):
                    if reading == "running" and after == before:  # The run has not scored.
                        continue
                    if abs(after - before) > _SHORTEST:
                        ax.annotate("", (after, at), (before, at), arrowprops=arrow)
                    ax.plot(before, at, "o", color=shade, mfc="white", ms=7)
                    ax.plot(after, at, _READINGS[reading][0], color=shade, ms=7)
                    at += _BELOW
                ax.plot(row[f"{metric}_published"], at, "D", color="black", mfc="none", ms=6, alpha=0.7)
            rows.text_of_row(axes[1], y, row["method"])
            y += 1
        y += 1
        for ax in axes:
            ax.axhline(y - 1, color="0.85", lw=0.8)
    rows.name_rows(axes, "last accuracy A [%]", "last forgetting F [%]", ticks, names, y - 1)
    for ax in axes:
        ax.grid(axis="x", color="0.9")
        ax.set_axisbelow(True)
    handles = [rows.mark("o", False), rows.mark("o", True), rows.mark("s", True), rows.paper_mark()]
    texts = ("statistics of training", "passes added (displaced)", "the run's own scoring (running)", "the paper")
    figure.legend(handles, texts, loc="outside upper center", ncols=4)
    return figure
