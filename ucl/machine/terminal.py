"""Progress bars, notes, warnings and log messages in terminals and notebooks; durations as text."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


def show_note(message: object, *_: object, **__: object) -> None:
    """Print a remark in one line to standard error, above a progress bar; takes the place of `warnings.showwarning`."""
    from tqdm import tqdm

    with suppress(BrokenPipeError):  # The reader of the lines has ended; the runs have not.
        tqdm.write(f"ucl: {message}", sys.stderr)


@contextmanager
def log_messages(show: Callable[[str], object]) -> Iterator[None]:
    """Within the block, call a function with each log message of the package when it is logged for the first time."""
    show_once = functools.cache(show)  # A run reads some data sets twice.
    logger, handler = logging.getLogger("ucl"), logging.Handler()
    handler.emit = lambda record: show_once(record.getMessage())  # type: ignore[method-assign,assignment]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def progress_bar(total: int, name: str, show: bool | None) -> Any:
    """A tqdm bar over `total` batches, as a widget in notebooks; `show=None` shows it in terminals and notebooks."""
    from tqdm.auto import tqdm

    return tqdm(total=total, desc=name, unit=" batches", mininterval=1.0, disable=None if show is None else not show)


def duration(seconds: float) -> str:
    """A duration as text: "40 s", "12 min", "3 h 20 min", "2 d 4 h"."""
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
