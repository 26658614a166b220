"""Rows of means with intervals, one per method or setting: what the figures of them share."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ucl.plots.style import plain

REACH = 45.0  # points shown on either side of 0; a longer interval says only that n is too small
PAPER: dict[str, Any] = {"marker": "D", "color": "black", "mfc": "none", "ms": 4, "alpha": 0.7}  # the paper's value


def stream_name(dataset: str, memory_size: float) -> str:
    """A stream in lines of at most 24 characters, with its memory size in the last line, if it has one."""
    name = textwrap.fill(plain(dataset), 24)
    return name if pd.isna(memory_size) else f"{name}\nmemory {memory_size:g}"


def interval(
    ax: Axes, y: float, row: Mapping[Any, Any] | pd.Series, reach: float, shade: Any, marker: str, filled: bool
) -> None:
    """Draw a mean with its interval; arrows mark ends beyond `reach` points."""
    low, high = np.clip([row["low"], row["high"]], -reach, reach)
    ax.plot([low, high], [y, y], color=shade, lw=1.4, solid_capstyle="butt")
    for end, beyond, arrow in ((low, row["low"] < -reach, "<"), (high, row["high"] > reach, ">")):
        if beyond:
            ax.plot(end, y, arrow, color=shade, ms=5)
    ax.plot(row["mean"], y, marker, color=shade, mfc=shade if filled else "white", ms=4.5, zorder=3)


def mark(marker: str, filled: bool) -> Line2D:
    """The mark of a setting in a legend."""
    return Line2D([], [], color="0.3", marker=marker, mfc="0.3" if filled else "white", ls="")


def paper_mark() -> Line2D:
    return Line2D([], [], color="black", marker="D", mfc="none", ls="")
