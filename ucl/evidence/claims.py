"""Four of the paper's claims as differences, each with its interval and the paper's difference.

All differences are judged by one rule, `ucl.evidence.effects.against_paper`. Claim 5 is about distributions when images
are stored, which records do not have; for claim 6, about times, see `ucl.report.costs.whole_runs`.

The runs that count are those of Table 1's methods on the data sets and memory sizes of Tables 1 to 3, at any seed and
with no other settings than those asked for, see `ucl.evidence.run_measures.Runs`.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from ucl.catalogue import PAPER_SCORES
from ucl.evidence import paper
from ucl.evidence.effects import ALL_STREAMS, by_stream, differences
from ucl.evidence.run_measures import Runs

STATEMENTS = {
    1: "Bottom-k beats top-k in A and in F, for every score and memory size.",
    2: "Among the test-time-augmentation scores with bottom-k, BI has the lowest F in most cases.",
    3: "BI with bottom-k has a lower F than ER, CBR and A-GEM on every data set, at a competitive A.",
    4: "MC has low F only because its A is low.",
}
VERDICTS = ("reproduced", "excluded", "undecided", "not shown")
"""The verdicts of `against_paper`."""
_BI = "BI bottom"
_COMPARED: list[tuple[int, str, str, tuple[str, ...]]] = [  # claim, method, the method to subtract, measures
    *((1, f"{score} bottom", f"{score} top", ("A", "F")) for score in PAPER_SCORES),
    *((2, _BI, f"{score} bottom", ("F",)) for score in PAPER_SCORES[:5]),  # the scores of views, without BI
    *((3, _BI, name, ("F", "A")) for name in ("ER", "CBR", "A-GEM")),
    # F is the best accuracy on the earlier tasks minus that retained at the end: a low F due to a low A retains less.
    (4, "MC bottom", _BI, ("F", "A", "retained")),
]
_COLUMNS = ["claim", "label", "comparator", "metric", "dataset", "memory_size", "n", "exploratory", "mean", "low"]
_COLUMNS += ["high", "detectable", "published", "verdict", "excludes_0"]


def verdicts(records: pd.DataFrame, **fields: Any) -> pd.DataFrame:
    """The differences that the claims are about, each judged against the paper's difference.

    Returns:
        For each difference the rows of `ucl.evidence.effects.by_stream`. Columns claim, label and comparator (the
        difference is label minus comparator), metric ("A", "F" or "retained"), dataset, memory_size, and of
        `ucl.evidence.effects.summary`, in percentage points, n, exploratory, mean, low, high, detectable, published,
        verdict and excludes_0.
    """
    rows: list[dict[str, Any]] = []
    counting, streams = Runs(records), dict.fromkeys(paper.streams())
    methods = {config.label: config for config in paper.grid("table1", [0], **fields)}
    runs = {label: counting.of(config, streams) for label, config in methods.items()}
    for claim, label, comparator, metrics in _COMPARED:
        for metric in metrics:
            pairs = differences(runs[label], runs[comparator], [metric])
            printed = paper.printed_differences(streams, label, comparator, metric)
            named = {"claim": claim, "label": label, "comparator": comparator, "metric": metric}
            rows += [named | row for row in by_stream(pairs, metric, printed)]
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
