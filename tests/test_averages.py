"""Means over seeds: they equal numpy's, counts are exact, and only seeds are averaged."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from made_up import diverged, frame, one_row, two_tasks

import ucl
from ucl import Config

BI = Config(dataset="bloodcell", memory_size=40)
RETAINED, BEST = [0.2, 0.35, 0.3], [0.9, 0.8, 0.95]
THREE = [two_tasks(BI.replace(seed=s), kept, best) for s, (kept, best) in enumerate(zip(RETAINED, BEST, strict=True))]


def test_means_and_sample_deviations_are_numpys():
    table = ucl.results(frame(*THREE), measures=["A", "learning", "seconds"])
    assert list(table.columns[4:]) == [*("n", "A", "A_std", "learning", "learning_std", "seconds", "seconds_std")]
    row = one_row(table)
    assert row["n"] == 3 and row["seconds"] == 12 and row["seconds_std"] == 0
    for name, of_first in (("A", RETAINED), ("learning", BEST)):
        values = 50 * (np.array(of_first) + 0.75)
        assert (row[name], row[f"{name}_std"]) == pytest.approx((values.mean(), values.std(ddof=1)))


def test_classes_that_no_test_has_are_named():
    recall = THREE[0].class_recall.copy()
    recall[-1, 1] = np.nan
    row = one_row(ucl.results(frame(*THREE, replace(THREE[0], config=BI.replace(seed=9), class_recall=recall))))
    assert row["untested"] == THREE[0].classes[1] and "untested" not in ucl.results(frame(*THREE))


def test_runs_with_other_settings_have_rows_of_their_own_whatever_is_asked_for():
    changes = [dict(lr=0.05), dict(n_tasks=2), dict(memory_size=160), dict(tasks="0|1"), dict(tasks="1|0")]
    others = [two_tasks(BI.replace(**changed)) for changed in [*changes, dict(n_tasks=2, class_order="0,1")]]
    for by in ([], ["lr"], ["label"], ["score", "selection"]):
        table = ucl.results(frame(*THREE, *others), by)
        assert list(table.columns[: len(by)]) == by
        assert sorted(table["n"]) == [*[1] * 6, 3]


def test_a_column_of_a_field_sorts_the_rows_and_leaves_the_settings():
    records = [two_tasks(BI.replace(lr=lr, refresh=2, seed=s)) for lr in (0.5, 0.1, 0.01) for s in range(2)]
    table = ucl.results(frame(*records), ["lr"], ["A"])
    assert table["lr"].tolist() == [0.01, 0.1, 0.5] and table["n"].tolist() == [2, 2, 2]
    assert set(table["settings"]) == {"refresh=2"}


def test_a_run_has_a_row_by_its_seed_and_shared_facts_divide_no_rows():
    table = ucl.results(frame(*THREE), ["seed"], ["F"])
    assert table["F"].tolist() == pytest.approx([70, 45, 65]) and table["F_std"].isna().all()
    for by in ("arithmetic", "source", "fingerprint"):
        assert ucl.results(frame(*THREE), by=[by])["n"].tolist() == [3]


def test_joined_tables_are_averaged_like_one():
    """`pd.concat` keeps the row labels of each table, so labels repeat."""
    others = [two_tasks(BI.replace(seed=s, lr=0.05), 0.1, 0.4) for s in range(3)]
    joined = ucl.results(pd.concat([frame(*THREE), frame(*others)]))
    pd.testing.assert_frame_equal(joined, ucl.results(frame(*THREE, *others)))


def test_failed_runs_are_counted_and_left_out():
    row = one_row(ucl.results(frame(*THREE[:2], diverged(THREE[2])), measures=["A"]))
    assert (row["n"], row["left_out"]) == (2, "1 diverged")
    assert row["A"] == pytest.approx(50 * (np.mean(RETAINED[:2]) + 0.75))
    row = one_row(ucl.results(frame(diverged(THREE[0]), diverged(THREE[1], 1))))
    assert (row["n"], row["left_out"]) == (0, "2 diverged") and np.isnan(row["A"])
    assert "left_out" not in ucl.results(frame(*THREE))


def test_runs_on_two_versions_of_the_images_have_two_rows_and_a_run_measured_twice_counts_once():
    again, other = (two_tasks(BI, 0.05, date="2025-04-01", fingerprint=name) for name in ("aa", "bb"))
    table = ucl.results(frame(two_tasks(BI), two_tasks(BI.replace(seed=1)), other))
    assert table[["fingerprint", "n"]].to_numpy().tolist() == [["aa", 2], ["bb", 1]]
    assert table["A"].tolist() == pytest.approx([50.0, 40.0])
    assert ucl.results(frame(two_tasks(BI), again))[["n", "A"]].to_numpy().tolist() == [[1, pytest.approx(40)]]
    er = two_tasks(BI.replace(population="reservoir"))
    assert ucl.results(frame(er, other)).set_index("label")["fingerprint"].to_dict() == {"ER": "aa", "BI bottom": "bb"}
    assert [*ucl.results(frame(er, other), ["fingerprint"])].count("fingerprint") == 1
    changes = {"bb": dict(image_size=64), "c": dict(dataset="x")}
    others = [two_tasks(BI.replace(**changed), fingerprint=name) for name, changed in changes.items()]
    assert "fingerprint" not in ucl.results(frame(two_tasks(BI), *others))


def test_two_versions_of_a_score_are_never_averaged():
    mine = BI.replace(score="mine:score")
    sources = {"source": "0a", "score_source": "0b", "other": ""}  # older records have a hash per object
    records = frame(*[two_tasks(mine.replace(seed=s), **{n: h}) for s, (n, h) in enumerate(sources.items())])
    table = ucl.results(records)
    assert table[["source", "n"]].to_numpy().tolist() == [["", 1], ["0a", 1], ["0b", 1]] and "fingerprint" not in table


def test_by_default_all_measures_are_shown_for_any_data_set_and_method():
    mine = Config(dataset="my/cells.npz", memory_size=20, score="mine:score")
    table = ucl.results(frame(two_tasks(mine), two_tasks(Config(dataset="bloodcell", method="finetune"))))
    shown = "n A A_std F F_std learning best retained last average last_share seconds"
    assert list(table)[4:] == shown.split() and table["label"].tolist() == ["Finetune", "mine:score bottom"]
    assert table["memory_size"].tolist() == [pd.NA, 20]


def test_a_measure_that_a_run_lacks_is_empty():
    """The share of the last task's classes needs counted answers, which older records do not have."""
    last = (0.75, 0.625, 0.5)
    shares = [replace(r, answer_shares=np.array([[1, np.nan], [0.25, s]])) for r, s in zip(THREE, last, strict=True)]
    assert ucl.results(frame(*shares))["last_share"].tolist() == [pytest.approx(100 * np.mean(last))]
    row = one_row(ucl.results(frame(*shares[:2], THREE[2])))
    assert row["n"] == 3 and np.isnan(row["last_share"])


def test_no_records_make_an_empty_table_with_the_columns():
    table = ucl.results(frame(*THREE)[:0], ["lr"], ["A"])
    assert list(table) == ["lr", "dataset", "memory_size", "label", "settings", "n", "A", "A_std"] and table.empty
