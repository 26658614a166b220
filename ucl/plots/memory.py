"""Figures of memories and their images: records, counts or images in, a matplotlib figure out."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from ucl.errors import InputError
from ucl.plots.grouped import name_mixed_arithmetic, names_of, same_but_for_seed
from ucl.plots.style import COLORS, EDGE, STYLE, TASK_END, color, dash, legend, legend_of_bands, plain, shortened
from ucl.records import Record


def memory_samples(images: Mapping[str, np.ndarray], columns: int = 10) -> Figure:
    """Images side by side, one block per title.

    Args:
        images: for each title, such as a method, its images (N, H, W, C), uint8, C = 1 or 3.
        columns: images per row.
    """
    columns = max(1, min(columns, max(len(block) for block in images.values())))
    width = max(3.2, 0.6 * columns)
    titles = [textwrap.fill(title, int(11 * width)) for title in images]
    rows = [math.ceil(max(len(block), 1) / columns) for block in images.values()]
    heights = [n + 0.28 * title.count("\n") for n, title in zip(rows, titles, strict=True)]  # in rows of images
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(width, sum(0.6 * n + 0.45 for n in heights)))
        blocks = figure.subfigures(len(rows), 1, height_ratios=[n + 0.7 for n in heights], squeeze=False)[:, 0]
        for part, title, n_rows, block in zip(blocks, titles, rows, images.values(), strict=True):
            part.suptitle(plain(title), fontsize="medium")
            axes = part.subplots(n_rows, columns, squeeze=False).ravel()
            for ax in axes:
                ax.axis("off")
            for ax, image in zip(axes, block):
                ax.imshow(image, cmap="gray", vmin=0, vmax=255)
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
        titles = None if names is None else shortened(names, 10)
        figure, grid = plt.subplots(rows, columns, figsize=size, squeeze=False)
        for ax in grid.flat[len(images) :]:
            ax.set_axis_off()
        for n, (ax, image) in enumerate(zip(grid.flat, images)):
            leaves = stays is not None and not stays[n]
            ax.imshow(image, cmap="gray", vmin=0, vmax=255, alpha=0.35 if leaves else None)
            ax.set(xticks=[], yticks=[])
            ax.set_xlabel(f"{scores[n]:.3g}", fontsize=8)
            if titles is not None:
                ax.set_title(plain(titles[n]), fontsize=8)
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
    names = names_of(records)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
        for label, name in names.items():
            own = table[table["label"] == label]
            for ax, column in zip(axes, ("confidence", "bregman_information")):
                if own.empty:  # no curve, only a name in the legend
                    ax.plot([], [], color=color(label), ls=dash(label), label=name)
                else:
                    sns.ecdfplot(own[column], ax=ax, color=color(label), ls=dash(label), label=name)
        axes[0].set(xlabel="confidence (mean of 12 views)", ylabel="share of images\nwith at most this value")
        axes[1].set(xlabel="Bregman Information [nats]\n(logarithmic above 0.1)", xlim=(0, None))
        axes[1].set_xscale("symlog", linthresh=0.1)
        legend(figure, axes[0].lines, list(names.values()))
        name_mixed_arithmetic(figure, records)
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
        bands = ax.stackplot(counts.index, counts.to_numpy().T, colors=shades, step="post", **EDGE)
        for end in (end for end in task_ends if end < counts.index[-1]):
            ax.axvline(end, **TASK_END)
        ax.set(xlabel="batches seen (dashed: a task ends)", ylabel="images in memory", xlim=(1, counts.index[-1]))
        legend_of_bands(figure, bands, counts.columns, "class")
    return figure
