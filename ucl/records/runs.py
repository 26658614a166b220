"""Which rows of a table of records enter a table of results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pandas as pd

from ucl.config import Config
from ucl.records.record import failures


def matching(records: pd.DataFrame, experiments: Iterable[Config]) -> pd.DataFrame:
    """The records of these very experiments, whatever their seed.

    Args:
        records: see `ucl.load_records`.
        experiments: their seeds do not matter; all their other fields do, as far as they can show in a result.

    Returns:
        Those rows of `records`, with a column `experiment`, the place in `experiments`. A run that was measured more
        than once, on the same images and with the same source of its own score, is there once, as measured last.
    """
    seedless = [config.replace(seed=0, readings=False) for config in experiments]
    places = {config.key: place for place, config in enumerate(seedless)}
    spelled = defaultdict(set)  # a path may be spelled in other ways; of two folders of one name each keeps its own
    for config in seedless:
        spelled[config.experiment].add(places[config.key])
    if records.empty:
        return records.assign(experiment=pd.Series(dtype=int))
    found = []
    for config in (record.config.replace(seed=0, readings=False) for record in records["record"]):
        (other,) = spelled[config.experiment] if len(spelled[config.experiment]) == 1 else [-1]
        found.append(places.get(config.key, other))
    runs = records.assign(experiment=found)
    return latest(runs[runs["experiment"] >= 0])


def latest(records: pd.DataFrame) -> pd.DataFrame:
    """Each run once per version of images and score, as measured last.

    By seed, so that sums do not depend on the order of measuring.
    """
    results = records.assign(result=[record.config.result_key for record in records["record"]])
    by_date = results.sort_values("date", kind="stable")
    experiments = [record.config.replace(readings=False).experiment for record in by_date["record"]]
    versions = [record.version for record in by_date["record"]]
    again = pd.Series(zip(experiments, versions, strict=True), dtype=object).duplicated(keep="last")
    return by_date[~again.to_numpy(dtype=bool)].sort_values(["seed", "result"]).drop(columns="result")


def apart_from_failures(runs: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The runs whose results enter means, and in words those that do not: networks that diverged or collapsed.

    Args:
        runs: with a column `record`, see `ucl.load_records`.

    Returns:
        The rows whose `Record.failure` is "", and the number of the others, such as "1 diverged"; "" without any.
    """
    if runs.empty:
        return runs, ""
    return runs[[not record.failure for record in runs["record"]]], failures(runs["record"])
