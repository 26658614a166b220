"""The modules of the user's own objects: importing them, their source files, and errors raised in them.

The working folder is searched last, after all installed modules, and only while a path is looked up or one of the
user's objects is called. A file there that happens to be called ``random.py`` therefore never replaces Python's.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from ucl.errors import InputError, is_of_a_library, near, one_line_with_type
from ucl.own.path import parsed

_PACKAGE = os.path.dirname(os.path.dirname(__file__))  # of ucl
# The hash of each user module's source at the time when the module was executed.
_executed: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()


def _advice(kind: str) -> str:
    """Where an object must be; the folder is named, because that of a remote worker may be another one."""
    return f"give package.module:{kind}, importable from the working folder, {os.getcwd()}"


def imported(field: str, path: str, kind: str = "function") -> Any:
    """The object of a dotted path; `kind` is what messages call it.

    Raises:
        InputError: it does not exist, or its module cannot be imported.
    """
    module_name, name, _ = parsed(field, path)
    try:
        os.getcwd()  # It raises an error if the folder was removed.
        with working_folder_last():
            module = _import_current(module_name)
    except Exception as error:  # The module's own code has run, so any error is possible.
        if isinstance(error, (ImportError, TypeError, ValueError)) and not _their_frames(error):
            if module_name.endswith(".py"):
                dotted = path.replace(".py:", ":", 1)
                raise InputError(field, path, f"is the name of a file; give that of its module: {dotted}") from None
            raise InputError(field, path, f"{error}{_shadowed(module_name)}; {_advice(kind)}") from None
        raise InputError(field, path, f"importing {module_name} raised {with_users_line(error)}") from error
    if not hasattr(module, name):
        hides = _shadowed(module_name)
        own = [other for other, value in vars(module).items() if getattr(value, "__module__", "") == module_name]
        guesses = [] if hides else near(name, own)
        hint = f"did you mean {guesses[0]!r}? " if guesses else ""
        raise InputError(field, path, f"{module_name} has no {name!r}{hides}; {hint}{_advice(kind)}")
    return getattr(module, name)


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
    the object itself: of the function, also under decorators that name it in `__wrapped__`, or of the functions and
    properties in the class. It does not cover the values of variables that they use.
    """
    module, name, _ = parsed("", path)
    if file := source_file(module):
        try:
            return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
        except OSError:
            return ""
    found = getattr(sys.modules.get(module), name, None)
    content = [
        (f.__qualname__, _content(f.__code__), _without_addresses((f.__defaults__, f.__kwdefaults__)))
        for f in _functions([found], set())
    ]
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16] if content else ""


def _content(code: CodeType) -> tuple:
    """What a function computes, without where it was defined: its instructions, names and constants."""

    def content(constant: object) -> object:
        if isinstance(constant, frozenset):  # of `x in {"a", "b"}`; its order differs from process to process
            return sorted(map(repr, constant))
        return _content(constant) if isinstance(constant, CodeType) else repr(constant)

    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, [content(one) for one in code.co_consts]


def _without_addresses(values: object) -> str:
    """Values as text without addresses in memory, which differ from process to process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(values))


def _functions(values: Iterable[Any], seen: set[int]) -> Iterator[FunctionType]:
    """The functions among some values, in classes and properties, and under decorators, too."""
    for value in values:
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, type):
            yield from _functions(vars(value).values(), seen)
        elif isinstance(value, property):
            yield from _functions((value.fget, value.fset, value.fdel), seen)
        elif isinstance(function := getattr(value, "__func__", value), FunctionType):
            yield function
            yield from _functions([vars(function).get("__wrapped__")], seen)


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
def working_folder_last() -> Iterator[None]:
    """Within the block, modules are searched in the working folder too, after all other folders, if it exists."""
    try:
        folder = os.getcwd()
    except OSError:  # It was removed.
        folder = ""
    if not folder or folder in sys.path:
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
    places = [file, *getattr(sys.modules.get(top), "__path__", [])]  # A folder without an __init__.py is no file.
    if top not in sys.modules or not ours or any(Path(place).is_relative_to(ours[0].resolve()) for place in places):
        return ""
    return f"; the installed {top} ({file or 'a part of Python'}) hides {ours[0]} in the working folder: rename that"


def with_users_line(error: BaseException, file: str = "") -> str:
    """An error as one line of text, with the line number in the user's file, or in the first file of no library.

    An error without a frame in such a file, for example of a torch.nn.Sequential, has no line number.
    """
    theirs = _their_frames(error)
    named = [frame for frame in theirs if frame.filename == file]
    named = named or [frame for frame in theirs if not is_of_a_library(frame.filename)]
    lines = [frame.lineno for frame in named if frame.filename == named[0].filename]
    where = f" ({Path(named[0].filename).name}, line {lines[-1]})" if lines else ""
    return one_line_with_type(error, 300) + where


def _their_frames(error: BaseException) -> list[traceback.FrameSummary]:
    ours = (os.path.join(_PACKAGE, ""), importlib.__file__, contextlib.__file__, "<frozen ")
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
            # Compiled code counts as current if the file has the same size and was written in the same second.
            with contextlib.suppress(OSError, NotImplementedError):
                os.unlink(cache_from_source(file))
            found = _executed_again(found)
    _executed[found] = digest
    return found


def _executed_again(module: ModuleType) -> ModuleType:
    """The module after its file was executed again, without those of its own functions that the file no longer has.

    The same holds for classes and callable objects of these. Other variables, imported names and submodules stay, as in
    `importlib.reload`. If the file cannot be executed, all names are as before, because objects may be in use.
    """
    before = dict(vars(module))
    for name, value in before.items():
        if callable(value) and getattr(value, "__module__", None) == module.__name__:
            del vars(module)[name]
    try:
        return importlib.reload(module)
    except BaseException:
        vars(module).update(before)
        raise


def _is_compiled_from(source: bytes, file: str, module: ModuleType) -> bool:
    """Whether the functions and classes of a module that other code imported are those of its current file.

    A change of other variables is not seen.
    """
    try:
        codes = set(_codes(compile(source, file, "exec", dont_inherit=True)))  # without this module's `annotations`
    except (SyntaxError, ValueError):
        return False
    functions = _functions(vars(module).values(), set())
    return all(f.__code__ in codes for f in functions if f.__code__.co_filename == file)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
