"""Rows of marks, one per method or setting, in a panel of A and a panel of F: what the figures of them share."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ucl.plots.style import WIDTH, color, plain, widest

REACH = 45.0  # points shown on either side of 0; a longer interval says only that n is too small
_SMALL = 7.0  # points
TALL = 9.0  # inches; a figure that is taller does not fit a screen


def reach_of(effects: pd.DataFrame) -> float:
    """The points to show on either side of 0: enough for all means, and for intervals up to `REACH`."""
    largest = effects[["mean", "low", "high"]].abs().max()
    return float(np.nanmax([min(REACH, largest.max()), 1.15 * largest["mean"]]))


def stream_name(dataset: str, memory_size: float) -> str:
    """A stream in lines of at most 24 characters, with its memory size in the last line, if it has one."""
    name = textwrap.fill(plain(dataset), 24)
    return name if pd.isna(memory_size) else f"{name}\nmemory {memory_size:g}"


def differences_by_stream(
    effects: pd.DataFrame, markers: Mapping[str, tuple[str, bool]], reach: float, tail: str
) -> Figure:
    """Draw a row per stream, label and setting, with its interval of A on the left and that of F on the right.

    Args:
        effects: columns dataset, memory_size, label, setting, metric, mean, low, high and n; name, the row's text; and,
            if the paper's differences are to be drawn, published.
        markers: per setting the marker, and whether it is filled; of others a filled circle.
        reach: points shown on either side of 0.
        tail: the rest of the label after "difference in A".
    """
    texts = [textwrap.fill(f"{name}, n={n}", 32) for name, n in zip(effects["name"], effects["n"], strict=True)]
    lines = max((text.count("\n") + 1 for text in texts), default=1)
    width = min(7.0, max(WIDTH, 5 + widest(texts, _SMALL)))
    figure, axes = plt.subplots(1, 2, figsize=(width, 1), sharey=True)
    y, ticks, names = 0.0, [], []
    effects = effects.assign(text=texts)
    for stream, group in effects.groupby(["dataset", "memory_size"], sort=False, dropna=False):
        names.append(stream_name(*stream))
        rows = group.groupby(["label", "setting"], sort=False).ngroup()
        n_rows = rows.max() + 1
        height = max(n_rows, len(names[-1].splitlines()) / lines)  # a name needs space, too
        for row, row_y in zip(group.to_dict("records"), y + (height - n_rows) / 2 + rows):
            ax = axes["AF".index(row["metric"])]
            interval(ax, row_y, row, reach, color(row["label"]), *markers.get(row["setting"], ("o", True)))
            if pd.notna(row.get("published")):
                ax.plot(row["published"], row_y, "D", color="black", mfc="none", ms=4, alpha=0.7)
            if row["metric"] == "F":
                text_of_row(ax, row_y, row["text"])
        ticks.append(y + (height - 1) / 2)
        y += height + 0.8
        for ax in axes:
            ax.axhline(y - 0.9, color="0.85", lw=0.8)
    figure.set_figheight(1 + 0.155 * lines * y)
    finish_differences(axes, reach, tail, ticks, names, y - 0.4)
    return figure


def interval(
    ax: Axes, y: float, row: Mapping[Any, Any] | pd.Series, reach: float, shade: Any, marker: str, filled: bool
) -> None:
    """Draw a mean with its interval; arrows mark ends beyond `reach` points."""
    low, high = np.clip([row["low"], row["high"]], -reach, reach)
    ax.plot([low, high], [y, y], color=shade, lw=1.4, solid_capstyle="butt")
    for end, beyond, arrow in ((low, row["low"] < -reach, "<"), (high, row["high"] > reach, ">")):
        if beyond:
            ax.plot(end, y, arrow, color=shade, ms=5)
    ax.plot(row["mean"], y, marker, color=shade, mfc=shade if filled else "white", ms=4.5, zorder=3)


def finish_differences(
    axes: Sequence[Axes], reach: float, tail: str, ticks: Sequence[float], names: Sequence[str], bottom: float
) -> None:
    """Label the panels of differences in A and F and their rows, and draw the line of no difference."""
    # A lower F is not always better: a network that learns less has less to forget.
    for ax, metric, sides in zip(axes, "AF", ("better: right", "left: more retained,\nor less learnt"), strict=True):
        text = textwrap.fill(f"difference in {metric}{tail} [points]", 30) + f"\n({sides})"
        ax.axvline(0, color="black", lw=0.8)
        ax.set_xlim(-reach - 2, reach + 2)
        ax.set_xlabel(text, fontsize=_SMALL)
        ax.tick_params(axis="y", length=0)
        label_top(ax, text)
    axes[0].set_yticks(ticks, names)
    axes[0].set_ylim(bottom, -0.8)


def label_top(ax: Axes, text: str) -> None:
    """Repeat the label and the numbers of the x axis above the panel if the figure is taller than a screen."""
    if ax.figure.bbox.height > TALL * ax.figure.dpi:
        ax.set_title(text, fontsize=ax.xaxis.label.get_fontsize())
        ax.tick_params(axis="x", top=True, labeltop=True)


def text_of_row(ax: Axes, y: float, text: str) -> None:
    ax.annotate(text, (1.03, y), xycoords=("axes fraction", "data"), va="center", fontsize=_SMALL)


def mark(marker: str, filled: bool) -> Line2D:
    """The mark of a setting in a legend."""
    return Line2D([], [], color="0.3", marker=marker, mfc="0.3" if filled else "white", ls="")


def paper_mark() -> Line2D:
    return Line2D([], [], color="black", marker="D", mfc="none", ls="")
