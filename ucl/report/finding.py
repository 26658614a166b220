"""The finding, as README.md reports it: sentences and a table, chosen by code from the numbers of the records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ucl.config import Config
from ucl.evidence import hypotheses
from ucl.evidence.effects import Effect, against_paper, effect, estimable, on_stream, streams_of
from ucl.evidence.run_measures import TESTED, by_reading, moved_by_scoring, n_exploratory
from ucl.report import finding_pairs
from ucl.report.comparisons import KEPT_NUMBERS, count, early, pooled
from ucl.report.markdown import excludes_zero, number, signed, table, wider_difference

NOT_DISTINGUISHABLE = "not distinguishable from"
TOO_RARE = "measured too rarely to compare with"
_ALONE = {  # the words of `called` without what is compared
    "lower than": "lower",
    "higher than": "higher",
    NOT_DISTINGUISHABLE: "not distinguishable",
    TOO_RARE: "measured too rarely to compare",
}


def finding(records: pd.DataFrame) -> str:
    """Markdown: the finding in sentences, with a table of networks tested twice; one sentence if runs are missing."""
    return _in_sentences(records, *finding_pairs.gather(records))


def with_pairs(records: pd.DataFrame) -> str:
    """Markdown: the finding, then a table of the differences that it reports."""
    pairs = finding_pairs.gather(records)
    return f"{_in_sentences(records, *pairs)}\n{finding_pairs.behind_the_finding(*pairs)}"


def _in_sentences(
    records: pd.DataFrame,
    compared: Sequence[finding_pairs.Compared],
    minus_er: pd.DataFrame,
    of_passes: Mapping[str, pd.DataFrame],
) -> str:
    """The text of `finding`, with the pairs of `finding_pairs.gather`."""
    if not all(_has_interval(one.pairs) for one in compared):
        return "Not all of the runs behind the finding have records.\n"
    of_text, _, of_random, _, minus_cbr, _ = compared
    return (
        f"{headline(minus_er, of_passes['BI'])}"
        f"{networks_tested_twice(by_reading(finding_pairs.planned(records)))}"
        "Differences in F, in points, with 95 % intervals; the paper's is excluded if the interval falls short of half "
        "of it:\n\n"
        f"{_of_statistics(records, of_passes)}"
        f"- With the settings of the paper's text, F of BI with bottom-k is {_stated(of_text, 'ER')}.\n"
        f"- With a random number as the score and published settings, F is {_stated(of_random, 'ER')}.\n"
        f"{_of_entropy(records, minus_cbr)}"
    )


def headline(minus_er: pd.DataFrame, moved: pd.DataFrame) -> str:
    """A paragraph above the table, "" if the numbers do not carry it: what explains most of BI's lower F.

    It names the streams on which F of BI is lower than ER's, and what the scoring passes do to F is more than half of
    that difference: the difference between both, pair by pair, has its whole interval below 0. A stream on which BI's
    F is not lower, or the passes do less than half, is named as one where the sentence does not hold; others that have
    both intervals are undecided.

    Args:
        minus_er: pairs of BI minus ER with published settings; column F.
        moved: pairs of BI's networks, after minus before the scoring passes; column F.
    """
    found: dict[str, list[str]] = {"": [], "not on ": [], "undecided on ": []}
    beyond_half = finding_pairs.beyond_half(minus_er, moved)
    for stream in streams_of(minus_er):
        whole, rest = (effect(on_stream(pairs, stream), "F") for pairs in (minus_er, beyond_half))
        if np.isnan([whole.wider.low, rest.wider.low]).any():
            continue
        if called(whole) == "lower than" and rest.wider.high < 0:
            word = ""
        else:
            word = "not on " if called(whole) == "higher than" or rest.wider.low > 0 else "undecided on "
        found[word].append(f"{stream[0]} {stream[1]}, n = {rest.n}")
    if not found[""]:
        return ""
    where = "; ".join(f"{word}{'; '.join(streams)}" for word, streams in found.items() if streams)
    return (
        "**Most of the lower forgetting of the reference implementation comes from the BatchNorm statistics that its "
        f"tests read ({where}).**\n\n"
    )


def networks_tested_twice(readings: pd.DataFrame) -> str:
    """Markdown: a table of A and F of the same networks under the readings `TESTED`.

    Args:
        readings: see `ucl.evidence.run_measures.by_reading`.

    Returns:
        An introduction and the table; "" without such networks.
    """
    means = moved_by_scoring(readings)
    if means.empty:
        return ""
    rows, last = [], None
    for row in means.to_dict("records"):
        stream = f"{row['dataset']} {row['memory_size']}, n = {row['n']}"
        cells = [number(row[f"{metric}_{state}"]) for metric in "FA" for state in (*TESTED, "published")]
        rows.append((stream if stream != last else "", row["method"].partition(",")[0], *cells))
        last = stream
    columns = [f"{metric}, {state}" for metric in "FA" for state in (*TESTED, "the paper")]
    return (
        "The reference implementation scores in training mode, which moves BatchNorm's running statistics; only tests "
        "read them. The table has A and F of the same networks in per cent: under the statistics of training, with "
        "scoring passes added (`displaced`), and as the reference implementation tests, but on all test images "
        "(`running`: only BI's runs have scored).\n\n"
        f"{table(['data set, memory', 'method', *columns], rows)}\n"
    )


def called(found: Effect) -> str:
    """A difference in words: "lower than", "higher than", "not distinguishable from" or `TOO_RARE`.

    It is distinguishable if both intervals, the one by stream and the one with the seed as cluster, exclude 0. Without
    intervals it was measured too rarely.
    """
    if np.isnan(found.wider.low):
        return TOO_RARE
    if excludes_zero(found.wider):
        return "higher than" if found.mean > 0 else "lower than"
    return NOT_DISTINGUISHABLE


def _judged(pairs: pd.DataFrame, other: str = "", *basis: str) -> str:
    """A difference in F, such as "lower than ER's (−17.6 [−31.5, −3.7]; n = 3)", or "lower (…)" without `other`."""
    found = effect(pairs, "F")
    word = f"{called(found)} {other}" if other else _ALONE[called(found)]
    return f"{word} ({'; '.join([wider_difference(found), *filter(None, basis)])})"


def _stated(one: finding_pairs.Compared, other: str) -> str:
    """Such as "lower than ER's (−25.6 […]; bloodcell 40, n = 5, exploratory; the paper: −31.3, reproduced)"."""
    return _judged(one.pairs, f"{other}'s", f"{on_cifar(one.pairs)}{early(one.pairs)}", _against(one))


def _against(one: finding_pairs.Compared) -> str:
    """The paper's difference, and whether it was found again, such as "the paper: −31.3, excluded"; "" if none."""
    if np.isnan(one.published):
        return ""
    return f"the paper: {signed(one.published)}, {against_paper(effect(one.pairs, 'F').wider, one.published)}"


def _of_statistics(records: pd.DataFrame, of_passes: Mapping[str, pd.DataFrame]) -> str:
    """List items on what the scoring passes do to F of the same networks, and on BI under equal statistics.

    An item without any pairs is left out.
    """
    moved = []
    for whose, pairs in of_passes.items():
        if len(pairs):
            planned_runs = finding_pairs.PASSES[whose]
            n = f"{where_and_n(pairs)}{planned_runs.incomplete(pairs)}"
            change = _judged(pairs, "", n, alone(pairs, "F"))
            moved.append(f"F of {whose}'s networks under `{planned_runs.readings[0]}` is {change}")
    items = f"- Compared with `training`, {', '.join(moved)}.\n" if moved else ""
    planned = hypotheses.comparisons_of("H2", "F")
    tables = [estimable(pairs) for pairs in hypotheses.pairs(records, planned)]
    compared = [
        f"{_judged(own)} under `{one.readings[0]}`" for one, own in zip(planned, tables, strict=True) if len(own)
    ]
    if compared:
        items += (
            "- Under equal statistics, F of BI compared with CBR redraw's, a random choice of mostly recent images, is "
            f"{', '.join(compared)}; {count(tables[0])}{planned[0].incomplete(tables[0])}.\n"
        )
    return items


def alone(pairs: pd.DataFrame, metric: str) -> str:
    """On how many streams alone a difference excludes 0 on the side of its mean: "alone on 3 of 6"; "" if all."""
    streams, sign = streams_of(pairs), np.sign(effect(pairs, metric).mean)
    clear = sum((sign * np.array(effect(on_stream(pairs, one), metric).wider) > 0).all() for one in streams)
    return f"alone on {clear} of {len(streams)}" if clear < len(streams) > 1 else ""


def _of_entropy(records: pd.DataFrame, minus_cbr: finding_pairs.Compared) -> str:
    """A list item on EN with `refresh=2`, compared with CBR and with random numbers as the score, new or kept.

    Of CBR, the planned runs come first: they alone are no part of what the hypothesis was formed on.
    """
    (of_uniform,) = hypotheses.comparisons_of("H3", "F")
    (of_cbr,) = (one for one in hypotheses.comparisons_of("H3", "F", expected=False) if one.memories[1] == "CBR")
    minus_uniform, planned = map(estimable, hypotheses.pairs(records, [of_uniform, of_cbr]))
    minus_kept = pooled(records, Config(score="EN", refresh=2), KEPT_NUMBERS, [("cifar10-lt", 200)])
    if _has_interval(planned) and n_exploratory(minus_cbr.pairs):
        of_planned = _judged(planned, "CBR's", f"{on_cifar(planned)}{of_cbr.incomplete(planned)}")
        added = _judged(
            minus_cbr.pairs, "", f"{on_cifar(minus_cbr.pairs)}{early(minus_cbr.pairs)}", _against(minus_cbr)
        )
        of_both = f"{of_planned} on the planned seeds, and {added} with the exploratory ones"
    else:
        of_both = _stated(minus_cbr, "CBR")
    item = f"- With `refresh=2`, F of EN with bottom-k is {of_both}."
    for whose, pairs, note in (
        ("uniform's", minus_uniform, of_uniform.incomplete(minus_uniform)),
        ("uniform's if each image keeps its first number", minus_kept, ", exploratory"),
    ):
        if _has_interval(pairs):
            item += f" It is {_judged(pairs, whose, f'{on_cifar(pairs)}{note}')}."
    return f"{item}\n"


def _has_interval(pairs: pd.DataFrame) -> bool:
    return not np.isnan(effect(pairs, "F").wider.low)


def on_cifar(pairs: pd.DataFrame) -> str:
    """Such as "3 to 7 seeds on 4 CIFAR streams"."""
    return where_and_n(pairs).replace(" streams", " CIFAR streams")


def where_and_n(pairs: pd.DataFrame) -> str:
    """Such as "bloodcell 40, n = 10", or "2 to 10 seeds on 3 streams"."""
    (dataset, size), *others = streams_of(pairs)
    return count(pairs) if others else f"{dataset} {size}, {count(pairs)}"
