"""Made-up records: two tasks, with chosen measures, on chosen images and machines."""

from dataclasses import replace

import numpy as np

from ucl import Record
from ucl.records import Reading, as_table


def matrix(a, f, learnt=0.9):
    """The accuracy matrix of two tasks with last accuracy a, last forgetting f and learning accuracy of the first."""
    return np.array([[learnt, np.nan], [learnt - f, 2 * a - (learnt - f)]])


def record_of(config, accuracy, seconds=12.0, fingerprint="aa", date="2025-03-01", environment=None, **facts):
    """A record of two tasks; `facts` are further fields of `Record`."""
    facts = {"class_recall": accuracy, "classes": ["a", "b"], "class_order": [0, 1], **facts}
    return Record(
        config,
        accuracy,
        timing={"total": seconds, "evaluation": 2.0, "batches": 5},
        environment={"device": "cpu", "processor": "p", "threads": 1, **(environment or {})},
        data={"name": "made up", "fingerprint": fingerprint},
        date=date,
        **facts,
    )


def two_tasks(config, kept=0.25, best=0.9, last=0.75, seconds=12.0, date="2025-03-01", fingerprint="aa", **environment):
    """A record whose A is the mean of `kept` and `last`, and whose F is `best` minus `kept`."""
    return record_of(config, np.array([[best, np.nan], [kept, last]]), seconds, fingerprint, date, environment)


def record_with(config, a=0.5, f=0.3, readings=None, **facts):
    """A record with this A and F, and these (A, F) under readings."""
    tested = {
        name: Reading(matrix(*values), np.full((2, 2), values[0]), np.full((2, 2), 0.5), np.zeros(2))
        for name, values in (readings or {}).items()
    }
    return record_of(config, matrix(a, f), class_recall=np.full((2, 2), a), readings=tested, **facts)


def diverged(record, after=0):
    """The same run with a network that diverged in a task, by default the first."""
    accuracy, recall = record.accuracy.copy(), record.class_recall.copy()
    accuracy[after:] = recall[after:] = np.nan
    return replace(record, accuracy=accuracy, class_recall=recall, diverged_after=after)


def frame(*records):
    """The table of these records."""
    return as_table(records)


def one_row(rows, /, **wanted):
    """The one row with these values."""
    for name, value in wanted.items():
        rows = rows[rows[name] == value]
    (row,) = rows.to_dict("records")
    return row
