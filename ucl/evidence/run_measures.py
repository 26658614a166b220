"""The measures of runs as tables: of experiments, of scores in each setting, and under each reading."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ucl.config import Config, unique
from ucl.evidence import paper
from ucl.evidence.effects import PAIR, differences, effect
from ucl.records import MEASURES
from ucl.records.runs import apart_from_failures, latest, matching

Stream = tuple[str, int]
"""Data set and memory size."""
SETTINGS: dict[str, dict[str, Any]] = {
    "everything rescored": {},
    "refresh=2": {"refresh": 2},
    # With the complete test set, as the runs that they are compared with.
    "published settings": {**paper.PUBLISHED_CODE, "long_tailed_test": False},
}

COMPARATORS: dict[str, dict[str, Any]] = {"ER": {"population": "reservoir"}, "CBR": {"population": "class-balanced"}}

TESTED = ("training", "displaced", "running")
"""The readings of the README's table: without scoring passes, with added ones, and as the run itself is tested."""
_TESTED_METHODS = {  # with the paper's row
    "ER": ("ER", ""),
    "CBR redraw": ("CBR", ""),
    "BI bottom, published settings": ("BI", "bottom"),
}


def exploratory(dataset: str, seed: int) -> bool:
    """Whether a seed was measured before `figures/PROTOCOL.md` was written."""
    return seed < (5 if dataset == "bloodcell" else 3)


def n_exploratory(runs: pd.DataFrame) -> int:
    """How many runs are of exploratory seeds; columns dataset and seed, one row per run."""
    return sum(exploratory(dataset, seed) for dataset, seed in zip(runs["dataset"], runs["seed"], strict=True))


def measures(records: pd.DataFrame, experiments: Iterable[Config], reading: str = "running") -> list[pd.DataFrame]:
    """The results of each experiment, for all its seeds; networks that failed (`Record.failure`) are left out.

    Args:
        records: see `ucl.load_records`.
        experiments: their seeds do not matter; an experiment may occur twice.
        reading: see `Record.measures`; the measures of records without it are NaN.

    Returns:
        A table per experiment, a row per run: columns dataset, memory_size, seed, `ucl.records.MEASURES` in
        per cent, processor, and arithmetic, that of the scoring passes.
    """
    seedless = [config.seedless for config in experiments]
    distinct = unique(seedless)
    runs, _ = apart_from_failures(matching(records, distinct))
    rows: dict[str, list[dict]] = {config.key: [] for config in distinct}
    for index, record in zip(runs["experiment"], runs["record"], strict=True):
        config = distinct[index]
        stream = {"dataset": config.dataset, "memory_size": config.memory_size, "seed": record.config.seed}
        values = {name: 100 * value for name, value in record.measures(reading).items()}
        facts = {"processor": record.environment.get("processor"), "arithmetic": record.arithmetic}
        rows[config.key].append({**stream, **values, **facts})
    columns = ["dataset", "memory_size", "seed", *MEASURES, "processor", "arithmetic"]
    # Most cells of the paper have no runs. They share one empty table: making one takes a third of a millisecond.
    nothing = pd.DataFrame([], columns=columns)
    tables = {key: pd.DataFrame(own, columns=columns) if own else nothing for key, own in rows.items()}
    return [tables[config.key] for config in seedless]


def effects_of_scores(
    records: pd.DataFrame, streams: Iterable[Stream], scores: Sequence[str], comparator: str = "CBR"
) -> pd.DataFrame:
    """Each score with bottom-k compared with a memory without a score, by stream and setting.

    Networks that diverged or collapsed do not count (`Record.failure`).

    Args:
        records: see `ucl.load_records`; of each data set on one version of its images.
        streams: pairs of data set and memory size.
        scores: names in `ucl.scorers.SCORES`.
        comparator: a key of `COMPARATORS`.

    Returns:
        A row per stream, score, setting (a key of `SETTINGS`) and metric ("A", "F") that has records: columns dataset,
        memory_size, label, setting, comparator, metric, n (pairs), mean, low and high (95 % interval, NaN for a single
        pair), detectable, and published, the paper's difference; all in percentage points; and same_processor and
        exploratory, the number of pairs whose runs are of one kind of processor, and of exploratory seeds.
    """
    cells, own, others = _cells_of_scores(tuple(streams), tuple(scores), comparator)
    printed = paper.by_cell()["mean"]
    rows = []
    sides = measures(records, own), measures(records, others)
    for (stream, score, setting), runs, comparison in zip(cells, *sides, strict=True):
        pairs = differences(runs, comparison)
        if pairs.empty:
            continue
        together = len(runs.merge(comparison, on=[*PAIR, "processor"]))
        for metric in ("A", "F"):
            found = effect(pairs, metric)
            paired = printed.get((*stream, score, "bottom", metric)), printed.get((*stream, comparator, "", metric))
            published = paired[0] - paired[1] if None not in paired else np.nan
            values = *found.numbers, published, together, n_exploratory(pairs)
            rows.append((*stream, f"{score} bottom", setting, comparator, metric, *values))
    columns = ["dataset", "memory_size", "label", "setting", "comparator", "metric", "n", "mean", "low", "high"]
    return pd.DataFrame(rows, columns=[*columns, "detectable", "published", "same_processor", "exploratory"])


@functools.cache
def _cells_of_scores(
    streams: tuple[Stream, ...], scores: tuple[str, ...], comparator: str
) -> tuple[list[tuple[Stream, str, str]], list[Config], list[Config]]:
    """Stream, score and setting of each cell, its experiment with the score, and the one that it is compared with."""
    cells, own, others = [], [], []
    for (dataset, size), (setting, fields) in itertools.product(streams, SETTINGS.items()):
        base = Config(dataset=dataset, memory_size=size).replace(**fields)
        other = base.replace(**COMPARATORS[comparator])
        cells += [((dataset, size), score, setting) for score in scores]
        own += [base.replace(score=score) for score in scores]
        others += [other for _ in scores]
    return cells, own, others


def by_reading(records: pd.DataFrame) -> pd.DataFrame:
    """The measures of each run under each reading that its record holds, and under its own statistics ("running").

    Networks that diverged or collapsed do not count (`Record.failure`).

    Args:
        records: see `ucl.load_records`; those of one data set and memory size are on the same stream.

    Returns:
        Columns dataset, memory_size, method (see `ucl.paper.name_of`), seed, reading, the measures of
        `Record.measures` in per cent (NaN for those that a reading does not have), and shift (see
        `ucl.records.Reading`; at the end of the stream, NaN for "running" and for readings that set no statistics).
    """
    rows = []
    for record in apart_from_failures(latest(records))[0]["record"]:
        config = record.config
        for reading in ("running", *record.readings):
            values = {name: 100 * value for name, value in record.measures(reading).items()}
            shift = record.readings[reading].shift[-1] if reading != "running" else np.nan
            stream = {"dataset": config.dataset, "memory_size": config.memory_size}
            cell = {**stream, "method": paper.name_of(config)}
            rows.append({**cell, "seed": config.seed, "reading": reading, **values, "shift": shift})
    columns = ["dataset", "memory_size", "method", "seed", "reading", *MEASURES, "shift"]
    return pd.DataFrame(rows, columns=columns)


def between_readings(table: pd.DataFrame, reading: str) -> pd.DataFrame:
    """One reading minus `training` of the same networks: the mean effect on A and F.

    Args:
        table: see `by_reading`.
        reading: name of the reading.

    Returns:
        A row per data set, memory size, method and metric: n, mean, low and high (95 % interval) and detectable, in
        percentage points.
    """
    rows = []
    for (dataset, size, method), own in table.groupby(["dataset", "memory_size", "method"], sort=False):
        pairs = differences(own[own["reading"] == reading], own[own["reading"] == "training"])
        for metric in ("A", "F"):
            found = effect(pairs, metric)
            rows.append((dataset, size, method, metric, *found.numbers))
    columns = ["dataset", "memory_size", "method", "metric", "n", "mean", "low", "high", "detectable"]
    return pd.DataFrame(rows, columns=columns)


def moved_by_scoring(table: pd.DataFrame) -> pd.DataFrame:
    """A and F of the same networks under the readings `TESTED`, means over seeds.

    Scoring in training mode moves the statistics: for `displaced` the same passes are added to every network,
    `running` are the run's own. ER and CBR redraw do not score, so their `running` equals `training`.

    Args:
        table: see `by_reading`.

    Returns:
        A row per stream and method, on the seeds that all three methods have: columns dataset, memory_size, method, n,
        and of each metric m ("A", "F"), in per cent, m_training, m_displaced, m_running and m_published, the mean that
        the paper prints (NaN if none). Streams with fewer than two seeds are left out.
    """
    printed = paper.by_cell()["mean"]
    measured = table[table["method"].isin(_TESTED_METHODS) & table["reading"].isin(TESTED)].dropna(subset=["A", "F"])
    rows = []
    for (dataset, size), own in measured.groupby(["dataset", "memory_size"], sort=False):
        n_tests = own.groupby("seed").size()
        seeds = n_tests.index[n_tests == len(_TESTED_METHODS) * len(TESTED)]
        if len(seeds) < 2:
            continue
        means = own[own["seed"].isin(seeds)].groupby(["method", "reading"])[["A", "F"]].mean()
        for method, in_paper in _TESTED_METHODS.items():
            row = {"dataset": dataset, "memory_size": size, "method": method, "n": len(seeds)}
            for metric in ("A", "F"):
                row |= {f"{metric}_{reading}": means.loc[(method, reading), metric] for reading in TESTED}
                row[f"{metric}_published"] = printed.get((dataset, size, *in_paper, metric), np.nan)
            rows.append(row)
    numbers = [f"{metric}_{state}" for metric in "AF" for state in (*TESTED, "published")]
    return pd.DataFrame(rows, columns=["dataset", "memory_size", "method", "n", *numbers])
