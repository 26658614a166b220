"""Progress bars in terminals and notebooks; tables and durations as text."""

from __future__ import annotations

import itertools
import shutil
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning in one line, without its origin: for `warnings.showwarning` of the command and its workers."""
    with suppress(BrokenPipeError):  # The reader of the lines has ended; the runs have not.
        print(f"ucl: {message}", file=sys.stderr)


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


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """A table as text with aligned columns; cells are wrapped between words where the terminal is too narrow (120
    characters without one).

    Args:
        head: names of the columns.
        rows: cells of each row.
        left: how many of the first columns are words, which are aligned at the left and may be wrapped; the others are
            numbers.
    """
    columns = list(zip(head, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    shortest = [max(len(word) for cell in column for word in [*cell.split(), ""]) for column in columns]
    free = shutil.get_terminal_size((120, 24)).columns - 2 * (len(widths) - 1)
    while sum(widths) > free and (wide := [i for i in range(left) if widths[i] > shortest[i]]):
        widths[max(wide, key=widths.__getitem__)] -= 1
    lines = []
    for row in (head, *rows):
        wrapped = [textwrap.wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
        for parts in itertools.zip_longest(*wrapped, fillvalue=""):
            aligned = [part.ljust(n) if i < left else part.rjust(n) for i, (part, n) in enumerate(zip(parts, widths))]
            lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)
