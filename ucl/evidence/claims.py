"""The paper's claims, put to the test on records.

The rule. A claim is split into comparisons, each of which must hold. A comparison is a difference within pairs of runs
that share data set, memory size and seed, counted positive where it goes as claimed. Pairs of one data set and seed
share their class order, weights and batches, so they are averaged to one value, a block. The estimate is the mean over
the data sets of the mean over their blocks, and its interval is stratified by data set (`ucl.evidence.effects.effect`).
With fewer than `BLOCKS` blocks, or a single block of some data set, a comparison decides nothing, however far apart its
runs are: three seeds of one data set are too few.

    supported      every comparison's 95 % interval is above 0
    contradicted   some comparison's interval is below 0, at 95 % for all the claim's comparisons together
                   (Bonferroni: among many comparisons one is soon below 0 by chance)
    open           otherwise

The size. The paper prints the means of A and F, so a measured difference of A or F is compared with the printed one on
the same data sets and memory sizes (`figures/PROTOCOL.md`, `ucl.evidence.effects.verdict`):

    reproduced     the whole 95 % interval is beyond half the paper's effect
    excluded       the whole 95 % interval falls short of half the paper's effect
    undecided      otherwise

Seeds that were measured before the protocol was written are exploratory, and each number says how many of its blocks
are of them.

Pairs are of runs on the same version of the images. Where a data set was measured on several, pairs of all of them are
averaged to one block per data set and seed, and the evidence names the versions; so it does with runs that were scored
in several arithmetics.

The runs that count are those of Table 1's methods on the data sets and memory sizes of Tables 1 to 3, at any seed, so
that nothing measured with other settings slips in. Runs whose network diverged or collapsed do not count; the evidence
says how many there are. Blocks of several data sets speak of these data sets, not of others.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from ucl.config import Config
from ucl.evidence import paper
from ucl.evidence.effects import LEVEL, Effect, differences, effect, mean_of_streams, n_exploratory, verdict
from ucl.records.runs import apart_from_failures, matching

BLOCKS = 5
MARGIN = 2.0  # an accuracy is competitive where it is less than this many points below; the paper names no figure
ALIKE = 0.2  # two distributions count as alike if their curves are nowhere further apart; the paper shows pictures
SAMPLES = 100
ABOUT = 1.25  # "about 1.4 times" is from 1.4 / ABOUT to 1.4 * ABOUT
_VIEW_SCORES = ("LC", "MS", "RC", "EN", "RM")
_SCORES = (*_VIEW_SCORES, "MC", "BI")
_PAIR = ["dataset", "memory_size", "seed", "fingerprint"]


class Size(NamedTuple):
    """How large a difference is, compared with the paper's.

    Attributes:
        comparison: its name.
        n: blocks (data set and seed) for which the paper prints the difference.
        exploratory: how many of them are of exploratory seeds.
        mean, low, high: the measured difference and its 95 % interval, in points of A or F, positive as claimed.
        detectable: the true difference that a two-sided test at 5 % finds with 80 % power at this n and spread.
        published: the paper's difference, on the same data sets and memory sizes.
        size: "reproduced", "excluded" or "undecided"; "" where nothing was measured.
    """

    comparison: str
    n: int
    exploratory: int
    mean: float
    low: float
    high: float
    detectable: float
    published: float
    size: str


@dataclass(frozen=True)
class Verdict:
    """What the records say of a claim.

    Attributes:
        claim: its number, 1 to 6.
        statement: the claim in words.
        verdict: "supported", "contradicted" or "open".
        evidence: the numbers in one line: mean and 95 % interval, positive as claimed; or what is missing.
        n: blocks (data set and seed) behind the comparison that has the fewest.
        reproduced, excluded, undecided: how many of the paper's differences are.
        seeds: "exploratory", "confirmatory" or "exploratory and confirmatory"; "" without runs.
        sizes: each of the paper's differences.
    """

    claim: int
    statement: str
    verdict: str
    evidence: str
    n: int
    reproduced: int
    excluded: int
    undecided: int
    seeds: str
    sizes: tuple[Size, ...]


@dataclass(frozen=True)
class _Comparison:
    """A difference that a claim is about.

    Attributes:
        name: what is compared, without the allowance.
        pairs: columns dataset, seed, gain and published: the measured and the paper's difference, positive as claimed;
            published is NaN where the paper prints none.
        allowance: added to the gain before its sign is judged.
        sized: whether it is a difference of A or F, of which the paper prints the means.
    """

    name: str
    pairs: pd.DataFrame
    allowance: float = 0.0
    sized: bool = True

    @cached_property
    def blocks(self) -> pd.DataFrame:
        """Columns dataset, memory_size (0: all of them together), seed, gain and published."""
        values = self.pairs.astype({"gain": float, "published": float})
        return values.groupby(["dataset", "seed"], as_index=False)[["gain", "published"]].mean().assign(memory_size=0)

    def effect_at(self, level: float) -> Effect:
        blocks = self.blocks
        return effect(blocks.assign(gain=blocks["gain"] + self.allowance), "gain", level)

    @cached_property
    def effect(self) -> Effect:
        return self.effect_at(LEVEL)

    @property
    def decides(self) -> bool:
        found = self.effect
        return found.n >= BLOCKS and not np.isnan(found.interval.low)

    @property
    def size(self) -> Size:
        printed = self.blocks.dropna(subset=["published"])
        found, published = effect(printed, "gain"), mean_of_streams(printed, "published")
        word = verdict(found.interval, published) if found.n else ""
        return Size(
            self.name, found.n, n_exploratory(printed), found.mean, *found.interval, found.detectable, published, word
        )

    def __str__(self) -> str:
        found = self.effect
        name = f"{self.name} less {self.allowance:g}" if self.allowance else self.name
        if not found.n:
            return f"{name}: no pairs"
        low, high = found.interval
        interval = "no interval" if np.isnan(low) else f"{low:+.2f}, {high:+.2f}"
        return f"{name} {found.mean:+.2f} [{interval}] (n={found.n})"


def bottom_beats_top(records: pd.DataFrame, **fields: Any) -> Verdict:
    """Claim 1. A comparison for each score, memory (the smaller, the larger of a data set) and metric: 28."""
    runs, left_out = _runs(records, fields)
    parts = []
    for score, memory, (metric, sign) in itertools.product(_SCORES, ("smaller", "larger"), (("A", 1), ("F", -1))):
        of_size = runs[runs["memory"] == memory]
        parts.append(
            _paired(f"{score}, {memory} memory, {metric}", of_size, f"{score} bottom", f"{score} top", metric, sign)
        )
    notes = []
    for metric in "AF":
        held = [part.blocks["gain"] for part in parts if part.name.endswith(metric) and len(part.blocks)]
        if held:
            gain = np.concatenate(held).mean()
            notes.append(f"on average {metric} better by {gain:.2f}, by {len(held)} of 14 comparisons")
    notes += _mixes(runs)
    return _verdict(1, "Bottom-k beats top-k in A and in F, for every score and memory size.", parts, left_out, notes)


def bi_forgets_least(records: pd.DataFrame, **fields: Any) -> Verdict:
    """Claim 2. A comparison for each other score of test-time augmentation."""
    runs, left_out = _runs(records, fields)
    parts = [_paired(f"F below {score}", runs, "BI bottom", f"{score} bottom", "F", -1) for score in _VIEW_SCORES]
    statement = "Among the test-time-augmentation scores with bottom-k, BI has the lowest F."
    return _verdict(2, statement, parts, left_out, _mixes(runs))


def bi_beats_baselines(records: pd.DataFrame, **fields: Any) -> Verdict:
    """Claim 3. F and A for each baseline; A may be up to `MARGIN` points lower.

    Three seeds decide nothing on a single data set, so the blocks of all are taken together; for "every data set" the
    mean of each must also be as claimed; otherwise the claim stays open.
    """
    runs, left_out = _runs(records, fields)
    lower = [(name, _differences(runs, "BI bottom", name, "F", -1)) for name in ("ER", "CBR", "A-GEM")]
    parts = [_Comparison(f"F below {name}", pairs) for name, pairs in lower]
    for name, _ in lower:
        pairs = _differences(runs, "BI bottom", name, "A", 1)
        parts.append(_Comparison(f"A above {name}", pairs, MARGIN))
    datasets = set(paper.published()["dataset"])
    but = []
    for name, pairs in lower:
        means = pairs.groupby("dataset")["gain"].mean()
        notes = {"F not below": means.index[means <= 0], "no pairs with": sorted(datasets - set(means.index))}
        but += [f"{text} {name} on {', '.join(names)}" for text, names in notes.items() if len(names)]
    statement = "BI with bottom-k has a lower F than ER, CBR and A-GEM on every data set, at a competitive A."
    return _verdict(3, statement, parts, left_out, _mixes(runs), but)


def mc_forgets_little_as_it_learns_little(records: pd.DataFrame, **fields: Any) -> Verdict:
    """Claim 4, MC against BI, both bottom.

    F is what the earlier tasks had at their best less what is kept of them at the end. So a lower F has two sources,
    less learnt or more kept, and is due to the first alone where no more is kept. Three comparisons: F is lower, A is
    lower, and what is kept of the earlier tasks is lower, too.
    """
    runs, left_out = _runs(records, fields)
    names = (("F", "F below BI"), ("A", "A below BI"), ("kept", "accuracy kept on earlier tasks below BI"))
    parts = [
        _Comparison(name, _differences(runs, "MC bottom", "BI bottom", metric, -1), sized=metric != "kept")
        for metric, name in names
    ]
    return _verdict(4, "MC has low F only because its A is low.", parts, left_out, _mixes(runs))


def confidence_is_alike_and_bi_is_not(records: pd.DataFrame, **fields: Any) -> Verdict:
    """Claim 5. Memory samples of CBR (random), BI top and BI bottom at the end, as the final model sees them.

    A run of each gives the mean of the three Kolmogorov-Smirnov distances, in [0, 1]: the furthest apart that two
    distributions' curves are. Confidence must be closer than `ALIKE`, BI further apart than that and than confidence.
    Memories of fewer than `SAMPLES` samples do not count: there chance alone sets curves that far apart.
    """
    runs, left_out = _runs(records, fields)
    rows = []
    shown = runs["label"].isin(["CBR", "BI top", "BI bottom"]) & (runs["memory_size"] >= SAMPLES)
    for (dataset, size, seed, _), own in runs[shown].groupby(_PAIR):
        memories = [record.memory for record in own["record"]]
        if len(memories) == 3:
            rows.append(
                (dataset, size, seed, *(_distance(memories, name) for name in ("confidence", "bregman_information")))
            )
    far = pd.DataFrame(rows, columns=[*_PAIR[:3], "confidence", "bi"]).dropna()
    gains = {
        f"confidence closer than {ALIKE:g} by": ALIKE - far["confidence"],
        f"BI further than {ALIKE:g} by": far["bi"] - ALIKE,
        "BI further than confidence by": far["bi"] - far["confidence"],
    }
    parts = [_Comparison(name, far.assign(gain=gain, published=np.nan), sized=False) for name, gain in gains.items()]
    statement = "Confidence over memory samples is distributed alike under random, top-k and bottom-k; BI is not."
    return _verdict(5, statement, parts, left_out, _mixes(runs))


def cost_per_batch(records: pd.DataFrame, **fields: Any) -> Verdict:
    """Claim 6. Seconds a batch over those of ER on the same machine (device, processor, threads), by logarithms.

    "About" is within a factor of `ABOUT`: the ratio must be above the lower bound and below the upper one.
    """
    runs, left_out = _runs(records, fields)
    runs["log"] = np.log(runs["seconds_per_batch"].astype(float))
    parts = []
    for name, times in (("CBR", 1.4), ("BI bottom", 3.1)):
        pairs = _differences(runs, name, "ER", "log", 1, [*_PAIR, "machine"])
        ratio = f"{name} {np.exp(pairs['gain'].mean()):.2f} times ER" if len(pairs) else f"{name} over ER"
        for bound, sign in ((times / ABOUT, 1), (times * ABOUT, -1)):
            within = pairs.assign(gain=sign * (pairs["gain"] - np.log(bound)))
            text = f"{ratio}, {'above' if sign > 0 else 'below'} {bound:.2f} by (logarithms)"
            parts.append(_Comparison(text, within, sized=False))
    return _verdict(6, "Cost per batch: CBR about 1.4 times ER, BI about 3.1 times ER.", parts, left_out, _mixes(runs))


CLAIMS: tuple[Callable[..., Verdict], ...] = (
    bottom_beats_top,
    bi_forgets_least,
    bi_beats_baselines,
    mc_forgets_little_as_it_learns_little,
    confidence_is_alike_and_bi_is_not,
    cost_per_batch,
)


def verdicts(records: pd.DataFrame, **fields: Any) -> pd.DataFrame:
    """All six claims, a row each, with the columns of `Verdict` but for the sizes.

    Args:
        records: see `ucl.load_records`.
        fields: further fields of the runs, as given to `ucl.paper.grid`, such as `**ucl.paper.PUBLISHED_CODE`.
    """
    return pd.DataFrame([asdict(claim(records, **fields)) for claim in CLAIMS]).drop(columns="sizes")


def sizes(records: pd.DataFrame, **fields: Any) -> pd.DataFrame:
    """Each difference that the claims are about and the paper prints, a row each.

    Args:
        records, fields: see `verdicts`.

    Returns:
        Columns claim, then those of `Size`.
    """
    found = [claim(records, **fields) for claim in CLAIMS]
    rows = [(of.claim, *size) for of in found for size in of.sizes]
    return pd.DataFrame(rows, columns=["claim", *Size._fields])


def _runs(records: pd.DataFrame, fields: dict[str, Any]) -> tuple[pd.DataFrame, str]:
    """A row a run that counts, with A, F and the accuracy kept on all tasks but the last, in per cent; who failed."""
    printed = paper.published().set_index(["dataset", "memory_size", "method", "selection", "metric"])["mean"]
    sizes = paper.published().groupby("dataset")["memory_size"].unique()
    rows = []
    counting, left_out = apart_from_failures(matching(records, _experiments(**fields)))
    for _, run in counting.iterrows():
        record, config = run["record"], run["record"].config
        method, _, selection = config.label.partition(" ")
        cell = config.dataset, config.memory_size, method, selection
        machine = "/".join(str(record.environment.get(name)) for name in ("device", "processor", "threads"))
        rows.append(
            {
                **{name: getattr(config, name) for name in (*_PAIR[:3], "label")},
                "fingerprint": record.version.images,
                "memory": "larger" if config.memory_size == max(sizes[config.dataset]) else "smaller",
                "A": 100 * record.last_accuracy,
                "F": 100 * record.last_forgetting,
                "kept": 100 * record.kept_accuracy,
                **{f"{metric}_published": printed.get((*cell, metric), np.nan) for metric in "AF"},
                "seconds_per_batch": record.seconds_per_batch,
                "machine": machine,
                "record": record,
            }
        )
    values = ["A", "A_published", "F", "F_published", "kept"]
    columns = [*_PAIR, "label", "memory", *values, "seconds_per_batch", "machine", "record"]
    return pd.DataFrame(rows, columns=columns), left_out


def _experiments(**fields: Any) -> list[Config]:
    """Each method of the paper with these fields, on each data set and at each memory size."""
    sizes = paper.published().groupby("dataset")["memory_size"].unique()
    methods = [config for config in paper.grid("table1", [0], **fields) if config.memory_size == 500]
    return [m.replace(dataset=d, memory_size=int(size)) for m in methods for d in sizes.index for size in sizes[d]]


def _mixes(runs: pd.DataFrame) -> list[str]:
    """What these runs were measured on, where that is several versions of the images or several arithmetics."""
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
    runs: pd.DataFrame, label: str, other: str, metric: str, sign: int, keys: list[str] = _PAIR
) -> pd.DataFrame:
    """Pair by pair, by how much one method is better than the other: as measured (gain) and as the paper prints."""
    printed = f"{metric}_published"
    one, two = (runs[runs["label"] == name] for name in (label, other))
    pairs = differences(one, two, [name for name in (metric, printed) if name in runs], keys)
    return pairs.assign(gain=sign * pairs[metric], published=sign * pairs[printed] if printed in pairs else np.nan)


def _paired(name: str, runs: pd.DataFrame, label: str, other: str, metric: str, sign: int) -> _Comparison:
    return _Comparison(name, _differences(runs, label, other, metric, sign))


def _distance(memories: list[dict[str, list]], name: str) -> float:
    """Mean Kolmogorov-Smirnov distance of the memories, two by two; NaN where a run has left no numbers."""
    values = [[v for v in memory.get(name, []) if v is not None] for memory in memories]
    if not all(values):
        return np.nan
    return float(np.mean([stats.ks_2samp(a, b).statistic for a, b in itertools.combinations(values, 2)]))


def _verdict(
    claim: int,
    statement: str,
    parts: list[_Comparison],
    left_out: str,
    notes: Sequence[str] = (),
    but: Sequence[str] = (),
) -> Verdict:
    """The rule of the module; `notes` goes before the comparisons, `but` keeps a claim from being supported."""
    level = 1 - 0.05 / len(parts)
    against = [part for part in parts if part.decides and part.effect_at(level).interval.high < 0]
    holding = [part for part in parts if part.decides and part.effect.interval.low > 0]
    counts = [len(part.blocks) for part in parts]
    scarce = [n for n in counts if n < BLOCKS]
    word = "contradicted" if against else "supported" if len(holding) == len(parts) and not but else "open"
    evidence = [f"{len(holding)} of {len(parts)} comparisons clearly hold, {len(against)} clearly fail", *notes]
    if scarce:
        evidence.append(f"{len(scarce)} have fewer than {BLOCKS} blocks (data set and seed), at least {min(scarce)}")
    evidence += map(str, parts if len(parts) <= 6 else [*holding, *against])
    if left_out:
        evidence.append(f"left out: {left_out}")
    found = tuple(part.size for part in parts if part.sized)
    words = Counter(size.size for size in found)
    early = sum(n_exploratory(part.blocks) for part in parts)
    kinds = {"exploratory": early, "confirmatory": sum(counts) - early}
    return Verdict(
        claim=claim,
        statement=statement,
        verdict=word,
        evidence="; ".join([*evidence, *but]),
        n=min(counts),
        reproduced=words["reproduced"],
        excluded=words["excluded"],
        undecided=words["undecided"],
        seeds=" and ".join(kind for kind, n in kinds.items() if n),
        sizes=found,
    )
