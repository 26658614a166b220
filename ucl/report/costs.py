"""Costs for readers: times per batch and of whole runs."""

from __future__ import annotations

import pandas as pd

from ucl.evidence import paper
from ucl.evidence.run_measures import Runs
from ucl.records.runs import without_failures

_VARIANTS = {
    "naive": "BI, naive implementation (float32, training mode)",
    "BI refresh 1 float32": "BI, float32",
    "BI refresh 1": "BI",
    "BI refresh 10": "BI, `refresh=10`",
    "BI refresh 2": "BI, `refresh=2`",
    "ER": "ER",
}
_PARTS = {"whole_ms": "batch [ms]", "training_ms": "training", "views_ms": "views", "forwards_ms": "passes"}
_BY_PART = {"machine": "device", "memory_size": "memory", "method": "method", **_PARTS, "selection_ms": "selection"}


def by_processor(times: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds per batch and their ratio to those of ER: a row per method, a column per processor and memory size.

    `times` are those of figures/beside_naive.csv.
    """
    ms = times.groupby(["variant", "processor", "memory_size"])["whole_ms"].mean().unstack("variant")
    rows = {}
    for variant, name in _VARIANTS.items():
        pairs = zip(ms[variant], ms[variant] / ms["ER"], strict=True)
        rows[name] = ["" if ratio != ratio else f"{round(time)} ({ratio:.1f} × ER)" for time, ratio in pairs]
    heads = [f"{short_name(processor)}, memory {size}" for processor, size in ms.index]
    table = pd.DataFrame.from_dict(rows, orient="index", columns=heads).sort_index(axis="columns")
    return table.rename_axis("ms per batch").reset_index()


def whole_runs(records: pd.DataFrame) -> pd.DataFrame:
    """The paper's Table 4 as measured, also BI with `refresh=2`: a row per processor, threads and method that has runs.

    A time per batch is of learning and memory, without tests. The paper's ratios are those of the seconds of the whole
    run; its printed times per batch do not agree with them.
    """
    experiments = {config.label: config for config in paper.grid("table4", seeds=[0])}
    experiments["BI bottom, `refresh=2`"] = experiments["BI bottom"].replace(refresh=2)
    counting = Runs(records)
    runs = [counting.rows(config).assign(experiment=index) for index, config in enumerate(experiments.values())]
    runs = without_failures(pd.concat(runs))
    runs = runs.assign(host=[record.environment["processor"] for record in runs["record"]])
    published = {name: seconds / paper.RUNTIMES["ER"] for name, seconds in paper.RUNTIMES.items()}
    machine = ["device", "processor", "host", "threads"]
    groups = runs.groupby([*machine, "experiment"], dropna=False)[["seconds_per_batch", "seconds"]]
    times = groups.mean().assign(n=groups.size()).reset_index()
    method = times["experiment"].map([*experiments].__getitem__)
    er = times[machine].merge(times[method == "ER"], "left", machine)["seconds_per_batch"]
    return pd.DataFrame(
        {
            "processor": times["processor"].map(short_name),
            "method": method,
            "n": times["n"],
            "per batch [ms]": 1000 * times["seconds_per_batch"],
            "times ER": times["seconds_per_batch"] / er,
            "times ER, paper": method.map(published),
            "minutes": times["seconds"] / 60,
        }
    )


def by_part(times: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds per batch by part (`ucl.benchmarks.measure.benchmark`), with ratios to ER and the fastest passes."""
    means = times[times["task"] == "mean"]
    means = means.assign(machine=means["device"].where(means["device"] != "cpu", means["processor"].map(short_name)))
    er = means[means["method"] == "ER"].set_index("memory_size")["whole_ms"]
    shares = ["" if share != share else f"{100 * share:.0f} %" for share in means["share_of_ceiling"]]
    ratios = {"times ER": means["whole_ms"] / means["memory_size"].map(er), "share of the fastest passes": shares}
    return means[[*_BY_PART]].rename(columns=_BY_PART).assign(**ratios)


def short_name(processor: str) -> str:
    """A processor's name without trademark signs: "Intel Xeon" for "Intel(R) Xeon(R) Processor"."""
    return " ".join(processor.replace("(R)", "").removesuffix("Processor").split())
