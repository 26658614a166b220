"""The user's own functions, named by a dotted path: ``package.module:function``.

The working folder is searched last, after all installed modules, and only while the path is looked up. A file there
that happens to be called ``random.py`` therefore never replaces Python's.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from ucl.errors import InputError

# The hash of each user module's source at the time when the module was executed.
_executed: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()


def find(field: str, path: str, arguments: str) -> Callable[..., Any]:
    """The function that a dotted path names.

    Args:
        field: the field of `Config` that holds the path.
        path: ``package.module:function``.
        arguments: names of the positional arguments of the later call, for messages: "logits".

    Raises:
        InputError: the module or function does not exist, cannot be imported, or cannot be called with the arguments.
    """
    module_name, _, name = path.partition(":")
    advice = "give package.module:function, importable from the working folder"
    try:
        with _working_folder_last():
            module = _import_current(module_name)
    except Exception as error:  # The module's own code has run, so any error is possible.
        if isinstance(error, (ImportError, TypeError, ValueError)) and not _their_frames(error):
            raise InputError(field, path, f"{error}{_shadowed(module_name)}; {advice}") from None
        raise InputError(field, path, f"importing {module_name} raised {_in_one_line(error)}") from error
    if not hasattr(module, name):
        raise InputError(field, path, f"{module_name} has no {name!r}{_shadowed(module_name)}; {advice}")
    function = getattr(module, name)
    if not callable(function):
        raise InputError(field, path, f"{name} is not a function; give a function of ({arguments})")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # Some functions written in C have no signature to inspect.
        return function
    try:
        signature.bind(*arguments.split(", "))
    except TypeError as error:
        reason = f"{name}{signature} can't be called with ({arguments}): {error}; give a function of ({arguments})"
        raise InputError(field, path, reason) from None
    return function


def call(field: str, path: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the function of a dotted path and return its result.

    Raises:
        InputError: the function raised; the message has the exception and its line in the module of the path.
    """
    try:
        return function(*arguments)
    except Exception as error:
        raise InputError(field, path, f"raised {_in_one_line(error)}") from error


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
    """The part of a message that says that an installed module hides one of the working folder; "" if none does."""
    top = module_name.partition(".")[0]
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    ours = [path for path in (Path(f"{top}.py"), Path(top)) if top and path.exists()]
    if top not in sys.modules or not ours or Path(file).is_relative_to(ours[0].resolve()):
        return ""
    return f"; the installed {top} ({file or 'a part of Python'}) hides {ours[0]} in the working folder: rename that"


def _in_one_line(error: BaseException) -> str:
    """An error on one line, with the last line of the user's file in its traceback."""
    text = " ".join(str(error).split())[:300]
    theirs = _their_frames(error)
    lines = [frame.lineno for frame in theirs if frame.filename == theirs[0].filename]
    where = f" ({Path(theirs[0].filename).name}, line {lines[-1]})" if theirs else ""
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"


def _their_frames(error: BaseException) -> list[traceback.FrameSummary]:
    ours = (__file__, importlib.__file__)
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if frame.filename not in ours and not frame.filename.startswith("<frozen ")]


def _import_current(module: str) -> ModuleType:
    """Import a user's module; execute it again if its file has changed since this process imported it."""
    before = sys.modules.get(module) if module != "__main__" else None
    file = source_file(module)
    source = Path(file).read_bytes() if file and Path(file).is_file() else b""
    digest = hashlib.sha256(source).hexdigest()
    found = importlib.import_module(module)
    if before is not None and source and type(getattr(found, "__loader__", None)) is SourceFileLoader:
        known = _executed.get(found)
        if known != digest if known else not _is_compiled_from(source, file, found):
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
