"""Filters: pairs and pandas queries on the choices and facts of a run select exactly the matching runs."""

from functools import partial
from pathlib import Path

import pytest
from conftest import refused
from made_up import frame, two_tasks

import ucl
from ucl import Config, InputError

BI = Config(dataset="bloodcell", memory_size=40)
RUNS = frame(
    two_tasks(BI),
    two_tasks(BI.replace(seed=1, refresh=2)),
    two_tasks(BI.replace(seed=10, selection="top", lr=0.1 * 3, refresh=2)),
    two_tasks(BI.replace(population="reservoir", seed=2)),
    two_tasks(BI.replace(method="agem", population="uncertainty", seed=3)),
    two_tasks(Config(dataset="bloodcell", method="finetune", seed=4), fingerprint="bb"),
    two_tasks(BI.replace(dataset="/some/where/cells.npz", score="mine:s(a=3, seed=2)", seed=5), source="0a"),
)


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("seed=10", [10]),
        ("label=BI bottom refresh=1", [0]),
        ("label=A-GEM, BI bottom", [3]),
        ("score=", [2, 4]),  # Without a value.
        ("settings=refresh=2 seed=1", [1]),
        ("settings=", [0, 2, 3, 4, 5]),
        ("settings=lr=0.3, refresh=2", [10]),  # This is the form that tables print.
        ("lr=0.3", [10]),
        ("score=mine:s(a=3, seed=2) memory_size=40", [5]),
        ("balanced_accuracy=true", [0, 1, 10, 2, 3, 4]),
        ("dataset=cells.npz", [5]),
        ("dataset=/some/where/cells.npz", [5]),
        ("fingerprint=bb", [4]),
        ("source=0a", [5]),
        ("seed<2", [0, 1]),  # From here on, queries of pandas.
        ("label in ['BI bottom', 'ER']", [0, 1, 2]),
        ("refresh < 2", [0, 3, 5]),  # A run without a score has no refresh.
        ("score.isna()", [2, 4]),
        ("settings == 'lr=0.3, refresh=2'", [10]),
        ("date < '2025-03-02' and seed < 2", [0, 1]),
    ],
)
def test_a_condition_selects_the_runs_that_meet_it(text, seeds):
    assert ucl.where(RUNS, text)["seed"].tolist() == seeds


def test_runs_are_chosen_by_what_their_times_depend_on():
    machines = [{"threads": 1}, {"threads": 4}, {"processor": "AMD EPYC 7B13"}, {"device": "H200", "threads": None}]
    runs = frame(*(two_tasks(BI.replace(seed=seed), **facts) for seed, facts in enumerate(machines)))
    conditions = {"threads=4": 1, "threads < 4": 2, "processor=AMD EPYC 7B13": 1, "processor=H200 threads=": 1}
    assert {text: len(ucl.where(runs, text)) for text in conditions} == conditions
    assert len(ucl.results(runs, ["processor", "threads"])) == 4


def test_several_texts_hold_together_and_no_text_keeps_all_runs():
    assert ucl.where(RUNS, "label=BI bottom", "seed > 0")["seed"].tolist() == [1]
    assert ucl.where(RUNS).equals(RUNS) and ucl.where(RUNS, "seed >= 0").equals(RUNS)


@pytest.mark.parametrize(
    "text",
    [
        *("seed", "ER", "", "seed <", "(seed", "label.foo()", "seed < 'many'", "1 < 2"),  # no condition
        *("sed=1", "sed < 1", "seed < @limit", "A > 0.5"),  # Runs are not chosen by their results.
        *("score=EN", "seed < 2 and population == 'herding'"),  # no run has it
        ["seed=1"],
    ],
)
def test_an_invalid_condition_and_one_that_no_run_meets_are_refused(text):
    with refused("where"):
        ucl.where(RUNS, text)
    with pytest.raises(InputError):
        ucl.where(RUNS[:0], "seed=1")


COMPARE = partial(ucl.compare, first="seed=1", second="seed=2")


@pytest.mark.parametrize("given", ["figures/runs", Path("figures"), RUNS[["label", "seed"]], None])
@pytest.mark.parametrize("use", [ucl.where, ucl.results, partial(ucl.plot, picture="tasks"), COMPARE])
def test_what_is_not_a_table_of_records_is_refused(use, given):
    with pytest.raises(InputError):
        use(given)


def test_a_list_of_records_is_as_good_as_their_table():
    listed = list(RUNS["record"])
    assert ucl.where(listed, "seed < 2")["seed"].tolist() == [0, 1]
    assert ucl.results(listed).equals(ucl.results(RUNS))
