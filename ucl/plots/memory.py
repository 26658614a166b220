"""Figures of streams, memories and their images: records, counts or images in, a matplotlib figure out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ucl.errors import InputError
from ucl.plots.grouped import Records, by_label, names_of, same_but_for_seed
from ucl.plots.images import Images, image_table
from ucl.plots.style import COLORS, WIDTH, color, dash, legend, shortened, styled

_BINS = 30  # parts of a stream over which shares are computed: over single batches they would be noise


@styled
def memory_samples(images: Mapping[str, Images], columns: int = 10) -> Figure:
    """Images side by side, a row per name.

    Args:
        images: for each name, such as a method, its images.
        columns: images per line; a row with more images takes several lines.
    """
    longest = max(1, *(len(row) for row in images.values()))
    return image_table([*images], {"": [*images.values()]}, min(columns, longest))


@styled
def scored_images(
    images: np.ndarray,
    scores: Sequence[float],
    names: Sequence[str],
    stays: Sequence[bool] | None = None,
    columns: int = 10,
) -> Figure:
    """Images with their scores below; with `stays`, those that stay in memory have a thick frame, the others are pale.

    Args:
        images: (N, H, W, C), uint8, C = 1 or 3, N at least 1.
        scores: (N,), printed with three decimals.
        names: (N,), short, printed above the images.
        stays: (N,), whether an image stays in memory; with None no image is framed or pale.
        columns: images per row.
    """
    columns = min(columns, len(images))
    rows = math.ceil(len(images) / columns)
    figure, grid = plt.subplots(rows, columns, figsize=(max(3.2, 0.55 * columns), rows), squeeze=False)
    for ax in grid.flat[len(images) :]:
        ax.set_axis_off()
    for n, (ax, image, score, name) in enumerate(zip(grid.flat, images, scores, shortened(names, 10))):
        framed, pale = (False, False) if stays is None else (stays[n], not stays[n])
        ax.imshow(image, cmap="gray", vmin=0, vmax=255, alpha=0.35 if pale else None)
        ax.set(xticks=[], yticks=[])
        ax.set_xlabel(f"{score:.3f}", fontsize=7)
        ax.set_title(name, fontsize=7)
        ax.spines[:].set(visible=framed, color=COLORS["BI"], linewidth=2.5)
    return figure


@styled
def score_distributions(records: Records) -> Figure:
    """How the final model sees the memory: confidence and Bregman Information of its images, one curve per method.

    A curve is the share of images with at most a value (the empirical distribution function), which depends on neither
    bins nor a bandwidth. The axis of the Bregman Information is linear up to 0.1 nats, and logarithmic above if values
    exceed 0.3. Records without a memory are not drawn. Runs that failed (`Record.failure`) are left out, and the legend
    says how many. So are images whose logits are not finite.

    Raises:
        InputError: no record has a memory, or the records cannot share a picture.
    """
    records = [record for record in same_but_for_seed(records) if record.memory]
    if not records:
        reason = "there is nothing to draw: none of these runs has a memory at the end; choose other runs"
        raise InputError("", None, reason)
    figure, axes = plt.subplots(1, 2, sharey=True)
    for label, runs in by_label(records).items():
        for ax, column in zip(axes, ("confidence", "bregman_information")):
            values = [value for record in runs if not record.failure for value in record.memory[column]]
            sns.ecdfplot(np.array(values, float), ax=ax, color=color(label), ls=dash(label), label=label)
    axes[0].set(xlabel="confidence (mean of 12 views)", ylabel="share of images\nwith at most this value")
    axes[1].set(xlabel="Bregman Information [nats]", xlim=(0, None))
    if axes[1].get_xlim()[1] > 0.3:
        axes[1].set_xlabel("Bregman Information [nats]\n(logarithmic above 0.1)")
        axes[1].set_xscale("symlog", linthresh=0.1)
    names = names_of(records)
    handles = [plt.Line2D([], [], color=color(label), ls=dash(label)) for label in names]  # also without a curve
    legend(figure, handles, list(names.values()))
    return figure


@styled
def stream_classes(class_sizes: pd.DataFrame) -> Figure:
    """The number of training images of each class, in the order of the stream, coloured by task.

    Args:
        class_sizes: columns class (name), task (from 1) and images, one row per class, in the order of the stream.
    """
    figure, ax = plt.subplots(figsize=(WIDTH, 2.2))
    n_tasks = int(class_sizes["task"].max())
    shades = sns.color_palette("cividis", n_tasks)
    ax.bar(range(len(class_sizes)), class_sizes["images"], color=[shades[t - 1] for t in class_sizes["task"]])
    ax.set_xticks([])
    if len(class_sizes) <= 30:
        names = shortened(class_sizes["class"])
        look: dict[str, Any] = dict(rotation=45, ha="right") if max(map(len, names)) > 3 else {}
        ax.set_xticks(range(len(names)), names, **look)
    handles = [plt.Rectangle((0, 0), 1, 1, color=shade) for shade in shades]
    legend(figure, handles, [f"task {t + 1}" for t in range(n_tasks)])
    ax.set(ylabel="training images", xlabel="classes in the order of the stream")
    return figure


@styled
def memory_over_time(counts: pd.DataFrame, task_ends: Sequence[int]) -> Figure:
    """The number of images of each class in memory after each batch.

    Args:
        counts: stored images: one row per batch, one column per class in the order of the stream.
        task_ends: batches after which a task ended; drawn as dashed lines, except at the end of the stream.
    """
    figure, ax = plt.subplots()
    last = counts.index[-1]
    bands = _bands(ax, counts, (end for end in task_ends if end < last))
    legend(figure, bands, shortened([*map(str, counts)]))
    ax.set(xlabel="batches seen (dashed: a task ends)", ylabel="images of each class in memory", xlim=(1, last))
    return figure


@styled
def class_shares(counts: Mapping[str, pd.DataFrame], task_ends: Mapping[str, Sequence[int]]) -> Figure:
    """The share of each class along some streams, one panel per stream; dashed lines are the ends of tasks.

    Args:
        counts: for each title the images of each class: one row per batch, one column per class in the order of the
            stream.
        task_ends: for each title the batches after which a task ended.
    """
    figure, axes = plt.subplots(1, len(counts), figsize=(WIDTH, 2.4), sharey=True, squeeze=False)
    for ax, (title, batches) in zip(axes[0], counts.items()):
        edges = _edges([0, *task_ends[title]])
        binned = batches.groupby(np.searchsorted(edges, np.arange(len(batches)), side="right")).sum()
        shares = 100 * binned.div(binned.sum(axis=1), axis=0)
        shares = pd.concat([shares, shares[-1:]]).set_axis(edges)  # a step lasts to its right edge
        bands = _bands(ax, shares, task_ends[title][:-1])
        xlabel = "batches of the stream\n(dashed: a task ends)"
        ax.set(title=title, xlabel=xlabel, xlim=(0, len(batches)), ylim=(0, 100))
    axes[0, 0].set_ylabel("share of each class [%]")
    legend(figure, bands, shortened([*map(str, batches)]))
    return figure


def _edges(ends: Sequence[int]) -> np.ndarray:
    """The bounds of the parts of a stream: about `_BINS` parts of about equal length, none across the end of a task."""
    edges = {0}
    for a, b in itertools.pairwise(ends):
        edges |= {int(edge) for edge in np.linspace(a, b, max(1, round(_BINS * (b - a) / ends[-1])) + 1)[1:]}
    return np.array(sorted(edges))


def _bands(ax: Axes, heights: pd.DataFrame, task_ends: Iterable[int]) -> list[Any]:
    """Stack an area per column; the white edges and gaps are visible on every shade."""
    shades = sns.color_palette("cividis", heights.shape[1])
    look: dict[str, Any] = dict(colors=shades, step="post", edgecolor="white", lw=0.6)
    bands = ax.stackplot(heights.index, heights.to_numpy().T, **look)
    for end in task_ends:
        ax.axvline(end, color="black", gapcolor="white", ls="--", lw=1.5)
    return bands
