"""Figures of the studies of memories."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from ucl.catalogue import method_order
from ucl.evidence.leaderboard import leaderboard_name
from ucl.plots.rows import interval, label_top
from ucl.plots.style import color, legend, plain, styled

_TRAITS = {
    "easy": "easy: rank of the loss\n(1: lowest of the class)",
    "typical": "typical: rank of the cosine\n(1: closest to the class mean)",
    "agrees": "agrees: label predicted\n(share)",
    "recent": "recent: last tenth of the task\n(share)",
}
_OF_A_RANDOM_MEMORY = {"easy": 0.5, "typical": 0.5, "recent": 0.1}
_OUTLINE = withStroke(linewidth=3.5, foreground="0.3")  # a pale bar needs it to be seen


@styled
def swaps(differences: pd.DataFrame, comparator: str) -> Figure:
    """What memories change in one frozen state: mean and 95 % interval per policy, one panel per measure.

    Args:
        differences: see `ucl.studies.memory_swap.against`.
        comparator: the method that is subtracted.
    """
    groups = list(differences.groupby(["dataset", "memory_size"], sort=False))
    titles = {"retained": "retained (earlier tasks)", "last": "last (task learnt)", "A": "A (all tasks so far)"}
    heights = [group["method"].nunique() for _, group in groups]
    size = 9, 1 + 0.3 * sum(heights)
    figure, axes = plt.subplots(len(groups), 3, figsize=size, squeeze=False, sharex="row", height_ratios=heights)
    for row, ((dataset, memory_size), group) in zip(axes, groups):
        methods = method_order(group["method"])
        for ax, (measure, title) in zip(row, titles.items()):
            for values in group[group["measure"] == measure].to_dict("records"):
                interval(ax, methods.index(values["method"]), values, math.inf, color(values["method"]), "o", True)
            ax.axvline(0, color="black", lw=0.8)
            ax.set(title=title, xlabel=f"difference from {comparator} [points]", ylim=(len(methods) - 0.5, -0.5))
            ax.set_yticks(range(len(methods)), [*map(leaderboard_name, methods)] if ax is row[0] else [])
        row[0].set_ylabel(f"{plain(dataset)}\nmemory {memory_size}, n = {group['n'].max()}")
    return figure


@styled
def stays(table: pd.DataFrame) -> Figure:
    """How long images stay in memory: one line per stay, from entry to exit, sorted by entry; one colour per task.

    Args:
        table: see `ucl.studies.memory_autopsy.stays`.
    """
    end = table[["entry", "exit"]].max().max() + 1
    tasks = sorted(table["task"].unique())
    shades = dict(zip(tasks, sns.color_palette("cividis", len(tasks))))
    figure, ax = plt.subplots(figsize=(9, 4))
    ax.hlines(range(len(table)), table["entry"], table["exit"].fillna(end), table["task"].map(shades), lw=1.2)
    ax.set(xlabel="batches seen", ylabel="stored images, in the order of entry", xlim=(0, end))
    handles = [Line2D([], [], color=shade, lw=3) for shade in shades.values()]
    legend(figure, handles, [f"task {task + 1}" for task in tasks])
    return figure


@styled
def kept_traits(table: pd.DataFrame) -> Figure:
    """How easy, typical, clean and recent kept images are: one dot per run, a bar at the mean, a row per stream.

    Args:
        table: see `ucl.studies.memory_autopsy.kept_traits`.
    """
    groups = [(key, method_order(part["method"]), part) for key, part in table.groupby(["dataset", "memory_size"])]
    heights = [len(methods) for _, methods, _ in groups]
    size = 11, 1 + 0.26 * sum(heights) + 0.4 * len(groups)
    figure, axes = plt.subplots(
        len(groups), len(_TRAITS), figsize=size, squeeze=False, sharey="row", sharex="col", height_ratios=heights
    )
    for row, ((dataset, memory_size), methods, group) in zip(axes, groups, strict=True):
        for ax, trait in zip(row, _TRAITS):
            for method, values in group.groupby("method")[trait]:
                y, shade = methods.index(method), color(method)
                ax.plot(values, [y] * len(values), "o", color=shade, ms=4, mec="0.3", mew=0.4, alpha=0.7)
                ax.plot(values.mean(), y, "|", color=shade, ms=13, mew=2.5, path_effects=[_OUTLINE])
            if trait in _OF_A_RANDOM_MEMORY:
                ax.axvline(_OF_A_RANDOM_MEMORY[trait], color="black", lw=0.8)
            ax.set_ylim(len(methods) - 0.5, -0.5)
        row[0].set_yticks(range(len(methods)), [*map(leaderboard_name, methods)])
        row[0].set_ylabel(f"{plain(dataset)}\nmemory {memory_size}")
    for top, bottom, title in zip(axes[0], axes[-1], _TRAITS.values()):
        bottom.set_xlabel(title)
        label_top(top, title)
    return figure
