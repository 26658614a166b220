"""The user's own objects, named by a dotted path: ``package.module:name``.

The path is the value of a field of `Config` (`ucl.choices.PLUGS`). `find`, `find_class` and `find_by_name` import the
object and raise before the run if it cannot be used. If its code raises during a run, `blamed` turns the error into one
line that names the object.

The working folder is searched last, after all installed modules, and only while the path is looked up. A file there
that happens to be called ``random.py`` therefore never replaces Python's.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import find_spec
from inspect import Parameter
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from ucl.errors import InputError

# The hash of each user module's source at the time when the module was executed.
_executed: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()


def find(field: str, path: str, arguments: str, kind: str = "function") -> Callable[..., Any]:
    """The function that a dotted path names.

    Args:
        field: the field of `Config` that holds the path.
        path: ``package.module:function``.
        arguments: names of the positional arguments of the later call, for messages: "logits".
        kind: what messages call it.

    Raises:
        InputError: the module or function does not exist, cannot be imported, or cannot be called with the arguments.
    """
    function, name = _imported(field, path), path.partition(":")[2]
    if not callable(function):
        raise InputError(field, path, f"{name} is not a {kind}; give a {kind} of ({arguments})")
    signature = _signature(function)
    try:
        signature.bind(*filter(None, arguments.split(", ")))
    except TypeError as error:
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
    """

    def __init__(self, function: Callable[..., Any], known: Sequence[str]) -> None:
        self._function = function
        parameters = list(_signature(function).parameters.values())
        named = [parameter.name for parameter in parameters if parameter.name in known]
        in_order = bool(parameters) and parameters[0].kind not in (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)
        self._first: tuple[str, ...] = ()
        if in_order or not named:
            first = parameters[0].name if parameters and parameters[0].name in known else known[0]
            self._first = (first,)
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
        InputError: see `find`; or the function has another parameter without a default value, or none at all.
    """
    function, name = _imported(field, path), path.partition(":")[2]
    advice = f"give a function of ({known[0]}), which may ask for {', '.join(known[1:])} too"
    if not callable(function):
        raise InputError(field, path, f"{name} is not a function; {advice}")
    signature, found = _signature(function), ByName(function, known)
    listed = ", ".join(sorted(found.asked, key=known.index))
    try:
        found.check()
    except TypeError as error:
        raise InputError(field, path, f"{name}{signature} can't be called with ({listed}): {error}; {advice}") from None
    return function


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # Some functions written in C have no signature to inspect.
        return inspect.Signature([Parameter("arguments", Parameter.VAR_POSITIONAL)])


def find_class(field: str, path: str, base: type[Any], arguments: str) -> type[Any]:
    """The class that a dotted path names.

    Args:
        field, path, arguments: see `find`; the arguments are those of the constructor.
        base: a class of this package from which the class must inherit.

    Raises:
        InputError: there is no such class, it does not inherit from `base`, it does not define all abstract methods
            of `base`, it cannot be imported, or its objects cannot be created with the arguments.
    """
    found = _imported(field, path, base.__name__)
    name, wanted = path.partition(":")[2], f"{base.__module__}.{base.__name__}"
    if not isinstance(found, type) or not issubclass(found, base):
        kind = "" if isinstance(found, type) else f" but a {type(found).__name__}"
        raise InputError(field, path, f"{name} is no subclass of {wanted}{kind}; give `class {name}({base.__name__})`")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise InputError(field, path, f"{name} does not define {', '.join(missing)}; see {wanted}")
    return find(field, path, arguments, "class with a constructor")  # type: ignore[return-value]


def _advice(kind: str) -> str:
    """Where an object must be; the folder is named, because that of a remote worker may be another one."""
    return f"give package.module:{kind}, importable from the working folder, {os.getcwd()}"


def _imported(field: str, path: str, kind: str = "function") -> Any:
    """The object of a dotted path; `kind` is what messages call it.

    Raises:
        InputError: it does not exist, or its module cannot be imported.
    """
    module_name, _, name = path.partition(":")
    try:
        with _working_folder_last():
            module = _import_current(module_name)
    except Exception as error:  # The module's own code has run, so any error is possible.
        if isinstance(error, (ImportError, TypeError, ValueError)) and not _their_frames(error):
            raise InputError(field, path, f"{error}{_shadowed(module_name)}; {_advice(kind)}") from None
        raise InputError(field, path, f"importing {module_name} raised {_in_one_line(error)}") from error
    if not hasattr(module, name):
        raise InputError(field, path, f"{module_name} has no {name!r}{_shadowed(module_name)}; {_advice(kind)}")
    return getattr(module, name)


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
def blamed(field: str, path: str) -> Iterator[None]:
    """Within the block, an error becomes an `InputError` that names one of the user's objects and the line.

    Blocks may be nested: the innermost one names its object. With an empty path, the block changes nothing.

    Raises:
        InputError: the block raised an error.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if not path:
            raise
        file = source_file(path.partition(":")[0])
        raise InputError(field, path, f"raised {_in_one_line(error, file)}") from error


def source_file(module: str) -> str:
    """The source file of a module, found without executing the module; "" if there is none."""
    loaded = sys.modules.get(module)
    if loaded is not None:
        return getattr(loaded, "__file__", None) or ""
    top, *inner = module.split(".")
    try:
        spec = find_spec(top) or PathFinder.find_spec(top, [os.getcwd()])
        for i, _ in enumerate(inner):
            folders = spec.submodule_search_locations if spec else None
            spec = PathFinder.find_spec(".".join([top, *inner[: i + 1]]), folders) if folders else None
    except (ImportError, ValueError, OSError):
        return ""
    return spec.origin if spec and spec.has_location and spec.origin else ""


def source_hash(path: str) -> str:
    """16 hexadecimal digits that identify the source of an object, such as a score; "" if it cannot be known.

    It covers the file of the module in the dotted path, but not the modules that this module imports. The module is not
    executed. For an object without a file, defined in a notebook or at Python's prompt, it covers the compiled code of
    the object itself: of the function, or of the functions in the class.
    """
    module, _, name = path.partition(":")
    if file := source_file(module):
        try:
            return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
        except OSError:
            return ""
    found = getattr(sys.modules.get(module), name, None)
    members = vars(found).values() if isinstance(found, type) else [found]
    functions = [inner for one in members if isinstance(inner := getattr(one, "__func__", one), FunctionType)]
    content = [(f.__qualname__, _content(f.__code__), f.__defaults__, f.__kwdefaults__) for f in functions]
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16] if content else ""


def _content(code: CodeType) -> tuple:
    """What a function computes, without where it was defined: its instructions, names and constants."""
    constants = [_content(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants


@contextmanager
def kept_from_processes() -> Iterator[None]:
    """Python processes started within the block do not search the working folder for modules (from Python 3.11)."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("PYTHONSAFEPATH", None)
        else:
            os.environ["PYTHONSAFEPATH"] = before


@contextmanager
def _working_folder_last() -> Iterator[None]:
    folder = os.getcwd()
    if folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _shadowed(module_name: str) -> str:
    """The part of a message that reports an installed module that hides one of the working folder; "" if none does."""
    top = module_name.partition(".")[0]
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    ours = [path for path in (Path(f"{top}.py"), Path(top)) if top and path.exists()]
    if top not in sys.modules or not ours or Path(file).is_relative_to(ours[0].resolve()):
        return ""
    return f"; the installed {top} ({file or 'a part of Python'}) hides {ours[0]} in the working folder: rename that"


def _in_one_line(error: BaseException, file: str = "") -> str:
    """An error as one line of text, with the line number in the user's file, or in the first file outside ucl."""
    text = " ".join(str(error).split())[:300]
    theirs = _their_frames(error)
    named = [frame for frame in theirs if frame.filename == file] or theirs
    lines = [frame.lineno for frame in named if frame.filename == named[0].filename]
    where = f" ({Path(named[0].filename).name}, line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"


def _their_frames(error: BaseException) -> list[traceback.FrameSummary]:
    ours = (os.path.join(os.path.dirname(__file__), ""), importlib.__file__, contextlib.__file__, "<frozen ")
    return [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]


def _import_current(module: str) -> ModuleType:
    """Import a user's module; execute it again if its file has changed since this process imported it."""
    before = sys.modules.get(module) if module != "__main__" else None
    file = source_file(module)
    source = Path(file).read_bytes() if file and Path(file).is_file() else b""
    digest = hashlib.sha256(source).hexdigest()
    found = importlib.import_module(module)
    if before is not None and source and type(getattr(found, "__loader__", None)) is SourceFileLoader:
        known = _executed.get(found)
        has_changed = known != digest if known else not _is_compiled_from(source, file, found)
        if has_changed:
            found = importlib.reload(found)
    _executed[found] = digest
    return found


def _is_compiled_from(source: bytes, file: str, module: ModuleType) -> bool:
    """Whether the functions of a module that other code imported are those of its current file."""
    try:
        codes = set(_codes(compile(source, file, "exec")))
    except (SyntaxError, ValueError):
        return False
    functions = [f for f in vars(module).values() if isinstance(f, FunctionType) and f.__code__.co_filename == file]
    return all(f.__code__ in codes for f in functions)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
