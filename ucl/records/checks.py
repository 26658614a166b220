"""Consistency of the results in a record's JSON: its tables have the shapes and gaps of one run."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np


def check(raw: dict[str, Any]) -> None:
    """Check that the results of a record fit each other.

    Raises:
        ValueError: they do not; the message names the attribute. If an attribute is missing or has another type, any
            error.
    """
    n_tasks, n_classes, after = len(raw["accuracy"]), len(raw["classes"]), raw.get("diverged_after")
    n_measured = n_tasks if after is None else after
    hashes = [raw["data"]["fingerprint"]]
    hashes += [value for name, value in raw["environment"].items() if name.endswith("source")]
    facts = {
        "diverged_after": after in (None, *range(n_tasks)),
        "class_order": sorted(raw["class_order"]) == list(range(n_classes)),
        "memory": len(set(map(len, raw["memory"].values()))) <= 1,
        "timing": all(math.isfinite(raw["timing"][name]) for name in ("total", "evaluation")),
        "batches": raw["timing"]["batches"] >= 1,
        "fingerprint or source": all(re.fullmatch("[0-9a-f]{1,64}", text) for text in hashes),  # parts of file names
        "anytime": "anytime" not in raw or _is_along_the_stream(raw["anytime"], n_tasks),
        **{
            f"accuracy {name}": _fits(tests, n_tasks, n_classes, n_measured)
            for name, tests in {"": raw, **raw.get("readings", {})}.items()
        },
    }
    for name, fits in facts.items():
        if not fits:
            raise ValueError(f"{name.strip()} does not fit {n_tasks} tasks and {n_classes} classes")


def _fits(tests: dict[str, Any], n_tasks: int, n_classes: int, n_measured: int) -> bool:
    """Whether the tables have the right shapes, are known for the measured tasks, and are shares, in [0, 1]."""
    columns = {"accuracy": n_tasks, "class_recall": n_classes, "answer_shares": n_tasks}
    tables = {name: np.array(tests[name], float) for name in columns if name in tests}
    known = np.tri(n_tasks, dtype=bool) & (np.arange(n_tasks) < n_measured)[:, None]
    return np.array_equal(~np.isnan(tables["accuracy"]), known) and all(
        table.shape == (n_tasks, columns[name]) and not ((table < 0) | (table > 1)).any()
        for name, table in tables.items()
    )


def _is_along_the_stream(anytime: dict[str, Any], n_tasks: int) -> bool:
    """Whether the batches ascend, and no count exceeds the number of images."""
    correct, images = np.array(anytime["correct"], float), np.array(anytime["images"])
    return (
        (correct.shape, images.shape) == ((len(anytime["batches"]), n_tasks), (n_tasks,))
        and bool((np.diff(anytime["batches"]) > 0).all())
        and not (correct > images).any()
    )
