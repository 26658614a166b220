"""The paper's figures: records or images in, a matplotlib figure out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from ucl.catalogue import method_order
from ucl.plots.grouped import name_mixed_arithmetic, names_of, same_but_for_seed
from ucl.plots.style import SEED, color, legend_of_names, plain, shortened, styled, widest
from ucl.records.runs import count_range, without_failures

# Without interpolation: smoothed natural images make files twice as large.
_PIXELS: dict[str, Any] = {"cmap": "gray", "interpolation": "none"}


def rescoring(refresh: float) -> str:
    """The setting `refresh` in words, for titles and tables."""
    return "everything rescored" if refresh == 1 else f"refresh={refresh:g}"


def most_measured(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs without scores and, per data set and memory size, the scored runs of one value of `refresh`.

    It is the value with the most runs; of values with equally many runs, `refresh=1` (everything rescored).

    Args:
        runs: see `ucl.load_records`.
    """

    def chosen(refresh: pd.Series) -> float:
        most = refresh.mode()
        return 1.0 if 1 in set(most) else most.max()

    scored = np.array([record.config.uses_scores for record in runs["record"]], dtype=bool)
    refresh = runs["refresh"].astype(float).where(scored)
    return runs[~scored | (refresh == refresh.groupby([runs["dataset"], runs["memory_size"]]).transform(chosen))]


@styled
def relative_improvement(runs: pd.DataFrame) -> Figure:
    """How much less a score forgets than ER, in per cent of ER's forgetting: bottom-k and top-k (paper, figure 1).

    Args:
        runs: see `ucl.load_records`; ER must be among them for each data set and memory size that is drawn.

    Returns:
        One panel per data set, memory size and value of `refresh`. Bars are means over the seeds that both methods
        have, dots are single seeds. Above 0, a memory forgets less than ER's random one. Seeds at which ER's F is not
        above 0 are left out, also of n in the title: nothing was forgotten that could be reduced. Panels of one data
        set have the same scale. Runs that failed (`Record.failure`) are left out, and a panel's names say how many.

    Raises:
        InputError: the runs of a method, data set and memory size differ in more than the seed and `refresh`.
    """
    for _, panel in runs.groupby(["dataset", "memory_size"], dropna=False):
        same_but_for_seed(replace(record, config=record.config.replace(refresh=1)) for record in panel["record"])
    sound, _ = without_failures(runs)
    er = sound[sound["label"] == "ER"].set_index(["dataset", "memory_size", "seed"])["last_forgetting"]
    scored = runs[runs["label"].str.endswith((" bottom", " top"))]
    scored = scored.join(er[er > 0].rename("er"), on=["dataset", "memory_size", "seed"]).dropna(subset=["er"])
    failed = np.array([record.failure != "" for record in scored["record"]], dtype=bool)
    scored = scored.assign(gain=(100 * (scored["er"] - scored["last_forgetting"]) / scored["er"]).mask(failed))
    panels = list(scored.groupby(["dataset", "memory_size", "refresh"]))
    n_panels = max(len(panels), 1)
    width, height = min(3, n_panels), math.ceil(n_panels / 3)
    figure, axes = plt.subplots(height, width, figsize=(1.2 + 3.6 * width, 3.8 * height), squeeze=False)
    for ax in axes.flat[n_panels:]:
        ax.set_axis_off()
    scales: dict[str, list[Axes]] = {}
    for ax, ((dataset, size, refresh), panel) in zip(axes.flat, panels):
        names = names_of(panel["record"])
        for x, label in enumerate(names):
            gains = panel.loc[panel["label"] == label, "gain"]
            ax.bar(x, gains.mean(), **_look(label))
            ax.plot([x] * len(gains), gains, **SEED)
        ax.axhline(0, color="black", lw=0.8)
        ax.set_xticks(range(len(names)), names.values(), rotation=60, ha="right")
        ax.set_xlim(-0.6, max(len(names), 4) - 0.4)
        scales.setdefault(dataset, []).append(ax)
        n = _n_runs(without_failures(panel)[0])
        ax.set_title(f"{plain(dataset)}, memory {size:.0f}\n{rescoring(refresh)}, {n}")
    for group in scales.values():
        low, high = zip(*(ax.get_ylim() for ax in group))
        plt.setp(group, ylim=(min(low), max(high)))
    plt.setp(axes[:, 0], ylabel="reduction of F against ER [%]\n(below 0: forgets more)")
    name_mixed_arithmetic(figure, scored["record"])
    return figure


@styled
def task_accuracy(runs: pd.DataFrame) -> Figure:
    """Accuracy on each task at the end of the stream (paper, figure 3).

    Args:
        runs: see `ucl.load_records`; `most_measured` leaves one value of `refresh` per panel.

    Returns:
        One row per data set, with its own scale; one panel per memory size. Bars are means over seeds, whiskers their
        sample standard deviation (none for a single seed); a "0" marks a mean below half a per cent. A panel shows only
        methods that have a run; a method without a memory is in each panel of its data set. The title has the number of
        seeds and, if there are runs with scores, the setting `refresh`. Runs that failed (`Record.failure`) are left
        out, and the legend says how many there are.

    Raises:
        InputError: the runs of a method in a panel differ in more than the seed.
    """
    for _, panel in runs.groupby(["dataset", "memory_size"], dropna=False):
        same_but_for_seed(panel["record"])
    sound, _ = without_failures(runs)
    rows = [
        (r.config.dataset, size, r.config.label, r.config.refresh if r.config.uses_scores else math.nan, i + 1, 100 * a)
        for r, size in zip(sound["record"], sound["memory_size"])
        for i, a in enumerate(r.accuracy[-1])
    ]
    table = pd.DataFrame(rows, columns=["dataset", "memory_size", "label", "refresh", "task", "accuracy"])
    by_dataset = table.groupby("dataset")["memory_size"]
    sizes = {name: sorted(values.dropna().unique()) or [math.nan] for name, values in by_dataset}
    height, width = max(len(sizes), 1), max(map(len, sizes.values()), default=1)
    size = (3 + 5 * width, 1.4 + 2.4 * height)
    figure, axes = plt.subplots(height, width, figsize=size, sharey="row", squeeze=False)
    for row, (dataset, memories) in zip(axes, sizes.items()):
        of_dataset = table[table["dataset"] == dataset]
        for ax in row[len(memories) :]:
            ax.set_axis_off()
        for ax, size in zip(row, memories):
            panel = of_dataset[(of_dataset["memory_size"] == size) | of_dataset["memory_size"].isna()]
            _task_bars(ax, panel)
            settings = [f"scores: {rescoring(refresh)}" for refresh in panel["refresh"].dropna().unique()]
            memory = "" if math.isnan(size) else f", memory {size:.0f}"
            n = _n_runs(panel[panel["task"] == 1])
            ax.set_title(f"{plain(dataset)}{memory}\n{', '.join([*settings, n])}")
        bar_values = of_dataset.groupby(["memory_size", "label", "task"], dropna=False)["accuracy"]
        highest = (bar_values.mean() + bar_values.std(ddof=1).fillna(0)).max()
        row[0].set(ylabel="accuracy [%]", ylim=(0, min(102, 1.1 * max(5, highest))))
    figure.supxlabel("task, in the order of the stream", fontsize="medium")
    names = names_of(runs["record"])
    drawn = None
    if names:
        columns = max(1, int(figure.get_figwidth() / (0.6 + 0.1 * max(map(len, names.values())))))
        bars = [plt.Rectangle((0, 0), 1, 1, **_look(label)) for label in names]
        drawn = legend_of_names(figure, bars, list(names.values()), loc="outside upper center", ncols=columns)
    name_mixed_arithmetic(figure, runs["record"], drawn)
    return figure


def _n_runs(runs: pd.DataFrame) -> str:
    """The number of runs per method, as "n = 5" or "n = 3 to 5"."""
    return "n = 0" if runs.empty else f"n = {count_range(runs.groupby('label').size())}"


def _look(label: str) -> dict[str, Any]:
    """The look of a method's bars."""
    return dict(facecolor=color(label), hatch="///" if label.endswith("top") else "", edgecolor="white", lw=0)


def _task_bars(ax: Axes, runs: pd.DataFrame) -> None:
    """The bars of one panel; see `task_accuracy`."""
    labels, tasks = method_order(runs["label"]), sorted(runs["task"].unique())
    width = 0.85 / len(labels)
    # In points. A digit is 0.64 times as wide as high; it is no wider than a bar of a panel that is 4.5 inches wide.
    digit = min(9, 72 * 4.5 / len(tasks) * width / 0.64)
    whisker = {"lw": min(1.5, 30 * width)}
    for index, label in enumerate(labels):
        by_task = runs[runs["label"] == label].groupby("task")["accuracy"]
        mean, std = by_task.mean(), by_task.std(ddof=1).fillna(0)
        centers = mean.index + (index - (len(labels) - 1) / 2) * width
        bars: Any = ax.bar(centers, mean, width, yerr=std, error_kw=whisker, **_look(label))
        for line in bars.errorbar.lines[-1]:  # a white rim makes it visible on dark bars
            line.set_path_effects([withStroke(linewidth=2 * whisker["lw"], foreground="white")])
        ink = np.array(color(label))
        # Limit the luminance, so that the digit is legible on white.
        ink *= min(1, 0.55 / (ink @ (0.2126, 0.7152, 0.0722)))
        mark: dict[str, Any] = dict(textcoords="offset points", ha="center", color=ink, size=digit, weight="bold")
        for x, y in zip(centers[mean < 0.5], (mean + std)[mean < 0.5]):
            ax.annotate("0", (x, y), (0, 2), **mark)
    ax.set_xticks(tasks)


@styled
def memories(panels: Mapping[str, Mapping[str, Sequence[np.ndarray]]], columns: int = 5) -> Figure:
    """Images of several memories side by side, one panel per memory (paper, figure 4).

    Args:
        panels: for each title its rows; a row is its name and its images (H, W, C), uint8, C = 1 or 3. All panels have
            the same row names, which are printed on the left.
        columns: images per line; a row with more images takes several lines.
    """
    lines = {
        name: max(1, *(math.ceil(len(rows[name]) / columns) for rows in panels.values()))
        for name in next(iter(panels.values()))
    }
    texts = [line for name in lines for line in _written_out(name).splitlines()]
    short = dict(zip(texts, map(plain, shortened(texts, 16)), strict=True))
    n_lines, starts = sum(lines.values()), list(itertools.accumulate(lines.values(), initial=0))
    left = max(1.2, 0.15 + 1.05 * widest(short.values(), 8.33))  # inches, for names in the font size "small"
    width, height = left + 0.1 + 0.55 * columns * len(panels), 0.4 + 0.5 * n_lines
    figure = plt.figure(figsize=(width, height), layout="none")
    blocks = figure.add_gridspec(
        1, len(panels), left=left / width, right=1 - 0.05 / width, bottom=0.02, top=1 - 0.35 / height, wspace=0.06
    )
    for column, (title, rows) in enumerate(panels.items()):
        grid = blocks[column].subgridspec(n_lines, columns, wspace=0.06, hspace=0.06).subplots(squeeze=False)
        grid[0, columns // 2].set_title(title)
        for ax in grid.flat:
            ax.set_axis_off()
        for (name, n), start in zip(lines.items(), starts):
            for ax, image in zip(grid[start : start + n].flat, rows[name]):
                ax.imshow(image, **_PIXELS, vmin=0, vmax=255)
            if column == 0:
                middle = dict(x=-0.2, y=1 - n / 2, ha="right", va="center", fontsize="small")
                row_name = "\n".join(short[line] for line in _written_out(name).splitlines())
                grid[start, 0].text(s=row_name, transform=grid[start, 0].transAxes, **middle)
    return figure


def _written_out(class_name: str) -> str:
    """The name of a class on two lines if it is BloodMNIST's "ig": its files have the short name or a long one."""
    is_ig = class_name == "ig" or class_name.startswith("immature granulocytes")
    return "immature\ngranulocyte" if is_ig else class_name


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
            ax.imshow(image, **_PIXELS, vmin=0, vmax=1)
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
