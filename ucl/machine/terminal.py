"""Progress bars, notes, warnings and log messages in terminals and notebooks; tables and durations as text."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ucl.fields import as_text


def show_note(message: object) -> None:
    """Print a remark in one line to standard error, above a progress bar if there is one."""
    from tqdm import tqdm

    with suppress(BrokenPipeError):  # The reader of the lines has ended; the runs have not.
        tqdm.write(f"ucl: {as_text(message)}", sys.stderr)


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """`show_note` with the arguments of `warnings.showwarning`."""
    show_note(message)


@contextmanager
def log_messages(show: Callable[[str], object] = lambda _: None) -> Iterator[list[str]]:
    """Collect the package's log messages in the block, each once, and show each of them when it is logged."""
    messages: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if (message := record.getMessage()) not in messages:  # A run reads some data sets twice.
                messages.append(message)
                show(message)

    logger, collect = logging.getLogger("ucl"), Collect()
    level = logger.level
    logger.addHandler(collect)
    logger.setLevel(logging.INFO)
    try:
        yield messages
    finally:
        logger.setLevel(level)
        logger.removeHandler(collect)


def progress_bar(total: int, name: str, show: bool | None) -> Any:
    """A tqdm bar over `total` batches, as a widget in notebooks; `show=None` shows it in terminals and notebooks."""
    from tqdm.auto import tqdm
    from tqdm.std import tqdm as terminal_bar

    ipython = sys.modules.get("IPython")
    in_notebook = ipython is not None and hasattr(ipython.get_ipython(), "kernel")
    if show is None:
        show = in_notebook or sys.stderr.isatty()
    bar = tqdm if in_notebook and show else terminal_bar
    return bar(total=total, desc=as_text(name), unit=" batches", mininterval=1.0, disable=not show)


def duration(seconds: float) -> str:
    """A duration as text: "40 s", "12 min", "3 h 20 min", "2 d 4 h"."""
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """A table as text with aligned columns: the first `left` columns at the left, the others, numbers, at the right."""
    rows = [list(map(as_text, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, *rows):
        cells = [cell.ljust(n) if i < left else cell.rjust(n) for i, (cell, n) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
