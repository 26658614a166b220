"""Figures of readings: the same networks, tested with several sets of BatchNorm statistics."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from ucl.catalogue import method_order
from ucl.plots import rows
from ucl.plots.style import color, styled

_PAPER: dict[str, Any] = {"marker": "D", "color": "black", "mfc": "none", "ms": 5, "alpha": 0.7}
_READINGS = {"displaced": ("o", True), "running": ("s", True), "memory+stream": ("o", False)}


@styled
def differences(effects: pd.DataFrame) -> Figure:
    """The effect of the statistics alone on A and F, one row per stream and method: means and 95 % intervals.

    Filled circles: `displaced`; squares: `running`, the run's own statistics, changed by its scoring; open circles:
    `memory+stream`. Hollow diamonds: the paper's gain, BI with bottom-k minus ER; it is not a difference of readings.

    Args:
        effects: differences from the reading `training`, see `ucl.evidence.run_measures.between_readings`, with columns
            reading and published in addition.
    """
    figure, axes = plt.subplots(1, 2, sharey=True)
    y, labels = 0.0, {}
    for stream, of_stream in effects.groupby(["dataset", "memory_size"], sort=False):
        labels[y] = rows.stream_name(*stream).replace("\n", ", ")
        for ax, metric in zip(axes, "AF"):
            ax.plot(of_stream.loc[of_stream["metric"] == metric, "published"].iloc[0], y, **_PAPER)
        for method in method_order(of_stream["method"]):
            y += 1
            of_method = of_stream[of_stream["method"] == method]
            labels[y] = f"{method.split(',')[0]}, n = {of_method['n'].iloc[0]}"
            for row in of_method.to_dict("records"):
                at = y + 0.27 * (list(_READINGS).index(row["reading"]) - 1)
                ax = axes["AF".index(row["metric"])]
                rows.interval(ax, at, row, rows.REACH, color(method), *_READINGS[row["reading"]])
        y += 1.3
    figure.set_size_inches(5.5, 1.3 + 0.2 * y)
    for ax, metric in zip(axes, "AF"):
        ax.axvline(0, color="black", lw=0.8)
        ax.set_xlabel(f"difference from training\nin {metric} [points]")
        ax.tick_params(axis="y", length=0)
    axes[0].set_ylim(y - 0.5, -0.8)
    axes[0].set_yticks(list(labels), list(labels.values()), fontsize=8)
    for label in axes[0].get_yticklabels():
        label.set_fontweight("normal" if " n = " in label.get_text() else "bold")
    handles = [*(rows.mark(*look) for look in _READINGS.values()), rows.paper_mark()]
    names = [*_READINGS, "the paper, BI minus ER"]
    figure.legend(handles, names, loc="outside upper center", ncols=4, fontsize=8, columnspacing=1, handletextpad=0.2)
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
                ax.plot(row["F_published"], at, **_PAPER)
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
