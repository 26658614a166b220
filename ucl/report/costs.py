"""Costs for readers: times per batch and of whole runs, hours for Table 1, memory updates and training steps."""

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


def per_batch(times: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds per batch on each processor and memory size, and their ratio to those of ER.

    Args:
        times: figures/beside_naive.csv, a row per task; columns processor, memory_size, variant, whole_ms.
    """
    if times.empty:
        return pd.DataFrame(columns=["processor", "memory", "method", "ms", "times ER"])
    keys = ["processor", "memory_size", "variant"]
    found = times.groupby(keys, sort=False)["whole_ms"].mean().reset_index()
    er = found[found["variant"] == "ER"].set_index(keys[:2])["whole_ms"]
    found["times ER"] = found["whole_ms"] / found.set_index(keys[:2]).index.map(er)
    found = found[found["variant"].isin(list(_VARIANTS))].dropna(subset=["times ER"])
    return pd.DataFrame(
        {
            "processor": found["processor"].map(short_name),
            "memory": found["memory_size"],
            "method": found["variant"].map(_VARIANTS),
            "ms": found["whole_ms"].round().astype(int),
            "times ER": found["times ER"],
        }
    )


def by_processor(times: pd.DataFrame) -> pd.DataFrame:
    """The table of `per_batch` with a row per method and a column per processor and memory size, as text."""
    found = per_batch(times)
    found["head"] = found["processor"] + ", memory " + found["memory"].astype(str)
    found["cell"] = [f"{ms} ({ratio:.1f} × ER)" for ms, ratio in zip(found["ms"], found["times ER"], strict=True)]
    wide = found.pivot(index="method", columns="head", values="cell").fillna("")
    in_order = [name for name in _VARIANTS.values() if name in wide.index]
    return wide.reindex(in_order).reset_index().rename_axis(columns=None).rename(columns={"method": "ms per batch"})


def table1_hours(times: pd.DataFrame) -> pd.DataFrame:
    """Hours for the runs of Table 1 whose scores need views, estimated from the times of `per_batch`."""
    runs = [config for config in paper.grid("table1") if config.uses_scores and not SCORES[config.score].dropout_passes]
    n_runs = pd.Series([config.memory_size for config in runs]).value_counts()
    names = {"BI refresh 1": "everything rescored [h]", "BI refresh 2": "`refresh=2` [h]"}
    if times.empty:
        return pd.DataFrame(columns=["processor", "runs", *names.values()])
    means = times.groupby(["processor", "variant", "memory_size"])["whole_ms"].mean()
    rows = []
    for processor in times["processor"].unique():
        ms = [means[processor, variant].reindex(n_runs.index) @ n_runs for variant in names]  # NaN if one is missing
        hours = [f"{value * paper.RUNTIME_BATCHES / 3.6e6:.0f}" if value == value else "" for value in ms]
        rows.append((short_name(processor), len(runs), *hours))
    return pd.DataFrame(rows, columns=["processor", "runs", *names.values()])


def whole_runs(exact: pd.DataFrame, two: pd.DataFrame) -> pd.DataFrame:
    """The paper's Table 4 as measured, with the paper's ratios of total times.

    Args:
        exact: figures/table4_runtime.csv, see `ucl.tables.runtimes`.
        two: figures/table4_runtime_refresh.csv, the same with `refresh=2`, of which only the score is shown.
    """
    tables = [exact]
    if len(two):
        of_bi = two[two["method"].str.startswith("BI")]
        tables.append(of_bi.assign(method=of_bi["method"] + ", `refresh=2`", published_times_er=float("nan")))
    both = pd.concat(tables, ignore_index=True).reindex(columns=[*_WHOLE_RUNS, "seconds"])
    both = both[both["n"] > 0] if len(both) else both
    both["processor"] = both["processor"].map(short_name)
    both["minutes"] = both.pop("seconds") / 60
    return both.rename(columns=_WHOLE_RUNS)


_WHOLE_RUNS = {
    "processor": "processor",
    "method": "method",
    "n": "n",
    "milliseconds": "per batch [ms]",
    "times_er": "times ER",
    "published_times_er": "times ER, paper",
}


def gpu(times: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds per batch on a GPU, by part, their ratio to those of ER, and the share of the fastest passes.

    Args:
        times: figures/benchmark_gpu.csv, see `ucl.benchmarks.measure.benchmark`.
    """
    columns = ["device", "memory", "method", "batch [ms]", "training", "views", "passes", "selection", "times ER"]
    if times.empty:
        return pd.DataFrame(columns=[*columns, "share of the fastest passes"])
    means = times[times["task"] == "mean"]
    er = means[means["method"] == "ER"].set_index("memory_size")["whole_ms"]
    parts = means[["whole_ms", "training_ms", "views_ms", "forwards_ms", "selection_ms"]]
    found = pd.concat([means[["device", "memory_size", "method"]], parts], axis=1).set_axis(columns[:-1], axis=1)
    found["times ER"] = means["whole_ms"] / means["memory_size"].map(er)
    found["share of the fastest passes"] = means["share_of_ceiling"].map(
        lambda share: "" if share != share else f"{100 * share:.0f} %"
    )
    return found


def short_name(processor: str) -> str:
    """A processor's name without trademark signs: "Intel Xeon" for "Intel(R) Xeon(R) Processor"."""
    return " ".join(processor.replace("(R)", "").removesuffix("Processor").split())
