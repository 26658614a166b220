"""What figures/RESULTS.md rests on: records, processors, images, and what is mixed in its tables."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pandas as pd

from ucl.evidence.effects import PAIR, differences, effect, estimable, streams_of
from ucl.evidence.run_measures import n_exploratory
from ucl.records import COLUMNS, failures
from ucl.records.runs import apart_from_failures, latest
from ucl.report import costs
from ucl.report.markdown import table, wider_difference

IMAGES = {  # how the images of a fingerprint differ from the official files
    "c7be5f0768b09772": "cifar10 is JPEG re-encoded (about 30 dB)",
    "391174c3e4190c3b": "cifar100 is reordered",
    "12891449f0e728a0": "bloodcell comes from BloodMNIST's source images, with another split",
}
_MC_TESTS_SINCE = "2026-11-22T10:26"  # before, testing MC moved the dropout masks of later training steps


def basis(
    records: pd.DataFrame,
    used: pd.DataFrame,
    of_scores: pd.DataFrame,
    store: str | Path | None = None,
    output: str | Path | None = None,
) -> str:
    """Markdown: how the page is made, and from which records, processors and images.

    Args:
        records: all records, on any version of the images.
        used: those of `ucl.report.results.of_one_version`.
        of_scores: see `ucl.report.results.effects`.
        store: folder of the records, as given to the notebook; None: figures/runs.
        output: folder of the tables, as given to the notebook; None: figures.
    """
    folders = [f"`{Path(folder).as_posix()}/`" for folder in (store or "figures/runs", output or "figures")]
    made = f"`notebooks/results.ipynb` makes this page from the records in {folders[0]} and the tables in {folders[1]}"
    if records.empty:
        return f"{made}. There is no record.\n"
    all_records = list(records["record"])
    on_cpus = [r for r in all_records if r.environment["device"] == "cpu"]
    hours = sum(r.timing["total"] * r.environment.get("threads", 1) for r in on_cpus) / 3600
    processors = sorted({costs.short_name(r.processor or "unknown") for r in all_records})
    devices = records["device"].value_counts()
    early = n_exploratory(records)
    facts = [
        ("records", len(records)),
        ("core hours on CPUs, some with other work on the same machine", f"{hours:.0f}"),
        ("measured", f"{records['date'].min()[:10]} to {records['date'].max()[:10]}"),
        ("processors", ", ".join(processors)),
        ("devices", ", ".join(f"{name}: {n} records" for name, n in devices.items())),
        ("exploratory records (seeds measured before PROTOCOL.md)", early),
        ("records with other seeds", len(records) - early),
        ("networks that diverged or collapsed, left out of the means", failures(all_records) or "none"),
        ("records on other versions or sizes of the images, left out", len(records) - len(used)),
    ]
    tests = [r for r in used["record"] if r.config.uses_scores and r.config.score == "MC" and r.date < _MC_TESTS_SINCE]
    if tests:
        note = "measured when testing still moved the dropout masks of later training steps"
        where = sorted(f"{r.config.dataset} {r.config.memory_size} seed {r.config.seed}" for r in tests)
        facts.append((f"records of MC {note} ({', '.join(where)})", len(tests)))
    names = used.groupby("fingerprint")["dataset"].agg(lambda own: ", ".join(sorted(set(own))))
    images = [(names[key], key, IMAGES.get(key, "not compared with the official files")) for key in names.index]
    caveat = "Some images differ from the official files. Numbers can differ from the paper's for that alone.\n\n"
    return (
        f"{made}.\n\n{table(['', ''], facts)}\n"
        f"{caveat if set(names.index) & set(IMAGES) else ''}{table(['data set', 'fingerprint', 'images'], images)}\n"
        "A is last accuracy and F is last forgetting, in per cent. ± is the sample standard deviation over n seeds; "
        "the paper's ± is the population standard deviation of three. "
        "Differences are paired: both runs share data set, memory size and seed. "
        "[ ] is a 95 % interval. The detectable difference is the true difference that a two-sided test at 5 % finds "
        "with 80 % power at this n and spread. [PROTOCOL.md](PROTOCOL.md) defines all of them. An interval is that of "
        "one comparison: of many comparisons, some exclude 0 by chance.\n\n"
        f"{_mixed(used, of_scores)}"
    )


def pairs_apart(effects: pd.DataFrame) -> tuple[int, int]:
    """How many pairs of the effects join two kinds of processor, and how many pairs there are.

    Args:
        effects: of `ucl.report.results.effects`.
    """
    if effects.empty:
        return 0, 0
    pairs = effects[effects["metric"] == "A"]
    return int((pairs["n"] - pairs["same_processor"]).sum()), int(pairs["n"].sum())


def _mixed(used: pd.DataFrame, of_scores: pd.DataFrame) -> str:
    """Sentences: what is mixed within pairs and rows, runs that were measured twice, and tests that no table has."""
    pairs = of_scores[of_scores["metric"] == "A"]
    apart, n = pairs_apart(of_scores)
    same = pairs.groupby(["dataset", "memory_size"], sort=False)["same_processor"].transform("sum")
    all_apart = ", ".join(f"{dataset} {size}" for dataset, size in streams_of(pairs[same == 0]))
    thinned = [
        r
        for r in used["record"]
        if r.config.long_tailed_test and r.config.dataset.endswith("-lt") and r.config.uses_scores
    ]
    arithmetics = Counter(r.arithmetic for r in used["record"] if r.arithmetic)
    text = (
        f"{apart} of the {n} pairs of [effects.csv](effects.csv) join two kinds of processor "
        "(column `same_processor`). Their networks differ by rounding from the first steps on, so such a pair has more "
        "noise. "
        f"{f'All pairs of {all_apart} do. ' if all_apart else ''}"
        f"{_only_scored_on_gpus(used)}{_measured_twice(used)}Arithmetic of the scoring passes: "
        f"{', '.join(f'{name} in {n} records' for name, n in sorted(arithmetics.items())) or 'none'}"
        f"{'; rows can mix them' if len(arithmetics) > 1 else ''}.\n"
    )
    if thinned:
        text += (
            f"\n{len(thinned)} runs with the thinned test of the reference implementation are in no table of A and F.\n"
        )
    return text


def _only_scored_on_gpus(used: pd.DataFrame) -> str:
    """A sentence if no run without a score used a GPU: then the machine differs with the method."""
    on_gpus = [record for record in used["record"] if record.environment["device"] != "cpu"]
    others = [record for record in used["record"] if record.environment["device"] == "cpu"]
    if not on_gpus or not others or not all(record.config.uses_scores for record in on_gpus):
        return ""
    torch, other_torch = ({record.environment.get("torch") for record in own} for own in (on_gpus, others))
    version = " and another version of torch" if not torch & other_torch else ""
    return f"Only runs with scores used a GPU{version}, so there the machine differs with the method. "


def _measured_twice(used: pd.DataFrame) -> str:
    """A sentence on the runs that have several records: how much the one that counts differs from another one."""
    used, _ = apart_from_failures(used)
    run = used["record"].map(lambda record: record.config.result_key)
    a, f = (100 * used[COLUMNS[metric]].astype(float) for metric in "AF")
    sizes = used["memory_size"].astype(float).fillna(0)  # Otherwise each run without a memory is a stream of its own.
    used, keys = used.assign(run=run, A=a, F=f, memory_size=sizes), [*PAIR, "run"]
    counts = latest(used)
    others = used.drop(counts.index).drop_duplicates(keys)
    pairs = differences(counts, others, keys=keys)
    if pairs.empty:
        return ""
    processors = {record.config.result_key: record.processor for record in counts["record"]}
    apart = all(record.processor != processors[record.config.result_key] for record in others["record"])
    # Runs of one stream and seed share their class order, weights and batches: together they are one observation.
    own = estimable(pairs.groupby([*PAIR], as_index=False)[["A", "F"]].mean())
    n_used = len(pairs.merge(own[[*PAIR]]))
    of_both = (wider_difference(effect(own, metric)) for metric in "AF")
    runs = "1 run was" if len(pairs) == 1 else f"{len(pairs)} runs were"
    of_some = f" in the {n_used} of streams with at least two" if n_used < len(pairs) else ""
    return (
        f"{runs} measured twice; the record with more kinds of tests counts, of equal ones the later"
        f"{'; the other is from another processor' * apart}. "
        f"Its A minus the other's is {{}}, its F {{}} points{of_some}. ".format(*of_both)
    )
