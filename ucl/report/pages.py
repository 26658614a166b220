"""The generated tables of README.md and figures/RESULTS.md, written between marks such as ``<!-- finding -->``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from ucl.evidence import hypotheses, leaderboard
from ucl.evidence.table_formats import markdown
from ucl.report import comparisons, costs, policies, results
from ucl.report.comparisons import for_readers

_MARKS = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- /\2 -->)", re.DOTALL)


def csv(folder: str | Path, name: str) -> pd.DataFrame:
    """The table of a notebook or benchmark, by the name of its CSV file in a folder; empty if there is none."""
    path = Path(folder) / f"{name}.csv"
    return pd.read_csv(path) if path.is_file() else pd.DataFrame()


def in_full(records: pd.DataFrame, folder: str | Path) -> dict[str, pd.DataFrame]:
    """The results in numbers, by the names of their CSV files; `folder` has further ones."""
    groups, means = comparisons.GROUPS, results.means(records)
    return {
        "comparisons": pd.concat(
            [comparisons.estimates(records, group).assign(table=name) for name, group in groups.items()]
        ),
        "coverage": results.coverage(means),
        "effects": results.effects(records),
        "hypotheses": hypotheses.judged(records),
        "leaderboard": leaderboard.gaps(records, csv(folder, "leaderboard_costs")),
        "means": means,
    }


def tables(records: pd.DataFrame, full: Mapping[str, pd.DataFrame], folder: str | Path) -> dict[str, pd.DataFrame]:
    """The tables for readers, by the names in their marks.

    Args:
        records: all records, on any version of the images.
        full: see `in_full`.
        folder: of further CSV files.
    """
    used, compared = results.of_one_version(records), full["comparisons"]
    by_name = {name: compared[compared["table"] == name] for name in comparisons.GROUPS}
    by_name["advice"] = by_name["advice"].query("metric == 'A'")
    standings = leaderboard.standings(used, csv(folder, "leaderboard_costs"))
    return {
        **{name: for_readers(table) for name, table in by_name.items()},
        "networks": results.networks_tested_again(used),
        "facts": results.facts(records, full["coverage"], full["effects"]),
        "coverage": results.coverage_by_dataset(full["coverage"]),
        "as_in_the_paper": results.as_in_the_paper(full["means"]),
        "hypotheses": results.hypotheses(full["hypotheses"]),
        "claims": results.claims(csv(folder, "claims")),
        "choices": results.with_differences(used, results.CHOICES),
        "groupnorm": results.with_differences(used, results.WITHOUT_BATCHNORM),
        "methods": policies.methods(),
        "leaderboard": policies.leaderboard(standings, full["leaderboard"]),
        "kept_with_remedies": policies.remedies(csv(folder, "memory_autopsy_remedies")),
        "per_batch": costs.by_processor(csv(folder, "beside_naive")),
        "table1_hours": costs.table1_hours(csv(folder, "beside_naive")),
        "whole_runs": costs.whole_runs(csv(folder, "table4_runtime"), csv(folder, "table4_runtime_refresh")),
        "gpu": costs.gpu(csv(folder, "benchmark_gpu")),
    }


def with_tables(page: str, tables_by_name: Mapping[str, pd.DataFrame]) -> str:
    """A page with each of some tables written between its marks; KeyError if the page has marks of another one."""
    return _MARKS.sub(lambda marks: f"{marks[1]}{markdown(tables_by_name[marks[2]], 1)}{marks[3]}", page)


def write(
    records: pd.DataFrame, folder: str | Path, pages: Iterable[Path] = ()
) -> tuple[dict[str, pd.DataFrame], dict[str, pd.DataFrame]]:
    """Write the results to CSV files and the tables into pages.

    Args:
        records: all records, on any version of the images.
        folder: of the CSV files.
        pages: files with marks; those that do not exist are left out.

    Returns:
        The results in numbers, see `in_full`, and the tables, see `tables`.
    """
    full = in_full(results.of_one_version(records), folder)
    for name, table in full.items():
        table.to_csv(Path(folder) / f"{name}.csv", index=False, float_format="%.4f")
    tables_by_name = tables(records, full, folder)
    for page in filter(Path.is_file, pages):
        page.write_text(with_tables(page.read_text(encoding="utf-8"), tables_by_name), encoding="utf-8")
    return full, tables_by_name
