"""`ucl results`, `compare` and `plot`: tables are those of the functions, and a grid file becomes a table."""

import re

import pandas as pd
import pytest
from conftest import assert_refused, files
from made_up import diverged
from test_plots import record_of, records_of

import ucl
from ucl import RecordStore
from ucl.cli.main import main


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Six methods at two seeds, one of them diverged."""
    folder = tmp_path_factory.mktemp("stored") / "runs"
    for record in [*records_of(), diverged(record_of("ER", 2))]:
        RecordStore(folder).save(record)
    return folder


def cells(out):
    """The cells of each printed line; columns are separated by two spaces."""
    return [re.split(r" {2,}", line) for line in out.splitlines()]


def test_results_are_the_means_over_the_seeds(store, cli):
    code, out, err = cli("results", "--store", store)
    assert (code, err) == (0, "")
    table = ucl.results(ucl.load_records(store), measures=["A", "F"]).set_index("label")
    rows = {name: row for row in cells(out) for name in ["label", *table.index] if name in row}
    assert rows["label"][-3:] == ["n", "A [%]", "F [%]"]
    for label, row in table.iterrows():
        numbers = [f"{row[name]:.1f} ± {row[f'{name}_std']:.1f}".replace("-", "−") for name in ("A", "F")]
        assert rows[label][-3:] == [str(row["n"]), *numbers]
    assert "1 diverged" in rows["ER"] and rows["ER"][-3] == "2"


def test_results_are_filtered_and_grouped_and_a_repeated_flag_adds_its_values(store, cli):
    methods = ["--where", "label in ['BI bottom', 'ER']", "--where", "seed<1"]
    measures = ["--measure", "learning", "--measure", "seconds"]
    code, out, err = cli("results", "--store", store, "--by", "seed", *methods, *measures)
    assert (code, err) == (0, "")
    head, *rows = cells(out)[1:]
    assert head == ["seed", "label", "n", "learning [%]", "seconds [s]"]
    assert [row[:2] for row in rows[:2]] == [["0", "ER"], ["0", "BI bottom"]]


def test_a_table_is_saved_with_all_digits(store, cli, tmp_path):
    code, out, _ = cli("results", "--store", store, "--output", tmp_path / "new" / "table.csv")
    assert code == 0 and out.splitlines()[-1] == str(tmp_path / "new" / "table.csv")
    table = ucl.results(ucl.load_records(store), measures=["A", "F"])
    saved = pd.read_csv(tmp_path / "new" / "table.csv", keep_default_na=False, na_values={"memory_size": ""})
    assert saved["A"].astype(float).tolist() == table["A"].tolist()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["table.csv"]


@pytest.mark.parametrize("verb", [["results"], ["compare", "label=BI bottom", "label=ER"]], ids=lambda verb: verb[0])
def test_a_table_is_saved_also_where_it_cannot_be_printed(store, tmp_path, monkeypatch, verb):
    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr("sys.stdout", full)
        output = tmp_path / "table.csv"
        assert main([*verb, "--store", str(store), "--output", str(output)]) == 1
    assert len(pd.read_csv(output))


def test_compare_prints_what_the_function_returns(store, cli):
    code, out, err = cli("compare", "--store", store, "label=BI bottom", "label=ER")
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == ["first: BI bottom", "second: ER"] and "1 diverged" in out
    table = ucl.compare(ucl.load_records(store), "label=BI bottom", "label=ER")
    for row, line in zip(table.to_dict("records"), out.splitlines()[5:7], strict=True):
        mean, low, high = (f"{row[name]:+.1f}" for name in ("mean", "low", "high"))
        assert f" {row['n']} " in line and f"{mean} [{low}, {high}]".replace("-", "−") in line
        assert line.endswith(f" {row['detectable']:.1f}")


def test_a_measure_that_a_run_does_not_have_is_named(store, cli):
    out = cli("results", "--store", store, "--measure", "A", "worst_case")[1]
    assert [line.split()[0] for line in out.splitlines() if "is empty" in line] == ["worst_case"]


def test_below_times_is_how_to_separate_those_of_several_machines_and_of_runs_with_other_tests(tmp_path, cli):
    machines = [("p", 1, {}), ("q", 1, {}), ("q", 4, {}), ("p", 1, {"readings": True}), ("p", 1, {"evaluate_every": 9})]
    for seed, (processor, threads, tests) in enumerate(machines):
        record = record_of("ER", seed, **tests)
        record.environment |= {"processor": processor, "threads": threads}
        RecordStore(tmp_path).save(record)
    where = ["results", "--store", tmp_path, "--measure", "seconds"]
    together = cli(*where)[1]
    names = re.search("--by ([a-z_ ]+) separates", together)[1].split()
    for out, counts in ((together, ["5"]), (cli(*where, "--by", *names)[1], ["1"] * 5)):
        assert [row[-2] for row in cells(out) if "ER" in row] == counts


def test_plot_writes_one_picture_and_names_it(store, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli("plot", "--store", store, "accuracy") == (0, "accuracy.png\n", "")
    assert cli("plot", "--store", store, "differences", "--against", "label=CBR", "--output", "new/forest.svg")[0] == 0
    assert set(files(tmp_path)) == {tmp_path / "accuracy.png", tmp_path / "new" / "forest.svg"}


REFUSED = [  # what is typed, and what the message names
    ("results --store nowhere", "nowhere"),
    ("results --store {empty}", "empty"),
    ("results --store {store} --by lable", "'label'"),
    ("results --store {store} --measure Fx", "Fx"),
    ("results --store {store} --where seed", "--where seed"),
    ("results --store {store} --where memory=40", "'memory_size'"),
    ("results --store {store} --output table.xlsx", "--output"),
    ("results {store}", "runs"),
    ("compare label=ER", "SECOND"),
    ("compare --store {store} score=BI label=ER", "score=BI"),
    ("compare --store {store} label=ER CBR", "CBR"),
    ("plot acuracy", "acuracy"),
    ("plot --store {store} differences", "against"),
    ("plot --store {store} differences --against score=BI", "score=BI"),  # of two methods
    ("plot --store {store} differences --where label=ER --against label=ER", "label=ER"),
    ("plot --store {store} tasks --against label=ER", "against"),
    ("plot tasks --output tasks.txt", "--output"),
]


@pytest.mark.parametrize(("typed", "named"), REFUSED)
def test_what_cannot_be_shown_is_refused_in_one_line(store, tmp_path, cli, monkeypatch, typed, named):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    before = files(tmp_path)
    assert_refused(cli(*typed.format(store=store, empty=tmp_path / "empty").split()), named)
    assert files(tmp_path) == before
