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
        verdicts: figures/claims.csv: column settings, and those of `ucl.evidence.verdicts.Verdict` except the sizes.
        sizes: figures/claims_sizes.csv: columns settings, claim, comparison, size, n (blocks) and exploratory.
    """
    if verdicts.empty:
        return "No verdict yet (`notebooks/claims.ipynb`).\n"
    cells = verdicts.assign(cell=[_verdict(row) for row in verdicts.to_dict("records")])
    wide = cells.pivot(index=["claim", "statement"], columns="settings", values="cell").fillna("")
    rows = [
        (f"{claim}. {statement}", *row) for (claim, statement), row in zip(wide.index, wide.to_numpy(), strict=True)
    ]
    return (
        "`notebooks/claims.ipynb` has the rule, [claims.csv](claims.csv) the evidence. A claim is split into "
        "comparisons, which clearly hold, clearly fail, or do neither; one with fewer than five blocks (data set and "
        "seed) decides nothing, and a data set with a single block is left out. *Exploratory*: of seeds that were "
        "measured before [PROTOCOL.md](PROTOCOL.md). Effects are the paper's differences, which the measured ones "
        "reproduce, exclude or leave undecided. Runs with the settings of the reference implementation do not count "
        "here (see [Coverage](#coverage)). Claim 6 is judged on the times in the records, some taken while other "
        "programs ran; those in the first table under *Costs* were taken in turns. It has no verdict with `refresh=2`, "
        "which changes these times.\n\n" + table(["claim", *wide.columns], rows) + _reproduced(sizes)
    )


def _reproduced(sizes: pd.DataFrame) -> str:
    """Sentences: which effects of the paper are reproduced, by claim and setting."""
    own = sizes[sizes["size"] == "reproduced"] if len(sizes) else sizes
    if own.empty:
        return ""
    found = [
        f" Claim {claim}, {NAMES[settings]}: {'; '.join(map(_with_n, of_one.to_dict('records')))}."
        for (claim, settings), of_one in own.groupby(["claim", "settings"])
    ]
    text = f"\nReproduced effects.{''.join(found)}\n"
    if own["comparison"].str.contains("A-GEM").any():
        text += "A-GEM is not in the reference implementation, so its settings cannot be compared.\n"
    return text


def _with_n(row: Mapping[str, Any]) -> str:
    """Such as "F below ER (n = 5, exploratory)"."""
    early = "exploratory" if row["exploratory"] == row["n"] else f"{row['exploratory']} exploratory"
    return f"{row['comparison']} (n = {row['n']}{f', {early}' if row['exploratory'] else ''})"


def _verdict(row: Mapping[str, Any]) -> str:
    """Such as "open: 1 of 5 comparisons holds, 0 fail, 2 have too few blocks (new); effects: 3 excluded"."""
    verb, few = "holds" if row["hold"] == 1 else "hold", "has" if row["scarce"] == 1 else "have"
    text = f"{row['verdict']}: {row['hold']} of {row['comparisons']} comparisons {verb}, {row['fail']} fail"
    text += f", {row['scarce']} {few} too few blocks" if row["scarce"] else ""
    text += f" ({row['seeds']})" if isinstance(row["seeds"], str) else ""  # pandas reads an empty cell as NaN.
    counts = [f"{row[word]} {word}" for word in ("reproduced", "excluded", "undecided") if row[word]]
    return text + (f"; effects: {', '.join(counts)}" if counts else "")
