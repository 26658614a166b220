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
from ucl.plots.style import color, plain, shortened, styled, widest

QUANTITIES = {
    "entry": "entry into the memory [batches seen]",
    **{name: f"{name}, {row.label} [{row.unit}]" for name, row in SCORES.items()},
}
"""What images can be ordered and coloured by: columns, and their names with units."""

_WIDTH, _HIGH = 5.5, 9.0  # inches: width of a picture, and the height that the images should not exceed
_COLUMNS = (7, 10, 15, 20, 25)  # images per line; the larger numbers are for pictures that would be too high
_GAP = 0.25  # between rows, in cells
_PAD = 0.13  # frame and margin around an image, as a share of its side
_MARGIN = 0.02  # around a frame, in cells
_SIZE = 8  # points
_MOST = 0.98  # quantile at which the scale of a score ends


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
    moment: int,
    order_by: str = "BI",
    color_by: str = "BI",
    only: int | None = None,
) -> Figure:
    """The images in memory at one moment of several runs of a stream: a column per run, a row per class.

    In a row the images go from the lowest to the highest value of `order_by`, those without a value last. The colour of
    a frame is the value of `color_by`, on one scale for all moments of all runs; a grey frame has no value. The scale
    of a score ends at its 98 % quantile.

    Args:
        runs: the table `moments` of each run by its name, see `ucl.studies.observe.Observed`.
        images_NHWC: the training images of the data set, uint8, C = 1 or 3.
        classes: names of the labels.
        moment: a key of `moments`.
        order_by, color_by: keys of `QUANTITIES`.
        only: the label of the only class to show; None shows the classes that have entered a memory by then.
    """
    shown = [label for label, batch in labels(runs).items() if batch <= moment] if only is None else [only]
    held = {name: [images_of(table, moment, label, order_by) for label in shown] for name, table in runs.items()}
    most = np.max([[len(images) for images in panel] for panel in held.values()], axis=0)
    short = shortened(classes, 18)
    names = [plain(short[label]) for label in shown]
    # In inches: the space left and right of all panels, between them, above and below them.
    left, right, between, above, below = 0.2 + 1.05 * widest(names, _SIZE), 0.1, 0.2, 0.55, 0.75
    wide = (_WIDTH - left - right + between) / len(runs) - between
    for columns in _COLUMNS:
        cell = wide / columns
        lines = np.maximum(1, np.ceil(most / columns))
        tops = np.cumsum([0, *(lines + _GAP)])
        if cell * tops[-1] <= _HIGH:
            break
    high = cell * tops[-1]
    height = above + high + below
    scale, extend = _scale(runs, color_by)
    figure = plt.figure(figsize=(_WIDTH, height), layout="none")
    for column, (name, panel) in enumerate(held.items()):
        x = left + column * (wide + between)
        ax = figure.add_axes((x / _WIDTH, below / height, wide / _WIDTH, high / height))
        ax.set(xlim=(0, columns), ylim=(tops[-1], 0), xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
        for top, images in zip(tops, panel, strict=False):
            _draw(ax, images_NHWC[images["position"].to_numpy()], scale.to_rgba(images[color_by]), columns, float(top))
        where: dict[str, Any] = dict(loc="lower left", bbox_to_anchor=(0, 1), borderpad=0, handlelength=0.8)
        title = f"{name}, {sum(map(len, panel))} images"
        ax.legend([Patch(color=color(name))], [title], fontsize=_SIZE + 1, **where)
    figure.axes[0].set_yticks(tops[:-1] + lines / 2, names, fontsize=_SIZE)
    figure.text(left / _WIDTH, 1 - 0.05 / height, moments(runs)[moment], va="top", fontsize=_SIZE + 1)
    bar = figure.add_axes((left / _WIDTH, (below - 0.15) / height, wide / _WIDTH, 0.1 / height))
    figure.colorbar(scale, bar, orientation="horizontal", extend=extend)
    bar.tick_params(labelsize=_SIZE)
    bar.set_xlabel(f"frame: {QUANTITIES[color_by]}", fontsize=_SIZE, loc="left", labelpad=1)
    figure.text(left / _WIDTH, 0.05 / height, f"from the left: {QUANTITIES[order_by]}", fontsize=_SIZE)
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
