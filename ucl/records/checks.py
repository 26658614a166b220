"""Validation of a record's JSON: one type per attribute, then the shapes that must fit each other."""

from __future__ import annotations

import datetime
import itertools
import re
import reprlib
from collections.abc import Callable
from typing import Any

Check = Callable[[Any], bool]
_LARGEST = 2.0**1023  # A sum or a difference of two such numbers is still finite.


def _numbers(low: float, high: float = _LARGEST, whole: bool = False, gaps: bool = False) -> Check:
    """Accepts lists of at least one number in a range; whole numbers up to the largest int64, and None with `gaps`."""
    types = {int} | (set() if whole else {float}) | ({type(None)} if gaps else set())
    high = min(high, 2**63 - 1) if whole else high

    def check(values: Any) -> bool:
        if type(values) is not list or not values or not types.issuperset(map(type, values)):
            return False
        return all([low <= value <= high for value in values if value is not None])

    return check


def _number(low: float = -_LARGEST, whole: bool = False, optional: bool = False) -> Check:
    of_list = _numbers(low, whole=whole, gaps=optional)
    return lambda value: of_list([value])


def _table(row: Check) -> Check:
    """Accepts lists of at least one row of equal length."""
    return lambda value: type(value) is list and all(map(row, value)) and len(set(map(len, value))) == 1


def _object(required: dict[str, Check], others: Check = lambda value: True, **known: Check) -> Check:
    """Accepts objects with the `required` entries; `known` ones may be absent, and all others must fit `others`."""
    named = {**known, **required}

    def check(value: Any) -> bool:
        complete = type(value) is dict and required.keys() <= value.keys()
        return complete and all(named.get(name, others)(entry) for name, entry in value.items())

    return check


def _text(value: Any) -> bool:
    return type(value) is str


def _hash(value: Any) -> bool:
    """Accepts hexadecimal digits only, because they become part of file names."""
    return type(value) is str and re.fullmatch(r"[0-9a-f]{1,64}", value) is not None


def _date(value: Any) -> bool:
    try:
        return type(value) is str and bool(datetime.datetime.fromisoformat(value))
    except ValueError:
        return False


def _fact(value: Any) -> bool:
    return type(value) in (str, bool, type(None)) or _number()(value)


def _texts(value: Any) -> bool:
    return type(value) is list and len(value) > 0 and all(map(_text, value))


_SHARES = _table(_numbers(0, 1, gaps=True))
_READING = {"accuracy": _SHARES, "class_recall": _SHARES, "answer_shares": _SHARES, "shift": _numbers(0, gaps=True)}
_TIMES = {"total": _number(0), "evaluation": _number(0), "batches": _number(1, whole=True)}
_COUNTS = {"batches": _numbers(1, whole=True), "images": _numbers(1, whole=True)}
ATTRIBUTES: dict[str, Check] = {
    "date": _date,
    "classes": _texts,
    "class_order": _numbers(0, whole=True),
    "accuracy": _SHARES,
    "class_recall": _SHARES,
    "timing": _object(_TIMES, _number(0, optional=True)),
    "environment": _object({"device": _text}, _fact, peak_memory_mib=_number(0), source=_hash),
    "data": _object({"name": _text, "fingerprint": _hash}, _fact, training_images=_number(1, whole=True)),
    "memory": _object(
        {},
        position=_numbers(0, whole=True),
        label=_numbers(0, whole=True),
        score=_numbers(-_LARGEST, gaps=True),
        confidence=_numbers(0, 1, gaps=True),
        bregman_information=_numbers(0, gaps=True),
    ),
}
"""The attributes that every record has."""
OPTIONAL: dict[str, Check] = {
    "diverged_after": _number(0, whole=True, optional=True),
    "answer_shares": _SHARES,
    "anytime": _object({**_COUNTS, "correct": _table(_numbers(0, whole=True, gaps=True))}),
    "readings": _object({}, _object(_READING)),
}
"""The attributes that some records have."""


def check(raw: dict[str, Any]) -> None:
    """Check the attributes of a record's JSON object, and that their shapes are consistent.

    Raises:
        ValueError: an attribute is missing or not valid; the message names it and its value.
    """
    for name, fits in (ATTRIBUTES | OPTIONAL).items():
        if name not in raw and name in ATTRIBUTES:
            raise ValueError(f"{name} is missing")
        if name in raw and not fits(raw[name]):
            raise ValueError(f"{name} is not valid: {reprlib.repr(raw[name])}")
    sources = {name: value for name, value in raw["environment"].items() if name.endswith("_source")}
    n_tasks, n_classes, diverged = len(raw["accuracy"]), len(raw["classes"]), raw.get("diverged_after")
    labels = raw["memory"].get("label", [])
    fitting = {
        "environment": all(map(_hash, sources.values())),
        "diverged_after": diverged is None or diverged < n_tasks,
        "class_order": sorted(raw["class_order"]) == list(range(n_classes)),
        "memory": len(set(map(len, raw["memory"].values()))) <= 1 and all(label < n_classes for label in labels),
        "anytime": "anytime" not in raw or _is_along_the_stream(raw["anytime"], n_tasks),
        "accuracy, class_recall or answer_shares": _fit(raw, n_tasks, n_classes, diverged),
        **{
            f"the reading {name!r}": _fit(reading, n_tasks, n_classes, diverged)
            for name, reading in raw.get("readings", {}).items()
        },
    }
    for name, fits_others in fitting.items():
        if not fits_others:
            raise ValueError(f"{name} does not fit {n_tasks} tasks and {n_classes} classes")


def _fit(tests: dict[str, Any], n_tasks: int, n_classes: int, diverged: int | None) -> bool:
    """Whether the tables of a record, or of one of its readings, have the right shapes and gaps."""
    measured = n_tasks if diverged is None else diverged
    gaps = [[i > t or t >= measured for i in range(n_tasks)] for t in range(n_tasks)]
    recall, shares = tests["class_recall"], tests.get("answer_shares", gaps)
    return (
        [[value is None for value in row] for row in tests["accuracy"]] == gaps
        and (len(recall), len(recall[0])) == (n_tasks, n_classes)
        and (len(shares), len(shares[0])) == (n_tasks, n_tasks)
        and len(tests.get("shift", gaps)) == n_tasks
    )


def _is_along_the_stream(anytime: dict[str, Any], n_tasks: int) -> bool:
    """Whether the batches ascend, the tasks begin in order, and no count exceeds the number of images."""
    batches, correct, images = anytime["batches"], anytime["correct"], anytime["images"]
    if (len(batches), n_tasks) != (len(correct), len(images)) or len(correct[0]) != n_tasks:
        return False
    begun = [sum(n is not None for n in row) for row in correct]
    return (
        all(earlier < later for earlier, later in itertools.pairwise(batches))
        and begun[0] > 0
        and begun == sorted(begun)
        and all(None not in row[:n] for row, n in zip(correct, begun, strict=True))
        and all(n is None or n <= of for row in correct for n, of in zip(row, images, strict=True))
    )
