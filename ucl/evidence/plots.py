"""Figures of runs and memories: records, counts or images in, a matplotlib figure out. The look is that of `style`."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from ucl.errors import InputError
from ucl.evidence.order import ORDER, PAPER, RIVALS, method_order
from ucl.evidence.style import COLORS, EDGE, SEED, STYLE, TASK_END, color, dash, legend, plain, save, shortened
from ucl.records import Record, failures
from ucl.records.runs import in_words, varying

__all__ = [
    "COLORS",
    "ORDER",
    "PAPER",
    "RIVALS",
    "STYLE",
    "accuracy_and_forgetting",
    "accuracy_matrices",
    "accuracy_over_stream",
    "class_recall",
    "color",
    "dash",
    "memory_over_time",
    "memory_samples",
    "method_order",
    "name_mixed_arithmetic",
    "names_of",
    "same_but_for_seed",
    "save",
    "score_distributions",
    "scored_images",
    "stream_classes",
]

_PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "best": ("earlier tasks at their best", {"marker": "o", "mfc": "white", "ms": 7}),
    "retained": ("earlier tasks at the end", {"marker": "o", "ms": 7}),
    "last": ("last task", {"marker": ">", "mec": "black", "ms": 7}),
}


def same_but_for_seed(records: Iterable[Record]) -> None:
    """Check that records can be averaged: there are some, and those of each method differ only in the seed.

    Raises:
        InputError: there is none, or two records of a method differ in more than the seed, or two records of a data set
            were measured on different images.
    """
    records = list(records)
    if not records:
        raise InputError(
            "", None, "there is nothing to draw: none of these runs is measured; `ucl.sweep` measures them"
        )
    of_label: dict[str, list[Record]] = {}
    images: dict[str, str] = {}
    for record in records:
        known = images.setdefault(record.config.dataset, record.version.images)
        if known != record.version.images:
            reason = f"were measured on images of fingerprint {known} and {record.version.images}; draw those of one"
            raise InputError("records", record.config.dataset, reason)
        of_label.setdefault(record.config.label, []).append(record)
    for label, own in of_label.items():
        if differing := varying(own):
            reason = f"differ in {in_words(differing)}, and means are over seeds alone; choose some by ucl.where"
            raise InputError("records", label, reason)


def name_mixed_arithmetic(figure: Figure, records: Iterable[Record]) -> None:
    """Write above a figure which methods have runs scored in different arithmetics; nothing if none has."""
    of_label: dict[str, set[str]] = {}
    for record in records:
        of_label.setdefault(record.config.label, set()).update({record.arithmetic} - {""})
    mixed = [f"{label} scored in {' and '.join(sorted(names))}" for label, names in of_label.items() if len(names) > 1]
    if mixed:
        figure.suptitle(textwrap.fill("; ".join(mixed), int(14 * figure.get_figwidth())), fontsize="small")


def names_of(records: Iterable[Record]) -> dict[str, str]:
    """The name of each method in a figure: its label and, in brackets, how many of its runs failed and are left out."""
    of_method: dict[str, list[Record]] = {}
    for record in records:
        of_method.setdefault(record.config.label, []).append(record)
    failed = {label: failures(own) for label, own in of_method.items()}
    return {label: f"{label} ({failed[label]})" if failed[label] else label for label in method_order(list(of_method))}


def accuracy_matrices(records: Sequence[Record]) -> Figure:
    """The accuracy matrix of each method, averaged over its seeds: rows are tasks learnt, columns are tasks tested.

    All numbers are in per cent; A and F are means over the seeds. A balanced A (`Config.balanced_accuracy`) is not the
    mean of the last row. Runs that failed (`Record.failure`) are left out, and the title says how many.

    Raises:
        InputError: there are no records, or those of a method differ in more than the seed.
    """
    same_but_for_seed(records)
    of_label: dict[str, list[Record]] = {}
    for record in records:
        of_label.setdefault(record.config.label, []).append(record)
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
        for ax, (label, own) in zip(axes.flat, of_label.items()):
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
            a, f = (100 * np.mean([m[name] for m in [r.measures() for r in counting]]) for name in "AF")
            balanced = " (balanced),\n" if own[0].config.balanced_accuracy else ", "
            result = counting[0].failure or f"A {a:.1f} %{balanced}F {f:.1f} %"
            left_out = failures(own) if counting is not own else ""
            name = ", ".join(filter(None, [label, f"n = {len(counting)}" if len(counting) > 1 else "", left_out]))
            ax.set(title=f"{textwrap.fill(name, 26)}\n{result}", xlabel="tested on task")
        for ax in axes[:, 0]:
            ax.set_ylabel("after learning task")
    return figure


def accuracy_over_stream(records: Sequence[Record]) -> Figure:
    """Left: mean accuracy on the tasks seen so far. Right: accuracy on the first task.

    Lines are means over a method's seeds, bands their sample standard deviation (none for a single seed). Runs that
    failed (`Record.failure`) are left out, and the legend says how many.

    Raises:
        InputError: there are no records, or those of a method differ in more than the seed.
    """
    same_but_for_seed(records)
    rows = [
        {"label": r.config.label, "task": t + 1, "seen": 100 * row[: t + 1].mean(), "first": 100 * row[0]}
        for r in records
        if not r.failure
        for t, row in enumerate(r.accuracy)
    ]
    table = pd.DataFrame(rows, columns=["label", "task", "seen", "first"])
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
        for ax, column, title in ((axes[0], "seen", "all tasks seen so far"), (axes[1], "first", "the first task")):
            for label, name in names_of(records).items():
                of_task = table[table["label"] == label].groupby("task")[column]
                mean, std = of_task.mean(), of_task.std(ddof=1)
                # Not clipped and drawn over the axis, so that 0 % is visible. Finetune's dots are smaller: A-GEM's stay
                # visible behind them.
                ms = 2.5 if label == "Finetune" else 4
                style = dict(color=color(label), ls=dash(label), marker="o", ms=ms, clip_on=mean.empty, zorder=3)
                ax.plot(mean.index, mean, label=name, **style)
                ax.fill_between(mean.index, mean - std, mean + std, color=color(label), alpha=0.15, lw=0)
            ax.set(title=f"Accuracy on {title}", xlabel="tasks learnt", ylim=(0, 102))
            tasks = range(1, 1 + max(len(record.accuracy) for record in records))
            ax.set_xticks(tasks[:: math.ceil(len(tasks) / 10)])
        axes[0].set_ylabel("accuracy [%]")
        legend(figure, *axes[0].get_legend_handles_labels())
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
    table = pd.DataFrame(
        {
            "label": [r.config.label for r in records],
            "last accuracy A [%]": [100 * r.last_accuracy for r in records],
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
        figure.legend(keys, what, loc="outside upper right", ncols=3, fontsize="small")
        axes[0].set_yticks(range(len(labels)), names.values())
        axes[0].invert_yaxis()
        name_mixed_arithmetic(figure, records)
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
        class_names = [shortened(first.classes[c], 30) for c in order]
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


def memory_samples(images: Mapping[str, np.ndarray], columns: int = 10) -> Figure:
    """Images side by side, one block per title.

    Args:
        images: for each title, such as a method, its images (N, H, W, C), uint8, C = 1 or 3.
        columns: images per row.
    """
    columns = max(1, min(columns, max(len(block) for block in images.values())))
    rows = {title: math.ceil(max(len(block), 1) / columns) for title, block in images.items()}
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(max(3.2, 0.6 * columns), sum(0.6 * n + 0.45 for n in rows.values())))
        blocks = figure.subfigures(len(rows), 1, height_ratios=[n + 0.7 for n in rows.values()], squeeze=False)[:, 0]
        for part, (title, block) in zip(blocks, images.items()):
            part.suptitle(textwrap.fill(plain(title), int(11 * figure.get_figwidth())), fontsize="medium")
            axes = part.subplots(rows[title], columns, squeeze=False).ravel()
            for ax in axes:
                ax.axis("off")
            for ax, image in zip(axes, block):
                ax.imshow(image if image.shape[-1] == 3 else image[..., 0], cmap="gray", vmin=0, vmax=255)
    return figure


def scored_images(
    images: np.ndarray,
    scores: Sequence[float],
    names: Sequence[str] | None = None,
    stays: Sequence[bool] | None = None,
    columns: int = 10,
) -> Figure:
    """Images with their scores below; with `stays`, those that stay in memory have a thick frame, the others are pale.

    Args:
        images: (N, H, W, C), uint8, C = 1 or 3, N at least 1.
        scores: (N,), printed with three significant digits.
        names: (N,), short, printed above the images; None prints nothing there.
        stays: (N,), whether an image stays in memory; with None no image is framed or pale.
        columns: images per row.
    """
    columns = min(columns, len(images))
    rows = math.ceil(len(images) / columns)
    with plt.rc_context(STYLE):
        size = (max(3.2, 0.85 * columns), rows * (1.15 if names is None else 1.4))
        figure, grid = plt.subplots(rows, columns, figsize=size, squeeze=False)
        for ax in grid.flat[len(images) :]:
            ax.set_axis_off()
        for n, (ax, image) in enumerate(zip(grid.flat, images)):
            leaves = stays is not None and not stays[n]
            pixels = image if image.shape[-1] == 3 else image[..., 0]
            ax.imshow(pixels, cmap="gray", vmin=0, vmax=255, alpha=0.35 if leaves else None)
            ax.set(xticks=[], yticks=[])
            ax.set_xlabel(f"{scores[n]:.3g}", fontsize=8)
            if names is not None:
                ax.set_title(shortened(names[n], 10), fontsize=8)
            framed = stays is not None and stays[n]
            ax.spines[:].set(visible=framed, color=COLORS["BI"], linewidth=4)
    return figure


def score_distributions(records: Sequence[Record]) -> Figure:
    """How the final model sees the memory: confidence and Bregman Information of its images, one curve per method.

    A curve is the share of images with at most a value (the empirical distribution function), which depends on neither
    bins nor a bandwidth. The axis of the Bregman Information is linear below 0.1 and logarithmic above. Records without
    a memory are not drawn. Runs that failed (`Record.failure`) are left out, and the legend says how many.

    Raises:
        InputError: there are no records, none has a memory, or those of a method differ in more than the seed.
    """
    without = sorted({record.config.label for record in records})
    records = [record for record in records if record.memory]
    if without and not records:
        reason = f"there is nothing to draw: no run of {', '.join(without)} has a memory at the end; choose other runs"
        raise InputError("", None, reason)
    same_but_for_seed(records)
    rows = [
        {"label": r.config.label, "confidence": c, "bregman_information": b}
        for r in records
        if not r.failure
        for c, b in zip(r.memory["confidence"], r.memory["bregman_information"])
    ]
    table = pd.DataFrame(rows, columns=["label", "confidence", "bregman_information"])
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
        for label, name in names_of(records).items():
            own = table[table["label"] == label]
            for ax, column in zip(axes, ("confidence", "bregman_information")):
                if own.empty:  # no curve, only a name in the legend
                    ax.plot([], [], color=color(label), ls=dash(label), label=name)
                else:
                    sns.ecdfplot(own[column], ax=ax, color=color(label), ls=dash(label), label=name)
        axes[0].set(xlabel="confidence (mean of 12 views)", ylabel="share of images\nwith at most this value")
        axes[1].set(xlabel="Bregman Information [nats]\n(logarithmic above 0.1)", xlim=(0, None))
        axes[1].set_xscale("symlog", linthresh=0.1)
        legend(figure, *axes[0].get_legend_handles_labels())
        name_mixed_arithmetic(figure, records)
    return figure


def stream_classes(class_sizes: pd.DataFrame) -> Figure:
    """The number of training images of each class, in the order of the stream, coloured by task.

    Args:
        class_sizes: columns class (name), task (from 1) and images, one row per class, in the order of the stream.
    """
    with plt.rc_context(STYLE):
        width = min(12, 2.5 + 0.45 * len(class_sizes))
        figure, ax = plt.subplots(figsize=(width, 3))
        n_tasks = int(class_sizes["task"].max())
        shades = sns.color_palette("cividis", n_tasks)
        ax.bar(range(len(class_sizes)), class_sizes["images"], color=[shades[t - 1] for t in class_sizes["task"]])
        crowded = len(class_sizes) > 30
        ax.set_xticks([] if crowded else range(len(class_sizes)))
        if not crowded:
            ax.set_xticklabels([shortened(name) for name in class_sizes["class"]], rotation=45, ha="right")
        handles = [plt.Rectangle((0, 0), 1, 1, color=shade) for shade in shades]
        names = [f"task {t + 1}" for t in range(n_tasks)]
        legend(figure, handles, names)
        ax.set(ylabel="training images", xlabel="classes in the order of the stream")
    return figure


def memory_over_time(counts: pd.DataFrame, task_ends: Sequence[int]) -> Figure:
    """The number of images of each class in memory after each batch.

    Args:
        counts: stored images: one row per batch, one column per class in the order of the stream.
        task_ends: batches after which a task ended; drawn as dashed lines, except at the end of the stream.
    """
    with plt.rc_context(STYLE):
        figure, ax = plt.subplots(figsize=(9, 3.4))
        shades = sns.color_palette("cividis", counts.shape[1])
        ax.stackplot(counts.index, counts.to_numpy().T, labels=counts.columns, colors=shades, step="post", **EDGE)
        for end in (end for end in task_ends if end < counts.index[-1]):
            ax.axvline(end, **TASK_END)
        ax.set(xlabel="batches seen (dashed: a task ends)", ylabel="images in memory", xlim=(1, counts.index[-1]))
        legend(figure, *ax.get_legend_handles_labels(), title="class")
    return figure
