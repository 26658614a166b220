"""The dotted path of an object of the user's own: ``package.module:name`` or ``package.module:name(power=2)``."""

from __future__ import annotations

import ast
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
