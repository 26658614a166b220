"""Figures of paired differences."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ucl.catalogue import PAPER_SCORES, RIVALS, method_and_selection
from ucl.evidence.effects import ALL_STREAMS
from ucl.evidence.hypotheses import MARGINS
from ucl.evidence.leaderboard import AT_EQUAL_SECONDS
from ucl.plots import rows
from ucl.plots.style import COLORS, WIDTH, color, legend, styled, widest

_MARKERS = {
    "everything rescored": ("o", True),
    "refresh=2": ("o", False),
    "published settings": ("s", True),
    # readings
    "displaced": ("o", True),
    "running": ("s", True),
    "memory+stream": ("o", False),
}
_SMALL = 7.0  # points
_SCREEN = 9.0  # inches: a figure that is higher does not fit a screen


@styled
def forest(effects: pd.DataFrame) -> Figure:
    """Differences in A and in F: mean, 95 % interval and the paper's difference, one row per stream, label and setting.

    Filled circles: everything rescored, or the reading `displaced`; open circles: `refresh=2`, or `memory+stream`;
    squares: the published settings, or `running`; hollow diamonds: the paper. An arrow marks an interval that reaches
    beyond the panel.

    Args:
        effects: see `ucl.report.results.effects`; of one comparator. A column `name`, if it has one, names the rows,
            otherwise their labels do; published may be missing or NaN.
    """
    names, reach = effects.get("name", effects["label"]), _reach_of(effects)
    texts = [textwrap.fill(f"{name}, n={n}", 32) for name, n in zip(names, effects["n"], strict=True)]
    lines = max((text.count("\n") + 1 for text in texts), default=1)
    width = min(7.0, max(WIDTH, 5 + widest(texts, _SMALL)))
    figure, axes = plt.subplots(1, 2, figsize=(width, 1), sharey=True)
    y, ticks, streams = 0.0, [], []
    effects = effects.assign(text=texts)
    for stream, group in effects.groupby(["dataset", "memory_size"], sort=False, dropna=False):
        streams.append(rows.stream_name(*stream))
        indices = group.groupby(["label", "setting"], sort=False).ngroup()
        n_rows = indices.max() + 1
        height = max(n_rows, len(streams[-1].splitlines()) / lines)  # a name needs space, too
        for row, row_y in zip(group.to_dict("records"), y + (height - n_rows) / 2 + indices):
            ax = axes["AF".index(row["metric"])]
            rows.interval(ax, row_y, row, reach, color(row["label"]), *_MARKERS.get(row["setting"], ("o", True)))
            if pd.notna(row.get("published")):
                ax.plot(row["published"], row_y, **rows.PAPER)
            if row["metric"] == "F":
                _text_of_row(ax, row_y, row["text"])
        ticks.append(y + (height - 1) / 2)
        y += height + 0.8
        for ax in axes:
            ax.axhline(y - 0.9, color="0.85", lw=0.8)
    figure.set_figheight(1 + 0.155 * lines * y)
    _finish(axes, reach, " and ".join(effects["comparator"].unique()), ticks, streams, y - 0.4)
    if settings := [setting for setting in _MARKERS if setting in {*effects["setting"]}]:
        handles = [*(rows.mark(*_MARKERS[setting]) for setting in settings), rows.paper_mark()]
        legend(figure, handles, [*settings, "the paper"])
    else:
        figure.suptitle("paired differences: mean and 95 % interval", fontsize="medium")
    return figure


def _reach_of(effects: pd.DataFrame) -> float:
    """The points to show on either side of 0: enough for means, the paper, and intervals up to `rows.REACH`."""
    largest = effects.reindex(columns=["mean", "low", "high", "published"]).abs().max()
    ends = largest[["low", "high"]].max()
    return float(np.nanmax([min(rows.REACH, ends), *(1.15 * largest[["mean", "published"]])]))


def _text_of_row(ax: Axes, y: float, text: str) -> None:
    ax.annotate(text, (1.03, y), xycoords=("axes fraction", "data"), va="center", fontsize=_SMALL)


def _finish(
    axes: Sequence[Axes], reach: float, comparator: str, ticks: Sequence[float], names: Sequence[str], bottom: float
) -> None:
    """Label the panels of differences in A and F and their rows, and draw the line of no difference."""
    # A lower F is not always better: a network that learns less has less to forget.
    for ax, metric, sides in zip(axes, "AF", ("better: right", "left: more retained,\nor less learnt"), strict=True):
        text = textwrap.fill(f"difference in {metric} from {comparator} [points]", 30) + f"\n({sides})"
        ax.axvline(0, color="black", lw=0.8)
        ax.set_xlim(-reach - 2, reach + 2)
        ax.set_xlabel(text, fontsize=_SMALL)
        ax.tick_params(axis="y", length=0)
        if ax.figure.bbox.height > _SCREEN * ax.figure.dpi:  # repeated above the panel
            ax.set_title(text, fontsize=_SMALL)
            ax.tick_params(axis="x", top=True, labeltop=True)
    axes[0].set_yticks(ticks, names)
    axes[0].set_ylim(bottom, -0.8)


@styled
def decisive(judged: pd.DataFrame) -> Figure:
    """F of BI and EN minus that of ER and of kept uniform, per stream and over all: mean and 95 % interval.

    Hollow diamonds: the paper's difference. Dotted: the margin; an interval that lies right of it fails.

    Args:
        judged: see `ucl.evidence.hypotheses.judged`; the comparisons that expect "less" are shown.
    """
    shown, others = judged[judged["expected"] == "less"], ["ER", "kept uniform"]
    names = [
        dataset if dataset == ALL_STREAMS else f"{dataset} {size}"
        for dataset, size in zip(shown["dataset"], shown["memory_size"], strict=True)
    ]
    # over all streams in the last row
    streams = sorted({*names}, key=lambda name: (name == ALL_STREAMS, name))
    figure, axes = plt.subplots(1, 2, figsize=(WIDTH, 1 + 0.4 * len(streams)), sharex=True, sharey=True)
    for name, row in zip(names, shown.to_dict("records"), strict=True):
        ax, y = axes[others.index(row["other_memory"])], streams.index(name)
        at = y - 0.15 if row["memory"] == "BI bottom" else y + 0.15
        rows.interval(ax, at, row, rows.REACH, color(row["memory"]), "o", True)
        ax.plot(row["published"], at, **rows.PAPER, zorder=4)
    for ax, other in zip(axes, others, strict=True):
        ax.axvline(0, color="black", lw=0.8)
        ax.axvline(-MARGINS["F"], color="black", lw=0.8, ls=":")
        ax.set_xlabel(f"difference in F\nfrom {other} [points]")
        ax.tick_params(axis="y", length=0)
    n = shown.groupby(names)["n"].max()
    axes[0].set_yticks(range(len(streams)), [f"{name}, n = {n[name]}" for name in streams])
    axes[0].set_ylim(len(streams) - 0.5, -0.5)
    handles = [Line2D([], [], color=color(f"{score} bottom"), marker="o") for score in ("BI", "EN")]
    legend(figure, [*handles, rows.paper_mark()], ["BI bottom", "EN bottom", "the paper"])
    return figure


_GROUPS = {"scores of the paper": COLORS["BI"], "rivals": COLORS["EN"], "baselines": (0.35, 0.35, 0.35)}


@styled
def leaderboard(gaps: pd.DataFrame) -> Figure:
    """Differences in A and in F from CBR: mean and 95 % interval, one row per policy, the highest A first.

    Filled circles: at equal updates. Hollow circles: at equal seconds, if CBR then has more updates than the policy. An
    arrow marks an interval that reaches beyond the panel.

    Args:
        gaps: see `ucl.evidence.leaderboard.gaps`; of one stream.
    """
    at_seconds = (gaps["comparator"] == AT_EQUAL_SECONDS) & (gaps["updates"] > 1)  # with 1 it is the same comparison
    shown = gaps[(gaps["comparator"] == "CBR") | at_seconds]
    by_a = shown[(shown["metric"] == "A") & (shown["comparator"] == "CBR")].sort_values("mean", ascending=False)
    policies, reach = list(by_a["policy"]), _reach_of(shown)
    with_both = set(shown.loc[shown["comparator"] == AT_EQUAL_SECONDS, "policy"])
    figure, axes = plt.subplots(1, 2, figsize=(WIDTH, 0.9 + 0.22 * len(policies)), sharey=True)
    for row in shown.to_dict("records"):
        name = method_and_selection(row["label"])[0]
        is_rival = name in RIVALS and name != "Joint"  # which is an upper bound
        group = "scores of the paper" if name in PAPER_SCORES else "rivals" if is_rival else "baselines"
        filled = row["comparator"] == "CBR"
        offset = (-0.16 if filled else 0.16) if row["policy"] in with_both else 0
        y = policies.index(row["policy"]) + offset
        rows.interval(axes["AF".index(row["metric"])], y, row, reach, _GROUPS[group], "o", filled)
    for y, n in enumerate(by_a["n"]):
        _text_of_row(axes[1], y, f"n={n}")
    _finish(axes, reach, "CBR", range(len(policies)), policies, max(len(policies), 1) - 0.4)
    handles = [Line2D([], [], color=shade, lw=3) for shade in _GROUPS.values()]
    handles += [rows.mark("o", True), rows.mark("o", False)]
    legend(figure, handles, [*_GROUPS, "at equal updates", "at equal seconds"])
    return figure
