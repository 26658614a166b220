"""Figures of what happens between task ends: classes of the stream, and accuracy."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from ucl.errors import InputError
from ucl.plots.grouped import draw_means, name_mixed_arithmetic, names_of, same_but_for_seed, spread
from ucl.plots.style import EDGE, STYLE, TASK_END, legend, legend_of_bands, plain, shortened
from ucl.records import Record

_BINS = 30  # parts of a stream over which shares are computed: over single batches they would be noise


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
            ax.set_xticklabels([plain(name) for name in shortened(class_sizes["class"])], rotation=45, ha="right")
        handles = [plt.Rectangle((0, 0), 1, 1, color=shade) for shade in shades]
        legend(figure, handles, [f"task {t + 1}" for t in range(n_tasks)])
        ax.set(ylabel="training images", xlabel="classes in the order of the stream")
    return figure


def class_shares(counts: Mapping[str, pd.DataFrame], task_ends: Mapping[str, Sequence[int]]) -> Figure:
    """The share of each class along some streams, one panel per stream; dashed lines are the ends of tasks.

    Args:
        counts: for each title the images of each class: one row per batch, one column per class in the order of the
            stream.
        task_ends: for each title the batches after which a task ended.
    """
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(counts), figsize=(1.5 + 3.2 * len(counts), 3.2), sharey=True, squeeze=False)
        bands = []
        for ax, (title, of_stream) in zip(axes[0], counts.items()):
            edges = _edges([0, *task_ends[title]])
            binned = of_stream.groupby(np.searchsorted(edges, np.arange(len(of_stream)), side="right")).sum()
            shares = 100 * binned.div(binned.sum(axis=1), axis=0)
            heights = np.vstack([shares.to_numpy(), shares.to_numpy()[-1:]]).T  # a step lasts to its right edge
            shades = sns.color_palette("cividis", of_stream.shape[1])
            bands.append(ax.stackplot(edges, heights, colors=shades, step="post", **EDGE))
            for end in task_ends[title][:-1]:
                ax.axvline(end, **TASK_END)
            xlabel = "batches of the stream\n(dashed: a task ends)"
            ax.set(title=title, xlabel=xlabel, xlim=(0, len(of_stream)), ylim=(0, 100))
        axes[0, 0].set_ylabel("share of the images [%]")
        legend_of_bands(figure, bands[0], next(iter(counts.values())).columns, "class")
    return figure


def accuracy_over_batches(records: Sequence[Record]) -> Figure:
    """Accuracy between task ends, on validation images. Left: mean over the tasks begun so far. Right: the first task.

    Lines are means over a method's seeds, bands their sample standard deviation (none for a single seed). Vertical
    lines are the last tests of the tasks: after them the next task is learnt. Runs that failed (`Record.failure`) are
    left out, and the legend says how many.

    Raises:
        InputError: there are no records, a record has no tests between task ends, or those of a method differ in more
            than the seed.
    """
    same_but_for_seed(records)
    rows = []
    for record in records:
        if record.anytime is None:
            reason = "was tested after each task only; measure it with evaluate_every, such as evaluate_every=10"
            raise InputError("records", record.config.label, reason)
        if record.failure:
            continue
        a_ET = 100 * record.anytime.accuracy
        rows += [
            {"label": record.config.label, "test": e, "batch": batch, "seen": np.nanmean(row), "first": row[0]}
            for e, (batch, row) in enumerate(zip(record.anytime.batches, a_ET, strict=True))
        ]
    table = pd.DataFrame(rows, columns=["label", "test", "batch", "seen", "first"])
    names = names_of(records)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), sharey=True)
        for ax, column, title in ((axes[0], "seen", "all tasks begun so far"), (axes[1], "first", "the first task")):
            for end in _last_tests(records[0]):
                ax.axvline(end, color="0.8", lw=0.8, zorder=0)  # not dashed: the line of Finetune is
            # Streams of different seeds can differ by one batch, so their last tests can, too.
            lines = draw_means(ax, table, names, column, "batch", "test", lw=1.4)
            xlabel = "batches learnt\n(vertical line: the last test of a task)"
            ax.set(title=f"Accuracy on {title}", xlabel=xlabel, xlim=(0, None), ylim=(0, 102))
        axes[0].set_ylabel("accuracy [%]")
        legend(figure, lines, list(names.values()), title=spread(records))
        name_mixed_arithmetic(figure, records)
    return figure


def _edges(ends: Sequence[int]) -> np.ndarray:
    """The bounds of the parts of a stream: about `_BINS` parts of about equal length, none across the end of a task."""
    parts = [max(1, round(_BINS * (b - a) / ends[-1])) for a, b in itertools.pairwise(ends)]
    inner = [np.linspace(a, b, n + 1)[1:] for (a, b), n in zip(itertools.pairwise(ends), parts, strict=True)]
    return np.unique(np.concatenate([[0], *inner]).astype(int))


def _last_tests(record: Record) -> list[int]:
    """The batch of the last test of each task except the last."""
    assert record.anytime is not None
    n_begun = (~np.isnan(record.anytime.correct)).sum(1)
    return record.anytime.batches[np.flatnonzero(np.diff(n_begun))].tolist()
