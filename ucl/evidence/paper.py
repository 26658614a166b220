"""The paper's numbers and grids of runs: Serra, Werner & Buettner, TMLR 2025.

`PUBLISHED_CODE`, the choices of its reference implementation, is described in `ucl.naming`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from importlib import resources
from typing import TYPE_CHECKING, Any

from ucl.catalogue import PAPER_SCORES, WITHOUT_SCORE, method_and_selection
from ucl.config import Config, unique
from ucl.errors import InputError, one_of
from ucl.naming import DECIDED, PUBLISHED_CODE

if TYPE_CHECKING:
    import pandas as pd

# Table 4: seconds in total, as printed. Over the 4,750 batches of CIFAR-10 they are 9, 13 and 28 ms per batch, and the
# printed seconds per batch are 0.22, 0.31 and 0.69.
RUNTIMES = {"ER": 42.0, "CBR": 60.0, "BI bottom": 132.0}

GRIDS: dict[str, str] = {
    "table1": "CIFAR-10, memory 500 and 1000: ER, CBR, A-GEM and seven scores, each top, step and bottom",
    "table2": "CIFAR-100, memory 1000 and 2000: ER, CBR, A-GEM and seven scores, each top, step and bottom",
    "table3": "long-tailed CIFAR-10, CIFAR-100 and BloodCell: ER, CBR, A-GEM and seven scores, bottom",
    "table4": "runtime: ER, CBR and BI bottom on CIFAR-10, memory 500 (the paper does not name the memory size)",
    "bloodcell": "the BloodCell columns of Table 3, memory 40 and 160",
    "deviations": "BloodCell, memory 40: ER, CBR and BI bottom by default, with each choice of the reference "
    "implementation alone, and with all of them",
}

_SIZES: dict[str, dict[str, tuple[int, ...]]] = {
    "table1": {"cifar10": (500, 1000)},
    "table2": {"cifar100": (1000, 2000)},
    "table3": {"cifar10-lt": (200, 500), "cifar100-lt": (500, 1000), "bloodcell": (40, 160)},
    "table4": {"cifar10": (500,)},
    "bloodcell": {"bloodcell": (40, 160)},
    "deviations": {"bloodcell": (40,)},
}
_BASELINES: list[dict[str, Any]] = [WITHOUT_SCORE[name].fields for name in ("ER", "CBR", "A-GEM")]
_BOTTOM = [dict(score=score, selection="bottom") for score in PAPER_SCORES]
_ALL_SELECTIONS = [dict(score=score, selection=name) for score in PAPER_SCORES for name in ("top", "step", "bottom")]
_ROWS: dict[str, list[dict[str, Any]]] = {
    "table1": _BASELINES + _ALL_SELECTIONS,
    "table2": _BASELINES + _ALL_SELECTIONS,
    "table3": _BASELINES + _BOTTOM,
    "table4": [*_BASELINES[:2], _BOTTOM[-1]],
    "bloodcell": _BASELINES + _BOTTOM,
    "deviations": [
        {**row, **changed}
        for row in (*_BASELINES[:2], _BOTTOM[-1])
        for changed in ({}, *({name: value} for name, value in PUBLISHED_CODE.items()), PUBLISHED_CODE)
    ],
}
CELL = ["dataset", "memory_size", "method", "selection", "metric"]
"""What identifies a number of the paper's Tables 1 to 3."""


def published() -> pd.DataFrame:
    """The numbers of the paper's Tables 1 to 3, one row per cell and metric: 312 rows.

    Returns:
        Columns table, dataset, memory_size, method (ER, CBR, A-GEM or a score), selection ("" for the baselines),
        metric ("A" or "F"), mean and std over three seeds in per cent, and bold, 1 if it is printed in bold.
    """
    import pandas as pd

    with resources.files("ucl.evidence").joinpath("published.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file, keep_default_na=False)


def printed(stream: tuple[str, int], label: str, metric: str, number: str = "mean") -> float:
    """A number of the paper's Tables 1 to 3, in per cent; NaN if they do not have it.

    Args:
        stream: data set and memory size.
        label: of the method, such as "ER" or "BI bottom"; words about settings may follow.
        metric: "A" or "F"; for other measures the result is NaN.
        number: "mean" or "std".
    """
    return _numbers_by_cell()[number].get((*stream, *method_and_selection(label), metric), float("nan"))


def printed_difference(stream: tuple[str, int], label: str, other: str, metric: str) -> float:
    """The mean of one method minus that of another, see `printed`, in percentage points; NaN if one is missing."""
    return printed(stream, label, metric) - printed(stream, other, metric)


def printed_reduction(stream: tuple[str, int], label: str) -> float:
    """How much less a method forgets than ER in the paper, in per cent of ER's mean F; NaN if one is missing."""
    return 100 * (1 - printed(stream, label, "F") / printed(stream, "ER", "F"))


def printed_differences(
    streams: Iterable[tuple[str, int]], label: str, other: str, metric: str
) -> dict[tuple[str, int], float]:
    """`printed_difference` on each of some streams on which the paper prints both methods."""
    differences = {stream: printed_difference(stream, label, other, metric) for stream in streams}
    return {stream: difference for stream, difference in differences.items() if not math.isnan(difference)}


@functools.cache
def _numbers_by_cell() -> dict[str, dict[tuple, float]]:
    """The means and standard deviations of `published`, each by `CELL`."""
    return published().set_index(CELL)[["mean", "std"]].to_dict()


def grid(table: str, seeds: Iterable[int] = range(3), **fields: Any) -> list[Config]:
    """The runs behind a table of the paper, each once, one seed after another.

    Args:
        table: a name in `GRIDS`.
        seeds: the paper has three.
        fields: further fields of `Config` for all runs, such as refresh or precision.

    Raises:
        InputError: the table is unknown, or a field is unknown, out of range or decided by the table.
    """
    one_of("table", table, GRIDS, "table (a file with your own runs goes by --config, or ucl.grid)")
    for name, value in fields.items():
        if name in (*DECIDED, "seed"):
            raise InputError(name, value, f"{table} decides it; build other runs with Config")
    configs = (
        Config(dataset=dataset, memory_size=size, seed=seed, **row).replace(**fields)
        for seed in seeds
        for dataset, sizes in _SIZES[table].items()
        for size in sizes
        for row in _ROWS[table]
    )
    return unique(configs)


def streams() -> list[tuple[str, int]]:
    """The data sets of Tables 1 to 3, in alphabetical order, each with its memory sizes, in ascending order."""
    tables = (_SIZES[table] for table in ("table1", "table2", "table3"))
    return sorted((dataset, size) for table in tables for dataset, sizes in table.items() for size in sizes)
