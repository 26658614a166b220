"""Tables and numbers as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from ucl.evidence.effects import Effect, Interval
from ucl.fields import decimal


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table of Markdown texts, in which only "|" is escaped; the sentence "No record." without rows."""

    def line(cells: Sequence[object]) -> str:
        return "| " + " | ".join(str(cell).replace("|", r"\|") for cell in cells) + " |"

    body = [line(row) for row in rows]
    if not body:
        return "No record.\n"
    return "\n".join([line(head), "|---" * len(head) + "|", *body]) + "\n"


def number(value: float, digits: int = 1) -> str:
    """A number with a fixed number of decimals, without a sign if it is rounded to zero; "" for NaN."""
    return "" if np.isnan(value) else decimal(value, digits).replace("-", "−")


def plus_minus(mean: float, std: float) -> str:
    """Such as "12.3 ± 4.5"; only the mean if the standard deviation is NaN, "" if the mean is NaN."""
    return number(mean) + ("" if np.isnan(mean) or np.isnan(std) else f" ± {std:.1f}")


def mean_and_std(values: pd.Series) -> str:
    """The mean of some values and their sample standard deviation, such as "12.3 ± 4.5", see `plus_minus`."""
    return plus_minus(values.mean(), values.std(ddof=1))


def signed(value: float) -> str:
    """A number with one decimal and its sign, which 0.0 does not have; "" for NaN."""
    text = number(value)
    return f"+{text}" if value > 0 and text != "0.0" else text


def interval(low: float, high: float) -> str:
    """Such as "[−3.1, +2.0]"; "" if it is NaN.

    An end that is rounded to zero has a sign only in an interval that excludes 0, where the sign says so.
    """
    if np.isnan(low):
        return ""
    if excludes_zero(Interval(low, high)):
        return f"[{low:+.1f}, {high:+.1f}]".replace("-", "−")
    return f"[{signed(low)}, {signed(high)}]"


def with_interval(mean: float, low: float, high: float) -> str:
    """A difference with its interval, such as "−2.5 [−3.1, −2.0]"; only the difference if the interval is NaN."""
    return f"{signed(mean)} {interval(low, high)}".strip()


def difference(found: Effect) -> str:
    """Mean and 95 % interval, such as "−2.5 [−3.1, −2.0]"."""
    return with_interval(found.mean, *found.interval)


def wider_difference(found: Effect) -> str:
    """Mean and the wider one of both 95 % intervals, such as "−2.5 [−3.1, −2.0]"."""
    return with_interval(found.mean, *found.wider)


def excludes_zero(found: Interval) -> bool:
    """Whether 0 is outside the interval; False if the interval is NaN."""
    return found.low > 0 or found.high < 0


def judged(found: Effect) -> str:
    """The interval in words, with the detectable difference if the interval includes 0."""
    if np.isnan(found.interval.low):
        return f"n = {found.n}, no interval"
    text = f"n = {found.n}, 95 % interval {interval(*found.interval)}"
    if excludes_zero(found.interval):
        return f"{text}, excludes 0"
    return f"{text}, includes 0; detectable difference {found.detectable:.1f}"
