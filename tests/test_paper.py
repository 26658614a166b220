"""The paper's numbers as printed, and the runs behind each of its tables."""

from collections import Counter

import pytest
from conftest import refused
from made_up import frame, matrix, record_of

from ucl import Config, naming, paper
from ucl.evidence.run_measures import Runs


@pytest.mark.parametrize(
    ("cell", "mean", "std"),
    [
        (("table1", "cifar10", 500, "ER", "", "A"), 26.38, 2.27),
        (("table1", "cifar10", 500, "A-GEM", "", "F"), 56.56, 0.18),
        (("table2", "cifar100", 2000, "BI", "bottom", "F"), 13.30, 3.65),
        (("table2", "cifar100", 1000, "LC", "step", "A"), 12.52, 0.65),
        (("table3", "cifar10-lt", 500, "MC", "bottom", "F"), 28.75, 1.55),
        (("table3", "cifar100-lt", 1000, "BI", "bottom", "A"), 10.35, 0.58),
        (("table3", "bloodcell", 40, "BI", "bottom", "F"), 18.27, 7.25),
        (("table3", "bloodcell", 160, "ER", "", "A"), 64.08, 11.98),
    ],
)
def test_a_published_number_is_the_printed_one(cell, mean, std):
    numbers = paper.published().set_index(["table", "dataset", "memory_size", "method", "selection", "metric"])
    assert tuple(numbers.loc[cell, ["mean", "std"]]) == (mean, std)


def test_the_tables_hold_312_numbers():
    numbers = paper.published()
    assert dict(numbers["table"].value_counts()) == {"table1": 96, "table2": 96, "table3": 120}
    assert not numbers.duplicated(["dataset", "memory_size", "method", "selection", "metric"]).any()
    assert not numbers.isna().any(axis=None)
    assert numbers["mean"].between(0, 100).all() and numbers["std"].between(0, 100).all()
    assert set(numbers["selection"]) == {"", "top", "step", "bottom"}
    assert numbers["bold"].sum() == 20


@pytest.mark.parametrize("table", ["table1", "table2", "table3"])
def test_a_grid_has_the_runs_of_every_printed_cell_and_no_others(table):
    numbers = paper.published().query("table == @table")
    printed = {(r.dataset, r.memory_size, f"{r.method} {r.selection}".strip()) for r in numbers.itertuples()}
    runs = Counter((c.dataset, c.memory_size, c.label) for c in paper.grid(table))
    assert runs == dict.fromkeys(printed, 3)


def test_a_grid_has_one_seed_after_the_other_and_defaults_otherwise():
    runs = paper.grid("table3", seeds=[7, 3])
    assert [c.seed for c in runs] == [7] * 60 + [3] * 60
    assert {naming.settings(c) for c in runs} == {""}
    bloodcell = next(c for c in runs if c.dataset == "bloodcell")
    assert (bloodcell.n_tasks, bloodcell.class_order, bloodcell.balanced_accuracy) == (4, "size", True)
    assert {c.imbalance for c in runs if c.dataset == "cifar10-lt"} == {0.1}
    assert {c.dropout for c in runs if c.score == "MC"} == {0.3}


def test_deviations_have_each_choice_of_the_published_code_that_can_change_a_result():
    runs = paper.grid("deviations", seeds=[0])
    reported = [(c.label, naming.settings(c)) for c in runs]
    single = ["scoring_batchnorm=train", "view_draws=batch", "view_space=normalized"]
    baselines = [("ER", ""), ("ER", "reservoir_index=exclusive"), ("CBR", ""), ("CBR", "class_balancing=redraw")]
    assert reported == [*baselines, *(("BI bottom", text) for text in ["", *single, ", ".join(single)])]
    assert len({c.key for c in runs}) == len(runs)
    published = Config(dataset="bloodcell").replace(**paper.PUBLISHED_CODE)
    assert {published.replace(population=name).key for name in ("reservoir", "uncertainty")} <= {c.key for c in runs}


def test_further_fields_reach_every_run():
    runs = paper.grid("bloodcell", seeds=[0], refresh=10, lr=0.05)
    assert {(c.refresh, c.lr) for c in runs} == {(10, 0.05)}
    assert naming.settings(runs[-1]) == "lr=0.05, refresh=10"
    assert naming.settings(runs[0]) == "lr=0.05"  # ER never scores


def test_a_wrong_request_is_refused():
    wrong = {"table": dict(table="tabel1"), "score": dict(score="BI"), "seed": dict(seed=1)}
    wrong |= {"field": dict(refesh=1), "precision": dict(precision="half")}
    for name, fields in wrong.items():
        with refused(name):
            paper.grid(**{"table": "table1", **fields})


def test_records_match_at_any_seed_and_with_no_other_setting():
    wanted = Config(dataset="bloodcell")
    er = wanted.replace(population="reservoir")
    changes = dict(refresh=0.5, selection="top", memory_size=160, lr=0.05)
    others = [wanted.replace(**{name: value}) for name, value in changes.items()]
    runs = [*others, wanted.replace(seed=5), wanted.replace(seed=12), er.replace(refresh=0.5, score="LC")]
    records = frame(*(record_of(config, matrix(0.5, 0.3)) for config in runs))
    counting = Runs(records)
    matched = [counting.rows(one)["seed"].tolist() for one in (Config(dataset="cifar10"), wanted.replace(seed=3), er)]
    assert matched == [[], [5, 12], [0]]
