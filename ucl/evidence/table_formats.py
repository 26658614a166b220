"""Tables as Markdown and LaTeX, and numbers as the texts of their cells."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ucl.evidence.effects import Interval
from ucl.fields import decimal

_MARKDOWN = str.maketrans({"|": r"\|", "<": "&lt;", "\n": "<br>"})
_LATEX = str.maketrans(
    {"±": r"$\pm$", "−": "$-$", "—": "---", "|": r"\textbar{}", "<": r"\textless{}", ">": r"\textgreater{}"}
)


def texts(table: pd.DataFrame, digits: int = 2) -> pd.DataFrame:
    """The cells as texts: floats with a fixed number of decimals, "" for what is missing.

    A column and its standard deviation, such as A and A_std, become one column: "56.80 ± 3.92".
    """
    shown = table.astype(object).apply(lambda column: column.map(lambda value: _text(value, digits)))
    for name in [column for column in table if f"{column}_std" in table]:
        spread = shown.pop(f"{name}_std")
        shown[name] = [f"{mean} ± {std}" if std else mean for mean, std in zip(shown[name], spread, strict=True)]
    return shown


def markdown(table: pd.DataFrame, digits: int = 2) -> str:
    """A table in GitHub's Markdown, without its index; levels of columns are joined. Cells may have Markdown."""
    shown = texts(table, digits)
    heads = [" ".join(map(str, head if isinstance(head, tuple) else (head,))).strip() for head in shown.columns]
    rows: list[Sequence[str]] = [heads, *shown.itertuples(index=False, name=None)]
    head, *body = ["| " + " | ".join(text.translate(_MARKDOWN) for text in row) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(heads), *body]) + "\n"


def latex(table: pd.DataFrame, caption: str = "") -> str:
    """A LaTeX table with booktabs, without its index, floating if it has a caption; each line of a cell is a row."""
    shown = texts(table)
    lines: list[tuple[str, ...]] = []
    for cells in shown.itertuples(index=False, name=None):
        cell_lines = (cell.replace("\npaper ", "\n").split("\n") for cell in cells)  # the caption explains it
        lines += itertools.zip_longest(*cell_lines, fillvalue="")
    rows = pd.DataFrame(lines, columns=shown.columns, dtype=object)
    style = rows.style.format(escape="latex").format_index(escape="latex", axis=1).hide(axis="index")
    text = style.to_latex(
        hrules=True,
        multicol_align="c",
        column_format="l" * rows.shape[1],
        caption=caption.replace("%", r"\%").replace("_", r"\_") or None,
        position_float="centering" if caption else None,
    )
    text = text.replace("\\centering", "\\centering\\scriptsize\\setlength{\\tabcolsep}{3pt}")
    return str(text.translate(_LATEX))


def number(value: float, digits: int = 1) -> str:
    """A number with a fixed number of decimals, without a sign if it is rounded to zero; "" for NaN."""
    return "" if np.isnan(value) else decimal(value, digits).replace("-", "−")


def signed(value: float) -> str:
    """A number with one decimal and its sign, which 0.0 does not have; "" for NaN."""
    text = number(value)
    return f"+{text}" if value > 0 and text != "0.0" else text


def plus_minus(mean: float, std: float) -> str:
    """Such as "12.3 ± 4.5"; only the mean if the standard deviation is NaN, "" if the mean is NaN."""
    return number(mean) + ("" if np.isnan(mean) or np.isnan(std) else f" ± {std:.1f}")


def mean_and_std(values: pd.Series) -> str:
    """The mean of some values and their sample standard deviation, such as "12.3 ± 4.5", see `plus_minus`."""
    return plus_minus(values.mean(), values.std(ddof=1))


def interval(low: float, high: float) -> str:
    """Such as "[−3.1, +2.0]"; "" if it is NaN.

    An end that is rounded to zero has a sign only in an interval that excludes 0, where the sign says so.
    """
    if np.isnan(low):
        return ""
    if Interval(low, high).excludes_0:
        return f"[{low:+.1f}, {high:+.1f}]".replace("-", "−")
    return f"[{signed(low)}, {signed(high)}]"


def with_interval(mean: float, low: float, high: float) -> str:
    """A difference with its interval, such as "−2.5 [−3.1, −2.0]"; only the difference if the interval is NaN."""
    return f"{signed(mean)} {interval(low, high)}".strip()


def estimate_text(estimate: Mapping[str, Any], n_runs: int) -> str:
    """The mean of some pairs `with_interval`, and their number n if it is below that of the runs; "" without pairs."""
    if not estimate["n"]:
        return ""
    fewer = f" (n = {estimate['n']})" if estimate["n"] < n_runs else ""
    return with_interval(estimate["mean"], estimate["low"], estimate["high"]) + fewer


def _text(value: Any, digits: int) -> str:
    if isinstance(value, float):
        return number(value, digits)
    return "" if value is None or value is pd.NA else str(value)
