"""The blocks of README.md that report results, between marks such as ``<!-- finding -->`` and ``<!-- /finding -->``.

The words are chosen by code from the numbers, and each statement gives its n.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from ucl.catalogue import SCORES
from ucl.config import Config
from ucl.evidence import hypotheses, paper
from ucl.evidence.claims import WORDS
from ucl.evidence.effects import effect, estimable
from ucl.evidence.run_measures import COMPARATORS
from ucl.records.runs import count_range
from ucl.report.all_results import all_results
from ucl.report.basis import IMAGES, pairs_apart
from ucl.report.comparisons import early, pooled
from ucl.report.coverage import NAMES, coverage, measured
from ucl.report.finding import finding
from ucl.report.finding_pairs import clear_on, support, where_and_n
from ucl.report.markdown import wider_difference


def blocks(records: pd.DataFrame, effects: pd.DataFrame, csvs: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """The text of each block of README.md, by the name in its marks.

    Args:
        records: see `ucl.load_records`; of each data set on one version of its images.
        effects: of `ucl.report.results.effects`, for these records.
        csvs: those named below, of `ucl.report.results.read_csvs`.
    """
    in_short = verdicts(csvs["claims"]) + practice(records, all_results(records))
    in_short += times(csvs["beside_naive"], csvs["benchmark_gpu"])
    return {**finding(records), "practice": in_short, "limits": limits(records, effects)}


def with_blocks(text: str, of_name: dict[str, str]) -> str:
    """The text with each block written between its marks; a block whose marks are missing is left out.

    Args:
        text: the text of README.md.
        of_name: see `blocks`.
    """
    for name, block in of_name.items():
        before, start, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        if start and end:
            text = before + start + block + end + after
    return text


def practice(records: pd.DataFrame, means: pd.DataFrame) -> str:
    """Markdown: advice for the reader's own experiments, one list item per statement that has records.

    Args:
        records: see `blocks`.
        means: of `all_results`, for these records.
    """
    entropy, cbr = Config(score="EN", refresh=2), Config(**COMPARATORS["CBR"])
    lines = [_as_in_the_paper(means)]
    (of_cbr,) = (one for one in hypotheses.comparisons_of("H3", "A", expected=False) if one.memories[1] == "CBR")
    (planned,) = map(estimable, hypotheses.pairs(records, [of_cbr]))
    on_blood = [pooled(records, entropy, cbr, [stream]) for stream in paper.streams() if stream[0] == "bloodcell"]
    compared = [
        f"{wider_difference(effect(pairs, 'A'))} ({support(pairs, 'A', note)})"
        for pairs, note in [(planned, of_cbr.incomplete(planned)), *((pairs, early(pairs)) for pairs in on_blood)]
        if len(pairs)
    ]
    if compared:
        lines.append(
            f"- A score to compare with: EN, bottom-k, `refresh=2`. A minus CBR's, in points: {', '.join(compared)}."
        )
    statistics = (
        "- Score in evaluation mode (default; the paper names no mode) and report which BatchNorm statistics the tests "
        "read."
    )
    if changes := _changes_of_a(records):
        statistics += (
            f' With `test_batchnorm="memory+stream"` (half memory, half recent images), A changes by {changes}.'
        )
    lines.append(statistics)
    return "\n".join(filter(None, lines)) + "\n"


def verdicts(of_claims: pd.DataFrame) -> str:
    """Markdown: a list item on how many measured differences of the paper's claims have each verdict, by setting.

    Args:
        of_claims: figures/claims.csv, see `ucl.report.claims.section`; may be empty.
    """
    if of_claims.empty:
        return ""
    sums = of_claims.groupby("settings", sort=False)[list(WORDS[:3])].sum()
    found = [f"{NAMES[setting]} {', '.join(map(str, row))}" for setting, row in zip(sums.index, sums.to_numpy())]
    words = f"Paper's differences ({', '.join(WORDS[:3])})"
    return f"- {words}: {'; '.join(found)} ([verdicts](figures/RESULTS.md#the-papers-claims)).\n"


def times(on_cpus: pd.DataFrame, on_gpu: pd.DataFrame) -> str:
    """Markdown: a list item on the time of BI compared with that of ER.

    Args:
        on_cpus: figures/beside_naive.csv, see `ucl.report.costs.per_batch`; may be empty.
        on_gpu: figures/benchmark_gpu.csv, see `ucl.report.costs.on_gpu`; may be empty.
    """
    if on_cpus.empty:
        return ""
    means = on_cpus.groupby(["processor", "memory_size", "variant"])["whole_ms"].mean().unstack("variant")
    whole, two = (means[f"BI refresh {refresh}"] / means["ER"] for refresh in (1, 2))
    kinds = means.index.get_level_values("processor").nunique()
    text = (
        f"{whole.min():.1f} to {whole.max():.1f} (`refresh=2`: {two.min():.1f} to {two.max():.1f}) on "
        f"{'one kind' if kinds == 1 else f'{kinds} kinds'} of CPU, memory {_sizes(on_cpus)}"
    )
    if not on_gpu.empty:
        ms = on_gpu[on_gpu["task"] == "mean"].groupby("method")["whole_ms"].mean()
        text += f"; {ms['BI'] / ms['ER']:.1f} on a GPU, memory {_sizes(on_gpu)}"
    (_, er), (_, bi) = (paper.RUNTIMES[method] for method in ("ER", "BI bottom"))
    return f"- Time per batch on CIFAR-10, BI over ER: {text}; the paper, {bi / er:.1f}.\n"


def _sizes(times: pd.DataFrame) -> str:
    """The memory sizes of a table of times: "500 and 1000"."""
    return " and ".join(map(str, sorted(times["memory_size"].unique())))


def _changes_of_a(records: pd.DataFrame) -> str:
    """H5 in numbers, such as "+3.6 [+0.8, +6.3] (ER), +2.6 [+1.3, +3.8] (CBR) points on bloodcell 40, n = 10"."""
    own = hypotheses.comparisons_of("H5", "A")
    changes, on = [], []
    for one, pairs in zip(own, map(estimable, hypotheses.pairs(records, own)), strict=True):
        if len(pairs):
            note = "; ".join(filter(None, [one.memories[0], clear_on(pairs, "A")]))
            changes.append(f"{wider_difference(effect(pairs, 'A'))} ({note})")
            on.append(f"{where_and_n(pairs)}{one.incomplete(pairs)}")
    if len(set(on)) == 1:
        return f"{', '.join(changes)} points on {on[0]}"
    return ", ".join(f"{change} points on {where}" for change, where in zip(changes, on, strict=True))


def limits(records: pd.DataFrame, effects: pd.DataFrame) -> str:
    """Markdown: the limits of the measurements: coverage, devices and images.

    Args:
        records, effects: see `blocks`.
    """
    cells = measured(coverage(records))
    used = set(records["fingerprint"]) if len(records) else set()
    differing = ", ".join(text for fingerprint, text in IMAGES.items() if fingerprint in used)
    images = f" The images differ from the official files: {differing}." if differing else ""
    return (
        f"> **Limits.** {int(cells.any(axis=1).sum())} of the paper's {len(cells)} cells have runs, "
        f"{int(cells['everything rescored'].sum())} with its settings. {_devices(records, effects)}{images}\n"
    )


def _devices(records: pd.DataFrame, effects: pd.DataFrame) -> str:
    """A sentence: how many records are from a GPU, how many kinds of CPU there are, and how many pairs join them."""
    if records.empty:
        return "Devices: none."
    on_gpus = records[records["device"] != "cpu"]
    on_cpus = records.drop(on_gpus.index)
    kinds = len({record.processor for record in on_cpus["record"]})
    cpus = f"CPUs of {kinds} kinds" if kinds > 1 else "CPUs"
    apart, n = pairs_apart(effects)
    joined = f"; {apart} of {n} pairs in [effects.csv](figures/effects.csv) join two kinds" if apart else ""
    if on_gpus.empty:
        return f"All records are from {cpus}{joined}."
    scored = ", all scored," if all(record.config.uses_scores for record in on_gpus["record"]) else ""
    names = ", ".join(on_gpus["device"].unique())
    return f"{len(on_gpus)} of {len(records)} records{scored} are from a GPU ({names}), the others from {cpus}{joined}."


def _as_in_the_paper(means: pd.DataFrame) -> str:
    """In how many cells A and F differ from the paper's by at most both std together."""
    if means.empty:
        return ""
    cells = means[(means["n"] > 1) & means["published_A"].notna()]
    of_text, as_code = (cells[cells["setting"] == name] for name in ("everything rescored", "published settings"))
    groups = {"ER and CBR": ("ER", "CBR"), "A-GEM": ("A-GEM",), "scores": [f"{score} bottom" for score in SCORES]}
    counted = {name: of_text[of_text["method"].isin(methods)] for name, methods in groups.items()}
    counted["with published settings"] = as_code
    counted = {name: own for name, own in counted.items() if len(own)}
    near = []
    for name, own in counted.items():
        within = [
            ((own[m] - own[f"published_{m}"]).abs() <= own[f"{m}_std"] + own[f"published_{m}_std"]).sum() for m in "AF"
        ]
        near.append(f"{name} {within[0]} of {len(own)} in A, {within[1]} in F")
    if not near:
        return ""
    n = count_range(pd.concat([own["n"] for own in counted.values()]))
    where = "Cells within the sum of both standard deviations from the paper, with its text's settings"
    return f"- {where}: {'; '.join(near)} (n = {n})."
