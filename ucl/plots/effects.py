"""Figures of paired differences and of readings."""

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

from ucl.choices import READINGS
from ucl.evidence.leaderboard import AT_EQUAL_SECONDS, with_updates
from ucl.evidence.order import method_order
from ucl.plots.style import STYLE, color, legend, plain

_PARTS = {
    "A": "last accuracy A",
    "F": "last forgetting F",
    "best": "earlier tasks\nat their best",
    "retained": "earlier tasks\nat the end",
    "last": "last task",
}
_REDRAW = (0.0, 0.3, 0.35)  # dark, next to CBR's light blue
_MARKERS = {"everything rescored": ("o", True), "refresh=2": ("o", False), "published settings": ("s", True)}
_SHORT = {"everything rescored": "all rescored", "published settings": "published"}  # settings in the texts of rows
_READINGS = {"displaced": ("o", True), "running": ("s", True), "memory+stream": ("o", False)}
REACH = 45.0  # points shown on either side of 0; a longer interval says only that n is too small


def forest(effects: pd.DataFrame) -> Figure:
    """Differences in A and in F, one row per stream, score and setting: mean, 95 % interval and the paper's difference.

    Filled circles: everything rescored; open circles: `refresh=2`; squares: the published settings; hollow diamonds:
    the paper. An arrow marks an interval that reaches beyond the panel.

    Args:
        effects: see `ucl.evidence.run_measures.effects_of_scores`; of one comparator. If it has a column `name`, that
            names the rows.
    """
    groups = list(effects.groupby(["dataset", "memory_size"], sort=False, dropna=False))
    reach = REACH
    if "name" in effects:
        largest = [effects[name].abs().max() for name in ("mean", "low", "high")]
        reach = max(min(REACH, np.nanmax(largest)), 1.15 * largest[0])
    other = " and ".join(effects["comparator"].unique())
    streams = [_stream_name(*stream) for stream, _ in groups]
    lowest = [0.7 * len(stream.splitlines()) - 0.8 for stream in streams]  # rows that a name needs, without the gap
    heights = [max(len(own.groupby(["label", "setting"])), low) for (_, own), low in zip(groups, lowest)]
    longest = max(effects["name"].map(len), default=0) if "name" in effects else 0
    widest = max((len(line) for stream in streams for line in stream.splitlines()), default=0)
    with plt.rc_context(STYLE):
        # Long names make the figure wider, and leave the panels as wide as they are.
        width = 10 + 0.065 * max(0, longest - 20) + 0.085 * max(0, widest - 12)
        figure, axes = plt.subplots(1, 2, figsize=(width, 1.3 + 0.24 * sum(heights) + 0.2 * len(groups)), sharey=True)
        y, ticks = 0.0, []
        for (_, own), height in zip(groups, heights):
            start = y
            y += (height - len(own.groupby(["label", "setting"]))) / 2  # the rows are centred next to a high name
            for (label, setting), rows in own.groupby(["label", "setting"], sort=False):
                marker, filled = _MARKERS.get(setting, ("o", True))
                shade = color(label)
                for ax, metric in zip(axes, "AF"):
                    of_metric = rows[rows["metric"] == metric]
                    if of_metric.empty:
                        continue
                    row = of_metric.iloc[0]
                    _interval(ax, y, row, reach, shade, marker, filled)
                    ax.plot(row["published"], y, "D", color="black", mfc="none", ms=5, alpha=0.7)
                    if metric == "F":
                        name = row.get("name", f"{label.partition(' ')[0]} {_SHORT.get(setting, setting)}")
                        _text_of_row(ax, y, f"{name}, n={row['n']}")
                y += 1
            y = start + height
            ticks.append((start + y - 1) / 2)
            y += 0.8
            for ax in axes:
                ax.axhline(y - 0.9, color="0.85", lw=0.8)
        _finish(axes, reach, f" from {other}", ticks, streams, y - 0.4)
        if "name" in effects:
            figure.suptitle("paired differences: mean and 95 % interval", fontsize="medium")
        else:
            legend(figure, *_keys(effects))
    return figure


def _stream_name(dataset: str, memory_size: float) -> str:
    """A stream in lines of at most 24 characters, with its memory size in the last line, if it has one."""
    name = textwrap.fill(plain(dataset), 24)
    return name if pd.isna(memory_size) else f"{name}\nmemory {memory_size:g}"


def leaderboard(gaps: pd.DataFrame) -> Figure:
    """Differences in A and in F from CBR, one row per policy: mean and 95 % interval.

    Filled circles: at equal updates. Hollow circles: at equal seconds, if CBR then has more updates than the policy.
    Squares: CBR itself with several training steps per batch. An arrow marks an interval that reaches beyond the panel.
    The text on the right is n and the CBR of the comparison at equal seconds.

    Args:
        gaps: see `ucl.evidence.leaderboard.gaps`; of one stream.
    """
    at_seconds = (gaps["comparator"] == AT_EQUAL_SECONDS) & (gaps["updates"] > 1)  # with 1 it is the same comparison
    shown = gaps[(gaps["comparator"] == "CBR") | at_seconds]
    order = {label: rank for rank, label in enumerate(method_order(list(shown["label"])))}
    policies = list(dict.fromkeys(shown.sort_values("label", key=lambda own: own.map(order), kind="stable")["policy"]))
    limits = shown[["mean", "low", "high"]].abs().max()
    reach = REACH if shown.empty else float(np.nanmax([min(REACH, limits.max()), 1.15 * limits["mean"]]))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(10, 1.6 + 0.34 * len(policies)), sharey=True)
        for y, policy in enumerate(policies):
            own = shown[shown["policy"] == policy]
            several_updates = own[own["comparator"] == AT_EQUAL_SECONDS]
            apart = 0.16 if len(several_updates) else 0.0
            shade, several = color(own["label"].iloc[0]), own["label"].iloc[0] == "CBR"
            for row in own.to_dict("records"):
                filled = row["comparator"] == "CBR"
                height = y - apart if filled else y + apart
                _interval(axes["AF".index(row["metric"])], height, row, reach, shade, "s" if several else "o", filled)
            _text_of_row(axes[1], y, _n_and_updates(own[own["comparator"] == "CBR"], several_updates))
        _finish(axes, reach, " from CBR", range(len(policies)), policies, max(len(policies), 1) - 0.4)
        looks = [("o", True, "at equal updates")]
        looks += [("o", False, "at equal seconds")] if (shown["comparator"] == AT_EQUAL_SECONDS).any() else []
        looks += [("s", True, "CBR with more updates")] if (shown["label"] == "CBR").any() else []
        handles = [_mark(marker, filled) for marker, filled, _ in looks]
        figure.legend(handles, [text for *_, text in looks], loc="outside upper center", ncols=len(looks))
    return figure


def readings(table: pd.DataFrame) -> Figure:
    """The same networks with several BatchNorm statistics: A, F and the accuracies behind F, one row per reading.

    Each method has its colour. Large dots are means over the seeds, small dots single seeds. Bars reach one sample
    standard deviation to either side of the mean, but not beyond 0 % and 100 % (F: -100 % and 100 %).

    Args:
        table: see `ucl.evidence.run_measures.by_reading`; of one data set and memory size.
    """
    names = [name for name in ("running", *READINGS) if name in set(table["reading"])]
    methods = method_order(list(table["method"]))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(_PARTS), figsize=(12, 1.6 + 0.45 * len(names)), sharey=True)
        for ax, (column, title) in zip(axes, _PARTS.items()):
            lowest = -100 if column == "F" else 0
            for index, method in enumerate(methods):
                offset = (index - (len(methods) - 1) / 2) * 0.7 / len(methods)
                shade = _shade(method)
                for y, name in enumerate(names):
                    values = table.loc[(table["method"] == method) & (table["reading"] == name), column]
                    mean, spread = values.mean(), values.std(ddof=1) if len(values) > 1 else 0
                    ends = np.clip([mean - spread, mean + spread], lowest, 100)
                    ax.plot(values, np.full(len(values), y + offset), ".", color=shade, ms=3, alpha=0.5)
                    ax.plot(ends, [y + offset] * 2, color=shade, lw=1.2)
                    ax.plot(mean, y + offset, "o", color=shade, ms=5)
            ax.set(title=title, xlabel="[%]")
            ax.grid(axis="x", color="0.9")
        axes[0].set_yticks(range(len(names)), names)
        axes[0].set_ylim(len(names) - 0.5, -0.5)
        what = "small dots: seeds; large dots and bars: mean ± one standard deviation"
        figure.supxlabel(f"{what}, for accuracies cut off at 0 % and 100 %", fontsize="small")
        handles = [Line2D([], [], color=_shade(method), marker="o", ls="") for method in methods]
        legend(figure, handles, methods)
    return figure


def of_readings(effects: pd.DataFrame) -> Figure:
    """What the statistics alone change in A and F, one row per stream, method and reading: mean and 95 % interval.

    Filled circles: `displaced`; squares: `running`, the run's own statistics, changed by its scoring; open circles:
    `memory+stream`. Hollow diamonds: the paper's gain, BI with bottom-k minus ER; it is not a difference of readings.

    Args:
        effects: differences from the reading `training`, see `ucl.evidence.run_measures.between_readings`, with columns
            reading and published in addition.
    """
    streams = list(effects.groupby(["dataset", "memory_size"], sort=False))
    with plt.rc_context(STYLE):
        rows = len(effects) / 2 + 0.8 * len(streams)
        figure, axes = plt.subplots(1, 2, figsize=(13, 1.6 + 0.24 * rows), sharey=True)
        y, ticks, names = 0.0, [], []
        for (dataset, size), own in streams:
            start = y
            for reading in (name for name in _READINGS if name in set(own["reading"])):
                marker, filled = _READINGS[reading]
                of_reading = own[own["reading"] == reading]
                for method in method_order(list(of_reading["method"])):
                    of_method = of_reading[of_reading["method"] == method].set_index("metric")
                    for ax, metric in zip(axes, "AF"):
                        row = of_method.loc[metric]
                        _interval(ax, y, row, REACH, _shade(method), marker, filled)
                        if y == start:
                            ax.plot(row["published"], y, "D", color="black", mfc="none", ms=5, alpha=0.7)
                    name = method.replace(", published settings", " (published)")
                    _text_of_row(axes[1], y, f"{name}: {reading}, n={of_method.loc['F', 'n']}")
                    y += 1
            ticks.append((start + y - 1) / 2)
            names.append(f"{dataset}\nmemory {size}")
            y += 0.8
            for ax in axes:
                ax.axhline(y - 0.9, color="0.85", lw=0.8)
        _finish(axes, REACH, ' from "training"', ticks, names, y - 0.4)
        handles = [*(_mark(*look) for look in _READINGS.values()), _mark_of_the_paper()]
        legend(figure, handles, [*_READINGS, "the paper, BI minus ER"])
    return figure


def _interval(
    ax: Axes, y: float, row: Mapping[Any, Any] | pd.Series, reach: float, shade: Any, marker: str, filled: bool
) -> None:
    """Draw a mean with its interval; arrows mark ends beyond `reach` points."""
    low, high = np.clip([row["low"], row["high"]], -reach, reach)
    ax.plot([low, high], [y, y], color=shade, lw=1.6, solid_capstyle="butt")
    for end, beyond, arrow in ((low, row["low"] < -reach, "<"), (high, row["high"] > reach, ">")):
        if beyond:
            ax.plot(end, y, arrow, color=shade, ms=5)
    ax.plot(row["mean"], y, marker, color=shade, mfc=shade if filled else "white", ms=6, zorder=3)


def _n_and_updates(at_updates: pd.DataFrame, at_seconds: pd.DataFrame) -> str:
    """The text on the right, such as "n=5; at equal seconds: CBR, 4 updates"; n of the latter follows if it differs."""
    counts = [f"n={own['n'].iloc[0]}" for own in (at_updates, at_seconds) if len(own)]
    if not len(at_seconds):
        return counts[0]
    texts = [counts[0], f"at equal seconds: {with_updates(at_seconds['updates'].iloc[0])}"]
    return "; ".join([*texts, *(counts[1:] if counts[-1] != counts[0] else [])])


def _finish(
    axes: Sequence[Axes], reach: float, what: str, ticks: Sequence[float], names: Sequence[str], bottom: float
) -> None:
    """Label the panels of A and F and their rows, and draw the line of no difference."""
    # A lower F is not always better: a network that learns less has less to forget.
    for ax, metric, sides in zip(axes, "AF", ("better: right", "left: more retained, or less learnt"), strict=True):
        ax.axvline(0, color="black", lw=0.8)
        ax.tick_params(axis="y", length=0)
        ax.set_xlim(-reach - 2, reach + 2)
        ax.set_xlabel("\n".join([textwrap.fill(f"difference in {metric}{what} [points]", 42), f"({sides})"]))
    axes[0].set_yticks(ticks, names)
    axes[0].set_ylim(bottom, -0.8)


def _text_of_row(ax: Axes, y: float, text: str) -> None:
    ax.annotate(text, (1.01, y), xycoords=("axes fraction", "data"), va="center", fontsize=8)


def _shade(method: str) -> tuple[float, float, float]:
    return _REDRAW if method == "CBR redraw" else color(method)


def _keys(effects: pd.DataFrame) -> tuple[list[Line2D], list[str]]:
    labels, settings = (list(dict.fromkeys(effects[column])) for column in ("label", "setting"))
    handles = [Line2D([], [], color=color(label), lw=3) for label in labels]
    handles += [*(_mark(*_MARKERS[setting]) for setting in settings), _mark_of_the_paper()]
    return handles, [*labels, *settings, "the paper"]


def _mark(marker: str, filled: bool) -> Line2D:
    """The mark of a setting in a legend."""
    return Line2D([], [], color="0.3", marker=marker, mfc="0.3" if filled else "white", ls="")


def _mark_of_the_paper() -> Line2D:
    return Line2D([], [], color="black", marker="D", mfc="none", ls="")
