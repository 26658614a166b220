"""What a user is told: the error that names a value that can't be used, and the checks that raise it."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


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


class Stopped(KeyboardInterrupt):
    """A signal asks this process to end.

    Attributes:
        signal: its number.
    """

    def __init__(self, number: int) -> None:
        self.signal = number
        super().__init__(number)


class UserExit(RuntimeError):
    """Code of the user's, such as a score, tried to end the program in the middle of a run."""


@contextmanager
def exits_are_failures() -> Iterator[None]:
    """Turn `SystemExit`, and a `KeyboardInterrupt` that no signal raised, into a failure like any other.

    Raises:
        UserExit: the block raised one of them; the message names the module, the file and the line.
    """
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        if _asked_for_by_a_signal(error):
            raise
        module, file, line = _place_in_users_code(error)
        raised = f"{type(error).__name__}{': ' if str(error) else ''}{error}"
        reason = f"the module {module} raised {raised} ({file}, line {line}); what a run calls may not end the program"
        raise UserExit(reason) from None


def _asked_for_by_a_signal(error: BaseException) -> bool:
    """In a thread, and where a handler of our own raises `Stopped`, a plain KeyboardInterrupt is somebody's own."""
    here = threading.current_thread() is threading.main_thread()
    plain = here and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, Stopped) or (isinstance(error, KeyboardInterrupt) and plain)


def _place_in_users_code(error: BaseException) -> tuple[str, str, int]:
    """Module, file and line an error comes from: the innermost that is no library's."""
    import sysconfig
    import traceback

    libraries = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    frames = [
        (frame.f_globals.get("__name__", "?"), frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    own = [place for place in frames if not place[1].startswith((*libraries, "<frozen"))]
    module, file, line = (own or frames)[-1]
    return module, Path(file).name, line


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
    import difflib

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
