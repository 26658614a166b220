"""Controls for notebooks: a slider and menus that choose a picture of `ucl.plots.held_images`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ucl.plots.held_images import QUANTITIES, held_images, labels, moments


def explorer(runs: Mapping[str, pd.DataFrame], images_NHWC: np.ndarray, classes: Sequence[str]) -> Any:
    """A slider over the moments and menus of order, colour and class, above the picture that they choose.

    Python draws the picture, so the controls need a notebook whose kernel runs: Jupyter or Colab.

    Args:
        runs, images_NHWC, classes: see `held_images`.

    Returns:
        An `ipywidgets.interactive` of moment, order, colour, class and picture; its `result` is the figure.
    """
    import ipywidgets

    def draw(moment: int, order: str, colour: str, only: int | None) -> Figure:
        figure = held_images(runs, images_NHWC, classes, moment, order, colour, only)
        plt.close(figure)  # Otherwise the notebook would show it a second time.
        return figure

    wide = {"width": "34em", "max_width": "100%"}
    options = [(name, batch) for batch, name in moments(runs).items()]
    # The picture is drawn only when the slider is released: a picture for each step would keep the kernel busy.
    moment = ipywidgets.SelectionSlider(options=options, value=options[-1][1], continuous_update=False, layout=wide)
    quantities = {name: column for column, name in QUANTITIES.items()}
    order, colour = (ipywidgets.Dropdown(options=quantities, value="BI", layout=wide) for _ in range(2))
    of_class = {"all": None, **{str(classes[label]): label for label in labels(runs)}}
    only = ipywidgets.Dropdown(options=of_class, description="class", layout=wide)
    chosen = {"moment": moment, "order": order, "colour": colour, "only": only}
    return ipywidgets.interactive(draw, {"auto_display": True}, **chosen)
