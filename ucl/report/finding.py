"""The finding, as README.md reports it: a sentence and two tables, chosen by code from the numbers of the records."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ucl.evidence.effects import effect, on_stream, streams_of
from ucl.evidence.run_measures import TESTED, by_reading, moved_by_scoring
from ucl.report import finding_pairs
from ucl.report.markdown import number, table, wider_difference


def finding(records: pd.DataFrame) -> dict[str, str]:
    """The finding in two blocks of Markdown, by name.

    Args:
        records: see `ucl.load_records`.

    Returns:
        "finding": a sentence on what explains the lower F, and F of networks that are tested several times.
        "differences": a table of paired differences in F.
    """
    return _finding(records, finding_pairs.as_published(records), finding_pairs.of_passes(records))


def with_headlines_pairs(records: pd.DataFrame) -> str:
    """Markdown: the finding, then a table of what its sentence in bold rests on."""
    minus_er, moved = finding_pairs.as_published(records), finding_pairs.of_passes(records)
    blocks = "\n".join(_finding(records, minus_er, moved).values()).replace("](figures/", "](")
    return (
        f"{blocks}\n"
        "The sentence in bold holds on a stream if both intervals are below 0:\n\n"
        f"{finding_pairs.behind_the_headline(minus_er, moved)}"
    )


def _finding(records: pd.DataFrame, minus_er: pd.DataFrame, moved: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    if records.empty:
        return {"finding": "No record.\n", "differences": "No record.\n"}
    networks = networks_tested_again(by_reading(finding_pairs.planned(records)))
    differences = (
        "Paired differences, in points; bottom-k if not named. *Published settings* are the reference "
        "implementation's; ER has its defaults unless the row says *both*. The paper's difference is *reproduced* if "
        "the whole interval is beyond half of it, *excluded* if it is short of that, otherwise *undecided*. "
        "*Clear on*: how many streams alone exclude 0, if not all. *CBR redraw*, the reference "
        "implementation's, and *uniform* choose at random, but hold mostly recent images. *Exploratory*: seeds "
        "measured before the [protocol](figures/PROTOCOL.md).\n\n"
        f"{finding_pairs.differences_in_f(records, minus_er, moved)}"
    )
    return {"finding": headline(minus_er, moved["BI"]) + networks, "differences": differences}


def headline(minus_er: pd.DataFrame, moved: pd.DataFrame) -> str:
    """A paragraph above the table, "" if the numbers do not carry it: what explains most of BI's lower F.

    It names the streams on which F of BI is lower than ER's, and what the scoring passes do to F is more than half of
    that difference: the difference between both, pair by pair, has its whole interval below 0. A stream on which BI's
    F is not lower, or the passes do less than half, is named as one where the sentence does not hold; others that have
    both intervals are undecided. A sentence has the differences in A on these streams.

    Args:
        minus_er: pairs of BI minus ER with published settings; columns A and F.
        moved: pairs of BI's networks, after minus before the scoring passes; column F.
    """
    found: dict[str, list[str]] = {"": [], "not on ": [], "undecided on ": []}
    in_a = []
    beyond_half = finding_pairs.beyond_half(minus_er, moved)
    for stream in streams_of(minus_er):
        whole, rest = (effect(on_stream(pairs, stream), "F") for pairs in (minus_er, beyond_half))
        if np.isnan([whole.wider.low, rest.wider.low]).any():
            continue
        if whole.wider.high < 0 and rest.wider.high < 0:
            word = ""
        else:
            word = "not on " if whole.wider.low > 0 or rest.wider.low > 0 else "undecided on "
        name = f"{stream[0]} {stream[1]}"
        found[word].append(f"{name}, n = {rest.n}")
        in_a.append(f"{wider_difference(effect(on_stream(minus_er, stream), 'A'))} ({name})")
    if not found[""]:
        return ""
    where = "; ".join(f"{word}{'; '.join(streams)}" for word, streams in found.items() if streams)
    return (
        "**With the reference implementation's settings, more than half of BI's lower forgetting than ER's comes from "
        f"the BatchNorm statistics that tests read ({where}).** This comparison was chosen after the runs, as was BI "
        f"minus ER. In A, BI minus ER is {', '.join(in_a)} points.\n\n"
    )


def networks_tested_again(readings: pd.DataFrame) -> str:
    """Markdown: a table of F of the same networks under the readings `TESTED`.

    Args:
        readings: see `ucl.evidence.run_measures.by_reading`.

    Returns:
        An introduction and the table; "" without such networks.
    """
    means = moved_by_scoring(readings)
    if means.empty:
        return ""
    columns = (*TESTED, "published")
    rows, last = [], None
    for row in means.to_dict("records"):
        stream = f"{row['dataset']} {row['memory_size']}, n = {row['n']}"
        cells = [number(row[f"F_{name}"]) for name in columns]
        rows.append((stream if stream != last else "", row["method"].partition(",")[0], *cells))
        last = stream
    return (
        "The reference implementation scores in training mode, which moves BatchNorm's running statistics; only tests "
        "read them. F of the same networks in per cent: under the statistics of training (`training`), with scoring "
        "passes added (`displaced`), and as the reference implementation tests, but on all test images (`running`: "
        "only BI's runs have scored).\n\n"
        f"{table(['data set, memory', 'method', *(f'`{name}`' for name in TESTED), 'the paper'], rows)}"
    )
