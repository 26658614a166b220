"""The six claims of the paper, tested on records.

Each function tests one claim: it splits the claim into comparisons, and `ucl.evidence.verdicts` judges them. That
module has the rule.

The runs that count are those of Table 1's methods on the data sets and memory sizes of Tables 1 to 3, at any seed. Runs
with other settings do not count. Nor do runs whose network diverged or collapsed; the evidence gives their number. A
verdict on the blocks of several data sets is about these data sets, not about others.

Both runs of a pair are on the same version of the images. Where a data set was measured on several versions, the pairs
of all of them are averaged to one block per data set and seed, and the evidence names the versions. It also names the
arithmetics if runs were scored in several.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from ucl.evidence import paper
from ucl.evidence.effects import PAIR, differences
from ucl.evidence.order import PAPER_SCORES
from ucl.evidence.run_measures import runs_of
from ucl.evidence.verdicts import Comparison, Size, Verdict, judge

MARGIN = 2.0  # an accuracy is competitive if it is less than this many points lower; the paper gives no number
ALIKE = 0.2  # two distributions are similar below this Kolmogorov-Smirnov distance; the paper shows only plots
SAMPLES = 100  # the smallest memory whose distributions are compared
ABOUT = 1.25  # "about 1.4 times" is from 1.4 / ABOUT to 1.4 * ABOUT
_VIEW_SCORES = PAPER_SCORES[:5]  # of the views' logits, BI apart
_AT_THE_END = {"confidence": "confidence", "bregman_information": "BI"}  # scores of a memory by the final network
_PAIR = [*PAIR, "fingerprint"]


def bottom_beats_top(records: pd.DataFrame, **fields: Any) -> Verdict:
    """Claim 1: bottom-k beats top-k.

    There are 28 comparisons: one per score, memory (the smaller and the larger one of each data set) and metric.
    """
    runs, left_out = _runs(records, fields)
    is_larger = runs["memory_size"] == runs["dataset"].map(dict(paper.streams()))  # The last memory is the largest.
    of_memory = {"smaller": runs[~is_larger], "larger": runs[is_larger]}
    comparisons = []
    for score, memory, (metric, sign) in itertools.product(PAPER_SCORES, of_memory, (("A", 1), ("F", -1))):
        pairs = _differences(of_memory[memory], f"{score} bottom", f"{score} top", metric, sign)
        comparisons.append(Comparison(f"{score}, {memory} memory, {metric}", pairs))
    notes = []
    for metric in "AF":
        gains = [one.blocks["gain"] for one in comparisons if one.name.endswith(metric) and len(one.blocks)]
        if gains:
            mean = np.concatenate(gains).mean()
            notes.append(f"mean gain in {metric} {mean:+.2f} ({len(gains)} of 14 comparisons have pairs)")
    notes += _mixes(runs)
    statement = "Bottom-k beats top-k in A and in F, for every score and memory size."
    return judge(1, statement, comparisons, left_out, notes)


def bi_forgets_least(records: pd.DataFrame, **fields: Any) -> Verdict:
    """Claim 2: BI has the lowest F in most cases (paper, section 5.2).

    There is one comparison with each other score of test-time augmentation, over all data sets and memory sizes.
    """
    runs, left_out = _runs(records, fields)
    comparisons = [
        Comparison(f"F below {score}", _differences(runs, "BI bottom", f"{score} bottom", "F", -1))
        for score in _VIEW_SCORES
    ]
    statement = "Among the test-time-augmentation scores with bottom-k, BI has the lowest F in most cases."
    return judge(2, statement, comparisons, left_out, _mixes(runs))


def bi_beats_baselines(records: pd.DataFrame, **fields: Any) -> Verdict:
    """Claim 3: BI beats the baselines. F and A are compared with each of them; A may be up to `MARGIN` points lower.

    Three seeds of a single data set decide nothing, so the blocks of all data sets are judged together. As the claim is
    about every data set, F must also be lower in the mean of each data set of the paper; otherwise the claim stays
    open.
    """
    runs, left_out = _runs(records, fields)
    lower = [(name, _differences(runs, "BI bottom", name, "F", -1)) for name in ("ER", "CBR", "A-GEM")]
    comparisons = [Comparison(f"F below {name}", pairs) for name, pairs in lower]
    for name, _ in lower:
        pairs = _differences(runs, "BI bottom", name, "A", 1)
        comparisons.append(Comparison(f"A above {name}", pairs, MARGIN))
    datasets = set(paper.published()["dataset"])
    objections = []
    for name, pairs in lower:
        means = pairs.groupby("dataset")["gain"].mean()
        failing = {"F not below": means.index[means <= 0], "no pairs with": sorted(datasets - set(means.index))}
        objections += [f"{text} {name} on {', '.join(names)}" for text, names in failing.items() if len(names)]
    statement = "BI with bottom-k has a lower F than ER, CBR and A-GEM on every data set, at a competitive A."
    return judge(3, statement, comparisons, left_out, _mixes(runs), objections)


def mc_forgets_little_as_it_learns_little(records: pd.DataFrame, **fields: Any) -> Verdict:
    """Claim 4: MC forgets little only because it learns little, compared with BI, both with bottom-k.

    F is the best accuracy on the earlier tasks minus the accuracy retained on them at the end. So a lower F has two
    sources: less was learnt, or more was retained. It is due to the first alone if no more was retained. There are
    three comparisons: F is lower, A is lower, and the accuracy retained on the earlier tasks is lower, too.
    """
    runs, left_out = _runs(records, fields)
    names = {"F": "F below BI", "A": "A below BI", "retained": "retained accuracy below BI"}
    comparisons = [
        Comparison(name, _differences(runs, "MC bottom", "BI bottom", metric, -1), sized=metric != "retained")
        for metric, name in names.items()
    ]
    return judge(4, "MC has low F only because its A is low.", comparisons, left_out, _mixes(runs))


def confidence_is_alike_and_bi_is_not(records: pd.DataFrame, **fields: Any) -> Verdict:
    """Claim 5: confidence has similar distributions in the memories of CBR (random), BI top and BI bottom; BI has not.

    The paper means the scores at the time when images are stored. Records have no confidence of that time, and no
    scores of CBR's memory, so these records cannot support the claim. They have the BI by which BI top and BI bottom
    selected their images. The comparison is its Kolmogorov-Smirnov distance between the two memories, in [0, 1], the
    largest difference between two cumulative distributions: it must be above `ALIKE`. The notes have the mean distance
    between all three memories by the scores of the final network, another quantity. Memories of fewer than `SAMPLES`
    samples do not count: in them such distances occur by chance.
    """
    runs, left_out = _runs(records, fields)
    methods = ("CBR", "BI top", "BI bottom")
    rows = []
    shown = runs["label"].isin(methods) & (runs["memory_size"] >= SAMPLES)
    for (dataset, size, seed, _), own in runs[shown].groupby(_PAIR):
        of_method = {label: record.memory for label, record in zip(own["label"], own["record"], strict=True)}
        memories = [of_method.get(label, {}) for label in methods]
        selected_by = _distance(memories[1:], "score")
        rows.append((dataset, size, seed, selected_by, *(_distance(memories, name) for name in _AT_THE_END)))
    far = pd.DataFrame(rows, columns=[*PAIR, "selected_by", *_AT_THE_END])
    selected, final = far.dropna(subset="selected_by"), far.dropna(subset=_AT_THE_END)
    comparison = Comparison(
        f"BI when stored, top against bottom, further than {ALIKE:g} by",
        selected.assign(gain=selected["selected_by"] - ALIKE, published=np.nan),
        sized=False,
    )
    notes = _mixes(runs)
    if len(final):
        means = " and ".join(f"{final[name].mean():.2f} in {text}" for name, text in _AT_THE_END.items())
        notes.append(f"under the final network the three memories are {means} apart (n={len(final)})")
    objection = "no record has the confidence of images when they were stored, nor scores of CBR's memory at that time"
    statement = "Confidence over memory samples is distributed alike under random, top-k and bottom-k; BI is not."
    return judge(5, statement, [comparison], left_out, notes, [objection])


def cost_per_batch(records: pd.DataFrame, **fields: Any) -> Verdict:
    """Claim 6: the logarithm of the seconds per batch over those of ER, on the same machine (paper, Table 4: CIFAR-10).

    A machine is a device, a processor and a number of threads. "About" means within a factor of `ABOUT`: the ratio must
    be above the lower bound and below the upper one. The notes have the ratios on all data sets by memory size, because
    BI's depends on it; the paper names neither the memory size nor the hardware.
    """
    runs, left_out = _runs(records, fields)
    machine = ("device", "processor", "threads")
    runs["machine"] = ["/".join(str(r.environment.get(name)) for name in machine) for r in runs["record"]]
    runs["log"] = [np.log(record.seconds_per_batch) for record in runs["record"]]
    comparisons, notes = [], []
    for name, times in (("CBR", 1.4), ("BI bottom", 3.1)):
        everywhere = _differences(runs, name, "ER", "log", 1, [*_PAIR, "machine"])
        ratios = np.exp(everywhere.groupby(["dataset", "memory_size"])["gain"].mean().astype(float))
        notes += [f"{name} {ratio:.2f} times ER on {dataset} {size}" for (dataset, size), ratio in ratios.items()]
        pairs = everywhere[everywhere["dataset"] == "cifar10"]
        mean = Comparison(name, pairs).effect.mean
        ratio = f"{name} over ER" if np.isnan(mean) else f"{name} {np.exp(mean):.2f} times ER"
        for bound, sign in ((times / ABOUT, 1), (times * ABOUT, -1)):
            within = pairs.assign(gain=sign * (pairs["gain"] - np.log(bound)))
            text = f"{ratio}, {'above' if sign > 0 else 'below'} {bound:.2f} by (logarithms)"
            comparisons.append(Comparison(text, within, sized=False))
    statement = "Cost per batch on CIFAR-10: CBR about 1.4 times ER, BI about 3.1 times ER."
    return judge(6, statement, comparisons, left_out, _mixes(runs) + notes)


CLAIMS: tuple[Callable[..., Verdict], ...] = (
    bottom_beats_top,
    bi_forgets_least,
    bi_beats_baselines,
    mc_forgets_little_as_it_learns_little,
    confidence_is_alike_and_bi_is_not,
    cost_per_batch,
)


def verdicts(records: pd.DataFrame, **fields: Any) -> pd.DataFrame:
    """The verdicts on all six claims, one row per claim, with the columns of `Verdict` except the sizes.

    Args:
        records: see `ucl.load_records`.
        fields: further fields of the runs, as given to `ucl.paper.grid`, such as `**ucl.paper.PUBLISHED_CODE`.
    """
    return pd.DataFrame([asdict(claim(records, **fields)) for claim in CLAIMS]).drop(columns="sizes")


def sizes(records: pd.DataFrame, **fields: Any) -> pd.DataFrame:
    """The size of each difference of A or F that the claims are about, one row per difference.

    Args:
        records, fields: see `verdicts`.

    Returns:
        Columns claim, then those of `Size`.
    """
    found = [claim(records, **fields) for claim in CLAIMS]
    rows = [(of.claim, *size) for of in found for size in of.sizes]
    return pd.DataFrame(rows, columns=["claim", *Size._fields])


def _runs(records: pd.DataFrame, fields: dict[str, Any]) -> tuple[pd.DataFrame, str]:
    """The runs that count, see `runs_of`, and how many failed, such as "1 diverged".

    They are of each method of the paper with these fields, on each data set and at each memory size.
    """
    methods = [config for config in paper.grid("table1", [0], **fields) if config.memory_size == 500]
    streams = [{"dataset": name, "memory_size": size} for name, size in paper.streams()]
    return runs_of(records, [config.replace(**stream) for config in methods for stream in streams])


def _mixes(runs: pd.DataFrame) -> list[str]:
    """Notes on data sets measured on several versions of the images, and on runs scored in several arithmetics."""
    notes = []
    for dataset, own in runs.groupby("dataset"):
        images = sorted(own["fingerprint"].unique())
        if len(images) > 1:
            notes.append(f"{dataset} measured on {len(images)} versions of its images ({', '.join(images)})")
    arithmetics = Counter(record.arithmetic for record in runs["record"] if record.arithmetic)
    if len(arithmetics) > 1:
        notes.append(f"scored in {' and '.join(f'{name} ({n} runs)' for name, n in sorted(arithmetics.items()))}")
    return notes


def _differences(
    runs: pd.DataFrame, method: str, other: str, metric: str, sign: int, keys: list[str] = _PAIR
) -> pd.DataFrame:
    """By how much a method is better than another, pair by pair: as measured (gain) and as printed in the paper."""
    one, two = (runs[runs["label"] == name] for name in (method, other))
    pairs = differences(one, two, [metric], keys)
    streams = zip(pairs["dataset"], pairs["memory_size"], strict=True)
    published = [sign * paper.printed_difference(stream, method, other, metric) for stream in streams]
    return pairs.assign(gain=sign * pairs[metric], published=published)


def _distance(memories: list[dict[str, list]], name: str) -> float:
    """Mean Kolmogorov-Smirnov distance over the pairs of memories; NaN if a memory has no values of this name."""
    values = [[v for v in memory.get(name, []) if v is not None] for memory in memories]
    if not all(values):
        return np.nan
    return float(np.mean([stats.ks_2samp(a, b).statistic for a, b in itertools.combinations(values, 2)]))
