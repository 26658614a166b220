"""The dotted path of an object of the user's own: ``package.module:name`` or ``package.module:name(power=2)``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ucl.errors import InputError


class OwnPath(NamedTuple):
    """The parts of a dotted path.

    Attributes:
        module: ``package.module``.
        name: what the module calls the object.
        arguments: values of parameters of the object, by their names: literals of Python.
    """

    module: str
    name: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        """The path in its one spelling: arguments in alphabetical order, without unnecessary spaces."""
        listed = ", ".join(f"{name}={value!r}" for name, value in sorted(self.arguments.items()))
        return f"{self.module}:{self.name}" + (f"({listed})" if listed else "")


def parsed(field: str, path: str) -> OwnPath:
    """The parts of a dotted path.

    Args:
        field: the field of `Config` that holds the path.
        path: ``package.module:name`` or ``package.module:name(parameter=value, ...)``.

    Raises:
        InputError: the arguments are not parameter=value with a literal of Python: a finite number, a text in quotes,
            True, False, None, or a list, tuple or dictionary of them.
    """
    module, _, rest = path.partition(":")
    name, opening, _ = rest.partition("(")
    if not opening:
        return OwnPath(module, name, {})
    try:
        call = ast.parse(f"_{rest[len(name) :]}", mode="eval").body  # Other code reports a name that does not exist.
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError
        arguments = {str(word.arg or ""): ast.literal_eval(word.value) for word in call.keywords}
        if "" in arguments or any(isinstance(node, ast.Set) for node in ast.walk(call)):  # A set has no fixed spelling.
            raise ValueError
        ast.literal_eval(repr(arguments))  # An infinite number has no literal: its text could not be read again.
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        values = "finite numbers or texts in quotes as values"
        reason = f"give arguments by name, with {values}, such as {module}:{name}(power=2)"
        raise InputError(field, path, reason) from None
    return OwnPath(module, name, arguments)


def split_outside_arguments(text: str, separator: str) -> list[str]:
    """The parts of a text between separators, without spaces at their ends; ``mine:s(a=1, b=2)`` stays whole.

    Args:
        text: such as ``BI,mine:s(a=1, b=2)``.
        separator: a regular expression; a match within parentheses does not separate.
    """
    within = list(_within_parentheses(text))
    separators = [match for match in re.finditer(separator, text) if not within[match.start()]]
    begins = [0, *(match.end() for match in separators)]
    ends = [*(match.start() for match in separators), len(text)]
    return [text[begin:end].strip() for begin, end in zip(begins, ends, strict=True)]


def _within_parentheses(text: str) -> Iterator[bool]:
    """For each character, whether it is within parentheses; those in quotes within parentheses do not count."""
    depth, quote, escaped = 0, "", False
    for character in text:
        yield depth > 0
        if quote:
            quote = "" if character == quote and not escaped else quote
            escaped = character == "\\" and not escaped
        elif depth and character in "'\"":  # Outside parentheses it may be the apostrophe of a folder's name.
            quote = character
        else:
            depth = max(0, depth + (character == "(") - (character == ")"))
