"""The paired differences behind the finding of README.md, and their table in figures/RESULTS.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ucl.catalogue import UNIFORM
from ucl.config import Config
from ucl.evidence import hypotheses, paper
from ucl.evidence.effects import PAIR, against_paper, effect, estimable, on_stream, streams_of
from ucl.evidence.run_measures import COMPARATORS
from ucl.report.comparisons import CIFAR, GROUPNORM, count, early, pooled
from ucl.report.markdown import signed, table, wider_difference

PASSES = {  # what scoring passes do to the same networks: those of BI's own runs, and those added to ER's
    "BI": hypotheses.comparisons_of("H1", "F", expected=False)[0],
    "ER": hypotheses.comparisons_of("H1", "F")[0],
}


@dataclass(frozen=True)
class Compared:
    """Paired differences in F.

    Attributes:
        name: what is compared.
        pairs: see `ucl.evidence.effects.differences`; column F.
        published: the paper's mean difference on the same streams; NaN if it has none.
        note: what follows n, such as ", incomplete".
    """

    name: str
    pairs: pd.DataFrame
    published: float = np.nan
    note: str = ""


def _of_the_paper(records: pd.DataFrame, minus_er: pd.DataFrame) -> list[Compared]:
    """BI with published settings minus ER, one difference per stream, and with those of the paper's text."""
    found = [
        _beside_paper("BI, published settings, minus ER", on_stream(minus_er, one), "BI bottom", "ER")
        for one in streams_of(minus_er)
    ]
    er, own = Config(**COMPARATORS["ER"]), Config(score="BI")
    in_text = pooled(records, own, er, [("bloodcell", 40)])
    return [
        *found,
        _beside_paper("BI minus ER, the paper's text", in_text, "BI bottom", "ER", early(in_text)),
    ]


def _of_statistics(records: pd.DataFrame, moved: Mapping[str, pd.DataFrame]) -> list[Compared]:
    """What scoring passes do to F of the same networks, and BI minus a random choice where they do nothing."""
    same = [
        Compared(
            f"{whose}'s networks, `{one.readings[0]}` minus `training`", moved[whose], note=one.incomplete(moved[whose])
        )
        for whose, one in PASSES.items()
    ]
    of_redraw = hypotheses.comparisons_of("H2", "F")
    tables = map(estimable, hypotheses.pairs(records, of_redraw))
    equal = [
        Compared(f"BI minus CBR redraw, both `{one.readings[0]}`", pairs, note=one.incomplete(pairs))
        for one, pairs in zip(of_redraw, tables, strict=True)
    ]
    cbr = Config(**COMPARATORS["CBR"], model=GROUPNORM)
    without = pooled(records, Config(score="BI", model=GROUPNORM), cbr, [("bloodcell", 40)])
    return [*same, *equal, Compared("BI minus CBR, GroupNorm instead of BatchNorm", without, note=early(without))]


def _of_scores(records: pd.DataFrame) -> list[Compared]:
    """Random numbers as the score and the selection of BI, with published settings, and EN with `refresh=2`."""
    published = Config(score="BI", **paper.PUBLISHED_CODE)
    bloodcell, er = [("bloodcell", 40)], published.replace(**COMPARATORS["ER"])
    random_minus_er = pooled(records, published.replace(score=UNIFORM), er, bloodcell)
    of_bi = pooled(planned(records), published, published.replace(selection="top"), bloodcell)
    found = [
        Compared("uniform minus ER, both published settings", random_minus_er, note=early(random_minus_er)),
        Compared("BI bottom minus BI top, published settings", of_bi),
    ]
    (of_uniform,) = hypotheses.comparisons_of("H3", "F")
    (of_cbr,) = (one for one in hypotheses.comparisons_of("H3", "F", expected=False) if one.memories[1] == "CBR")
    minus_uniform, minus_cbr = map(estimable, hypotheses.pairs(records, [of_uniform, of_cbr]))
    found.append(
        _beside_paper("EN minus CBR, `refresh=2`", minus_cbr, "EN bottom", "CBR", of_cbr.incomplete(minus_cbr))
    )
    found.append(Compared("EN minus uniform, `refresh=2`", minus_uniform, note=of_uniform.incomplete(minus_uniform)))
    return found


def _beside_paper(title: str, pairs: pd.DataFrame, label: str, other: str, note: str = "") -> Compared:
    """Differences of two methods, with the paper's mean difference on the same streams."""
    gaps = [paper.printed_difference(stream, label, other, "F") for stream in streams_of(pairs)]
    return Compared(title, pairs, float(np.mean(gaps)) if gaps else np.nan, note)


def planned(records: pd.DataFrame) -> pd.DataFrame:
    """The records of the streams and seeds for which the protocol plans BI with published settings."""
    seeds_of = hypotheses.PLANNED["published settings"]
    runs = {(*stream, seed) for stream, seeds in seeds_of.items() for seed in seeds}
    cells = zip(records["dataset"], records["memory_size"], records["seed"], strict=True)
    # The same images with other tasks or tests are another stream.
    plain = (paper.stream_of(record.config) == record.config.dataset_name for record in records["record"])
    return records[[cell in runs and of_paper for cell, of_paper in zip(cells, plain, strict=True)]]


def as_published(records: pd.DataFrame) -> pd.DataFrame:
    """Pairs of BI minus ER, each tested as in the reference implementation, of the planned runs."""
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


def differences_in_f(records: pd.DataFrame, minus_er: pd.DataFrame, moved: Mapping[str, pd.DataFrame]) -> str:
    """Markdown: a table of the differences that the finding reports, without those that have no pairs.

    Args:
        records: all records.
        minus_er: of `as_published`.
        moved: of `of_passes`.
    """
    return _table([*_of_the_paper(records, minus_er), *_of_statistics(records, moved), *_of_scores(records)])


def behind_the_headline(minus_er: pd.DataFrame, moved: Mapping[str, pd.DataFrame]) -> str:
    """Markdown: a table of what the finding's sentence in bold rests on, see `differences_in_f`."""
    rest, rows = beyond_half(minus_er, moved["BI"]), []
    for stream in streams_of(minus_er):
        rows.append(Compared("BI minus ER, both `running`", on_stream(minus_er, stream)))
        half = "BI's networks, `running` minus `training`, minus half of the row above"
        rows.append(Compared(half, on_stream(rest, stream)))
    return _table(rows)


def _table(rows: Sequence[Compared]) -> str:
    head = ["difference in F", "mean [95 %]", "n", "the paper"]
    cells = [_row(one) for one in rows if len(one.pairs)]
    names = ["", *(name for name, *_ in cells)]
    shown = ["" if name == above else name for (name, *_), above in zip(cells, names, strict=False)]
    return table(head, [(name, *own) for name, (_, *own) in zip(shown, cells, strict=True)])


def _row(one: Compared) -> tuple[str, ...]:
    """The cells of one difference: its name, the wider interval, n, and the paper's."""
    found = effect(one.pairs, "F")
    published = signed(one.published)
    if published:
        published += f", {against_paper(found.wider, one.published)}"
    return one.name, wider_difference(found), support(one.pairs, "F", one.note), published


def clear_on(pairs: pd.DataFrame, metric: str) -> str:
    """On how many streams the own interval excludes 0 on the side of the mean: "clear on 3"; "" if on all."""
    own, sign = streams_of(pairs), np.sign(effect(pairs, metric).mean)
    clear = sum((sign * np.array(effect(on_stream(pairs, one), metric).wider) > 0).all() for one in own)
    return f"clear on {clear}" if clear < len(own) > 1 else ""


def support(pairs: pd.DataFrame, metric: str, note: str = "") -> str:
    """What a difference rests on, such as "4 seeds on 4 CIFAR streams, incomplete; clear on 1"."""
    return "; ".join(filter(None, [f"{where_and_n(pairs)}{note}", clear_on(pairs, metric)]))


def where_and_n(pairs: pd.DataFrame) -> str:
    """Such as "bloodcell 40, n = 10", or "2 to 10 seeds on 3 streams", or on "4 CIFAR streams"."""
    own = streams_of(pairs)
    if len(own) == 1:
        return f"{own[0][0]} {own[0][1]}, {count(pairs)}"
    return count(pairs).replace(" streams", " CIFAR streams") if set(own) <= set(CIFAR) else count(pairs)
