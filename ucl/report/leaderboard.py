"""Markdown: the leaderboard of `ucl.evidence.leaderboard`, and published numbers of the same methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ucl.evidence import paper
from ucl.evidence.effects import Interval, Stream, on_stream
from ucl.evidence.leaderboard import AT_EQUAL_SECONDS, STREAMS, UNIFORM_SCORE, UPDATES, gaps, milliseconds, standings
from ucl.report.costs import commit_in_words, load
from ucl.report.markdown import excludes_zero, number, plus_minus, table, with_interval

_COMMAND = "`make leaderboard-costs`"


def section(records: pd.DataFrame, times: pd.DataFrame) -> str:
    """Markdown: the leaderboard of each stream that has records, then published numbers of the same methods.

    Args:
        records, times: see `ucl.evidence.leaderboard.standings`.
    """
    parts = []
    for stream in STREAMS:
        found = standings(records, times, stream)
        if found["n"].any():
            parts.append(_of_stream(found, gaps(records, times, stream), times, stream))
    if not parts:
        return "No run of the leaderboard has a record yet (`ucl.evidence.leaderboard.planned`).\n"
    return "\n\n".join(part.strip() for part in (_INTRODUCTION, *parts, published())) + "\n"


_INTRODUCTION = f"""\
What should a replay memory keep? The table has all memory policies and the methods that change how a batch is learnt, \
with the settings of the paper's text: everything is rescored. Each takes one training step per batch, so updates are \
equal; *CBR, 2 updates* takes two, and so on. Differences are paired by seed, in points.

*CBR* is class-balancing reservoir sampling. *uniform* is the paper's memory with a random number as the score. \
A-GEM, ER-ACE, DER++ and MIR have the memory of ER. Finetune and Joint have none. Joint learns the images of all tasks \
mixed, so its F is not forgetting. Rainbow and MOE choose at a task's end among all its images, which a stream does \
not keep: they are not online, and their memory is empty in the first task. With LARS and GSS, too, replay draws no \
images of the current task (`replay="earlier"`); their authors replay the whole memory (`replay="all"`).

*At equal seconds* a policy is compared with CBR that takes 1, {", ".join(map(str, UPDATES[:-1]))} or {UPDATES[-1]} \
training steps per batch: the most whose time per batch is not above the policy's, and at least 1. The rows of CBR \
show whether fewer steps are better.

All of these comparisons are exploratory. [PROTOCOL.md](PROTOCOL.md) has no hypothesis on them, and their seeds are \
those of its exploratory runs."""


def _of_stream(found: pd.DataFrame, compared: pd.DataFrame, times: pd.DataFrame, stream: Stream) -> str:
    """Markdown: the leaderboard of one stream, see `standings` and `gaps`."""
    first, last = STREAMS[stream][0], STREAMS[stream][-1]
    parts = [f"### {stream[0]}, memory {stream[1]}"]
    if stream == next(iter(STREAMS)):
        parts.append(
            "![Differences in A and F from CBR, per policy](leaderboard.png)\n\n"
            "The picture as numbers: [leaderboard.csv](leaderboard.csv)."
        )
    parts += [
        f"Seeds {first} to {last}. {_by_chance(compared)} {_times_in_words(times, stream)}",
        table_of_policies(found, compared),
        _left_out(found),
    ]
    return "\n\n".join(part.strip() for part in parts if part)


def table_of_policies(found: pd.DataFrame, compared: pd.DataFrame) -> str:
    """Markdown: one row per policy that has runs, in the order of `found`.

    Args:
        found: see `ucl.evidence.leaderboard.standings`.
        compared: see `ucl.evidence.leaderboard.gaps`. A difference with fewer pairs than the policy has runs shows its
            n.
    """
    of_row = {(row["policy"], row["comparator"], row["metric"]): row for row in compared.to_dict("records")}

    def cell(row: Mapping[str, Any], comparator: str, metric: str) -> str:
        gap = of_row.get((row["policy"], comparator, metric))
        if gap is None:
            return ""
        pairs = "" if gap["n"] == row["n"] else f"(n = {gap['n']})"
        return " ".join(filter(None, [with_interval(gap["mean"], gap["low"], gap["high"]), pairs]))

    def detectable(row: Mapping[str, Any], metric: str) -> str:
        gap = of_row.get((row["policy"], "CBR", metric))
        return "" if gap is None else number(gap["detectable"])

    rows = []
    for row in found[found["n"] > 0].to_dict("records"):
        seconds = cell(row, AT_EQUAL_SECONDS, "A")
        rows.append(
            (
                row["policy"],
                row["n"],
                *(plus_minus(row[metric], row[f"{metric}_std"]) for metric in "AF"),
                *(text for metric in "AF" for text in (cell(row, "CBR", metric), detectable(row, metric))),
                cell(row, UNIFORM_SCORE, "A"),
                number(row["ms"], 0),
                seconds,
                row["updates"] if seconds else "",
            )
        )
    differences_in = (text for m in "AF" for text in (f"{m} minus CBR [95 %]", f"detectable in {m}"))
    equal_seconds = ("ms per batch", "A minus CBR at equal seconds [95 %]", "updates of CBR")
    return table(["policy", "n", "A", "F", *differences_in, "A minus uniform [95 %]", *equal_seconds], rows)


def published() -> str:
    """Markdown: the numbers of `ucl.paper.rivals`, and why they cannot be compared with the ones measured here."""
    rivals = paper.rivals()
    rivals["memory"] = rivals["memory_size"].astype(object).fillna("not stated")
    rivals["A"] = [plus_minus(mean, std) for mean, std in zip(rivals["mean"], rivals["std"], strict=True)]
    rows = rivals[["method", "dataset", "memory", "A", "setting", "source"]].to_numpy()
    return (
        "### Published numbers of these methods\n\n"
        "They cannot be compared number by number with those above. Here each image of the stream is seen once, "
        "without augmentation, by a ResNet-18 with 20 filters at the start. The published runs differ in epochs, "
        "augmentation, network, memory size or boundaries, and each of these can change A.\n\n"
        + table(["method", "data set", "memory", "A published", "setting", "source"], rows)
    )


def _by_chance(compared: pd.DataFrame) -> str:
    """How many intervals of A minus CBR exclude 0, and how many would do so by chance; "" without an interval."""
    own = compared[(compared["comparator"] == "CBR") & (compared["metric"] == "A")].dropna(subset=["low"])
    if own.empty:
        return ""
    excluding = sum(excludes_zero(Interval(row["low"], row["high"])) for row in own.to_dict("records"))
    return (
        f"{excluding} of {len(own)} intervals of A minus CBR exclude 0. If no policy differed from CBR, "
        f"{0.05 * len(own):.1f} of them would be expected to do so by chance. All of them share the runs of CBR, so "
        "they are not independent."
    )


def _times_in_words(times: pd.DataFrame, stream: Stream) -> str:
    """Markdown: how the times of a stream were measured; a sentence if there are no times."""
    if not milliseconds(times, stream):
        dataset, memory_size = next(iter(STREAMS))
        return f"No times yet; {_COMMAND} measures those of {dataset}, memory {memory_size}."
    own = on_stream(times, stream)
    first = own.iloc[0]
    return (
        f"Times are of learning a batch and updating a full memory: the median of {first['repeats']} batches per task, "
        f"averaged over the stream, all policies in turns in one process ({_COMMAND}, "
        f"[leaderboard_costs.csv](leaderboard_costs.csv); {load(own)}, threads: {first['threads']}, commit "
        f"{commit_in_words(first['commit'])})."
    )


def _left_out(found: pd.DataFrame) -> str:
    """Markdown: the policies without a record, and the runs that failed."""
    none = found.loc[(found["n"] == 0) & (found["failed"] == ""), "policy"]
    failed = [f"{row['policy']} ({row['failed']})" for row in found[found["failed"] != ""].to_dict("records")]
    missing = f"No record yet: {'; '.join(none)}. " if len(none) else ""
    return f"{missing}Runs that failed and do not count: {'; '.join(failed) or 'none'}."
