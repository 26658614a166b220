"""The user's objects, named by a dotted path: ``package.module:name`` or ``package.module:name(power=2)``.

The path is the value of a field of `Config`, one of `KINDS`. `find` imports the object and raises before the run if it
cannot be used. If its code raises during a run, `attribute_errors_to` turns the error into one line that names the
object. `source_hash` identifies the version of the user's code.

The working folder is searched for modules after all other folders, so a file there that happens to be called
``random.py`` never replaces Python's.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import os
import pkgutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from importlib.util import cache_from_source, find_spec, resolve_name
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

from ucl.errors import InputError, is_of_a_library, line_of, one_line_with_type

_STARTED = time.time()
_imported: dict[str, str] = {}  # user's modules with the hash of their sources when they were imported


class Kind(NamedTuple):
    """What a user's object in a field must be."""

    noun: str  # its name in messages
    arguments: tuple[str, ...]  # names of the positional arguments of its call
    base: str = ""  # the class of which it must be a subclass; "" for a function
    by_name: bool = False  # whether it may ask for some of the arguments by their names instead, see `ByName`

    def __str__(self) -> str:
        names = ", ".join(self.arguments)
        if self.base:
            return f"subclass of {self.base.replace(':', '.')} with a constructor of ({names})"
        if self.by_name:
            return f"function of ({self.arguments[0]}), which may ask for {', '.join(self.arguments[1:])} too"
        return f"function of ({names})"


KINDS = {
    "dataset": Kind("function", ()),
    "method": Kind("Method", ("model", "lr", "replay_seed", "updates", "graphs"), "ucl.methods:Method"),
    "model": Kind("function", ("n_classes", "channels", "image_size")),
    "population": Kind("Buffer", ("size", "image_shape", "device", "seed"), "ucl.buffers:Buffer"),
    "score": Kind("function", ("logits_PNC", "labels_N", "features_ND", "losses"), by_name=True),
}
"""The fields of `Config` whose value may name a user's object, and what it must be."""


class ObjectPath(NamedTuple):
    """The parts of a dotted path: module, name of the object in it, and arguments by the names of parameters."""

    module: str
    name: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        """The path in its one spelling: arguments in alphabetical order, without unnecessary spaces."""
        listed = ", ".join(f"{name}={value!r}" for name, value in sorted(self.arguments.items()))
        return f"{self.module}:{self.name}" + (f"({listed})" if listed else "")


def parsed(field: str, path: str) -> ObjectPath:
    """The parts of a path ``package.module:name`` or ``package.module:name(parameter=value, ...)`` in a field.

    Raises:
        InputError: the arguments are not parameter=value with a literal of Python.
    """
    module, _, rest = path.partition(":")
    name, opening, _ = rest.partition("(")
    if not opening:
        return ObjectPath(module, name, {})
    try:
        call: Any = ast.parse(f"_{rest[len(name) :]}", mode="eval").body
        if not isinstance(call.func, ast.Name) or call.args:
            raise ValueError
        return ObjectPath(module, name, {word.arg: ast.literal_eval(word.value) for word in call.keywords})
    except (SyntaxError, ValueError, AttributeError):
        reason = "give arguments by name, with numbers or texts in quotes as values, such as"
        raise InputError(field, path, f"{reason} {module}:{name}(power=2)") from None


# Importing


def load(field: str, path: str) -> Any:
    """The object of a path, without its arguments; a module whose sources have changed is imported again.

    Raises:
        InputError: its module cannot be imported, has no file or is one of Python's own, or it is not in its module.
    """
    module, name, _ = parsed(field, path)
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise InputError(field, path, f"{module} is a module of Python itself; give your file another name")
    try:
        _import_current(module)
        value = pkgutil.resolve_name(f"{module}:{name}")
    except (Exception, SystemExit) as error:  # The module's own code has run, so any error is possible.
        reason = f"can't be imported ({one_line_with_type(error)}{line_of(error)})"
        advice = f"give package.module:name, importable from the working folder, {os.getcwd()}"
        raise InputError(field, path, f"{reason}; {advice}") from error
    if not _location(module):  # A run could not identify its version.
        reason = f"{module} has no file; write {name} to one, in a notebook by %%writefile mine.py"
        raise InputError(field, path, reason)
    return value


def _import_current(module: str) -> None:
    """Import a module of the user; import it and the user's modules that it imports again if a file has changed."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    if module in sys.modules and module != "__main__":
        files = source_files(module)
        if module in _imported:
            has_changed = _imported[module] != _hash_of(files)
        else:  # Other code imported it.
            has_changed = any(file.stat().st_mtime > _STARTED for file in files.values())
        if has_changed:
            forget(files)
    importlib.invalidate_caches()
    importlib.import_module(module)
    _imported[module] = _hash_of(source_files(module))


def forget(files: Mapping[str, Path]) -> None:
    """Let the next import execute the user's modules with these files, by their names, again."""
    tops = {name.partition(".")[0] for name in files}
    for name in [name for name in sys.modules if name.partition(".")[0] in tops]:
        del sys.modules[name]  # Also a package without a file: its modules are its attributes.
    for file in files.values():
        with suppress(OSError):  # Python does not notice a change of equal size in the same second.
            os.unlink(cache_from_source(str(file)))


# The version of the user's code


def source_hash(paths: Iterable[str]) -> str:
    """16 hexadecimal digits that identify the user's code behind some paths, the same in every folder; "" without any.

    They cover the files of the modules in the paths and of all modules that these import (`source_files`), but not
    files that the code reads. A path that cannot be imported does not count: a run reports it.
    """
    files: dict[str, Path] = {}
    for path in paths:
        with suppress(InputError):
            load("", path)
            files |= source_files(parsed("", path).module)
    return _hash_of(files)


def source_files(module: str) -> dict[str, Path]:
    """The files of a module and of the modules that it imports anywhere in its code, in turn, by the modules' names.

    Modules of Python, of installed packages and of this package are left out, and so are modules that the code imports
    by a computed name.
    """
    files: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in files or _is_installed(name):
            continue
        package = name.rpartition(".")[0]
        waiting.append(package)  # It is executed too.
        if location := _location(name):
            files[name] = Path(location)
            if location.endswith(".py"):
                waiting += _imports(files[name].read_bytes(), name if files[name].stem == "__init__" else package)
    return files


@lru_cache(256)  # A run asks several times.
def _imports(source: bytes, package: str) -> list[str]:
    """Names that may be modules in the import statements of a source."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):  # a relative import in a file that is not in a package
                base = resolve_name("." * node.level + (node.module or ""), package)
                names += (base, *(f"{base}.{alias.name}" for alias in node.names))
    return names


def _location(module: str) -> str:
    """The file of a module, "" if it has none or does not exist; packages that contain it are imported."""
    if module in sys.modules:
        return getattr(sys.modules[module], "__file__", None) or ""
    try:
        spec = find_spec(module)
    except ImportError:
        return ""
    return spec.origin or "" if spec and spec.has_location else ""


def _is_installed(module: str) -> bool:
    """Whether a module is of this package, of Python or of an installed package; no module, "", counts as well."""
    top = module.partition(".")[0]
    if top in ("", "ucl", *sys.stdlib_module_names):
        return True
    return any(is_of_a_library(_location(name)) for name in (top, module))  # A namespace package has no file.


def _hash_of(files: Mapping[str, Path]) -> str:
    """One hash for the files of modules, by their names; the hash of the file if there is only one."""
    hashes = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in sorted(files.items())}
    if len(hashes) > 1:
        return hashlib.sha256(repr(hashes).encode()).hexdigest()[:16]
    return "".join(hashes.values())[:16]


# Errors


def call(field: str, path: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call one of the user's objects; an error becomes an `InputError`, see `attribute_errors_to`."""
    with attribute_errors_to(field, path):
        return function(*arguments)


@contextmanager
def attribute_errors_to(field: str, path: str, given: str = "") -> Iterator[None]:
    """Within the block, an error becomes an `InputError` that names one of the user's objects and the line.

    In nested blocks, the innermost names its object. With an empty path, the block changes nothing. `given` is
    what the object got, such as "images (2, 3, 32, 32)".
    """
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # User's code does not end the program.
        if not path:
            raise
        got = f" for {given}" if given else ""
        raise InputError(field, path, f"raised {one_line_with_type(error)}{line_of(error)}{got}") from error


# Signatures


def find(field: str, path: str) -> Callable[..., Any]:
    """The function or class that a path in a field of `KINDS` names, with the arguments of the path.

    Raises:
        InputError: it does not exist, cannot be imported, or is not what `KINDS` says.
    """
    function, kind, arguments = load(field, path), KINDS[field], parsed(field, path).arguments
    needed = advice = f"give a {kind}"
    if kind.base and not (isinstance(function, type) and issubclass(function, pkgutil.resolve_name(kind.base))):
        raise InputError(field, path, needed)
    try:
        if arguments:
            advice = f"its parameters are {', '.join(signature(function).parameters)}"
            signature(function).bind_partial(**arguments)
            function, advice = partial(function, **arguments), needed
        if kind.by_name:
            ByName(function, kind.arguments)
        else:
            signature(function).bind(*kind.arguments)
    except (TypeError, ValueError) as error:  # some functions written in C have no signature: a ValueError
        raise InputError(field, path, f"{error}; {advice}") from None
    return function


class ByName:
    """A function of the user that gets values by the names of its parameters, which are in `known`.

    The first parameter may have any name: if the name is not known, it gets the first of the known values.

    Attributes:
        asked: names of the values that it asks for.

    Raises:
        TypeError: the function has another parameter without a default value, or has none at all.
    """

    def __init__(self, function: Callable[..., Any], known: Sequence[str]) -> None:
        names = list(signature(function).parameters)
        self._function = function
        self._first = [] if names and names[0] in known else [known[0]]
        self._named = [name for name in names if name in known]
        self.asked = frozenset((*self._first, *self._named))
        signature(function).bind(*self._first, **dict.fromkeys(self._named))

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Call the function with those of the values, by name, that it asks for."""
        return self._function(*(values[name] for name in self._first), **{name: values[name] for name in self._named})
