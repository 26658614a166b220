"""The paper's figures: records or images in, a matplotlib figure out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from ucl.catalogue import PAPER_SCORES, method_order
from ucl.evidence import paper
from ucl.plots.grouped import Records, same_but_for_seed
from ucl.plots.images import Images, image_table
from ucl.plots.style import SEED, WIDTH, legend, plain, styled
from ucl.records import as_table
from ucl.records.runs import count_range, latest, without_failures


def most_measured(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs without scores and, per data set and memory size, the scored runs of one value of `refresh`.

    It is the value with the most runs; of values with equally many runs, the smallest. A run that was measured more
    than once counts once.
    """
    runs = latest(runs.reset_index(drop=True)).sort_index()
    scored = np.array([record.config.uses_scores for record in runs["record"]], dtype=bool)
    refresh = runs["refresh"].astype(float).where(scored)
    by_stream = refresh.groupby([runs["dataset"], runs["memory_size"]])
    return runs[~scored | (refresh == by_stream.transform(lambda values: values.mode().min()))]


_GREYS = {"the paper": "white", "published settings": "0.15", "everything rescored": "0.5", "refresh=2": "0.8"}
"""The bars of figure 1, and their greys."""


@styled
def relative_improvement(reductions: pd.DataFrame) -> Figure:
    """How much less a score forgets than ER, in per cent of ER's forgetting: bottom-k and top-k (paper, figure 1).

    One row of panels per data set and memory size of `ucl.evidence.run_measures.reductions`. White bars are the
    paper's, grey ones means over seeds, dots single seeds. Above 0, a memory forgets less than ER's random one.
    """
    by_stream = dict(list(reductions.groupby(["dataset", "memory_size"])))
    in_order = paper.published()[["dataset", "memory_size"]].drop_duplicates().itertuples(index=False, name=None)
    streams = [(stream, by_stream[stream]) for stream in in_order if stream in by_stream]
    size = WIDTH, 0.4 + 1.45 * len(streams)
    figure, axes = plt.subplots(len(streams), 2, figsize=size, sharey="row", squeeze=False)
    bars = [name for name in _GREYS if name in {"the paper", *reductions["setting"]}]
    width = 0.85 / len(bars)
    for row, ((dataset, memory_size), panel) in zip(axes, streams):
        for ax, selection in zip(row, ("bottom", "top")):
            for score, bar in itertools.product(PAPER_SCORES, bars):
                label = f"{score} {selection}"
                gains = panel.loc[(panel["label"] == label) & (panel["setting"] == bar), "reduction"]
                height = gains.mean() if bar != "the paper" else paper.printed_reduction((dataset, memory_size), label)
                x = PAPER_SCORES.index(score) + (bars.index(bar) - (len(bars) - 1) / 2) * width
                ax.bar(x, height, width, color=_GREYS[bar], edgecolor="black", lw=0.6)
                ax.plot([x] * len(gains), gains, **SEED | {"ms": 2.5})
            ax.set_visible(panel["label"].str.endswith(selection).any())
            ax.axhline(0, color="black", lw=0.8)
            ax.set_xlim(-0.6, len(PAPER_SCORES) - 0.4)
            ax.set_xticks(range(len(PAPER_SCORES)), PAPER_SCORES)
            ax.set_title(f"{plain(dataset)}, memory {memory_size:.0f}: {selection}-k")
    figure.supylabel("reduction of F against ER [%]", fontsize="medium")
    handles = [plt.Rectangle((0, 0), 1, 1, fc=_GREYS[bar], ec="black", lw=0.6) for bar in bars]
    legend(figure, handles, bars)
    return figure


@styled
def task_accuracy(records: Records) -> Figure:
    """Accuracy on each task at the end of the stream, in per cent, means over the seeds (paper, figure 3).

    One panel per data set and memory size, with one value of `refresh` (`most_measured`), one row per method; a method
    without a memory is in each panel of its data set. White: not measured. Runs that failed (`Record.failure`) are left
    out.

    Raises:
        InputError: the runs of a method in a panel differ in more than the seed.
    """
    runs = latest(as_table(records))
    for _, panel in runs.groupby(["dataset", "memory_size"], dropna=False):
        same_but_for_seed(panel)
    sound = without_failures(runs)
    panels = [
        ((dataset, size), group[group["memory_size"].isin([size, math.nan])])
        for dataset, group in sound.groupby("dataset")
        for size in sorted(group["memory_size"].dropna().unique()) or [math.nan]
    ]
    methods = [method_order(panel["label"]) for _, panel in panels]
    rows = [max(map(len, methods[i : i + 2])) for i in range(0, len(panels), 2)]
    size = WIDTH, 0.4 + sum(0.72 + 0.17 * n for n in rows)
    figure, axes = plt.subplots(len(rows), 2, figsize=size, squeeze=False, height_ratios=rows)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    for ax, ((dataset, size), panel), labels in zip(axes.flat, panels, methods):
        last = pd.DataFrame([record.accuracy[-1] for record in panel["record"]])
        means = 100 * last.groupby(panel["label"].to_numpy()).mean().loc[labels]
        tasks = range(1, 1 + means.shape[1])
        look: dict[str, Any] = dict(vmin=0, vmax=100, cmap="Blues", cbar=False, annot_kws={"size": 7})
        sns.heatmap(means, ax=ax, annot=len(tasks) <= 10, fmt=".0f", xticklabels=tasks, yticklabels=labels, **look)
        ax.tick_params(length=0, rotation=0)
        memory = "" if math.isnan(size) else f", memory {size:.0f}"
        refreshes = {record.config.refresh for record in panel["record"] if record.config.uses_scores}
        settings = ["everything rescored" if refresh == 1 else f"refresh={refresh:g}" for refresh in refreshes]
        n = f"n = {count_range(panel.groupby('label').size())}"
        ax.set_title(f"{plain(dataset)}{memory}\n{', '.join([*settings, n])}")
    figure.supxlabel("task, in the order of the stream", fontsize="medium")
    return figure


@styled
def memories(panels: Mapping[str, Mapping[str, Images]], columns: int = 5) -> Figure:
    """Images of several memories side by side, one panel per memory (paper, figure 4).

    Args:
        panels: for each title its rows: names, the same in all panels, and images.
        columns: images per line; a row with more images takes several lines.
    """
    names = next(iter(panels.values()))
    written_out = ["immature\ngranulocyte" if name == "ig" else name for name in names]  # of BloodMNIST
    return image_table(written_out, {title: [rows[name] for name in names] for title, rows in panels.items()}, columns)


@styled
def view_grid(images: Sequence[np.ndarray], names: Sequence[str]) -> Figure:
    """Images and their test-time views, two rows of pictures per image (paper, appendix A.1).

    Args:
        images: for each image itself and its P views (1 + P, H, W, C), in [0, 1].
        names: of the P views.
    """
    columns = math.ceil((len(names) + 1) / 2)
    figure, axes = plt.subplots(2 * len(images), columns, figsize=(5.5, 2.1 * len(images)), squeeze=False)
    for ax in axes.flat:
        ax.axis("off")
    for row, block in zip(axes.reshape(len(images), -1), images):
        for ax, name, image in zip(row, ["original", *names], block):
            ax.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="none")
            ax.set_title(name.replace(" ", "\n", 1), fontsize=7)
    return figure


@styled
def maps(panels: Mapping[str, np.ndarray], points: np.ndarray, labels: np.ndarray, extent: Sequence[float]) -> Figure:
    """Scores over a plane, with the data on top (paper, figure 2): dark is certain, bright uncertain.

    Args:
        panels: for each title a map (R, R) of scores, first row at the bottom.
        points: (N, 2), the data.
        labels: (N,), their classes.
        extent: left, right, bottom, top of the maps.
    """
    figure, axes = plt.subplots(1, len(panels), figsize=(2.75 * len(panels), 2.4), squeeze=False)
    for ax, (title, values) in zip(axes[0], panels.items()):
        image = ax.imshow(values, origin="lower", extent=extent, cmap="cividis", aspect="auto")
        for label, marker in zip(np.unique(labels), "osD^v"):
            ax.scatter(*points[labels == label].T, s=5, marker=marker, color="white", edgecolor="black", lw=0.4)
        ax.set(title=title, xlabel="$x_1$", ylabel="$x_2$")
        figure.colorbar(image, ax=ax)
    return figure
