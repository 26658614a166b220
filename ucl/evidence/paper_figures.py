"""The paper's own figures: records or images in, a matplotlib figure out. Style and colours are those of `plots`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from ucl.evidence.plots import STYLE, color, method_order, name_mixed_arithmetic, names_of, same_but_for_seed
from ucl.records.runs import apart_from_failures


def relative_improvement(runs: pd.DataFrame) -> Figure:
    """How much less a score forgets than ER, in per cent of ER's forgetting: bottom-k and top-k (paper, figure 1).

    Args:
        runs: see `ucl.load_records`; ER must be among them for each data set and memory size that is drawn.

    Returns:
        A panel a data set and memory size; bars are means over the seeds that both have, dots single seeds. Above 0
        a memory forgets less than a random one. Runs that failed (`Record.failure`) are left out, and a panel's names
        say how many.

    Raises:
        InputError: the runs of a method in a panel differ in more than the seed.
    """
    _check_panels(runs)
    sound, _ = apart_from_failures(runs)
    er = sound[sound["label"] == "ER"].set_index(["dataset", "memory_size", "seed"])["last_forgetting"]
    scored = runs[runs["label"].str.endswith((" bottom", " top"))]
    scored = scored.join(er.rename("er"), on=["dataset", "memory_size", "seed"]).dropna(subset=["er"])
    failed = np.array([record.failure != "" for record in scored["record"]], dtype=bool)
    scored = scored.assign(gain=(100 * (scored["er"] - scored["last_forgetting"]) / scored["er"]).mask(failed))
    panels = list(scored.groupby(["dataset", "memory_size"]))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            1, max(len(panels), 1), figsize=(1.2 + 3.6 * max(len(panels), 1), 3.6), sharey=True, squeeze=False
        )
        for ax, ((dataset, size), panel) in zip(axes[0], panels):
            names = names_of(panel["record"])
            labels = list(names)
            for row, label in enumerate(labels):
                values = panel.loc[panel["label"] == label, "gain"]
                ax.bar(row, values.mean(), color=color(label), hatch="" if label.endswith("bottom") else "///")
                ax.plot(np.full(len(values), row), values, "o", color="black", ms=3, alpha=0.6)
            ax.axhline(0, color="black", lw=0.8)
            ax.set_xticks(range(len(labels)), names.values(), rotation=60, ha="right")
            ax.set_title(f"{dataset}, memory {size:.0f}")
        axes[0, 0].set_ylabel("reduction of F against ER [%]\n(below 0: forgets more)")
        name_mixed_arithmetic(figure, scored["record"])
    return figure


def task_accuracy(runs: pd.DataFrame) -> Figure:
    """Accuracy on each task at the end of the stream (paper, figure 3).

    Args:
        runs: see `ucl.load_records`.

    Returns:
        A row a data set with a scale of its own, a panel a memory size. Bars are means over seeds, whiskers their
        sample standard deviation (none for a single seed); a "0" marks a mean below half a per cent. A method
        without a run is not in a panel. Runs that failed (`Record.failure`) are left out, and the legend says how
        many there are.

    Raises:
        InputError: the runs of a method in a panel differ in more than the seed.
    """
    _check_panels(runs)
    sound, _ = apart_from_failures(runs)
    rows = [
        (r.config.dataset, r.config.memory_size, r.config.label, i + 1, 100 * a)
        for r in sound["record"]
        for i, a in enumerate(r.accuracy[-1])
    ]
    table = pd.DataFrame(rows, columns=["dataset", "memory_size", "label", "task", "accuracy"])
    sizes = {name: sorted(own["memory_size"].unique()) for name, own in table.groupby("dataset")}
    height, width = max(len(sizes), 1), max(map(len, sizes.values()), default=1)
    handles: dict[str, Any] = {}  # bars, which matplotlib does not call artists
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            height, width, figsize=(3 + 5 * width, 1.4 + 2.2 * height), sharey="row", squeeze=False
        )
        for row, (dataset, memories) in zip(axes, sizes.items()):
            for ax, size in itertools.zip_longest(row, memories):
                if size is None:
                    ax.set_axis_off()
                    continue
                own = table[(table["dataset"] == dataset) & (table["memory_size"] == size)]
                handles |= _task_bars(ax, own)
                ax.set_title(f"{dataset}, memory {size:.0f}")
            of_bar = table[table["dataset"] == dataset].groupby(["memory_size", "label", "task"])["accuracy"]
            highest = (of_bar.mean() + of_bar.std(ddof=1).fillna(0)).max()
            row[0].set(ylabel="accuracy [%]", ylim=(0, min(102, 1.1 * max(5, highest))))
        figure.supxlabel("task, in the order of the stream", fontsize="medium")
        names = names_of(runs.get("record", []))
        if names:
            columns = int(figure.get_figwidth() / (0.6 + 0.1 * max(map(len, names.values()))))
            bars = [handles.get(label, plt.Rectangle((0, 0), 1, 1, fill=False, lw=0)) for label in names]
            figure.legend(bars, names.values(), loc="outside upper center", ncols=max(1, columns))
        name_mixed_arithmetic(figure, runs["record"])
    return figure


def _task_bars(ax: Axes, runs: pd.DataFrame) -> dict[str, BarContainer]:
    """The bars of one panel, by method; see `task_accuracy`."""
    labels, tasks = method_order(runs["label"]), sorted(runs["task"].unique())
    width = 0.85 / len(labels)
    digit = min(9, 72 * 4.5 / len(tasks) * width / 0.64)  # points; 0.64 of it wide: no wider than a bar in 4.5 inches
    whisker = {"lw": min(1.5, 30 * width)}
    bars = {}
    for row, label in enumerate(labels):
        of_task = runs[runs["label"] == label].groupby("task")["accuracy"]
        mean, std = of_task.mean(), of_task.std(ddof=1).fillna(0)
        at = mean.index + (row - (len(labels) - 1) / 2) * width
        hatch = "///" if label.endswith("top") else ""
        bars[label] = ax.bar(at, mean, width, yerr=std, color=color(label), hatch=hatch, label=label, error_kw=whisker)
        ink = np.array(color(label))
        ink *= min(1, 0.55 / (ink @ (0.2126, 0.7152, 0.0722)))  # its luminance: as dark as can be read on white
        mark: dict[str, Any] = dict(textcoords="offset points", ha="center", color=ink, size=digit, weight="bold")
        for x, y in zip(at[mean < 0.5], (mean + std)[mean < 0.5]):
            ax.annotate("0", (x, y), (0, 2), **mark)
    ax.set_xticks(tasks)
    return bars


def view_grid(views: np.ndarray, names: Sequence[str], originals: np.ndarray) -> Figure:
    """Images and their test-time views: a row an image, a column a view (paper, appendix A.1).

    Args:
        views: (P, N, H, W, C), in [0, 1].
        names: of the P views.
        originals: (N, H, W, C), uint8.
    """
    columns = [("as it is", originals / 255), *zip(names, views)]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(originals), len(columns), figsize=(0.85 * len(columns), 0.4 + 0.95 * len(originals)), squeeze=False
        )
        for at, (name, block) in enumerate(columns):
            axes[0, at].set_title(name.replace(" ", "\n", 1), fontsize=7)
            for ax, image in zip(axes[:, at], block):
                ax.imshow(image if image.shape[-1] == 3 else image[..., 0], cmap="gray", vmin=0, vmax=1)
                ax.axis("off")
    return figure


def maps(panels: Mapping[str, np.ndarray], points: np.ndarray, labels: np.ndarray, extent: Sequence[float]) -> Figure:
    """Scores over a plane, with the data on top (paper, figure 2): dark is certain, bright uncertain.

    Args:
        panels: for each title a map (R, R) of scores, first row at the bottom.
        points: (N, 2), the data.
        labels: (N,), their classes.
        extent: left, right, bottom, top of the maps.
    """
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.6), squeeze=False)
        for ax, (title, values) in zip(axes[0], panels.items()):
            image = ax.imshow(values, origin="lower", extent=extent, cmap="cividis", aspect="auto")
            for label, marker in zip(np.unique(labels), "osD^v"):
                ax.scatter(*points[labels == label].T, s=9, marker=marker, color="white", edgecolor="black", lw=0.4)
            ax.set(title=title, xlabel="$x_1$", ylabel="$x_2$")
            figure.colorbar(image, ax=ax)
    return figure


def _check_panels(runs: pd.DataFrame) -> None:
    for _, panel in runs.groupby(["dataset", "memory_size"], dropna=False):
        same_but_for_seed(panel["record"])
