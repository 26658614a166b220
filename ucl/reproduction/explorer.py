"""Controls for notebooks: a slider and menus that choose a picture of `ucl.plots.held_images`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ucl.plots.held_images import QUANTITIES, held_images, labels, moments

_DPI = 150


def explorer(runs: Mapping[str, pd.DataFrame], images_NHWC: np.ndarray, classes: Sequence[str]) -> Any:
    """A slider over the moments and menus of order, colour and class, above the picture that they choose.

    Python draws the picture, a PNG, so the controls need a notebook whose kernel runs: Jupyter or Colab.

    Args:
        runs, images_NHWC, classes: see `held_images`.

    Returns:
        An `ipywidgets.VBox` of moment, order, colour, class and picture.
    """
    import ipywidgets

    named = [(name, column) for column, name in QUANTITIES.items()]
    class_options = [("all", None), *((str(classes[label]), label) for label in labels(runs))]
    wide = ipywidgets.Layout(width="34em", max_width="100%")

    def menu(name: str, options: Sequence[tuple[str, Any]], value: Any) -> Any:
        return ipywidgets.Dropdown(options=options, value=value, description=name, layout=wide)

    options = [(name, batch) for batch, name in moments(runs).items()]
    # The picture is drawn only when the slider is released: a picture for each step would keep the kernel busy.
    moment = ipywidgets.SelectionSlider(
        options=options, value=options[-1][1], description="moment", layout=wide, continuous_update=False
    )
    controls = moment, menu("order", named, "BI"), menu("colour", named, "BI"), menu("class", class_options, None)
    picture = ipywidgets.Image(format="png", layout=ipywidgets.Layout(max_width="100%"))

    def draw(_: object = None) -> None:
        batch, order_by, color_by, only = (control.value for control in controls)
        figure = held_images(runs, images_NHWC, classes, batch, order_by, color_by, only)
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=_DPI)
        plt.close(figure)  # Otherwise the notebook would show it a second time.
        picture.value = png.getvalue()

    for control in controls:
        control.observe(draw, names="value")
    draw()
    return ipywidgets.VBox([*controls, picture])
