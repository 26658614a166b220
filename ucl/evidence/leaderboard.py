"""The leaderboard: all policies on one stream, at equal updates and at equal seconds.

The question is what a replay memory should keep. At equal updates each policy takes one training step per batch. At
equal seconds it is compared with CBR that takes as many training steps per batch as fit into the policy's time. The
times are those that `make leaderboard-costs` measures, all methods in turns in one process. The seconds in records are
not used: they were measured on several machines, some with other programs running.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from ucl.catalogue import SCORES, UNIFORM, WITHOUT_SCORE, method_and_selection
from ucl.config import Config
from ucl.evidence.effects import NUMBERS, Stream, differences, effect, on_stream
from ucl.evidence.run_measures import COMPARATORS, measures
from ucl.records import failures
from ucl.records.runs import matching

STREAMS: dict[Stream, range] = {("bloodcell", 40): range(5), ("cifar10", 500): range(3)}
"""The seeds of each stream (data set and memory size)."""
UPDATES = (2, 4, 8)
"""The numbers of training steps per batch that CBR is run with, in addition to 1."""
UNIFORM_SCORE = "uniform"
AT_EQUAL_SECONDS = "CBR at equal seconds"


def policy_name(label: str) -> str:
    """The name of a method as on the leaderboard: a random score has no selection."""
    return UNIFORM_SCORE if method_and_selection(label)[0] == UNIFORM_SCORE else label


def with_updates(n: int) -> str:
    """The name of CBR with n training steps per batch."""
    return "CBR" if n == 1 else f"CBR, {n} updates"


POLICIES: dict[str, dict[str, Any]] = {
    **{label: row.fields for label, row in WITHOUT_SCORE.items()},
    **{f"{name} bottom": row.fields for name, row in SCORES.items()},
    "BI top": {"score": "BI", "selection": "top"},
    UNIFORM_SCORE: {"score": UNIFORM},
    **{with_updates(n): {**COMPARATORS["CBR"], "updates": n} for n in UPDATES},
}
"""The fields of `Config` of each policy, by its name; all others are at their defaults, the settings of the paper."""


def planned(dataset: str, memory_size: int, seeds: Iterable[int] | None = None) -> list[Config]:
    """The runs of the leaderboard on a stream, one seed after another.

    Args:
        dataset, memory_size: the stream.
        seeds: by default those of `STREAMS`.

    Raises:
        KeyError: no seeds are given, and the stream is not in `STREAMS`.
        InputError: `Config` does not accept the data set, the memory size or a seed.
    """
    seeds = STREAMS[dataset, memory_size] if seeds is None else seeds
    return [
        Config(dataset=dataset, memory_size=memory_size, seed=seed, **fields)
        for seed in seeds
        for fields in POLICIES.values()
    ]


def milliseconds(times: pd.DataFrame, stream: Stream) -> dict[str, float]:
    """The time per batch of each policy that was timed, in milliseconds.

    Args:
        times: see `ucl.benchmarks.measure.benchmark`; a row per method of the stream has the task "mean".
        stream: data set and memory size.
    """
    if times.empty:
        return {}
    own = on_stream(times[times["task"].astype(str) == "mean"], stream)
    of_name = dict(zip(own["method"], own["whole_ms"].astype(float), strict=True))
    names = {policy: timed_name(Config(**fields)) for policy, fields in POLICIES.items()}
    return {policy: of_name[name] for policy, name in names.items() if name in of_name}


def equal_seconds(ms: Mapping[str, float]) -> dict[str, int]:
    """The training steps per batch of the CBR that each policy is compared with at equal seconds.

    Args:
        ms: see `milliseconds`.

    Returns:
        By policy, without CBR itself, the largest number of steps whose time is not above the policy's, 1 if there is
        none; {} unless CBR was timed with 1 training step and with each of `UPDATES`.
    """
    steps = {with_updates(n): n for n in (1, *UPDATES)}
    if not steps.keys() <= ms.keys():
        return {}
    return {
        policy: max((n for name, n in steps.items() if ms[name] <= of_policy), default=1)
        for policy, of_policy in ms.items()
        if policy not in steps
    }


def standings(records: pd.DataFrame, times: pd.DataFrame, stream: Stream) -> pd.DataFrame:
    """The results of each policy on a stream, the highest A first.

    Args:
        records: see `ucl.load_records`; of each data set on one version of its images.
        times: see `milliseconds`; may be empty.
        stream: a key of `STREAMS`.

    Returns:
        One row per policy: columns policy (its name in `POLICIES`), label (`Config.label`), n (runs that count, at the
        seeds of the stream), failed (how many do not count, such as "1 diverged"; "" if there are none), A, A_std, F
        and F_std (mean and sample standard deviation, in per cent; NaN without runs), ms (per batch; NaN if it was not
        timed) and updates (of CBR at equal seconds; <NA> without such times).
    """
    configs, ms = _experiments(stream), milliseconds(times, stream)
    updates, failed = equal_seconds(ms), _failed(records, stream)
    rows = [
        {
            "policy": policy,
            "label": configs[policy].label,
            "n": len(own),
            "failed": failed[policy],
            **{metric: own[metric].mean() for metric in "AF"},
            **{f"{metric}_std": own[metric].std(ddof=1) for metric in "AF"},
            "ms": ms.get(policy, np.nan),
            "updates": updates.get(policy, pd.NA),
        }
        for policy, own in _runs(records, stream).items()
    ]
    found = pd.DataFrame(rows).astype({"A": float, "F": float, "updates": "Int64"})
    return found.sort_values("A", ascending=False, kind="stable", ignore_index=True)


def gaps(records: pd.DataFrame, times: pd.DataFrame, stream: Stream) -> pd.DataFrame:
    """Each policy minus CBR, minus uniform, and minus CBR at equal seconds: paired differences by seed.

    Networks that diverged or collapsed do not count (`Record.failure`).

    Args:
        records, times, stream: see `standings`.

    Returns:
        A row per policy, comparator and metric ("A", "F") that has pairs: columns policy, label, comparator ("CBR",
        `UNIFORM_SCORE` or `AT_EQUAL_SECONDS`), updates (the comparator's training steps per batch), metric, n (pairs),
        mean, low and high (95 % interval; NaN for a single pair) and detectable, in percentage points.
    """
    runs, configs = _runs(records, stream), _experiments(stream)
    updates = equal_seconds(milliseconds(times, stream))
    rows = []
    for policy, own in runs.items():
        others = [("CBR", "CBR", 1), (UNIFORM_SCORE, UNIFORM_SCORE, 1)]
        if policy in updates:
            others.append((AT_EQUAL_SECONDS, with_updates(updates[policy]), updates[policy]))
        for comparator, other, n_updates in others:
            pairs = differences(own, runs[other])
            if other == policy or pairs.empty:
                continue
            for metric in "AF":
                row = (policy, configs[policy].label, comparator, n_updates, metric)
                rows.append((*row, *effect(pairs, metric).numbers))
    return pd.DataFrame(rows, columns=["policy", "label", "comparator", "updates", "metric", *NUMBERS])


def _experiments(stream: Stream) -> dict[str, Config]:
    """The experiment of each policy, with the first seed of the stream."""
    return dict(zip(POLICIES, planned(*stream, STREAMS[stream][:1]), strict=True))


def _runs(records: pd.DataFrame, stream: Stream) -> dict[str, pd.DataFrame]:
    """The measures of the planned runs of each policy, see `measures`."""
    tables = measures(records, _experiments(stream).values())
    seeds = list(STREAMS[stream])
    return {policy: own[own["seed"].isin(seeds)] for policy, own in zip(POLICIES, tables, strict=True)}


def _failed(records: pd.DataFrame, stream: Stream) -> dict[str, str]:
    """How many planned runs of each policy diverged or collapsed, such as "1 diverged"; "" if there are none."""
    runs = matching(records, _experiments(stream).values())
    own = [(i, r) for i, r in zip(runs["experiment"], runs["record"], strict=True) if r.config.seed in STREAMS[stream]]
    return {policy: failures([r for i, r in own if i == index]) for index, policy in enumerate(POLICIES)}


def timed_name(config: Config) -> str:
    """The name of a method in tables of times, such as "ER", "BI" or "CBR updates=4".

    It is the label without bottom, step or top, which cost the same, and the training steps per batch if there are
    several. A score that is not the paper's has its path.
    """
    name = config.label.removesuffix(f" {config.selection}")
    updates = f" updates={config.updates}" if config.updates > 1 else ""
    return f"{UNIFORM if name == 'uniform' else name}{updates}"


def timed_names() -> list[str]:
    """The names of the policies of the leaderboard in tables of times, each once."""
    return list(dict.fromkeys(timed_name(Config(**fields)) for fields in POLICIES.values()))
