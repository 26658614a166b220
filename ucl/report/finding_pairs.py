"""The paired differences behind the finding of README.md, and their table in figures/RESULTS.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ucl.choices import UNIFORM
from ucl.config import Config
from ucl.evidence import hypotheses, paper
from ucl.evidence.effects import PAIR, effect, estimable, on_stream, streams_of
from ucl.evidence.run_measures import COMPARATORS, n_exploratory
from ucl.report.comparisons import CIFAR, count, pooled
from ucl.report.markdown import number, signed, table, wider_difference

PASSES = {  # what scoring passes do to the same networks: those of BI's own runs, and those added to ER's
    "BI": hypotheses.comparisons_of("H1", "F", expected=False)[0],
    "ER": hypotheses.comparisons_of("H1", "F")[0],
}


@dataclass(frozen=True)
class Compared:
    """Paired differences of two experiments, and the paper's mean difference in F on the same streams (NaN if none)."""

    name: str
    pairs: pd.DataFrame
    published: float


def gather(records: pd.DataFrame) -> tuple[list[Compared], pd.DataFrame, dict[str, pd.DataFrame]]:
    """All pairs behind the finding: those of `compared`, `as_published` and `of_passes`."""
    return compared(records), as_published(records), of_passes(records)


def compared(records: pd.DataFrame) -> list[Compared]:
    """The differences from a baseline that the finding reports."""
    code = paper.PUBLISHED_CODE
    blood, large = (("bloodcell", 40),), (("bloodcell", 160),)
    er, cbr = (Config(**fields) for fields in COMPARATORS.values())
    bi, entropy = Config(score="BI"), Config(score="EN", refresh=2)
    found = []
    for title, own, other, over in (
        ("BI bottom minus ER, the paper's text", bi, er, blood),
        ("BI bottom minus ER, published settings", bi.replace(**code), er.replace(**code), blood),
        ("uniform minus ER, published settings", bi.replace(score=UNIFORM, **code), er.replace(**code), blood),
        ("EN bottom, `refresh=2`, minus ER", entropy, er, CIFAR),
        ("EN bottom, `refresh=2`, minus CBR", entropy, cbr, CIFAR),
        ("EN bottom, `refresh=2`, minus CBR", entropy, cbr, large),
    ):
        pairs = pooled(records, own, other, over)
        gaps = [paper.printed_difference(stream, own.label, other.label, "F") for stream in streams_of(pairs)]
        found.append(Compared(title, pairs, sum(gaps) / len(gaps) if gaps else np.nan))
    return found


def planned(records: pd.DataFrame) -> pd.DataFrame:
    """The records of the streams and seeds for which the protocol plans BI with published settings."""
    seeds_of = hypotheses.PLANNED["published settings"]
    runs = {(*stream, seed) for stream, seeds in seeds_of.items() for seed in seeds}
    cells = zip(records["dataset"], records["memory_size"], records["seed"], strict=True)
    return records[[cell in runs for cell in cells]]


def as_published(records: pd.DataFrame) -> pd.DataFrame:
    """Pairs of BI minus ER, each tested as in the reference implementation, of the planned runs; column F."""
    (of_er,) = (one for one in hypotheses.comparisons_of("H2", "F", expected=False) if one.readings[0] == "training")
    (pairs,) = hypotheses.pairs(records, [replace(of_er, readings=("running", "running"))])
    return estimable(pairs)


def beyond_half(minus_er: pd.DataFrame, moved: pd.DataFrame) -> pd.DataFrame:
    """Pair by pair, what the scoring passes do to F minus half of BI minus ER; column F, see `finding.headline`."""
    both = moved.merge(minus_er, on=list(PAIR), suffixes=("", "_whole"))
    return both[[*PAIR]].assign(F=both["F"] - both["F_whole"] / 2)


def of_passes(records: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """By the score of the networks, pairs of statistics moved by scoring passes minus those of training; column F."""
    pairs = hypotheses.pairs(records, list(PASSES.values()))
    return dict(zip(PASSES, map(estimable, pairs), strict=True))


def behind_the_finding(compared: Sequence[Compared], minus_er: pd.DataFrame, moved: Mapping[str, pd.DataFrame]) -> str:
    """Markdown: a table of the differences in F that the finding reports, from the pairs of `gather`."""
    rows = [_row(one.name, one.pairs, one.published, " CIFAR streams") for one in compared if len(one.pairs)]
    named = [
        ("BI's networks: `running` minus `training`", moved["BI"]),
        ("ER's networks: `displaced` minus `training`", moved["ER"]),
    ]
    for stream in streams_of(minus_er):
        rest = on_stream(beyond_half(minus_er, moved["BI"]), stream)
        named.append(("BI bottom minus ER, both under `running`", on_stream(minus_er, stream)))
        named.append(("BI's networks: `running` minus `training`, minus half of the row above", rest))
    rows += [_row(title, pairs) for title, pairs in named if len(pairs)]
    head = ["difference in F, points", "data set, memory", "n", "mean [95 %]", "detectable", "exploratory", "the paper"]
    return (
        f"{table(head, rows)}\nThe interval is the wider one of two, by stream and with the seed as cluster. The last "
        "rows are behind the sentence in bold: it stands on a stream if both intervals are below 0.\n"
    )


def _row(title: str, pairs: pd.DataFrame, published: float = np.nan, several: str = " streams") -> tuple[str, ...]:
    """A row of the table of differences."""
    found, own = effect(pairs, "F"), streams_of(pairs)
    where = f"{len(own)}{several}" if len(own) > 1 else ", ".join(map(str, own[0]))
    n = count(pairs).removeprefix("n = ").partition(" on ")[0]  # "10", or "5 to 10 seeds"
    exploratory = f"{n_exploratory(pairs)} of {len(pairs)}"
    return title, where, n, wider_difference(found), number(found.larger_detectable), exploratory, signed(published)
