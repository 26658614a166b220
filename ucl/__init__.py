"""Uncertainty-aware memory in online continual learning: streams, models, scores and buffers."""

import importlib
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ucl._version import __version__

if (  # `python -m ucl` puts the working folder first. Python would import a random.py there instead of its own.
    sys.argv[:1] == ["-m"]
    and "ucl" in {word.removeprefix("-m").partition(".")[0] for word in sys.orig_argv}
    and sys.path[:1] in ([""], [os.getcwd()])
    and not getattr(sys.flags, "safe_path", False)
):
    del sys.path[0]
    if Path(__file__).resolve().parents[1] == Path.cwd():  # worker processes import this package from there, too
        sys.path.append(os.getcwd())

# A waiting thread of torch releases its core after 0.1 ms instead of several. This is as fast on an idle machine, and
# twice as fast if other programs compute. The variable is read once, when torch is imported. A user's setting stays.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

if TYPE_CHECKING:
    from ucl import buffers, methods, metrics, models, plots, scorers, streams
    from ucl.buffers import selection
    from ucl.config import Config
    from ucl.errors import InputError
    from ucl.evidence import claims, paper, tables
    from ucl.evidence.averages import results
    from ucl.evidence.filters import where
    from ucl.evidence.paired import compare
    from ucl.experiment import run
    from ucl.plots.standard import plot
    from ucl.records import Record, RecordStore, load_records
    from ucl.scorers import views
    from ucl.streams import datasets
    from ucl.sweeps.grid import grid
    from ucl.sweeps.sweep import SweepError, sweep

__all__ = [
    "Config",
    "InputError",
    "Record",
    "RecordStore",
    "SweepError",
    "__version__",
    "buffers",
    "claims",
    "compare",
    "datasets",
    "grid",
    "load_records",
    "methods",
    "metrics",
    "models",
    "paper",
    "plot",
    "plots",
    "results",
    "run",
    "scorers",
    "selection",
    "streams",
    "sweep",
    "tables",
    "views",
    "where",
]

_MODULES = {  # public name: the module in its sub-package
    "claims": "evidence.claims",
    "datasets": "streams.datasets",
    "paper": "evidence.paper",
    "selection": "buffers.selection",
    "tables": "evidence.tables",
    "views": "scorers.views",
}
_ATTRIBUTES = {  # public name: the module that defines it
    "Config": "config",
    "InputError": "errors",
    "Record": "records",
    "RecordStore": "records",
    "SweepError": "sweeps.sweep",
    "compare": "evidence.paired",
    "grid": "sweeps.grid",
    "load_records": "records",
    "plot": "plots.standard",
    "results": "evidence.averages",
    "run": "experiment",
    "sweep": "sweeps.sweep",
    "where": "evidence.filters",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch, pandas and seaborn take seconds."""
    if name in _ATTRIBUTES:
        value = getattr(importlib.import_module(f"ucl.{_ATTRIBUTES[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"ucl.{_MODULES[name]}")
    else:
        value = None if name.startswith("_") else _module(name)
        if value is None:
            raise AttributeError(f"module 'ucl' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The names of the module, with the public ones that have not been used yet."""
    return sorted({*globals(), *__all__})


def _module(name: str) -> Any:
    """The module of the package with this name; None if there is none."""
    try:
        return importlib.import_module(f"ucl.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"ucl.{name}":
            raise
        return None


class _PublicModules:
    """Lets `import ucl.views` find the module in its sub-package: a finder and loader of Python's import system."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        known = name.startswith("ucl.") and name.removeprefix("ucl.") in _MODULES
        return ModuleSpec(name, self) if known else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create the module, as usual."""

    def exec_module(self, module: Any) -> None:
        home = _MODULES[module.__name__.removeprefix("ucl.")]
        sys.modules[module.__name__] = importlib.import_module(f"ucl.{home}")


sys.meta_path.append(_PublicModules())
