"""Progress bars in terminals and notebooks, and durations as text."""

from __future__ import annotations

import sys
from typing import Any


def progress_bar(total: int, name: str, show: bool | None) -> Any:
    """A tqdm bar over `total` batches, as a widget in notebooks; `show=None` shows it in terminals and notebooks."""
    from tqdm.auto import tqdm
    from tqdm.std import tqdm as terminal_bar

    ipython = sys.modules.get("IPython")
    in_notebook = ipython is not None and hasattr(ipython.get_ipython(), "kernel")
    if show is None:
        show = in_notebook or sys.stderr.isatty()
    bar = tqdm if in_notebook and show else terminal_bar
    return bar(total=total, desc=name, unit=" batches", mininterval=1.0, disable=not show)


def duration(seconds: float) -> str:
    """A duration as text: "40 s", "12 min", "3 h 20 min", "2 d 4 h"."""
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
