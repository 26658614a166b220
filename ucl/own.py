"""Functions of the user's own, named by a dotted path: ``package.module:function``.

The working folder is searched for them behind all that is installed, and only while the path is looked up: a file there
that happens to be called ``random.py`` is never taken for Python's.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ucl.errors import InputError


def find(field: str, path: str, arguments: str) -> Callable[..., Any]:
    """The function that a dotted path leads to.

    Args:
        field: the field of `Config` that holds the path.
        path: ``package.module:function``.
        arguments: the positional arguments that it will be called with, named for a message: "logits".

    Raises:
        InputError: the module or function is not there, can't be imported, or can't be called so.
    """
    module_name, _, name = path.partition(":")
    advice = "give package.module:function, importable from the working folder"
    try:
        with _working_folder_last():
            module = importlib.import_module(module_name)
    except Exception as error:  # the module's own code has run
        if isinstance(error, (ImportError, TypeError, ValueError)) and not _their_frames(error):
            raise InputError(field, path, f"{error}{_shadowed(module_name)}; {advice}") from None
        raise InputError(field, path, f"importing {module_name} raised {_told(error)}") from error
    if not hasattr(module, name):
        raise InputError(field, path, f"{module_name} has no {name!r}{_shadowed(module_name)}; {advice}")
    function = getattr(module, name)
    if not callable(function):
        raise InputError(field, path, f"{name} is no function; give one of ({arguments})")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C do not tell theirs
        return function
    try:
        signature.bind(*arguments.split(", "))
    except TypeError as error:
        reason = f"{name}{signature} can't be called with ({arguments}): {error}; give a function of ({arguments})"
        raise InputError(field, path, reason) from None
    return function


def call(field: str, path: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function of a dotted path returns.

    Raises:
        InputError: it raised; the message has the exception, and its line in the module of the path.
    """
    try:
        return function(*arguments)
    except Exception as error:
        raise InputError(field, path, f"raised {_told(error)}") from error


@contextmanager
def kept_from_processes() -> Iterator[None]:
    """Within the block, Python processes that are started do not look for modules in the working folder (from 3.11)."""
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
    """Why a module of the working folder was not taken: an installed one has its name. "" where that is not so."""
    top = module_name.partition(".")[0]
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    ours = [path for path in (Path(f"{top}.py"), Path(top)) if top and path.exists()]
    if top not in sys.modules or not ours or Path(file).is_relative_to(ours[0].resolve()):
        return ""
    return (
        f"; the installed {top} ({file or 'a part of Python'}) goes before {ours[0]} in the working folder: rename that"
    )


def _told(error: BaseException) -> str:
    """An error on one line, with the line of the user's file that it passed last."""
    text = " ".join(str(error).split())[:300]
    theirs = _their_frames(error)
    lines = [frame.lineno for frame in theirs if frame.filename == theirs[0].filename]
    where = f" ({Path(theirs[0].filename).name}, line {lines[-1]})" if theirs else ""
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"


def _their_frames(error: BaseException) -> list[traceback.FrameSummary]:
    ours = (__file__, importlib.__file__)
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if frame.filename not in ours and not frame.filename.startswith("<frozen ")]
