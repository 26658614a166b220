"""Markdown: what memories keep, and its effect, from the tables of `memory_autopsy` and `memory_swap`."""

from __future__ import annotations

import pandas as pd

from ucl.evidence.order import method_order
from ucl.records.runs import count_range
from ucl.report.markdown import table, with_interval

_TRAITS = ("easy", "typical", "agrees", "recent")
_SWAPPED = ("retained", "last", "A")


def of_kept(differences: pd.DataFrame) -> str:
    """Markdown: how easy, typical, clean and recent kept images are, compared with a random memory.

    Args:
        differences: figures/memory_autopsy_effects.csv, see `ucl.studies.memory_swap.against`.
    """
    if differences.empty:
        return "No table yet (`notebooks/memory_autopsy.ipynb`).\n"
    head = ["data set", "memory", "method", "n", *_TRAITS]
    return (
        "Images in the final memories, described by networks that have not learnt them. *Easy* is the rank of the loss "
        "within the class (1: lowest), *typical* the rank of the cosine to the class's mean features (1: closest), "
        "*agrees* the share of images whose label these networks predict, *recent* the share among the last tenth of "
        "their task (0.1 in a random memory). Differences from CBR, paired by seed, in points of 100; exploratory. The "
        "settings are those of the paper's text; scores have `refresh=2` where more of them were run with it. "
        "[The picture](memory_autopsy.png), [each run](memory_autopsy.csv).\n\n"
        f"{table(head, _rows(differences, list(_TRAITS), 100))}"
    )


def of_swap(differences: pd.DataFrame) -> str:
    """Markdown: the effect of a memory on one network, compared with a class-balanced random memory.

    Args:
        differences: figures/memory_swap_effects.csv, see `ucl.studies.memory_swap.against`.
    """
    if differences.empty:
        return "No table yet (`notebooks/memory_swap.ipynb`).\n"
    head = ["data set", "memory", "method", "n", *_SWAPPED]
    return (
        "One network, many memories: at a task's end the network is copied, each copy gets a memory that another "
        "policy fills from all images so far, and learns the next task. Weights, batches and replay draws are equal. "
        "Accuracy after that task on the earlier tasks (retained), on the task (last) and on both (A): difference from "
        "CBR, paired by seed, in points [95 %]; exploratory. "
        "[The picture](memory_swap.png), [each state](memory_swap.csv).\n\n"
        f"{table(head, _rows(differences, list(_SWAPPED), 1))}"
    )


def _rows(differences: pd.DataFrame, measures: list[str], factor: float) -> list[tuple]:
    """One row per stream and method, in the order of tables: their names, n, and each measure with its interval."""
    methods = pd.Categorical(differences["method"], method_order(differences["method"]))
    rows = []
    for name, own in differences.assign(method=methods).groupby(["dataset", "memory_size", "method"], observed=True):
        found = factor * own.set_index("measure").loc[measures, ["mean", "low", "high"]]
        cells = [with_interval(row.mean, row.low, row.high) for row in found.itertuples()]
        rows.append((*name, count_range(own["n"]), *cells))
    return rows
