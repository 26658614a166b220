"""What a user is told: the error that names a value that can't be used, and the checks that raise it."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable


class InputError(ValueError):
    """A value that a user gave and that can't be used.

    Attributes:
        name: what was given, a `Config` field or the name of an argument; "" where the reason says it all.
        value: the value as given.
        reason: what is wrong, what is allowed and what to do, in one line.
    """

    def __init__(self, name: str, value: object, reason: str) -> None:
        self.name, self.value, self.reason = name, value, reason
        super().__init__(name, value, reason)

    def __str__(self) -> str:
        return f"{self.name}={self.value!r}: {self.reason}" if self.name else self.reason


def one_of(name: str, value: object, known: Iterable[str], plural: str = "") -> None:
    """Check that `value` is among the known names.

    Raises:
        InputError: it is not; the message names the nearest known one, where one is near.
    """
    known = list(known)
    if isinstance(value, str) and value in known:
        return
    guesses = near(str(value), known)
    hint = f"did you mean {guesses[0]!r}? " if guesses else ""
    raise InputError(name, value, f"unknown {plural or name.replace('_', ' ')}; {hint}there are: {', '.join(known)}")


def near(typed: str, known: Iterable[str]) -> list[str]:
    """Which known names may have been meant, whatever their case: those that begin alike, else the nearest one."""
    lowered, typed = {name.lower(): name for name in known}, typed.lower()
    begun = [name for name in lowered if typed and (name.startswith(typed) or typed.startswith(name))]
    return [lowered[name] for name in begun or difflib.get_close_matches(typed, lowered, n=1)]


def whole_number(name: str, value: object, low: int, high: int, why: str = "") -> None:
    """Check that `value` is a whole number from `low` to `high`.

    Raises:
        InputError: it is not; the message ends with `why`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InputError(name, value, f"give a whole number from {low} to {high}" + (f": {why}" if why else ""))


def number(name: str, value: object, low: float, high: float, open_low: bool = False, open_high: bool = False) -> None:
    """Check that `value` is a finite number from `low` to `high`, an open end left out.

    Raises:
        InputError: it is not.
    """
    real = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf
    inside = real and (low < value if open_low else low <= value) and (value < high if open_high else value <= high)  # type: ignore[operator]
    if not inside:
        range_ = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
        raise InputError(name, value, f"give a number in {range_}")
