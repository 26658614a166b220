"""Paired differences over the records, as tables and sentences in Markdown.

The code chooses each sentence by the numbers, and each sentence states its n.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ucl.catalogue import UNIFORM
from ucl.config import Config
from ucl.evidence import paper
from ucl.evidence.effects import differences, effect, estimable
from ucl.evidence.leaderboard import policy_name
from ucl.evidence.run_measures import COMPARATORS, SETTINGS, TESTED, measures, n_exploratory
from ucl.records.runs import count_range
from ucl.report.coverage import NAMES
from ucl.report.markdown import (
    difference,
    excludes_zero,
    interval,
    judged,
    mean_and_std,
    number,
    signed,
    table,
    with_interval,
)

BLOODCELL = Config(dataset="bloodcell", memory_size=40, score="BI", selection="bottom")
CIFAR = (("cifar10", 500), ("cifar10-lt", 200), ("cifar100", 1000), ("cifar100-lt", 500))
GROUPNORM = "slim_resnet18_groupnorm"
"""A network without running statistics, so that scoring passes cannot change what a test reads."""
NEW_NUMBERS = Config(score=UNIFORM, refresh=2)
"""A random number as the score, redrawn at each rescoring; its memories hold mostly recent images."""
KEPT_NUMBERS = NEW_NUMBERS.replace(smoothing=1e-9)
"""The same with the first number of each image kept, as later ones have no weight."""
REMEDIES: dict[str, dict[str, Any]] = {
    "`smoothing=0.2`": {"smoothing": 0.2},
    '`view_draws="fixed"`': {"view_draws": "fixed"},
    "`n_draws=2`": {"n_draws": 2},
    "`n_draws=4`": {"n_draws": 4},
}
"""What makes scores of one image repeat better, by its text in tables."""
MORE_UPDATES = {("bloodcell", 40): (1, 4), ("cifar10", 500): (2, 3)}
"""By stream: `refresh` of BI, and the training steps per batch of ER. On cifar10 they take longer than BI."""
_A_AND_F = ("A [95 %]", "A detectable", "F [95 %]", "F detectable")
_PAIRS = ("n", "exploratory", *_A_AND_F)  # the head over `_row`, after the names
_TRAINING = {name: paper.PUBLISHED_CODE[name] for name in ("scoring_batchnorm", "view_draws", "view_space")}
CHOICES: dict[str, Config] = {
    "everything rescored, the paper's text": BLOODCELL,
    "one draw of each view for all candidates of a class": BLOODCELL.replace(view_draws="batch"),
    "views of the normalised image": BLOODCELL.replace(view_space="normalized"),
    "BatchNorm in training mode while scoring": BLOODCELL.replace(scoring_batchnorm="train"),
    "all three, as in the reference implementation": BLOODCELL.replace(**_TRAINING),
    "all three, a random number as the score": BLOODCELL.replace(score=UNIFORM, **_TRAINING),
    "no scoring: ER": BLOODCELL.replace(**COMPARATORS["ER"]),
}


def pooled(records: pd.DataFrame, config: Config, other: Config, over: Sequence[tuple[str, int]]) -> pd.DataFrame:
    """Paired differences in A, F and retained accuracy between two experiments, see `effects.differences`.

    A stream with a single pair is left out if another has more, see `effects.estimable`.

    Args:
        records: see `ucl.load_records`.
        config, other: the experiments; their data set and memory size are replaced by those of the streams.
        over: pairs of data set and memory size.
    """
    experiments = [one.replace(dataset=d, memory_size=size) for one in (config, other) for d, size in over]
    tables = measures(records, experiments)
    one, two = (pd.concat(side) for side in (tables[: len(over)], tables[len(over) :]))
    return estimable(differences(one, two, ("A", "F", "retained")))


def table_of_effects(effects: pd.DataFrame) -> str:
    """Markdown: the differences in A and F, one row per stream, score, setting and comparator.

    Args:
        effects: see `ucl.evidence.run_measures.effects_of_scores`; of one or more comparators.
    """
    keys = ["dataset", "memory_size", "label", "setting", "comparator"]
    rows = []
    for (dataset, size, label, setting, other), own in effects.groupby(keys, sort=False):
        cells: list[str] = []
        for metric in "AF":
            (row,) = own[own["metric"] == metric].to_dict("records")
            change = with_interval(row["mean"], row["low"], row["high"])
            cells += [change, number(row["detectable"]), signed(row["published"])]
        n = f"{own['n'].iloc[0]} ({own['exploratory'].iloc[0]})"
        rows.append((f"{dataset}, {size}", label, NAMES[setting], other, n, *cells))
    head = ["data set, memory", "method", "settings", "minus", "n (exploratory)"]
    return table([*head, *(f"{m}{text}" for m in "AF" for text in (" [95 %]", " detectable", " in the paper"))], rows)


def entropy_on_bloodcell(records: pd.DataFrame) -> str:
    """Sentences: EN with bottom-k and `refresh=2` compared with CBR on BloodCell, one per memory size and metric."""
    lines = []
    for stream in [one for one in paper.streams() if one[0] == "bloodcell"]:
        pairs = pooled(records, Config(score="EN", refresh=2), Config(**COMPARATORS["CBR"]), [stream])
        for metric in "AF":
            found = effect(pairs, metric)
            if np.isnan(found.interval.low):
                continue
            better = (found.mean > 0) == (metric == "A")
            verdict = "EN is better" if better else "EN loses to CBR"
            if not excludes_zero(found.interval):
                verdict = f"EN and CBR are not distinguishable; the mean is on {'EN' if better else 'CBR'}'s side"
            words = f"{signed(found.mean)} points ({judged(found)}{early(pairs)})"
            lines.append(f"- Memory {stream[1]}, {metric}: {words}. {verdict}.")
    return "\n".join(lines or ["No record."]) + "\n"


def over_cifar(records: pd.DataFrame) -> str:
    """Markdown: EN and BI with `refresh=2` compared with top-k, CBR and ER, and EN with BI, over four CIFAR streams."""
    rows = []
    for score in ("EN", "BI"):
        own = Config(score=score, refresh=2)
        others = [own.replace(selection="top"), *(Config(**fields) for fields in COMPARATORS.values())]
        if score == "EN":
            others.append(own.replace(score="BI"))
        for other in others:
            pairs = pooled(records, own, other, CIFAR)
            for metric in ("A", "F", "retained"):
                found = effect(pairs, metric)
                if found.n:
                    n = f"{count(pairs)}{early(pairs)}"
                    row = (f"{own.label} minus {other.label}", metric, n, signed(found.mean))
                    rows.append((*row, interval(*found.interval), interval(*found.clustered)))
    return table(["difference", "measure", "n", "mean", "95 %, by stream", "95 %, seed as cluster"], rows)


def of_random_numbers(records: pd.DataFrame) -> str:
    """Markdown: EN, BI and CBR compared with random numbers as the score, by stream, `refresh=2`.

    Only streams that have runs of `KEPT_NUMBERS` are shown.
    """
    memories = {
        "EN bottom": Config(score="EN", refresh=2),
        "BI bottom": Config(score="BI", refresh=2),
        "uniform": NEW_NUMBERS,
        "uniform, kept numbers": KEPT_NUMBERS,
        "CBR": Config(**COMPARATORS["CBR"]),
    }
    compared = [
        ("EN bottom", "uniform"),
        ("EN bottom", "uniform, kept numbers"),
        ("BI bottom", "uniform"),
        ("BI bottom", "uniform, kept numbers"),
        ("uniform, kept numbers", "uniform"),
        ("uniform, kept numbers", "CBR"),
    ]
    rows = []
    for dataset, size in paper.streams():
        experiments = [config.replace(dataset=dataset, memory_size=size) for config in memories.values()]
        runs = dict(zip(memories, measures(records, experiments), strict=True))
        if differences(runs["uniform, kept numbers"], runs["CBR"]).empty:
            continue
        for one, other in compared:
            rows += _row((f"{dataset}, {size}", f"{one} minus {other}"), differences(runs[one], runs[other]))
    return table(["data set, memory", "difference", *_PAIRS], rows)


def of_remedies(records: pd.DataFrame) -> str:
    """Markdown: runs with scores that repeat better minus the same runs without, by stream and score, bottom-k."""
    rows = []
    for (dataset, size), score, refresh in itertools.product(paper.streams(), ("BI", "EN"), (1, 2)):
        plain = Config(dataset=dataset, memory_size=size, score=score, refresh=refresh)
        own, *with_remedy = measures(records, [plain, *(plain.replace(**remedy) for remedy in REMEDIES.values())])
        setting = NAMES["refresh=2" if refresh == 2 else "everything rescored"]
        for text, other in zip(REMEDIES, with_remedy, strict=True):
            rows += _row((f"{dataset}, {size}", plain.label, setting, text), differences(other, own))
    head = ["data set, memory", "method", "settings", "with", *_PAIRS]
    return table(head, rows)


def of_choices(records: pd.DataFrame) -> str:
    """Markdown: effects of the choices of the reference implementation: BI with bottom-k, BloodCell, memory 40."""
    tables = measures(records, CHOICES.values())
    rows = []
    for name, own in zip(CHOICES, tables, strict=True):
        if own.empty:
            continue
        numbers = [mean_and_std(own[measure]) for measure in ("A", "F", "best", "retained")]
        pairs = differences(own, tables[0])
        change = "" if own is tables[0] or pairs.empty else f"{difference(effect(pairs, 'F'))} ({len(pairs)})"
        arithmetic = " and ".join(sorted(set(own["arithmetic"]) - {""}))
        rows.append((name, len(own), n_exploratory(own), *numbers, arithmetic, change))
    measured = ["n", "exploratory", "A", "F", "best", "retained", "scored in", "F minus first row, paired [95 %] (n)"]
    return table(["BI bottom, bloodcell, memory 40", *measured], rows)


def of_selections(records: pd.DataFrame) -> str:
    """Markdown: BI with bottom-k and with top-k, and CBR redraw, under the readings `TESTED`: BloodCell, memory 40."""
    published = BLOODCELL.replace(**SETTINGS["published settings"])
    memories = [published, published.replace(selection="top"), published.replace(**COMPARATORS["CBR"])]
    names, rows = ("BI bottom", "BI top", "CBR redraw"), []
    for reading in TESTED:
        of_name = dict(zip(names, measures(records, memories, reading), strict=True))
        for one, other in itertools.combinations(names, 2):
            pairs = differences(*(of_name[name].dropna(subset=["A", "F"]) for name in (one, other)))
            rows += _row((f"`{reading}`", f"{one} minus {other}"), pairs)
    head = ["both under", "difference", *_PAIRS]
    return table(head, rows)


def of_updates(records: pd.DataFrame) -> str:
    """Markdown: ER with more training steps minus ER, and BI with bottom-k minus ER with more training steps."""
    rows = []
    for (dataset, size), (refresh, n) in MORE_UPDATES.items():
        bi = Config(dataset=dataset, memory_size=size, score="BI", refresh=refresh)
        er = bi.replace(**COMPARATORS["ER"])
        plain, more, scored = measures(records, [er, er.replace(updates=n), bi])
        setting = NAMES["refresh=2" if refresh == 2 else "everything rescored"]
        for text, one, other in (("ER, {} updates, minus ER", more, plain), ("BI minus ER, {} updates", scored, more)):
            rows += _row((f"{dataset}, {size}", setting, text.format(n)), differences(one, other))
    head = ["data set, memory", "BI with", "difference", *_PAIRS]
    return table(head, rows)


def of_groupnorm(records: pd.DataFrame) -> str:
    """Markdown: memories of a network with GroupNorm, and their differences from CBR: BloodCell, memory 40."""
    network = BLOODCELL.replace(model=GROUPNORM)
    fields = [*COMPARATORS.values(), {"score": UNIFORM}, {"score": "EN"}, {}, {"selection": "top"}]
    memories = [network.replace(**own) for own in fields]
    tables = measures(records, memories)
    cbr, rows = tables[1], []
    for config, own in zip(memories, tables, strict=True):
        if own.empty:
            continue
        numbers = [mean_and_std(own[metric]) for metric in "AF"]
        pairs = differences(own, cbr if config.label != "CBR" else cbr[:0])
        rows.append((policy_name(config.label), len(own), *numbers, *(_in_a_and_f(pairs) if len(pairs) else [""] * 4)))
    head = ["memory", "n", "A", "F", *(name.replace(" ", " minus CBR's ", 1) for name in _A_AND_F)]
    return table(head, rows)


def of_cheaper_scoring(records: pd.DataFrame) -> str:
    """Markdown: effects of `refresh` and of the arithmetic of the scoring passes, as paired differences."""
    arithmetic = records["record"].map(lambda record: record.arithmetic)
    in_float32, in_bfloat16 = (records[arithmetic == name] for name in ("float32", "bfloat16"))
    rows = []
    for (dataset, size), score in itertools.product(paper.streams(), ("BI", "EN")):
        config = Config(dataset=dataset, memory_size=size, score=score)
        plain, *refreshed = measures(records, [config, *(config.replace(refresh=n) for n in (2, 10))])
        compared = [(config.label, f"`refresh={n}`", other, plain) for n, other in zip((2, 10), refreshed, strict=True)]
        published = (f"{config.label}, published settings", config.replace(**SETTINGS["published settings"]))
        for label, own in ((config.label, config), published):
            in_either = (_in_any_precision(scored, own) for scored in (in_float32, in_bfloat16))
            compared.append((label, "float32 scores", *in_either))
        for label, changed, other, reference in compared:
            rows += _row((f"{dataset}, {size}", label, changed), differences(other, reference))
    head = ["data set, memory", "method", "changed", *_PAIRS]
    return table(head, rows)


def _in_any_precision(records: pd.DataFrame, config: Config) -> pd.DataFrame:
    """The results of an experiment, whichever value of `Config.precision` led to the arithmetic of these records."""
    tables = measures(records, [config.replace(precision=name) for name in ("auto", "float32", "bfloat16")])
    return pd.concat(tables).drop_duplicates("seed")


def _row(names: Sequence[str], pairs: pd.DataFrame) -> list[tuple]:
    """The row of some differences in A and F under names and `_PAIRS`; no row without pairs."""
    return [(*names, len(pairs), n_exploratory(pairs), *_in_a_and_f(pairs))] if len(pairs) else []


def _in_a_and_f(pairs: pd.DataFrame) -> list[str]:
    """The cells under `_A_AND_F`: the mean difference with its interval, and the detectable difference."""
    found = (effect(pairs, metric) for metric in "AF")
    return [text for one in found for text in (difference(one), number(one.detectable))]


def count(pairs: pd.DataFrame) -> str:
    """The number of pairs, such as "n = 5", or "3 seeds on 4 streams" if there are several streams."""
    counts = pairs.groupby(["dataset", "memory_size"]).size()
    if len(counts) < 2:
        return f"n = {len(pairs)}"
    return f"{count_range(counts)} seeds on {len(counts)} streams"


def early(pairs: pd.DataFrame) -> str:
    """How many pairs are exploratory, as it follows n: ", exploratory" if all are, "" if none is."""
    n = n_exploratory(pairs)
    if n == len(pairs):
        return ", exploratory"
    return f", {n} of {len(pairs)} pairs exploratory" if n else ""
