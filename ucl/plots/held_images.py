"""The images that memories hold over the stream, ordered and coloured by a score; controls that choose them."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from ucl.catalogue import SCORES
from ucl.plots.images import image_table
from ucl.plots.style import WIDTH, styled

QUANTITIES = {
    "entry": "entry into the memory [batches seen]",
    **{name: f"{name}, {row.label} [{row.unit}]" for name, row in SCORES.items()},
}
"""What images can be ordered and coloured by: columns, and their names with units."""

_HIGH = 9.0  # inches: the height that the images should not exceed
_COLUMNS = (7, 10, 15, 20, 25)  # images per line; the larger numbers are for pictures that would be too high
_FRAME = 0.1  # of an image's side
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
        order_by, color_by: keys of `QUANTITIES` that all tables have as columns.
        only: the label of the only class to show; None shows the classes that have entered a memory by then.
    """
    shown = [label for label, batch in labels(runs).items() if batch <= moment] if only is None else [only]
    scale, extend = _scale(runs, color_by)
    panels = {}
    for name, table in runs.items():
        rows = [images_of(table, moment, label, order_by) for label in shown]
        framed = [_framed(images_NHWC[row["position"]], scale.to_rgba(row[color_by])) for row in rows]
        panels[f"{name}, {sum(map(len, rows))} images"] = framed
    most = np.max([[len(row) for row in rows] for rows in panels.values()], axis=0)
    for columns in _COLUMNS:
        if WIDTH / len(runs) / columns * np.ceil(most / columns).sum() <= _HIGH:
            break
    figure = image_table([classes[label] for label in shown], panels, min(columns, max(5, *most)))
    figure.set_figheight(figure.get_figheight() + 1)
    figure.suptitle(f"{moments(runs)[moment]}\n")
    names = f"frame: {QUANTITIES[color_by]}\nfrom the left: {QUANTITIES[order_by]}"
    figure.colorbar(scale, ax=figure.axes, location="bottom", extend=extend, label=names, aspect=40, pad=0.02)
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


def _framed(images_NHWC: np.ndarray, colors_N4: np.ndarray) -> np.ndarray:
    """RGB images, (N, H, W, 3) uint8, each in a frame of its colour."""
    n, side = images_NHWC.shape[:2]
    pad = math.ceil(_FRAME * side)
    framed = np.empty((n, side + 2 * pad, side + 2 * pad, 3), np.uint8)
    framed[:] = 255 * colors_N4[:, None, None, :3]
    framed[:, pad:-pad, pad:-pad] = images_NHWC
    return framed


def explorer(runs: Mapping[str, pd.DataFrame], images_NHWC: np.ndarray, classes: Sequence[str]) -> Any:
    """A slider over the moments and menus of order, colour and class, above the picture that they choose.

    The arguments are those of `held_images`. Python draws the picture, so the controls need a notebook whose kernel
    runs: Jupyter or Colab.

    Returns:
        An `ipywidgets.VBox` of moment, order, colour, class and picture.
    """
    import ipywidgets

    def draw(_: Any = None) -> None:
        chosen = (control.value for control in controls)
        figure = held_images(runs, images_NHWC, classes, *chosen)
        png = io.BytesIO()
        figure.savefig(png, format="png")
        plt.close(figure)
        picture.value = png.getvalue()

    wide = {"width": "34em", "max_width": "100%"}
    options = [(name, batch) for batch, name in moments(runs).items()]
    columns = set.intersection(*(set(table) for table in runs.values()))
    quantities = {name: column for column, name in QUANTITIES.items() if column in columns}
    of_class = {"all": None, **{str(classes[label]): label for label in labels(runs)}}
    controls = [
        # The picture is drawn only when the slider is released: one for each step would keep the kernel busy.
        ipywidgets.SelectionSlider(
            description="moment", options=options, value=options[-1][1], continuous_update=False, layout=wide
        ),
        ipywidgets.Dropdown(description="order", options=quantities, value="BI", layout=wide),
        ipywidgets.Dropdown(description="colour", options=quantities, value="BI", layout=wide),
        ipywidgets.Dropdown(description="class", options=of_class, layout=wide),
    ]
    # An image instead of an output widget: nbclient can wait forever for a cell whose output widget it mirrors.
    picture = ipywidgets.Image()
    for control in controls:
        control.observe(draw, "value")
    draw()
    return ipywidgets.VBox([*controls, picture])
