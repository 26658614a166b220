"""Grids: all combinations, each experiment once, and errors that name the file, the key and the value."""

import json

import numpy as np
import pytest

import ucl
from ucl import Config, InputError
from ucl.cli.main import main

GRID = {"dataset": "digits", "score": ["BI", "EN"], "lr": [0.1, 0.05], "seed": [0, 1, 2]}


def test_it_is_every_combination_once_and_seed_after_seed():
    runs = ucl.grid(GRID)
    assert [c.seed for c in runs] == [0] * 4 + [1] * 4 + [2] * 4
    assert [(c.score, c.lr) for c in runs[:4]] == [("BI", 0.1), ("BI", 0.05), ("EN", 0.1), ("EN", 0.05)]
    assert len({c.key for c in runs}) == 12


def test_several_grids_follow_each_other_and_equal_experiments_are_one():
    runs = ucl.grid([{"score": ["BI", "EN"], "population": ["uncertainty", "reservoir"]}, {"population": "reservoir"}])
    assert [c.label for c in runs] == ["BI bottom", "ER", "EN bottom"]


def test_values_may_be_numpys():
    assert [c.lr for c in ucl.grid({"lr": list(np.array([0.1, 0.2])), "seed": np.int64(3)})] == [0.1, 0.2]


def test_ranges_and_arrays_are_lists():
    assert ucl.grid({"seed": range(3)}) == ucl.grid({"seed": [0, 1, 2]})
    assert ucl.grid({"lr": np.array([0.1, 0.05])}) == ucl.grid({"lr": [0.1, 0.05]})
    assert ucl.grid({"seed": np.arange(2), "lr": np.array(0.2)}) == ucl.grid({"seed": (0, 1), "lr": 0.2})
    for values in (np.array([[0.1], [0.2]]), np.array([]), range(0)):
        with pytest.raises(InputError, match="give a value, or a list of one or several values") as refusal:
            ucl.grid({"lr": values})
        assert "\n" not in str(refusal.value)


def test_a_yaml_and_a_json_file_give_the_same_runs(tmp_path):
    (tmp_path / "grid.json").write_text(json.dumps(GRID))
    (tmp_path / "grid.yaml").write_text("dataset: digits\nscore: [BI, EN]\nlr: [1e-1, 5e-2]\nseed:\n- 0\n- 1\n- 2\n")
    assert ucl.grid(tmp_path / "grid.yaml") == ucl.grid(str(tmp_path / "grid.json")) == ucl.grid(GRID)


def test_what_yaml_reads_as_text_stays_text_except_numbers_with_an_exponent(tmp_path):
    (tmp_path / "grid.yaml").write_text('dataset: ["2024", "1e-3", nan, infinity, 3e4x]\nlr: [1e-3, 2E1, .5e+1]\n')
    runs = ucl.grid(tmp_path / "grid.yaml")
    assert [run.dataset for run in runs[::3]] == ["2024", "1e-3", "nan", "infinity", "3e4x"]
    assert [run.lr for run in runs[:3]] == [0.001, 20.0, 5.0]


def test_a_parameter_of_the_command_is_read_as_in_a_yaml_file(tmp_path, capsys):
    (tmp_path / "grid.yaml").write_text("seed: [0, 1]")
    arguments = ["status", "--config", str(tmp_path / "grid.yaml"), "--store", str(tmp_path / "runs")]
    assert main([*arguments, "--set", "dataset", "infinity", "--set", "lr", "1e-3"]) == 1
    assert "infinity " in capsys.readouterr().out


def test_a_record_is_a_grid_of_its_one_run(tmp_path, tiny):
    (tmp_path / "record.json").write_text(json.dumps({"config": json.loads(tiny.to_json()), "accuracy": []}))
    assert ucl.grid(tmp_path / "record.json") == [tiny]


def test_a_configuration_of_all_fields_may_have_several_values(tmp_path, tiny):
    of_record = {"config": {**json.loads(tiny.to_json()), "seed": [0, 1], "lr": [0.1, 0.05]}}
    (tmp_path / "record.json").write_text(json.dumps(of_record))
    runs = ucl.grid(tmp_path / "record.json")
    assert runs == [tiny.replace(seed=seed, lr=lr) for seed in (0, 1) for lr in (0.1, 0.05)]
    assert [run.explicit for run in runs] == [
        {**tiny.explicit, **({"seed": 1} if seed else {}), **({"lr": 0.05} if lr < 0.1 else {})}
        for seed in (0, 1)
        for lr in (0.1, 0.05)
    ]


@pytest.mark.parametrize("format_", [{}, {"format": 1}], ids=["no record", "record"])
def test_fields_beside_a_configuration_are_refused_but_not_the_results_of_a_record(tmp_path, tiny, format_):
    found = {**format_, "config": json.loads(tiny.to_json())}
    results = {"class_order": [0, 1, 2, 3], "readings": {}} if format_ else {}
    (tmp_path / "record.json").write_text(json.dumps({**found, **results}))
    assert ucl.grid(tmp_path / "record.json") == [tiny]
    (tmp_path / "record.json").write_text(json.dumps({**found, "seed": [0, 1], "lr": 0.05}))
    with pytest.raises(InputError, match=r"record\.json': has seed, lr beside config, .*; put them into config, or"):
        ucl.grid(tmp_path / "record.json")


def test_what_a_file_does_not_set_may_be_decided_again():
    """As with `Config.replace`, BI has no dropout: the first run had dropout only because of its score MC."""
    (mc,) = ucl.grid({"score": "MC"})
    assert mc.dropout == 0.3 and mc.replace(score="BI").dropout == 0.0 == Config(score="BI").dropout


REFUSED = {
    "lr: [0.1, fast]": ["lr='fast'", "(0, 100]"],
    "lrr: 0.1": ["'lrr'", "did you mean 'lr'?"],
    "lr: []": ["lr=[]", "one or several values"],
    "lr: [[0.1], 1]": ["lr=[[0.1], 1]", "one or several values"],
    "lr: {low: 0.1}": ["lr={'low': 0.1}", "one or several values"],
    "lr: [0.1": ["YAML", "in line 1"],
    "seed: 0\nlr: 0.1\nseed: 1": ["seed is there 2 times", "give it once, with a list"],
    "- seed: 0\n- {lr: 0.1, lr: 0.2}": ["lr is there 2 times"],
    "- 3": ["give a YAML mapping of Config fields"],
    "": ["give a YAML mapping of Config fields"],
    "2020-01-01: 3": ["field=datetime.date(2020, 1, 1)", "unknown field"],
    "seed: !!timestamp soon": ["YAML", "does not fit its tag", "leave the tag out"],
    "seed: !!bool 3": ["YAML", "does not fit its tag"],
    "seed: !!int ''": ["YAML", "does not fit its tag"],
    "score: [BI, MC]\ndropout: 0": ["dropout=0", "give a rate above 0"],
    "seed: [0, -1]": ["seed=-1", "whole number"],
    "score: BI, EN": ["score='BI, EN'", "give several values as a list: [BI, EN]"],
    "seed: 0,1": ["seed='0,1'", "give several values as a list: [0,1]"],
    "lr: [" + ", ".join(["0.1"] * 400) + "]\nseed: [" + ", ".join(["0"] * 400) + "]": ["160,000", "at most 100,000"],
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:20])
def test_a_file_that_is_no_grid_is_refused_with_its_name_the_key_and_the_value(tmp_path, text):
    (tmp_path / "grid.yaml").write_text(text)
    with pytest.raises(InputError) as refusal:
        ucl.grid(tmp_path / "grid.yaml")
    said = str(refusal.value)
    assert said.startswith(f"config={str(tmp_path / 'grid.yaml')!r}: ") and "\n" not in said
    assert [word for word in REFUSED[text] if word not in said] == []


def test_a_date_among_all_fields_is_refused_as_any_other_value(tmp_path, tiny):
    fields = {**json.loads(tiny.to_json()), "lr": "!"}
    text = "".join(f"{name}: {json.dumps(value)}\n" for name, value in fields.items()).replace('"!"', "2020-01-01")
    (tmp_path / "grid.yaml").write_text(text)
    with pytest.raises(InputError, match="lr='2020-01-01': give a number in"):
        ucl.grid(tmp_path / "grid.yaml")


def test_a_json_file_that_has_a_key_twice_is_refused(tmp_path):
    (tmp_path / "grid.json").write_text('[{"lr": 0.1}, {"seed": 0, "lr": 0.1, "seed": 1}]')
    with pytest.raises(InputError, match=r"grid\.json': can't be read as JSON \(seed is there 2 times; give it once"):
        ucl.grid(tmp_path / "grid.json")


def test_grids_may_share_fields_and_replace_some_of_them(tmp_path):
    (tmp_path / "grid.yaml").write_text("- &base\n  lr: 0.2\n  score: EN\n- <<: *base\n  lr: 0.3\n")
    assert [(run.score, run.lr) for run in ucl.grid(tmp_path / "grid.yaml")] == [("EN", 0.2), ("EN", 0.3)]


def test_a_yaml_file_of_another_ending_is_refused_with_the_ending_that_it_needs(tmp_path):
    (tmp_path / "grid.txt").write_text("lr: 0.1")
    with pytest.raises(InputError, match=r"can't be read as JSON .*; the name of a YAML file ends in \.yaml"):
        ucl.grid(tmp_path / "grid.txt")


def test_the_name_of_a_folder_is_refused_without_advice_about_endings(tmp_path):
    with pytest.raises(InputError, match=r"can't be read as JSON \(.* is a directory, not a regular file\)$"):
        ucl.grid(tmp_path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"gone\.yaml': no such file; give"):
        ucl.grid(tmp_path / "gone.yaml")


def test_a_value_that_equals_a_default_stays_when_other_fields_are_replaced(tmp_path):
    fields = {"dataset": "digits", "memory_size": 50, "population": "reservoir", "method": "derpp"}
    (tmp_path / "g.yaml").write_text("".join(f"{name}: {value}\n" for name, value in fields.items()))
    for source in (fields, tmp_path / "g.yaml"):
        (config,) = ucl.grid(source)
        assert config.replace(method="er").population == "reservoir"
        assert config.replace(dataset="cifar10").memory_size == 50
