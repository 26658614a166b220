"""Controls for notebooks: a slider and menus that choose a picture of `ucl.plots.held_images`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from ucl.plots.held_images import QUANTITIES, held_images, labels, moments


def explorer(runs: Mapping[str, pd.DataFrame], images_NHWC: np.ndarray, classes: Sequence[str]) -> Any:
    """A slider over the moments and menus of order, colour and class, above the picture that they choose.

    Python draws the picture, so the controls need a notebook whose kernel runs: Jupyter or Colab.

    Args:
        runs, images_NHWC, classes: see `held_images`.

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
