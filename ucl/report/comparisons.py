"""The paired comparisons that the pages of results and the notebooks report: as data, and their estimates."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ucl import naming
from ucl.catalogue import PAPER_SCORES, UNIFORM
from ucl.config import Config
from ucl.evidence import paper
from ucl.evidence.effects import by_stream, differences, estimable, streams_of
from ucl.evidence.hypotheses import MEMORIES, PLANNED
from ucl.evidence.run_measures import Runs, Seeds
from ucl.evidence.table_formats import signed, with_interval
from ucl.records.runs import count_range


@dataclass(frozen=True)
class Comparison:
    """One experiment minus another, paired by stream and seed.

    Attributes:
        name: of the difference, for tables.
        one, other: the experiments. Their data set, memory size and seed do not matter.
        streams: the streams, each with its seeds.
        reading: of both experiments, see `ucl.evidence.run_measures.Runs.of`.
        other_arithmetic: of the other experiment's scoring passes; "" for any.
        in_paper: whether the paper has both experiments.
    """

    name: str
    one: Config
    other: Config
    streams: Seeds
    reading: str = "running"
    other_arithmetic: str = ""
    in_paper: bool = False


ER, CBR, CBR_REDRAW, BI, EN = (MEMORIES[name] for name in ("ER", "CBR", "CBR redraw", "BI bottom", "EN bottom"))
BI_PUBLISHED = MEMORIES["BI bottom, published settings"]
UNIFORM_PUBLISHED = BI_PUBLISHED.replace(score=UNIFORM)
BI_REFRESH, EN_REFRESH = MEMORIES["BI bottom, refresh=2"], MEMORIES["EN bottom, refresh=2"]
NEW_NUMBERS, KEPT_UNIFORM = MEMORIES["uniform, refresh=2"], MEMORIES["kept uniform"]
GROUPNORM = "slim_resnet18_groupnorm"
"""A network without running statistics, so that scoring passes cannot change what a test reads."""

BLOODCELL: Seeds = {("bloodcell", 40): None}
CIFAR: Seeds = dict.fromkeys([("cifar10", 500), ("cifar10-lt", 200), ("cifar100", 1000), ("cifar100-lt", 500)])
_EACH_STREAM: list[Seeds] = [{stream: None} for stream in paper.streams()]
_ON_PUBLISHED = PLANNED["published settings"]

GROUPS: dict[str, Sequence[Comparison]] = {
    # The comparisons behind the finding, planned by the protocol or exploratory.
    "finding": [
        *(
            comparison
            for stream, seeds in _ON_PUBLISHED.items()
            for comparison in (
                Comparison("BI, published settings, minus ER", BI_PUBLISHED, ER, {stream: seeds}, in_paper=True),
                Comparison("the same networks, `training`", BI_PUBLISHED, ER, {stream: seeds}, "training"),
            )
        ),
        Comparison("BI minus ER, everything rescored", BI, ER, BLOODCELL, in_paper=True),
        *(
            comparison
            for stream in (BLOODCELL, {("cifar10-lt", 200): _ON_PUBLISHED["cifar10-lt", 200]})
            for comparison in (
                Comparison("uniform, published settings, minus ER", UNIFORM_PUBLISHED, ER, stream),
                Comparison("BI minus uniform, both published settings", BI_PUBLISHED, UNIFORM_PUBLISHED, stream),
                Comparison("BI minus uniform, `training`", BI_PUBLISHED, UNIFORM_PUBLISHED, stream, "training"),
            )
        ),
        Comparison(
            "BI bottom minus BI top, published settings",
            BI_PUBLISHED,
            BI_PUBLISHED.replace(selection="top"),
            {("bloodcell", 40): _ON_PUBLISHED["bloodcell", 40]},
        ),
    ],
    # BI with published settings minus memories without a score, both networks under one reading.
    "under_one_reading": [
        Comparison(f"BI minus {naming.name_of(other)}, `{reading}`", BI_PUBLISHED, other, _ON_PUBLISHED, reading)
        for reading in ("running", "training", "displaced", "memory", "memory+stream", "views", "balanced")
        for other in (ER, CBR_REDRAW)
    ],
    # The score that is best on CIFAR, on BloodCell.
    "on_bloodcell": [
        Comparison(f"EN minus {other.label}, `refresh=2`", EN_REFRESH, other, streams, in_paper=True)
        for streams in (BLOODCELL, {("bloodcell", 160): None})
        for other in (ER, CBR)
    ],
    # Scores with `refresh=2` over four CIFAR streams.
    "over_cifar": [
        Comparison(f"{one.label} minus {other.label}", one, other, CIFAR, in_paper=True)
        for one in (EN_REFRESH, BI_REFRESH)
        for other in (ER, CBR, *([BI_REFRESH] if one is EN_REFRESH else []))
    ],
    # The least uncertain minus the most uncertain images, `refresh=2`, over all streams that have both.
    "bottom_minus_top": [
        Comparison(
            f"{score} bottom minus {score} top",
            Config(score=score, refresh=2),
            Config(score=score, refresh=2, selection="top"),
            dict.fromkeys(paper.streams()),
        )
        for score in PAPER_SCORES
    ],
    # Scores, new random numbers and CBR compared with random numbers that are kept, `refresh=2`.
    "random_numbers": [
        Comparison(f"{name} minus {other_name}", one, other, stream)
        for stream in _EACH_STREAM
        for name, one, other_name, other in (
            ("EN bottom", EN_REFRESH, "kept uniform", KEPT_UNIFORM),
            ("BI bottom", BI_REFRESH, "kept uniform", KEPT_UNIFORM),
            ("kept uniform", KEPT_UNIFORM, "uniform", NEW_NUMBERS),
            ("kept uniform", KEPT_UNIFORM, "CBR", CBR),
        )
    ],
    # Bottom-k, top-k and CBR redraw with published settings, under one reading.
    "selections": [
        Comparison(f"{name} minus {other_name}, both under `{reading}`", one, other, BLOODCELL, reading)
        for reading in ("training", "displaced", "running")
        for (name, one), (other_name, other) in itertools.combinations(
            {
                "BI bottom": BI_PUBLISHED,
                "BI top": BI_PUBLISHED.replace(selection="top"),
                "CBR redraw": BI_PUBLISHED.replace(population="class-balanced"),
            }.items(),
            2,
        )
    ],
    # Runs with scores that repeat better minus the same runs without.
    "remedies": [
        Comparison(f"{plain.label} with `{field}={value}`", plain.replace(**{field: value}), plain, stream)
        for stream in _EACH_STREAM
        for plain in (BI, BI_REFRESH, EN, EN_REFRESH)
        for field, value in (("smoothing", 0.2), ("view_draws", "fixed"), ("n_draws", 2), ("n_draws", 4))
    ],
    # ER with more training steps per batch. On cifar10 they take longer than BI with `refresh=2`.
    "more_updates": [
        Comparison(name, one, other, {stream: None})
        for stream, bi, n in ((("bloodcell", 40), BI, 4), (("cifar10", 500), BI_REFRESH, 3))
        for name, one, other in (
            (f"ER, {n} updates, minus ER", ER.replace(updates=n), ER),
            (f"BI{', `refresh=2`,' if bi is BI_REFRESH else ''} minus ER, {n} updates", bi, ER.replace(updates=n)),
        )
    ],
    # Fewer rescored images, and float32, minus everything rescored in the default arithmetic (bfloat16).
    "cheaper": [
        *(
            Comparison(f"{plain.label}, `refresh={n}`", plain.replace(refresh=n), plain, stream)
            for stream in _EACH_STREAM
            for plain in (BI, EN)
            for n in (2, 10)
        ),
        *(
            Comparison(
                f"{name}, float32 scores",
                plain.replace(precision="float32"),
                plain,
                stream,
                other_arithmetic="bfloat16",
            )
            for stream in _EACH_STREAM
            for name, plain in (("BI bottom", BI), ("EN bottom", EN), ("BI bottom, published settings", BI_PUBLISHED))
        ),
    ],
}
"""All comparisons, by the names of their tables."""


def estimates(records: pd.DataFrame, comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """The mean of each comparison that has pairs, over its streams with equal weights.

    Returns:
        A row per comparison and metric: columns difference (its name), streams (such as "bloodcell 40" or "3 streams"),
        seeds (how many on a stream, such as "3 to 10"), metric, streams_excluding_0 (on how many streams the interval
        does), and in percentage points columns of `ucl.evidence.effects.summary`.
    """
    rows: list[dict[str, Any]] = []
    runs = Runs(records)
    for comparison in comparisons:
        one = runs.of(comparison.one, comparison.streams, comparison.reading)
        other = runs.of(comparison.other, comparison.streams, comparison.reading, comparison.other_arithmetic)
        pairs = estimable(differences(one, other).dropna())
        if pairs.empty:
            continue
        streams = streams_of(pairs)
        named = {
            "difference": comparison.name,
            "streams": " ".join(map(str, streams[0])) if len(streams) == 1 else f"{len(streams)} streams",
            "seeds": count_range(pairs.groupby(["dataset", "memory_size"]).size()),
        }
        for metric in "AF":
            labels = comparison.one.label, comparison.other.label
            printed = paper.printed_differences(comparison.streams, *labels, metric) if comparison.in_paper else {}
            *per_stream, overall = by_stream(pairs, metric, printed)
            n_excluding = sum(row["excludes_0"] for row in per_stream)
            rows.append({**named, "metric": metric, **overall, "streams_excluding_0": n_excluding})
    columns = ["difference", "streams", "seeds", "n", "exploratory", "metric", "mean", "low", "high", "detectable"]
    return pd.DataFrame(rows, columns=[*columns, "streams_excluding_0", "published", "verdict"])


def exploratory_note(n: int, n_exploratory: int) -> str:
    """What follows a number of seeds in a table: how many of the n runs or pairs are exploratory."""
    if n_exploratory == n:
        return ", exploratory"
    return f", {n_exploratory} of {n} exploratory" if n_exploratory else ""


def for_readers(table: pd.DataFrame) -> pd.DataFrame:
    """A table of `estimates` as text: one row per difference and stream, with the paper's differences."""
    with_paper, over_streams = table["published"].notna().any(), table["streams"].str.endswith(" streams").any()
    rows = []
    for (name, streams), group in table.groupby(["difference", "streams"], sort=False):
        seeds, n, exploratory = group[["seeds", "n", "exploratory"]].iloc[0]
        row = {"difference": name, "streams": streams, "seeds": seeds + exploratory_note(n, exploratory)}
        for estimate in group.to_dict("records"):
            metric = estimate["metric"]
            row[f"{metric} [95 %]"] = with_interval(estimate["mean"], estimate["low"], estimate["high"])
            if over_streams:
                n_excluding = estimate["streams_excluding_0"] if streams.endswith(" streams") else ""
                row[f"{metric} excludes 0 on"] = n_excluding
            if with_paper:
                row[f"{metric}, paper"] = signed(estimate["published"])
                row[f"{metric}, verdict"] = estimate["verdict"]
        rows.append(row)
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else ["difference", "streams", "seeds"])
