"""The leaderboard: all policies on one stream, at equal updates and at equal seconds.

At equal updates each policy takes one training step per batch. At equal seconds it is compared with CBR that takes as
many training steps per batch as fit into the policy's time. The times are those of figures/leaderboard_costs.csv,
all methods in turns in one process; the seconds in records were measured on several machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ucl.catalogue import SCORES, UNIFORM, WITHOUT_SCORE, method_and_selection
from ucl.config import Config
from ucl.evidence.averages import averaged
from ucl.evidence.effects import differences, effects_by, on_streams
from ucl.evidence.run_measures import Runs

DATASET, MEMORY_SIZE, SEEDS = "bloodcell", 40, range(5)
"""The runs that count."""
UPDATES = (2, 4, 8)
"""The numbers of training steps per batch that CBR is run with, in addition to 1."""
UNIFORM_SCORE = "uniform"
AT_EQUAL_SECONDS = "CBR at equal seconds"


def leaderboard_name(label: str) -> str:
    """The name of a method as on the leaderboard: a random score has no selection."""
    return UNIFORM_SCORE if method_and_selection(label)[0] == UNIFORM_SCORE else label


def with_updates(n: int) -> str:
    """The name of CBR with n training steps per batch."""
    return "CBR" if n == 1 else f"CBR, {n} updates"


_FIELDS: dict[str, dict[str, Any]] = {
    **{label: row.fields for label, row in WITHOUT_SCORE.items()},
    **{f"{name} bottom": row.fields for name, row in SCORES.items()},
    "BI top": {"score": "BI", "selection": "top"},
    UNIFORM_SCORE: {"score": UNIFORM},
    **{with_updates(n): {**WITHOUT_SCORE["CBR"].fields, "updates": n} for n in UPDATES},
}
EXPERIMENTS = {name: Config(dataset=DATASET, memory_size=MEMORY_SIZE, **fields) for name, fields in _FIELDS.items()}
"""The experiment of each policy, by its name: other fields are at their defaults, the settings of the paper."""


def milliseconds(times: pd.DataFrame) -> dict[str, float]:
    """The milliseconds per batch of each policy that was timed; `times`: see `ucl.benchmarks.measure.benchmark`."""
    means = on_streams(times[times["task"] == "mean"], [(DATASET, MEMORY_SIZE)])
    ms_by_name = dict(zip(means["method"], means["whole_ms"].astype(float), strict=True))
    names = {policy: benchmark_name(config) for policy, config in EXPERIMENTS.items()}
    return {policy: ms_by_name[name] for policy, name in names.items() if name in ms_by_name}


def equal_seconds(ms: Mapping[str, float]) -> dict[str, int]:
    """The training steps per batch of the CBR that each policy is compared with at equal seconds (see `milliseconds`).

    Returns:
        By policy, without CBR itself, the largest number of steps whose time is not above the policy's, or 1; {} unless
        CBR was timed with 1 training step and with each of `UPDATES`.
    """
    steps = {with_updates(n): n for n in (1, *UPDATES)}
    if not steps.keys() <= ms.keys():
        return {}
    return {
        policy: max((n for name, n in steps.items() if ms[name] <= policy_ms), default=1)
        for policy, policy_ms in ms.items()
        if policy not in steps
    }


def standings(records: pd.DataFrame, times: pd.DataFrame) -> pd.DataFrame:
    """The results of each policy and its `milliseconds`, the highest A first.

    Returns:
        One row per policy: columns policy (its name in `EXPERIMENTS`), those of `ucl.evidence.averages.averaged`, ms
        (per batch) and updates (of CBR at equal seconds); NaN or <NA> if it was not measured.
    """
    ms, counting, rows = milliseconds(times), Runs(records), []
    updates = equal_seconds(ms)
    for policy, config in EXPERIMENTS.items():
        runs = counting.rows(config)
        averages = averaged(runs[runs["seed"].isin(list(SEEDS))])
        rows.append({"policy": policy, **averages, "ms": ms.get(policy, np.nan), "updates": updates.get(policy, pd.NA)})
    table = pd.DataFrame(rows).astype({"updates": "Int64"})
    return table.sort_values("A", ascending=False, kind="stable", ignore_index=True)


def gaps(records: pd.DataFrame, times: pd.DataFrame) -> pd.DataFrame:
    """Each policy minus CBR, minus ER, minus uniform, and minus CBR at equal seconds: paired differences by seed.

    Returns:
        A row per policy, comparator and metric that has pairs, in percentage points: columns policy, label
        (`Config.label`), comparator ("CBR", "ER", `UNIFORM_SCORE` or `AT_EQUAL_SECONDS`), updates (the comparator's
        training steps per batch), metric and `ucl.evidence.effects.NUMBERS`.
    """
    counting, stream = Runs(records), {(DATASET, MEMORY_SIZE): SEEDS}
    runs = {policy: counting.of(config, stream) for policy, config in EXPERIMENTS.items()}
    updates, parts = equal_seconds(milliseconds(times)), []
    for policy, config in EXPERIMENTS.items():
        others = [(name, name, 1) for name in ("CBR", "ER", UNIFORM_SCORE)]
        if policy in updates:
            others.append((AT_EQUAL_SECONDS, with_updates(updates[policy]), updates[policy]))
        for comparator, other, n_updates in others:
            if other != policy:
                named = {"policy": policy, "label": config.label, "comparator": comparator}
                parts.append(differences(runs[policy], runs[other]).assign(**named, updates=n_updates))
    return effects_by(pd.concat(parts), ["policy", "label", "comparator", "updates"])


def benchmark_name(config: Config) -> str:
    """The name of a method in tables of times, such as "ER", "BI" or "CBR updates=4".

    It is the label without bottom, step or top, which cost the same, and the training steps per batch if there are
    several. A score that is not the paper's has its path.
    """
    name = config.label.removesuffix(f" {config.selection}")
    updates = f" updates={config.updates}" if config.updates > 1 else ""
    return f"{UNIFORM if name == 'uniform' else name}{updates}"


def benchmark_names() -> list[str]:
    """The names of the policies of the leaderboard in tables of times, each once."""
    return list(dict.fromkeys(map(benchmark_name, EXPERIMENTS.values())))
