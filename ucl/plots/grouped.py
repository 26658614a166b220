"""Records grouped by method, for figures: whether they can be averaged, the methods' names, and their arithmetic."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from matplotlib.figure import Figure

from ucl.errors import InputError
from ucl.evidence.order import method_order
from ucl.records import Record, failures
from ucl.records.runs import in_words, varying


def by_label(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records of each method, by its label."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.config.label, []).append(record)
    return groups


def same_but_for_seed(records: Iterable[Record]) -> None:
    """Check that records can be averaged: there are some, and those of each method differ only in the seed.

    Raises:
        InputError: there is none, or two records of a method differ in more than the seed, or two records of a data set
            were measured on different images.
    """
    records = list(records)
    if not records:
        raise InputError(
            "", None, "there is nothing to draw: none of these runs is measured; `ucl.sweep` measures them"
        )
    images: dict[str, str] = {}
    for record in records:
        known = images.setdefault(record.config.dataset, record.version.images)
        if known != record.version.images:
            reason = f"were measured on images of fingerprint {known} and {record.version.images}; draw those of one"
            raise InputError("records", record.config.dataset, reason)
    for label, own in by_label(records).items():
        if differing := varying(own):
            reason = f"differ in {in_words(differing)}, and means are over seeds alone; choose some by ucl.where"
            raise InputError("records", label, reason)


def name_mixed_arithmetic(figure: Figure, records: Iterable[Record]) -> None:
    """Write above a figure which methods have runs scored in different arithmetics; nothing if none has."""
    used = {label: {record.arithmetic for record in own} - {""} for label, own in by_label(records).items()}
    mixed = [f"{label} scored in {' and '.join(sorted(names))}" for label, names in used.items() if len(names) > 1]
    if mixed:
        figure.suptitle(textwrap.fill("; ".join(mixed), int(14 * figure.get_figwidth())), fontsize="small")


def names_of(records: Iterable[Record]) -> dict[str, str]:
    """The name of each method in a figure: its label and, in brackets, how many of its runs failed and are left out.

    A long name, such as that of a user's own score, has several lines.
    """
    failed = {label: failures(own) for label, own in by_label(records).items()}
    names = {label: f"{label} ({failed[label]})" if failed[label] else label for label in method_order(failed)}
    return {label: textwrap.fill(name, 32) for label, name in names.items()}
