"""The results: CSV files, pictures, and the tables of README.md, figures/RESULTS.md and figures/APPENDIX.md.

`python -m ucl.report.pages` writes them all, after the notebooks whose CSV files it reads. A table is written between
two marks, such as ``<!-- finding -->`` and ``<!-- /finding -->``, whose name is a key of `tables`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from ucl import plots
from ucl.evidence import hypotheses, leaderboard
from ucl.evidence.run_measures import by_reading
from ucl.evidence.table_formats import markdown
from ucl.records import load_records
from ucl.report import comparisons, costs, policies, results

_MARKS = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- /\2 -->)", re.DOTALL)


def in_full(records: pd.DataFrame, measured: pd.DataFrame, times: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The results in numbers, by the names of their CSV files.

    Args:
        records: figures/runs.
        measured: these and figures/decisive, which is not in comparisons.
        times: figures/leaderboard_costs.csv.
    """
    groups = [comparisons.estimates(records, group).assign(table=name) for name, group in comparisons.GROUPS.items()]
    return {
        "comparisons": pd.concat(groups),
        "coverage": results.coverage(results.cells(measured)),
        "effects": results.effects(records),
        "hypotheses": hypotheses.judged(measured),
        "leaderboard": leaderboard.gaps(records, times),
    }


def tables(
    records: pd.DataFrame,
    measured: pd.DataFrame,
    networks: pd.DataFrame,
    full: Mapping[str, pd.DataFrame],
    folder: Path,
) -> dict[str, pd.DataFrame]:
    """The tables for readers, by the names in their marks.

    Args:
        records, measured: see `in_full`.
        networks: the planned records under each reading, see `ucl.evidence.run_measures.by_reading`.
        full: the tables of `in_full`.
        folder: figures, with the CSV files of notebooks and benchmarks.
    """

    def csv(name: str) -> pd.DataFrame:
        return pd.read_csv(folder / f"{name}.csv")

    compared = full["comparisons"]
    judged = full["hypotheses"]
    is_decisive = judged["hypothesis"].str.startswith("D")
    of_runs, planned = judged[is_decisive].query("reading == 'running'"), judged[~is_decisive]
    standings = leaderboard.standings(records, csv("leaderboard_costs"))
    return {
        **{name: comparisons.for_readers(compared[compared["table"] == name]) for name in comparisons.GROUPS},
        "parts": results.parts_of_forgetting(networks),
        "facts": results.facts(measured, full["coverage"], full["effects"]),
        "coverage": results.coverage_by_dataset(full["coverage"]),
        "near_counts": results.near_counts(results.cells(records)),
        "decisive": results.decisive(of_runs.query("other_memory != 'CBR'")),
        "decisive_reported": results.decisive(of_runs.query("other_memory == 'CBR'")).drop(columns="verdict"),
        "hypotheses": results.hypotheses(planned.query("expected != ''")),
        "hypotheses_reported": results.hypotheses(planned.query("expected == ''")).drop(
            columns=["expected", "verdict"]
        ),
        "claims": results.claims(csv("claims")),
        "choices": results.with_differences(records, results.CHOICES),
        "agem": results.projections(records),
        "groupnorm": results.with_differences(records, results.WITHOUT_BATCHNORM),
        "methods": policies.methods(),
        "leaderboard": policies.leaderboard(standings, full["leaderboard"]),
        "kept_with_remedies": policies.remedies(csv("memory_autopsy_remedies")),
        "per_batch": costs.by_processor(csv("beside_naive")),
        "whole_runs": costs.whole_runs(load_records(folder / "alone")),
        "cpu": costs.by_part(csv("benchmark").query("memory_size == 500 and method in ['ER', 'A-GEM', 'MC', 'BI']")),
        "gpu": costs.by_part(csv("benchmark_gpu")),
    }


def with_tables(page: str, tables_by_name: Mapping[str, pd.DataFrame]) -> str:
    """A page with each of some tables written between its marks; KeyError if the page has marks of another one."""
    return _MARKS.sub(lambda marks: f"{marks[1]}{markdown(tables_by_name[marks[2]], 1)}{marks[3]}", page)


def write(checkout: Path) -> dict[str, pd.DataFrame]:
    """Write the CSV files and pictures in the folder figures of a checkout, and the tables into its pages.

    Returns:
        The tables, see `tables`.
    """
    folder = checkout / "figures"
    records = load_records(folder / "runs")
    measured = pd.concat([records, load_records(folder / "decisive")], ignore_index=True)
    full = in_full(records, measured, pd.read_csv(folder / "leaderboard_costs.csv"))
    networks = by_reading(results.planned(records))
    for name, table in full.items():
        table.to_csv(folder / f"{name}.csv", index=False, float_format="%.4f")
    for comparator, name in {"CBR": "effects", "ER": "effects_er"}.items():
        of_one = full["effects"][full["effects"]["comparator"] == comparator]
        plots.save(plots.effects.forest(of_one), folder / name)
    plots.save(plots.readings.tested_again(networks), folder / "finding")
    plots.save(plots.effects.leaderboard(full["leaderboard"]), folder / "leaderboard")
    plots.save(plots.effects.decisive(full["hypotheses"]), folder / "decisive")
    tables_by_name = tables(records, measured, networks, full, folder)
    for page in (checkout / "README.md", folder / "RESULTS.md", folder / "APPENDIX.md"):
        page.write_text(with_tables(page.read_text(encoding="utf-8"), tables_by_name), encoding="utf-8")
    return tables_by_name


if __name__ == "__main__":
    write(Path(__file__).resolve().parents[2])
