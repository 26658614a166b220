"""The six claims of the paper as differences, each with its interval and the paper's difference.

All differences are judged by one rule, `ucl.evidence.effects.against_paper`. Claim 5 is about distributions, of which
the paper prints no numbers: `memory_distances` measures them.

The runs that count are those of Table 1's methods on the data sets and memory sizes of Tables 1 to 3, at any seed and
with no other settings than those asked for, see `ucl.evidence.run_measures.Runs`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from ucl.catalogue import PAPER_SCORES
from ucl.evidence import paper
from ucl.evidence.effects import ALL_STREAMS, PAIR, by_stream, differences
from ucl.evidence.run_measures import Runs

STATEMENTS = {
    1: "Bottom-k beats top-k in A and in F, for every score and memory size.",
    2: "Among the test-time-augmentation scores with bottom-k, BI has the lowest F in most cases.",
    3: "BI with bottom-k has a lower F than ER, CBR and A-GEM on every data set, at a competitive A.",
    4: "MC has low F only because its A is low.",
    5: "Confidence over memory samples is distributed alike under random, top-k and bottom-k; BI is not.",
    6: "Cost per batch on CIFAR-10: CBR about 1.4 times ER, BI about 3.1 times ER.",
}
VERDICTS = ("reproduced", "excluded", "undecided", "not shown")
"""The verdicts of `against_paper`."""
SAMPLES = 100  # the smallest memory whose distributions are compared: in smaller ones they differ by chance
_BI = "BI bottom"
_COMPARED: list[tuple[int, str, str, tuple[str, ...]]] = [  # claim, method, the method to subtract, measures
    *((1, f"{score} bottom", f"{score} top", ("A", "F")) for score in PAPER_SCORES),
    *((2, _BI, f"{score} bottom", ("F",)) for score in PAPER_SCORES[:5]),  # the scores of views, without BI
    *((3, _BI, name, ("F", "A")) for name in ("ER", "CBR", "A-GEM")),
    # F is the best accuracy on the earlier tasks minus that retained at the end: a low F due to a low A retains less.
    (4, "MC bottom", _BI, ("F", "A", "retained")),
]
_MACHINE = ("device", "processor", "threads")
_COLUMNS = ["claim", "label", "comparator", "metric", "dataset", "memory_size", "n", "exploratory", "mean", "low"]
_COLUMNS += ["high", "detectable", "published", "verdict", "excludes_0"]


def verdicts(records: pd.DataFrame, **fields: Any) -> pd.DataFrame:
    """The differences that claims 1 to 4 and 6 are about, each judged against the paper's difference.

    Returns:
        For each difference the rows of `ucl.evidence.effects.by_stream`. Columns claim, label and comparator (the
        difference is label minus comparator), metric ("A", "F" or "retained" in percentage points, or "log_time", the
        natural logarithm of the ratio of seconds per batch on one machine), dataset, memory_size, and of
        `ucl.evidence.effects.summary` n, exploratory, mean, low, high, detectable, published, verdict and excludes_0.
    """
    rows: list[dict[str, Any]] = []

    def add(claim: int, label: str, comparator: str, metric: str, pairs: pd.DataFrame, printed: Mapping) -> None:
        named = {"claim": claim, "label": label, "comparator": comparator, "metric": metric}
        rows.extend(named | row for row in by_stream(pairs, metric, printed))

    runs = _runs(records, fields)
    for claim, label, comparator, metrics in _COMPARED:
        for metric in metrics:
            pairs = differences(runs[label], runs[comparator], [metric])
            printed = paper.printed_differences(paper.streams(), label, comparator, metric)
            add(claim, label, comparator, metric, pairs, printed)
    timed = {label: _timed(runs[label]) for label in paper.RUNTIMES}
    for label in ("CBR", _BI):
        pairs = differences(timed[label], timed["ER"], ["log_time"], [*PAIR, "machine"])
        ratio = math.log(paper.RUNTIMES[label] / paper.RUNTIMES["ER"])
        printed = {stream: ratio for stream in paper.streams() if stream[0] == "cifar10"}
        add(6, label, "ER", "log_time", pairs, printed)
    return pd.DataFrame(rows)[_COLUMNS].astype({"memory_size": "Int64"})


def counts(table: pd.DataFrame) -> pd.DataFrame:
    """How many of the paper's differences on single streams (see `verdicts`) have each verdict, one row per claim.

    Returns:
        Columns claim, statement, differences (that the paper prints), one per verdict, and excludes_0 (on the side of
        the paper's difference).
    """
    single = table[(table["dataset"] != ALL_STREAMS) & table["published"].notna()]
    same_side = single["excludes_0"] & (single["mean"] * single["published"] > 0)
    per_claim = pd.crosstab(single["claim"], single["verdict"]).reindex(columns=list(VERDICTS), fill_value=0)
    per_claim.insert(0, "differences", per_claim.sum(axis=1))
    per_claim.insert(0, "statement", per_claim.index.map(STATEMENTS))
    return per_claim.assign(excludes_0=same_side.groupby(single["claim"]).sum()).rename_axis(columns=None).reset_index()


def memory_distances(records: pd.DataFrame, **fields: Any) -> pd.DataFrame:
    """Claim 5: distances between the distributions of scores over the final memories of CBR, BI top and BI bottom.

    The distance is that of Kolmogorov-Smirnov, in [0, 1]: the largest difference between two cumulative distributions;
    over three memories the mean of the three pairs. The claim is about the scores at the time when images are stored.
    Records have only one of them, the BI by which BI top and BI bottom selected, so these records cannot support it.
    The others are the scores by the final network. Memories of fewer than `SAMPLES` images do not count.

    Returns:
        Columns score ("BI when stored" of BI top and BI bottom; "confidence" and "BI" of all three, by the final
        network), dataset, memory_size, n (seeds), mean, low and high (the wider 95 % interval): one row per stream,
        then one row over all streams with at least two seeds.
    """
    methods = ("CBR", "BI top", _BI)
    of_method = _runs(records, fields)
    runs = pd.concat([of_method[label] for label in methods])
    runs = runs[runs["memory_size"] >= SAMPLES]
    names = {"BI when stored": "score", "confidence": "confidence", "BI": "bregman_information"}
    measured = []
    for pair, members in runs.groupby(list(PAIR)):
        by_method = dict(zip(members["label"], (record.memory for record in members["record"]), strict=True))
        memories = [by_method.get(label, {}) for label in methods]
        distances = [_distance(memories[1:] if key == "score" else memories, key) for key in names.values()]
        measured.append((*pair, *distances))
    table = pd.DataFrame(measured, columns=[*PAIR, *names])
    rows = [{"score": name, **row} for name in names for row in by_stream(table.dropna(subset=[name]), name, {})]
    columns = ["score", "dataset", "memory_size", "n", "mean", "low", "high"]
    return pd.DataFrame(rows)[columns].astype({"memory_size": "Int64"})


def _runs(records: pd.DataFrame, fields: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The runs that count of each method of Table 1 with these fields, on all streams of the paper, by its label."""
    runs, streams = Runs(records), dict.fromkeys(paper.streams())
    methods = {config.label: config for config in paper.grid("table1", [0], **fields)}
    return {label: runs.of(config, streams) for label, config in methods.items()}


def _timed(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs on CIFAR-10 with the logarithm of their seconds per batch and their machine."""
    runs = runs[runs["dataset"] == "cifar10"]
    machines = [str([record.environment.get(name) for name in _MACHINE]) for record in runs["record"]]
    return runs.assign(log_time=[math.log(r.seconds_per_batch) for r in runs["record"]], machine=machines)


def _distance(memories: Sequence[Mapping[str, list]], name: str) -> float:
    """Mean Kolmogorov-Smirnov distance over the pairs of memories; NaN if a memory has no values of this name."""
    values = [[value for value in memory.get(name, []) if value is not None] for memory in memories]
    if not all(values):
        return math.nan
    return float(np.mean([stats.ks_2samp(a, b).statistic for a, b in itertools.combinations(values, 2)]))
