"""Memory policies for readers: the leaderboard, what memories keep and change, and how well scores repeat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from ucl.catalogue import METHODS, POLICIES, SCORES, SELECTIONS, Row, Shown, method_order
from ucl.config import Config
from ucl.evidence.leaderboard import AT_EQUAL_SECONDS, leaderboard_name
from ucl.evidence.table_formats import estimate_text, number, plus_minus, with_interval


def leaderboard(standings: pd.DataFrame, compared: pd.DataFrame) -> pd.DataFrame:
    """One row per policy that has runs, in the order of `standings`; with a last column if some runs failed.

    Args:
        standings: see `ucl.evidence.leaderboard.standings`.
        compared: see `ucl.evidence.leaderboard.gaps`. A difference with fewer pairs than the policy has runs has its n.
    """
    n_runs, gaps = dict(zip(standings["policy"], standings["n"], strict=True)), {}
    for row in compared.to_dict("records"):
        gaps[row["policy"], row["comparator"], row["metric"]] = estimate_text(row, n_runs[row["policy"]])
    rows, some_failed = [], (standings["left_out"] != "").any()
    for row in standings[(standings["n"] > 0) | (standings["left_out"] != "")].to_dict("records"):
        policy = row["policy"]
        seconds = gaps.get((policy, AT_EQUAL_SECONDS, "A"), "")
        rows.append(
            {
                "policy": policy,
                "n": row["n"],
                **{metric: plus_minus(row[metric], row[f"{metric}_std"]) for metric in "AF"},
                **{
                    f"{metric} minus {other} [95 %]": gaps.get((policy, other, metric), "")
                    for other in ("CBR", "ER")
                    for metric in "AF"
                },
                "ms per batch": number(row["ms"], 0),
                "A minus CBR at equal seconds [95 %]": seconds,
                "steps per batch of that CBR": row["updates"] if seconds else "",
                **({"left out": row["left_out"]} if some_failed else {}),
            }
        )
    return pd.DataFrame(rows)


def remedies(differences: pd.DataFrame) -> pd.DataFrame:
    """The share of recent images in memory without a remedy, and the change in points if the score repeats better.

    `differences` are those of figures/memory_autopsy_remedies.csv.
    """
    keys = ["dataset", "memory_size", "method", "settings", "remedy"]
    renamed = differences.fillna({"settings": ""}).assign(method=differences["method"].map(leaderboard_name))
    without = 100 * renamed[renamed["measure"] == "recent"].set_index(keys)["without"]
    names = {"dataset": "data set", "memory_size": "memory", "recent": "change of the share [points]"}
    shown = side_by_side(renamed, keys, ["recent"]).join(without.rename("without remedy [%]"), on=keys)
    return shown.rename(columns=names)


def side_by_side(differences: pd.DataFrame, keys: Sequence[str], measures: Sequence[str]) -> pd.DataFrame:
    """Differences of shares in points, with intervals: a row per values of some columns, in the order of methods.

    Args:
        differences: columns measure, n, mean, low, high, `keys`, of which one is method.
        keys: the columns that name a row.
        measures: the values of measure, in the order of the columns.
    """
    numbers = (100 * differences[["mean", "low", "high"]]).itertuples(index=False)
    methods = differences["method"].map(leaderboard_name)
    named = differences.assign(cell=[with_interval(*row) for row in numbers], method=methods)
    wide = named.pivot(index=[*keys, "n"], columns="measure", values="cell").reindex(columns=measures)
    shown = wide.reset_index().rename_axis(columns=None)
    shown = shown.sort_values("method", key=lambda names: names.map(method_order(methods).index), kind="stable")
    return shown.sort_values(["dataset", "memory_size"], kind="stable", ignore_index=True)


def methods() -> pd.DataFrame:
    """The memory policies, methods, scores and selections of the catalogue, one row per field of `Config`."""
    rows_of_field: dict[str, Mapping[str, Row]] = {
        "population": POLICIES,
        "method": METHODS,
        "score": SCORES,
        "selection": SELECTIONS,
    }
    default, rows = Config(), []
    for field, rows_by_name in rows_of_field.items():
        cells = []
        for name, row in rows_by_name.items():
            meaning = row.label if isinstance(row, Shown) else row.help
            suffix = " (default)" if getattr(default, field) == name else ""
            cells.append(f"`{name}` {meaning}".strip() + suffix)
        rows.append((f"`{field}`", ", ".join(cells)))
    return pd.DataFrame(rows, columns=["field", "values, with their names in tables"])
