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
    hint = f"did you mean {guesses[0]!r}? " if len(guesses) == 1 else ""
    raise InputError(name, value, f"unknown {plural or name.replace('_', ' ')}; {hint}there are: {', '.join(known)}")


def near(typed: str, known: Iterable[str]) -> list[str]:
    """Which known names may have been meant, whatever their case.

    Returns:
        Of those that begin with `typed`, or with which it begins, the fewest letters off; without any, of those that
        share more than half their letters with it or are one letter off. Several where they are as near.
    """
    known = list(known)
    off = {name: _letters_off(typed.lower(), name.lower()) for name in known}
    begun = [name for name in known if typed and _begins(typed.lower(), name.lower())]
    found = begun or [name for name in known if off[name] < max(2, max(len(typed), len(name)) / 2)]
    return [name for name in found if off[name] == min(off[other] for other in found)]


def _begins(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _letters_off(one: str, other: str) -> int:
    common = sum(block.size for block in difflib.SequenceMatcher(None, one, other).get_matching_blocks())
    return max(len(one), len(other)) - common


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
