"""All results: each measured cell of the paper's data sets, with published numbers and the detectable difference."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import Any

import pandas as pd

from ucl.catalogue import PAPER_SCORES, method_and_selection
from ucl.config import Config
from ucl.evidence import paper
from ucl.evidence.effects import differences, effect
from ucl.evidence.run_measures import COMPARATORS, SETTINGS, measures, n_exploratory
from ucl.records import MEASURES
from ucl.report.coverage import NAMES
from ucl.report.markdown import number, plus_minus, table

_METHODS: list[dict[str, Any]] = [
    *COMPARATORS.values(),
    {"method": "agem"},
    {"method": "finetune"},
    *({"score": score, "selection": selection} for score in PAPER_SCORES for selection in ("bottom", "step", "top")),
]
_HEAD = ("data set, memory", "method", "settings", "n", "exploratory")


def all_results(records: pd.DataFrame) -> pd.DataFrame:
    """Means over the seeds, one row per measured cell and setting.

    Args:
        records: see `ucl.load_records`; of each data set on one version of its images.

    Returns:
        Columns dataset, memory_size (<NA> for Finetune), method (the label), setting (a key of `SETTINGS`), n,
        exploratory (how many of the n); for each of `ucl.records.MEASURES` its mean and, as <measure>_std, its sample
        standard deviation, all in per cent; detectable_A and detectable_F, the detectable paired difference from ER
        with the same settings, in points; last_share_n and pairs_ER, the runs and pairs behind last_share and the
        detectable differences; published_A and published_F with their _std. A number that does not exist is NaN.
    """
    settings, experiments, baselines = _cells()
    rows = []
    for setting, config, own, er in zip(
        settings, experiments, measures(records, experiments), measures(records, baselines), strict=True
    ):
        if own.empty:
            continue
        stream = config.dataset, config.memory_size
        pairs = differences(own, er if config.label not in ("ER", "Finetune") else er[:0])
        rows.append(
            {
                "dataset": config.dataset,
                "memory_size": pd.NA if config.method == "finetune" else config.memory_size,
                "method": config.label,
                "setting": setting,
                "n": len(own),
                "exploratory": n_exploratory(own),
                **own[[*MEASURES]].mean(),
                **own[[*MEASURES]].std(ddof=1).add_suffix("_std"),
                **{f"detectable_{metric}": effect(pairs, metric).detectable for metric in "AF"},
                "last_share_n": int(own["last_share"].count()),
                "pairs_ER": len(pairs),
                **{f"published_{metric}": paper.printed(stream, config.label, metric) for metric in "AF"},
                **{f"published_{metric}_std": paper.printed(stream, config.label, metric, "std") for metric in "AF"},
            }
        )
    return pd.DataFrame(rows)


@functools.cache
def _cells() -> tuple[list[str], list[Config], list[Config]]:
    """Setting and experiment of each cell of the paper, and ER with the same settings."""
    cells: dict[str, tuple[str, Config]] = {}
    for (dataset, size), (setting, fields), method in itertools.product(paper.streams(), SETTINGS.items(), _METHODS):
        config = Config(dataset=dataset, memory_size=size, **method).replace(**fields)
        cells.setdefault(config.key, (setting, config))
    experiments = [config for _, config in cells.values()]
    baselines = [config.replace(method="er", population="reservoir") for config in experiments]
    return [setting for setting, _ in cells.values()], experiments, baselines


def table_of_results(results: pd.DataFrame) -> str:
    """Markdown: A and F, measured and in the paper, and the detectable difference from ER."""
    rows = [
        (
            *_row_head(row),
            *(_with_spread(row, name) for name in ("A", "F", "published_A", "published_F")),
            *(number(row[f"detectable_{metric}"]) + _n_if_fewer(row, "pairs_ER") for metric in "AF"),
        )
        for row in results.to_dict("records")
    ]
    return table([*_HEAD, "A", "F", "A in the paper", "F in the paper", "detectable in A", "in F"], rows)


def table_of_measures(results: pd.DataFrame) -> str:
    """Markdown: the further measures of the same runs."""
    rows = [
        (
            *_row_head(row),
            *(_with_spread(row, name) for name in ("best", "retained", "last", "learning", "average")),
            _with_spread(row, "last_share") + _n_if_fewer(row, "last_share_n"),
        )
        for row in results.to_dict("records")
    ]
    measured = ["best", "retained", "last task", "learning accuracy", "average", "predictions for the last task"]
    return table([*_HEAD, *measured], rows)


def _with_spread(row: Mapping[str, Any], name: str) -> str:
    """A mean and its standard deviation."""
    return plus_minus(row[name], row[f"{name}_std"])


def _n_if_fewer(row: Mapping[str, Any], name: str) -> str:
    """Such as " (n = 2)" for a number that fewer runs have than the row; "" if all or none have it."""
    return f" (n = {row[name]})" if 0 < row[name] < row["n"] else ""


def _row_head(row: Mapping[str, Any]) -> tuple:
    """The cells that name a row: data set and memory size, method, setting, n and how many of them are exploratory."""
    memory = "none" if pd.isna(row["memory_size"]) else row["memory_size"]
    scored = method_and_selection(row["method"])[1]
    setting = NAMES[row["setting"]] if scored or row["setting"] != "everything rescored" else "default"
    return f"{row['dataset']}, {memory}", row["method"], setting, row["n"], row["exploratory"]
