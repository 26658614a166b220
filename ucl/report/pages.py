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

READ = (
    "beside_naive",
    "benchmark_gpu",
    "claims",
    "leaderboard_costs",
    "memory_autopsy_remedies",
    "table4_runtime",
    "table4_runtime_refresh",
)
"""The tables of notebooks and benchmarks that `tables` needs, by the names of their CSV files."""
_MARKS = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- /\2 -->)", re.DOTALL)


def read_csvs(folder: str | Path) -> dict[str, pd.DataFrame]:
    """The tables of `READ` in a folder; an empty table if its file does not exist."""
    paths = {name: Path(folder) / f"{name}.csv" for name in READ}
    return {name: pd.read_csv(path) if path.is_file() else pd.DataFrame() for name, path in paths.items()}


def in_full(records: pd.DataFrame, costs_of_policies: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The results in numbers, by the names of their CSV files.

    Args:
        records: see `ucl.report`.
        costs_of_policies: figures/leaderboard_costs.csv; may be empty.
    """
    groups, means = comparisons.GROUPS, results.means(records)
    return {
        "comparisons": pd.concat(
            [comparisons.estimates(records, group).assign(table=name) for name, group in groups.items()]
        ),
        "coverage": results.coverage(means),
        "effects": results.effects(records),
        "hypotheses": hypotheses.judged(records),
        "leaderboard": leaderboard.gaps(records, costs_of_policies),
        "means": means,
    }


def tables(
    records: pd.DataFrame, full: Mapping[str, pd.DataFrame], csvs: Mapping[str, pd.DataFrame]
) -> dict[str, pd.DataFrame]:
    """The tables for readers, by the names in their marks.

    Args:
        records: all records, on any version of the images.
        full: see `in_full`.
        csvs: see `read_csvs`.
    """
    used, compared = results.of_one_version(records), full["comparisons"]
    of_table = {name: compared[compared["table"] == name] for name in comparisons.GROUPS}
    finding = of_table["finding"]
    of_table |= {
        "headline": finding[finding["difference"].isin(comparisons.HEADLINE) & (finding["metric"] == "F")],
        "advice": of_table["advice"].query("metric == 'A'"),
    }
    standings = leaderboard.standings(used, csvs["leaderboard_costs"])
    return {
        **{name: for_readers(own) for name, own in of_table.items()},
        "networks": results.networks_tested_again(used),
        "facts": results.facts(records, full["coverage"], full["effects"]),
        "coverage": results.coverage_by_dataset(full["coverage"]),
        "as_in_the_paper": results.as_in_the_paper(full["means"]),
        "hypotheses": results.hypotheses(full["hypotheses"]),
        "claims": results.claims(csvs["claims"]),
        "choices": results.with_differences(used, results.CHOICES),
        "groupnorm": results.with_differences(used, results.WITHOUT_BATCHNORM),
        "methods": policies.methods(),
        "leaderboard": policies.leaderboard(standings, full["leaderboard"]),
        "kept_with_remedies": policies.remedies(csvs["memory_autopsy_remedies"]),
        "per_batch": costs.by_processor(csvs["beside_naive"]),
        "table1_hours": costs.table1_hours(csvs["beside_naive"]),
        "whole_runs": costs.whole_runs(csvs["table4_runtime"], csvs["table4_runtime_refresh"]),
        "gpu": costs.gpu(csvs["benchmark_gpu"]),
    }


def with_tables(page: str, of_name: Mapping[str, pd.DataFrame]) -> str:
    """A page with each of some tables written between its marks; KeyError if the page has marks of another one."""
    return _MARKS.sub(lambda marks: f"{marks[1]}{markdown(of_name[marks[2]], 1)}{marks[3]}", page)


def write(
    records: pd.DataFrame, folder: str | Path, pages: Iterable[Path] = ()
) -> tuple[dict[str, pd.DataFrame], dict[str, pd.DataFrame]]:
    """Write the results to CSV files and the tables into pages.

    Args:
        records: all records, on any version of the images.
        folder: of the CSV files, of which `READ` are read.
        pages: files with marks; those that do not exist are left out.

    Returns:
        The results in numbers, see `in_full`, and the tables, see `tables`.
    """
    folder, csvs = Path(folder), read_csvs(folder)
    full = in_full(results.of_one_version(records), csvs["leaderboard_costs"])
    for name, table in full.items():
        table.to_csv(folder / f"{name}.csv", index=False, float_format="%.4f")
    of_name = tables(records, full, csvs)
    for page in filter(Path.is_file, pages):
        page.write_text(with_tables(page.read_text(encoding="utf-8"), of_name), encoding="utf-8")
    return full, of_name
