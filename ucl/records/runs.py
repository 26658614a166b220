"""Tables of records, with a row per run, and the selection of the records that enter a table of results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ucl import naming
from ucl.errors import InputError, first_of
from ucl.fields import FIELDS, as_text
from ucl.records.measures import MEANINGS
from ucl.records.record import Record
from ucl.records.store import RecordStore

if TYPE_CHECKING:
    import pandas as pd


def load_records(store: str | Path) -> pd.DataFrame:
    """The records of a folder as a table.

    Returns:
        One row per record: its `label` (the method's name in the paper's tables), one column per field of `Config`
        (empty if the field can't change the run's result), its measures (`Record.measures`; A and F in [0, 1] and
        [-1, 1], not in per cent), diverged_after (NA if the run did not diverge), seconds, seconds_per_batch, device,
        processor, threads, settings (what differs from the defaults), fingerprint, source, arithmetic, date, key, the
        `record` itself, and A and F once more as last_accuracy and last_forgetting, their names in `Record`. Without
        records it is empty.

    Raises:
        InputError: there is no such folder.
    """
    records = RecordStore(store)
    if not records.folder.is_dir():
        raise InputError("store", str(store), "no such folder; give the folder that `ucl run` or `ucl sweep` wrote to")
    return as_table(records)


def as_table(records: pd.DataFrame | Iterable[Record]) -> pd.DataFrame:
    """The table of `load_records` for some records, such as those that `ucl.sweep` returns; such a table is unchanged.

    Raises:
        InputError: `records` is something else, for example the name of a folder or a table of means.
    """
    import pandas as pd

    if isinstance(records, pd.DataFrame) and "record" in records:
        return records
    listed: list[Any] = list(records) if isinstance(records, Iterable) else [None]
    if not all(isinstance(record, Record) for record in listed):
        given = records if isinstance(records, (str, Path)) else type(records).__name__
        raise InputError("records", given, "give records, or a table of them: ucl.load_records(folder)")
    columns = ["label", *FIELDS, *MEANINGS, *_FACTS]
    table = pd.DataFrame([_row(record) for record in listed], columns=columns).astype({"diverged_after": "Int64"})
    return table.assign(last_accuracy=table["A"], last_forgetting=table["F"])


def _row(record: Record) -> dict[str, Any]:
    """A run as one row of the table of `load_records`."""
    return {
        "label": record.config.label,
        **dict.fromkeys(FIELDS),
        **record.config.relevant,
        **record.measures(),
        **{name: fact(record) for name, fact in _FACTS.items()},
    }


_FACTS: dict[str, Callable[[Record], Any]] = {  # the last columns
    "diverged_after": lambda record: record.diverged_after,
    "seconds": lambda record: record.timing["total"],
    "seconds_per_batch": lambda record: record.seconds_per_batch,
    "device": lambda record: record.environment["device"],
    "processor": lambda record: record.processor,
    "threads": lambda record: record.environment.get("threads"),
    "settings": lambda record: naming.settings(record.config),
    "fingerprint": lambda record: record.data["fingerprint"],
    "source": lambda record: record.version.source,
    "arithmetic": lambda record: record.arithmetic,
    "date": lambda record: record.date,
    "key": lambda record: record.config.key,
    "record": lambda record: record,
}


def latest(records: pd.DataFrame) -> pd.DataFrame:
    """The record of each run that counts, for each version of images and of the user's objects.

    It is the one with the highest `Record.rank`, as in `RecordStore.find`; on one machine, the other results are the
    same. Rows are sorted by seed, so that sums do not depend on the order of measurement.
    """
    rows = sorted(enumerate(records["record"]), key=lambda row: row[1].rank)
    counting = {record.identity: (index, record) for index, record in rows}.values()
    order = [(r.config.seed, r.config.without_further_tests.key, r.rank, index) for index, r in counting]
    return records.iloc[[index for *_, index in sorted(order)]]


def without_failures(runs: pd.DataFrame) -> pd.DataFrame:
    """The rows whose networks did not diverge; `runs` has a column `record`, see `ucl.load_records`."""
    return runs.loc[[not record.failure for record in runs["record"]]]


def facts_of(record: Record) -> dict[str, Any]:
    """The fields that can change a run's result, with the name of its data set, and the version of images and code."""
    images, source = record.version
    names = {"dataset": record.config.dataset_name, "fingerprint": images, "source": source}
    return record.config.relevant | names


def changed_objects(records: Iterable[Record]) -> list[str]:
    """The user objects, by path, whose code differs between some of the runs, such as the network of two methods."""
    hashes_of: dict[str, set[str]] = {}
    for record in records:
        objects = ", ".join(record.config.user_objects.values())
        # Older records have only one hash for all objects.
        sources = record.environment.get("sources", {}) | {objects: record.version.source}
        for path, source in sources.items():
            hashes_of.setdefault(path, set()).add(source)
    return [path for path, hashes in hashes_of.items() if len(hashes) > 1]


def varying(records: Iterable[Record], ignored: Iterable[str] = ()) -> dict[str, list[Any]]:
    """The settings in which some runs differ, except the seed and those in `ignored`, with the value of each run.

    Returns:
        By name: label if the methods' labels differ, otherwise fields that can change a result, fingerprint (of the
        images) and source (of the user objects); {} if the runs differ only in the seed.
    """
    records, names = list(records), {"seed", *ignored}
    labels = [record.config.label for record in records]
    if len(set(labels)) > 1:
        return {"label": labels}
    facts = [facts_of(record) for record in records]
    compared = dict.fromkeys(name for run in facts for name in run if name not in names)
    columns = {name: [run.get(name) for run in facts] for name in compared}
    return {name: values for name, values in columns.items() if len(set(values)) > 1}


def in_words(differing: dict[str, list[Any]]) -> str:
    """The result of `varying` as text, with the values of three names: "refresh (1, 2), lr (0.05, 0.1)"."""
    named = [f"{name} ({listed(values)})" for name, values in list(differing.items())[:3]]
    others = list(differing)[3:]
    return ", ".join(named) + (f" and {', '.join(others)}" if others else "")


def count_range(counts: Iterable[int]) -> str:
    """Such as "5", or "3 to 5" if the counts differ; there must be one."""
    ordered = sorted(counts)
    low, high = ordered[0], ordered[-1]
    return f"{low}" if low == high else f"{low} to {high}"


def listed(values: Iterable[Any]) -> str:
    """Up to six distinct values as text, numbers first, such as "ER, CBR"; "empty" for a missing value."""
    distinct = {"empty" if value is None or value == "" else value for value in values}
    in_order = sorted(distinct, key=lambda value: (isinstance(value, str), value))
    return first_of([as_text(value) for value in in_order], 6)
