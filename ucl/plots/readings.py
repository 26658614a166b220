"""Figures of readings: the same networks, tested with several sets of BatchNorm statistics."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ucl.catalogue import READINGS, method_order
from ucl.plots import rows
from ucl.plots.style import color, legend, styled

_PARTS = {
    "A": "last accuracy A",
    "F": "last forgetting F",
    "best": "earlier tasks\nat their best",
    "retained": "earlier tasks\nat the end",
    "last": "last task",
}
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
def tested_again(means: pd.DataFrame) -> Figure:
    """F of BI's networks, as the run tests them and with the statistics of training, next to ER's.

    Means with 95 % intervals. Hollow diamonds: the paper's means.

    Args:
        means: see `ucl.evidence.run_measures.moved_by_scoring`.
    """
    bi = "BI bottom, published settings"
    marks = {
        ("ER", "running"): ("s", "ER"),
        (bi, "running"): ("s", "BI, tested as in the reference implementation"),
        (bi, "training"): ("o", "the same networks, with the statistics of training"),
    }
    streams, handles = means.groupby(["dataset", "memory_size"], sort=False), {}
    figure, ax = plt.subplots(figsize=(5.5, 1.1 + 0.62 * len(streams)))
    for y, (_, rows_of_stream) in enumerate(streams):
        by_method = rows_of_stream.set_index("method")
        for i, ((method, reading), (marker, text)) in enumerate(marks.items()):
            row, at, shade = by_method.loc[method], y + 0.26 * (i - 1), color(method)
            mean, half, filled = row[f"F_{reading}"], row[f"half_{reading}"], reading == "running"
            ax.plot([mean - half, mean + half], [at, at], color=shade, lw=1.6, solid_capstyle="butt")
            (handles[text],) = ax.plot(mean, at, marker, color=shade, mfc=shade if filled else "white", ms=6)
            if filled:
                ax.plot(row["F_published"], at, "D", color="black", mfc="none", ms=5, alpha=0.7)
    names = [f"{rows.stream_name(*stream)}, n = {part['n'].iloc[0]}" for stream, part in streams]
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.45, -0.55)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("last forgetting F [%]")
    ax.grid(axis="x", color="0.9")
    ax.set_axisbelow(True)
    handles["the paper"] = rows.paper_mark()
    figure.legend(list(handles.values()), list(handles), loc="outside upper left", fontsize=8)
    return figure
