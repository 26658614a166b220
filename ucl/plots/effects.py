"""Figures of paired differences."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ucl.catalogue import method_order
from ucl.evidence.leaderboard import AT_EQUAL_SECONDS, with_updates
from ucl.plots import rows
from ucl.plots.style import color, legend, styled

_MARKERS = {"everything rescored": ("o", True), "refresh=2": ("o", False), "published settings": ("s", True)}


@styled
def forest(effects: pd.DataFrame) -> Figure:
    """Differences in A and in F, one row per stream, score and setting: mean, 95 % interval and the paper's difference.

    Filled circles: everything rescored; open circles: `refresh=2`; squares: the published settings; hollow diamonds:
    the paper. An arrow marks an interval that reaches beyond the panel.

    Args:
        effects: see `ucl.report.results.effects`; of one comparator. If it has a column `name`, that
            names the rows.
    """
    n_streams, named = len(effects[["dataset", "memory_size"]].drop_duplicates()), "name" in effects
    # Long names make the figure wider, and leave the panels as wide as they are.
    longest = max(effects["name"].map(len), default=0) if named else 0
    names = [rows.stream_name(*stream) for stream in effects[["dataset", "memory_size"]].itertuples(index=False)]
    widest = max((len(line) for name in names for line in name.splitlines()), default=0)
    width = 10 + 0.065 * max(0, longest - 20) + 0.085 * max(0, widest - 12)
    reach = rows.reach_of(effects) if named else rows.REACH
    if not named:
        scores = effects["label"].str.split(" ").str[0]
        effects = effects.assign(name=scores + " " + effects["setting"])
    tail = f" from {' and '.join(effects['comparator'].unique())}"
    figure = rows.differences_by_stream(effects, _MARKERS, reach, tail, width, 1.3 + 0.008 * n_streams)
    if named:
        figure.suptitle("paired differences: mean and 95 % interval", fontsize="medium")
        return figure
    labels, settings = (list(dict.fromkeys(effects[column])) for column in ("label", "setting"))
    handles = [Line2D([], [], color=color(label), lw=3) for label in labels]
    handles += [*(rows.mark(*_MARKERS[setting]) for setting in settings), rows.paper_mark()]
    legend(figure, handles, [*labels, *settings, "the paper"])
    return figure


@styled
def leaderboard(gaps: pd.DataFrame) -> Figure:
    """Differences in A and in F from CBR, one row per policy: mean and 95 % interval.

    Filled circles: at equal updates. Hollow circles: at equal seconds, if CBR then has more updates than the policy.
    Squares: CBR itself with several training steps per batch. An arrow marks an interval that reaches beyond the panel.
    The text on the right is n and the CBR of the comparison at equal seconds.

    Args:
        gaps: see `ucl.evidence.leaderboard.gaps`; of one stream.
    """
    at_seconds = (gaps["comparator"] == AT_EQUAL_SECONDS) & (gaps["updates"] > 1)  # with 1 it is the same comparison
    shown = gaps[(gaps["comparator"] == "CBR") | at_seconds]
    order = {label: rank for rank, label in enumerate(method_order(list(shown["label"])))}
    policies = list(dict.fromkeys(shown.sort_values("label", key=lambda row: row.map(order), kind="stable")["policy"]))
    reach = rows.reach_of(shown)
    figure, axes = plt.subplots(1, 2, figsize=(10, 1.6 + 0.34 * len(policies)), sharey=True)
    for y, policy in enumerate(policies):
        effects = shown[shown["policy"] == policy]
        several_updates = effects[effects["comparator"] == AT_EQUAL_SECONDS]
        offset = 0.16 if len(several_updates) else 0.0
        for row in effects.to_dict("records"):
            filled, marker = row["comparator"] == "CBR", "s" if row["label"] == "CBR" else "o"
            ax, height = axes["AF".index(row["metric"])], y - offset if filled else y + offset
            rows.interval(ax, height, row, reach, color(row["label"]), marker, filled)
        rows.text_of_row(axes[1], y, _n_and_updates(effects[effects["comparator"] == "CBR"], several_updates))
    rows.finish_differences(axes, reach, " from CBR", range(len(policies)), policies, max(len(policies), 1) - 0.4)
    looks = [("o", True, "at equal updates")]
    looks += [("o", False, "at equal seconds")] if (shown["comparator"] == AT_EQUAL_SECONDS).any() else []
    looks += [("s", True, "CBR with more updates")] if (shown["label"] == "CBR").any() else []
    handles = [rows.mark(marker, filled) for marker, filled, _ in looks]
    figure.legend(handles, [text for *_, text in looks], loc="outside upper center", ncols=len(looks))
    return figure


def _n_and_updates(at_updates: pd.DataFrame, at_seconds: pd.DataFrame) -> str:
    """The text on the right, such as "n=5; at equal seconds: CBR, 4 updates"; n of the latter follows if it differs."""
    counts = [f"n={part['n'].iloc[0]}" for part in (at_updates, at_seconds) if len(part)]
    if not len(at_seconds):
        return counts[0]
    texts = [counts[0], f"at equal seconds: {with_updates(at_seconds['updates'].iloc[0])}"]
    return "; ".join([*texts, *(counts[1:] if counts[-1] != counts[0] else [])])
