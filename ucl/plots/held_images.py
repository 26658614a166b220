"""The images that memories hold over the stream, ordered and coloured by a score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from ucl.catalogue import SCORES
from ucl.errors import one_of
from ucl.plots.style import color, legend_of_names, plain, shortened, styled, widest

QUANTITIES = {
    "entry": "entry into the memory [batches seen]",
    **{name: f"{name}, {row.label} [{row.unit}]" for name, row in SCORES.items()},
}
"""What images can be ordered and coloured by: columns, and their names with units.

A user score is named by its path.
"""

_COLUMNS = (10, 15, 20, 25)  # images per line; the larger numbers are for pictures that would be too high
_WIDE, _HIGH = 3.8, 13.0  # inches: width of a full panel, and the height that it should not exceed
_GAP = 0.25  # between rows, in cells
_PAD = 0.13  # frame and margin around an image, as a share of its side
_MARGIN = 0.02  # around a frame, in cells
_MOST = 0.98  # quantile at which the scale of a score ends


def quantities(runs: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """What the images of these runs can be ordered and coloured by: the columns that all tables have, and their names.

    Args:
        runs: see `ucl.studies.explore_memory.explore`.
    """
    shared = [column for column in next(iter(runs.values())) if all(column in table for table in runs.values())]
    listed = {column: name for column, name in QUANTITIES.items() if column in shared}
    others = (column for column in shared if column not in listed and ":" in column)
    return listed | {column: column for column in others}


def moments(runs: Mapping[str, pd.DataFrame]) -> dict[int, str]:
    """The moments of these runs, in order: batches seen, and a name such as "end of task 2, 53 batches seen"."""
    # From all runs, because one memory may be empty at a moment.
    table = pd.concat(runs.values())[["task", "batch"]].drop_duplicates().sort_values("batch")
    ends = table.groupby("task")["batch"].max()
    pairs = table.itertuples(index=False)
    return {int(b): f"{'end of ' if b == ends[t] else ''}task {t}, {b} batches seen" for t, b in pairs}


def labels(runs: Mapping[str, pd.DataFrame]) -> dict[int, int]:
    """The labels that a memory holds at some moment, each with its earliest entry (batches seen), in that order."""
    first = pd.concat(runs.values()).groupby("label")["entry"].min().sort_values(kind="stable")
    return {int(label): int(batch) for label, batch in first.items()}


@styled
def held_images(
    runs: Mapping[str, pd.DataFrame],
    images_NHWC: np.ndarray,
    classes: Sequence[str],
    at: Sequence[int],
    order_by: str = "BI",
    color_by: str = "BI",
    only: int | None = None,
) -> Figure:
    """The images in memory at some moments of several runs: one column per run, one row per moment and class.

    In a row the images go from the lowest to the highest value of `order_by`, those without a value last. The colour of
    a frame is the value of `color_by`, on one scale for all moments of all runs; a grey frame has no value. The scale
    of a score ends at its 98 % quantile.

    Args:
        runs: see `ucl.studies.explore_memory.explore`.
        images_NHWC: the training images of the data set, uint8, C = 1 or 3.
        classes: names of the labels.
        at: the moments: keys of `moments`.
        order_by, color_by: keys of `quantities`.
        only: the label of the only class to show; None shows, at each moment, the classes that have entered a memory
            by then.

    Raises:
        InputError: a moment, a quantity or a label does not exist.
    """
    moment_names, quantity_names, first_batch = moments(runs), quantities(runs), labels(runs)
    one_of("order_by", order_by, quantity_names, "quantity")
    one_of("color_by", color_by, quantity_names, "quantity")
    for moment in at:
        one_of("at", str(moment), map(str, moment_names), "moment")
    if only is not None:
        one_of("only", str(only), map(str, first_batch), "label")
    shown = [label for label in first_batch if only in (None, label)]
    rows = [(moment, label) for moment in at for label in shown if first_batch[label] <= moment or label == only]
    held = {name: [images_of(table, *row, order_by) for row in rows] for name, table in runs.items()}
    most = np.max([[len(images) for images in panel] for panel in held.values()], axis=0)
    title_width = 0.3 + 0.08 * max(len(f"{name}, 1000 images") for name in runs)  # inches
    for most_columns in _COLUMNS:
        cell = _WIDE / most_columns
        columns = max(min(most_columns, int(most.max())), math.ceil(title_width / cell))
        lines = np.maximum(1, np.ceil(most / columns))
        tops = np.cumsum([0, *(lines + _GAP)])
        if cell * tops[-1] <= _HIGH:
            break
    wide, high = cell * columns, cell * tops[-1]
    short = [plain(name) for name in shortened(classes, 18)]
    names = [short[label] for _, label in rows]
    if len(at) > 1:
        parts = [moment_names[moment].split(", ") for moment, _ in rows]
        names = [f"{task}\n{name if only is None else n}" for name, (task, n) in zip(names, parts, strict=True)]
    size = min(9, 72 * cell * 0.75)  # of the font of these names
    # In inches: the space left and right of all panels, between them, above and below them.
    left, right, between, above, below = max(1.4, 0.15 + 1.05 * widest(names, size)), 0.15, 0.3, 0.6, 0.8
    width, height = left + len(runs) * (wide + between) - between + right, above + high + below
    scale, extend = _scale(runs, color_by)
    figure = plt.figure(figsize=(width, height), layout="none")
    for column, (name, panel) in enumerate(held.items()):
        x = left + column * (wide + between)
        ax = figure.add_axes((x / width, below / height, wide / width, high / height))
        ax.set(xlim=(0, columns), ylim=(tops[-1], 0), xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
        for top, images in zip(tops, panel, strict=False):
            _draw(ax, images_NHWC[images["position"].to_numpy()], scale.to_rgba(images[color_by]), columns, float(top))
        n = f", {sum(map(len, panel))} images" if len(at) == 1 else ""
        square = Patch(color=color(name.partition(" (")[0]))
        where: dict[str, Any] = dict(loc="lower left", bbox_to_anchor=(0, 1), borderpad=0, handlelength=0.8)
        legend_of_names(ax, [square], [name + n], **where)
    figure.axes[0].set_yticks(tops[:-1] + lines / 2, names, fontsize=size)
    if len(at) == 1:
        corner, shift = (0.0, 1.0), (-4.0, 8.0)  # shift is in points
        figure.axes[0].annotate("class", corner, shift, "axes fraction", "offset points", ha="right", fontsize=9)
    if len(at) == 1 or only is not None:
        title = moment_names[at[0]] if len(at) == 1 else f"class {plain(classes[only])}"  # type: ignore[index]
        figure.text(left / width, 1 - 0.08 / height, title, va="top", fontsize="large")
    bar = figure.add_axes((left / width, (below - 0.2) / height, 3 / width, 0.1 / height))
    figure.colorbar(scale, bar, orientation="horizontal", extend=extend)
    bar.tick_params(labelsize="small")
    bar.set_xlabel(f"colour: {quantity_names[color_by]}", fontsize="small", loc="left", labelpad=1)
    order = f"order, from the left: {quantity_names[order_by]}"
    figure.text(left / width, 0.05 / height, order, fontsize="small")
    return figure


def images_of(table: pd.DataFrame, moment: int, label: int, order_by: str) -> pd.DataFrame:
    """The rows of a table for one moment and label, sorted by ascending values; those without a value come last."""
    images = table[(table["batch"] == moment) & (table["label"] == label)]
    return images.sort_values(order_by, kind="stable")


def _scale(runs: Mapping[str, pd.DataFrame], color_by: str) -> tuple[ScalarMappable, str]:
    """The colours of a quantity, and `extend` of their colour bar: "max" if values exceed the scale, else "neither"."""
    values = pd.concat([table[color_by] for table in runs.values()]).dropna()
    low, high = (values.min(), values.max()) if len(values) else (0, 1)
    end = values.quantile(_MOST) if len(values) and color_by != "entry" else high
    colors = plt.get_cmap("viridis").with_extremes(bad="0.7")
    return ScalarMappable(Normalize(low, end), colors), "max" if end < high else "neither"


def _draw(ax: Axes, images_NHWC: np.ndarray, colors_N4: np.ndarray, columns: int, top: float) -> None:
    """Draw images in lines of `columns` images, each in a frame of its colour; the unit of the axes is a cell."""
    n, side = images_NHWC.shape[:2]
    if not n:
        ax.text(0.1, top + 0.5, "none", color="0.4", fontsize="small", va="center")
        return
    lines = math.ceil(n / columns)
    pad = max(2, round(_PAD * side))
    pitch = side + 2 * pad
    # One picture of all images: hundreds of pictures would take seconds to draw.
    canvas = np.zeros((lines * pitch, columns * pitch, 4), np.uint8)
    for i, image in enumerate(images_NHWC):
        y, x = (pitch * j + pad for j in divmod(i, columns))
        canvas[y : y + side, x : x + side, :3] = image
        canvas[y : y + side, x : x + side, 3] = 255
    size = 1 - 2 * _MARGIN
    corners = [(i % columns + _MARGIN, top + i // columns + _MARGIN) for i in range(n)]
    ax.add_collection(PatchCollection([Rectangle(corner, size, size) for corner in corners], facecolors=colors_N4))
    limits = ax.get_xlim(), ax.get_ylim()
    ax.imshow(canvas, extent=(0, columns, top + lines, top), aspect="auto", interpolation="none", zorder=2)
    ax.set(xlim=limits[0], ylim=limits[1])
