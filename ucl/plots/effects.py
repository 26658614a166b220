"""Figures of paired differences."""

from __future__ import annotations

import textwrap

import pandas as pd
from matplotlib.figure import Figure

from ucl.catalogue import method_order
from ucl.evidence.hypotheses import MARGINS
from ucl.evidence.leaderboard import AT_EQUAL_SECONDS, DATASET, MEMORY_SIZE, leaderboard_name
from ucl.plots.rows import means_with_intervals


def forest(effects: pd.DataFrame) -> Figure:
    """Differences in A and in F: a row per stream, name and setting, see `ucl.plots.rows.means_with_intervals`.

    Args:
        effects: see `ucl.report.results.effects`; of one comparator.
    """
    comparator = " and ".join(effects["comparator"].unique())
    # A lower F is not always better: a network that learns less has less to forget.
    sides = {"A": "better: right", "F": "left: more retained,\nor less learnt"}
    texts = {m: textwrap.fill(f"difference in {m} from {comparator} [points]", 30) + f"\n({sides[m]})" for m in "AF"}
    return means_with_intervals(effects.assign(panel=effects["metric"]), texts)


def decisive(judged: pd.DataFrame) -> Figure:
    """F of BI and EN minus that of ER and of kept uniform, per stream and over all: mean and 95 % interval.

    Dotted: the margin; an interval that lies right of it fails.

    Args:
        judged: see `ucl.evidence.hypotheses.judged`; the comparisons that expect "less" are shown.
    """
    shown = judged[judged["expected"] == "less"].sort_values(["dataset", "memory"], kind="stable")
    shown = shown.sort_values("memory_size", key=pd.isna, kind="stable")  # over all streams in the last rows
    table = shown.assign(panel=shown["other_memory"], label=shown["memory"], setting="everything rescored")
    panels = {name: f"difference in F\nfrom {name} [points]" for name in ("ER", "kept uniform")}
    figure = means_with_intervals(table, panels)
    for ax in figure.axes:
        ax.axvline(-MARGINS["F"], color="black", lw=0.8, ls=":")
    return figure


def leaderboard(gaps: pd.DataFrame) -> Figure:
    """Differences in A and in F from CBR: the policies sorted by A at equal updates, the highest first.

    At equal seconds are shown those that are then compared with more updates of CBR.

    Args:
        gaps: see `ucl.evidence.leaderboard.gaps`.
    """
    at_seconds = (gaps["comparator"] == AT_EQUAL_SECONDS) & (gaps["updates"] > 1)  # with 1 it is the same comparison
    shown = gaps[(gaps["comparator"] == "CBR") | at_seconds]
    by_a = shown[(shown["metric"] == "A") & (shown["comparator"] == "CBR")].sort_values("mean", ascending=False)
    shown = shown.sort_values("policy", key=lambda names: names.map([*by_a["policy"]].index), kind="stable")
    settings = shown["comparator"].map({"CBR": "at equal updates", AT_EQUAL_SECONDS: "at equal seconds"})
    stream = {"dataset": DATASET, "memory_size": MEMORY_SIZE}
    return forest(shown.assign(**stream, name=shown["policy"], setting=settings, comparator="CBR"))


def swaps(differences: pd.DataFrame, comparator: str) -> Figure:
    """What memories change in one frozen state: a row per policy, a panel per measure.

    Args:
        differences: see `ucl.studies.memory_swap.against`.
        comparator: the method that is subtracted.
    """
    measures = {"retained": "retained\n(earlier tasks)", "last": "last\n(task learnt)", "A": "A\n(all tasks so far)"}
    panels = {name: f"difference in {text}\nfrom {comparator} [points]" for name, text in measures.items()}
    methods = method_order(differences["method"])
    shown = differences.sort_values("method", key=lambda names: names.map(methods.index), kind="stable")
    names = shown["method"].map(leaderboard_name)
    return means_with_intervals(
        shown.assign(panel=shown["measure"], label=shown["method"], name=names, setting=""), panels
    )
