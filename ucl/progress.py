"""How long a sweep takes, judging by the runs that cost alike; and the bar that tells it."""

from __future__ import annotations

import time
from collections import defaultdict
from statistics import fmean

from ucl.config import SCORE_NAMES, Config
from ucl.experiment import progress_bar


def cost_class(config: Config) -> str:
    """A name for what the time of a run depends on: equal for runs that cost alike."""
    plain = dict(seed=0, selection="bottom", averaging="scores")
    if not config.uses_scores:
        plain["memory_size"] = 1
    if config.score in SCORE_NAMES and config.score != "MC":
        plain["score"] = "BI"  # made from the same passes of the same views
    return config.replace(**plain).key


def duration(seconds: float) -> str:
    """A time as people say it: "40 s", "12 min", "3 h 20 min", "2 d 4 h"."""
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


class SweepBar:
    """Progress over the runs of a sweep, and the time that the rest will take.

    Args:
        missing: the runs.
        show: None shows the bar in a terminal or notebook.
    """

    def __init__(self, missing: list[Config], show: bool | None) -> None:
        self._left = {config.key: cost_class(config) for config in missing}
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._begin = time.monotonic()
        self._bar = progress_bar(len(missing), "sweep", show)
        self._bar.bar_format = "{l_bar}{bar}| {n_fmt}/{total_fmt} runs, {elapsed}{postfix}"

    def __enter__(self) -> SweepBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def finished(self, config: Config, seconds: float) -> None:
        """Count a run that is done; `seconds` is 0 where it was not measured here."""
        alike = self._left.pop(config.key)
        if seconds:
            self._seconds[alike].append(seconds)
        self._bar.update()

    def tell(self, elsewhere: int) -> None:
        """Show the time left, and how many runs are another sweep's just now."""
        spent = [s for seconds in self._seconds.values() for s in seconds]
        told = []
        if spent and self._left:
            left = sum(fmean(self._seconds.get(alike, spent)) for alike in self._left.values())
            at_a_time = sum(spent) / (time.monotonic() - self._begin)
            told.append(f"about {duration(left / at_a_time)} left")
        if elsewhere:
            told.append(f"{elsewhere} running elsewhere")
        self._bar.set_postfix_str(", ".join(told))
