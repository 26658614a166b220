"""The hypotheses of `figures/PROTOCOL.md`, judged only by the runs that it plans.

`PLANNED` and `COMPARISONS` are the tables of that file; `judged` computes what it defines. A hypothesis with several
measures or readings is judged for each of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from ucl.catalogue import READINGS, UNIFORM
from ucl.config import Config
from ucl.evidence import paper
from ucl.evidence.effects import ALL_STREAMS, PAIR, Interval, Stream, by_stream, differences
from ucl.evidence.run_measures import SETTINGS, Runs

PLANNED: dict[str, dict[Stream, range]] = {
    "readings": {
        ("bloodcell", 40): range(10, 20),
        ("bloodcell", 160): range(10, 15),
        ("cifar10", 500): range(20, 25),
        ("cifar10-lt", 200): range(30, 35),
        ("cifar100", 1000): range(40, 43),
        ("cifar100-lt", 500): range(50, 53),
    },
    "published settings": {
        ("bloodcell", 40): range(10, 20),
        ("cifar10", 500): range(20, 23),
        ("cifar10-lt", 200): range(30, 33),
    },
    "refresh=2": {
        ("cifar10", 500): range(20, 24),
        ("cifar10-lt", 200): range(30, 34),
        ("cifar100", 1000): range(40, 44),
        ("cifar100-lt", 500): range(50, 54),
    },
    "everything rescored": {
        ("cifar10", 500): range(60, 65),
        ("cifar10-lt", 200): range(70, 75),
        ("cifar100", 1000): range(80, 85),
        ("cifar100-lt", 500): range(90, 95),
    },
}
"""The seeds of each stream (data set and memory size), by group of runs."""
MARGINS = {"F": 5.0, "A": 3.0}
"""Margins of equivalence in percentage points: the largest differences that count as none."""
MEMORIES: dict[str, Config] = {
    "ER": Config(population="reservoir"),
    "CBR": Config(population="class-balanced"),
    "CBR redraw": Config(population="class-balanced", class_balancing="redraw"),
    "BI bottom, published settings": Config(score="BI", **SETTINGS["published settings"]),
    "EN bottom, refresh=2": Config(score="EN", refresh=2),
    "BI bottom, refresh=2": Config(score="BI", refresh=2),
    "uniform, refresh=2": Config(score=UNIFORM, refresh=2),  # Numbers are redrawn: mostly recent images are kept.
    "BI bottom": Config(score="BI"),
    "EN bottom": Config(score="EN"),
    "kept uniform": Config(score=UNIFORM, refresh=2, smoothing=1e-9),  # Later numbers of an image have no weight.
}
"""The memories that are compared, by their names in the protocol; their streams do not matter."""


class PlannedComparison(NamedTuple):
    """One memory minus another, or one reading minus another of the same networks.

    Attributes:
        hypothesis: such as "H1", see `figures/PROTOCOL.md`.
        runs: a key of `PLANNED`.
        memory, other_memory: names in `MEMORIES`.
        reading, other_reading: the names of both readings; "running" is the test of the run itself.
        metric: of `ucl.records.MEASURES`.
        expected: "lower", "higher" or "as much"; "less" in the decisive experiment, which fails only above minus the
            margin; "" for a comparison that does not judge the hypothesis and is only reported.
    """

    hypothesis: str
    runs: str
    memory: str
    other_memory: str
    reading: str
    other_reading: str
    metric: str
    expected: str


def _comparisons() -> Iterator[PlannedComparison]:
    """The comparisons of the protocol, hypothesis by hypothesis."""
    for memory in ("ER", "CBR", "CBR redraw"):
        yield PlannedComparison("H1", "readings", memory, memory, "displaced", "training", "F", "lower")
    bi, group = "BI bottom, published settings", "published settings"
    yield PlannedComparison("H1", group, bi, bi, "running", "training", "F", "")
    for other, expected in (("CBR redraw", "as much"), ("ER", "")):
        for reading, metric in itertools.product(("displaced", "training"), ("F", "A")):
            yield PlannedComparison("H2", group, bi, other, reading, reading, metric, expected)
    for name, memory, expectations in (
        ("H3", "EN bottom, refresh=2", {"A": "higher", "F": "lower"}),
        ("H4", "BI bottom, refresh=2", {"A": "as much", "F": "as much"}),
    ):
        for other, judges in (("uniform, refresh=2", True), ("CBR", False), ("ER", False)):
            for metric, expected in expectations.items():
                expected = expected if judges else ""
                yield PlannedComparison(name, "refresh=2", memory, other, "running", "running", metric, expected)
    for memory in ("ER", "CBR"):
        yield PlannedComparison("H5", "readings", memory, memory, "memory+stream", "training", "A", "higher")
    readings = ("running", *(name for name in READINGS if name not in ("training", "published test")))
    for name, memory, others in (
        ("D1", "BI bottom", ("ER",)),
        ("D2", "EN bottom", ("ER",)),
        ("D3", "BI bottom", ("kept uniform", "CBR")),
        ("D4", "EN bottom", ("kept uniform", "CBR")),
    ):
        for other, reading in itertools.product(others, readings):
            for metric in ("F", "A", "best", "retained") if reading == "running" else ("F", "A"):
                expected = "less" if (reading, metric) == ("running", "F") and other != "CBR" else ""
                yield PlannedComparison(name, "everything rescored", memory, other, reading, reading, metric, expected)


COMPARISONS = list(_comparisons())


def judged(records: pd.DataFrame) -> pd.DataFrame:
    """Each comparison on each of its streams, and over all of them.

    Returns:
        For each of `COMPARISONS` the rows of `ucl.evidence.effects.by_stream` that have pairs, and the last one, by
        which the protocol judges the hypothesis, always. Columns: the fields of `PlannedComparison` except runs,
        dataset, memory_size, n (pairs), planned, verdict (see `verdict`; by low_by_stream and high_by_stream, of D1 to
        D4 by low and high), and of `ucl.evidence.effects.summary`, in percentage points, mean, low, high,
        low_by_stream, high_by_stream, detectable, published, excludes_0 and, as against_paper, the verdict on the
        paper's difference.
    """
    runs = Runs(records)
    complete = _complete(runs)
    rows = []
    for plan in COMPARISONS:
        streams, one, other = PLANNED[plan.runs], MEMORIES[plan.memory], MEMORIES[plan.other_memory]
        sides = runs.of(one, streams, plan.reading), runs.of(other, streams, plan.other_reading)
        pairs = differences(*sides, [plan.metric]).dropna()
        if plan.runs == "everything rescored":
            pairs = pairs[pd.MultiIndex.from_frame(pairs[[*PAIR]]).isin(complete)]
        printed = paper.printed_differences(streams, one.label, other.label, plan.metric) if one != other else {}
        is_decisive = plan.expected == "less"
        is_on_each_stream = (pairs["dataset"].value_counts() > 1).sum() == len(streams)
        for row in by_stream(pairs, plan.metric, printed):
            overall = row["dataset"] == ALL_STREAMS
            if not row["n"] and not overall:
                continue
            planned = streams.values() if overall else [streams[row["dataset"], row["memory_size"]]]
            by = "" if is_decisive else "_by_stream"
            found = verdict(plan.expected, plan.metric, Interval(row[f"low{by}"], row[f"high{by}"]))
            if overall and is_decisive and not is_on_each_stream:
                found = ""  # The protocol judges over all four streams.
            changed = {"against_paper": row["verdict"], "verdict": found, "planned": sum(map(len, planned))}
            rows.append(plan._asdict() | row | changed)
    return pd.DataFrame(rows)[_COLUMNS].astype({"memory_size": "Int64"})


def _complete(runs: Runs) -> pd.Index:
    """The streams and seeds of the decisive experiment that have all of its memories on one kind of processor.

    Processors with the same name can be of several kinds: some AMD EPYC score in bfloat16, older ones in float32.
    """
    plans = [plan for plan in COMPARISONS if plan.runs == "everything rescored"]
    memories = {name for plan in plans for name in (plan.memory, plan.other_memory)}
    rows = [
        runs.rows(MEMORIES[name].replace(dataset=dataset, memory_size=size))
        for dataset, size in PLANNED["everything rescored"]
        for name in memories
    ]
    table = pd.concat(rows)
    kinds = [(record.processor, record.environment.get("scoring_precision")) for record in table["record"]]
    counts = table.assign(kind=kinds).groupby(list(PAIR))["kind"].agg(["size", "nunique"])
    return counts.index[(counts["size"] == len(memories)) & (counts["nunique"] == 1)]


_COLUMNS = ["hypothesis", "memory", "other_memory", "reading", "other_reading", "metric", "expected", "dataset"]
_COLUMNS += ["memory_size", "n", "planned", "mean", "low", "high", "low_by_stream", "high_by_stream", "detectable"]
_COLUMNS += ["published", "verdict", "against_paper", "excludes_0"]


def verdict(expected: str, metric: str, interval: Interval) -> str:
    """Whether the interval of a difference agrees with what a comparison expects (see `PlannedComparison`).

    Returns:
        "holds": the interval excludes 0 on the expected side, or is within the margin if "as much" is expected;
        "refuted": it excludes 0 on the other side, or lies beyond the margin; "undecided": neither; "" without an
        interval or an expectation. If "less" is expected, "holds": it lies below 0; otherwise "fails": it lies above
        minus the margin; "open": neither.
    """
    low, high = interval
    if math.isnan(low) or not expected:
        return ""
    if expected == "less":
        return "holds" if high < 0 else "fails" if low > -MARGINS[metric] else "open"
    if expected == "as much":
        margin = MARGINS[metric]
        holds, refuted = -margin < low and high < margin, low > margin or high < -margin
    else:
        sign = -1 if expected == "lower" else 1
        nearest, furthest = sorted((sign * low, sign * high))
        holds, refuted = nearest > 0, furthest < 0
    return "holds" if holds else "refuted" if refuted else "undecided"
