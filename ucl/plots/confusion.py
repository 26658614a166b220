"""The figure of the classes that a network confuses, over the stream."""

from __future__ import annotations

import shlex
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.figure import Figure

from ucl.errors import InputError
from ucl.plots.grouped import ADD, Records, by_label, names_of, same_but_for_seed
from ucl.plots.style import shortened, styled
from ucl.records.predictions import confusion
from ucl.records.runs import listed

_EARLIER = 5  # the most panels of earlier tasks
_WITH_NUMBERS, _WITH_NAMES = 12, 30  # the most classes with numbers in the cells, and with names


@styled
def class_confusion(records: Records) -> Figure:
    """How the test images of each class (rows) are predicted (columns), in per cent of the row: one method.

    Small: after earlier tasks. Large: at the end, with the names of up to 30 classes, and with numbers above 0.5 % for
    up to 12. Counts are summed over the seeds. If all runs share the order of the classes, the picture has it, and
    lines separate the tasks; otherwise the classes have the order of their labels.

    Raises:
        InputError: the runs are of several methods, or one was measured without `predictions`.
    """
    records = same_but_for_seed(records)
    (label, *others), first = by_label(records), records[0]
    if others:
        methods = f"one method, and these are {listed([label, *others])}"
        raise InputError("", None, f"the picture shows {methods}; {ADD} {shlex.quote(f'label={label}')}")
    shown = [record for record in records if not record.failure] or records
    shared = all(record.class_order == first.class_order for record in shown)
    order = first.class_order if shared else list(range(len(first.classes)))
    counts_TCC = np.sum([confusion(record) for record in shown], axis=0)[:, order][:, :, order]
    names = shortened([first.classes[c] for c in order], 18)
    task_C = (counts_TCC.sum(2) > 0).argmax(0)  # in which each class is tested first; 0 without test images
    borders = np.flatnonzero(np.diff(np.maximum.accumulate(task_C))) + 1 if shared else np.array([], int)
    n_TC1 = counts_TCC.sum(2, keepdims=True)
    shares_TCC = 100 * counts_TCC / np.where(n_TC1 > 0, n_TC1, np.nan)

    last, n_names = len(shares_TCC) - 1, len(names)
    earlier = np.unique(np.linspace(0, last - 1, min(last, _EARLIER)).round().astype(int)).tolist()
    rows: Any = [earlier, [last] * len(earlier)] if last else [[last]]
    figure, axes = plt.subplot_mosaic(rows, height_ratios=[1, 4.6] if last else [1], figsize=(5.5, 4.2 + len(rows)))
    for task, ax in axes.items():
        look: dict[str, Any] = dict(vmin=0, vmax=100, cmap="Blues", square=True, xticklabels=False, yticklabels=False)
        if task == last and n_names <= _WITH_NUMBERS:
            numbers = np.where(shares_TCC[task] > 0.5, np.char.mod("%.0f", np.nan_to_num(shares_TCC[task])), "")
            look |= dict(annot=numbers, fmt="", annot_kws={"size": 7})
        sns.heatmap(shares_TCC[task], ax=ax, cbar=task == last, cbar_kws={"shrink": 0.8}, **look)
        ax.set_facecolor("0.88")
        for draw in (ax.hlines, ax.vlines):
            draw(borders, 0, n_names, color="black", lw=0.7 if task == last else 0.3)
        ax.set_title(f"after task {task + 1}", fontsize=8)
    if last:
        axes[earlier[len(earlier) // 2]].set_xlabel("grey: not tested", fontsize=7)
    if n_names <= _WITH_NAMES:
        ax.set_xticks(np.arange(n_names) + 0.5, names, fontsize=7, rotation=0 if max(map(len, names)) < 3 else 90)
        ax.set_yticks(np.arange(n_names) + 0.5, names, fontsize=7, rotation=0)
        ax.tick_params(length=0)
    n = f", n = {len(shown)}" if len(shown) > 1 else ""
    ax.set_title(f"{names_of(records)[label]} at the end{n}", fontsize=9)
    ax.set_xlabel("predicted class", fontsize=8)
    ax.set_ylabel("true class", fontsize=8)
    bar = figure.axes[-1]
    bar.tick_params(labelsize=7)
    bar.set_ylabel("share of the row's test images [%]", fontsize=8)
    return figure
