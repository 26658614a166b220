"""The section of figures/RESULTS.md on the hypotheses of `figures/PROTOCOL.md`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ucl.evidence.hypotheses import HYPOTHESES, SEEDS_WITHOUT_HYPOTHESIS, failed, judged, without_hypothesis
from ucl.evidence.paired import ALL_STREAMS
from ucl.report.markdown import interval, number, table, with_interval

_READINGS = (
    "Readings (`notebooks/05_readings.ipynb`): `training`, the statistics that the training steps leave; "
    "`displaced`, these after training-mode scoring passes; `running`, those of the run itself; `memory+stream`, "
    "estimated on half memory, half recent images."
)
_NOTES = {
    "H1": _READINGS,
    "H2": "CBR redraw draws at random from the images of a class, but holds mostly recent ones (in the runs of "
    "`notebooks/memory_autopsy.ipynb`). The passes that `displaced` adds are in the arithmetic of the run's scoring "
    "for BI, and in float32 for others.",
    **dict.fromkeys(
        ("H3", "H4"),
        "The comparator, uniform, holds mostly recent images (in the runs of `notebooks/memory_autopsy.ipynb`), so it "
        "is no random sample of the stream: see "
        "[random numbers as the score](#random-numbers-as-the-score-refresh2).",
    ),
}


def section(records: pd.DataFrame) -> str:
    """Markdown: each hypothesis with its comparisons over all streams, then the single streams."""
    found = judged(records)
    overall = found["dataset"] == ALL_STREAMS
    parts = [
        "The protocol's hypotheses, judged by the runs that it plans, in points. A verdict with fewer runs than "
        "planned is incomplete. *By seed* is the interval with the seed as cluster, a check. *Alone on*: on how many "
        "streams with at least two pairs the hypothesis holds alone. A comparison without an expectation is reported "
        "next to the others. "
        f"Planned runs that failed and do not count: {failed(records) or 'none'}. "
        "Planned without a hypothesis: BI top, published settings, bloodcell 40; "
        f"{without_hypothesis(records)} of {len(SEEDS_WITHOUT_HYPOTHESIS)} runs have a record."
    ]
    single = found[~overall]
    for name, text in HYPOTHESES.items():
        own = found[overall & (found["hypothesis"] == name)]
        cells = [_cells(row) | {"alone on": _alone(row, single)} for row in own.to_dict("records")]
        note = f"\n\n{_NOTES[name]}" if name in _NOTES else ""
        parts.append(f"**{name}.** {text}{note}\n\n" + table(list(cells[0]), [list(of.values()) for of in cells]))
        parts.append(_opposite(own, single))
    if len(single):
        columns = ["compared", "measure", "n of planned", "mean [95 %]", "detectable"]
        rows = []
        for row in single.to_dict("records"):
            cells_of_row = _cells(row)
            where = f"{row['dataset']}, {row['memory_size']}"
            rows.append((row["hypothesis"], where, *(cells_of_row[column] for column in columns)))
        parts.append("Stream by stream:\n\n" + table(["", "data set, memory", *columns], rows))
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _opposite(overall: pd.DataFrame, single: pd.DataFrame) -> str:
    """A list of the comparisons that are below 0 on one stream alone and above 0 on another; "" if there is none.

    Args:
        overall: rows of `ucl.evidence.hypotheses.judged` over all streams.
        single: its rows of single streams.
    """
    lines = []
    for row in overall.to_dict("records"):
        own = _of_streams(row, single)
        names = own["dataset"] + " " + own["memory_size"].astype(str)
        below, above = list(names[own["high"] < 0]), list(names[own["low"] > 0])
        if below and above:
            cells = _cells(row)
            lines.append(
                f"- {cells['compared']}, {cells['measure']}: streams differ in sign, with an interval below 0 on "
                f"{', '.join(below)} and above 0 on {', '.join(above)}."
            )
    return "\n".join(lines)


def _of_streams(row: Mapping[str, Any], single: pd.DataFrame) -> pd.DataFrame:
    """The rows of single streams that belong to a row over all streams."""
    same = ["hypothesis", "memory", "other_memory", "reading", "other_reading", "metric"]
    return single[(single[same] == pd.Series(row)[same]).all(axis=1)]


def _alone(row: Mapping[str, Any], single: pd.DataFrame) -> str:
    """On how many streams a comparison holds alone, such as "1 of 3"; "" if nothing is expected."""
    if not row["expected"]:
        return ""
    own = _of_streams(row, single)
    judged_alone = own.loc[own["verdict"] != "", "verdict"]
    return f"{(judged_alone == 'holds').sum()} of {len(judged_alone)}"


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    """The text cells of one row of `ucl.evidence.hypotheses.judged`, by their headings."""
    if row["memory"] == row["other_memory"]:
        compared = f"{row['memory']}: `{row['reading']}` minus `{row['other_reading']}`"
    else:
        under = "" if row["reading"] == "running" else f", both under `{row['reading']}`"
        compared = f"{row['memory']} minus {row['other_memory']}{under}"
    complete = row["n"] == row["planned"]
    return {
        "compared": compared,
        "measure": row["metric"],
        "expected": row["expected"] or "reported",
        "n of planned": f"{row['n']} of {row['planned']}",
        "mean [95 %]": with_interval(row["mean"], row["low"], row["high"]),
        "by seed": interval(row["low_by_seed"], row["high_by_seed"]),
        "detectable": number(row["detectable"]),
        "verdict": row["verdict"] and row["verdict"] + ("" if complete else ", incomplete"),
    }
