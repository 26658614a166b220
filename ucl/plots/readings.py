"""Figures of readings: the same networks, tested with several sets of BatchNorm statistics."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ucl.catalogue import method_order
from ucl.evidence import paper
from ucl.plots import rows
from ucl.plots.style import color, styled

_PAPER = rows.PAPER | {"ms": 5}
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
    axes[0].set_yticks(list(labels), list(labels.values()))
    for label in axes[0].get_yticklabels():
        label.set_fontweight("normal" if " n = " in label.get_text() else "bold")
    handles = [*(rows.mark(*look) for look in _READINGS.values()), rows.paper_mark()]
    names = [*_READINGS, "the paper, BI minus ER"]
    figure.legend(handles, names, loc="outside upper center", ncols=4, columnspacing=1, handletextpad=0.2)
    return figure


@styled
def tested_again(table: pd.DataFrame) -> Figure:
    """F of BI's networks, as the run tests them and with the statistics of training, next to ER's.

    Large marks are means, small dots seeds, hollow diamonds the paper's means.

    Args:
        table: see `ucl.evidence.run_measures.by_reading`; streams without BI's networks are left out.
    """
    bi = "BI bottom, published settings"
    marks = {
        ("ER", "running"): "ER",
        (bi, "running"): "BI, tested as in the reference implementation",
        (bi, "training"): "the same networks, with the statistics of training",
    }
    streams = [
        (stream, part) for stream, part in table.groupby(["dataset", "memory_size"]) if bi in set(part["method"])
    ]
    figure, ax = plt.subplots(figsize=(5.5, 1.1 + 0.62 * len(streams)))
    handles, names = {}, []
    for y, (stream, part) in enumerate(streams):
        by_test = part.set_index(["method", "reading"])["F"].sort_index()
        for i, ((method, reading), text) in enumerate(marks.items()):
            at, f, filled = y + 0.26 * (i - 1), by_test.loc[method, reading], reading == "running"
            shade, marker = color(method), "s" if filled else "o"
            ax.plot(f, np.full(len(f), at), "o", color=shade, ms=3, alpha=0.4, mew=0)
            (handles[text],) = ax.plot(f.mean(), at, marker, color=shade, mfc=shade if filled else "white", ms=7)
            if filled:
                ax.plot(paper.printed(stream, method, "F"), at, **_PAPER)
        names.append(f"{rows.stream_name(*stream)}, n = {len(by_test.loc[bi, 'running'])}")
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.45, -0.55)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("last forgetting F [%]")
    ax.grid(axis="x", color="0.9")
    ax.set_axisbelow(True)
    handles["the paper"] = rows.paper_mark()
    figure.legend(list(handles.values()), list(handles), loc="outside upper left")
    return figure
