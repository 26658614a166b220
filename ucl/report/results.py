"""Records, coverage of the paper's cells, claims and hypotheses."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pandas as pd

from ucl import naming
from ucl.catalogue import PAPER_SCORES, UNIFORM, WITHOUT_SCORE
from ucl.config import Config
from ucl.evidence import paper
from ucl.evidence.claims import VERDICTS
from ucl.evidence.effects import ALL_STREAMS, NUMBERS, PAIR, differences, effects_by, n_exploratory, summary
from ucl.evidence.hypotheses import PLANNED
from ucl.evidence.run_measures import SETTINGS, Runs, of_one_version
from ucl.evidence.table_formats import estimate_text, mean_and_std, signed, with_interval
from ucl.evidence.tables import in_all_settings, verdict
from ucl.records import failures
from ucl.report.comparisons import BI, CBR, EN, ER, GROUPNORM, exploratory_note

_STREAM: dict[str, Any] = {"dataset": "bloodcell", "memory_size": 40}
_BLOODCELL = BI.replace(**_STREAM)
_TRAINING = {name: naming.PUBLISHED_CODE[name] for name in ("scoring_batchnorm", "view_draws", "view_space")}
CHOICES: dict[str, Config] = {
    "everything rescored": _BLOODCELL,
    "one draw of each view for all candidates of a class": _BLOODCELL.replace(view_draws="batch"),
    "views of the normalised image": _BLOODCELL.replace(view_space="normalized"),
    "BatchNorm in training mode while scoring": _BLOODCELL.replace(scoring_batchnorm="train"),
    "all three, as in the reference implementation": _BLOODCELL.replace(**_TRAINING),
    "all three, a random number as the score": _BLOODCELL.replace(score=UNIFORM, **_TRAINING),
    "no scoring: ER": ER.replace(**_STREAM),
}
"""BI with bottom-k on BloodCell with one choice of the reference implementation at a time."""
WITHOUT_BATCHNORM: dict[str, Config] = {
    name: config.replace(model=GROUPNORM, **_STREAM)
    for name, config in {
        "CBR": CBR,
        "ER": ER,
        "uniform": Config(score=UNIFORM),
        "EN bottom": EN,
        "BI bottom": BI,
        "BI top": BI.replace(selection="top"),
    }.items()
}
"""Memories of a network without running statistics."""


def effects(records: pd.DataFrame) -> pd.DataFrame:
    """Each score with bottom-k minus CBR and minus ER, on the paper's streams and in each of `SETTINGS`.

    Returns:
        A row per comparator, stream, setting, score and metric that has pairs, in percentage points: columns dataset,
        memory_size, label, setting, comparator, metric, `NUMBERS`, published (the paper's difference), and how many
        pairs are of one kind of processor (same_processor) and of exploratory seeds (exploratory).
    """
    runs, parts = Runs(records), []
    for comparator, stream, setting in itertools.product(("CBR", "ER"), paper.streams(), SETTINGS):
        settings = Config(**SETTINGS[setting])
        without_score = runs.of(settings.replace(**WITHOUT_SCORE[comparator].fields), {stream: None})
        for score in PAPER_SCORES:
            sides = runs.of(settings.replace(score=score), {stream: None}), without_score
            pairs, together = differences(*sides), differences(*sides, ["A"], [*PAIR, "processor"])
            facts = {"same_processor": len(together), "exploratory": n_exploratory(pairs)}
            parts.append(pairs.assign(label=f"{score} bottom", setting=setting, comparator=comparator, **facts))
    cell = ["dataset", "memory_size", "label", "setting", "comparator"]
    table = effects_by(pd.concat(parts), [*cell, "same_processor", "exploratory"])
    table["published"] = [
        paper.printed_difference((row.dataset, row.memory_size), row.label, row.comparator, row.metric)
        for row in table.itertuples()
    ]
    return table[[*cell, "metric", *NUMBERS, "published", "same_processor", "exploratory"]]


def facts(records: pd.DataFrame, cells: pd.DataFrame, differences: pd.DataFrame) -> pd.DataFrame:
    """Facts about the records that the pages report, one per row.

    Args:
        records: all records.
        cells: see `coverage`.
        differences: see `effects`.
    """
    stored, counts = list(records["record"]), cells[list(SETTINGS)] > 0
    scored = cells.loc[cells["selection"] != "", "everything rescored"]
    on_cpus = [record for record in stored if record.environment["device"] == "cpu"]
    hours = sum(record.timing["total"] * record.environment.get("threads", 1) for record in on_cpus) / 3600
    pairs, dates = differences[differences["metric"] == "A"], sorted(record.date[:10] for record in stored)
    arithmetics = pd.Series([record.arithmetic for record in stored if record.arithmetic], dtype=object).value_counts()
    rows = {
        "cells of the paper's Tables 1 to 3": len(cells),
        "cells with runs": int(counts.any(axis=1).sum()),
        "cells with everything rescored": int(counts["everything rescored"].sum()),
        "cells of a score with everything rescored at three seeds": f"{(scored >= 3).sum()} of {len(scored)}",
        "records": len(stored),
        "records of seeds measured before PROTOCOL.md (exploratory)": n_exploratory(records),
        "records from a GPU": len(stored) - len(on_cpus),
        "core hours on CPUs": f"{hours:.0f}",
        "measured": f"{dates[0]} to {dates[-1]}",
        "networks that diverged, in no mean": failures(stored) or "none",
        "records on other versions or sizes of the images, in no table": len(stored) - len(of_one_version(records)),
        "pairs of effects.csv": int(pairs["n"].sum()),
        "pairs that join two kinds of processor": int((pairs["n"] - pairs["same_processor"]).sum()),
        **{f"records scored in {name}": n for name, n in sorted(arithmetics.items())},
    }
    return pd.DataFrame(rows.items(), columns=["fact", "value"])


def cells(records: pd.DataFrame) -> pd.DataFrame:
    """The cells of the paper's Tables 1 to 3 at all seeds, see `ucl.evidence.tables.in_all_settings`."""
    seeds = records["seed"].unique()
    return pd.concat([in_all_settings(records, f"table{n}", seeds) for n in (1, 2, 3)], ignore_index=True)


def coverage(cells: pd.DataFrame) -> pd.DataFrame:
    """The number of runs of each cell of the paper's Tables 1 to 3.

    Args:
        cells: see `cells`.

    Returns:
        One row per cell, 156 rows: columns table, dataset, memory_size, method, selection ("" for a baseline), and the
        number of runs with each of `SETTINGS`.
    """
    of_a = (
        cells[cells["metric"] == "A"]
        .replace({"settings": {"": "everything rescored"}})
        .rename(columns={"grid": "table"})
    )
    index = ["table", *paper.CELL[:4]]
    counts = of_a.pivot_table("n", index, "settings", "sum", fill_value=0, sort=False)
    return counts.reindex(columns=[*SETTINGS], fill_value=0).astype(int).rename_axis(columns=None).reset_index()


def coverage_by_dataset(cells: pd.DataFrame) -> pd.DataFrame:
    """How many cells of each data set have runs with each setting, and how many have none; see `coverage`."""
    counts = cells[list(SETTINGS)] > 0
    counts = counts.assign(cells=True, none=~counts.any(axis=1))[["cells", *SETTINGS, "none"]]
    totals = counts.groupby(cells["dataset"], sort=False).sum()
    totals.loc["all"] = totals.sum()
    return totals.reset_index().rename(columns={"dataset": "data set", "none": "no run"})


def near_counts(cells: pd.DataFrame) -> pd.DataFrame:
    """In how many cells with at least two seeds A and F are near the paper's, by settings and method.

    Args:
        cells: see `ucl.evidence.tables.in_all_settings`; near is its `ucl.evidence.tables.verdict`.
    """
    judged = cells.assign(verdict=verdict(cells)).replace({"settings": {"": "everything rescored"}})
    judged = judged[judged["verdict"] != ""].sort_values("settings", kind="stable")
    methods = judged["method"].replace(["ER", "CBR"], "ER and CBR")
    near = {f"near in {m}": (judged["metric"] == m) & (judged["verdict"] == "near") for m in "AF"}
    judged = judged.assign(
        methods=methods.where(judged["selection"] == "", "scores, " + judged["selection"]),
        cells=judged["metric"] == "A",
        **near,
    )
    return judged.groupby(["settings", "methods"], sort=False, as_index=False)[["cells", *near]].sum()


def with_differences(records: pd.DataFrame, experiments: Mapping[str, Config]) -> pd.DataFrame:
    """A and F of some experiments that have runs, and their paired differences from the first, as text."""
    counting = Runs(records)
    rows: list[dict[str, Any]] = []
    first = counting.of(next(iter(experiments.values())))
    for name, config in experiments.items():
        runs = counting.of(config)
        pairs = differences(runs, first if rows else first[:0])
        row: dict[str, Any] = {"": name, "n": f"{len(runs)}{exploratory_note(len(runs), n_exploratory(runs))}"}
        row |= {metric: mean_and_std(runs[metric]) for metric in "AF"}
        for metric in "AF":
            row[f"{metric} minus first row [95 %]"] = estimate_text(summary(pairs, metric), len(runs))
        if len(runs):
            rows.append(row)
    return pd.DataFrame(rows)


def projections(records: pd.DataFrame) -> pd.DataFrame:
    """A and F of A-GEM, which projects the gradient of the batch or of replay, and of ER, at the same seeds."""
    methods: dict[str, dict[str, Any]] = {
        "A-GEM": {"method": "agem"},
        "A-GEM, `projected=replay`": {"method": "agem", "projected": "replay"},
        "ER": {"population": "reservoir"},
    }
    counting, rows = Runs(records), []
    for stream in (("bloodcell", 40), ("cifar10", 500), ("cifar100", 1000)):
        dataset, size = stream
        tables = [counting.of(Config(**fields), {stream: None}) for fields in methods.values()]
        seeds = set.intersection(*(set(runs["seed"]) for runs in tables))
        for name, runs in zip(methods, tables, strict=True):
            runs = runs[runs["seed"].isin(seeds)]
            row = {"stream": f"{dataset} {size}", "": name, "n": len(runs)}
            for metric in "AF":
                row[metric] = mean_and_std(runs[metric])
                row[f"{metric}, paper"] = paper.printed(stream, name.partition(",")[0], metric)
            rows.append(row)
    return pd.DataFrame([row for row in rows if row["n"]], columns=list(rows[0]))


def parts_of_forgetting(table: pd.DataFrame) -> pd.DataFrame:
    """A, F and its parts (`ucl.evidence.run_measures.by_reading`) of BI's networks, of ER's and of those of CBR redraw.

    BI's have both statistics; ER and CBR redraw do not score, so that both are equal.
    """
    methods = {"ER": ["training"], "CBR redraw": ["training"], "BI bottom, published settings": ["training", "running"]}
    rows = []
    for (dataset, size), part in table.groupby(["dataset", "memory_size"]):
        for method, reading in ((method, reading) for method, names in methods.items() for reading in names):
            runs = part[(part["method"] == method) & (part["reading"] == reading)]
            row = {"data set, memory": f"{dataset} {size}", "n": len(runs), "method": method.partition(",")[0]}
            row |= {"statistics": f"`{reading}`" if len(methods[method]) > 1 else "both equal"}
            row |= {name: mean_and_std(runs[name]) for name in ("best", "retained", "F", "A")}
            rows.append(row | {f"{m}, paper": paper.printed((dataset, size), method, m) for m in "FA"})
    return pd.DataFrame(rows)


def planned(records: pd.DataFrame) -> pd.DataFrame:
    """The records of the streams and seeds for which the protocol plans BI with published settings."""
    runs = {(*stream, seed) for stream, seeds in PLANNED["published settings"].items() for seed in seeds}
    configs = [record.config for record in records["record"]]
    # The same images with other tasks or tests are another stream.
    wanted = [(c.dataset, c.memory_size, c.seed) in runs and naming.stream_of(c) == c.dataset_name for c in configs]
    return records[pd.Series(wanted, index=records.index, dtype=bool)]


def claims(counts: pd.DataFrame) -> pd.DataFrame:
    """How many of the paper's differences have each verdict, by claim and setting; `counts`: figures/claims.csv."""
    heads = {"differences": "the paper's differences", "excludes_0": "exclude 0 on the paper's side"}
    shown = counts[["claim", "settings", "differences", *VERDICTS, "excludes_0"]]
    return shown.sort_values(["claim", "settings"]).rename(columns=heads)


def hypotheses(judged: pd.DataFrame) -> pd.DataFrame:
    """The comparisons over all streams, and on how many the interval excludes 0."""
    names = ["hypothesis", "memory", "other_memory", "reading", "other_reading", "metric"]
    single = judged[judged["dataset"] != ALL_STREAMS].groupby(names)["excludes_0"].agg(["sum", "size"])
    overall = judged[judged["dataset"] == ALL_STREAMS].join(single, on=names)
    rows = [
        {
            "": row["hypothesis"],
            "difference": _name(row),
            "measure": row["metric"],
            "expected": row["expected"] or "reported",
            "n of planned": f"{row['n']} of {row['planned']}",
            "mean [95 %]": with_interval(row["mean"], row["low"], row["high"]),
            "excludes 0 on": f"{row['sum']} of {row['size']}",
            "verdict": row["verdict"],
            "the paper": signed(row["published"]),
            "against the paper": row["against_paper"],
        }
        for row in overall.to_dict("records")
    ]
    return pd.DataFrame(rows)


def decisive(judged: pd.DataFrame) -> pd.DataFrame:
    """Differences of the decisive experiment, a row per stream and one over all."""
    cell = ["hypothesis", "memory", "other_memory", "reading", "dataset", "memory_size"]
    rows = []
    for _, group in judged.groupby(cell, sort=False, dropna=False):
        of_metric = {row["metric"]: row for row in group.to_dict("records")}
        f = of_metric["F"]
        overall, incomplete = f["dataset"] == ALL_STREAMS, "incomplete" if f["n"] < f["planned"] else ""
        intervals = {
            f"{metric} [95 %]": with_interval(row["mean"], row["low"], row["high"]) for metric, row in of_metric.items()
        }
        rows.append(
            {
                "": f["hypothesis"],
                "difference": _name(f),
                "stream": "all" if overall else f"{f['dataset']} {f['memory_size']}",
                "n of planned": f"{f['n']} of {f['planned']}",
                "F [95 %]": intervals.pop("F [95 %]"),
                "verdict": ", ".join(filter(None, [f["verdict"], incomplete])) if overall and f["expected"] else "",
                "F, paper": signed(f["published"]),
                "against the paper": f["against_paper"],
                **intervals,
            }
        )
    return pd.DataFrame(rows)


def _name(row: dict[str, Any]) -> str:
    """The name of a difference between two memories or two readings; settings that both have are left out."""
    one, other = (row[side].partition(",")[0] for side in ("memory", "other_memory"))
    if one == other:
        return f"{one}: `{row['reading']}` minus `{row['other_reading']}`"
    return f"{one} minus {other}" + ("" if row["reading"] == "running" else f", `{row['reading']}`")
