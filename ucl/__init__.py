"""Uncertainty-aware memory in online continual learning: streams, models, scores and buffers."""

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

if (  # `python -m ucl` puts the working folder first: a random.py there would be taken for Python's own
    sys.argv[:1] == ["-m"]
    and "ucl" in {word.removeprefix("-m").partition(".")[0] for word in sys.orig_argv}
    and sys.path[:1] in ([""], [os.getcwd()])
    and not getattr(sys.flags, "safe_path", False)
):
    del sys.path[0]
    if Path(__file__).resolve().parents[1] == Path.cwd():  # worker processes find this package there, too
        sys.path.append(os.getcwd())

from ucl import buffers, datasets, methods, metrics, models, paper, scorers, selection, streams, views
from ucl.config import Config
from ucl.errors import InputError
from ucl.experiment import run
from ucl.records import Record, RecordStore, load_records
from ucl.sweep import SweepError, sweep

__version__ = "0.1.0"
__all__ = [
    "Config",
    "InputError",
    "Record",
    "RecordStore",
    "SweepError",
    "buffers",
    "claims",
    "datasets",
    "load_records",
    "methods",
    "metrics",
    "models",
    "paper",
    "plots",
    "run",
    "scorers",
    "selection",
    "streams",
    "sweep",
    "tables",
    "views",
]


def __getattr__(name: str) -> ModuleType:
    if name in ("claims", "plots", "tables"):  # these import scipy and seaborn: only where they are used
        return importlib.import_module(f"ucl.{name}")
    raise AttributeError(f"module 'ucl' has no attribute {name!r}")
