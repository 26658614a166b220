"""The measures of runs as tables: of experiments, of both sides of a comparison, and under each reading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ucl.config import Config, unique
from ucl.evidence import paper
from ucl.evidence.effects import PAIR, Stream, differences, effects_by
from ucl.records import MEASURES
from ucl.records.runs import latest, latest_in_order, matching, without_failures

Seeds = Mapping[Stream, "range | None"]
"""The seeds that count on each stream (data set and memory size); None: all that have records."""
SETTINGS: dict[str, dict[str, Any]] = {
    "everything rescored": {},
    "refresh=2": {"refresh": 2},
    # With the complete test set, as the runs that they are compared with.
    "published settings": {**paper.PUBLISHED_CODE, "long_tailed_test": False},
}


def of_one_version(records: pd.DataFrame) -> pd.DataFrame:
    """For each data set, the records on the version of its images that most of its records were measured on.

    Images of another size (`Config.image_size`) are another version, which counts only if there is no other.
    """
    resized = records["image_size"].notna()
    usual = records[~resized | resized.groupby(records["dataset"]).transform("all")]
    most = usual.groupby("dataset")["fingerprint"].agg(lambda prints: prints.mode().iloc[0])
    return records[records["fingerprint"] == records["dataset"].map(most)]


def runs_of(records: pd.DataFrame, experiments: Sequence[Config], reading: str = "running") -> pd.DataFrame:
    """The runs of some different experiments, for all their seeds, see `of_one_version`.

    Returns:
        A row per run: columns experiment (the index in `experiments`), dataset, memory_size, label, seed,
        `ucl.records.MEASURES` in per cent (NaN for records without the reading), processor, arithmetic (of the scoring
        passes) and record.
    """
    runs = without_failures(matching(of_one_version(records), experiments))
    rows = []
    for index, record in zip(runs["experiment"], runs["record"], strict=True):
        config = experiments[index]  # That of the record may name the data set by a path.
        run = (index, config.dataset, config.memory_size, config.label, record.config.seed)
        values = record.measures(reading)
        facts = record.processor, record.arithmetic, record
        rows.append((*run, *(100 * values[name] for name in MEASURES), *facts))
    names = ["experiment", "dataset", "memory_size", "label", "seed", *MEASURES]
    return pd.DataFrame(rows, columns=[*names, "processor", "arithmetic", "record"])


def measures(records: pd.DataFrame, experiments: Iterable[Config], reading: str = "running") -> list[pd.DataFrame]:
    """The rows of `runs_of` for each of some experiments; an experiment may occur twice."""
    keys = [config.seedless.key for config in experiments]
    distinct = unique(config.seedless for config in experiments)
    table = runs_of(records, distinct, reading)
    by_index = dict(list(table.groupby("experiment")))
    by_key = {config.key: by_index.get(index, table[:0]) for index, config in enumerate(distinct)}
    return [by_key[key] for key in keys]


@dataclass(frozen=True)
class Comparison:
    """One experiment minus another, paired by stream and seed.

    Attributes:
        name: of the difference, for tables.
        one, other: the experiments. Their data set, memory size and seed do not matter.
        streams: the streams, each with its seeds.
        readings, arithmetics: of each experiment, see `Record.measures`; "" for any arithmetic of the scoring passes.
        in_paper: whether the paper has both experiments.
    """

    name: str
    one: Config
    other: Config
    streams: Seeds
    readings: tuple[str, str] = ("running", "running")
    arithmetics: tuple[str, str] = ("", "")
    in_paper: bool = False

    def printed(self, metric: str) -> dict[Stream, float]:
        """The paper's difference on each stream; {} unless it prints all of them."""
        if not self.in_paper:
            return {}
        printed = paper.printed_differences(self.one.label, self.other.label, metric)
        return {stream: printed[stream] for stream in self.streams} if printed.keys() >= self.streams.keys() else {}


def sides(records: pd.DataFrame, comparisons: Sequence[Comparison]) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    """The rows of `runs_of` for both experiments of each comparison, on its streams and seeds."""
    runs_by_experiment: dict[tuple[str, str], pd.DataFrame] = {}  # by key and reading
    for reading in {reading for comparison in comparisons for reading in comparison.readings}:
        experiments = [
            config.replace(dataset=dataset, memory_size=size)
            for comparison in comparisons
            for config, under in zip((comparison.one, comparison.other), comparison.readings, strict=True)
            for dataset, size in comparison.streams
            if under == reading
        ]
        tables = zip(experiments, measures(records, experiments, reading), strict=True)
        runs_by_experiment |= {(config.key, reading): runs for config, runs in tables}

    def side(config: Config, reading: str, arithmetic: str, streams: Seeds) -> pd.DataFrame:
        parts = []
        for (dataset, size), seeds in streams.items():
            runs = runs_by_experiment[config.replace(dataset=dataset, memory_size=size).key, reading]
            parts.append(runs if seeds is None else runs[runs["seed"].isin(list(seeds))])
        table = pd.concat(parts)
        return table[table["arithmetic"] == arithmetic] if arithmetic else table

    return [
        (
            side(comparison.one, comparison.readings[0], comparison.arithmetics[0], comparison.streams),
            side(comparison.other, comparison.readings[1], comparison.arithmetics[1], comparison.streams),
        )
        for comparison in comparisons
    ]


def reductions(records: pd.DataFrame) -> pd.DataFrame:
    """How much less a run with bottom-k or top-k forgets than ER at its seed, in per cent of ER's forgetting.

    ER has the default settings, and the same stream and images. Left out are networks that failed (`Record.failure`)
    and seeds at which ER's F is not above 0: nothing was forgotten that could be reduced.

    Returns:
        A row per run: columns dataset, memory_size, label, setting (such as the names of `SETTINGS`), seed, F and F_er
        in per cent, reduction, and published: the paper's, see `ucl.paper.printed_reduction`.
    """
    runs = without_failures(latest_in_order(records))
    names = [paper.name_of(record.config) for record in runs["record"]]
    settings = [name.partition(", ")[2] or "everything rescored" for name in names]
    runs = runs.assign(name=names, setting=settings, F=100 * runs["last_forgetting"].astype(float))
    runs["stream"] = [paper.stream_of(record.config) for record in runs["record"]]
    keys = ["stream", "fingerprint", *PAIR]
    er = runs.loc[(runs["name"] == "ER") & (runs["F"] > 0), [*keys, "F"]]
    scored = runs[runs["label"].str.endswith((" bottom", " top"))]
    pairs = scored.merge(er.rename(columns={"F": "F_er"}), on=keys, validate="many_to_one")
    pairs["reduction"] = 100 * (1 - pairs["F"] / pairs["F_er"])
    cells = zip(pairs["dataset"], pairs["memory_size"], pairs["label"], strict=True)
    pairs["published"] = [paper.printed_reduction((dataset, size), label) for dataset, size, label in cells]
    return pairs[["dataset", "memory_size", "label", "setting", "seed", "F", "F_er", "reduction", "published"]]


def by_reading(records: pd.DataFrame) -> pd.DataFrame:
    """The measures of each run under each reading that its record holds, and with its running statistics ("running").

    Args:
        records: see `ucl.load_records`; those of one data set and memory size are on the same stream. Networks that
            failed (`Record.failure`) do not count.

    Returns:
        Columns dataset, memory_size, method (see `ucl.paper.name_of`), seed, reading, the measures of
        `Record.measures` in per cent (NaN for those that a reading does not have), and shift (see
        `ucl.records.Reading`; at the end of the stream, NaN for "running" and for readings that set no statistics).
    """
    rows = []
    for record in without_failures(latest(of_one_version(records)))["record"]:
        config = record.config
        for reading in ("running", *record.readings):
            cell = (config.dataset, config.memory_size, paper.name_of(config), config.seed, reading)
            values = record.measures(reading)
            shift = record.readings[reading].shift[-1] if reading != "running" else np.nan
            rows.append((*cell, *(100 * values[name] for name in MEASURES), shift))
    columns = ["dataset", "memory_size", "method", "seed", "reading", *MEASURES, "shift"]
    return pd.DataFrame(rows, columns=columns)


def between_readings(table: pd.DataFrame, reading: str) -> pd.DataFrame:
    """One reading minus `training` of the same networks (see `by_reading`): the mean effect on A and F.

    Returns:
        A row per data set, memory size, method and metric, in percentage points, see `ucl.evidence.effects.effects_by`.
    """
    one, other = (table[table["reading"] == name] for name in (reading, "training"))
    return effects_by(differences(one, other, keys=[*PAIR, "method"]), ["dataset", "memory_size", "method"])
