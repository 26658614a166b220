"""The hypotheses of `figures/PROTOCOL.md`, judged only by the runs that it plans.

`PLANNED` and `COMPARISONS` are the tables of that file; `judged` computes what it defines. A hypothesis with several
measures or readings is judged for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ucl.catalogue import UNIFORM
from ucl.config import Config, unique
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
from ucl.records import failures
from ucl.records.runs import matching

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
_WITHOUT_HYPOTHESIS = Config(
    dataset="bloodcell", memory_size=40, score="BI", selection="top", **SETTINGS["published settings"]
)
SEEDS_WITHOUT_HYPOTHESIS = range(10, 15)
"""The seeds of the runs that the protocol plans without a hypothesis: BI top, published settings."""
_MEMORIES: dict[str, dict[str, Any]] = {
    **COMPARATORS,
    "CBR redraw": {"population": "class-balanced", "class_balancing": "redraw"},
    "BI bottom, published settings": {"score": "BI", **SETTINGS["published settings"]},
    "EN bottom, refresh=2": {"score": "EN", **SETTINGS["refresh=2"]},
    "BI bottom, refresh=2": {"score": "BI", **SETTINGS["refresh=2"]},
    "uniform, refresh=2": {"score": UNIFORM, **SETTINGS["refresh=2"]},
}


@dataclass(frozen=True)
class PlannedComparison:
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
    def n_planned(self) -> int:
        """The number of pairs that the protocol plans, over all streams."""
        return sum(map(len, PLANNED[self.runs].values()))

    def incomplete(self, pairs: pd.DataFrame) -> str:
        """ ", incomplete" if planned pairs are missing, otherwise ""; it follows n."""
        return ", incomplete" if len(pairs) < self.n_planned else ""


def _comparisons() -> list[PlannedComparison]:
    published, readings = "BI bottom, published settings", [("displaced", "displaced"), ("training", "training")]
    rows = [
        PlannedComparison("H1", "readings", (memory, memory), ("displaced", "training"), "F", "lower")
        for memory in ("ER", "CBR", "CBR redraw")
    ]
    rows.append(PlannedComparison("H1", "published settings", (published, published), ("running", "training"), "F", ""))
    rows += [
        PlannedComparison("H2", "published settings", (published, other), reading, metric, expected)
        for other, expected in (("CBR redraw", "as much"), ("ER", ""))
        for reading in readings
        for metric in ("F", "A")
    ]
    rows += [
        PlannedComparison(name, "refresh=2", (memory, other), ("running", "running"), metric, expected)
        for name, memory, sides in (
            ("H3", "EN bottom, refresh=2", {"A": "higher", "F": "lower"}),
            ("H4", "BI bottom, refresh=2", {"A": "as much", "F": "as much"}),
        )
        for other in ("uniform, refresh=2", "CBR", "ER")
        for metric, expected in (sides if other == "uniform, refresh=2" else dict.fromkeys(sides, "")).items()
    ]
    rows += [
        PlannedComparison("H5", "readings", (memory, memory), ("memory+stream", "training"), "A", "higher")
        for memory in ("ER", "CBR")
    ]
    return rows


COMPARISONS = _comparisons()


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
    rows: list[dict[str, Any]] = []
    for one, compared in zip(COMPARISONS, pairs(records, COMPARISONS), strict=True):
        named = {
            "hypothesis": one.hypothesis,
            "memory": one.memories[0],
            "other_memory": one.memories[1],
            "reading": one.readings[0],
            "other_reading": one.readings[1],
            "metric": one.metric,
            "expected": one.expected,
        }
        parts = [(stream, on_stream(compared, stream), len(seeds)) for stream, seeds in PLANNED[one.runs].items()]
        parts = [part for part in parts if len(part[1])]
        for (dataset, size), part, n_planned in [*parts, ((ALL_STREAMS, pd.NA), estimable(compared), one.n_planned)]:
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


def comparisons_of(hypothesis: str, metric: str, expected: bool = True) -> list[PlannedComparison]:
    """Those of `COMPARISONS` that judge a hypothesis by a metric, or those that are only reported.

    Args:
        hypothesis: a key of `HYPOTHESES`.
        metric: "A" or "F".
        expected: True for the comparisons with an expectation, which judge the hypothesis; False for the others.
    """
    rows = [one for one in COMPARISONS if (one.hypothesis, one.metric) == (hypothesis, metric)]
    return [one for one in rows if bool(one.expected) == expected]


def pairs(records: pd.DataFrame, comparisons: Sequence[PlannedComparison]) -> list[pd.DataFrame]:
    """For each comparison the paired differences of the planned runs, on all its streams.

    Args:
        records: see `judged`.
        comparisons: of `COMPARISONS`.

    Returns:
        Tables as `ucl.evidence.effects.differences` returns them; empty without such runs.
    """
    sides: dict[tuple[str, str, str], pd.DataFrame] = {}  # Most are part of several comparisons.
    found = []
    for one in comparisons:
        keys = [(one.runs, *side) for side in zip(one.memories, one.readings, strict=True)]
        for key in keys:
            if key not in sides:
                sides[key] = _side(records, *key)
        found.append(differences(*(sides[key] for key in keys)).dropna(subset=[one.metric]))
    return found


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


def failed(records: pd.DataFrame) -> str:
    """The number of planned runs that diverged or collapsed, such as "1 diverged"; "" if there are none."""
    groups = {(comparison.runs, memory) for comparison in COMPARISONS for memory in comparison.memories}
    seeds_of = [(one, seeds) for group in groups for one, seeds in _experiments(*group)]
    seeds_of.append((_WITHOUT_HYPOTHESIS, SEEDS_WITHOUT_HYPOTHESIS))
    planned = {(config.key, seed) for config, seeds in seeds_of for seed in seeds}
    experiments = unique(config for config, _ in seeds_of)
    runs = matching(records, experiments)
    found = zip(runs["experiment"], runs["record"], strict=True)
    return failures(r for index, r in found if (experiments[index].key, r.config.seed) in planned)


def without_hypothesis(records: pd.DataFrame) -> int:
    """How many of the runs that are planned without a hypothesis, BI top with published settings, have a record."""
    runs = matching(records, [_WITHOUT_HYPOTHESIS])
    return len({record.config.seed for record in runs["record"]} & {*SEEDS_WITHOUT_HYPOTHESIS})


def _side(records: pd.DataFrame, runs: str, memory: str, reading: str) -> pd.DataFrame:
    """The measures of the planned runs of one memory under one reading."""
    experiments, seeds = zip(*_experiments(runs, memory), strict=True)
    tables = zip(measures(records, experiments, reading), seeds, strict=True)
    return pd.concat([own[own["seed"].isin(list(planned))] for own, planned in tables], ignore_index=True)


def _experiments(runs: str, memory: str) -> list[tuple[Config, range]]:
    """The experiments of one memory in a group of `PLANNED`, each with its seeds."""
    return [
        (Config(dataset=dataset, memory_size=size).replace(**_MEMORIES[memory]), seeds)
        for (dataset, size), seeds in PLANNED[runs].items()
    ]
