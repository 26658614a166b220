"""The finding, as README.md reports it: sentences and a table, chosen by code from the numbers of the records."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ucl.choices import SCORE_NAMES, UNIFORM
from ucl.config import Config
from ucl.evidence import hypotheses, paper
from ucl.evidence.effects import PAIR, Effect, against_paper, effect, estimable
from ucl.evidence.run_measures import COMPARATORS, TESTED, by_reading, moved_by_scoring, n_exploratory
from ucl.report.comparisons import CIFAR, KEPT_NUMBERS, count, early, pooled
from ucl.report.markdown import excludes_zero, number, signed, table, wider_difference

NOT_DISTINGUISHABLE = "not distinguishable from"
TOO_RARE = "measured too rarely to compare with"
_ALONE = {  # the words of `called` without what is compared
    "lower than": "lower",
    "higher than": "higher",
    NOT_DISTINGUISHABLE: "not distinguishable",
    TOO_RARE: "measured too rarely to compare",
}
_PASSES = {  # what scoring passes do to the same networks: those of BI's own runs, and those added to ER's
    "BI": hypotheses.comparisons_of("H1", "F", expected=False)[0],
    "ER": hypotheses.comparisons_of("H1", "F")[0],
}


@dataclass(frozen=True)
class Compared:
    """Paired differences of two experiments, and the paper's mean difference in F on the same streams (NaN if none)."""

    name: str
    pairs: pd.DataFrame
    published: float


def finding(records: pd.DataFrame) -> str:
    """Markdown: the finding in sentences, with a table of networks tested twice; one sentence if runs are missing.

    Args:
        records: see `ucl.load_records`; of each data set on one version of its images.
    """
    compared = _compared(records)
    if any(np.isnan(effect(one.pairs, "F").wider.low) for one in compared):
        return "Not all of the runs behind the finding have records.\n"
    of_text, _, of_random, _, minus_cbr, _ = compared
    of_passes = _of_passes(records)
    return (
        f"{headline(_as_published(records), of_passes['BI'])}"
        f"{networks_tested_twice(by_reading(_planned(records)))}"
        "Differences in F, in points, with 95 % intervals; the paper's is excluded if the interval falls short of half "
        "of it:\n\n"
        f"{_of_statistics(records, of_passes)}"
        f"- With the settings of the paper's text, F of BI with bottom-k is {_stated(of_text, 'ER')}.\n"
        f"- With a random number as the score and published settings, F is {_stated(of_random, 'ER')}.\n"
        f"{_of_entropy(records, minus_cbr)}"
    )


def behind_the_finding(records: pd.DataFrame) -> str:
    """Markdown: a table of the differences in F that the finding reports.

    Args:
        records: see `finding`.
    """
    compared = [one for one in _compared(records) if len(one.pairs)]
    rows = [_row(one.name, one.pairs, one.published, " CIFAR streams") for one in compared]
    of_passes = _of_passes(records)
    named = [
        ("BI's networks: `running` minus `training`", of_passes["BI"]),
        ("ER's networks: `displaced` minus `training`", of_passes["ER"]),
    ]
    minus_er = _as_published(records)
    for stream in _streams(minus_er):
        beyond_half = _on(stream, _beyond_half(minus_er, of_passes["BI"]))
        named.append(("BI bottom minus ER, both under `running`", _on(stream, minus_er)))
        named.append(("BI's networks: `running` minus `training`, minus half of the row above", beyond_half))
    rows += [_row(name, pairs) for name, pairs in named if len(pairs)]
    head = ["difference in F, points", "data set, memory", "n", "mean [95 %]", "detectable", "exploratory", "the paper"]
    return (
        f"{table(head, rows)}\nThe interval is the wider one of two, by stream and with the seed as cluster. The last "
        "rows are behind the sentence in bold: it stands on a stream if both intervals are below 0.\n"
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
    for stream in _streams(minus_er):
        beyond_half = _on(stream, _beyond_half(minus_er, moved))
        whole, rest = effect(_on(stream, minus_er), "F"), effect(beyond_half, "F")
        if np.isnan([whole.wider.low, rest.wider.low]).any():
            continue
        if called(whole) == "lower than" and rest.wider.high < 0:
            word = ""
        else:
            word = "not on " if called(whole) == "higher than" or rest.wider.low > 0 else "undecided on "
        found[word].append(f"{_name(stream)}, n = {rest.n}")
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


def _compared(records: pd.DataFrame) -> list[Compared]:
    """The differences from a baseline that the finding reports."""
    code = paper.PUBLISHED_CODE
    blood, large = (("bloodcell", 40),), (("bloodcell", 160),)
    er, cbr = (Config(**fields) for fields in COMPARATORS.values())
    bi, entropy = Config(score="BI"), Config(score="EN", refresh=2)
    printed = paper.by_cell()["mean"].xs("F", level="metric")
    found = []
    for name, own, other, over in (
        ("BI bottom minus ER, the paper's text", bi, er, blood),
        ("BI bottom minus ER, published settings", bi.replace(**code), er.replace(**code), blood),
        ("uniform minus ER, published settings", bi.replace(score=UNIFORM, **code), er.replace(**code), blood),
        ("EN bottom, `refresh=2`, minus ER", entropy, er, CIFAR),
        ("EN bottom, `refresh=2`, minus CBR", entropy, cbr, CIFAR),
        ("EN bottom, `refresh=2`, minus CBR", entropy, cbr, large),
    ):
        pairs = pooled(records, own, other, over)
        gaps = [
            printed[dataset, size, own.score, "bottom"] - printed[dataset, size, other.label, ""]
            for dataset, size in (_streams(pairs) if own.score in SCORE_NAMES else [])
        ]
        found.append(Compared(name, pairs, sum(gaps) / len(gaps) if gaps else np.nan))
    return found


def _judged(pairs: pd.DataFrame, other: str = "", *basis: str) -> str:
    """A difference in F, such as "lower than ER's (−17.6 [−31.5, −3.7]; n = 3)", or "lower (…)" without `other`."""
    found = effect(pairs, "F")
    word = f"{called(found)} {other}" if other else _ALONE[called(found)]
    return f"{word} ({'; '.join([wider_difference(found), *filter(None, basis)])})"


def _stated(one: Compared, other: str) -> str:
    """Such as "lower than ER's (−25.6 […]; bloodcell 40, n = 5, exploratory; the paper: −31.3, reproduced)"."""
    return _judged(one.pairs, f"{other}'s", f"{on_cifar(one.pairs)}{early(one.pairs)}", _against(one))


def _against(one: Compared) -> str:
    """The paper's difference, and whether it was found again, such as "the paper: −31.3, excluded"; "" if none."""
    if np.isnan(one.published):
        return ""
    return f"the paper: {signed(one.published)}, {against_paper(effect(one.pairs, 'F').wider, one.published)}"


def _planned(records: pd.DataFrame) -> pd.DataFrame:
    """The records of the streams and seeds for which the protocol plans BI with published settings."""
    planned = {(*stream, seed) for stream, seeds in hypotheses.PLANNED["published settings"].items() for seed in seeds}
    cells = zip(records["dataset"], records["memory_size"], records["seed"], strict=True)
    return records[[cell in planned for cell in cells]]


def _as_published(records: pd.DataFrame) -> pd.DataFrame:
    """Pairs of BI minus ER, each tested as in the reference implementation, of the planned runs; column F."""
    (of_er,) = (one for one in hypotheses.comparisons_of("H2", "F", expected=False) if one.readings[0] == "training")
    (pairs,) = hypotheses.pairs(records, [replace(of_er, readings=("running", "running"))])
    return estimable(pairs)


def _beyond_half(minus_er: pd.DataFrame, moved: pd.DataFrame) -> pd.DataFrame:
    """Pair by pair, what the scoring passes do to F minus half of BI minus ER; column F, see `headline`."""
    both = moved.merge(minus_er, on=list(PAIR), suffixes=("", "_whole"))
    return both[[*PAIR]].assign(F=both["F"] - both["F_whole"] / 2)


def _of_passes(records: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """By the score of the networks, pairs of statistics moved by scoring passes minus those of training; column F."""
    pairs = hypotheses.pairs(records, list(_PASSES.values()))
    return dict(zip(_PASSES, map(estimable, pairs), strict=True))


def _of_statistics(records: pd.DataFrame, of_passes: dict[str, pd.DataFrame]) -> str:
    """List items on what the scoring passes do to F of the same networks, and on BI under equal statistics.

    An item without any pairs is left out.

    Args:
        records: see `finding`.
        of_passes: see `_of_passes`.
    """
    moved = []
    for whose, pairs in of_passes.items():
        if len(pairs):
            planned_runs = _PASSES[whose]
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
    streams, sign = _streams(pairs), np.sign(effect(pairs, metric).mean)
    clear = sum((sign * np.array(effect(_on(one, pairs), metric).wider) > 0).all() for one in streams)
    return f"alone on {clear} of {len(streams)}" if clear < len(streams) > 1 else ""


def _of_entropy(records: pd.DataFrame, minus_cbr: Compared) -> str:
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


def _row(name: str, pairs: pd.DataFrame, published: float = np.nan, several: str = " streams") -> tuple[str, ...]:
    """A row of the table of differences."""
    found, streams = effect(pairs, "F"), _streams(pairs)
    where = f"{len(streams)}{several}" if len(streams) > 1 else ", ".join(map(str, streams[0]))
    n = count(pairs).removeprefix("n = ").partition(" on ")[0]  # "10", or "5 to 10 seeds"
    exploratory = f"{n_exploratory(pairs)} of {len(pairs)}"
    return name, where, n, wider_difference(found), number(found.larger_detectable), exploratory, signed(published)


def _streams(pairs: pd.DataFrame) -> list[tuple[str, int]]:
    return list(pairs[["dataset", "memory_size"]].drop_duplicates().itertuples(index=False, name=None))


def _name(stream: tuple[str, int]) -> str:
    return " ".join(map(str, stream))


def _on(stream: tuple[str, int], pairs: pd.DataFrame) -> pd.DataFrame:
    return pairs[(pairs["dataset"] == stream[0]) & (pairs["memory_size"] == stream[1])]


def on_cifar(pairs: pd.DataFrame) -> str:
    """Such as "3 to 7 seeds on 4 CIFAR streams"."""
    return where_and_n(pairs).replace(" streams", " CIFAR streams")


def where_and_n(pairs: pd.DataFrame) -> str:
    """Such as "bloodcell 40, n = 10", or "2 to 10 seeds on 3 streams"."""
    (dataset, size), *others = _streams(pairs)
    return count(pairs) if others else f"{dataset} {size}, {count(pairs)}"
