"""Figures of readings: the same networks, tested with several sets of BatchNorm statistics."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ucl.evidence import paper
from ucl.plots.effects import PAPER, paper_mark, stream_name
from ucl.plots.style import color, styled


@styled
def tested_again(table: pd.DataFrame) -> Figure:
    """F of BI's networks, as the run tests them and with the statistics of training, next to ER's.

    Large marks are means, small dots seeds, hollow diamonds the paper's means. The table is that of
    `ucl.evidence.run_measures.by_reading`; streams without BI's networks are left out.
    """
    bi = "BI bottom, published settings"
    marks = {
        ("ER", "running"): "ER",
        (bi, "running"): "BI, tested as in the reference implementation",
        (bi, "training"): "the same networks, with the statistics of training",
    }
    streams = [
        (stream, part) for stream, part in table.groupby(["dataset", "memory_size"]) if bi in set(part["method"])
    ]
    figure, ax = plt.subplots(figsize=(5.5, 1.1 + 0.62 * len(streams)))
    handles, names = {}, []
    for y, (stream, part) in enumerate(streams):
        by_test = part.set_index(["method", "reading"])["F"].sort_index()
        for i, ((method, reading), text) in enumerate(marks.items()):
            at, f, filled = y + 0.26 * (i - 1), by_test.loc[method, reading], reading == "running"
            shade, marker = color(method), "s" if filled else "o"
            ax.plot(f, np.full(len(f), at), "o", color=shade, ms=3, alpha=0.4, mew=0)
            (handles[text],) = ax.plot(f.mean(), at, marker, color=shade, mfc=shade if filled else "white", ms=7)
            if filled:
                ax.plot(paper.printed(stream, method, "F"), at, **PAPER | {"ms": 5})
        names.append(f"{stream_name(*stream)}, n = {len(by_test.loc[bi, 'running'])}")
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.45, -0.55)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("last forgetting F [%]")
    ax.grid(axis="x", color="0.9")
    ax.set_axisbelow(True)
    handles["the paper"] = paper_mark()
    figure.legend(list(handles.values()), list(handles), loc="outside upper left")
    return figure
