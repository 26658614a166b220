"""Parsing of the command line: a parser that reports errors in one line, with a suggestion, and its value types."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from ucl.errors import MOST_AT_ONCE, InputError, near
from ucl.machine.files import try_writing
from ucl.machine.yaml_form import from_yaml


class Parameter(argparse.Action):
    """Parse a name and a value in YAML, and append the pair to those of earlier uses; a name has one value."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        name, text = values
        try:
            value = from_yaml(text)
        except ValueError:
            parser.error(f"{option_string} {name} {text}: the value is not valid YAML; quote it")
        earlier = getattr(namespace, self.dest)
        for other, its_value in earlier:
            if other == name and its_value != value:
                parser.error(f"{option_string} {name} has the values {its_value} and {text}; give one of them")
        setattr(namespace, self.dest, [*earlier, (name, value)])


class Once(argparse._StoreAction):
    """Store the value of a flag; another value for the same flag is refused, because only one could be used."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        typed = vars(namespace).setdefault("typed", {})
        earlier = typed.setdefault(self.dest, values)
        if earlier is not values and earlier != values:  # NaN is not equal to itself.
            parser.error(f"{option_string} has the values {earlier} and {values}; give one of them")
        setattr(namespace, self.dest, values)


class OnceOnOrOff(argparse.BooleanOptionalAction):
    """Store whether a flag is --NAME or --no-NAME; both together are refused, as `Once` refuses two values."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        typed = vars(namespace).setdefault("typed", {})
        earlier = typed.setdefault(self.dest, option_string)
        if earlier != option_string:
            parser.error(f"{earlier} and {option_string} contradict each other; give one of them")
        super().__call__(parser, namespace, values, option_string)


class Parser(argparse.ArgumentParser):
    """A parser that accepts full flags only; an error ends the program with exit code 2 and one line."""

    def __init__(self, **how: Any) -> None:
        # An abbreviation that is unique today may be ambiguous after a new flag is added.
        super().__init__(**how, formatter_class=_Help, allow_abbrev=False)
        self.register("action", None, Once)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # The parser of the verb reports unknown flags. argparse would leave this to the main parser, which has no flags
        # to suggest.
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._about_unknown(unknown[0].partition("=")[0]))
        return found, unknown

    def _about_unknown(self, typed: str) -> str:
        if not typed.startswith("-"):
            return f"{typed} is not expected here"
        name = typed.lstrip("-")  # Without the dashes, which make any two flags alike.
        positional = {action.dest: action.metavar or action.dest for action in self._get_positional_actions()}
        if name in positional:
            usage = " ".join([self.prog, *map(str, positional.values())])
            return f"{typed}: {positional[name]} has no flag; give {usage}"
        known = [flag[2:] for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        flags = [f"--{flag}" for flag in near(name, known)]
        return f"unknown flag {typed}" + (f"; did you mean {' or '.join(flags)}?" if flags else "")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            guesses = near(str(value), action.choices)
            hint = f"did you mean {' or '.join(guesses)}?" if guesses else f"choose from: {', '.join(action.choices)}"
            self.error(f"unknown {str(action.metavar or action.dest).lower()} {value}; {hint}")

    def error(self, message: str) -> NoReturn:
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and message.endswith(f"required: {action.metavar}"):
                message += f", one of {', '.join(action.choices)}"
        message += f"{'' if message.endswith('?') else ';'} see {self.prog} --help"
        raise SystemExit(refuse(self.prog, message))

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        print(end="", flush=True)  # After a help text; see `ucl.cli.main.main` for the errors.
        super().exit(status, message)


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=110)


def refuse(who: str, message: str) -> int:
    """Print in one line what can't be used; returns the exit code."""
    print(f"{who}: {' '.join(message.split())}", file=sys.stderr)
    return 2


def check_output(path: str) -> None:
    """Check that an output file can be written, before the work whose result it gets; its folder is created.

    Raises:
        InputError: it cannot be written.
    """
    if os.path.isdir(path) or path.endswith(os.sep):
        raise InputError("output", path, "is a folder; give a file in it")
    try:
        try_writing(Path(path).parent)
    except OSError as error:
        reason = f"its folder can't be written to ({error.strerror}); give another path"
        raise InputError("output", path, reason) from None


def count(text: str) -> int:
    """A number of threads, or of runs or notebooks at a time."""
    if not text.isdecimal() or not 1 <= int(text) <= MOST_AT_ONCE:
        raise argparse.ArgumentTypeError(f"{text}: give a whole number from 1 to {MOST_AT_ONCE}")
    return int(text)


def shard(text: str) -> tuple[int, int]:
    """The pair I, N of a text I/N, with I from 1 to N."""
    i, slash, n = text.partition("/")
    if not (slash and i.isdecimal() and n.isdecimal() and 1 <= int(i) <= int(n)):
        raise argparse.ArgumentTypeError(f"{text}: give I/N with I from 1 to N, such as 3/20")
    return int(i), int(n)


def integer(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def seed(text: str) -> int:
    """One of several seeds."""
    try:
        return integer(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; seeds are separated by spaces: 0 1 2") from None


def number(text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def as_typed(error: InputError, verb: argparse.ArgumentParser) -> str:
    """The refused value after its flag; alone for a positional argument; after its name if it has no argument."""
    if not error.name:
        return ""
    flags = {action.dest: action.option_strings[:1] for action in verb._actions}
    return " ".join([*flags.get(error.name, [error.name]), str(error.value)]) + ": "
