"""The JSON form of a record: one object, one attribute per line, with a format version and a SHA-256 of its content."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

FORMAT = 1
"""Version of the record format, stored in each record."""


class NewerRecord(ValueError):
    """A record was written by a newer version of this package, and may be complete: it is neither read nor replaced."""

    def __init__(self, what: str) -> None:
        super().__init__(f"a newer version of ucl wrote it, with {what}; update ucl to read it")


def write(content: dict[str, Any]) -> str:
    """The attributes of a record as JSON, preceded by `FORMAT` and followed by the `sha256` of all others.

    Raises:
        ValueError: a number is NaN or infinite.
    """
    content = {"format": FORMAT, **content}
    content["sha256"] = _sha256(content)
    lines = [f"{json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in content.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read(text: str) -> dict[str, Any]:
    """The attributes that `write` wrote; older records without a `sha256` are valid.

    Raises:
        ValueError: the text is not JSON, of another format, or was changed; a `NewerRecord` if the format is a later
            one.
    """
    if not text:
        raise ValueError("the file is empty")
    raw = json.loads(text)
    if not isinstance(raw, dict) or type(raw.get("format")) is not int:
        raise ValueError("it has no format")
    if raw["format"] > FORMAT:
        raise NewerRecord(f"format {raw['format']}")
    if "sha256" in raw and raw.pop("sha256") != _sha256(raw):
        raise ValueError("its sha256 does not match its content: the file was changed after it was written")
    return raw


def _sha256(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def to_lists(table: np.ndarray) -> list[list[float | None]]:
    """The rows of a two-dimensional array as lists, None for NaN."""
    return [[None if np.isnan(value) else float(value) for value in row] for row in table]


def to_arrays(raw: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The named attributes as float64 arrays, NaN for None."""
    return {name: np.array(raw[name], dtype=np.float64) for name in names}
