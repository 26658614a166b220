"""The finding, as README.md reports it: sentences and a table, chosen by code from the numbers of the records."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ucl.choices import SCORE_NAMES, UNIFORM
from ucl.config import Config
from ucl.evidence import hypotheses, paper
from ucl.evidence.effects import Effect, effect, estimable
from ucl.evidence.run_measures import COMPARATORS, by_reading, moved_by_scoring, n_exploratory
from ucl.report.comparisons import CIFAR, KEPT_NUMBERS, count, pooled
from ucl.report.markdown import difference, excludes_zero, number, signed, table

NOT_DISTINGUISHABLE = "not distinguishable from"
_PASSES = {  # what scoring passes do to the same networks
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
    of_text, _, of_random, _, minus_cbr, large = compared
    of_passes = _of_passes(records)
    return (
        f"{headline(_as_published(records), of_passes['BI'])}"
        f"{networks_tested_twice(by_reading(_planned(records)))}"
        "Differences in F, in points, with 95 % intervals:\n\n"
        f"{_of_statistics(records, of_passes)}"
        f"- With the settings of the paper's text, F of BI with bottom-k is {_stated(of_text, 'ER')}.\n"
        f"- With a random number as the score and published settings, F is {_stated(of_random, 'ER')}.\n"
        f"{_of_entropy(records, minus_cbr, large)}"
    )


def behind_the_finding(records: pd.DataFrame) -> str:
    """Markdown: a table of the differences in F that the finding reports.

    Args:
        records: see `finding`.
    """
    compared = [one for one in _compared(records) if len(one.pairs)]
    rows = [_row(one.name, one.pairs, one.published, " CIFAR streams") for one in compared]
    names = {
        "BI": "BI's networks: with its scoring passes minus without",
        "ER": "ER's networks: with scoring passes added minus without",
    }
    rows += [_row(names[whose], pairs) for whose, pairs in _of_passes(records).items() if len(pairs)]
    head = ["difference in F, points", "data set, memory", "n", "mean [95 %]", "detectable", "in the paper"]
    early, total = (sum(n_of(one.pairs) for one in compared) for n_of in (n_exploratory, len))
    return f"{table(head, rows)}\nIn rows 1 to {len(compared)}, {early} of {total} pairs are exploratory.\n"


def headline(minus_er: pd.DataFrame, moved: pd.DataFrame) -> str:
    """A paragraph above the table, "" if the numbers do not carry it: what explains most of BI's lower F.

    It names the streams on which F of BI is lower than ER's, and the whole interval of what the scoring passes do to F
    lies beyond half of that difference. Other streams that have both intervals are named as undecided.

    Args:
        minus_er: pairs of BI minus ER with published settings; column F.
        moved: pairs of BI's networks, after minus before the scoring passes; column F.
    """
    carried: list[str] = []
    undecided: list[str] = []
    for stream in _streams(minus_er):
        whole, by_passes = (effect(_on(stream, pairs), "F") for pairs in (minus_er, moved))
        if not np.isnan([whole.wider.low, by_passes.wider.low]).any():
            carries = called(whole) == "lower than" and by_passes.wider.high < whole.mean / 2
            (carried if carries else undecided).append(" ".join(map(str, stream)))
    if not carried:
        return ""
    where = ", ".join(carried) + (f"; undecided on {', '.join(undecided)}" if undecided else "")
    return (
        "**Most of the lower forgetting of the reference implementation comes from the BatchNorm statistics that its "
        f"tests read ({where}).**\n\n"
    )


def networks_tested_twice(readings: pd.DataFrame) -> str:
    """Markdown: a table of A and F of the same networks, before and after scoring passes moved the statistics.

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
        stream = f"{row['dataset']}, {row['memory_size']}"
        as_tested = "moved" if row["reading"] == "running" else "training"
        cells = [
            f"**{number(row[f'{metric}_{state}'])}**" if state == as_tested else number(row[f"{metric}_{state}"])
            for metric in "FA"
            for state in ("training", "moved", "published")
        ]
        where = (stream, row["n"]) if stream != last else ("", "")
        rows.append((*where, row["method"].partition(",")[0], *cells))
        last = stream
    columns = [f"{metric}, {state}" for metric in "FA" for state in ("training", "moved", "the paper")]
    return (
        "The reference implementation scores in training mode, which moves BatchNorm's running statistics; only tests "
        "read them. The table has A and F of the same networks in per cent, under the statistics of "
        "training and under moved ones. Bold: as the reference implementation tests.\n\n"
        f"{table(['data set, memory', 'n', 'method', *columns], rows)}\n"
    )


def called(found: Effect) -> str:
    """A difference in words: "lower than", "higher than" or "not distinguishable from".

    It is distinguishable if both intervals, the one by stream and the one with the seed as cluster, exclude 0.
    """
    if excludes_zero(found.wider):
        return "higher than" if found.mean > 0 else "lower than"
    return NOT_DISTINGUISHABLE


def _compared(records: pd.DataFrame) -> list[Compared]:
    """The differences from a baseline that the finding reports."""
    code = paper.PUBLISHED_CODE
    blood, large = (("bloodcell", 40),), (("bloodcell", 160),)
    er, cbr = (Config(**fields) for fields in COMPARATORS.values())
    bi, entropy = Config(score="BI"), Config(score="EN", refresh=2)
    printed = paper.published().query("metric == 'F'")
    printed = printed.set_index(["dataset", "memory_size", "method", "selection"])["mean"]
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
    word = f"{called(found)} {other}" if other else called(found).removesuffix(" than").removesuffix(" from")
    return f"{word} ({'; '.join([difference(found), *filter(None, basis)])})"


def _stated(one: Compared, other: str) -> str:
    """Such as "lower than ER's (−25.6 [−36.1, −15.1]; bloodcell 40, n = 5, exploratory; the paper: −31.3)"."""
    published = "" if np.isnan(one.published) else f"the paper: {signed(one.published)}"
    return _judged(one.pairs, f"{other}'s", f"{on_cifar(one.pairs)}{_early(one.pairs)}", published)


def _early(pairs: pd.DataFrame) -> str:
    """How many pairs are exploratory, as it follows n: ", exploratory" if all are, "" if none is."""
    early = n_exploratory(pairs)
    if early == len(pairs):
        return ", exploratory"
    return f", {early} of {len(pairs)} pairs exploratory" if early else ""


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


def _of_passes(records: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """By the score of the networks, pairs of statistics moved by scoring passes minus those of training; column F."""
    pairs = hypotheses.pairs(records, list(_PASSES.values()))
    return dict(zip(_PASSES, map(estimable, pairs), strict=True))


def _of_statistics(records: pd.DataFrame, of_passes: dict[str, pd.DataFrame]) -> str:
    """List items on what the scoring passes do to F of the same networks, and on BI under equal statistics.

    Args:
        records: see `finding`.
        of_passes: see `_of_passes`.
    """
    if of_passes["BI"].empty:
        return ""
    moved = []
    for whose, pairs in of_passes.items():
        streams = _streams(pairs)
        unclear = [one for one in streams if called(effect(_on(one, pairs), "F")) == NOT_DISTINGUISHABLE]
        names = ", ".join(f"{dataset} {size}" for dataset, size in unclear)
        alone = f"not distinguishable on {names} alone" if 0 < len(unclear) < len(streams) else ""
        if streams:
            n = f"{where_and_n(pairs)}{_PASSES[whose].incomplete(pairs)}"
            moved.append(f"F of {whose}'s networks is {_judged(pairs, '', n, alone)}")
    planned = hypotheses.comparisons_of("H2", "F")
    tables = [estimable(pairs) for pairs in hypotheses.pairs(records, planned)]
    compared = [f"{_judged(own)} under `{one.readings[0]}`" for one, own in zip(planned, tables, strict=True)]
    return (
        f"- Under moved statistics instead of those of training, {', '.join(moved)}.\n"
        "- Under equal statistics, F of BI compared with CBR redraw's, a random choice of mostly recent images, is "
        f"{', '.join(compared)}; {count(tables[0])}{planned[0].incomplete(tables[0])}.\n"
    )


def _of_entropy(records: pd.DataFrame, minus_cbr: Compared, on_bloodcell: Compared) -> str:
    """A list item on EN with `refresh=2`, compared with CBR and with random numbers as the score, new or kept."""
    item = f"- With `refresh=2`, F of EN with bottom-k is {_stated(minus_cbr, 'CBR')}."
    (planned,) = hypotheses.comparisons_of("H3", "F")
    (minus_uniform,) = map(estimable, hypotheses.pairs(records, [planned]))
    minus_kept = pooled(records, Config(score="EN", refresh=2), KEPT_NUMBERS, [("cifar10-lt", 200)])
    for whose, pairs, note in (
        ("uniform's, whose memories hold mostly recent images", minus_uniform, planned.incomplete(minus_uniform)),
        ("uniform's if each image keeps its first number", minus_kept, ", exploratory"),
    ):
        if len(pairs) > 1:
            item += f" It is {_judged(pairs, whose, f'{where_and_n(pairs)}{note}')}."
    return f"{item} On BloodCell, it is {_stated(on_bloodcell, 'CBR')}.\n"


def _row(name: str, pairs: pd.DataFrame, published: float = np.nan, several: str = " streams") -> tuple[str, ...]:
    """A row of the table of differences."""
    found, streams = effect(pairs, "F"), _streams(pairs)
    where = f"{len(streams)}{several}" if len(streams) > 1 else ", ".join(map(str, streams[0]))
    n = count(pairs).removeprefix("n = ").partition(" on ")[0]  # "10", or "5 to 10 seeds"
    return name, where, n, difference(found), number(found.detectable), signed(published)


def _streams(pairs: pd.DataFrame) -> list[tuple[str, int]]:
    return list(pairs[["dataset", "memory_size"]].drop_duplicates().itertuples(index=False, name=None))


def _on(stream: tuple[str, int], pairs: pd.DataFrame) -> pd.DataFrame:
    return pairs[(pairs["dataset"] == stream[0]) & (pairs["memory_size"] == stream[1])]


def on_cifar(pairs: pd.DataFrame) -> str:
    """Such as "3 to 7 seeds on 4 CIFAR streams"."""
    return where_and_n(pairs).replace(" streams", " CIFAR streams")


def where_and_n(pairs: pd.DataFrame) -> str:
    """Such as "bloodcell 40, n = 10", or "2 to 10 seeds on 3 streams"."""
    (dataset, size), *others = _streams(pairs)
    return count(pairs) if others else f"{dataset} {size}, {count(pairs)}"
