"""Records: one JSON file per run, the store that contains them, and the versions of their images and code."""

from ucl.records.measures import FURTHER_MEASURES, MEASURES, Anytime, Reading
from ucl.records.record import Record, failures
from ucl.records.runs import as_table, load_records
from ucl.records.store import RecordStore

__all__ = [
    "FURTHER_MEASURES", "MEASURES", "Anytime", "Reading", "Record", "RecordStore", "as_table", "failures",
    "load_records",
]  # fmt: skip
