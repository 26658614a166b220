"""Tables: published numbers are in the right cells, measured ones agree with numpy, and files can be read back."""

import re

import numpy as np
import pandas as pd
import pytest
from made_up import frame, two_tasks
from test_averages import BI, THREE

import ucl
from ucl import paper, tables

METHODS = ("ER", "CBR", "A-GEM", "LC", "MS", "RC", "EN", "RM", "MC", "BI")
NOTHING = frame()


def test_measured_numbers_are_numpys_in_per_cent():
    row = tables.with_published(frame(*THREE), "table3").query("n > 0").set_index("metric")
    a, f = np.array([0.475, 0.55, 0.525]), np.array([0.7, 0.45, 0.65])
    assert list(row.index) == ["A", "F"] and list(row["n"]) == [3, 3]
    for metric, values, published in (("A", a, 58.08), ("F", f, 18.27)):
        assert row.loc[metric, "mean"] == pytest.approx(100 * np.mean(values))
        assert row.loc[metric, "std"] == pytest.approx(100 * np.std(values, ddof=1))
        assert row.loc[metric, "difference"] == pytest.approx(100 * np.mean(values) - published)
    assert set(row["data"]) == {"aa"}


def test_runs_with_further_fields_are_compared_on_request():
    records = frame(*THREE, two_tasks(BI.replace(refresh=0.5), kept=0.4))
    row = tables.with_published(records, "bloodcell", refresh=0.5).query("n > 0")
    assert list(row["settings"]) == ["refresh=0.5"] * 2
    assert list(row["n"]) == [1, 1]
    assert list(row["mean"]) == pytest.approx([57.5, 50.0])


def test_only_the_newest_version_of_the_images_counts_also_by_another_path():
    er = two_tasks(BI.replace(population="reservoir"))
    config = BI.replace(seed=2, dataset="elsewhere/bloodcell.npz")
    other = two_tasks(config, kept=0.05, fingerprint="bb", date="2000-01-01")
    records = frame(er, two_tasks(BI), two_tasks(BI.replace(seed=1)), other)
    row = tables.with_published(records, "bloodcell").query("method == 'BI' and n > 0 and metric == 'A'").iloc[0]
    assert (row["n"], row["data"], row["mean"]) == (2, "aa", pytest.approx(50.0))


def test_mixed_arithmetics_are_named_where_scores_are_computed_in_them():
    runs = [(c.replace(seed=s), s) for c in (BI, BI.replace(population="reservoir")) for s in range(2)]
    records = frame(*(two_tasks(c, scoring_precision=("float32", "bfloat16")[s]) for c, s in runs))
    compared = tables.with_published(records, "bloodcell")
    measured = compared.query("n > 0")
    named = {"ER": "", "BI": "bfloat16 and float32"}
    assert dict(zip(measured["method"], measured["arithmetic"])) == named
    assert "(n=2, differs, bfloat16 and float32)" in tables.layout(compared).loc[("BI", "A"), "M=40"]
    assert ucl.results(records)["arithmetic"].tolist() == list(named.values())
    assert "arithmetic" not in ucl.results(records[records["seed"] == 0])


def test_a_cell_is_near_the_paper_within_the_sum_of_both_standard_deviations():
    assert set(tables.verdict(tables.with_published(frame(THREE[0]), "table3"))) == {""}  # One seed has no spread.
    table = tables.with_published(frame(*THREE), "table3").query("n > 0")
    assert list(tables.verdict(table)) == ["near", "differs"]  # A is 51.7 versus 58.1 +- 7.1, F 60 versus 18.3 +- 7.2
    both = 100 * np.std([0.475, 0.55, 0.525], ddof=1) + table["published_std"].iloc[0]
    for difference, word in ((both - 0.01, "near"), (0.01 - both, "near"), (both + 0.01, "differs")):
        assert list(tables.verdict(table[:1].assign(difference=difference))) == [word]
    assert "(n=3, near)\n" in tables.layout(table).loc[("BI", "A"), "M=40"]


def test_other_settings_have_rows_of_their_own_and_no_cell_of_the_paper_is_lost():
    ms = BI.replace(score="MS", refresh=2)
    other = [ms, BI.replace(refresh=2), BI.replace(**{**paper.PUBLISHED_CODE, "long_tailed_test": False})]
    records = frame(*THREE, *(two_tasks(config, kept=0.5) for config in other))
    table = tables.in_all_settings(records, "bloodcell", range(3))
    assert len(table.groupby(paper.CELL)) == 40 and len(table) == 44
    wide = tables.layout(table)["M=40"].map(lambda cell: cell[:5])
    assert list(dict.fromkeys(wide.index.get_level_values("method"))) == list(METHODS)
    bi, of_ms = (dict(wide[name].xs("A", level="metric")) for name in ("BI", "MS"))
    assert bi == {"": "51.67", "refresh=2": "62.50", "published settings": "62.50"}
    assert of_ms == {"": "", "refresh=2": "62.50"}  # "" has the other memory size


@pytest.mark.parametrize("grid", ["table1", "table2", "table3"])
def test_the_layout_is_the_papers_with_every_published_number(grid):
    wide = tables.layout(tables.with_published(NOTHING, grid))
    numbers = paper.published().query("table == @grid")
    assert list(wide.index) == [(m, x) for m in METHODS for x in "AF"]
    assert sum(text != "" for text in wide.to_numpy().ravel()) == len(numbers)
    for _, r in numbers.iterrows():
        memory = f"M={r.memory_size}"
        column = (r.dataset, memory) if grid == "table3" else (memory, r.selection or "random")
        assert wide.loc[(r.method, r.metric), column] == f"—\npaper {r['mean']:.2f} ± {r['std']:.2f}"
    sizes = numbers[["dataset", "memory_size"]].drop_duplicates().itertuples(index=False)
    columns = [(dataset, f"M={size}") for dataset, size in sizes]
    if grid != "table3":
        columns = [(size, selection) for _, size in columns for selection in ("random", "top", "step", "bottom")]
    assert list(wide.columns) == columns


def saved(table, folder, name="t"):
    return {end: tables.save(table, folder / f"{name}{end}").read_bytes() for end in (".csv", ".md", ".tex")}


def test_the_same_table_gives_the_same_bytes(tmp_path):
    first, second = (tables.with_published(frame(*rs), "table3") for rs in (THREE, THREE[::-1]))
    assert saved(first, tmp_path, "a") == saved(second, tmp_path, "b")
    assert b"\r" not in b"".join(saved(first, tmp_path).values())


@pytest.mark.parametrize("grid", list(paper.GRIDS))
def test_all_numbers_reach_the_readable_files_in_rows_of_one_width(grid, tmp_path):
    table = tables.with_published(frame(*THREE), grid)
    files = saved(table, tmp_path)
    md, tex = files[".md"].decode(), files[".tex"].decode().replace(r" $\pm$ ", " ± ")
    for text in (md, tex):
        numbers, published = re.findall(r"(\d+\.\d\d) ± (\d+\.\d\d)(?! \(n)", text), ["published_mean", "published_std"]
        assert sorted(numbers) == sorted((f"{mean:.2f}", f"{std:.2f}") for mean, std in table[published].to_numpy())
        assert text.count("(n=3, ") == (table["n"] == 3).sum()
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in md.splitlines() if row.startswith("|")}) == 1
    rows = [row for row in tex.partition(r"\midrule")[2].splitlines() if row.endswith(r"\\")]
    assert {row.count(" & ") for row in rows} == {tables.layout(table).reset_index().shape[1] - 1}
    assert tex.count(r"\begin") == tex.count(r"\end") == 2  # a floating table with its note as caption


def test_special_characters_of_latex_and_markdown_stay_text(tmp_path):
    odd = r"a_b & 50% | c\d {x} #1 $y ~z ^ <br> *m* ± —"
    table = pd.DataFrame({"dataset_name": [odd, None], "A": [12.345678, np.nan], "A_std": [1, np.nan], "n": [3, 0]})
    files = {suffix: text.decode() for suffix, text in saved(table, tmp_path).items()}
    assert r"a\_b \& 50\% \textbar{} c\textbackslash d \{x\} \#1 \$y \textasciitilde z" in files[".tex"]
    assert r" & 12.35 $\pm$ 1.00 & 3 \\" in files[".tex"]
    assert files[".md"].splitlines()[2:] == [
        r"| a_b & 50% \| c\d {x} #1 $y ~z ^ &lt;br> *m* ± — | 12.35 ± 1.00 | 3 |",
        "|  |  | 0 |",
    ]
    again = pd.read_csv(tmp_path / "t.csv")
    assert again["dataset_name"][0] == odd and again["A"][0] == 12.345678


def test_any_table_can_be_saved(tmp_path):
    whole = tables.with_published(frame(*THREE), "bloodcell")
    part = whole[whole["n"] > 0]
    assert len(part) < len(whole)
    assert saved(part, tmp_path, "part")[".csv"].startswith(b"grid,dataset")  # without row numbers
    named = pd.DataFrame({"A": [1.0]}, index=["BI"])
    assert saved(named, tmp_path, "named")[".csv"].startswith(b"index,A\nBI,")
    assert saved(tables.layout(whole), tmp_path, "wide")[".md"].count(b"\n") == 22
    assert saved(ucl.results(NOTHING), tmp_path, "none")[".csv"].startswith(b"dataset,memory_size,label,settings,n,A")
