"""Records grouped by method, for figures: whether they can be averaged, names, and mixed arithmetic."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable

from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.legend import Legend

from ucl.catalogue import method_order
from ucl.errors import InputError
from ucl.evidence import paper
from ucl.records import Record, failures
from ucl.records.runs import in_words, listed, varying

ADD = "add a condition (in Python: ucl.where), such as --where"


def by_label(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records of each method, by its label, in the order of all figures."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.config.label, []).append(record)
    return {label: groups[label] for label in method_order(groups)}


def same_but_for_seed(records: Iterable[Record]) -> None:
    """Check that records can be averaged.

    Raises:
        InputError: there is none, two records of a method differ in more than the seed, or two records of a data set
            were measured on different images; the message has a condition to add.
    """
    records = list(records)
    if not records:
        reason = "there is nothing to draw: none of these runs is measured; `ucl.sweep` measures them"
        raise InputError("", None, reason)
    images: dict[str, str] = {}
    for record in records:
        first = images.setdefault(record.config.dataset, record.version.images)
        if first != record.version.images:
            reason = f"were measured on images of fingerprint {first} and {record.version.images}"
            raise InputError("records", record.config.dataset, f"{reason}; {ADD} fingerprint={first}")
    for label, runs in by_label(records).items():
        if differing := varying(runs, ["readings"]):  # They are further results of the same run.
            name, values = next(iter(differing.items()))
            by_default = {not paper.settings(record.config) for record in runs}
            defaults = "settings= (the defaults) or --where " if len(by_default) > 1 else ""
            example = shlex.quote(f"{name}={listed(values[:1])}")
            reason = f"the runs of {label} differ in {in_words(differing)}; {ADD} {defaults}{example}"
            raise InputError("", None, reason)


def name_mixed_arithmetic(figure: Figure, records: Iterable[Record], above: Legend | None = None) -> None:
    """Write above a figure which methods have runs scored in different arithmetics; nothing if none has.

    The note is the figure's title, or that of the legend if one is above the axes (`above`).
    """
    used = {label: {record.arithmetic for record in runs} - {""} for label, runs in by_label(records).items()}
    mixed = [f"{label} scored in {' and '.join(sorted(names))}" for label, names in used.items() if len(names) > 1]
    if mixed:
        note = textwrap.fill("; ".join(mixed), int(14 * figure.get_figwidth()))
        if above is not None:  # matplotlib would print the figure's title over this legend
            above.set_title(note, FontProperties(size="small"))
        else:
            figure.suptitle(note, fontsize="small")


def names_of(records: Iterable[Record]) -> dict[str, str]:
    """The name of each method in a figure: its label and, in brackets, how many of its runs failed and are left out.

    A long name, such as that of a user score, has several lines.
    """
    failed = {label: failures(runs) for label, runs in by_label(records).items()}
    return {label: textwrap.fill(f"{label} ({n})" if n else label, 32) for label, n in failed.items()}
