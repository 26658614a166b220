"""Images side by side: the layout that pictures of memories share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from ucl.plots.style import WIDTH, plain, shortened, widest

Images: TypeAlias = Sequence[np.ndarray] | np.ndarray
"""Images of one size (H, H, C), uint8, C = 1 or 3."""
_LARGEST = 0.45  # inches, of an image with its margin
_BETWEEN = 1 / 8  # space between two rows, in images


def tiles(images: Images, columns: int, lines: int, side: int) -> np.ndarray:
    """Images in lines, as one picture (H, W, 3), uint8: hundreds of axes would take seconds to draw.

    Args:
        images: at most `columns * lines`; white fills the rest.
        columns: images per line.
        lines: lines of the picture.
        side: pixels of an image.
    """
    margin = math.ceil(0.03 * side)
    pitch = side + 2 * margin
    cells = np.full((lines * columns, pitch, pitch, 3), 255, np.uint8)
    for cell, image in zip(cells, images):
        np.copyto(cell[margin:-margin, margin:-margin], image)  # Unlike an assignment, it refuses floats.
    in_lines = cells.reshape(lines, columns, pitch, pitch, 3).swapaxes(1, 2)
    return in_lines.reshape(lines * pitch, columns * pitch, 3)


def image_table(names: Sequence[str], panels: Mapping[str, Sequence[Images]], columns: int) -> Figure:
    """A panel per title with a row of images per name; the caller sets the style.

    Args:
        names: (R,), of the rows; printed on the left.
        panels: for each title R rows.
        columns: images per line; a row with more images takes several lines.
    """
    texts = shortened(names, 26)
    lines = [max(1, *(math.ceil(len(row) / columns) for row in rows)) for rows in zip(*panels.values(), strict=True)]
    side = max((len(image) for rows in panels.values() for row in rows for image in row), default=1)
    inches = min(_LARGEST, (WIDTH - 0.2 - 1.05 * widest(texts, 8.5)) / (columns * len(panels)))  # of an image
    size = WIDTH, 0.4 + inches * (sum(lines) + _BETWEEN * len(lines))
    figure, axes = plt.subplots(1, len(panels), figsize=size, sharey=True, squeeze=False, layout="compressed")
    below = [(0, round(_BETWEEN * side)), (0, 0), (0, 0)]
    for ax, (title, rows) in zip(axes[0], panels.items()):
        pictures = [tiles(row, columns, n, side) for row, n in zip(rows, lines, strict=True)]
        padded = [np.pad(picture, below, constant_values=255) for picture in pictures]
        # Without interpolation: smoothed natural images make files twice as large.
        ax.imshow(np.concatenate(padded), interpolation="none")
        ax.set(title=plain(title), xticks=[])
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
    tops = np.cumsum([0, *map(len, padded)])[:-1]
    axes[0, 0].set_yticks(tops + [len(picture) / 2 for picture in pictures], texts)
    return figure
