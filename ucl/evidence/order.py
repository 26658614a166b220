"""The order of methods in all tables and figures."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ucl.choices import SELECTIONS

PAPER = ("ER", "CBR", "A-GEM", "Finetune", "LC", "MS", "RC", "EN", "RM", "MC", "BI")
"""The methods of the paper and Finetune: baselines, then scores."""
PAPER_SCORES = PAPER[4:]
"""The scores of the paper, its own last."""
RIVALS = ("Joint", "ER-ACE", "DER++", "MIR", "LARS", "MoF", "Herding", "GSS", "MOE", "Rainbow", "OCS")
"""Further methods of the literature; `ucl.paper.rivals` has published numbers of some."""
ORDER = (*PAPER[:4], *RIVALS, *PAPER_SCORES)


def method_and_selection(label: str) -> tuple[str, str]:
    """The method and the selection in a label, such as "BI" and "top"; the selection is "" where the label has none.

    Words about settings may follow: "BI bottom, published settings" is of BI, "CBR redraw" of CBR.
    """
    found = re.fullmatch(rf"(.+?) ({'|'.join(SELECTIONS)})(, .*)?", label)
    if found:
        return found[1], found[2]
    first = label.partition(" ")[0]
    return (first, "") if first in ORDER else (label, "")


def method_order(labels: Iterable[str]) -> list[str]:
    """Method labels without repeats: baselines, then rivals, then scores; each score in the order bottom, step, top."""

    def rank(label: str) -> tuple:
        name, selection = method_and_selection(label)
        known = ORDER.index(name) if name in ORDER else len(ORDER)
        return known, _by_value(name), list(SELECTIONS).index(selection) if selection else 0, label

    return sorted(dict.fromkeys(labels), key=rank)


def _by_value(name: str) -> list[tuple[str, float]]:
    """A key that sorts numbers in names by their value: f(k=2) before f(k=10)."""
    texts, numbers = re.split(r"\d+(?:\.\d+)?", name), re.findall(r"\d+(?:\.\d+)?", name)
    return list(zip(texts, [*map(float, numbers), 0.0], strict=True))
