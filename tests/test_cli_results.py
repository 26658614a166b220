"""`ucl results`, `compare` and `plot`, grid files and curves from the command line."""

import csv
import re
from dataclasses import replace

import pandas as pd
import pytest
from test_cli import TINY, assert_refused, cli, files, here  # noqa: F401  (fixtures)
from test_plots import NAN, record_of, records_of, table_of

import ucl
from ucl import RecordStore
from ucl.cli.main import main
from ucl.cli.tables import note_on_times
from ucl.records import COLUMNS

WIDE, NARROW = 120, 80


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Six methods at two seeds, one of them diverged."""
    folder = tmp_path_factory.mktemp("stored") / "runs"
    broken = record_of("ER", 2)
    broken.accuracy[:], broken.class_recall[:], broken.diverged_after = float("nan"), float("nan"), 0
    for record in [*records_of(), broken]:
        record.environment |= {"processor": "p", "threads": 1}
        RecordStore(folder).save(record)
    return folder


def rows_of(out, names):
    """Map each of the names to the cells of its printed row; columns are separated by two spaces."""
    cells = [re.split(r" {2,}", line) for line in out.splitlines()]
    return {name: row for row in cells for name in names if name in row}


@pytest.mark.parametrize(("verb", "times"), [("results", {"seconds", "seconds_per_batch"}), ("compare", set())])
def test_the_help_explains_each_measure(verb, times, cli):  # noqa: F811
    explained = re.findall(r"^  (\w+)(?:, (\w+))? {2,}\w", cli(verb, "--help")[1], re.MULTILINE)
    assert {*COLUMNS} | times <= {name for names in explained for name in names}


def test_results_are_the_means_over_the_seeds(store, cli):  # noqa: F811
    code, out, err = cli("results", store)
    assert (code, err) == (0, "")
    table = ucl.results(ucl.load_records(store), measures=["A", "F"]).set_index("label")
    rows = rows_of(out, ["label", *table.index])
    assert out.splitlines()[0] == "dataset digits, n_tasks=3" and rows["label"][-3:] == ["n", "A [%]", "F [%]"]
    for label, row in table.iterrows():
        assert rows[label][-3:] == [
            str(row["n"]),
            f"{row['A']:.1f} ± {row['A_std']:.1f}",
            f"{row['F']:.1f} ± {row['F_std']:.1f}",
        ]
    assert "1 diverged" in rows["ER"] and rows["ER"][-3] == "2"


def test_results_of_runs_without_a_memory_have_no_memory_size(cli, tmp_path):  # noqa: F811
    RecordStore(tmp_path).save(record_of("Finetune"))
    code, out, err = cli("results", tmp_path)
    assert (code, err) == (0, "") and out.splitlines()[0] == "dataset digits, n_tasks=3"


def test_arguments_of_an_own_object_are_one_setting(cli, tmp_path):  # noqa: F811
    for width in ("(2, 2)", "(2, 4)"):
        record = record_of("ER")
        config = record.config.replace(model=f"mine:net(depth=3, width={width})", lr=0.05)
        RecordStore(tmp_path).save(replace(record, config=config))
    lines = cli("results", tmp_path)[1].splitlines()
    assert lines[0] == "dataset digits, memory_size 50, lr=0.05, n_tasks=3"
    assert [re.split(r" {2,}", line)[1] for line in lines[2:4]] == [
        f"model=mine:net(depth=3, width={w})" for w in ("(2, 2)", "(2, 4)")
    ]


def test_what_is_rounded_to_zero_has_neither_a_sign_nor_more_digits(cli, tmp_path):  # noqa: F811
    accuracy = [[0.1 + 0.2, NAN, NAN], [0.5, 0.7, NAN], [0.3, 0.7 + 1e-16, 0.4]]
    record = record_of("ER", accuracy=accuracy)
    record.accuracy[1, 0] = accuracy[0][0]
    record.accuracy[2, 1] = accuracy[1][1] + 2e-16
    record.accuracy[2, 0] = accuracy[0][0]
    assert -1e-12 < record.last_forgetting < 0
    RecordStore(tmp_path).save(record)
    assert cli("results", tmp_path)[1].splitlines()[2].split()[-1] == "0.0"
    assert "F 0.0 %" in repr(record) and "last forgetting 0.0 %" in str(record)


def test_results_are_filtered_and_grouped_and_their_measures_chosen(store, cli):  # noqa: F811
    flags = [
        "--by",
        "seed",
        "--where",
        "label in ['BI bottom', 'ER']",
        "seed<1",
        "--measure",
        "learning_accuracy",
        "seconds",
    ]
    code, out, err = cli("results", store, *flags)
    assert (code, err) == (0, "")
    assert re.split(r" {2,}", out.splitlines()[1]) == ["seed", "label", "n", "learning_accuracy [%]", "seconds [s]"]
    assert [line.split()[:2] for line in out.splitlines()[2:4]] == [["0", "ER"], ["0", "BI"]]


def test_a_flag_that_is_repeated_adds_its_values(store, cli):  # noqa: F811
    once = ["--by", "seed", "score", "--where", "label in ['BI bottom', 'ER']", "seed<1", "--measure", "A", "F"]
    flags = ["--by", "seed", "--by", "score", "--where", "label in ['BI bottom', 'ER']", "--where", "seed<1"]
    assert cli("results", store, *flags, "--measure", "A", "--measure", "F") == cli("results", store, *once)
    compared = cli("compare", store, "label=BI bottom", "label=ER", "--measure", "F")[1]
    assert cli("compare", store, "label=BI bottom", "label=ER", "--measure", "F", "F")[1] == compared
    assert " F " in compared and " A " not in compared


@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize("verb", ["results", "compare"])
def test_tables_fit_a_terminal(store, cli, monkeypatch, verb, width):  # noqa: F811
    monkeypatch.setenv("COLUMNS", str(width))
    out = cli(verb, store, *(["label=BI bottom", "label=CBR"] if verb == "compare" else []))[1]
    notes = ("detectable: ", "mean ±", "first ", "A")
    assert max(len(line) for line in out.splitlines() if not line.startswith(notes)) <= width


def test_a_table_is_saved_with_all_digits(store, cli, tmp_path):  # noqa: F811
    code, out, _ = cli("results", store, "--output", tmp_path / "new" / "table.csv")
    assert code == 0 and out.splitlines()[-1] == str(tmp_path / "new" / "table.csv")
    table = ucl.results(ucl.load_records(store), measures=["A", "F"])
    saved = pd.read_csv(tmp_path / "new" / "table.csv", keep_default_na=False, na_values={"memory_size": ""})
    assert saved["A"].astype(float).tolist() == table["A"].tolist()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["table.csv"]


@pytest.mark.parametrize("verb", [["results"], ["compare", "label=BI bottom", "label=ER"]], ids=lambda verb: verb[0])
def test_a_table_is_saved_also_where_it_cannot_be_printed(store, tmp_path, monkeypatch, capsys, verb):
    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr("sys.stdout", full)
        output = tmp_path / "table.csv"
        assert main([verb[0], str(store), *verb[1:], "--output", str(output)]) == 1
    assert capsys.readouterr().err == f"ucl {verb[0]}: [Errno 28] No space left on device\n"
    assert len(pd.read_csv(output))


def test_compare_prints_what_the_function_returns(store, cli, monkeypatch):  # noqa: F811
    monkeypatch.setenv("COLUMNS", "120")
    code, out, err = cli("compare", store, "label=BI bottom", "label=ER")
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == ["first: BI bottom", "second: ER"]
    table = ucl.compare(ucl.load_records(store), "label=BI bottom", "label=ER")
    for row, line in zip(table.to_dict("records"), out.splitlines()[5:7], strict=True):
        numbers = [f"{row[name]:+.1f}" for name in ("mean", "low", "high")]
        expected = f"{numbers[0]} [{numbers[1]}, {numbers[2]}]".replace("-", "−")
        assert re.split(r" {2,}", line)[3] == "2" and expected in line and line.endswith(f" {row['detectable']:.1f}")
    assert "digits, n_tasks=3, memory 50, left out: 1 diverged" in out


@pytest.mark.parametrize(
    ("flags", "last"),
    [
        (["label=BI bottom", "label=CBR"], "An interval that contains 0: not distinguishable at this n."),
        (["label=BI bottom seed=0", "label=CBR"], "no interval: a single pair per stream; measure more seeds"),
        (
            ["label=BI bottom seed=0", "label=CBR", "--measure", "worst_case"],
            "digits, n_tasks=3, memory 50, left out: 1 of CBR without a partner, pairs without worst_case: 1",
        ),
    ],
)
def test_notes_on_intervals_are_printed_only_below_intervals(store, cli, flags, last):  # noqa: F811
    code, out, err = cli("compare", store, *flags)
    assert (code, err, out.splitlines()[-1]) == (0, "", last)
    assert ("detectable: " in out) == ("interval that" in last)


def test_an_empty_cell_has_its_reason_below_the_table(store, cli):  # noqa: F811
    above = cli("results", store)[1].splitlines()[-1]
    out = cli("results", store, "--measure", "A", "worst_case", "last_share")[1].splitlines()
    assert out[-3:] == [
        above,
        "worst_case is empty where a run of the row does not have it; only runs with --evaluate-every do",
        "last_share is empty where a run of the row does not have it",
    ]


def test_times_of_several_devices_are_pointed_out(cli, tmp_path):  # noqa: F811
    for seed, device in enumerate(("cpu", "NVIDIA H200")):
        record = record_of("ER", seed)
        record.environment |= {"device": device}
        RecordStore(tmp_path).save(record)
    note = "times are of several devices (NVIDIA H200, cpu); --by device gives each its own rows"
    assert cli("results", tmp_path, "--measure", "A", "seconds")[1].splitlines()[-1] == note
    assert note not in cli("results", tmp_path)[1]
    assert note not in cli("results", tmp_path, "--measure", "seconds", "--by", "device")[1]


@pytest.mark.parametrize(
    ("facts", "by", "note"),
    [
        ([{"processor": "p"}, {"processor": "q"}], [], "several processors (p, q); --by processor gives"),
        ([{"threads": 1}, {"threads": 4}], ["device"], "several numbers of threads (1, 4); --by threads gives"),
        (
            [{"device": "H200", "threads": 1}, {"threads": 4}, {"threads": 2}],
            ["seed"],
            "several devices (H200, cpu) and numbers of threads (1, 2, 4); --by device threads gives",
        ),
        ([{"device": "H200", "threads": 1}, {"threads": 4}], ["processor"], ""),
        ([{"processor": "p"}, {"processor": "q"}], ["processor"], ""),
        ([{"processor": "p", "threads": 1}] * 2, [], ""),
    ],
)
def test_times_of_several_processors_or_numbers_of_threads_are_pointed_out(facts, by, note):
    runs = [record_of("ER", seed) for seed in range(len(facts))]
    for record, machine in zip(runs, facts, strict=True):
        record.environment |= machine
    assert note_on_times(table_of(runs), by) == (f"times are of {note} each its own rows" if note else "")


def test_plot_writes_one_picture_and_names_it(store, cli, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("plot", store, "accuracy")
    assert (code, out, err) == (0, "accuracy.png\n", "")
    assert cli("plot", store, "differences", "--against", "label=CBR", "--output", "new/forest.svg")[0] == 0
    assert set(files(tmp_path)) == {tmp_path / "accuracy.png", tmp_path / "new" / "forest.svg"}


REFUSED = {
    "no store": (["results", "nowhere"], ["results: nowhere: no such folder"]),
    "an empty store": (["results", "{empty}"], ["has no record"]),
    "a store of damaged records": (["results", "{torn}"], ["has no record"]),
    "an unknown column": (["results", "--by", "lable"], ["unknown name lable; did you mean label?"]),
    "an unknown measure": (["results", "--measure", "Fx"], ["unknown measure Fx"]),
    "no condition": (["results", "{store}", "--where", "seed"], ["--where seed: not a condition"]),
    "an unknown name": (["results", "{store}", "--where", "memory=40"], ["--where memory", "'memory_size'"]),
    "an unknown name in a query": (["results", "{store}", "--where", "sed<1"], ["--where sed", "'seed'"]),
    "no run": (["results", "{store}", "--where", "seed=9"], ["--where seed=9: no run has it; seed is 0, 1, 2"]),
    "a table of another kind": (["results", "--output", "table.xlsx"], ["--output table.xlsx", ".csv, .md or .tex"]),
    "one method": (["compare", "label=ER"], ["ucl compare: ", "SECOND"]),
    "two methods in one": (["compare", "{store}", "score=BI", "label=ER"], ["compare: score=BI: ", "label (BI bottom"]),
    "no second method": (["compare", "{store}", "label=ER", "CBR"], ["compare: CBR: "]),
    "no second method after a store": (
        ["compare", "{store}", "label=ER"],
        [": is a folder; give STORE FIRST SECOND"],
    ),
    "an unknown picture": (["plot", "acuracy"], ["unknown picture acuracy; did you mean accuracy?"]),
    "nothing to subtract": (["plot", "differences"], ["plot: differences: ", "--against CONDITION"]),
    "a picture of another kind": (["plot", "tasks", "--output", "tasks.gif"], ["--output tasks.gif", ".pdf or .svg"]),
    "a table in place of a folder": (
        ["results", "{store}", "--output", "empty.csv"],
        ["--output empty.csv: is a folder"],
    ),
    "a table within a file": (
        ["results", "{store}", "--output", "torn/torn.json/x.md"],
        ["x.md: its folder can't be"],
    ),
    "a picture within a file": (
        ["plot", "{store}", "tasks", "--output", "torn/torn.json/x.png"],
        ["x.png: its folder can't be"],
    ),
    "something to subtract": (["plot", "tasks", "--against", "label=ER"], ["--against label=ER", "leave it out"]),
}


@pytest.mark.filterwarnings("ignore:.*not a readable record")
@pytest.mark.parametrize("case", REFUSED)
def test_what_can_not_be_shown_is_refused_in_one_line(store, tmp_path, cli, monkeypatch, case):  # noqa: F811
    typed, words = REFUSED[case]
    places = {"store": store, "empty": tmp_path / "empty", "torn": tmp_path / "torn"}
    for name in ("empty", "torn"):
        places[name].mkdir()
    (tmp_path / "torn" / "torn.json").write_text("{")
    (tmp_path / "empty.csv").mkdir()
    monkeypatch.chdir(tmp_path)
    before = files(tmp_path)
    code, out, err = cli(*(word.format(**places) for word in typed))
    last = err.splitlines()[-1] + "\n" if "torn" in case or "damaged" in case else err
    assert_refused(code, last, words)
    assert out == "" and files(tmp_path) == before


def test_a_grid_file_is_swept_with_curves_and_shown(here, cli):  # noqa: F811
    fields = "dataset: tiny.npz\nn_tasks: 2\nmemory_size: 8\npopulation: reservoir\n"
    (here / "grid.yaml").write_text(fields + "lr: [1e-1, 0.05]\nseed: [0, 1]\n")
    code, out, err = cli("sweep", "--config", "grid.yaml", "--device", "cpu", "--threads", "1", "--curves", "curves")
    assert code == 0 and out.startswith("all 4 runs are in runs") and "4 of 4" in err
    with open(next((here / "curves").iterdir()), newline="") as file:
        assert [row["tasks_learnt"] for row in csv.DictReader(file)] == ["1", "2"]
    assert {path.stem for path in (here / "curves").iterdir()} == {path.stem for path in (here / "runs").glob("*.json")}
    out = cli("results", "--by", "lr", "--measure", "A")[1]
    assert [line.split()[0] for line in out.splitlines()[2:4]] == ["0.05", "0.1"]


def test_a_run_that_is_there_leaves_its_curve_too(here, cli):  # noqa: F811
    assert cli("run", *TINY, "--method", "finetune")[0] == 0
    assert cli("run", *TINY, "--method", "finetune", "--curves", "curves")[1].startswith("already measured")
    assert [p.stem for p in (here / "curves").iterdir()] == [p.stem for p in (here / "runs").iterdir()]
