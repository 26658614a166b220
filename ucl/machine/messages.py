"""The log messages of the package, for those who show them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
