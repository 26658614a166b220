"""Records: one JSON file per run, the folder that holds them, and which data and code they are of."""

from ucl.records.record import FORMAT, MEASURES, Reading, Record, failures
from ucl.records.store import NotStored, RecordStore, as_table, load_records

__all__ = [
    "FORMAT",
    "MEASURES",
    "NotStored",
    "Reading",
    "Record",
    "RecordStore",
    "as_table",
    "failures",
    "load_records",
]
