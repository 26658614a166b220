"""The paper's claims in Markdown: the verdicts, and which of the paper's effects are reproduced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ucl.report.coverage import NAMES
from ucl.report.markdown import table


def section(verdicts: pd.DataFrame, sizes: pd.DataFrame) -> str:
    """Markdown: the six claims and their verdicts, and the effects of the paper that are reproduced.

    Args:
        verdicts: figures/claims.csv: columns settings, claim, statement, verdict, n, seeds, and how many of the paper's
            effects are reproduced, excluded and undecided.
        sizes: figures/claims_sizes.csv: columns settings, claim, comparison and size.
    """
    if verdicts.empty:
        return "No verdict yet (`notebooks/claims.ipynb`).\n"
    cells = verdicts.assign(cell=[_verdict(row) for row in verdicts.to_dict("records")])
    wide = cells.pivot(index=["claim", "statement"], columns="settings", values="cell").fillna("")
    rows = [
        (f"{claim}. {statement}", *row) for (claim, statement), row in zip(wide.index, wide.to_numpy(), strict=True)
    ]
    return (
        "`notebooks/claims.ipynb` has the rule, [claims.csv](claims.csv) the evidence. n is the number of blocks (data "
        "set and seed) of the comparison that has the fewest; below five a comparison decides nothing. *Exploratory*: "
        "of seeds that were measured before [PROTOCOL.md](PROTOCOL.md). Effects are the paper's differences, which the "
        "measured ones reproduce, exclude or leave undecided. Claim 6 is judged on the times in the records, some "
        "taken while other programs ran; the times under *Costs* were taken in turns.\n\n"
        + table(["claim", *wide.columns], rows)
        + _reproduced(sizes)
    )


def _reproduced(sizes: pd.DataFrame) -> str:
    """Sentences: which effects of the paper are reproduced, by claim and setting."""
    own = sizes[sizes["size"] == "reproduced"] if len(sizes) else sizes
    if own.empty:
        return ""
    found = [
        f" Claim {claim}, {NAMES['everything rescored' if settings == 'refresh=1' else settings]}: "
        f"{'; '.join(of_one['comparison'])}."
        for (claim, settings), of_one in own.groupby(["claim", "settings"])
    ]
    text = f"\nReproduced effects.{''.join(found)}\n"
    if own["comparison"].str.contains("A-GEM").any():
        text += "A-GEM is not in the reference implementation, so its settings cannot be compared.\n"
    return text


def _verdict(row: Mapping[str, Any]) -> str:
    """Such as "open (n = 17, exploratory and new); effects: 3 excluded, 1 undecided"."""
    seeds = f", {row['seeds']}" if isinstance(row["seeds"], str) else ""  # pandas reads an empty cell as NaN.
    counts = [f"{row[word]} {word}" for word in ("reproduced", "excluded", "undecided") if row[word]]
    return f"{row['verdict']} (n = {row['n']}{seeds})" + (f"; effects: {', '.join(counts)}" if counts else "")
