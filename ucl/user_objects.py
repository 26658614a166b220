"""The user's objects, named by a dotted path: ``package.module:name`` or ``package.module:name(power=2)``.

The path is the value of a field of `Config` (`ucl.catalogue.USER_OBJECTS`). `find`, `find_class` and `find_by_name`
import the object and raise before the run if it cannot be used. If its code raises during a run, `attribute_errors_to`
turns the error into one line that names the object. `source_hash` identifies the version of the user's code.

The working folder is searched for modules after all other folders, so a file there that happens to be called
``random.py`` never replaces Python's.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import linecache
import os
import pkgutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from importlib.util import cache_from_source, find_spec, resolve_name
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, NamedTuple

from ucl.errors import InputError, is_of_a_library, line_of, near, one_line_with_type

_STARTED = time.time()
_appended = ""  # the working folder that was appended to the module search path
_imported: dict[str, str] = {}  # user's modules with the hash of their sources when they were imported


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
        InputError: the arguments are not parameter=value with a literal of Python: a finite number, a text in quotes,
            True, False, None, or a list, tuple or dictionary of them.
    """
    module, _, rest = path.partition(":")
    name, opening, _ = rest.partition("(")
    if not opening:
        return ObjectPath(module, name, {})
    try:
        call: Any = ast.parse(f"_{rest[len(name) :]}", mode="eval").body
        is_call = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args
        if not is_call or any(isinstance(node, ast.Set) for node in ast.walk(call)):  # A set has no fixed spelling.
            raise ValueError
        arguments = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        ast.literal_eval(repr(dict(**arguments)))  # An infinite number has no literal: it could not be read again.
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        reason = "give arguments by name, with finite numbers or texts in quotes as values, such as"
        raise InputError(field, path, f"{reason} {module}:{name}(power=2)") from None
    return ObjectPath(module, name, arguments)


# Importing


def load(field: str, path: str, kind: str = "function") -> Any:
    """The object of a path, without its arguments; a module whose sources have changed is imported again.

    Raises:
        InputError: it does not exist or is one of Python's own, or its module cannot be imported.
    """
    module, name, _ = parsed(field, path)
    reason = "is an object of Python itself; give your own, in a file that is not named like a module of Python"
    if _is_of_python(module):
        raise InputError(field, path, reason)
    try:
        _import_current(module)
        value = pkgutil.resolve_name(f"{module}:{name}")
    except (Exception, SystemExit) as error:  # The module's own code has run, so any error is possible.
        line = line_of(error)
        if line or isinstance(error, SyntaxError):
            reason = f"importing {module} raised {one_line_with_type(error, 300)}{line}"
            raise InputError(field, path, reason) from error
        guesses = near(name, vars(sys.modules[module])) if module in sys.modules else []
        hint = f"did you mean {guesses[0]!r}? " if guesses else ""
        advice = f"give package.module:{kind}, importable from the working folder, {os.getcwd()}"
        raise InputError(field, path, f"{error}; {hint}{advice}") from None
    is_plain = inspect.isfunction(value) or inspect.isbuiltin(value) or inspect.isclass(value)
    if is_plain and _is_of_python(value.__module__ or ""):  # such as torch:os.system
        raise InputError(field, path, reason)
    return value


def _is_of_python(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _import_current(module: str) -> None:
    """Import a module of the user; import it and the user's modules that it imports again if a file has changed."""
    global _appended
    folder = os.getcwd()
    if _appended in sys.path:
        sys.path.remove(_appended)
    if folder not in sys.path:
        sys.path.append(folder)
        _appended = folder
    if module in sys.modules and module != "__main__":
        files = source_files(module)
        if module in _imported:
            has_changed = _imported[module] != _hash_of(files)
        else:  # Other code imported it.
            has_changed = any(file.stat().st_mtime > _STARTED for file in files.values())
        for name, file in files.items() if has_changed else ():
            sys.modules.pop(name, None)
            with suppress(OSError):  # Python does not notice a change of equal size in the same second.
                os.unlink(cache_from_source(str(file)))
    importlib.invalidate_caches()
    importlib.import_module(module)
    _imported[module] = _hash_of(source_files(module))


# The version of the user's code


def source_hash(paths: Iterable[str]) -> str:
    """16 hexadecimal digits that identify the user's code behind some paths, the same in every folder; "" without any.

    They cover the files of the modules in the paths and of all modules that these import (`source_files`). For an
    object defined in a notebook they cover its cell, and the cells of functions and classes that this cell uses. They
    do not cover files that the code reads.

    Raises:
        InputError: the source of an object without a file is not known, as at Python's prompt.
    """
    sources: dict[str, Path | bytes] = {}
    for path in paths:
        module = parsed("", path).module
        try:
            value = load("", path)
        except InputError:  # A run reports it.
            continue
        if _location(module) or _is_installed(module):
            sources |= source_files(module)
        else:
            sources |= _cells(path, value, vars(sys.modules[module]))
    return _hash_of(sources)


def source_files(module: str) -> dict[str, Path]:
    """The files of a module and of the modules that it imports anywhere in its code, in turn, by the modules' names.

    Modules of Python, of installed packages and of this package are left out, and so are modules that the code imports
    by a computed name.
    """
    files: dict[str, Path] = {}
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen or _is_installed(name):
            continue
        seen.add(name)
        waiting += [name.rpartition(".")[0]] if "." in name else []  # The package is executed too.
        if location := _location(name):
            files[name] = Path(location)
            if location.endswith(".py"):
                package = name if files[name].name == "__init__.py" else name.rpartition(".")[0]
                waiting += _imports(files[name].read_bytes(), package)
    return files


@lru_cache(256)  # A run asks several times.
def _imports(source: bytes | str, package: str) -> tuple[str, ...]:
    """Names that may be modules in the import statements of a source, each once."""
    names: list[str] = []
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return ()
    for node in nodes:
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):
                base = resolve_name("." * node.level + (node.module or ""), package)
                names += (base, *(f"{base}.{alias.name}" for alias in node.names))
    return tuple(dict.fromkeys(names))


def _location(module: str) -> str:
    """The file of a module, "" if it has none or does not exist; packages that contain it are imported."""
    if module in sys.modules:
        return getattr(sys.modules[module], "__file__", None) or ""
    try:
        spec = find_spec(module)
    except Exception:  # A package that contains it may raise anything.
        return ""
    return spec.origin or "" if spec and spec.has_location else ""


def _is_installed(module: str) -> bool:
    """Whether a module is of this package, of Python or of an installed package."""
    top = module.partition(".")[0]
    if top in ("", "ucl") or _is_of_python(top):
        return True
    return any(is_of_a_library(_location(name)) for name in (top, module))  # A namespace package has no file.


def _hash_of(sources: Mapping[str, Path | bytes]) -> str:
    """One hash for the sources of modules, by their names; the hash of the file if there is only one."""
    contents = {name: s if isinstance(s, bytes) else s.read_bytes() for name, s in sorted(sources.items())}
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    if len(hashes) > 1:
        return hashlib.sha256(repr(hashes).encode()).hexdigest()[:16]
    return "".join(hashes.values())[:16]


def _cells(path: str, value: Any, names: Mapping[str, Any]) -> dict[str, bytes]:
    """The sources of the cells that define an object and what it uses: cells by what they define, modules by name."""
    sources: dict[str, bytes] = {}
    waiting = [value if callable(value) and hasattr(value, "__name__") else type(value)]
    while waiting:
        definition = waiting.pop()
        if definition.__name__ in sources:
            continue
        members = vars(definition).values() if isinstance(definition, type) else [definition]
        codes = [getattr(inspect.unwrap(getattr(f, "__func__", f)), "__code__", None) for f in members]
        texts = ["".join(linecache.getlines(code.co_filename)) for code in codes if code is not None]
        text = next(filter(None, texts), "")
        if not text:
            raise InputError("", None, f"{path}: the source of {definition.__name__} is not known; define it in a file")
        sources[definition.__name__] = text.encode()
        for module in _imports(text, ""):
            sources |= {name: file.read_bytes() for name, file in source_files(module).items()}
        with suppress(SyntaxError):  # Lines of a notebook such as %matplotlib
            used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
            values = [names[name] for name in sorted(used & names.keys())]
            values = [v for v in values if getattr(v, "__module__", "") == names.get("__name__")]
            waiting += [v for v in values if inspect.isroutine(v) or isinstance(v, type)]
    return sources


# Errors


def call(field: str, path: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call one of the user's objects; an error becomes an `InputError`, see `attribute_errors_to`."""
    with attribute_errors_to(field, path):
        return function(*arguments, **named)


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
    except Exception as error:
        if not path:
            raise
        got = f" for {given}" if given else ""
        raise InputError(field, path, f"raised {one_line_with_type(error, 300)}{line_of(error)}{got}") from error


# Signatures


def find(field: str, path: str, arguments: str, kind: str = "function") -> Callable[..., Any]:
    """The function that a path names, with the arguments of the path.

    Args:
        field, path: the field of `Config` and its value.
        arguments: names of the positional arguments of the later call: "n_classes, channels, image_size".
        kind: what messages call it.

    Raises:
        InputError: the module or function does not exist, cannot be imported, or cannot be called with the arguments.
    """
    positional = list(filter(None, arguments.split(", ")))
    return _checked(
        field, path, positional, f"{kind} of ({arguments})", lambda function: _signature(function).bind(*positional)
    )


def find_class(field: str, path: str, base: type[Any], arguments: str) -> Callable[..., Any]:
    """The constructor, see `find`, of the class that a path names.

    Raises:
        InputError: see `find`; or it is not a subclass of `base`.
    """
    loaded, name = load(field, path, base.__name__), parsed(field, path).name
    if not isinstance(loaded, type) or not issubclass(loaded, base):
        wanted = f"{base.__module__}.{base.__name__}"
        raise InputError(field, path, f"{name} is not a subclass of {wanted}; give `class {name}({base.__name__})`")
    return find(field, path, arguments, "class with a constructor")


class ByName:
    """A function of the user that gets values by the names of its parameters, which are in `known`.

    The first parameter may have any name: if the name is not known, it gets the first of the known values.

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
    """The function that a path names, for `ByName`; `known` are the names of the parameters that it may have.

    Raises:
        InputError: see `find`; or the function has another parameter without a default value, or none at all; or its
            first parameter has a name that is similar to a known name other than the first.
    """
    wanted = f"function of ({known[0]}), which may ask for {', '.join(known[1:])} too"
    function = _checked(field, path, known, wanted, lambda function: ByName(function, known).check())
    unknown = ByName(function, known).unknown
    guesses = near(unknown, known) if len(unknown) > 2 else []  # Short names are similar to many.
    if guesses and known[0] not in guesses:
        hint = f"did you mean {guesses[0]!r}? Under another name it would get {known[0]}"
        raise InputError(field, path, f"has the unknown parameter {unknown!r}; {hint}")
    return function


def _checked(
    field: str, path: str, given_by_run: Sequence[str], wanted: str, bind: Callable[[Callable[..., Any]], object]
) -> Callable[..., Any]:
    """The function of a path with its arguments; `bind` raises a TypeError if it cannot be called as `wanted`."""
    function, (_, name, arguments) = load(field, path), parsed(field, path)
    if not callable(function):
        raise InputError(field, path, f"{name} is not a function; give a {wanted}")
    for argument in arguments.keys() & set(given_by_run):
        raise InputError(field, path, f"the run gives {argument} itself; leave it out of the arguments")
    signature = _signature(function)
    try:
        signature.bind_partial(**arguments)
        function = partial(function, **arguments) if arguments else function
        bind(function)
    except TypeError as error:
        raise InputError(field, path, f"{error}; {name} is {name}{signature}; give a {wanted}") from None
    return function


def _signature(function: Callable[..., Any]) -> Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # Some functions written in C have no signature to inspect.
        return Signature([Parameter("arguments", Parameter.VAR_POSITIONAL)])
