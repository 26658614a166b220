"""The finding, as README.md reports it: sentences and a table, chosen by code from the numbers of the records."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ucl.choices import SCORE_NAMES, UNIFORM
from ucl.config import Config
from ucl.evidence import hypotheses, paper
from ucl.evidence.effects import Effect, effect, estimable
from ucl.evidence.run_measures import COMPARATORS, n_exploratory
from ucl.report.comparisons import CIFAR, KEPT_NUMBERS, count, pooled
from ucl.report.markdown import difference, excludes_zero, number, signed, table

NOT_DISTINGUISHABLE = "not distinguishable from"
_BLOODCELL = (("bloodcell", 40),)


def finding(records: pd.DataFrame) -> str:
    """Markdown: the finding as a list, and a table of its numbers; one sentence instead if some of them are missing.

    Args:
        records: see `ucl.load_records`; of each data set on one version of its images.
    """
    code = paper.PUBLISHED_CODE
    blood, large = _BLOODCELL, (("bloodcell", 160),)
    er, cbr = (Config(**fields) for fields in COMPARATORS.values())
    bi, entropy = Config(score="BI"), Config(score="EN", refresh=2)
    compared: tuple[tuple[str, Config, Config, tuple[tuple[str, int], ...]], ...] = (
        ("BI bottom minus ER, the paper's text", bi, er, blood),
        ("BI bottom minus ER, published settings", bi.replace(**code), er.replace(**code), blood),
        ("uniform minus ER, published settings", bi.replace(score=UNIFORM, **code), er.replace(**code), blood),
        ("EN bottom, `refresh=2`, minus ER", entropy, er, CIFAR),
        ("EN bottom, `refresh=2`, minus CBR", entropy, cbr, CIFAR),
        ("EN bottom, `refresh=2`, minus CBR", entropy, cbr, large),
    )
    pairs = [pooled(records, own, other, over) for _, own, other, over in compared]
    found = [effect(one, "F") for one in pairs]
    if any(np.isnan(one.wider.low) for one in found):
        return "Not all of the runs behind the finding have records.\n"
    n = [where_and_n(one) for one in pairs]
    plain, coded, chance = map(called, found[:3])
    moved, items, last_rows = _same_networks(records)
    early, total = sum(map(n_exploratory, pairs)), sum(map(len, pairs))
    exploratory = "all" if early == total else early
    text = (
        f"{headline(pairs[1], moved)}"
        "- With the settings of the paper's text, F of BI with bottom-k is "
        f"{plain} ER's ({n[0]}).\n"
        f"- With published settings, those of the reference implementation, F of BI is {coded} ER's ({n[1]})"
        f"{_beside_lower_f(records, pairs[1])}. F of uniform is {chance} ER's ({n[2]}).\n"
        f"{items}{_of_entropy(records, pairs[4])}\n"
        f"In rows 1 to {len(compared)}, {exploratory} of {total} pairs are [exploratory](figures/PROTOCOL.md)."
    )
    printed = (
        paper.published().query("metric == 'F'").set_index(["dataset", "memory_size", "method", "selection"])["mean"]
    )
    rows = []
    for (name, own, other, over), one in zip(compared, pairs, strict=True):
        where = _where(one).replace(" streams", " CIFAR streams") if over == CIFAR else _where(one)
        in_paper = ""
        if own.score in SCORE_NAMES:
            gaps = [printed[d, m, own.score, "bottom"] - printed[d, m, other.label, ""] for d, m in _streams(one)]
            in_paper = signed(sum(gaps) / len(gaps))
        rows.append(_row(name, where, one, in_paper))
    rows += last_rows
    head = ["difference in F, points", "data set, memory", "n", "mean [95 %]", "detectable", "in the paper"]
    return f"{text}\n\n{table(head, rows)}"


def headline(minus_er: pd.DataFrame, moved: pd.DataFrame) -> str:
    """A paragraph above the list, "" if the numbers do not carry it: what explains most of BI's lower F.

    It is there if F of BI is lower than ER's, and if the whole interval of what the scoring passes do to F, on the same
    stream, lies beyond half of that difference.

    Args:
        minus_er: pairs of BI minus ER with published settings, on one stream; column F.
        moved: pairs of BI's networks, after minus before the scoring passes, on any streams; column F.
    """
    ((dataset, size),) = _streams(minus_er)
    there = moved[(moved["dataset"] == dataset) & (moved["memory_size"] == size)]
    whole, by_passes = effect(minus_er, "F"), effect(there, "F")
    if called(whole) != "lower than" or not by_passes.wider.high < whole.mean / 2:
        return ""
    return (
        "**Most of the lower forgetting of the reference implementation comes from the BatchNorm statistics that its "
        f"tests read ({dataset} {size}).**\n\n"
    )


def called(found: Effect) -> str:
    """A difference in words: "lower than", "higher than" or "not distinguishable from".

    It is distinguishable if both intervals, the one by stream and the one with the seed as cluster, exclude 0.
    """
    if excludes_zero(found.wider):
        return "higher than" if found.mean > 0 else "lower than"
    return NOT_DISTINGUISHABLE


def _same_networks(records: pd.DataFrame) -> tuple[pd.DataFrame, str, list[tuple]]:
    """The effect of the published scoring passes on networks of BI and of ER.

    Returns:
        The pairs of BI's networks, list items and rows of the table; all are empty if BI has no such runs.
    """
    (moved,) = hypotheses.comparisons_of("H1", "F", expected=False)
    without = hypotheses.comparisons_of("H1", "F")[0]  # of ER
    with_score = hypotheses.comparisons_of("H2", "F")
    of_bi, of_er, *of_score = map(estimable, hypotheses.pairs(records, [moved, without, *with_score]))
    if of_bi.empty:
        return of_bi, "", []
    of_reading = {
        one.readings[0]: f"{called(effect(own, 'F'))} CBR redraw's ({count(own)}{one.incomplete(own)})"
        for one, own in zip(with_score, of_score, strict=True)
    }
    if len(set(of_reading.values())) == 1:
        to_redraw = next(iter(of_reading.values()))
    else:
        to_redraw = " and ".join(f"{text} under `{reading}`" for reading, text in of_reading.items())
    items = (
        "- Its scoring passes move the BatchNorm statistics: F of BI is "
        f"{called(effect(of_bi, 'F'))} that of the same networks under the statistics of training alone "
        f"({where_and_n(of_bi)}{moved.incomplete(of_bi)}). Under equal statistics, it is {to_redraw}, "
        "a random choice of mostly recent images.\n"
    )
    rows = [_row("BI's networks: with its scoring passes minus without", _where(of_bi), of_bi)]
    if len(of_er):
        unclear = [
            " ".join(map(str, stream))
            for stream, own in of_er.groupby(["dataset", "memory_size"])
            if called(effect(own, "F")) == NOT_DISTINGUISHABLE
        ]
        alone = (
            f"; on {', '.join(unclear)} alone, not distinguishable" if 0 < len(unclear) < len(_streams(of_er)) else ""
        )
        items += (
            f"- Without a score, F of ER with such passes added is {called(effect(of_er, 'F'))} without "
            f"({count(of_er)}{without.incomplete(of_er)}{alone}).\n"
        )
        rows.append(_row("ER's networks: with scoring passes added minus without", _where(of_er), of_er))
    return of_bi, items, rows


def _beside_lower_f(records: pd.DataFrame, minus_er: pd.DataFrame) -> str:
    """What BI with published settings retains compared with ER, and its A compared with CBR's at these settings."""
    bi, cbr = (Config(**fields, **paper.PUBLISHED_CODE) for fields in ({"score": "BI"}, COMPARATORS["CBR"]))
    text = f"; retained accuracy is {called(effect(minus_er, 'retained'))} ER's"
    minus_redraw = pooled(records, bi, cbr, _BLOODCELL)
    if len(minus_redraw) > 1:
        text += f", A is {called(effect(minus_redraw, 'A'))} CBR redraw's ({count(minus_redraw)}, exploratory)"
    return text


def _of_entropy(records: pd.DataFrame, minus_cbr: pd.DataFrame) -> str:
    """A list item on EN with `refresh=2`: its F compared with CBR's on the CIFAR streams, and with uniform's."""
    item = (
        f"- With `refresh=2`, F of EN with bottom-k is {called(effect(minus_cbr, 'F'))} CBR's ({on_cifar(minus_cbr)})"
    )
    (against_uniform,) = hypotheses.comparisons_of("H3", "F")
    (minus_uniform,) = map(estimable, hypotheses.pairs(records, [against_uniform]))
    if len(minus_uniform):
        n = where_and_n(minus_uniform) + against_uniform.incomplete(minus_uniform)
        item += f" and {called(effect(minus_uniform, 'F'))} uniform's ({n})"
    item += "."
    minus_kept = pooled(records, Config(score="EN", refresh=2), KEPT_NUMBERS, [("cifar10-lt", 200)])
    if len(minus_kept) > 1:
        found = effect(minus_kept, "F")
        item += (
            " Memories of uniform hold mostly recent images; if each image keeps its first number, F of EN is "
            f"{called(found)} theirs ({difference(found)}, {count(minus_kept)}, exploratory)."
        )
    return f"{item}\n"


def _row(name: str, where: str, pairs: pd.DataFrame, in_paper: str = "") -> tuple[str, ...]:
    """A row of the table of the finding."""
    found = effect(pairs, "F")
    return name, where, _seeds(count(pairs)), difference(found), number(found.detectable), in_paper


def _where(pairs: pd.DataFrame) -> str:
    """Such as "bloodcell, 40", or "3 streams"."""
    streams = _streams(pairs)
    return f"{len(streams)} streams" if len(streams) > 1 else ", ".join(map(str, streams[0]))


def _streams(pairs: pd.DataFrame) -> list[tuple[str, int]]:
    return list(pairs[["dataset", "memory_size"]].drop_duplicates().itertuples(index=False, name=None))


def _seeds(n: str) -> str:
    """The text in column n: "10" for "n = 10", "5 to 10 seeds" for "5 to 10 seeds on 3 streams"."""
    return n.removeprefix("n = ").partition(" on ")[0]


def on_cifar(pairs: pd.DataFrame) -> str:
    """Such as "3 to 7 seeds on 4 CIFAR streams"."""
    return where_and_n(pairs).replace(" streams", " CIFAR streams")


def where_and_n(pairs: pd.DataFrame) -> str:
    """Such as "bloodcell 40, n = 10", or "2 to 10 seeds on 3 streams"."""
    (dataset, size), *others = _streams(pairs)
    return count(pairs) if others else f"{dataset} {size}, {count(pairs)}"
