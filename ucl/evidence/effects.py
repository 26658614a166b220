"""Paired differences between two methods or two readings: mean, intervals and detectable difference.

A difference is taken within a stream (data set and memory size) and seed. Over several streams the estimate is the mean
of the streams' means, with equal weights. `figures/PROTOCOL.md` defines which differences are judged, and how.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import special, stats
from scipy.sparse.csgraph import connected_components

from ucl.evidence import paper

PAIR = ("dataset", "memory_size", "seed")
Stream = tuple[str, int]
"""Data set and memory size."""
NUMBERS = ("n", "mean", "low", "high", "detectable")
"""The columns of numbers of `effects_by`."""
ALL_STREAMS = "all streams"
"""The data set in a row that is the mean over several streams; its memory size is <NA>."""
LEVEL = 0.95
POWER = 0.8


class Interval(NamedTuple):
    """A confidence interval; NaN where the data allow none."""

    low: float
    high: float

    @property
    def excludes_0(self) -> bool:
        """Whether the whole interval is on one side of 0."""
        return self.low > 0 or self.high < 0


def differences(
    runs: pd.DataFrame, other: pd.DataFrame, metrics: Sequence[str] = ("A", "F"), keys: Sequence[str] = PAIR
) -> pd.DataFrame:
    """The metrics of `runs` minus those of `other`, pair by pair.

    Args:
        runs, other: columns `keys` and the metrics, one row per run. `other` may lack some of the keys: then several
            runs have the same partner.
        metrics: names of columns.
        keys: columns that are equal within a pair.

    Returns:
        Columns `keys` and the metrics, one row per pair; runs without a partner are left out.

    Raises:
        pandas.errors.MergeError: one side has two rows with equal keys.
    """
    shared = [key for key in keys if key in other]
    right = other[[*shared, *metrics]]
    validate = "one_to_one" if len(shared) == len(keys) else "many_to_one"
    pairs = runs[[*keys, *metrics]].merge(right, on=shared, suffixes=("", "_other"), validate=validate)
    return pairs[[*keys]].assign(**{metric: pairs[metric] - pairs[f"{metric}_other"] for metric in metrics})


def streams_of(table: pd.DataFrame) -> list[Stream]:
    """The streams of a table with columns dataset and memory_size, each once, in order."""
    return list(dict.fromkeys(zip(table["dataset"], table["memory_size"], strict=True)))


def on_streams(table: pd.DataFrame, streams: Collection[Stream]) -> pd.DataFrame:
    """The rows of some streams of a table with columns dataset and memory_size."""
    return table[pd.MultiIndex.from_frame(table[["dataset", "memory_size"]]).isin(list(streams))]


def estimable(pairs: pd.DataFrame) -> pd.DataFrame:
    """The pairs of streams that have at least two, as the variance of a single pair is unknown; all if none has two."""
    several = pairs.duplicated(["dataset", "memory_size"], keep=False)
    return pairs[several] if several.any() else pairs


def effects_by(
    pairs: pd.DataFrame, cell: Sequence[str], metrics: Sequence[str] = ("A", "F"), column: str = "metric"
) -> pd.DataFrame:
    """The mean of paired differences (see `differences`) in each of several cells, which some columns name.

    Returns:
        A row per cell, in the order of their first pairs, and metric: columns `cell`, `column` (names the metric) and
        `NUMBERS`, see `summary`.
    """
    rows = []
    for key, group in pairs.groupby(list(cell), sort=False):
        for metric in metrics:
            estimate = summary(group, metric)
            rows.append((*key, metric, *(estimate[name] for name in NUMBERS)))
    return pd.DataFrame(rows, columns=[*cell, column, *NUMBERS])


def summary(pairs: pd.DataFrame, metric: str, published: float = math.nan) -> dict[str, Any]:
    """The mean of paired differences with its intervals, and how it compares with the paper's difference, if any.

    Args:
        pairs: see `differences`.
        metric: the column of the differences.
        published: the paper's difference in the same unit.

    Returns:
        n (pairs), exploratory (how many of the n, see `n_exploratory`), mean (over the streams of the mean over their
        pairs), low_by_stream and high_by_stream (95 % interval, stratified by stream), low_by_seed and high_by_seed
        (with the seed as cluster, as streams that share a seed are not independent), low and high (the wider one of
        both), detectable_by_stream (the true difference that a two-sided test at 5 % finds with 80 % power at this n
        and spread, if it uses that interval), detectable (the larger one of both intervals), published, verdict (see
        `against_paper`) and excludes_0 (whether the interval from low to high does). The intervals and the detectable
        differences are NaN if a stream has a single pair.
    """
    values, streams = pairs[metric].to_numpy(float), pairs.groupby(["dataset", "memory_size"]).ngroup().to_numpy()
    means = [values[streams == stream].mean() for stream in np.unique(streams)]
    mean = float(np.mean(means)) if means else math.nan
    stratified = _standard_error(values, streams, np.arange(len(pairs)))  # each pair is independent
    clustered = _standard_error(values, streams, pairs["seed"].to_numpy())
    by_stream, by_seed = _around(mean, *stratified), _around(mean, *clustered)
    wider = Interval(min(by_stream.low, by_seed.low), max(by_stream.high, by_seed.high))
    return {
        "n": len(pairs),
        "exploratory": n_exploratory(pairs),
        "mean": mean,
        **wider._asdict(),
        "detectable": max(_detectable(*stratified), _detectable(*clustered)),
        "low_by_stream": by_stream.low,
        "high_by_stream": by_stream.high,
        "detectable_by_stream": _detectable(*stratified),
        "low_by_seed": by_seed.low,
        "high_by_seed": by_seed.high,
        "published": published,
        "verdict": against_paper(wider, published),
        "excludes_0": wider.excludes_0,
    }


def by_stream(pairs: pd.DataFrame, metric: str, printed: Mapping[Stream, float]) -> list[dict[str, Any]]:
    """A row per stream that has pairs or that the paper prints, then one over all streams that can be averaged.

    Args:
        printed: the paper's difference on each stream for which it prints one. If there are any, the last row is the
            mean over only these streams.

    Returns:
        Rows of dataset, memory_size and the columns of `summary`. The last one is of `ALL_STREAMS` with equal weights,
        without streams with a single pair, see `estimable`.
    """
    streams = sorted({*printed, *streams_of(pairs)})
    counted = estimable(on_streams(pairs, printed or streams))
    averaged = streams_of(counted) or list(printed)
    published = float(np.mean([printed[stream] for stream in averaged])) if printed else math.nan
    parts = [(stream, on_streams(pairs, [stream]), printed.get(stream, math.nan)) for stream in streams]
    return [
        {"dataset": dataset, "memory_size": size, **summary(part, metric, paper_difference)}
        for (dataset, size), part, paper_difference in [*parts, ((ALL_STREAMS, pd.NA), counted, published)]
    ]


def n_exploratory(runs: pd.DataFrame) -> int:
    """How many runs (columns dataset and seed) are of seeds that were measured before `figures/PROTOCOL.md`."""
    first_new_seed = {**{dataset: 3 for dataset, _ in paper.streams()}, "bloodcell": 5}
    return sum(seed < first_new_seed.get(name, 0) for name, seed in zip(runs["dataset"], runs["seed"], strict=True))


def against_paper(interval: Interval, published: float) -> str:
    """The verdict on one difference of the paper, by half of it and the interval of the measured one.

    Returns:
        "reproduced": the whole interval is beyond half the paper's difference, on its side; "excluded": the whole
        interval is short of it; "undecided": neither, or the paper's difference is 0; "not shown": there is no
        interval, as there are fewer than two pairs; "" if the paper prints no difference.
    """
    if math.isnan(published):
        return ""
    if math.isnan(interval.low):
        return "not shown"
    if not published:
        return "undecided"
    nearest, furthest = sorted(bound / published for bound in interval)
    if nearest > 0.5:
        return "reproduced"
    return "excluded" if furthest < 0.5 else "undecided"


def _standard_error(values_N: np.ndarray, streams_N: np.ndarray, clusters_N: np.ndarray) -> tuple[float, float]:
    """Standard error of the mean of the streams' means, where values of one cluster are not independent.

    Residuals are taken from the mean of their stream, so they are too small by sqrt((n - 1) / n) for n values of the
    stream; this is corrected. Streams that share clusters, directly or through other streams, form a group. Its degrees
    of freedom are those of Satterthwaite for clusters of unequal weight, less one: with equal weights, the number of
    clusters less one. Groups are independent and combined by Welch-Satterthwaite.

    Args:
        values_N: the values.
        streams_N, clusters_N: the stream of each, from 0, and its cluster.

    Returns:
        The error and its degrees of freedom, both NaN if a stream has a single value: its variance is unknown.
    """
    sizes = np.bincount(streams_N)
    if min(sizes, default=0) < 2:
        return np.nan, np.nan
    n = sizes[streams_N].astype(float)
    residuals = values_N - (np.bincount(streams_N, values_N) / sizes)[streams_N]
    distinct, cluster = np.unique(clusters_N, return_inverse=True)
    sum_of_cluster = np.bincount(cluster, residuals / np.sqrt(n * (n - 1)) / len(sizes))
    has_cluster = np.zeros((len(sizes), len(distinct)), dtype=int)
    has_cluster[streams_N, cluster] = 1
    _, group = connected_components(has_cluster.T @ has_cluster, directed=False)
    # A cluster's variance grows with the square of its weight in the estimate if its values are equal in all streams.
    weights = np.bincount(cluster, 1 / n) ** 2
    freedoms = np.bincount(group, weights) ** 2 / np.bincount(group, weights**2) - 1
    variances = np.bincount(group, sum_of_cluster**2)
    total = variances.sum()
    freedom = total**2 / (variances**2 / freedoms).sum() if total else freedoms.sum()
    return float(np.sqrt(total)), float(freedom)


def _detectable(error: float, freedom: float) -> float:
    """The noncentrality at which the t statistic exceeds the critical value with probability `POWER`, times `error`."""
    return float(special.nctdtrinc(freedom, 1 - POWER, stats.t.ppf((1 + LEVEL) / 2, freedom)) * error)


def _around(mean: float, error: float, freedom: float) -> Interval:
    half = stats.t.ppf((1 + LEVEL) / 2, freedom) * error
    return Interval(float(mean - half), float(mean + half))
