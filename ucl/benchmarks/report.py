"""Output of a benchmark: the table in a terminal, CSV and figure."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ucl.benchmarks.measure import PARTS
from ucl.catalogue import method_order
from ucl.plots import style
from ucl.plots.paper import rescoring
from ucl.records.record import processor_of
from ucl.report.costs import short_name

# Names of the parts and neutral looks: colours are used for methods.
_PART_NAMES = {"forwards": "forward passes"}
_LOOKS: tuple[dict[str, Any], ...] = (
    {"color": "0.85"},
    {"color": "white", "hatch": "...."},
    {"color": "white", "hatch": "////"},
    {"color": "white", "hatch": "xxxxxx"},
)
# Lines of one colour take these in turn.
_MARKERS = "os^Dv"
_DASHES = ("-", "--", "-.", ":")


def write(table: pd.DataFrame, output: str | Path) -> list[Path]:
    """Write a benchmark's table as <output>.csv and its figure as <output>.png and .pdf; returns the CSV and PNG."""
    csv = Path(f"{output}.csv")
    table.to_csv(csv, index=False, float_format="%.5g")  # first: no picture that fails may lose what was measured
    figure = picture(table)
    png = style.save(figure, output)
    plt.close(figure)
    return [csv, png]


def picture(table: pd.DataFrame) -> Figure:
    """Time per batch: left by part, middle over the stream, both at the smallest memory; right over the memory size."""
    is_mean = table["task"] == "mean"
    labels = method_order(table["method"])
    sizes = sorted(table["memory_size"].unique())
    smallest = table["memory_size"] == sizes[0]
    with plt.rc_context(style.STYLE):
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 2 + 0.26 * max(len(labels), 7)))
        bars = table[smallest & is_mean].set_index("method").loc[labels]
        start = np.zeros(len(labels))
        for part, look in zip(PARTS, _LOOKS, strict=True):
            name = _PART_NAMES.get(part, part)
            left.barh(labels, bars[f"{part}_ms"], 0.7, left=start, label=name, edgecolor="0.4", lw=0.6, **look)
            start = start + bars[f"{part}_ms"].to_numpy()
        left.plot(bars["whole_ms"], labels, "|", color="black", ms=13, mew=2, label="whole step, timed in a run")
        left.invert_yaxis()
        left.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.45, -0.18), ncols=3, columnspacing=0.8)
        left.set(xlabel="time per batch [ms]", title=f"Memory {sizes[0]}: by part")
        middle.sharey(right)
        markers: defaultdict[Any, Iterator[str]] = defaultdict(lambda: itertools.cycle(_MARKERS))
        for label in labels:
            is_method, shade = table["method"] == label, style.color(label)
            # Methods such as CBR with 1 and with 2 updates have one colour.
            line = dict(marker=next(markers[shade]), ls=style.dash(label), ms=4, color=shade, label=label)
            middle.plot("task", "whole_ms", data=table[is_method & smallest & ~is_mean], **line)
            right.plot("memory_size", "whole_ms", data=table[is_method & is_mean].sort_values("memory_size"), **line)
        middle.set(
            xlabel="task being learnt", ylabel="time per batch [ms]", title=f"Memory {sizes[0]}: over the stream"
        )
        right.set(xlabel="memory [images]", yscale="log", title="By size of the memory")
        right.set_xticks(sizes, [str(size) for size in sizes])
        style.legend_of_names(figure, right.lines, labels, loc="outside right center")
        facts = table.iloc[0]
        figure.suptitle(
            f"{processor_of(facts.to_dict())}, threads: {facts['threads']}, scoring in {facts['scoring_precision']}, "
            f"{rescoring(facts['refresh'])}; left and right: mean over the tasks of {facts['dataset']}",
            fontsize="small",
        )
    return figure


def against_refresh(runs: pd.DataFrame, cost: pd.DataFrame) -> Figure:
    """Accuracy, forgetting and time per batch as functions of `refresh`, the number of rescored images.

    Args:
        runs: one row per run: dataset, memory_size, refresh, A and F (per cent). Small marks are runs, large marks and
            lines their means; a band is the mean plus and minus one sample standard deviation of the runs at refresh 1.
        cost: one row per processor, variant and task: processor, memory_size, refresh (NaN for experience replay), task
            and whole_ms (per batch). The panel over tasks is for the last processor.
    """
    counts = sorted({*runs["refresh"], *cost["refresh"].dropna()} - {1.0})
    ticks_of = {refresh: tick for tick, refresh in enumerate([*counts, 1.0])}
    names = [*(f"{count:g}" for count in counts), "all"]
    with plt.rc_context(style.STYLE):
        figure, axes = plt.subplots(2, 2, figsize=(9.6, 6.4))
        for ax, column, title in zip(axes[0], ("A", "F"), ("last accuracy A [%]", "last forgetting F [%]")):
            shade = style.COLORS["BI"]
            shifts = itertools.cycle((-0.05, 0.05, 0))
            for (size, rows), mark, shift in zip(runs.groupby("memory_size"), itertools.cycle(_MARKERS), shifts):
                x = rows["refresh"].map(ticks_of) + shift
                exact = rows.loc[rows["refresh"] == 1, column]
                middle, spread = exact.mean(), exact.std(ddof=1)
                means = rows.groupby(x)[column].mean()
                ax.plot(means, f"{mark}-", color=shade, mfc="white", ms=7, label=f"memory {size:.0f}")
                is_first = size == runs["memory_size"].min()
                run_label, band_label = ("one run", "all: mean ± 1 std") if is_first else ("", "")  # once in the legend
                ax.plot(x, rows[column], mark, color=shade, ms=3.5, alpha=0.6, label=run_label)
                ax.axhspan(middle - spread, middle + spread, color=shade, alpha=0.12, lw=0, label=band_label)
            ax.set_ylabel(f"{title}, {' and '.join(map(style.plain, runs['dataset'].unique()))}")
        shape = "noise like cifar10"  # what `tests/beside_naive.py` learns
        means = cost.groupby(["processor", "memory_size", "refresh"], dropna=False)["whole_ms"].mean().reset_index()
        er = means[means["refresh"].isna()].drop(columns="refresh")
        scored = means.dropna().merge(er, on=["processor", "memory_size"], suffixes=("", "_er"))
        scored = scored.assign(tick=scored["refresh"].map(ticks_of), times=scored["whole_ms"] / scored["whole_ms_er"])
        processors = list(dict.fromkeys(cost["processor"]))
        for processor, dash in zip(processors, itertools.cycle(_DASHES)):
            by_size = scored[scored["processor"] == processor].sort_values("tick").groupby("memory_size")
            for (size, rows), mark in zip(by_size, itertools.cycle(_MARKERS)):
                line = dict(marker=mark, linestyle=dash, color=style.COLORS["BI"], mfc="none")
                axes[1, 0].plot("tick", "times", data=rows, **line, label=f"memory {size:.0f}, {short_name(processor)}")
        axes[1, 0].axhline(1, color=style.COLORS["ER"], lw=1, label="ER")
        axes[1, 0].set(ylabel=f"time per batch [times that of ER],\n{shape}", yscale="log")
        axes[1, 0].set_yticks(ticks := [1, 2, 5, 10, 20], list(map(str, ticks)))
        for ax in (*axes[0], axes[1, 0]):
            ax.set_xticks(range(len(names)), names)
            ax.set(xlabel="stored images rescored per class (refresh)", xlim=(-0.3, len(names) - 0.7))
            ax.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
        largest = cost["memory_size"].max()
        stream = cost[(cost["memory_size"] == largest) & (cost["processor"] == processors[-1])].set_index("task")
        axes[1, 1].plot(
            stream.loc[stream["refresh"].isna(), "whole_ms"], "o-", ms=4, color=style.COLORS["ER"], label="ER"
        )
        for refresh, name, dash in zip(ticks_of, names, itertools.cycle(_DASHES)):
            times = stream.loc[stream["refresh"] == refresh, "whole_ms"]
            axes[1, 1].plot(times, f"o{dash}", ms=4, color=style.COLORS["BI"], label=f"refresh {name}")
        axes[1, 1].set(
            xlabel=f"task being learnt (memory {largest}, {short_name(processors[-1])})",
            ylabel=f"time per batch [ms],\n{shape}",
        )
        axes[1, 1].set(yscale="log", ylim=(10, None))
        axes[1, 1].set_xticks(sorted(set(stream.index)))
        axes[1, 1].legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return figure


def summary(table: pd.DataFrame) -> str:
    """A benchmark's means over the stream in a few lines of text, for a terminal."""
    facts, mean = table.iloc[0], table[table["task"] == "mean"].set_index(["memory_size", "method"])
    er = mean["whole_ms"].xs("ER", level="method") if "ER" in mean.index.unique("method") else pd.Series(dtype=float)
    columns = {"ms / batch": mean["whole_ms"], **{part: mean[f"{part}_ms"] for part in PARTS}}
    columns["x ER"] = mean["whole_ms"] / mean.index.get_level_values("memory_size").map(er).to_numpy()
    columns["% of ceiling"] = 100 * mean["share_of_ceiling"]
    shown = pd.DataFrame(columns).dropna(axis=1, how="all").round(2).reset_index()
    lines = [shown.to_string(index=False, na_rep="")]
    top = mean["ceiling_gflop_per_s"].mean()
    lines.append(
        f"ceiling: {mean['ceiling_images_per_s'].mean():,.0f} images/s in {facts['scoring_precision']} "
        f"({facts['ceiling_float32_images_per_s']:,.0f} in float32), {top:,.0f} GFLOP/s: "
        f"{100 * top / facts['product_gflop_per_s']:.0f} % of a matrix product's {facts['product_gflop_per_s']:,.0f}"
    )
    rate, plain = facts["training_mode_images_per_s"], facts["plain_training_mode_images_per_s"]
    lines.append(f"in training mode: {rate:,.0f} images/s, {rate / plain:.1f} times that of successive passes")
    lines.append(
        f"threads: {facts['threads']}, {facts['device']} ({facts['processor']}), load {facts['load']:g} at the start, "
        f"peak memory {facts['peak_memory_mib']} MiB in total"
    )
    return "\n".join(lines)
