"""The blocks of README.md that report results, between marks such as ``<!-- finding -->`` and ``<!-- /finding -->``.

The words are chosen by code from the numbers, and each statement gives its n.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from ucl.choices import SCORE_NAMES, UNIFORM
from ucl.config import Config
from ucl.evidence import hypotheses, paper
from ucl.evidence.all_results import all_results, streams
from ucl.evidence.comparisons import CIFAR, KEPT_NUMBERS, count, pooled
from ucl.evidence.coverage import coverage, measured
from ucl.evidence.effects import COMPARATORS, Effect, effect, n_exploratory
from ucl.evidence.markdown import difference, excludes_zero, number, signed, table

IMAGES = {  # how the images of a fingerprint differ from the official files
    "c7be5f0768b09772": "cifar10 is a JPEG re-encoding (about 30 dB)",
    "391174c3e4190c3b": "cifar100 is lossless in another order",
    "12891449f0e728a0": "bloodcell is BloodMNIST split anew, class sizes kept",
}
NOT_DISTINGUISHABLE = "not distinguishable from"
_BLOODCELL = (("bloodcell", 40),)


def blocks(records: pd.DataFrame, csvs: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """The text of each block of README.md, by the name in its marks.

    Args:
        records: see `ucl.load_records`; of each data set on one version of its images.
        csvs: those named below, of `ucl.evidence.results.read_csvs`.
    """
    in_practice = practice(records) + repeating(csvs["repeatability"]) + recent(csvs["memory_autopsy"])
    in_practice += exchanged(csvs["memory_swap_effects"])
    limited = limits(records) + tested_hard(csvs["soak"])
    return {"finding": finding(records), "practice": in_practice, "limits": limited}


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
    if not all(one.n for one in found):
        return "Not all of the runs behind the finding have records.\n"
    n = [_where_and_n(one) for one in pairs]
    plain, coded, chance = map(called, found[:3])
    items, last_rows = _same_networks(records)
    early, total = sum(map(n_exploratory, pairs)), sum(map(len, pairs))
    exploratory = "all" if early == total else early
    text = (
        "- With the settings of the paper's text, F of the paper's method, BI with bottom-k, is "
        f"{plain} ER's ({n[0]}).\n"
        f"- With published settings, those of the reference implementation, F of BI is {coded} ER's ({n[1]})"
        f"{_beside_lower_f(records, pairs[1])}. With a random number as the score (*uniform*), F is {chance} ER's "
        f"({n[2]}).\n"
        f"{items}{_of_entropy(records, pairs[4])}\n"
        f"In rows 1 to {len(compared)}, {exploratory} of {total} pairs of runs are [exploratory](figures/PROTOCOL.md)."
    )
    printed = (
        paper.published().query("metric == 'F'").set_index(["dataset", "memory_size", "method", "selection"])["mean"]
    )
    rows = []
    for (name, own, other, over), one in zip(compared, pairs, strict=True):
        where = f"{len(over)} CIFAR streams" if over == CIFAR else _where(one)
        in_paper = ""
        if own.score in SCORE_NAMES:
            gaps = [printed[d, m, own.score, "bottom"] - printed[d, m, other.label, ""] for d, m in over]
            in_paper = signed(sum(gaps) / len(gaps))
        rows.append(_row(name, where, one, in_paper))
    rows += last_rows
    head = ["difference in F, points", "data set, memory", "n", "mean [95 %]", "detectable", "in the paper"]
    return f"{text}\n\n{table(head, rows)}"


def called(found: Effect) -> str:
    """A difference in words: "lower than", "higher than" or "not distinguishable from".

    It is distinguishable if both intervals, the one by stream and the one with the seed as cluster, exclude 0.
    """
    sides = (found.interval, found.clustered)
    if all(excludes_zero(side) for side in sides):
        return "higher than" if found.mean > 0 else "lower than"
    return NOT_DISTINGUISHABLE


def practice(records: pd.DataFrame) -> str:
    """Markdown: advice for the reader's own experiments, one list item per statement that has records.

    Args:
        records: see `blocks`.
    """
    entropy, cbr = Config(score="EN", refresh=2), Config(**COMPARATORS["CBR"])
    results = all_results(records)
    scored = tuple(f"{score} bottom" for score in SCORE_NAMES)
    near = [
        _as_in_the_paper(results, *group) for group in (("ER and CBR", ("ER", "CBR")), ("A-GEM",), ("scores", scored))
    ]
    agreement = "- Cells that agree with the paper within the sum of both standard deviations: "
    lines = [f"{agreement}{'; '.join(filter(None, near))}."]
    lines = lines if any(near) else []
    compared = []
    for over in (CIFAR, *((stream,) for stream in streams() if stream[0] == "bloodcell")):
        pairs = pooled(records, entropy, cbr, over)
        if len(pairs):
            a, f = effect(pairs, "A"), effect(pairs, "F")
            where = _on_cifar(pairs) if over == CIFAR else _where_and_n(pairs)
            a_and_f = (
                signed(one.mean) if called(one) == NOT_DISTINGUISHABLE else f"**{signed(one.mean)}**" for one in (a, f)
            )
            early = n_exploratory(pairs)
            where += f", {early} of {len(pairs)} pairs exploratory" if 0 < early < len(pairs) else ""
            compared.append("A {}, F {} ({})".format(*a_and_f, where))
    if compared:
        lines.append(
            "- A score to compare with: EN with bottom-k and `refresh=2`. Differences from CBR in points "
            f"(bold: distinguishable from 0): {'; '.join(compared)}."
        )
    lines.append("- Score in evaluation mode (default) and report which BatchNorm statistics the tests read.")
    if better := _by_memory(records, "H5", "A"):
        lines.append(
            '- `test_batchnorm="memory+stream"`, statistics of half memory, half recent images: '
            f"A changes by {_listed(better, 'A')}."
        )
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
    seeds = f"{n.min()} to {n.max()}" if n.min() < n.max() else n.max()
    return (
        "- Rank correlation of two scorings by one network (`notebooks/repeatability.ipynb`): "
        f"{'; '.join(each)} ({seeds} {'seed' if seeds == 1 else 'seeds'}).\n"
    )


def recent(kept: pd.DataFrame) -> str:
    """Markdown: a list item on how many stored images are from the end of their task; ranges over streams and methods.

    Args:
        kept: figures/memory_autopsy.csv, see `ucl.studies.memory_autopsy.kept_traits`; may be empty.
    """
    if kept.empty:
        return ""
    own = kept[kept["settings"].fillna("").isin(["", "refresh=2"])]
    means = 100 * own.groupby(["dataset", "memory_size", "method", "settings"], dropna=False)["recent"].mean()
    method = means.index.get_level_values("method")
    uniform = means[method == "uniform bottom"]
    scored = means[method.str.endswith(" bottom") & (method != "uniform bottom")]
    of_cbr, of_scores, of_uniform = (
        f"{part.min():.0f} to {part.max():.0f} %" for part in (means[method == "CBR"], scored, uniform)
    )
    return (
        f"- Images from the last tenth of their task: {of_cbr} of CBR's memories, {of_scores} with scores and "
        f"bottom-k, {of_uniform} with uniform (`notebooks/memory_autopsy.ipynb`).\n"
    )


def exchanged(differences: pd.DataFrame) -> str:
    """Markdown: a list item on memories exchanged in one network: how many retain less or more than CBR's.

    Args:
        differences: figures/memory_swap_effects.csv, see `ucl.studies.memory_swap.against`; may be empty.
    """
    if differences.empty:
        return ""
    own = differences[differences["measure"] == "retained"]
    bottom = own[own["method"].str.endswith(" bottom")]
    less, more = (bottom["high"] < 0).sum(), (bottom["low"] > 0).sum()
    return (
        f"- Memories exchanged in one network (`notebooks/memory_swap.ipynb`): of {len(bottom)} with bottom-k, "
        f"{less} retain less accuracy on earlier tasks than CBR's and {more} more (n = {own['n'].max()}).\n"
    )


def _same_networks(records: pd.DataFrame) -> tuple[str, list[tuple]]:
    """The effect of the published scoring passes on networks of BI and of ER: list items and rows of the table.

    Both are empty if BI has no such runs.
    """
    (moved,), (without, *_) = (hypotheses.comparisons_of("H1", "F", expected=judges) for judges in (False, True))
    of_bi, of_er, *of_score = hypotheses.pairs(records, [moved, without, *hypotheses.comparisons_of("H2", "F")])
    if of_bi.empty:
        return "", []
    to_redraw = {f"{called(effect(pairs, 'F'))} CBR redraw's ({count(pairs)})": None for pairs in of_score}
    items = (
        "- Its scoring passes move the BatchNorm statistics that the tests read: F of BI is "
        f"{called(effect(of_bi, 'F'))} that of the same networks under the statistics of training alone "
        f"({_where_and_n(of_bi)}). Under equal statistics, it is {' and '.join(to_redraw)}, a random choice of mostly "
        "recent images.\n"
    )
    rows = [_row("BI's networks: with its scoring passes minus without", _where(of_bi), of_bi)]
    if len(of_er):
        unclear = [
            " ".join(map(str, stream))
            for stream, own in of_er.groupby(["dataset", "memory_size"])
            if called(effect(own, "F")) == NOT_DISTINGUISHABLE
        ]
        alone = (
            f"; on {' and '.join(unclear)} alone, not distinguishable"
            if 0 < len(unclear) < len(_streams(of_er))
            else ""
        )
        items += (
            f"- Without a score, F of ER with such passes added is {called(effect(of_er, 'F'))} without "
            f"({count(of_er)}{alone}).\n"
        )
        rows.append(_row("ER's networks: with scoring passes added minus without", _where(of_er), of_er))
    return items, rows


def _beside_lower_f(records: pd.DataFrame, minus_er: pd.DataFrame) -> str:
    """What BI with published settings retains compared with ER, and its A compared with CBR's at these settings."""
    bi, cbr = (Config(**fields, **paper.PUBLISHED_CODE) for fields in ({"score": "BI"}, COMPARATORS["CBR"]))
    text = f"; retained accuracy is {called(effect(minus_er, 'retained'))} ER's"
    minus_redraw = pooled(records, bi, cbr, _BLOODCELL)
    if len(minus_redraw):
        text += f", A is {called(effect(minus_redraw, 'A'))} CBR redraw's ({count(minus_redraw)})"
    return text


def _of_entropy(records: pd.DataFrame, minus_cbr: pd.DataFrame) -> str:
    """A list item on EN with `refresh=2`: its F compared with CBR's on the CIFAR streams, and with uniform's."""
    item = (
        f"- With `refresh=2`, F of EN with bottom-k is {called(effect(minus_cbr, 'F'))} CBR's ({_on_cifar(minus_cbr)})"
    )
    (minus_uniform,) = hypotheses.pairs(records, hypotheses.comparisons_of("H3", "F"))
    if len(minus_uniform):
        item += f" and {called(effect(minus_uniform, 'F'))} uniform's ({_where_and_n(minus_uniform)})"
    item += "."
    minus_kept = pooled(records, Config(score="EN", refresh=2), KEPT_NUMBERS, [("cifar10-lt", 200)])
    if len(minus_kept):
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


def _by_memory(records: pd.DataFrame, hypothesis: str, metric: str) -> dict[str, pd.DataFrame]:
    """The paired differences that judge a hypothesis on readings, by memory; memories without runs are left out."""
    own = hypotheses.comparisons_of(hypothesis, metric)
    found = zip(own, hypotheses.pairs(records, own), strict=True)
    return {comparison.memories[0]: pairs for comparison, pairs in found if len(pairs)}


def _listed(of_memory: dict[str, pd.DataFrame], metric: str) -> str:
    """Such as "−8.2 [−19.2, +2.7] (ER), −7.6 [−16.0, +0.7] (CBR) points on bloodcell 40, n = 10"."""
    streams_of = {memory: _where_and_n(pairs) for memory, pairs in of_memory.items()}
    all_equal = len(set(streams_of.values())) == 1
    numbers = [
        f"{difference(effect(pairs, metric))} ({memory if all_equal else f'{memory}; {streams_of[memory]}'})"
        for memory, pairs in of_memory.items()
    ]
    return f"{', '.join(numbers)} points{' on ' + streams_of.popitem()[1] if all_equal else ''}"


def _on_cifar(pairs: pd.DataFrame) -> str:
    """Such as "3 to 7 seeds on 4 CIFAR streams"."""
    return count(pairs).replace(" streams", " CIFAR streams")


def _where_and_n(pairs: pd.DataFrame) -> str:
    """Such as "bloodcell 40, n = 10", or "2 to 10 seeds on 3 streams"."""
    (dataset, size), *others = _streams(pairs)
    return count(pairs) if others else f"{dataset} {size}, {count(pairs)}"


def limits(records: pd.DataFrame) -> str:
    """Markdown: the limits of the measurements: coverage, n, devices and images.

    Args:
        records: see `blocks`.
    """
    has_run = measured(coverage(records)).any(axis=1)
    n = all_results(records).get("n", pd.Series([0]))
    devices = ", ".join(records["device"].unique()) if len(records) else "none"
    ran = "All ran on CPUs; many pairs join two kinds of processor." if devices == "cpu" else f"Devices: {devices}."
    used = set(records["fingerprint"]) if len(records) else set()
    differing = ", ".join(text for fingerprint, text in IMAGES.items() if fingerprint in used)
    images = f" The images differ from the official files: {differing}." if differing else ""
    return (
        f"> **Limits.** {int(has_run.sum())} of the paper's {len(has_run)} cells have a run in some setting. "
        f"n is {n.min()} to {n.max()} seeds per cell. {ran}{images}\n"
    )


def tested_hard(soak: pd.DataFrame) -> str:
    """Markdown: a line on kills and hostile inputs; "" before `make soak` has written its table.

    Args:
        soak: one row per kind of trial: kind, tried, failures, is_kill, seed, commit.
    """
    if soak.empty:
        return ""
    kills, inputs = (int(soak.loc[soak["is_kill"] == kind, "tried"].sum()) for kind in (True, False))
    failures, first = int(soak["failures"].sum()), soak.iloc[0]
    return (
        f"> `make soak` (seed {first['seed']}, commit {first['commit']}): {kills:,} kills, {inputs:,} hostile inputs, "
        f"{failures} failures.\n"
    )


def _as_in_the_paper(results: pd.DataFrame, name: str, methods: tuple[str, ...] = ()) -> str:
    """In how many cells A and F, with the default settings, differ from the paper's by at most both std together."""
    if results.empty:
        return ""
    own = results[
        results["method"].isin(methods or (name,)) & (results["setting"] == "everything rescored") & (results["n"] > 1)
    ]
    if own.empty:
        return ""
    near = [(own[m] - own[f"published_{m}"]).abs() <= own[f"{m}_std"] + own[f"published_{m}_std"] for m in ("A", "F")]
    return f"{name} {near[0].sum()} of {len(own)} in A, {near[1].sum()} in F (n = {own['n'].min()} to {own['n'].max()})"
