"""Consistency of a record that was read from a file: its tables have the shapes and gaps of one run."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ucl.records.further_tests import Anytime, Reading
    from ucl.records.record import Record


def check(record: Record) -> None:
    """Check that the results of a record fit each other.

    Raises:
        ValueError: they do not; the message names the attribute.
    """
    n_tasks, n_classes, after = len(record.accuracy), len(record.classes), record.diverged_after
    tested: dict[str, Record | Reading] = {"": record, **record.readings}
    facts = {
        "diverged_after": after in (None, *range(n_tasks)),
        "class_order": sorted(record.class_order) == list(range(n_classes)),
        "memory": len(set(map(len, record.memory.values()))) <= 1,
        "timing": math.isfinite(record.seconds_per_batch),
        "fingerprint or source": all(re.fullmatch("[0-9a-f-]*", part) for part in record.version),  # parts of its name
        "anytime": record.anytime is None or _is_along_the_stream(record.anytime, n_tasks),
        **{
            f"accuracy {name}": _fits(tests, n_tasks, n_classes, n_tasks if after is None else after)
            for name, tests in tested.items()
        },
    }
    for name, fits in facts.items():
        if not fits:
            raise ValueError(f"{name.strip()} does not fit {n_tasks} tasks and {n_classes} classes")


def _fits(tests: Record | Reading, n_tasks: int, n_classes: int, n_measured: int) -> bool:
    """Whether the tables have the right shapes, are known for the measured tasks, and are shares, in [0, 1]."""
    known = np.tri(n_tasks, dtype=bool) & (np.arange(n_tasks) < n_measured)[:, None]
    tables = [(tests.accuracy, n_tasks), (tests.class_recall, n_classes)]
    tables += [] if tests.answer_shares is None else [(tests.answer_shares, n_tasks)]
    return np.array_equal(~np.isnan(tests.accuracy), known) and all(
        table.shape == (n_tasks, columns) and not ((table < 0) | (table > 1)).any() for table, columns in tables
    )


def _is_along_the_stream(anytime: Anytime, n_tasks: int) -> bool:
    """Whether the batches ascend, and no count exceeds the number of images."""
    return (
        (anytime.correct.shape, anytime.images.shape) == ((len(anytime.batches), n_tasks), (n_tasks,))
        and bool((np.diff(anytime.batches) > 0).all())
        and not (anytime.correct > anytime.images).any()
    )
