"""The measures of runs as tables: of an experiment, compared with ER, and under each reading."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ucl import naming
from ucl.catalogue import PAPER_SCORES
from ucl.config import Config
from ucl.evidence import paper
from ucl.evidence.effects import PAIR, Stream, differences, effects_by
from ucl.records import MEASURES
from ucl.records.runs import latest, without_failures

Seeds = Mapping[Stream, "range | None"]
"""The seeds that count on each stream (data set and memory size); None: all that have records."""
SETTINGS: dict[str, dict[str, Any]] = {
    "everything rescored": {},
    "refresh=2": {"refresh": 2},
    # With the complete test set, as the runs that they are compared with.
    "published settings": {**naming.PUBLISHED_CODE, "long_tailed_test": False},
}


def of_one_version(records: pd.DataFrame) -> pd.DataFrame:
    """For each data set, by its name, the records on the same version of its images as the newest record.

    Images of another size (`Config.image_size`) are another version, which counts only if there is no other.
    """
    names = pd.Series([record.config.dataset_name for record in records["record"]], records.index, dtype=object)
    resized = records["image_size"].notna()
    usual = records[~resized | resized.groupby(names).transform("all")]
    newest = usual.sort_values("date", kind="stable").groupby(names)["fingerprint"].last()
    return records[records["fingerprint"] == names.map(newest)]


class Runs:
    """The runs that count, by experiment: the `latest` record of each, on the images of `of_one_version`."""

    def __init__(self, records: pd.DataFrame) -> None:
        runs = latest(of_one_version(records))
        experiments = [record.config.seedless.experiment for record in runs["record"]]
        self._none = runs[:0]
        self._by_experiment = dict(list(runs.groupby(pd.Series(experiments, runs.index, dtype=object))))

    def rows(self, experiment: Config) -> pd.DataFrame:
        """The rows of `records` of an experiment, at any seed and sorted by it, failed networks among them."""
        return self._by_experiment.get(experiment.seedless.experiment, self._none)

    def of(
        self, experiment: Config, streams: Seeds | None = None, reading: str = "running", arithmetic: str = ""
    ) -> pd.DataFrame:
        """The measures of an experiment's runs, without failed networks.

        Args:
            experiment: its seed does not matter, nor with `streams` its data set and memory size.
            streams: the streams, each with its seeds; None for the stream of the experiment with all seeds.
            reading: see `Record.measures`.
            arithmetic: of the scoring passes; "" for any.

        Returns:
            A row per run: columns dataset, memory_size, label, seed, `ucl.records.MEASURES` in per cent (NaN for
            records without the reading), processor and record.
        """
        if streams is None:
            streams = {(experiment.dataset, experiment.memory_size): None}
        rows = []
        for (dataset, size), seeds in streams.items():
            config = experiment.replace(dataset=dataset, memory_size=size)
            for record in without_failures(self.rows(config))["record"]:
                seed = record.config.seed
                if (seeds is None or seed in seeds) and arithmetic in ("", record.arithmetic):
                    values = record.measures(reading)
                    percentages = (100 * values[name] for name in MEASURES)
                    rows.append((dataset, size, config.label, seed, *percentages, record.processor, record))
        table = pd.DataFrame(rows, columns=[*PAIR[:2], "label", "seed", *MEASURES, "processor", "record"])
        return table.astype({"memory_size": int, "seed": int, **dict.fromkeys(MEASURES, float)})  # also without rows


def reductions(records: pd.DataFrame) -> pd.DataFrame:
    """How much less a run with bottom-k or top-k forgets than ER at its seed, in per cent of ER's forgetting.

    The runs are those on the paper's streams with each of `SETTINGS`; ER has the default settings. Left out are seeds
    at which ER's F is not above 0: nothing was forgotten that could be reduced.

    Returns:
        A row per run: columns dataset, memory_size, label, setting, seed, F and F_er in per cent, reduction, and
        published: the paper's, see `ucl.paper.printed_reduction`.
    """
    runs, parts = Runs(records), []
    for stream in paper.streams():
        f_er = runs.of(Config(population="reservoir"), {stream: None}).set_index("seed")["F"]
        for (setting, fields), score, selection in itertools.product(SETTINGS.items(), PAPER_SCORES, ("bottom", "top")):
            scored = runs.of(Config(score=score, selection=selection, **fields), {stream: None})
            published = paper.printed_reduction(stream, f"{score} {selection}")
            partners = scored["seed"].map(f_er[f_er > 0])
            parts.append(scored.assign(setting=setting, F_er=partners, published=published))
    pairs = pd.concat(parts).dropna(subset=["F_er"])
    pairs["reduction"] = 100 * (1 - pairs["F"] / pairs["F_er"])
    return pairs[["dataset", "memory_size", "label", "setting", "seed", "F", "F_er", "reduction", "published"]]


def by_reading(records: pd.DataFrame) -> pd.DataFrame:
    """The measures of each run under each reading that its record holds, and with its running statistics ("running").

    The records of one data set and memory size are on the same stream.

    Returns:
        Columns dataset, memory_size, method (see `ucl.naming.name_of`), seed, reading, the measures of
        `Record.measures` in per cent (NaN for those that a reading does not have), and shift (see
        `ucl.records.Reading`; at the end of the stream, NaN for "running" and for readings that set no statistics).
    """
    rows = []
    for record in without_failures(latest(of_one_version(records)))["record"]:
        config = record.config
        for reading in ("running", *record.readings):
            cell = (config.dataset, config.memory_size, naming.name_of(config), config.seed, reading)
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
