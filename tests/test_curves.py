"""Curves: a row is written after each task during the run, and equals that of the final record."""

import numpy as np
import pandas as pd
import pytest

import ucl
from ucl import Config
from ucl.records import RecordStore, curves

pytestmark = pytest.mark.usefixtures("small_networks")
NAN = np.nan
A = np.array([[0.9, NAN, NAN], [0.5, 0.8, NAN], [0.2, 0.6, 0.7]])
SO_FAR = np.array([0.9, 0.65, 0.5])


def test_a_row_has_the_mean_and_the_forgetting_of_the_tasks_seen():
    first, second, third = curves.table(A, SO_FAR).to_dict("records")
    assert [row["tasks_learnt"] for row in (first, second, third)] == [1, 2, 3]
    assert (first["accuracy"], first["forgetting"]) == (0.9, 0)
    assert (second["accuracy"], second["forgetting"]) == pytest.approx((0.65, 0.4))
    assert (third["accuracy"], third["forgetting"]) == pytest.approx((0.5, (0.7 + 0.2) / 2))
    assert third["task_2"] == 0.6 and np.isnan(second["task_3"])


def test_tasks_that_are_not_learnt_yet_have_no_row(tmp_path):
    a = A.copy()
    a[1:] = NAN
    curves.save(a, SO_FAR, tmp_path / "new" / "curve.csv")
    assert (
        tmp_path / "new" / "curve.csv"
    ).read_text() == "tasks_learnt,accuracy,forgetting,task_1,task_2,task_3\n1,0.9,0.0,0.9,,\n"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["curve.csv"]


def test_a_run_writes_its_curve_after_each_task(tmp_path, tiny, monkeypatch):
    seen, save = [], curves.save
    monkeypatch.setattr(curves, "save", lambda a, b, path: (save(a, b, path), seen.append(len(pd.read_csv(path)))))
    record = ucl.run(tiny, device="cpu", curves=tmp_path / "curve.csv")
    assert seen == [1, 2] and record.results == ucl.run(tiny, device="cpu").results
    table = np.genfromtxt(tmp_path / "curve.csv", delimiter=",", names=True)  # pandas 2.0 rounds what it reads
    np.testing.assert_array_equal(np.stack([table["task_1"], table["task_2"]], 1), record.accuracy)
    assert table["forgetting"][-1] == record.last_forgetting


@pytest.mark.parametrize("balanced", [True, False])
def test_a_curve_ends_at_the_last_accuracy_of_tables(tmp_path, tiny, balanced):
    config = tiny.replace(balanced_accuracy=balanced, imbalance=0.5)
    record = ucl.run(config, device="cpu", curves=tmp_path / "curve.csv")
    accuracy = pd.read_csv(tmp_path / "curve.csv")["accuracy"]
    np.testing.assert_allclose(accuracy, record.accuracy_so_far)
    assert accuracy.iloc[-1] == pytest.approx(record.last_accuracy)
    assert record.measures()["average"] == pytest.approx(accuracy.mean())


def test_a_sweep_leaves_a_curve_per_run_also_where_the_record_is_there(tmp_path, tiny):
    runs = [tiny, tiny.replace(seed=1)]
    ucl.sweep(runs[:1], tmp_path / "runs", device="cpu", progress=False)
    ucl.sweep(runs, tmp_path / "runs", device="cpu", progress=False, curves=tmp_path / "curves")
    names = {RecordStore(tmp_path / "runs").path(config).stem for config in runs}
    assert {path.stem for path in (tmp_path / "curves").iterdir()} == names


def test_a_curve_that_can_not_be_written_warns_and_the_run_goes_on(tmp_path, tiny):
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="the curve can't be written .*; the result is not affected"):
        record = ucl.run(tiny, device="cpu", curves=tmp_path / "file" / "curve.csv")
    assert record.config == tiny and isinstance(tiny, Config)
