"""Uncertainty-aware memory in online continual learning: streams, models, scores and buffers."""

from ucl import buffers, datasets, methods, metrics, models, paper, scorers, selection, streams, views
from ucl.config import Config, InputError
from ucl.experiment import run
from ucl.records import Record, RecordStore, load_records

__version__ = "0.1.0"
__all__ = [
    "Config",
    "InputError",
    "Record",
    "RecordStore",
    "buffers",
    "datasets",
    "load_records",
    "methods",
    "metrics",
    "models",
    "paper",
    "run",
    "scorers",
    "selection",
    "streams",
    "views",
]
