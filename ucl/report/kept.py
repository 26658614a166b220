"""Markdown: what memories keep, and its effect, from the tables of `memory_autopsy` and `memory_swap`."""

from __future__ import annotations

import pandas as pd

from ucl.catalogue import method_order
from ucl.evidence.leaderboard import policy_name
from ucl.records.runs import count_range
from ucl.report.coverage import NAMES
from ucl.report.markdown import number, table, with_interval

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


def of_remedies(differences: pd.DataFrame) -> str:
    """Markdown: which images are kept if a score repeats better.

    Args:
        differences: figures/memory_autopsy_remedies.csv, see `ucl.studies.memory_autopsy.with_remedies`.
    """
    if differences.empty:
        return "No such run has a record yet.\n"
    traits = ["recent", "easy", "typical", "agrees"]
    keys = ["dataset", "memory_size", "method", "settings", "remedy"]
    rows = []
    for (*stream, method, settings, remedy), own in _in_order(differences).groupby(keys, observed=True, dropna=False):
        without = number(100 * own.set_index("measure").loc["recent", "without"])
        setting = f"`{settings}`" if isinstance(settings, str) and settings else NAMES["everything rescored"]
        cell = (*stream, policy_name(method), setting, f"`{remedy}`", own["n"].iloc[0])
        rows.append((*cell, without, *_cells(own, traits, 100)))
    head = ["data set", "memory", "method", "settings", "with", "n", "recent without [%]"]
    return (
        "A stored image is scored again and again, each time on new views, and one bad draw may be enough to lose its "
        "place. Runs with views that are fixed for each image, or with a running mean of the scores, minus the same "
        "runs without: traits as above, paired by seed, in points of 100 [95 %]; exploratory. "
        "[As a table](memory_autopsy_remedies.csv).\n\n"
        f"{table([*head, *traits], rows)}{_left_by_fixed_views(differences)}"
    )


def _left_by_fixed_views(differences: pd.DataFrame) -> str:
    """A sentence: how many images are recent where views are fixed, and draws of views cannot be the reason."""
    own = differences[(differences["remedy"] == "view_draws=fixed") & (differences["measure"] == "recent")]
    if own.empty:
        return ""
    left = 100 * (own["without"] + own["mean"])
    return (
        f"\nWith fixed views, {left.min():.0f} to {left.max():.0f} % of the stored images are still recent; a random "
        "memory has 10 %.\n"
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
    groups = _in_order(differences).groupby(["dataset", "memory_size", "method"], observed=True)
    return [
        (*stream, policy_name(method), count_range(own["n"]), *_cells(own, measures, factor))
        for (*stream, method), own in groups
    ]


def _in_order(differences: pd.DataFrame) -> pd.DataFrame:
    """The same with methods that groups and sorting put in the order of tables."""
    order = method_order(differences["method"])
    return differences.assign(method=pd.Categorical(differences["method"], order))


def _cells(of_one: pd.DataFrame, measures: list[str], factor: float) -> list[str]:
    """Each measure of one method with its interval."""
    found = factor * of_one.set_index("measure").loc[measures, ["mean", "low", "high"]]
    return [with_interval(row.mean, row.low, row.high) for row in found.itertuples()]
