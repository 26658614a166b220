"""The measures of runs as tables: of experiments, of scores in each setting, and under each reading."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ucl.config import Config, unique
from ucl.evidence import paper
from ucl.evidence.effects import NUMBERS, PAIR, Stream, differences, effect
from ucl.records import MEASURES
from ucl.records.runs import apart_from_failures, latest, matching

SETTINGS: dict[str, dict[str, Any]] = {
    "everything rescored": {},
    "refresh=2": {"refresh": 2},
    # With the complete test set, as the runs that they are compared with.
    "published settings": {**paper.PUBLISHED_CODE, "long_tailed_test": False},
}

COMPARATORS: dict[str, dict[str, Any]] = {"ER": {"population": "reservoir"}, "CBR": {"population": "class-balanced"}}

TESTED = ("training", "displaced", "running")
"""The readings of the README's table: without scoring passes, with added ones, and as the run itself is tested."""
_DATASETS = {dataset for dataset, _ in paper.streams()}
_TESTED_METHODS = ("ER", "CBR redraw", "BI bottom, published settings")


def n_exploratory(runs: pd.DataFrame) -> int:
    """How many runs are of seeds that were measured before `figures/PROTOCOL.md` was written.

    Args:
        runs: columns dataset and seed, one row per run.
    """
    first_new_seed = {**dict.fromkeys(_DATASETS, 3), "bloodcell": 5}
    return sum(seed < first_new_seed.get(name, 0) for name, seed in zip(runs["dataset"], runs["seed"], strict=True))


def runs_of(records: pd.DataFrame, experiments: Sequence[Config], reading: str = "running") -> pd.DataFrame:
    """The runs of some experiments, for all their seeds, without networks that failed (`Record.failure`).

    Args:
        records: see `ucl.load_records`.
        experiments: different ones; their seeds do not matter.
        reading: see `Record.measures`; the measures of records without it are NaN.

    Returns:
        A table, a row per run: columns experiment (the index in `experiments`), dataset, memory_size, label, seed,
        `ucl.records.MEASURES` in per cent, fingerprint (of the images), processor (see `Record`), arithmetic (of the
        scoring passes) and record.
    """
    runs, _ = apart_from_failures(matching(records, experiments))
    rows = []
    for index, record in zip(runs["experiment"], runs["record"], strict=True):
        config = experiments[index]  # The record's own may name the data set by a path.
        run = (index, config.dataset, config.memory_size, config.label, record.config.seed)
        values = record.measures(reading)
        facts = (record.version.images, record.processor, record.arithmetic, record)
        rows.append((*run, *(100 * values[name] for name in MEASURES), *facts))
    names = ["experiment", "dataset", "memory_size", "label", "seed", *MEASURES]
    return pd.DataFrame(rows, columns=[*names, "fingerprint", "processor", "arithmetic", "record"])


def measures(records: pd.DataFrame, experiments: Iterable[Config], reading: str = "running") -> list[pd.DataFrame]:
    """The rows of `runs_of` for each of some experiments; an experiment may occur twice."""
    keys = [config.seedless.key for config in experiments]
    distinct = unique(config.seedless for config in experiments)
    table = runs_of(records, distinct, reading)
    by_index = dict(list(table.groupby("experiment")))
    by_key = {config.key: by_index.get(index, table[:0]) for index, config in enumerate(distinct)}
    return [by_key[key] for key in keys]


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
    cells = list(itertools.product(streams, SETTINGS, scores))
    scored = [
        Config(dataset=name, memory_size=size, score=s).replace(**SETTINGS[how]) for (name, size), how, s in cells
    ]
    others = [config.replace(**COMPARATORS[comparator]) for config in scored]
    rows = []
    sides = measures(records, scored), measures(records, others)
    for (stream, setting, score), runs, comparison in zip(cells, *sides, strict=True):
        pairs = differences(runs, comparison)
        if pairs.empty:
            continue
        together = len(runs.merge(comparison, on=[*PAIR, "processor"]))
        label = f"{score} bottom"
        for metric in "AF":
            published = paper.printed_difference(stream, label, comparator, metric)
            numbers = *effect(pairs, metric).numbers, published, together, n_exploratory(pairs)
            rows.append((*stream, label, setting, comparator, metric, *numbers))
    cell = ["dataset", "memory_size", "label", "setting", "comparator", "metric"]
    return pd.DataFrame(rows, columns=[*cell, *NUMBERS, "published", "same_processor", "exploratory"])


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
            cell = (config.dataset, config.memory_size, paper.name_of(config), config.seed, reading)
            values = record.measures(reading)
            shift = record.readings[reading].shift[-1] if reading != "running" else np.nan
            rows.append((*cell, *(100 * values[name] for name in MEASURES), shift))
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
    for (dataset, size, method), part in table.groupby(["dataset", "memory_size", "method"], sort=False):
        pairs = differences(
            part[part["reading"] == reading],
            part[part["reading"] == "training"],
        )
        rows += [(dataset, size, method, metric, *effect(pairs, metric).numbers) for metric in "AF"]
    return pd.DataFrame(rows, columns=["dataset", "memory_size", "method", "metric", *NUMBERS])


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
    measured = table[table["method"].isin(_TESTED_METHODS) & table["reading"].isin(TESTED)].dropna(subset=["A", "F"])
    rows = []
    for (dataset, size), part in measured.groupby(["dataset", "memory_size"], sort=False):
        n_tests = part.groupby("seed").size()
        seeds = n_tests.index[n_tests == len(_TESTED_METHODS) * len(TESTED)]
        if len(seeds) < 2:
            continue
        means = part[part["seed"].isin(seeds)].groupby(["method", "reading"])[["A", "F"]].mean()
        for method in _TESTED_METHODS:
            row = {"dataset": dataset, "memory_size": size, "method": method, "n": len(seeds)}
            for metric in ("A", "F"):
                row |= {f"{metric}_{reading}": means.loc[(method, reading), metric] for reading in TESTED}
                row[f"{metric}_published"] = paper.printed((dataset, size), method, metric)
            rows.append(row)
    numbers = [f"{metric}_{state}" for metric in "AF" for state in (*TESTED, "published")]
    return pd.DataFrame(rows, columns=["dataset", "memory_size", "method", "n", *numbers])
