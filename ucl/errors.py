"""Errors for users: `InputError` names a value that cannot be used, and the checks here raise it."""

from __future__ import annotations

import difflib
import numbers
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parent  # of ucl
MOST_AT_ONCE = 1024  # threads, and runs or notebooks at a time, that a user may ask for


class InputError(ValueError):
    """A value from the user cannot be used.

    Attributes:
        name: the `Config` field or argument that has the value; "" where the reason is the whole message.
        value: the value, unchanged.
        reason: what is wrong, what is allowed and what to do, in one line.
    """

    def __init__(self, name: str, value: object, reason: str) -> None:
        self.name, self.value, self.reason = name, value, reason
        super().__init__(name, value, reason)

    def __str__(self) -> str:
        return f"{self.name}={self.value!r}: {self.reason}" if self.name else self.reason


def line_of(error: BaseException) -> str:
    """The innermost line of the user's code in a traceback, such as " (mine.py, line 3)"; "" if there is none."""
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    users = [(f, line) for f, line in frames if not is_of_a_library(str(f)) and not f.is_relative_to(_PACKAGE)]
    return f" ({users[-1][0].name}, line {users[-1][1]})" if users else ""


@cache
def is_of_a_library(file: str) -> bool:
    """Whether a source file is of Python or of an installed package."""
    installed = {"site-packages", "dist-packages"} & set(Path(file).parts)
    return bool(installed) or file.startswith((sysconfig.get_path("stdlib"), "<frozen"))


def one_line(error: BaseException) -> str:
    """The message of an error in one line; the type of the error if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__


def one_line_with_type(error: BaseException) -> str:
    """The type of an error and the first 300 characters of its message, such as "ValueError: not a number"."""
    name, text = type(error).__name__, one_line(error)[:300]
    return name if text == name else f"{name}: {text}"


def first_of(values: Sequence[object], most: int = 3) -> str:
    """The first values, and how many more there are: "a, b, c and 4 more"."""
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(map(str, values[:most])) + more


def one_of(name: str, value: object, known: Iterable[str], plural: str = "") -> None:
    """Check that `value` is among the known names.

    Raises:
        InputError: it is not; the message suggests the known name that is most similar, if there is one.
    """
    known = list(known)
    if isinstance(value, str) and value in known:
        return
    lowered = {name.lower(): name for name in known}
    guesses = difflib.get_close_matches(str(value).lower(), lowered, n=1)
    hint = f"did you mean {lowered[guesses[0]]!r}? " if guesses else ""
    raise InputError(name, value, f"unknown {plural or name.replace('_', ' ')}; {hint}choose from: {', '.join(known)}")


def whole_number(name: str, value: object, low: int, high: int) -> None:
    """Check that `value` is a whole number, of Python or numpy, from `low` to `high`.

    Raises:
        InputError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not low <= value <= high:  # type: ignore[operator]
        raise InputError(name, value, f"give a whole number from {low} to {high}")
