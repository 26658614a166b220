"""The paper's claims and the protocol's hypotheses for readers."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ucl.evidence.claims import WORDS
from ucl.evidence.effects import ALL_STREAMS
from ucl.evidence.table_formats import signed, with_interval


def claims(counts: pd.DataFrame) -> pd.DataFrame:
    """One row per claim and setting: how many of the paper's differences have each verdict.

    Args:
        counts: figures/claims.csv: a column settings, and those of `ucl.evidence.claims.counts`.
    """
    columns = {"claim": "claim", "settings": "settings", "differences": "the paper's differences"}
    columns |= {word: word for word in WORDS} | {"excludes_0": "exclude 0 on the paper's side"}
    return counts.reindex(columns=list(columns)).sort_values(["claim", "settings"]).rename(columns=columns)


def hypotheses(judged: pd.DataFrame) -> pd.DataFrame:
    """One row per comparison over all streams, with the number of streams whose own interval excludes 0.

    Args:
        judged: see `ucl.evidence.hypotheses.judged`.
    """
    names = ["hypothesis", "memory", "other_memory", "reading", "other_reading", "metric"]
    alone = judged[judged["dataset"] != ALL_STREAMS].groupby(names)["excludes_0"].agg(["sum", "size"])
    overall = judged[judged["dataset"] == ALL_STREAMS].join(alone, on=names).fillna({"sum": 0, "size": 0})
    rows = [
        {
            "": row["hypothesis"],
            "difference": _name(row),
            "measure": row["metric"],
            "expected": row["expected"] or "reported",
            "n of planned": f"{row['n']} of {row['planned']}",
            "mean [95 %]": with_interval(row["mean"], *_wider(row)),
            "excludes 0 on": f"{row['sum']:.0f} of {row['size']:.0f}",
            "verdict": row["verdict"],
            "the paper": signed(row["published"]),
            "against the paper": row["against_paper"],
        }
        for row in overall.to_dict("records")
    ]
    return pd.DataFrame(rows)


def _wider(row: dict[str, Any]) -> tuple[float, float]:
    """The wider one of both intervals."""
    return min(row["low"], row["low_by_seed"]), max(row["high"], row["high_by_seed"])


def _name(row: dict[str, Any]) -> str:
    """The name of a difference between two memories or two readings; settings that both have are left out."""
    one, other = (row[side].partition(",")[0] for side in ("memory", "other_memory"))
    if one == other:
        return f"{one}: `{row['reading']}` minus `{row['other_reading']}`"
    return f"{one} minus {other}" + ("" if row["reading"] == "running" else f", `{row['reading']}`")
