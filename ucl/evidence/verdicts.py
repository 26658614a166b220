"""The rule that judges a claim on records: its sign, and the size of its effects compared with the paper's.

The sign. A claim is split into comparisons, and all of them must hold. A comparison is a difference within pairs of
runs that share data set, memory size and seed; it is positive where it agrees with the claim. Pairs of one data set and
seed share their class order, weights and batches, so they are averaged to one value, a block. The estimate is the mean
over the data sets of the mean over their blocks. Its interval is the wider of two: stratified by data set, and with the
seed as cluster, as data sets that share seeds are not independent (`ucl.evidence.effects.effect`). A data set with a
single block is left out, because the variance of one block is unknown. With fewer than `BLOCKS` blocks a comparison
decides nothing, however large the difference is: three seeds of one data set are too few.

    supported      every comparison's 95 % interval is above 0
    contradicted   some comparison's interval is below 0, at 95 % for all the claim's comparisons together
                   (Bonferroni: among many comparisons some interval is soon below 0 by chance)
    open           otherwise

The size. The paper prints the means of A and F, so a measured difference of A or F is compared with the printed one on
the same data sets and memory sizes (`figures/PROTOCOL.md`, `ucl.evidence.effects.against_paper`):

    reproduced     the whole 95 % interval is beyond half the paper's effect
    excluded       the whole 95 % interval falls short of half the paper's effect
    undecided      otherwise

Seeds that were measured before the protocol was written are exploratory. Each result gives the number of its
exploratory blocks. The other seeds are new, but no hypothesis of the protocol is one of these claims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from ucl.evidence.effects import LEVEL, Effect, against_paper, effect, estimable
from ucl.evidence.run_measures import n_exploratory

BLOCKS = 5


class Size(NamedTuple):
    """The size of a measured difference, compared with the paper's.

    Attributes:
        comparison: its name.
        n: blocks (data set and seed) for which the paper prints the difference.
        exploratory: how many of these blocks are of exploratory seeds.
        mean, low, high: the measured difference and its 95 % interval, in points of A or F, positive where it agrees
            with the claim.
        detectable: the true difference that a two-sided test at 5 % finds with 80 % power at this n and spread, the
            larger one of both intervals.
        published: the paper's difference, on the same data sets and memory sizes.
        size: "reproduced", "excluded" or "undecided"; "" if nothing was measured.
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
    """The verdict on a claim and the evidence for it.

    Attributes:
        claim: its number, 1 to 6.
        statement: the claim in words.
        verdict: "supported", "contradicted" or "open".
        evidence: the numbers in one line: mean and 95 % interval, positive where they agree with the claim; or what is
            missing.
        comparisons: how many differences the claim is split into.
        hold, fail: how many of them clearly do.
        scarce: how many of them have fewer than `BLOCKS` blocks (data set and seed).
        n: blocks of the comparison that has the fewest.
        reproduced, excluded, undecided: how many of the paper's differences are.
        seeds: "exploratory", "new" or "exploratory and new"; "" without runs.
        sizes: the size of each difference of A or F.
    """

    claim: int
    statement: str
    verdict: str
    evidence: str
    comparisons: int
    hold: int
    fail: int
    scarce: int
    n: int
    reproduced: int
    excluded: int
    undecided: int
    seeds: str
    sizes: tuple[Size, ...]


@dataclass(frozen=True)
class Comparison:
    """One of the differences that a claim is split into.

    Attributes:
        name: what is compared, without the allowance.
        pairs: columns dataset, seed, gain and published: the measured and the paper's difference, positive where they
            agree with the claim; published is NaN where the paper prints none.
        allowance: added to the gain before its sign is judged.
        sized: whether it is a difference of A or F, whose means the paper prints.
    """

    name: str
    pairs: pd.DataFrame
    allowance: float = 0.0
    sized: bool = True

    @cached_property
    def blocks(self) -> pd.DataFrame:
        """Columns dataset, memory_size (0: all of them together), seed, gain and published; see `effects.estimable`."""
        values = self.pairs.astype({"gain": float, "published": float}).groupby(["dataset", "seed"], as_index=False)
        return estimable(values[["gain", "published"]].mean().assign(memory_size=0))

    def effect_at(self, level: float) -> Effect:
        """The mean gain, allowance included, with intervals of this level."""
        blocks = self.blocks
        return effect(blocks.assign(gain=blocks["gain"] + self.allowance), "gain", level)

    @cached_property
    def effect(self) -> Effect:
        """The mean gain, allowance included, with 95 % intervals."""
        return self.effect_at(LEVEL)

    @property
    def decides(self) -> bool:
        """Whether there are enough blocks: at least `BLOCKS`, of which two or more are of one data set."""
        found = self.effect
        return found.n >= BLOCKS and not np.isnan(found.wider.low)

    @property
    def size(self) -> Size:
        """The mean gain without the allowance, compared with the paper's."""
        printed = self.blocks.dropna(subset=["published"])
        found, published = effect(printed, "gain"), effect(printed, "published").mean
        word = against_paper(found.wider, published) if found.n else ""
        return Size(
            comparison=self.name,
            n=found.n,
            exploratory=n_exploratory(printed),
            mean=found.mean,
            **found.wider._asdict(),
            detectable=found.larger_detectable,
            published=published,
            size=word,
        )

    def __str__(self) -> str:
        found = self.effect
        name = f"{self.name} less {self.allowance:g}" if self.allowance else self.name
        if not found.n:
            return f"{name}: no pairs"
        low, high = found.wider
        interval = "no interval" if np.isnan(low) else f"{low:+.2f}, {high:+.2f}"
        return f"{name} {found.mean:+.2f} [{interval}] (n={found.n})"


def judge(
    claim: int,
    statement: str,
    comparisons: Sequence[Comparison],
    left_out: str,
    notes: Sequence[str] = (),
    objections: Sequence[str] = (),
) -> Verdict:
    """Judge a claim by its comparisons.

    Args:
        claim, statement: see `Verdict`.
        comparisons: at least one.
        left_out: the number of runs that failed, such as "1 diverged"; "" if there are none.
        notes: further evidence, named before the comparisons.
        objections: reasons why the claim is not supported, even if all comparisons hold.
    """
    level = 1 - 0.05 / len(comparisons)
    against = [one for one in comparisons if one.decides and one.effect_at(level).wider.high < 0]
    holding = [one for one in comparisons if one.decides and one.effect.wider.low > 0]
    if against:
        word = "contradicted"
    elif len(holding) == len(comparisons) and not objections:
        word = "supported"
    else:
        word = "open"
    counts = [len(one.blocks) for one in comparisons]
    scarce = [n for n in counts if n < BLOCKS]
    evidence = [f"{len(holding)} of {len(comparisons)} comparisons clearly hold, {len(against)} clearly fail", *notes]
    if scarce:
        evidence.append(f"{len(scarce)} have fewer than {BLOCKS} blocks (data set and seed), at fewest {min(scarce)}")
    evidence += map(str, comparisons if len(comparisons) <= 6 else [*holding, *against])
    if left_out:
        evidence.append(f"left out: {left_out}")
    sizes = tuple(one.size for one in comparisons if one.sized)
    words = Counter(size.size for size in sizes)
    early = sum(n_exploratory(one.blocks) for one in comparisons)
    kinds = {"exploratory": early, "new": sum(counts) - early}
    return Verdict(
        claim=claim,
        statement=statement,
        verdict=word,
        evidence="; ".join([*evidence, *objections]),
        comparisons=len(comparisons),
        hold=len(holding),
        fail=len(against),
        scarce=len(scarce),
        n=min(counts),
        reproduced=words["reproduced"],
        excluded=words["excluded"],
        undecided=words["undecided"],
        seeds=" and ".join(kind for kind, n in kinds.items() if n),
        sizes=sizes,
    )
