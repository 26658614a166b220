"""The blocks of README.md that report results, between marks such as ``<!-- finding -->`` and ``<!-- /finding -->``.

The words are chosen by code from the numbers, and each statement gives its n.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from ucl.choices import SCORE_NAMES
from ucl.config import Config
from ucl.evidence import hypotheses, paper
from ucl.evidence.effects import effect, estimable
from ucl.evidence.run_measures import COMPARATORS
from ucl.records.runs import count_range
from ucl.report.all_results import all_results
from ucl.report.basis import IMAGES
from ucl.report.comparisons import CIFAR, early, pooled
from ucl.report.coverage import coverage, measured
from ucl.report.finding import finding
from ucl.report.finding_pairs import alone, where_and_n
from ucl.report.markdown import number, wider_difference


def blocks(records: pd.DataFrame, csvs: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """The text of each block of README.md, by the name in its marks.

    Args:
        records: see `ucl.load_records`; of each data set on one version of its images.
        csvs: those named below, of `ucl.report.results.read_csvs`.
    """
    means = all_results(records)
    in_practice = practice(records, means) + repeating(csvs["repeatability"]) + recent(csvs["memory_autopsy"])
    return {**finding(records), "practice": in_practice, "limits": limits(records, means)}


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
    compared = []
    for over in (CIFAR, *((stream,) for stream in paper.streams() if stream[0] == "bloodcell")):
        pairs = pooled(records, entropy, cbr, over)
        if len(pairs):
            compared.append(f"{wider_difference(effect(pairs, 'A'))} ({where_and_n(pairs)}{early(pairs)})")
    if compared:
        lines.append(
            "- A score to compare with: EN with bottom-k and `refresh=2`. A minus CBR's, in points: "
            f"{', '.join(compared)}."
        )
    statistics = "- Score in evaluation mode (default) and report which BatchNorm statistics the tests read."
    if changes := _changes_of_a(records):
        statistics += (
            ' With `test_batchnorm="memory+stream"`, statistics of half memory, half recent images, '
            f"A changes by {changes}."
        )
    lines.append(statistics)
    return "\n".join(filter(None, lines)) + "\n"


def repeating(agreements: pd.DataFrame) -> str:
    """Markdown: a list item on the rank correlation of two scorings by EN and by BI, mean over the networks.

    Args:
        agreements: figures/repeatability.csv, see `ucl.studies.repeatability.over_run`; may be empty.
    """
    if agreements.empty:
        return ""
    once = agreements[agreements["setting"] == "1 draw"]
    means = once.pivot_table("spearman", "dataset", "score", sort=False).dropna(subset=["EN", "BI"])
    each = [f"EN {number(row['EN'], 2)}, BI {number(row['BI'], 2)} on {name}" for name, row in means.iterrows()]
    n = once[once["dataset"].isin(means.index)].groupby("dataset")["seed"].nunique()
    seeds = count_range(n)
    return (
        "- Rank correlation of two scorings by one network (`notebooks/repeatability.ipynb`): "
        f"{'; '.join(each)} ({seeds} {'seed' if n.max() == 1 else 'seeds'}, exploratory).\n"
    )


def recent(kept: pd.DataFrame) -> str:
    """Markdown: a list item on how many stored images are from the end of their task; ranges over streams and methods.

    Exploratory, as no hypothesis of the protocol is about it.

    Args:
        kept: figures/memory_autopsy.csv, see `ucl.studies.memory_autopsy.kept_traits`; may be empty.
    """
    if kept.empty:
        return ""
    own = kept[kept["settings"].fillna("").isin(["", "refresh=2"])]
    cells = own.groupby(["dataset", "memory_size", "method", "settings"], dropna=False)["recent"]
    means = 100 * cells.mean()
    method = means.index.get_level_values("method")
    shares = {
        "of CBR's memories": means[method == "CBR"],
        "with bottom-k": means[method.str.endswith(" bottom") & (method != "uniform bottom")],
        "with uniform": means[method == "uniform bottom"],
    }
    ranges = [f"{_percent(own)} {whose}" for whose, own in shares.items() if len(own)]
    return (
        f"- Images from the last tenth of their task: {', '.join(ranges)} "
        f"(n = {count_range(cells.size())}, exploratory; `notebooks/memory_autopsy.ipynb`).\n"
    )


def _percent(values: pd.Series) -> str:
    return f"{values.min():.0f} to {values.max():.0f} %"


def _changes_of_a(records: pd.DataFrame) -> str:
    """H5 in numbers, such as "+3.6 [+0.8, +6.3] (ER), +2.6 [+1.3, +3.8] (CBR) points on bloodcell 40, n = 10"."""
    own = hypotheses.comparisons_of("H5", "A")
    changes, on = [], []
    for one, pairs in zip(own, map(estimable, hypotheses.pairs(records, own)), strict=True):
        if len(pairs):
            note = "; ".join(filter(None, [one.memories[0], alone(pairs, "A")]))
            changes.append(f"{wider_difference(effect(pairs, 'A'))} ({note})")
            on.append(f"{where_and_n(pairs)}{one.incomplete(pairs)}")
    if len(set(on)) == 1:
        return f"{', '.join(changes)} points on {on[0]}"
    return ", ".join(f"{change} points on {where}" for change, where in zip(changes, on, strict=True))


def limits(records: pd.DataFrame, means: pd.DataFrame) -> str:
    """Markdown: the limits of the measurements: coverage, devices and images."""
    cells = measured(coverage(records))
    used = set(records["fingerprint"]) if len(records) else set()
    differing = ", ".join(text for fingerprint, text in IMAGES.items() if fingerprint in used)
    images = f" The images differ from the official files: {differing}." if differing else ""
    return (
        f"> **Limits.** {int(cells.any(axis=1).sum())} of the paper's {len(cells)} cells have runs, "
        f"{int(cells['everything rescored'].sum())} with its settings. {_devices(records, means)}{images}\n"
    )


def _devices(records: pd.DataFrame, means: pd.DataFrame) -> str:
    """A sentence: how many records are from a GPU and how many kinds of CPU there are, and that pairs join them."""
    if records.empty:
        return "Devices: none."
    on_gpus = records[records["device"] != "cpu"]
    on_cpus = records.drop(on_gpus.index)
    kinds = len({record.processor for record in on_cpus["record"]})
    cpus = f"CPUs of {kinds} kinds" if kinds > 1 else "CPUs"
    joined = "; many pairs join them" if kinds > 1 and means.get("pairs_ER", pd.Series(0)).any() else ""
    if on_gpus.empty:
        return f"All records are from {cpus}{joined}."
    scored = ", all scored," if all(record.config.uses_scores for record in on_gpus["record"]) else ""
    names = ", ".join(on_gpus["device"].unique())
    return f"{len(on_gpus)} of {len(records)} records{scored} are from a GPU ({names}), the others from {cpus}{joined}."


def _as_in_the_paper(means: pd.DataFrame) -> str:
    """In how many cells A and F, with the default settings, differ from the paper's by at most both std together."""
    if means.empty:
        return ""
    cells = means[(means["setting"] == "everything rescored") & (means["n"] > 1)]
    groups = {"ER and CBR": ("ER", "CBR"), "A-GEM": ("A-GEM",), "scores": [f"{score} bottom" for score in SCORE_NAMES]}
    near, counted = [], []
    for name, methods in groups.items():
        own = cells[cells["method"].isin(methods)]
        within = [
            ((own[m] - own[f"published_{m}"]).abs() <= own[f"{m}_std"] + own[f"published_{m}_std"]).sum() for m in "AF"
        ]
        if len(own):
            near.append(f"{name} {within[0]} of {len(own)} in A, {within[1]} in F")
            counted.append(own["n"])
    if not near:
        return ""
    n = count_range(pd.concat(counted))
    where = "With the settings of the paper's text, cells within the sum of both standard deviations from the paper"
    return f"- {where}: {'; '.join(near)} (n = {n})."
