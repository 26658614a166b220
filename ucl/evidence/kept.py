"""Markdown: what memories keep, from the tables of `notebooks/memory_autopsy.ipynb`."""

from __future__ import annotations

import pandas as pd

from ucl.evidence.effects import Interval
from ucl.evidence.markdown import interval, signed, table
from ucl.evidence.plots import method_order

_TRAITS = {"easy": "easy", "typical": "typical", "agrees": "label predicted"}


def of_kept(differences: pd.DataFrame) -> str:
    """Markdown: how easy, typical and clean kept images are, compared with a random memory.

    Args:
        differences: figures/memory_autopsy_effects.csv, see `ucl.studies.memory_swap.against`.
    """
    if differences.empty:
        return "No table yet (`notebooks/memory_autopsy.ipynb`).\n"
    rows = []
    methods = pd.Categorical(differences["method"], method_order(differences["method"]))
    groups = differences.assign(method=methods).groupby(["dataset", "memory_size", "method"], observed=True)
    for (dataset, size, method), own in groups:
        of_trait = own.set_index("measure").to_dict("index")
        cells = [
            f"{signed(100 * found['mean'])} {interval(Interval(100 * found['low'], 100 * found['high']))}"
            for found in (of_trait[trait] for trait in _TRAITS)
        ]
        rows.append((dataset, size, method, own["n"].max(), *cells))
    head = ["data set", "memory", "method", "n", *_TRAITS.values()]
    return (
        "Images in the final memories, described by networks that have not learnt them. *Easy* is the rank of the loss "
        "within the class (1: lowest), *typical* the rank of the cosine to the class's mean features (1: closest), "
        "*label predicted* the share of images whose label these networks predict. Differences from CBR, paired by "
        "seed, in points of 100, with the settings of the paper's text; exploratory. "
        f"[The picture](memory_autopsy.png), [each run](memory_autopsy.csv).\n\n{table(head, rows)}"
    )
