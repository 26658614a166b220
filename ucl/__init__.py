"""Uncertainty-aware memory in online continual learning: streams, models, scores and buffers."""

import importlib.util
import os
from typing import TYPE_CHECKING, Any

from ucl._version import __version__

# A waiting thread of torch releases its core after 0.1 ms instead of several. This is as fast on an idle machine, and
# twice as fast if other programs compute. The variable is read once, when torch is imported. A user's setting stays.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

if TYPE_CHECKING:
    from ucl import assembly, buffers, methods, metrics, models, plots, scorers, streams
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
    "Config", "InputError", "Record", "RecordStore", "SweepError", "__version__", "assembly", "buffers", "claims",
    "compare", "datasets", "grid", "load_records", "methods", "metrics", "models", "paper", "plot", "plots", "results",
    "run", "scorers", "selection", "streams", "sweep", "tables", "views", "where",
]  # fmt: skip

_HOMES = {  # public name: its module, or module:name
    "Config": "config:Config",
    "InputError": "errors:InputError",
    "Record": "records:Record",
    "RecordStore": "records:RecordStore",
    "SweepError": "sweeps.sweep:SweepError",
    "claims": "evidence.claims",
    "compare": "evidence.paired:compare",
    "datasets": "streams.datasets",
    "grid": "sweeps.grid:grid",
    "load_records": "records:load_records",
    "paper": "evidence.paper",
    "plot": "plots.standard:plot",
    "results": "evidence.averages:results",
    "run": "experiment:run",
    "selection": "buffers.selection",
    "sweep": "sweeps.sweep:sweep",
    "tables": "evidence.tables",
    "views": "scorers.views",
    "where": "evidence.filters:where",
}


def __getattr__(name: str) -> Any:
    """Import a public name, or a module of the package, when it is first used: torch and pandas take seconds."""
    module, _, attribute = _HOMES.get(name, name).partition(":")
    if name.startswith("_") or importlib.util.find_spec(f"ucl.{module}") is None:
        raise AttributeError(f"module 'ucl' has no attribute {name!r}")
    value = importlib.import_module(f"ucl.{module}")
    globals()[name] = getattr(value, attribute) if attribute else value
    return globals()[name]


def __dir__() -> list[str]:
    """The names of the module, with the public ones that have not been used yet."""
    return sorted({*globals(), *__all__})
