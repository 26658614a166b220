"""Selection of the records that enter a table of results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pandas as pd

from ucl.config import Config
from ucl.records.record import failures


def matching(records: pd.DataFrame, experiments: Iterable[Config]) -> pd.DataFrame:
    """The records of the given experiments, with any seed.

    Args:
        records: see `ucl.load_records`.
        experiments: experiments whose seeds are ignored. All other fields that can change a result must be equal.

    Returns:
        The matching rows of `records`, with a column `experiment`: the index in `experiments`. If a run was measured
        more than once on the same images and with the same source of own objects, only the latest record is included.
    """
    seedless = [config.seedless for config in experiments]
    indices = {config.key: index for index, config in enumerate(seedless)}
    # A path may be spelled in several ways. Two folders of the same name stay apart.
    spelled = defaultdict(set)
    for config in seedless:
        spelled[config.experiment].add(indices[config.key])
    if records.empty:
        return records.assign(experiment=pd.Series(dtype=int))
    found = []
    for config in (record.config.seedless for record in records["record"]):
        (other,) = spelled[config.experiment] if len(spelled[config.experiment]) == 1 else [-1]
        found.append(indices.get(config.key, other))
    runs = records.assign(experiment=found)
    return latest(runs[runs["experiment"] >= 0])


def latest(records: pd.DataFrame) -> pd.DataFrame:
    """The latest record of each run, for each version of images and own objects.

    Rows are sorted by seed, so that sums do not depend on the order of measurement.
    """
    results = records.assign(result=[record.config.result_key for record in records["record"]])
    by_date = results.sort_values("date", kind="stable")
    experiments = [record.config.replace(readings=False).experiment for record in by_date["record"]]
    versions = [record.version for record in by_date["record"]]
    again = pd.Series(zip(experiments, versions, strict=True), dtype=object).duplicated(keep="last")
    return by_date[~again.to_numpy(dtype=bool)].sort_values(["seed", "result"]).drop(columns="result")


def apart_from_failures(runs: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The runs without those whose networks diverged or collapsed, and the number of the latter as text.

    Args:
        runs: with a column `record`, see `ucl.load_records`.

    Returns:
        The rows whose `Record.failure` is "", and the number of the others, such as "1 diverged"; "" if there are none.
    """
    if runs.empty:
        return runs, ""
    return runs[[not record.failure for record in runs["record"]]], failures(runs["record"])
