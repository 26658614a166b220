"""Figures of accuracy, forgetting and recall: records in, a matplotlib figure out. The look is that of `style`.

Runs that failed (`Record.failure`) are left out, and a method's name says how many. All raise an InputError if there
are no records, or those of a method differ in more than the seed.
"""

from __future__ import annotations

import math
import textwrap
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from ucl.fields import decimal
from ucl.plots.grouped import Records, by_label, names_of, same_but_for_seed
from ucl.plots.style import SEED, WIDTH, color, dash, legend, plain, shortened, styled
from ucl.records import Record, failures
from ucl.records.runs import count_range

_PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "best": ("earlier tasks at their best", {"marker": "o", "mfc": "white", "ms": 5}),
    "retained": ("earlier tasks at the end", {"marker": "o", "ms": 5}),
    "last": ("last task", {"marker": ">", "mec": "black", "ms": 5}),
}


@styled
def accuracy_matrices(records: Records) -> Figure:
    """The accuracy matrix of each method, averaged over its seeds: rows are tasks learnt, columns are tasks tested.

    All numbers are in per cent; A and F are means over the seeds. A balanced A (`Config.balanced_accuracy`) is not the
    mean of the last row.
    """
    records = same_but_for_seed(records)
    groups = by_label(records)
    n_tasks = len(records[0].accuracy)
    tasks = range(1, n_tasks + 1)
    n_columns = min(len(groups), 3 if n_tasks <= 7 else 2)
    n_rows = math.ceil(len(groups) / n_columns)
    look: dict[str, Any] = dict(vmin=0, vmax=100, cmap="viridis", square=True, linewidths=0.5, fmt=".0f")
    every = math.ceil(n_tasks / 10)
    look |= dict(annot=n_tasks <= 10, annot_kws={"size": 7}, xticklabels=every, yticklabels=every)
    shown = [[record for record in runs if not record.failure] or runs for runs in groups.values()]
    titles = [_title(label, runs, part) for (label, runs), part in zip(groups.items(), shown, strict=True)]
    lines = max(title.count("\n") for title in titles)
    side = 1.5 if n_tasks <= 7 else 2.25  # inches, of a matrix
    size = (1.0 + side * n_columns, (side + 0.58 + 0.17 * lines) * n_rows)
    figure, axes = plt.subplots(n_rows, n_columns, figsize=size, sharey=True, squeeze=False)
    for ax in axes.flat[len(groups) :]:
        ax.set_axis_off()
    for ax, title, part in zip(axes.flat, titles, shown):
        mean = pd.DataFrame(100 * np.mean([record.accuracy for record in part], axis=0), tasks, tasks)
        sns.heatmap(mean, ax=ax, cbar=ax is axes[0, -1], cbar_kws={"label": "accuracy [%]", "shrink": 0.8}, **look)
        ax.set(title=title, xlabel="tested on task")
    for ax in axes[:, 0]:
        ax.set_ylabel("after learning task")
    return figure


def _title(label: str, runs: list[Record], shown: list[Record]) -> str:
    """The method, the number of its runs that are shown, A and F, in lines that are as wide as a matrix."""
    a, f = (decimal(100 * np.mean([record.measures()[name] for record in shown])) for name in "AF")
    balanced = " (balanced),\n" if runs[0].config.balanced_accuracy else ", "
    result = shown[0].failure or f"A {a} %{balanced}F {f} %"
    left_out = failures(runs) if shown is not runs else ""
    n = f"n\xa0=\xa0{len(shown)}" if len(shown) > 1 else ""  # These spaces are not broken.
    name = textwrap.fill(", ".join(filter(None, [label, n, left_out])), 22).replace("\xa0", " ")
    return f"{plain(name)}\n{result}"


@styled
def accuracy_over_stream(records: Records) -> Figure:
    """Left: A after each task, the accuracy on all tasks seen so far. Right: accuracy on the first task.

    Lines are means over a method's seeds, bands their sample standard deviation (none for a single seed).
    """
    records = same_but_for_seed(records)
    balanced = " (balanced)" if any(record.config.balanced_accuracy for record in records) else ""
    names, n_tasks, counts = names_of(records), max(len(record.accuracy) for record in records), []
    figure, axes = plt.subplots(1, 2, sharey=True)
    for label, runs in by_label(records).items():
        sound = [record for record in runs if not record.failure]
        counts.append(len(sound))
        # Not clipped and drawn over the axis, so that 0 % is visible; but a line without points would break the layout.
        # Finetune's dots are smaller: A-GEM's stay visible behind them.
        style = dict(color=color(label), ls=dash(label), ms=2.5 if label == "Finetune" else 4, clip_on=not sound)
        for ax, values in zip(axes, ([r.accuracy_so_far for r in sound], [r.accuracy[:, 0] for r in sound])):
            seeds = 100 * pd.DataFrame(values, dtype=float)  # a row per seed, a column per task
            tasks, mean, std = seeds.columns + 1, seeds.mean(), seeds.std()
            ax.plot(tasks, mean, label=names[label], marker="o", zorder=3, **style)
            ax.fill_between(tasks, mean - std, mean + std, color=color(label), alpha=0.15, lw=0)
    for ax, title in zip(axes, (f"on all tasks seen so far{balanced}", "on the first task")):
        ax.set(title=title, ylim=(0, 102), xlabel="tasks learnt")
        ax.set_xticks(range(1, n_tasks + 1, math.ceil(n_tasks / 10)))
    axes[0].set_ylabel("accuracy [%]")
    spread = f"mean ± std, n = {count_range(counts)}" if max(counts) > 1 else ""
    legend(figure, axes[0].lines, list(names.values()), spread)
    return figure


@styled
def accuracy_and_forgetting(records: Records) -> Figure:
    """Last accuracy A (higher is better) and last forgetting F (lower is better), and the accuracies behind F.

    Left and middle: bars are means over the seeds, dots are single seeds. Right: means over the seeds. Circles are the
    accuracy on all tasks except the last: open at its best, filled at the end of the stream (retained). The length of
    the line between them is F. Triangles are the accuracy on the last task.
    """
    records = same_but_for_seed(records)
    balanced = " (balanced)" if any(record.config.balanced_accuracy for record in records) else ""
    names = names_of(records)
    labels = list(names)
    sound = [record for record in records if not record.failure]
    table = 100 * pd.DataFrame([r.measures() for r in sound], columns=["A", "F", *_PARTS], dtype=float)
    row = np.array([labels.index(record.config.label) for record in sound], dtype=int)
    means = table.groupby(row).mean().reindex(range(len(labels)))
    shades = [color(label) for label in labels]
    pitch = 0.12 + 0.14 * max(name.count("\n") + 1 for name in names.values())  # inches, of the rows
    figure, axes = plt.subplots(1, 3, figsize=(WIDTH, 0.7 + pitch * len(labels)), sharey=True)
    for ax, name, title in zip(axes, "AF", (f"last accuracy\nA{balanced} [%]", "last forgetting\nF [%]")):
        ax.barh(means.index, means[name], color=shades, height=0.7)
        ax.plot(table[name], row, **SEED)
        ax.axvline(0, color="black", lw=0.8)
        ax.set_xlabel(title)
    for (y, parts), shade in zip(means.iterrows(), shades):
        axes[2].plot(parts[["retained", "best"]], [y, y], color=shade, lw=2, zorder=1)
        for part, (_, look) in _PARTS.items():
            axes[2].plot(parts[part], y, **look, color=shade, ls="", clip_on=False)
    axes[2].set(xlabel="accuracy [%]", xlim=(0, 102))
    keys = [plt.Line2D([], [], **look, color="0.3", ls="") for _, look in _PARTS.values()]
    texts = [text for text, _ in _PARTS.values()]
    legend(figure, keys, texts)
    axes[0].set_yticks(range(len(labels)), names.values())
    axes[0].invert_yaxis()
    return figure


@styled
def class_recall(records: Records) -> Figure:
    """Recall of each class, the share of its test images that are predicted correctly, and how far it has fallen.

    One group of rows per class, one row per method. Circles are means over the seeds in which an earlier task has the
    class: filled at the end of the stream, open at the best test before, as in F. The line between them is the mean
    fall. A class that is in the last task at all seeds has only the filled circle. Small dots are single seeds at the
    end. The classes have the order of the stream if all runs share it, otherwise that of their labels.
    """
    records = same_but_for_seed(records)
    first, names = records[0], names_of(records)
    shared = all(record.class_order == first.class_order for record in records)
    order = first.class_order if shared else list(range(len(first.classes)))
    by_size = shared and {record.config.class_order for record in records} == {"size"}
    pitch = 1 / (len(names) + 1.5)  # between the rows of a class; the group of a class has height 1
    high = min(40.0, 1.3 + max(0.3, 0.1 / pitch) * len(order))  # inches
    figure, ax = plt.subplots(figsize=(WIDTH, high))
    for row, (label, runs) in enumerate(by_label(records).items()):
        y = np.arange(len(order)) + (row - (len(names) - 1) / 2) * pitch
        sound = [100 * pd.DataFrame(record.class_recall) for record in runs if not record.failure]
        # One row per seed, one column per class. The test set may have no image of a class.
        last = pd.DataFrame([recall_TC.iloc[-1] for recall_TC in sound], range(len(sound)), order)
        best = pd.DataFrame([recall_TC.iloc[:-1].max() for recall_TC in sound], range(len(sound)), order)
        end = last.where(best.notna() | best.isna().all()).mean()
        ax.hlines(y, end, best.mean(), color=color(label), lw=1.2)
        ax.plot(end, y, "o", color=color(label), ms=5, clip_on=False, zorder=4)
        ax.plot(best.mean(), y, "o", color=color(label), mfc="white", ms=5, clip_on=False, zorder=3)
        ax.plot(last.to_numpy().ravel(), np.tile(y, len(last)), **SEED, clip_on=False, zorder=5)
    for border in np.arange(1, len(order)) - 0.5:
        ax.axhline(border, color="0.85", lw=0.8)
    class_names = shortened([first.classes[c] for c in order], 30)
    ax.set_yticks(range(len(order)), class_names, fontsize=min(8.5, 60 * (high - 1.3) / len(order)))
    ax.tick_params(axis="y", length=0)
    ordered = "in the order of the stream" + (", largest first" if by_size else "") if shared else ""
    ax.set(xlabel="recall [%]", ylabel=f"classes {ordered}".strip(), xlim=(0, 102))
    ax.set_ylim(len(order) - 0.5, -0.5)
    handles = [plt.Line2D([], [], color=color(label), marker="o") for label in names]
    title = "filled: at the end, open: best before (seeds with both), dots: seeds"
    legend(figure, handles, list(names.values()), title)
    return figure
