"""Paired differences between two methods or two readings: mean, interval, detectable difference and verdict.

A difference is taken within a stream (data set and memory size) and seed. Over several streams the estimate is the mean
of the streams' means, with equal weights. `figures/PROTOCOL.md` defines which differences are judged, and how.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import special, stats
from scipy.sparse.csgraph import connected_components

from ucl.config import Config
from ucl.evidence import paper
from ucl.records import MEASURES
from ucl.records.runs import apart_from_failures, latest, matching

Stream = tuple[str, int]
"""Data set and memory size."""
PAIR = ("dataset", "memory_size", "seed")
LEVEL = 0.95
POWER = 0.8
SETTINGS: dict[str, dict[str, Any]] = {
    "everything rescored": {},
    "refresh=2": {"refresh": 2},
    # With the complete test set, as the runs that they are compared with.
    "published settings": {**paper.PUBLISHED_CODE, "long_tailed_test": False},
}

COMPARATORS: dict[str, dict[str, Any]] = {"ER": {"population": "reservoir"}, "CBR": {"population": "class-balanced"}}


class Interval(NamedTuple):
    """A confidence interval; NaN where the data allow none."""

    low: float
    high: float


@dataclass(frozen=True)
class Effect:
    """The mean of paired differences.

    Attributes:
        n: pairs.
        streams: how many streams they come from.
        mean: mean over the streams of the mean over their pairs.
        interval: confidence interval, stratified by stream; 95 % unless another level was given.
        clustered: the same with the seed as cluster. It checks `interval`, as streams that share a seed are not
            independent.
        detectable: the true difference that a two-sided test at 5 % finds with 80 % power at this n and spread.
    """

    n: int
    streams: int
    mean: float
    interval: Interval
    clustered: Interval
    detectable: float

    @property
    def wider(self) -> Interval:
        """The wider of `interval` and `clustered`, which have the same centre; NaN if either is."""
        sides = np.array([self.interval, self.clustered])
        return Interval(float(sides[:, 0].min()), float(sides[:, 1].max()))

    @property
    def numbers(self) -> tuple[float, ...]:
        """The numbers that all tables of effects have: n, mean, both ends of `interval`, and detectable."""
        return (self.n, self.mean, *self.interval, self.detectable)


def differences(
    runs: pd.DataFrame, other: pd.DataFrame, metrics: Sequence[str] = ("A", "F"), keys: Sequence[str] = PAIR
) -> pd.DataFrame:
    """The metrics of `runs` minus those of `other`, pair by pair.

    Args:
        runs, other: columns `keys` and the metrics; one row per run.
        metrics: names of columns.
        keys: columns that are equal within a pair.

    Returns:
        Columns `keys` and the metrics, one row per pair; runs without a partner are left out.

    Raises:
        pandas.errors.MergeError: one side has two rows with equal keys.
    """
    keys = list(keys)
    if runs.empty or other.empty:  # Most cells of the paper have no runs, and a merge takes milliseconds.
        return pd.DataFrame(columns=[*keys, *metrics])
    both = runs[[*keys, *metrics]].merge(other[[*keys, *metrics]], on=keys, suffixes=("", "_other"), validate="1:1")
    return both[keys].assign(**{m: both[m].astype(float) - both[f"{m}_other"].astype(float) for m in metrics})


def measures(records: pd.DataFrame, experiments: Iterable[Config], reading: str = "running") -> list[pd.DataFrame]:
    """The results of each experiment, for all its seeds; networks that failed (`Record.failure`) are left out.

    Args:
        records: see `ucl.load_records`.
        experiments: their seeds do not matter; an experiment may occur twice.
        reading: see `Record.measures`; the measures of records without it are NaN.

    Returns:
        A table per experiment, a row per run: columns dataset, memory_size, seed, the measures of `Record.measures` in
        per cent, processor, and arithmetic, that of the scoring passes.
    """
    seedless = [config.seedless for config in experiments]
    index_of = {key: index for index, key in enumerate(dict.fromkeys(config.key for config in seedless))}
    distinct = {config.key: config for config in seedless}
    runs, _ = apart_from_failures(matching(records, [distinct[key] for key in index_of]))
    rows: dict[int, list[dict]] = {index: [] for index in index_of.values()}
    for index, record in zip(runs["experiment"], runs["record"], strict=True):
        values = {name: 100 * value for name, value in record.measures(reading).items()}
        facts = {"processor": record.environment.get("processor"), "arithmetic": record.arithmetic}
        rows[index].append({"seed": record.config.seed, **values, **facts})
    columns = ["dataset", "memory_size", "seed", *MEASURES, "processor", "arithmetic"]
    # Most cells of the paper have no runs, and making a table takes a third of a millisecond: they share one.
    nothing = pd.DataFrame([], columns=columns)
    tables = {}
    for key, index in index_of.items():
        stream = {"dataset": distinct[key].dataset, "memory_size": distinct[key].memory_size}
        found = [{**stream, **row} for row in rows[index]]
        tables[key] = pd.DataFrame(found, columns=columns) if found else nothing
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
        pair), detectable, and published, the paper's difference; all in percentage points; and same_processor, the
        number of pairs whose runs are of one kind of processor.
    """
    cells, own, others = _cells_of_scores(tuple(streams), tuple(scores), comparator)
    printed = paper.published().set_index(["dataset", "memory_size", "method", "selection", "metric"])["mean"]
    rows = []
    sides = measures(records, own), measures(records, others)
    for (stream, score, setting), runs, comparison in zip(cells, *sides, strict=True):
        pairs = differences(runs, comparison)
        together = len(runs.merge(comparison, on=[*PAIR, "processor"])) if len(pairs) else 0
        for metric in ("A", "F") if len(pairs) else ():
            found = effect(pairs, metric)
            paired = printed.get((*stream, score, "bottom", metric)), printed.get((*stream, comparator, "", metric))
            published = paired[0] - paired[1] if None not in paired else np.nan
            values = *found.numbers, published, together
            rows.append((*stream, f"{score} bottom", setting, comparator, metric, *values))
    columns = ["dataset", "memory_size", "label", "setting", "comparator", "metric", "n", "mean", "low", "high"]
    return pd.DataFrame(rows, columns=[*columns, "detectable", "published", "same_processor"])


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

    Args:
        records: see `ucl.load_records`; those of one data set and memory size are on the same stream.

    Returns:
        Columns dataset, memory_size, method (see `ucl.paper.name_of`), seed, reading, the measures of
        `Record.measures` in per cent, and shift (see `ucl.records.Reading`; at the end of the stream, NaN for "running"
        and for readings that set no statistics).
    """
    rows = []
    for record in latest(records)["record"]:
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


def exploratory(dataset: str, seed: int) -> bool:
    """Whether a seed was measured before `figures/PROTOCOL.md` was written."""
    return seed < (5 if dataset == "bloodcell" else 3)


def n_exploratory(runs: pd.DataFrame) -> int:
    """How many runs are of exploratory seeds; columns dataset and seed, one row per run."""
    return sum(exploratory(dataset, seed) for dataset, seed in zip(runs["dataset"], runs["seed"], strict=True))


def effect(pairs: pd.DataFrame, metric: str, level: float = LEVEL) -> Effect:
    """The mean of paired differences with its intervals.

    Args:
        pairs: see `differences`.
        metric: the column of the differences.
        level: of the intervals; the detectable difference is always that of a test at 5 %.

    Returns:
        The effect. The intervals and the detectable difference are NaN if a stream has a single pair.
    """
    of_stream = _of_each_stream(pairs, metric)
    if not of_stream:
        nothing = Interval(np.nan, np.nan)
        return Effect(0, 0, np.nan, nothing, nothing, np.nan)
    mean = float(np.mean([values.mean() for values in of_stream]))
    error, freedom = _stratified(of_stream)
    # The noncentrality at which the t statistic exceeds the critical value with probability POWER.
    detectable = special.nctdtrinc(freedom, 1 - POWER, stats.t.ppf((1 + LEVEL) / 2, freedom)) * error
    clustered = _around(mean, *_clustered(pairs, metric), level)
    return Effect(len(pairs), len(of_stream), mean, _around(mean, error, freedom, level), clustered, float(detectable))


def mean_of_streams(pairs: pd.DataFrame, metric: str) -> float:
    """The mean over the streams of the mean over their pairs: `Effect.mean`; NaN without pairs."""
    of_stream = _of_each_stream(pairs, metric)
    return float(np.mean([values.mean() for values in of_stream])) if of_stream else np.nan


def against_paper(interval: Interval, published: float) -> str:
    """Whether the paper's effect was found again.

    Args:
        interval: of the measured difference.
        published: the paper's difference, in the same unit.

    Returns:
        "reproduced": the whole interval is beyond half the paper's effect; "excluded": the whole interval falls short
        of it; "undecided" otherwise, and if the paper's difference is 0.
    """
    if not published:
        return "undecided"
    nearest, furthest = sorted(bound / published for bound in interval)
    if nearest > 0.5:
        return "reproduced"
    return "excluded" if furthest < 0.5 else "undecided"


def _of_each_stream(pairs: pd.DataFrame, metric: str) -> list[np.ndarray]:
    return [own[metric].to_numpy(float) for _, own in pairs.groupby(["dataset", "memory_size"])]


def _stratified(of_stream: Sequence[np.ndarray]) -> tuple[float, float]:
    """Standard error of the mean of the streams' means, and its degrees of freedom by Welch-Satterthwaite.

    Both are NaN if a stream has a single value: its variance is unknown.
    """
    if min(len(values) for values in of_stream) < 2:
        return np.nan, np.nan
    variances = np.array([values.var(ddof=1) / len(values) for values in of_stream]) / len(of_stream) ** 2
    return _combined(variances, np.array([len(values) - 1 for values in of_stream]))


def _clustered(pairs: pd.DataFrame, metric: str) -> tuple[float, float]:
    """Standard error of the mean of the streams' means with the seed as cluster, and its degrees of freedom.

    Residuals are taken from the mean of their stream, so they are too small by sqrt((n - 1) / n) for n pairs of the
    stream; this is corrected. Streams that share seeds, directly or through other streams, form a group with one degree
    of freedom less than it has seeds; groups are combined by Welch-Satterthwaite. If no streams share a seed, the
    result is that of `_stratified`. Both are NaN if a stream has a single pair.
    """
    stream, seeds = pairs.groupby(["dataset", "memory_size"]), pairs["seed"].to_numpy()
    n = stream[metric].transform("size").to_numpy(float)
    if n.min() < 2:
        return np.nan, np.nan
    residuals = (pairs[metric] - stream[metric].transform("mean")).to_numpy(float)
    distinct, index_of_seed = np.unique(seeds, return_inverse=True)
    of_seed = np.bincount(index_of_seed, residuals / np.sqrt(n * (n - 1)) / stream.ngroups)
    has_seed = np.zeros((stream.ngroups, len(distinct)), dtype=int)
    has_seed[stream.ngroup(), index_of_seed] = 1
    _, group_of_seed = connected_components(has_seed.T @ has_seed, directed=False)
    return _combined(np.bincount(group_of_seed, of_seed**2), np.bincount(group_of_seed) - 1)


def _combined(variances: np.ndarray, freedoms: np.ndarray) -> tuple[float, float]:
    """Square root of the sum of independent variances, and its degrees of freedom by Welch-Satterthwaite."""
    total = variances.sum()
    freedom = total**2 / (variances**2 / freedoms).sum() if total else freedoms.sum()
    return float(np.sqrt(total)), float(freedom)


def _around(mean: float, error: float, freedom: float, level: float) -> Interval:
    half = stats.t.ppf((1 + level) / 2, freedom) * error
    return Interval(float(mean - half), float(mean + half))
