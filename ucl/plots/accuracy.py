"""Figures of accuracy, forgetting and recall: records in, a matplotlib figure out. The look is that of `style`."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from ucl.catalogue import method_order
from ucl.fields import decimal
from ucl.plots.grouped import by_label, draw_means, name_mixed_arithmetic, names_of, same_but_for_seed, spread
from ucl.plots.style import SEED, STYLE, color, legend, plain, shortened
from ucl.records import Record, failures

_PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "best": ("earlier tasks at their best", {"marker": "o", "mfc": "white", "ms": 7}),
    "retained": ("earlier tasks at the end", {"marker": "o", "ms": 7}),
    "last": ("last task", {"marker": ">", "mec": "black", "ms": 7}),
}


def accuracy_matrices(records: Sequence[Record]) -> Figure:
    """The accuracy matrix of each method, averaged over its seeds: rows are tasks learnt, columns are tasks tested.

    All numbers are in per cent; A and F are means over the seeds. A balanced A (`Config.balanced_accuracy`) is not the
    mean of the last row. Runs that failed (`Record.failure`) are left out, and the title says how many.

    Raises:
        InputError: there are no records, or those of a method differ in more than the seed.
    """
    same_but_for_seed(records)
    of_label = by_label(records)
    n_tasks = len(next(iter(records)).accuracy)
    n_columns = min(len(of_label), 6)
    n_rows = math.ceil(len(of_label) / n_columns)
    every = math.ceil(n_tasks / 10)
    ticks = [str(task) if task % every == 0 or every == 1 else "" for task in range(1, n_tasks + 1)]
    with plt.rc_context(STYLE):
        size = (1.0 + 2.4 * n_columns, 2.9 * n_rows)
        figure, axes = plt.subplots(n_rows, n_columns, figsize=size, sharey=True, squeeze=False)
        for ax in axes.flat[len(of_label) :]:
            ax.set_axis_off()
        for ax, label in zip(axes.flat, method_order(of_label)):
            own = of_label[label]
            counting = [record for record in own if not record.failure] or own
            sns.heatmap(
                100 * np.mean([record.accuracy for record in counting], axis=0),
                ax=ax,
                annot=n_tasks <= 10,
                annot_kws={"size": 10 if n_tasks < 7 else 6},
                fmt=".0f",
                vmin=0,
                vmax=100,
                cmap="viridis",
                square=True,
                linewidths=0.5,
                xticklabels=ticks,
                yticklabels=ticks,
                cbar=ax is axes[0, -1],
                cbar_kws={"label": "accuracy [%]", "shrink": 0.8},
            )
            measures = [record.measures() for record in counting]
            a, f = (decimal(100 * np.mean([of_run[name] for of_run in measures])) for name in "AF")
            balanced = " (balanced),\n" if own[0].config.balanced_accuracy else ", "
            result = counting[0].failure or f"A {a} %{balanced}F {f} %"
            left_out = failures(own) if counting is not own else ""
            name = ", ".join(filter(None, [label, f"n = {len(counting)}" if len(counting) > 1 else "", left_out]))
            ax.set(title=f"{textwrap.fill(name, 26)}\n{result}", xlabel="tested on task")
        for ax in axes[:, 0]:
            ax.set_ylabel("after learning task")
    return figure


def accuracy_over_stream(records: Sequence[Record]) -> Figure:
    """Left: A after each task, the accuracy on all tasks seen so far. Right: accuracy on the first task.

    Lines are means over a method's seeds, bands their sample standard deviation (none for a single seed). Runs that
    failed (`Record.failure`) are left out, and the legend says how many.

    Raises:
        InputError: there are no records, or those of a method differ in more than the seed.
    """
    same_but_for_seed(records)
    rows = [
        {"label": r.config.label, "task": t, "seen": 100 * seen, "first": 100 * first}
        for r in records
        if not r.failure
        for t, (seen, first) in enumerate(zip(r.accuracy_so_far, r.accuracy[:, 0]), 1)
    ]
    table = pd.DataFrame(rows, columns=["label", "task", "seen", "first"])
    balanced = " (balanced)" if any(record.config.balanced_accuracy for record in records) else ""
    names = names_of(records)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
        titles = {"seen": f"all tasks seen so far{balanced}", "first": "the first task"}
        for ax, (column, title) in zip(axes, titles.items()):
            lines = draw_means(ax, table, names, column, "task", "task", marker="o")
            ax.set(title=f"Accuracy on {title}", xlabel="tasks learnt", ylim=(0, 102))
            tasks = range(1, 1 + max(len(record.accuracy) for record in records))
            ax.set_xticks(tasks[:: math.ceil(len(tasks) / 10)])
        axes[0].set_ylabel("accuracy [%]")
        legend(figure, lines, list(names.values()), title=spread(records))
        name_mixed_arithmetic(figure, records)
    return figure


def accuracy_and_forgetting(records: Sequence[Record]) -> Figure:
    """Last accuracy A (higher is better) and last forgetting F (lower is better), and the accuracies behind F.

    Left and middle: bars are means over the seeds, dots are single seeds. Right: means over the seeds. Circles are the
    accuracy on all tasks except the last: open at its best, filled at the end of the stream (retained). The line that
    joins them is as long as F. Triangles are the accuracy on the last task. Runs that failed (`Record.failure`) are
    left out, and a method's name says how many.

    Raises:
        InputError: there are no records, or those of a method differ in more than the seed.
    """
    same_but_for_seed(records)
    balanced = " (balanced)" if any(record.config.balanced_accuracy for record in records) else ""
    table = pd.DataFrame(
        {
            "label": [r.config.label for r in records],
            f"last accuracy A{balanced} [%]": [100 * r.last_accuracy for r in records],
            "last forgetting F [%]": [100 * r.last_forgetting for r in records],
            **{part: [100 * r.measures()[part] for r in records] for part in _PARTS},
        }
    )
    table = table[[not r.failure for r in records]]
    names = names_of(records)
    labels = list(names)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 3, figsize=(12, 1.2 + 0.42 * len(labels)), sharey=True)
        for ax, column in zip(axes[:2], table.columns[1:3]):
            for row, label in enumerate(labels):
                values = table.loc[table["label"] == label, column]
                ax.barh(row, values.mean(), color=color(label), height=0.7)
                ax.plot(values, np.full(len(values), row), **SEED)
            ax.axvline(0, color="black", lw=0.8)
            ax.set_xlabel(column)
        for row, label in enumerate(labels):
            means = table.loc[table["label"] == label, list(_PARTS)].mean().dropna()
            parts = means.reindex(["retained", "best"]).dropna()
            axes[2].plot(parts, [row] * len(parts), color=color(label), lw=2, zorder=1)
            for part, value in means.items():
                axes[2].plot(value, row, **_PARTS[part][1], color=color(label), ls="", clip_on=False)
        axes[2].set(xlabel="accuracy [%]", xlim=(0, 102))
        keys = [plt.Line2D([], [], **look, color="0.3", ls="") for _, look in _PARTS.values()]
        what = [text for text, _ in _PARTS.values()]
        drawn = figure.legend(keys, what, loc="outside upper right", ncols=3, fontsize="small")
        axes[0].set_yticks(range(len(labels)), names.values())
        axes[0].invert_yaxis()
        name_mixed_arithmetic(figure, records, drawn)
    return figure


def class_recall(records: Sequence[Record]) -> Figure:
    """Recall of each class at the end of the stream: the share of its test images that are predicted correctly.

    One group of rows per class, one row per method. Large dots and lines are means over the seeds, small dots single
    seeds. The classes have the order of the stream if all runs share it, otherwise that of their labels. Runs that
    failed (`Record.failure`) are left out, and the legend says how many.

    Raises:
        InputError: there are no records, or those of a method differ in more than the seed.
    """
    same_but_for_seed(records)
    first, names = records[0], names_of(records)
    shared = all(record.class_order == first.class_order for record in records)
    order = first.class_order if shared else list(range(len(first.classes)))
    by_size = shared and {record.config.class_order for record in records} == {"size"}
    pitch = 1 / (len(names) + 1.5)  # of the rows of a class, whose group is 1 high
    high = min(40.0, 1.3 + max(0.3, 0.13 / pitch) * len(order))  # inches
    with plt.rc_context(STYLE):
        figure, ax = plt.subplots(figsize=(8, high))
        for row, label in enumerate(names):
            y = np.arange(len(order)) + (row - (len(names) - 1) / 2) * pitch
            own = [r.class_recall[-1][order] for r in records if r.config.label == label and not r.failure]
            recall_SC = 100 * np.array(own).reshape(-1, len(order))  # S seeds, C classes
            mean_C = recall_SC.mean(0) if len(own) else np.full(len(order), math.nan)
            tested, shade = ~np.isnan(mean_C), color(label)  # the test set may have no image of a class
            ax.hlines(y[tested], 0, mean_C[tested], color=shade, lw=1.2)
            ax.plot(mean_C[tested], y[tested], "o", color=shade, ms=5, clip_on=False, zorder=3)
            seeds = recall_SC[:, tested]
            ax.plot(seeds.ravel(), np.tile(y[tested], len(seeds)), **SEED, clip_on=False, zorder=4)
        for border in np.arange(1, len(order)) - 0.5:
            ax.axhline(border, color="0.85", lw=0.8)
        class_names = [plain(name) for name in shortened([first.classes[c] for c in order], 30)]
        ax.set_yticks(range(len(order)), class_names, fontsize=min(10, 60 * (high - 1.3) / len(order)))
        ax.tick_params(axis="y", length=0)
        ordered = "in the order of the stream" + (", largest first" if by_size else "") if shared else ""
        ylabel = f"classes {ordered}".strip()
        ax.set(xlabel="recall at the end of the stream [%]", ylabel=ylabel, xlim=(0, 102))
        ax.set_ylim(len(order) - 0.5, -0.5)
        if n_images := first.data.get("training_images"):
            ax.set_title(f"{plain(first.config.dataset_name)}: {n_images:,} training images")
        handles = [plt.Line2D([], [], color=color(label), marker="o") for label in names]
        legend(figure, handles, list(names.values()))
        name_mixed_arithmetic(figure, records)
    return figure
