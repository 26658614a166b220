"""Figures of the studies of memories."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from ucl.catalogue import method_order
from ucl.evidence.leaderboard import leaderboard_name
from ucl.plots.style import color, plain, styled

_TRAITS = {
    "recent": "recent\n(share of images)",
    "easy": "easy\n(1: lowest loss)",
    "typical": "typical\n(1: near the mean)",
    "agrees": "agrees\n(share of images)",
}
_OF_A_RANDOM_MEMORY = {"easy": 0.5, "typical": 0.5, "recent": 0.1}
_OUTLINE = withStroke(linewidth=3, foreground="0.3")  # a pale bar needs it to be seen


@styled
def stays(table: pd.DataFrame) -> Figure:
    """How long images stay in memory: one line per stay of `ucl.studies.observe.Observed`, one colour per task."""
    end = table[["entry", "exit"]].max().max() + 1
    tasks = sorted(table["task"].unique())
    shades = dict(zip(tasks, sns.color_palette("cividis", len(tasks))))
    figure, ax = plt.subplots(figsize=(5.5, 3))
    ax.hlines(range(len(table)), table["entry"], table["exit"].fillna(end), table["task"].map(shades), lw=1)
    ax.set(xlabel="batches seen", ylabel="stored images, in the order of entry", xlim=(0, end))
    handles = [Line2D([], [], color=shade, lw=3) for shade in shades.values()]
    ax.legend(handles, [f"task {task + 1}" for task in tasks], loc="upper left")
    return figure


@styled
def kept_traits(table: pd.DataFrame) -> Figure:
    """The traits of kept images (`ucl.studies.memory_autopsy.kept_traits`): a dot per run, a bar at the mean."""
    groups = [(key, method_order(part["method"]), part) for key, part in table.groupby(["dataset", "memory_size"])]
    heights = [len(methods) for _, methods, _ in groups]
    how: dict[str, Any] = dict(squeeze=False, sharey="row", sharex="col", height_ratios=heights)
    size = 5.5, 0.8 + 0.19 * sum(heights) + 0.15 * len(groups)
    figure, axes = plt.subplots(len(groups), len(_TRAITS), figsize=size, **how)
    for row, ((dataset, memory_size), methods, group) in zip(axes, groups, strict=True):
        for ax, trait in zip(row, _TRAITS):
            for method, values in group.groupby("method")[trait]:
                y, shade = methods.index(method), color(method)
                ax.plot(values, [y] * len(values), "o", color=shade, ms=3, mec="0.3", mew=0.3, alpha=0.7)
                ax.plot(values.mean(), y, "|", color=shade, ms=9, mew=2, path_effects=[_OUTLINE])
            if trait in _OF_A_RANDOM_MEMORY:
                ax.axvline(_OF_A_RANDOM_MEMORY[trait], color="black", lw=0.8)
            ax.set_ylim(len(methods) - 0.5, -0.5)
        row[0].set_yticks(range(len(methods)), [*map(leaderboard_name, methods)])
        row[0].set_ylabel(f"{plain(dataset)}\nmemory {memory_size}")
    for top, title in zip(axes[0], _TRAITS.values()):
        top.set_title(title, fontsize="small")
    return figure
