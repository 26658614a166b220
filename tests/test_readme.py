"""Every number of the README's results comes from the committed records and the paper's tables."""

from pathlib import Path

import pytest

import ucl
from ucl import paper, tables
from ucl.config import Config

ROOT = Path(__file__).parents[1]
SETTINGS = {"as in the paper's text": {}, "as in the published implementation": paper.PUBLISHED_CODE}
WAYS = [
    {"population": "reservoir"},
    {"population": "class-balanced"},
    {"method": "agem"},
    {"score": "BI", "selection": "bottom"},
    {"score": "BI", "selection": "top"},
    {"method": "finetune"},
]


def results_of_readme():
    """The rows as the README must have them: what is measured, beside what is published."""
    runs = ucl.load_records(ROOT / "figures" / "runs")
    published = paper.published()
    rows = []
    for dataset, size in (("bloodcell", 40), ("cifar10", 500)):
        for name, settings in SETTINGS.items():
            for way in WAYS:
                config = Config(dataset=dataset, memory_size=size, **way).replace(**settings)
                if settings and config.key == Config(dataset=dataset, memory_size=size, **way).key:
                    continue
                found = tables.results(paper.matching(runs, [config]))
                if not len(found):
                    continue
                row = found.iloc[0]
                method, _, selection = config.label.partition(" ")
                cell = published[
                    (published["dataset"] == dataset)
                    & (published["memory_size"] == size)
                    & (published["method"] == method)
                    & (published["selection"] == selection)
                ].set_index("metric")
                printed = [
                    f"{cell.loc[m, 'mean']:.1f} ± {cell.loc[m, 'std']:.1f}" if len(cell) else "" for m in ("A", "F")
                ]
                measured = [f"{row[m]:.1f}" + (f" ± {row[m + '_std']:.1f}" if row["n"] > 1 else "") for m in ("A", "F")]
                told = [f"{dataset}, {size}", config.label, name, str(row["n"]), *measured, *printed]
                rows.append(f"| {' | '.join(told)} |")
    return rows


@pytest.mark.parametrize("row", results_of_readme())
def test_the_readme_has_every_result_that_is_measured(row):
    assert row in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()


def test_the_readme_has_no_result_that_is_not_measured():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith(("| bloodcell", "| cifar10"))] == results_of_readme()
