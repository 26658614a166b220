"""The user's own objects: finding them, checking how they can be called, and reporting the errors that they raise."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import Parameter
from typing import Any

from ucl.errors import InputError, near
from ucl.own.modules import imported, source_file, with_users_line, working_folder_last
from ucl.own.path import parsed


def find(field: str, path: str, arguments: str, kind: str = "function") -> Callable[..., Any]:
    """The function that a dotted path names.

    Args:
        field: the field of `Config` that holds the path.
        path: ``package.module:function``, or with values of further parameters ``package.module:function(power=2)``.
        arguments: names of the positional arguments of the later call, for messages: "logits".
        kind: what messages call it.

    Raises:
        InputError: the module or function does not exist, cannot be imported, or cannot be called with the arguments.
    """
    function, name = imported(field, path), parsed(field, path).name
    if not callable(function):
        raise InputError(field, path, f"{name} is not a {kind}; give a {kind} of ({arguments})")
    function = _with_arguments(field, path, function)
    signature = _signature(function)
    try:
        signature.bind(*filter(None, arguments.split(", ")))
    except TypeError as error:
        _check_not_given(field, path, arguments.split(", "))
        reason = f"{name}{signature} can't be called with ({arguments}): {error}; give a {kind} of ({arguments})"
        raise InputError(field, path, reason) from None
    return function


class ByName:
    """A function of the user's own that gets values by the names of its parameters.

    The first parameter may have any name: if the name is not known, it gets the first of the known values.

    Args:
        function: the function.
        known: names of the values that it may ask for.

    Attributes:
        asked: names of the values that it asks for.
        unknown: the name of its first parameter if that is not known; "" otherwise.
    """

    def __init__(self, function: Callable[..., Any], known: Sequence[str]) -> None:
        self._function = function
        parameters = list(_signature(function).parameters.values())
        named = [parameter.name for parameter in parameters if parameter.name in known]
        in_order = bool(parameters) and parameters[0].kind not in (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)
        self._first: tuple[str, ...] = ()
        self.unknown = ""
        if in_order or not named:
            first = parameters[0].name if parameters else ""
            self._first = (first if first in known else known[0],)
            self.unknown = "" if first in known else first
        self._named = tuple(name for name in named if name not in self._first)
        self.asked = frozenset((*self._first, *self._named))

    def check(self) -> None:
        """Raise a TypeError if the function has another parameter without a default value, or has none at all."""
        _signature(self._function).bind(*self._first, **dict.fromkeys(self._named))

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Call the function with those of the values, by name, that it asks for."""
        return self._function(*(values[name] for name in self._first), **{name: values[name] for name in self._named})


def find_by_name(field: str, path: str, known: Sequence[str]) -> Callable[..., Any]:
    """The function that a dotted path names, for `ByName`.

    Args:
        field, path: see `find`.
        known: names of the parameters that the function may have.

    Raises:
        InputError: see `find`; or the function has another parameter without a default value, or none at all; or its
            first parameter has a name that is similar to another known name than the first one.
    """
    function, name = imported(field, path), parsed(field, path).name
    advice = f"give a function of ({known[0]}), which may ask for {', '.join(known[1:])} too"
    if not callable(function):
        raise InputError(field, path, f"{name} is not a function; {advice}")
    _check_not_given(field, path, known)
    function = _with_arguments(field, path, function)
    signature, found = _signature(function), ByName(function, known)
    listed = ", ".join(sorted(found.asked, key=known.index))
    try:
        found.check()
    except TypeError as error:
        raise InputError(field, path, f"{name}{signature} can't be called with ({listed}): {error}; {advice}") from None
    guesses = near(found.unknown, known) if len(found.unknown) > 2 else []  # Short names are similar to many.
    if guesses and known[0] not in guesses:
        hint = f"did you mean {guesses[0]!r}? Under another name it would get {known[0]}"
        raise InputError(field, path, f"{name}{signature} has the unknown parameter {found.unknown!r}; {hint}")
    return function


def _check_not_given(field: str, path: str, names: Sequence[str]) -> None:
    """Raise an `InputError` if the path has an argument that the run itself gives."""
    for name in parsed(field, path).arguments:
        if name in names:
            raise InputError(field, path, f"the run gives {name} itself; leave it out of the arguments")


def _with_arguments(field: str, path: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the arguments of the path already given."""
    _, name, arguments = parsed(field, path)
    if not arguments:
        return function
    signature = _signature(function)
    try:
        signature.bind_partial(**arguments)
    except TypeError as error:
        raise InputError(field, path, f"{error}; {name} is {name}{signature}") from None
    return partial(function, **arguments)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # Some functions written in C have no signature to inspect.
        return inspect.Signature([Parameter("arguments", Parameter.VAR_POSITIONAL)])


def find_class(field: str, path: str, base: type[Any], arguments: str) -> Callable[..., Any]:
    """The constructor of the class that a dotted path names.

    Args:
        field, path, arguments: see `find`; the arguments are those of the constructor.
        base: a class of this package from which the class must inherit.

    Raises:
        InputError: there is no such class, it does not inherit from `base`, it does not define all abstract methods
            of `base`, it cannot be imported, or its objects cannot be created with the arguments.
    """
    found, name = imported(field, path, base.__name__), parsed(field, path).name
    wanted = f"{base.__module__}.{base.__name__}"
    if not isinstance(found, type) or not issubclass(found, base):
        kind = "" if isinstance(found, type) else f" but a {type(found).__name__}"
        raise InputError(field, path, f"{name} is no subclass of {wanted}{kind}; give `class {name}({base.__name__})`")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise InputError(field, path, f"{name} does not define {', '.join(missing)}; see {wanted}")
    return find(field, path, arguments, "class with a constructor")


def check_initialised(field: str, path: str, found: object) -> None:
    """Raise an `InputError` if the constructor of the user's class did not call that of its base class."""
    if not hasattr(found, "_saved"):
        name = type(found).__name__
        raise InputError(field, path, f"{name}.__init__ does not call super().__init__; call it first")


def call(field: str, path: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call the function of a dotted path and return its result.

    Raises:
        InputError: the function raised; the message has the exception and its line in the module of the path.
    """
    with blamed(field, path):
        return function(*arguments, **named)


@contextmanager
def blamed(field: str, path: str, given: str = "") -> Iterator[None]:
    """Within the block, an error becomes an `InputError` that names one of the user's objects and the line.

    Blocks may be nested: the innermost one names its object. With an empty path, the block changes nothing. `given` is
    what the object got, such as "images (2, 3, 32, 32)". An import in the block finds modules of the working folder, as
    one at the top of the user's file does.

    Raises:
        InputError: the block raised an error.
    """
    if not path:
        yield
        return
    try:
        with working_folder_last():
            yield
    except InputError:
        raise
    except Exception as error:
        file = source_file(path.partition(":")[0])
        got = f" for {given}" if given else ""
        raise InputError(field, path, f"raised {with_users_line(error, file)}{got}") from error
