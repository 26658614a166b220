"""The hypotheses of `figures/PROTOCOL.md`, judged only by the runs that it plans.

`PLANNED` and `COMPARISONS` are the tables of that file; `judged` computes what it defines. A hypothesis with several
measures or readings is judged for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ucl.catalogue import UNIFORM
from ucl.config import Config
from ucl.evidence import paper
from ucl.evidence.effects import (
    Interval,
    Stream,
    against_paper,
    differences,
    effect,
    estimable,
    on_stream,
    streams_of,
)
from ucl.evidence.paired import ALL_STREAMS
from ucl.evidence.run_measures import COMPARATORS, SETTINGS, measures

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
}
"""The seeds of each stream (data set and memory size), by group of runs."""
MARGINS = {"F": 5.0, "A": 3.0}
"""Margins of equivalence in percentage points: the largest differences that count as none."""
HYPOTHESES = {
    "H1": "The published scoring passes lower F through the statistics that the test reads.",
    "H2": "Under one reading, BI with bottom-k forgets as much as a random memory, with the published settings.",
    "H3": "With `refresh=2`, EN with bottom-k has a higher A and a lower F than a random choice.",
    "H4": "With `refresh=2`, BI with bottom-k differs from a random choice by less than the margin.",
    "H5": "Statistics estimated on half memory, half recent images raise A.",
}
_MEMORIES: dict[str, dict[str, Any]] = {
    **COMPARATORS,
    "CBR redraw": {"population": "class-balanced", "class_balancing": "redraw"},
    "BI bottom, published settings": {"score": "BI", **SETTINGS["published settings"]},
    "EN bottom, refresh=2": {"score": "EN", **SETTINGS["refresh=2"]},
    "BI bottom, refresh=2": {"score": "BI", **SETTINGS["refresh=2"]},
    "uniform, refresh=2": {"score": UNIFORM, **SETTINGS["refresh=2"]},
}


class PlannedComparison(NamedTuple):
    """One memory minus another, or one reading minus another of the same networks.

    Attributes:
        hypothesis: a key of `HYPOTHESES`.
        runs: a key of `PLANNED`.
        memories: the names of both memories.
        readings: the names of both readings; "running" is the test of the run itself.
        metric: "A" or "F".
        expected: "lower", "higher" or "as much"; "" for a comparison that does not judge the hypothesis and is only
            reported.
    """

    hypothesis: str
    runs: str
    memories: tuple[str, str]
    readings: tuple[str, str]
    metric: str
    expected: str

    @property
    def sides(self) -> list[tuple[str, str, str]]:
        """Group of runs, memory and reading of both sides."""
        return [(self.runs, *of) for of in zip(self.memories, self.readings, strict=True)]


def _between_readings(
    hypothesis: str, runs: str, memory: str, readings: tuple[str, str], metric: str, expected: str
) -> PlannedComparison:
    return PlannedComparison(hypothesis, runs, (memory, memory), readings, metric, expected)


_PUBLISHED = "BI bottom, published settings"
COMPARISONS = [
    *(
        _between_readings("H1", "readings", memory, ("displaced", "training"), "F", "lower")
        for memory in ("ER", "CBR", "CBR redraw")
    ),
    _between_readings("H1", "published settings", _PUBLISHED, ("running", "training"), "F", ""),
    *(
        PlannedComparison("H2", "published settings", (_PUBLISHED, other), (reading, reading), metric, expected)
        for other, expected in (("CBR redraw", "as much"), ("ER", ""))
        for reading in ("displaced", "training")
        for metric in ("F", "A")
    ),
    *(
        PlannedComparison(
            name, "refresh=2", (memory, other), ("running", "running"), metric, expected if judges else ""
        )
        for name, memory, sides in (
            ("H3", "EN bottom, refresh=2", {"A": "higher", "F": "lower"}),
            ("H4", "BI bottom, refresh=2", {"A": "as much", "F": "as much"}),
        )
        for other, judges in (("uniform, refresh=2", True), ("CBR", False), ("ER", False))
        for metric, expected in sides.items()
    ),
    *(
        _between_readings("H5", "readings", memory, ("memory+stream", "training"), "A", "higher")
        for memory in ("ER", "CBR")
    ),
]


def judged(records: pd.DataFrame) -> pd.DataFrame:
    """Each comparison on each of its streams, and over all of them together.

    Networks that diverged or collapsed do not count (`Record.failure`).

    Args:
        records: see `ucl.load_records`; of each data set on one version of its images.

    Returns:
        For each of `COMPARISONS` one row per stream that has pairs, then one row over all streams with at least two
        pairs, which is there even without pairs. Columns hypothesis, memory, other_memory, reading, other_reading,
        metric, expected, dataset and memory_size ("all streams" and <NA> in the last row), n (pairs), planned, mean,
        low and high (95 % interval, stratified by stream), low_by_seed and high_by_seed (with the seed as cluster),
        detectable, published (the paper's difference between the two memories on the same streams, NaN if it prints
        none), all in percentage points; verdict, what the protocol fixed, see `verdict`; and next to it, by the wider
        one of both intervals, against_paper (see `ucl.evidence.effects.against_paper`) and excludes_0. The protocol
        judges the hypothesis by the last row; the verdicts in the others are those of the stream alone.
    """
    runs_of = {side: _planned_runs(records, *side) for side in {side for one in COMPARISONS for side in one.sides}}
    rows: list[dict[str, Any]] = []
    for one in COMPARISONS:
        named = {
            "hypothesis": one.hypothesis,
            "memory": one.memories[0],
            "other_memory": one.memories[1],
            "reading": one.readings[0],
            "other_reading": one.readings[1],
            "metric": one.metric,
            "expected": one.expected,
        }
        pairs = differences(*(runs_of[side] for side in one.sides)).dropna(subset=[one.metric])
        planned = {stream: len(seeds) for stream, seeds in PLANNED[one.runs].items()}
        parts = [(stream, on_stream(pairs, stream), n) for stream, n in planned.items()]
        parts = [part for part in parts if len(part[1])]
        parts.append(((ALL_STREAMS, pd.NA), estimable(pairs), sum(planned.values())))
        for (dataset, size), part, n_planned in parts:
            found, published = effect(part, one.metric), _published(one, streams_of(part))
            rows.append(
                {
                    **named,
                    "dataset": dataset,
                    "memory_size": size,
                    "n": found.n,
                    "planned": n_planned,
                    **found.columns,
                    "published": published,
                    "verdict": verdict(one.expected, one.metric, found.interval),
                    "against_paper": against_paper(found.wider, published),
                    "excludes_0": found.wider.excludes_0,
                }
            )
    return pd.DataFrame(rows).astype({"memory_size": "Int64"})


def _published(comparison: PlannedComparison, streams: Sequence[Stream]) -> float:
    """The paper's mean difference between the two memories over some streams; NaN without one."""
    one, other = comparison.memories
    if one == other or not streams:  # Two readings of the same networks: the paper has one.
        return math.nan
    return float(np.mean([paper.printed_difference(stream, one, other, comparison.metric) for stream in streams]))


def verdict(expected: str, metric: str, found: Interval) -> str:
    """Whether an interval agrees with what a comparison expects.

    Args:
        expected, metric: see `PlannedComparison`.
        found: the interval of the difference.

    Returns:
        "holds": the interval excludes 0 on the expected side, or is within the margin if "as much" is expected;
        "refuted": it excludes 0 on the other side, or lies beyond the margin; "undecided": neither; "" without an
        interval or an expectation.
    """
    low, high = found
    if math.isnan(low) or not expected:
        return ""
    if expected == "as much":
        margin = MARGINS[metric]
        holds, refuted = -margin < low and high < margin, low > margin or high < -margin
    else:
        sign = -1 if expected == "lower" else 1
        nearest, furthest = sorted((sign * low, sign * high))
        holds, refuted = nearest > 0, furthest < 0
    return "holds" if holds else "refuted" if refuted else "undecided"


def _planned_runs(records: pd.DataFrame, runs: str, memory: str, reading: str) -> pd.DataFrame:
    """The measures of the planned runs of one memory under one reading."""
    seeds_of = PLANNED[runs]
    experiments = [Config(dataset=name, memory_size=size).replace(**_MEMORIES[memory]) for name, size in seeds_of]
    tables = zip(measures(records, experiments, reading), seeds_of.values(), strict=True)
    return pd.concat([table[table["seed"].isin(list(seeds))] for table, seeds in tables], ignore_index=True)
