"""Filters: conditions on the fields of a run select exactly the matching runs."""

from functools import partial
from pathlib import Path

import pytest
from test_tables import frame, record_of

import ucl
from ucl import Config, InputError

BI = Config(dataset="bloodcell", memory_size=40)
RUNS = frame(
    record_of(BI),
    record_of(BI.replace(seed=1, refresh=2)),
    record_of(BI.replace(seed=10, selection="top", lr=0.05, refresh=2)),
    record_of(BI.replace(population="reservoir", seed=2)),
    record_of(BI.replace(method="agem", population="uncertainty", seed=3)),
    record_of(Config(dataset="bloodcell", method="finetune", seed=4), fingerprint="bb"),
    record_of(BI.replace(dataset="/some/where/cells.npz", score="mine:s", seed=5), score_source="0a"),
)


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("seed<2", [0, 1]),
        ("seed>=4 seed!=5", [10, 4]),
        ("seed=10", [10]),
        ("seed = 1", [1]),
        ("score==BI seed == 10", [10]),  # As in Python.
        ("seed=0,2,4", [0, 2, 4]),
        ("label=BI bottom seed<5", [0, 1]),
        ("label=BI bottom,ER", [0, 1, 2]),
        ("label=A-GEM, BI bottom", [3]),  # The label contains a comma.
        ("score=", [2, 4]),
        ("score=BI", [0, 1, 10, 3]),
        ("score!=BI", [2, 4, 5]),
        ("refresh=2.0", [1, 10]),
        ("refresh<2", [0, 3, 5]),  # A run without a score has no refresh.
        ("memory_size=40,", [0, 1, 10, 2, 3, 4, 5]),
        ("memory_size=", [4]),
        ("memory_size=40, settings=refresh=2", [1]),
        ("settings=", [0, 2, 3, 4, 5]),
        ("settings=refresh=2", [1]),
        ("settings=lr=0.05, refresh=2 seed>1", [10]),  # This is the form that tables print.
        ("settings=refresh=2, lr=0.05", [10]),  # in any order
        ("balanced_accuracy=true", [0, 1, 10, 2, 3, 4]),
        ("dataset=cells.npz", [5]),
        ("fingerprint=bb", [4]),
        ("source=0a", [5]),
        ("date<2025-03-02", [0, 1, 10, 2, 3, 4, 5]),
        ("date<=2025-03 seed<2", [0, 1]),  # Up to the end of that month.
        ("date=2025-03 seed<2", [0, 1]),
    ],
)
def test_a_condition_holds_for_the_runs_that_it_describes(text, seeds):
    assert ucl.where(RUNS, text)["seed"].tolist() == seeds


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("date=2026-11,2026-12-01", [1, 2]),
        ("date=2026-12-01, 2026-11", [1, 2]),
        ("date!=2026-11,2026-12-01", [0, 3, 4]),
        ("date=2026-12-01T09,2025", [0, 2]),
        ("date=2026-12,", [2, 3, 4]),  # or without a date
    ],
)
def test_each_of_several_dates_is_compared_as_far_as_it_is_given(text, seeds):
    days = ["2025-11-03T12:00", "2026-11-30T12:00", "2026-12-01T09:30", "2026-12-02T12:00", ""]
    runs = frame(*(record_of(BI.replace(seed=seed), date=day) for seed, day in enumerate(days)))
    assert ucl.where(runs, text)["seed"].tolist() == seeds


def test_arguments_of_an_own_object_are_not_conditions():
    runs = frame(*(record_of(BI.replace(score=f"mine:s(a={a}, seed=2)", seed=a)) for a in (3, 4)))
    assert ucl.where(runs, "label=mine:s(a=3, seed=2) bottom seed>0")["seed"].tolist() == [3]
    assert ucl.where(runs, "memory_size=40 score=mine:s(a=4, seed=2)")["seed"].tolist() == [4]


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("score=mine:s(a=1,b=2)", [0]),
        ("score=mine:s( b=2, a=1 )", [0]),
        ("score=BI,mine:s(b=(2, 3),a=1)", [1, 3]),
        ("score=mine:s(a=1, b=2), mine:s(a=1, b=(2, 3)) seed>0", [1]),
        ("score!=mine:s(a=1,b=2),BI", [1, 2]),
        ("""score=mine:s(a="it's (, b=2") memory_size=40""", [2]),
        ("label=mine:s(a=1, b=2) bottom,BI bottom", [0, 3]),
    ],
)
def test_an_own_object_is_found_however_its_arguments_are_spelled(text, seeds):
    scores = ["mine:s(a=1,b=2)", "mine:s(a=1, b=(2, 3))", """mine:s(a="it's (, b=2")""", "BI"]
    runs = frame(*(record_of(BI.replace(score=score, seed=seed)) for seed, score in enumerate(scores)))
    assert ucl.where(runs, text)["seed"].tolist() == seeds


@pytest.mark.parametrize(
    ("text", "n"), [("threads=4", 1), ("threads<4", 2), ("processor=AMD EPYC 7B13", 1), ("processor=H200 threads=", 1)]
)
def test_runs_are_chosen_by_what_their_times_depend_on(text, n):
    machines = [
        {"threads": 1},
        {"threads": 4},
        {"processor": "AMD EPYC 7B13"},
        {"device": "H200", "threads": None},
    ]
    runs = frame(*(record_of(BI.replace(seed=seed), **facts) for seed, facts in enumerate(machines)))
    assert len(ucl.where(runs, text)) == n
    assert len(ucl.results(runs, ["processor", "threads"])) == 4


def test_an_own_object_with_arguments_that_cannot_be_read_is_in_no_run():
    with pytest.raises(InputError, match=r"where='score=mine:s\(3\)': no run has it; did you mean mine:s\? score"):
        ucl.where(RUNS, "score=mine:s(3)")


def test_several_texts_hold_together_and_no_condition_keeps_all_runs():
    assert ucl.where(RUNS, "label=BI bottom", "seed>0")["seed"].tolist() == [1]
    assert ucl.where(RUNS).equals(RUNS) and ucl.where(RUNS, "seed>=0").equals(RUNS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed", ["where='seed'", "NAME=VALUE"]),
        ("", ["not a condition"]),
        ("sed=1", ["did you mean 'seed'?"]),
        ("seed<many", ["where='seed<many'", "compares numbers"]),
        ("score=EN", ["score=EN", "score is BI, empty, mine:s"]),
        ("score=BI,EN", ["no run has EN; score is BI, empty, mine:s"]),
        ("seed=0,7,1,8", ["no run has 7 or 8"]),
        ("score=bi,mine", ["no run has it; did you mean BI or mine:s? score is"]),
        ("label=BI", ["did you mean BI bottom or BI top? label is"]),
        ("label='ER'", ["did you mean ER? label is"]),
        ("seed<2 score=BI population=reservoir", ["population=reservoir", "no run with seed<2 score=BI has it; popul"]),
        ("seed<2 settings=lr=0.05, refresh=2", ["no run with seed<2 has it", "settings is empty, refresh=2"]),
        ("date>31.1.2025", ["where='date>31.1.2025'", "year-month-day"]),
        ("seed>99", ["no run has it; seed is 0, 1, 2, 3, 4, 5, …"]),
        ("date=2025,2026-11", ["no run has 2026-11; ", "date is 2025-03"]),
        ("last_accuracy>0.5", ["not by their results"]),
        ("A>50", ["not by their results"]),
    ],
)
def test_what_is_no_condition_or_holds_for_no_run_is_refused_with_what_there_is(text, words):
    with pytest.raises(InputError) as refusal:
        ucl.where(RUNS, text)
    assert [word for word in words if word not in str(refusal.value)] == []


def test_a_data_set_given_as_a_path_is_named_by_its_last_part_or_as_it_was_given():
    records = frame(*(record_of(Config(dataset=path, n_tasks=2, memory_size=4)) for path in ("imgs", "site B/imgs")))
    assert len(ucl.where(records, "dataset=imgs")) == 2
    assert ucl.where(records, "dataset=site B/imgs")["dataset"].tolist() == ["site B/imgs"]
    assert ucl.where(records, "dataset!=site B/imgs")["dataset"].tolist() == ["imgs"]
    comma = frame(record_of(Config(dataset="A, B's/x", n_tasks=2, memory_size=4)))
    assert len(ucl.where(comma, "dataset=A, B's/x")) == 1


def test_conditions_in_a_list_are_refused():
    with pytest.raises(InputError, match="give conditions as text"):
        ucl.where(RUNS, ["seed=1"])


USES = [
    ucl.where,
    ucl.results,
    partial(ucl.plot, picture="tasks"),
    partial(ucl.compare, first="seed=1", second="seed=2"),
]


@pytest.mark.parametrize("given", ["figures/runs", Path("figures"), RUNS[["label", "seed"]], None])
@pytest.mark.parametrize("use", USES)
def test_what_is_no_table_of_records_is_refused(use, given):
    with pytest.raises(InputError, match="give records, or a table of them"):
        use(given)


def test_a_list_of_records_is_as_good_as_their_table():
    listed = list(RUNS["record"])
    assert ucl.where(listed, "seed<2")["seed"].tolist() == [0, 1]
    assert ucl.results(listed).equals(ucl.results(RUNS))


def test_an_empty_table_has_no_run_of_any_kind():
    with pytest.raises(InputError, match="there are no runs"):
        ucl.where(RUNS[:0], "seed=1")
