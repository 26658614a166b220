"""The paper's claims in Markdown: how many of the paper's differences are reproduced, excluded or undecided."""

from __future__ import annotations

import pandas as pd

from ucl.evidence.claims import WORDS
from ucl.report.coverage import NAMES
from ucl.report.markdown import table

_RULE = """\
A claim is split into differences of two methods on one stream (data set and memory size). A difference of the paper is
*reproduced* if the whole measured interval lies beyond half of it, *excluded* if the whole interval falls short of half
of it, *undecided* otherwise, and *not shown* with fewer than two pairs. *Exclude 0*: intervals that exclude 0 on the
side of the paper's difference. [claims_differences.csv](claims_differences.csv) has each difference,
[claims_memories.csv](claims_memories.csv) the distances of claim 5, `notebooks/claims.ipynb` the steps. Runs with the
settings of the reference implementation do not count here. Claim 6 is judged on the times in the records, some taken
while other programs ran; those in the first table under *Costs* were taken in turns.

"""


def section(counts: pd.DataFrame) -> str:
    """Markdown: the verdicts on the differences of each claim.

    Args:
        counts: figures/claims.csv: a column settings, and those of `ucl.evidence.claims.counts`.
    """
    if counts.empty:
        return "No verdict yet (`notebooks/claims.ipynb`).\n"
    head = ["claim", "runs", "differences", *WORDS, "exclude 0"]
    rows = [
        (
            f"{row['claim']}. {row['statement']}",
            NAMES[row["settings"]],
            *(row[name] for name in ("differences", *WORDS, "excludes_0")),
        )
        for row in counts.sort_values("claim", kind="stable").to_dict("records")
    ]
    return _RULE + table(head, rows)
