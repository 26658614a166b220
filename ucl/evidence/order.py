"""The order of methods in all tables and figures."""

from __future__ import annotations

from collections.abc import Iterable

PAPER = ("ER", "CBR", "A-GEM", "Finetune", "LC", "MS", "RC", "EN", "RM", "MC", "BI")
"""The methods of the paper: baselines, then scores."""
RIVALS = ("Joint", "ER-ACE", "DER++", "MIR", "LARS", "MoF", "Herding", "GSS", "MOE", "Rainbow", "OCS")
"""Further methods of the literature; `ucl.paper.rivals` has published numbers of some."""
ORDER = (*PAPER[:4], *RIVALS, *PAPER[4:])
_SELECTIONS = ("bottom", "step", "top")


def method_order(labels: Iterable[str]) -> list[str]:
    """Method labels without repeats: baselines, then rivals, then scores; each score in the order bottom, step, top."""

    def rank(label: str) -> tuple:
        name, _, selection = label.partition(" ")
        known = ORDER.index(name) if name in ORDER else len(ORDER)
        return known, name, _SELECTIONS.index(selection) if selection in _SELECTIONS else 0, label

    return sorted(dict.fromkeys(labels), key=rank)
