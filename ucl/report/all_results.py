"""All results: each measured cell of the paper's data sets, with published numbers and the detectable difference."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pandas as pd

from ucl.config import Config
from ucl.evidence import paper
from ucl.evidence.effects import differences, effect
from ucl.evidence.order import PAPER_SCORES, method_and_selection
from ucl.evidence.run_measures import COMPARATORS, SETTINGS, measures
from ucl.records import MEASURES
from ucl.report.coverage import NAMES
from ucl.report.markdown import number, plus_minus, table

_METHODS: list[dict[str, Any]] = [
    *COMPARATORS.values(),
    {"method": "agem"},
    {"method": "finetune"},
    *({"score": score, "selection": selection} for score in PAPER_SCORES for selection in ("bottom", "step", "top")),
]
_FURTHER = ("best", "retained", "last", "learning", "average", "last_share")


def all_results(records: pd.DataFrame) -> pd.DataFrame:
    """Means over the seeds, one row per measured cell and setting.

    Args:
        records: see `ucl.load_records`; of each data set on one version of its images.

    Returns:
        Columns dataset, memory_size (<NA> for Finetune), method (the label), setting (a key of `SETTINGS`), n; for each
        of `ucl.records.MEASURES` its mean and, as <measure>_std, its sample standard deviation, all in per cent;
        detectable_A and detectable_F, the detectable paired difference from ER with the same settings, in points;
        last_share_n and pairs_ER, the runs and pairs behind last_share and the detectable differences; published_A and
        published_F with their _std. A number that does not exist is NaN.
    """
    printed = paper.by_cell()
    settings, experiments, baselines = _cells()
    rows = []
    for setting, config, own, er in zip(
        settings, experiments, measures(records, experiments), measures(records, baselines), strict=True
    ):
        if own.empty:
            continue
        dataset, size = config.dataset, config.memory_size
        of_measure = {name: own[name].mean() for name in MEASURES}
        spread = {f"{name}_std": own[name].std(ddof=1) for name in MEASURES}
        pairs = differences(own, er if config.label not in ("ER", "Finetune") else er[:0])
        detectable = {f"detectable_{metric}": effect(pairs, metric).detectable for metric in "AF"}
        name, selection = method_and_selection(config.label)
        cell = {m: (dataset, size, name, selection, m) for m in "AF"}
        published = {
            f"published_{m}{end}": printed.loc[cell[m], column] if cell[m] in printed.index else np.nan
            for m in "AF"
            for end, column in (("", "mean"), ("_std", "std"))
        }
        rows.append(
            {
                "dataset": dataset,
                "memory_size": pd.NA if config.method == "finetune" else size,
                "method": config.label,
                "setting": setting,
                "n": len(own),
                **of_measure,
                **spread,
                **detectable,
                "last_share_n": int(own["last_share"].notna().sum()),
                "pairs_ER": len(pairs),
                **published,
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
    head = ["data set, memory", "method", "settings", "n", "A", "F", "A in the paper", "F in the paper"]
    rows = []
    for _, row in results.iterrows():
        numbers = [plus_minus(row[name], row[f"{name}_std"]) for name in ("A", "F", "published_A", "published_F")]
        detectable = (number(row[f"detectable_{m}"]) + _n_if_fewer(row, "pairs_ER") for m in "AF")
        rows.append((*_row_head(row), *numbers, *detectable))
    return table([*head, "detectable in A", "in F"], rows)


def table_of_measures(results: pd.DataFrame) -> str:
    """Markdown: the further measures of the same runs."""
    head = ["data set, memory", "method", "settings", "n", "best", "retained", "last task", "learning accuracy"]
    rows = []
    for _, row in results.iterrows():
        *cells, share = (plus_minus(row[name], row[f"{name}_std"]) for name in _FURTHER)
        rows.append((*_row_head(row), *cells, share + _n_if_fewer(row, "last_share_n")))
    return table([*head, "average", "predictions for the last task"], rows)


def _n_if_fewer(row: pd.Series, name: str) -> str:
    """Such as " (n = 2)" for a number that fewer runs have than the row; "" if all or none have it."""
    return f" (n = {row[name]})" if 0 < row[name] < row["n"] else ""


def _row_head(row: pd.Series) -> tuple:
    """The cells that name a row: data set and memory size, method, setting, n."""
    memory = "none" if pd.isna(row["memory_size"]) else row["memory_size"]
    scored = method_and_selection(row["method"])[1]
    setting = NAMES[row["setting"]] if scored or row["setting"] != "everything rescored" else "default"
    return f"{row['dataset']}, {memory}", row["method"], setting, row["n"]
