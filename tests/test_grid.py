"""Grids: all combinations, each experiment once, and errors that name the file and the field."""

import json

import numpy as np
import pytest
from conftest import refused

import ucl
from ucl import InputError
from ucl.sweeps.grid import from_yaml

GRID = {"dataset": "digits", "score": ["BI", "EN"], "lr": [0.1, 0.05], "seed": [0, 1, 2]}


def test_a_grid_is_every_combination_once_with_the_seed_changing_last():
    runs = ucl.grid(GRID)
    assert [c.seed for c in runs] == [0] * 4 + [1] * 4 + [2] * 4
    assert [(c.score, c.lr) for c in runs[:4]] == [("BI", 0.1), ("BI", 0.05), ("EN", 0.1), ("EN", 0.05)]
    assert len({c.key for c in runs}) == 12


def test_several_grids_follow_each_other_and_equal_experiments_are_one():
    runs = ucl.grid([{"score": ["BI", "EN"], "population": ["uncertainty", "reservoir"]}, {"population": "reservoir"}])
    assert [c.label for c in runs] == ["BI bottom", "ER", "EN bottom"]


def test_ranges_and_arrays_are_lists():
    runs = ucl.grid({"seed": [0, 1, 2], "lr": [0.1, 0.2]})
    assert ucl.grid({"seed": range(3), "lr": np.array([0.1, 0.2])}) == runs
    assert ucl.grid({"seed": np.arange(3), "lr": list(np.array([0.1, 0.2]))}) == runs
    assert ucl.grid({"seed": np.int64(3), "lr": np.array(0.2)}) == ucl.grid({"seed": 3, "lr": 0.2})
    for values in (np.array([[0.1], [0.2]]), np.array([]), range(0)):
        with pytest.raises(InputError):
            ucl.grid({"lr": values})


def test_a_yaml_and_a_json_file_give_the_same_runs(tmp_path):
    (tmp_path / "grid.json").write_text(json.dumps(GRID))
    (tmp_path / "grid.yaml").write_text("dataset: digits\nscore: [BI, EN]\nlr: [1e-1, 5e-2]\nseed:\n- 0\n- 1\n- 2\n")
    assert ucl.grid(tmp_path / "grid.yaml") == ucl.grid(str(tmp_path / "grid.json")) == ucl.grid(GRID)


def test_plain_values_are_those_of_yaml_1_2():
    assert [from_yaml(text) for text in ("010", "1e-3", "~", "no", "'1e-3'")] == [10, 0.001, None, "no", "1e-3"]
    for text in ("[1", "{a: 1, a: 2}"):
        with refused("lr", text):
            from_yaml(text, "lr")


def test_a_value_that_equals_a_default_stays_when_other_fields_are_replaced(tmp_path):
    fields = {"dataset": "digits", "memory_size": 50, "population": "reservoir", "method": "derpp"}
    (tmp_path / "g.yaml").write_text("".join(f"{name}: {value}\n" for name, value in fields.items()))
    for source in (fields, tmp_path / "g.yaml"):
        (config,) = ucl.grid(source)
        assert config.replace(method="er").population == "reservoir"
        assert config.replace(dataset="cifar10").memory_size == 50


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("lr: [0.1, fast]", "lr='fast'"),
        ("lrr: 0.1", "'lrr'"),
        ("lr: []", "lr=[]"),
        ("lr: [0.1", "line 1"),
        ("seed: 0\nlr: 0.1\nseed: 1", "seed"),
        ('[{"lr": 0.1}, {"seed": 0, "lr": 0.1, "seed": 1}]', "seed"),
        ("- 3", "mapping"),
        ("readings: yes", "readings='yes'"),
        ("score: [BI, MC]\ndropout: 0", "dropout=0"),
        ("score: BI, EN", "score='BI, EN'"),
        ('{"config": {"lr": 0.1}, "seed": [0, 1]}', "config"),
    ],
)
def test_a_file_that_is_not_a_grid_is_refused_with_its_name_and_the_field(tmp_path, text, named):
    (tmp_path / "grid.yaml").write_text(text)
    with pytest.raises(InputError) as refusal:
        ucl.grid(tmp_path / "grid.yaml")
    message = str(refusal.value)
    assert str(tmp_path / "grid.yaml") in message and named in message and "\n" not in message
