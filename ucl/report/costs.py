"""Costs for readers: times per batch and of whole runs, and hours for Table 1; without times, tables have no rows."""

from __future__ import annotations

import pandas as pd

from ucl.catalogue import SCORES
from ucl.evidence import paper

_VARIANTS = {
    "naive": "BI, naive implementation (float32, training mode)",
    "BI refresh 1 float32": "BI, float32",
    "BI refresh 1": "BI",
    "BI refresh 10": "BI, `refresh=10`",
    "BI refresh 2": "BI, `refresh=2`",
    "ER": "ER",
}
_HOURS = {"BI refresh 1": "everything rescored [h]", "BI refresh 2": "`refresh=2` [h]"}
_WHOLE_RUNS = {
    "processor": "processor",
    "method": "method",
    "n": "n",
    "milliseconds": "per batch [ms]",
    "times_er": "times ER",
    "published_times_er": "times ER, paper",
}
_PARTS = {"whole_ms": "batch [ms]", "training_ms": "training", "views_ms": "views", "forwards_ms": "passes"}
_GPU = {"device": "device", "memory_size": "memory", "method": "method", **_PARTS, "selection_ms": "selection"}


def by_processor(times: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds per batch and their ratio to those of ER: a row per method, a column per processor and memory size.

    Args:
        times: figures/beside_naive.csv, a row per task; columns processor, memory_size, variant, whole_ms.
    """
    if times.empty:
        return pd.DataFrame(columns=["ms per batch"])
    ms = times.groupby(["variant", "processor", "memory_size"])["whole_ms"].mean().unstack("variant")
    rows = {}
    for variant, name in _VARIANTS.items():
        if variant in ms:
            pairs = zip(ms[variant], ms[variant] / ms["ER"], strict=True)
            rows[name] = ["" if ratio != ratio else f"{round(time)} ({ratio:.1f} × ER)" for time, ratio in pairs]
    heads = [f"{short_name(processor)}, memory {size}" for processor, size in ms.index]
    table = pd.DataFrame.from_dict(rows, orient="index", columns=heads).sort_index(axis="columns")
    return table.rename_axis("ms per batch").reset_index()


def table1_hours(times: pd.DataFrame) -> pd.DataFrame:
    """Hours for the runs of Table 1 whose scores need views, estimated from the times of `by_processor`."""
    if times.empty:
        return pd.DataFrame(columns=["processor", "runs", *_HOURS.values()])
    runs = [config for config in paper.grid("table1") if config.uses_scores and not SCORES[config.score].dropout_passes]
    n_runs = pd.Series([config.memory_size for config in runs]).value_counts()
    means = times.groupby(["processor", "variant", "memory_size"])["whole_ms"].mean()
    rows = []
    for processor in times["processor"].unique():
        ms = [means[processor, variant].reindex(n_runs.index) @ n_runs for variant in _HOURS]  # NaN if one is missing
        hours = [f"{value * paper.RUNTIME_BATCHES / 3.6e6:.0f}" if value == value else "" for value in ms]
        rows.append((short_name(processor), len(runs), *hours))
    return pd.DataFrame(rows, columns=["processor", "runs", *_HOURS.values()])


def whole_runs(exact: pd.DataFrame, two: pd.DataFrame) -> pd.DataFrame:
    """The paper's Table 4 as measured, with the paper's ratios of total times.

    Args:
        exact: figures/table4_runtime.csv, see `ucl.tables.runtimes`.
        two: figures/table4_runtime_refresh.csv, the same with `refresh=2`, of which only the score is shown.
    """
    tables = [exact]
    if len(two):
        bi_runs = two[two["method"].str.startswith("BI")]
        tables.append(bi_runs.assign(method=bi_runs["method"] + ", `refresh=2`", published_times_er=float("nan")))
    both = pd.concat(tables, ignore_index=True).reindex(columns=[*_WHOLE_RUNS, "seconds"])
    both = both[both["n"] > 0] if len(both) else both
    both["processor"] = both["processor"].map(short_name)
    both["minutes"] = both.pop("seconds") / 60
    return both.rename(columns=_WHOLE_RUNS)


def gpu(times: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds per batch on a GPU, by part, their ratio to those of ER, and the share of the fastest passes.

    Args:
        times: figures/benchmark_gpu.csv, see `ucl.benchmarks.measure.benchmark`.
    """
    if times.empty:
        return pd.DataFrame(columns=[*_GPU.values(), "times ER", "share of the fastest passes"])
    means = times[times["task"] == "mean"]
    er = means[means["method"] == "ER"].set_index("memory_size")["whole_ms"]
    shares = ["" if share != share else f"{100 * share:.0f} %" for share in means["share_of_ceiling"]]
    ratios = {"times ER": means["whole_ms"] / means["memory_size"].map(er), "share of the fastest passes": shares}
    return means[[*_GPU]].rename(columns=_GPU).assign(**ratios)


def short_name(processor: str) -> str:
    """A processor's name without trademark signs: "Intel Xeon" for "Intel(R) Xeon(R) Processor"."""
    return " ".join(processor.replace("(R)", "").removesuffix("Processor").split())
