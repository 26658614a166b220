"""Costs in Markdown: times per batch and of whole runs, hours for Table 1, memory updates and training steps."""

from __future__ import annotations

import math

import pandas as pd

from ucl.evidence import paper
from ucl.report.markdown import number, table

_METHODS = {
    "naive": "BI, naive implementation (float32, training mode)",
    "BI refresh 1 float32": "BI, float32",
    "BI refresh 1": "BI",
    "BI refresh 10": "BI, `refresh=10`",
    "BI refresh 2": "BI, `refresh=2`",
    "ER": "ER",
}


def per_batch(times: pd.DataFrame) -> str:
    """Markdown: milliseconds per batch on each processor and memory size, and their ratio to those of ER.

    Args:
        times: figures/beside_naive.csv, a row per task; columns processor, memory_size, variant, whole_ms.
    """
    means = times.groupby(["processor", "memory_size", "variant"], sort=False)["whole_ms"].mean()
    columns = list(dict.fromkeys(index[:2] for index in means.index if index[2] == "ER"))
    rows = []
    for variant, name in _METHODS.items():
        cells = [(means.get((processor, size, variant)), means[processor, size, "ER"]) for processor, size in columns]
        rows.append((name, *(f"{ms:.0f} ms, {ms / er:.1f} × ER" if ms else "" for ms, er in cells)))
    return table(["per batch of ten images", *(f"{short_name(p)}, memory {size}" for p, size in columns)], rows)


def of_table1(times: pd.DataFrame) -> str:
    """Markdown: hours for the runs of Table 1 whose scores need views, estimated from the times of `per_batch`."""
    runs = [c for c in paper.grid("table1") if c.uses_scores and c.score != "MC"]
    means = times.groupby(["processor", "variant", "memory_size"], sort=False)["whole_ms"].mean()
    rows = []
    for processor in times["processor"].unique():
        hours = []
        for variant in ("BI refresh 1", "BI refresh 2"):
            ms = sum(means.get((processor, variant, config.memory_size), float("nan")) for config in runs)
            hours.append("" if math.isnan(ms) else f"{ms * paper.RUNTIME_BATCHES / 3.6e6:.0f} h")
        rows.append((short_name(processor), len(runs), *hours))
    return table(["processor", "runs", "everything rescored", "`refresh=2`"], rows)


def of_whole_runs(exact: pd.DataFrame, two: pd.DataFrame) -> str:
    """Markdown: the paper's Table 4 as measured, with the paper's ratios of total times.

    Args:
        exact: figures/table4_runtime.csv, see `ucl.tables.runtimes`.
        two: figures/table4_runtime_refresh.csv, the same with `refresh=2`, of which only the score is shown.
    """
    both = exact.assign(refresh="")
    if len(two):  # Without its file, the table has no columns.
        of_bi = two[two["method"].str.startswith("BI")]
        both = pd.concat([both, of_bi.assign(refresh=", `refresh=2`", published_times_er=float("nan"))])
    rows = []
    for row in both[both["n"] > 0].itertuples():
        times = (f"{row.milliseconds:.0f}", number(row.times_er, 1), f"{row.seconds / 60:.0f}")
        printed = number(row.published_times_er, 1)
        rows.append((short_name(row.processor), row.threads, f"{row.method}{row.refresh}", row.n, *times, printed))
    head = ["processor", "threads", "method", "n", "per batch [ms]", "times ER", "whole run [min]", "times ER, paper"]
    return table(head, rows)


def on_gpu(times: pd.DataFrame) -> str:
    """Markdown: milliseconds per batch on a GPU, by part, and their ratio to those of ER.

    Args:
        times: figures/benchmark_gpu.csv, see `ucl.benchmarks.measure.benchmark`.
    """
    means, facts = times[times["task"] == "mean"], times.iloc[0]
    of_er = means[means["method"] == "ER"].set_index("memory_size")["whole_ms"]
    rows = []
    for row in means.itertuples():
        parts = (row.whole_ms, row.training_ms, row.views_ms, row.forwards_ms, row.selection_ms)
        ratio = number(row.whole_ms / of_er.get(row.memory_size, float("nan")))
        rows.append((f"{row.method}, memory {row.memory_size}", *(f"{ms:.1f}" for ms in parts), ratio))
    head = ["method", "whole batch [ms]", "training", "views", "passes", "selection", "times ER"]
    shares = means.dropna(subset=["share_of_ceiling"])
    several = means["memory_size"].nunique() > 1
    reached = ", ".join(
        f"{row.method}{f' with {row.memory_size}' if several else ''} {100 * row.share_of_ceiling:.0f} %"
        for row in shares.itertuples()
    )
    return (
        f"{facts['device']}, torch {facts['torch']}, commit {commit_in_words(facts['commit'])}, one run alone on it, "
        f"everything rescored, scored in {facts['scoring_precision']}, without CUDA graphs; medians of "
        f"{facts['repeats']} batches per task, mean over the tasks of a stream in the shape of CIFAR-10, all methods "
        "in turns (`ucl benchmark`). "
        "Parts were timed separately.\n\n"
        f"{table(head, rows)}\n"
        f"The network's fastest passes have {facts['ceiling_images_per_s']:,.0f} images per second. Of that, whole "
        f"memory updates (views, passes and selection) reach: {reached or 'not measured'}.\n"
    )


def of_updates(times: pd.DataFrame) -> str:
    """Markdown: the time of a memory update without scoring, by image size and memory size.

    Args:
        times: figures/benchmark_updates.csv, see `ucl.benchmarks.updates.update_times`; with a column processor.
    """
    smallest = times.groupby("image_size")["update_ms"].transform("first")
    rows = []
    for row in times.assign(ratio=times["update_ms"] / smallest).itertuples():
        numbers = (f"{row.memory_size:,}", f"{row.update_ms:.2f}", f"{row.ratio:.1f}", f"{row.sorting_ms:.2f}")
        rows.append((short_name(row.processor), row.image_size, *numbers))
    head = ["processor", "pixels per side", "memory", "update [ms]", "times the smallest's", "of it sorting [ms]"]
    return table(head, rows)


def of_training_step(times: pd.DataFrame) -> str:
    """Markdown: the time of a training step of ER compared with a plain contiguous float32 step, measured in turns.

    Args:
        times: see `per_batch`; with a column step_ms.
    """
    steps = times[times["variant"].isin(["plain step", "ER step"])]
    means = steps.groupby(["processor", "threads", "variant"])["step_ms"].mean().unstack("variant")
    means["ratio"] = means["plain step"] / means["ER step"]
    rows = [
        (short_name(processor), threads, f"{row['plain step']:.1f}", f"{row['ER step']:.1f}", f"{row['ratio']:.2f}")
        for (processor, threads), row in means.iterrows()
    ]
    return table(["processor", "threads", "plain step [ms]", "this package's step [ms]", "times as fast"], rows)


def of_bfloat16(kept: pd.DataFrame) -> str:
    """Markdown: how many of the images kept by bfloat16 scores are also kept by float32 scores of the same views.

    Args:
        kept: figures/scoring_cost_precision.csv: one row per task, columns dataset, memory_size, seed, kept,
            kept_by_both.
    """
    streams = kept.groupby(["dataset", "memory_size"])
    sums = streams[["kept", "kept_by_both"]].sum().assign(runs=streams["seed"].nunique())
    rows = [
        (f"{dataset}, {size}", runs, n, n_both, f"{100 * n_both / n:.2f} %")
        for (dataset, size), (n, n_both, runs) in zip(sums.index, sums.to_numpy().tolist(), strict=True)
    ]
    return table(["data set, memory", "runs", "kept images", "also kept in float32", "share"], rows)


def load(times: pd.DataFrame) -> str:
    """How busy the machines were: "load at the start 2.37 (AMD EPYC, 2 cores)"; columns processor, cores, load."""
    machines = times[["processor", "cores", "load"]].drop_duplicates().itertuples(index=False)
    found = [f"{busy:g} ({short_name(name)}, {cores} cores)" for name, cores, busy in machines]
    return f"load at the start {', '.join(found)}"


def commit_in_words(commit: str) -> str:
    """The first digits of a commit; a "+" at its end stands for changes that were not committed."""
    return f"{commit[:7]}, with changes" if commit.endswith("+") else commit[:7]


def short_name(processor: str) -> str:
    """A processor's name without trademark signs: "Intel Xeon" for "Intel(R) Xeon(R) Processor"."""
    return " ".join(processor.replace("(R)", "").removesuffix("Processor").split())
