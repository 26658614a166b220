"""Errors for users: `InputError` names a value that cannot be used, and the checks here raise it."""

from __future__ import annotations

import math
import numbers
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

MOST_NAMED = 3  # files, folders, classes or patients that a message names
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


class Stopped(KeyboardInterrupt):
    """A signal asks this process to end.

    Attributes:
        signal: number of the signal.
    """

    def __init__(self, number: int) -> None:
        self.signal = number
        super().__init__(number)


class UserExit(RuntimeError):
    """The user's code, for example a score, tried to end the program during a run."""


@contextmanager
def exits_are_failures() -> Iterator[None]:
    """Turn a `SystemExit`, or a `KeyboardInterrupt` that no signal raised, into an ordinary error.

    Raises:
        UserExit: the block raised one of the two; the message names the module, the file and the line.
    """
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        if _raised_by_a_signal(error):
            raise
        module, file, line = _origin_in_users_code(error)
        raised = f"{type(error).__name__}{': ' if str(error) else ''}{error}"
        where = f"the module {module} raised {raised} ({file}, line {line})"
        raise UserExit(f"{where}; code that a run calls must not end the program") from None


def _raised_by_a_signal(error: BaseException) -> bool:
    """Whether a signal raised the error.

    A plain KeyboardInterrupt comes from a signal only in the main thread, and only under Python's own handler: our
    handlers raise `Stopped` instead.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    default_handler = in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, Stopped) or (isinstance(error, KeyboardInterrupt) and default_handler)


def _origin_in_users_code(error: BaseException) -> tuple[str, str, int]:
    """Module, file and line of the innermost frame that is not in a library."""
    import traceback

    frames = [
        (frame.f_globals.get("__name__", "?"), frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    own = [frame for frame in frames if not is_of_a_library(frame[1])]
    module, file, line = (own or frames)[-1]
    return module, Path(file).name, line


def is_of_a_library(file: str) -> bool:
    """Whether a source file is of Python or of an installed package."""
    import sysconfig

    installed = {"site-packages", "dist-packages"} & set(Path(file).parts)
    libraries = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    return bool(installed) or file.startswith((*libraries, "<frozen"))


def one_line(error: BaseException, most: int | None = 200) -> str:
    """The message of an error in one line of at most `most` characters; the type of the error if it has no message."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def one_line_with_type(error: BaseException, most: int | None = 200) -> str:
    """The type of an error and its `one_line`, such as "ValueError: not a number"."""
    name, text = type(error).__name__, one_line(error, most)
    return name if text == name else f"{name}: {text}"


def first_of(values: Sequence[object]) -> str:
    """The first values, and how many more there are: "a, b, c and 4 more"."""
    more = f" and {len(values) - MOST_NAMED} more" if len(values) > MOST_NAMED else ""
    return ", ".join(map(str, values[:MOST_NAMED])) + more


def one_of(name: str, value: object, known: Iterable[str], plural: str = "") -> None:
    """Check that `value` is among the known names.

    Raises:
        InputError: it is not; the message suggests the known name that is most similar, if there is one.
    """
    known = list(known)
    if isinstance(value, str) and value in known:
        return
    guesses = near(str(value), known)
    hint = f"did you mean {guesses[0]!r}? " if guesses else ""
    raise InputError(name, value, f"unknown {plural or name.replace('_', ' ')}; {hint}choose from: {', '.join(known)}")


def near(typed: str, known: Iterable[str]) -> list[str]:
    """The known names that may have been meant.

    These are the names that differ only in case or punctuation; without any, those with the same beginning, where case
    does not count; without any, the most similar one.
    """
    lowered, typed = {name.lower(): name for name in known}, typed.lower()
    same = [name for name in lowered if _letters(name) == _letters(typed) != ""]
    begun = [name for name in lowered if typed and (name.startswith(typed) or typed.startswith(name))]
    import difflib

    return [lowered[name] for name in same or begun or difflib.get_close_matches(typed, lowered, n=1)]


def _letters(name: str) -> str:
    """The letters and digits of a name."""
    return "".join(filter(str.isalnum, name))


def whole_number(name: str, value: object, low: int, high: int, why: str = "") -> None:
    """Check that `value` is a whole number, of Python or numpy, from `low` to `high`.

    Raises:
        InputError: it is not; the message ends with `why`.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not low <= value <= high:  # type: ignore[operator]
        raise InputError(name, value, f"give a whole number from {low} to {high}" + (f": {why}" if why else ""))


def number(name: str, value: object, low: float, high: float, open_low: bool = False, open_high: bool = False) -> None:
    """Check that `value` is a finite number from `low` to `high`, without an end that is open.

    Raises:
        InputError: it is not.
    """
    real = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf
    inside = real and (low < value if open_low else low <= value) and (value < high if open_high else value <= high)  # type: ignore[operator]
    if not inside:
        range_ = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
        raise InputError(name, value, f"give a number in {range_}")
