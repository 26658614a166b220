"""Arguments in the path of a user's own object, such as ``mine:spread(power=2)``: spelling, keys, errors and effect."""

import sys
from keyword import iskeyword
from pathlib import Path

import pytest
from conftest import save_bands
from hypothesis import given
from hypothesis import strategies as st

import ucl
from ucl import Config, InputError, RecordStore, load_records, own
from ucl.cli.main import main
from ucl.records import versions

PARAMETRISED = """
import numpy as np
import torch.nn.functional as F
from torch import nn
from ucl.buffers import Buffer
from ucl.methods import Method

def score(logits_PNC, labels_N, weight=WEIGHT):
    true_N = F.cross_entropy(logits_PNC.mean(0), labels_N, reduction="none")
    return true_N + weight * logits_PNC.softmax(-1).amax(-1).std(0)

class Every(Buffer):
    def __init__(self, *arguments, step=STEP):
        super().__init__(*arguments)
        self.step = step

    def update(self, model, batch):
        n = self.store(batch)
        rest = np.arange(n, len(batch))
        rest = rest[(self.n_seen + rest) % self.step == 0]
        self.replace((self.n_seen + rest) % self.size, batch, rest)
        self.n_seen += len(batch)

class Smoothed(Method):
    def __init__(self, *arguments, smoothing=SMOOTHING):
        super().__init__(*arguments)
        self.smoothing = smoothing

    def update(self, model, batch, buffer):
        images, labels = self.with_replay(batch, buffer)
        self.descend(model, F.cross_entropy(model(images), labels, label_smoothing=self.smoothing))

def network(n_classes, channels, image_size, *, width=WIDTH, norm="NORM"):
    layers = nn.Conv2d(channels, width, 3, 2, 1), getattr(nn, norm)(width), nn.ReLU(), nn.AdaptiveAvgPool2d(4)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * width, n_classes))

def images(shade=SHADE):
    labels = np.arange(80) % 4
    pixels = np.zeros((80, 28, 28), np.uint8)
    for label in range(4):
        pixels[labels == label, 7 * label : 7 * label + 7] = shade + np.arange(20)[:, None, None]
    return pixels, labels

def positional(logits_PNC, /):
    return logits_PNC.mean((0, 2))
"""
DEFAULTS = {"WEIGHT": "0.0", "STEP": "1", "SMOOTHING": "0.1", "WIDTH": "8", "NORM": "BatchNorm2d", "SHADE": "100"}
OTHERS = {"WEIGHT": "-5.0", "STEP": "3", "SMOOTHING": "0.4", "WIDTH": "4", "NORM": "Identity", "SHADE": "200"}
BASE = dict(dataset="tiny.npz", n_tasks=2, memory_size=8, precision="float32", lr=0.05, model="given:network")
FIELDS = {
    "score": "score(weight=-5.0)",
    "population": "Every(step=3)",
    "method": "Smoothed(smoothing=0.4)",
    "model": "network(norm='Identity', width=4)",
    "dataset": "images(shade=200)",
}
LITERALS = st.one_of(
    st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(), st.booleans(), st.none()
)


def written(values):
    source = PARAMETRISED
    for name, value in values.items():
        source = source.replace(name, value)
    return source


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with `given.py`, and `otherwise.py`, in which the arguments of `FIELDS` are the defaults."""
    Path(tmp_path / "given.py").write_text(written(DEFAULTS))
    Path(tmp_path / "otherwise.py").write_text(written(OTHERS))
    save_bands(tmp_path / "tiny.npz")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UCL_DATA", str(tmp_path / "data"))
    yield tmp_path
    for name in ("given", "otherwise"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("field", FIELDS)
def test_an_argument_has_the_effect_of_the_same_default_in_the_code(here, field):
    base = {"population": "reservoir", **BASE}
    if field == "score":
        base.pop("population")

    def results_of(path):
        return ucl.run(Config(**{**base, field: path}), device="cpu", progress=False).results

    bare = FIELDS[field].partition("(")[0]
    with_argument = results_of(f"given:{FIELDS[field]}")
    assert with_argument == results_of(f"otherwise:{bare}") != results_of(f"given:{bare}")


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True), LITERALS, max_size=4))
def test_the_arguments_are_read_as_they_were_written_in_any_order(arguments):
    arguments = {name: value for name, value in arguments.items() if not iskeyword(name)}
    texts = [f"{name} =  {value!r}" for name, value in arguments.items()]
    paths = [f"of.mine:f( {','.join(order)} )" for order in (texts, texts[::-1])]
    found = [own.parsed("score", path) for path in paths]
    assert found[0] == found[1] == ("of.mine", "f", arguments)
    spelled = str(found[0])
    assert own.parsed("score", spelled) == found[0] and spelled.startswith("of.mine:f")
    keys = {Config(score=path, seed=1).key for path in (*paths, spelled)}
    assert len(keys) == 1 and Config(score=paths[0], seed=1).score == spelled


def test_each_value_of_an_argument_is_an_experiment_with_a_name_of_its_own(here, capsys):
    fields = {**BASE, "dataset": "given:images(shade = 200)-lt", "batch_size": 4}
    configs = [Config(**fields, score=f"given:score(weight={weight})") for weight in (0.5, 2.0)]
    assert [config.label for config in configs] == [f"given:score(weight={w}) bottom" for w in (0.5, 2.0)]
    assert {config.dataset for config in configs} == {"given:images(shade=200)-lt"} and configs[0].imbalance == 0.1
    ucl.sweep(configs, store="runs")
    assert all(config in RecordStore("runs") for config in configs)
    assert len(ucl.where(load_records("runs"), "score=given:score(weight=0.5)")) == 1
    assert main(["results", "runs"]) == 0
    out = capsys.readouterr().out
    assert all(f"given:score(weight={weight}) bottom" in out for weight in (0.5, 2.0)), out
    sources = versions.own_sources(configs[0])
    assert set(sources) == {"dataset", "model", "score"} and all(sources.values())


@pytest.mark.parametrize(
    ("path", "reported"),
    [
        (
            "score(2)",
            "give arguments by name, with finite numbers or texts in quotes as values, such as given:score(power=2)",
        ),
        ("score(weight=1e400)", "give arguments by name, with finite numbers"),
        ("score(weight={'a', 'b'})", "give arguments by name"),  # A set has no fixed order.
        ("score(weight=two)", "give arguments by name"),
        ("score(weight=2", "give arguments by name"),
        ("score(weight=2)(3)", "give arguments by name"),
        ("score(**{'weight': 2})", "give arguments by name"),
        ("score(wieght=2)", "unexpected keyword argument 'wieght'; score is score(logits_PNC, labels_N, weight=0.0)"),
        ("score(logits_PNC=2)", "the run gives logits_PNC itself; leave it out of the arguments"),
        ("positional(logits_PNC=2)", "the run gives logits_PNC itself; leave it out of the arguments"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused_in_one_line(here, path, reported, capsys):
    code = main(["run", "--dataset", "tiny.npz", "--n-tasks", "2", "--memory-size", "8", "--score", f"given:{path}"])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "") and err.count("\n") == 1 and reported in err, err
    assert err.startswith(f"ucl run: --score given:{path}: ")


def test_an_argument_may_hold_a_path(here):
    config = Config(dataset="given:images(folder='a/b.npz')")
    assert config.own == {"dataset": config.dataset} and config.dataset_name == config.dataset
    with pytest.raises(InputError, match="unexpected keyword argument 'folder'; images is images"):
        ucl.datasets.load(config.dataset)


def test_the_name_of_a_file_is_refused_with_the_name_of_its_module(tmp_path, monkeypatch):
    (tmp_path / "scores_here.py").write_text("def spread(logits_PNC): pass\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as refusal:
        own.find("score", "scores_here.py:spread(power=2)", "")
    assert refusal.value.reason == "is the name of a file; give that of its module: scores_here:spread(power=2)"
