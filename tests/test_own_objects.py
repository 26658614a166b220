"""A user's scores, memory policies, methods, networks and data sets, from files outside the checkout to the tables."""

import random
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import assert_refused, needs_bfloat16, refused

import ucl
from ucl import Config, RecordStore, load_records, plots
from ucl.records.store import current_version

EXAMPLES = Path(__file__).with_name("own_objects.py")
BASE = dict(dataset="tiny.npz", n_tasks=2, memory_size=8, precision="float32", model="mine:Grouped", lr=0.05)
VARIANTS = {  # by label; all have a user's network
    "mine:surprise bottom": dict(score="mine:surprise"),
    "mine:atypical top": dict(score="mine:atypical", selection="top"),
    "mine:loss bottom": dict(score="mine:loss"),
    "mine:Fifo": dict(population="mine:Fifo"),
    "mine:Hardest": dict(population="mine:Hardest"),
    "mine:Smoothed": dict(method="mine:Smoothed"),
    "ER": dict(dataset="mine:faces", population="reservoir"),
    "mine:Smoothed, mine:Fifo": dict(dataset="mine:faces", method="mine:Smoothed", population="mine:Fifo"),
}


@pytest.fixture(autouse=True)
def mine(here):
    """The examples as `mine.py` in the working folder."""
    shutil.copy(EXAMPLES, here / "mine.py")


@pytest.fixture
def run(cli):
    """`ucl run` with values of fields."""

    def call(**fields):
        del fields["precision"]  # Without scores it would be reported as having no effect.
        flags = (word for name, value in fields.items() for word in (f"--{name.replace('_', '-')}", value))
        return cli("run", "--device", "cpu", *flags)

    return call


def test_the_command_runs_each_and_tables_and_pictures_show_each_by_its_name(run):
    for fields in VARIANTS.values():
        code, _, err = run(**{**BASE, **fields, "batch_size": 4 if "dataset" in fields else 8})
        assert code == 0 and all("not square" in line or "starts again" in line for line in err.splitlines()), err
    records = load_records("runs")
    table = ucl.results(records)
    assert set(table["label"]) == set(VARIANTS) and len(table) == len(VARIANTS)
    assert all(len(plots.color(label)) == 3 for label in VARIANTS)
    source = current_version("digits", None, Config(**BASE).user_objects.values())[0].source
    assert {record.version.source for record in records["record"]} == {source} != {""}


# What a run leaves to the next one, and what its parts leave to one another

ONCE = """
import functools, random, torch, ucl
import numpy as np
from torch import nn
from mine import F, Fifo, Growing, Grouped, Method, batch_normed

cached = functools.cache(batch_normed)
body, pool = nn.Conv2d(1, 8, 3, 2, 1), nn.AdaptiveAvgPool2d(4)
counts = Growing()
torch.set_default_dtype(torch.float64)

def on_a_body(n_classes, *shape):
    return nn.Sequential(body, pool, nn.Flatten(), nn.Linear(128, n_classes))
def pooled(n_classes, channels, size):
    return nn.Sequential(nn.Conv2d(channels, 8, 3, 2, 1), pool, nn.Flatten(), nn.Linear(128, n_classes))

def chance(logits_PNC):
    drawn = [random.random() for _ in logits_PNC[0]]
    return logits_PNC[0, :, 0] * 0 + np.random.rand() + logits_PNC.new_tensor(drawn)

class Sick(Grouped):
    steps = 0
    def forward(self, x):
        self.steps += self.training
        logits = super().forward(x)
        return logits if self.training or self.steps < 4 else logits.index_fill(0, torch.tensor([0]), torch.nan)

class Empty(Fifo):
    def update(self, model, batch): pass
class Copies(Method):
    def update(self, model, batch, buffer):
        images, labels = (values.clone() for values in self.with_replay(batch, buffer))
        self.descend(model, F.cross_entropy(model(images.fill_(7)), labels.fill_(1)))
class Fills(Method):
    def update(self, model, batch, buffer):
        images, labels = self.with_replay(batch, buffer)
        self.descend(model, F.cross_entropy(model(images.fill_(7)), labels.fill_(1)))
        batch.host_labels.fill(1)
"""


@pytest.fixture
def measured(here):
    """A run with objects of `ONCE`."""
    Path("once.py").write_text(ONCE)

    def call(**fields):
        return ucl.run(Config(**{**BASE, "population": "reservoir", **fields}), device="cpu", progress=False)

    return call


@pytest.mark.parametrize("name", ["cached", "on_a_body"])
def test_a_network_that_an_earlier_run_may_have_trained_is_refused(measured, name):
    measured(model=f"once:{name}")
    with refused("model"):
        measured(model=f"once:{name}", seed=1)


@pytest.mark.parametrize("fields", [dict(model="once:pooled"), dict(population="uncertainty", score="once:counts")])
def test_what_else_outlives_a_run_does_not_change_the_next_one(measured, fields):
    assert measured(**fields).results == measured(**fields).results
    assert torch.get_default_dtype() == torch.float32  # The module set another one.


def test_user_code_that_draws_from_any_global_generator_repeats(measured):
    fields = dict(population="uncertainty", score="once:chance")
    first = measured(**fields)
    random.seed(3)
    np.random.seed(3)
    assert measured(**fields).results == first.results


@pytest.mark.parametrize("fields", [{}, dict(method="derpp"), dict(population="rainbow")])
def test_a_test_without_an_answer_is_divergence(measured, fields):
    with pytest.warns(UserWarning, match="diverged during"):
        record = measured(**fields, model="once:Sick")
    assert record.failure == "diverged" and np.isnan(record.accuracy[record.diverged_after :]).all()
    assert ucl.Record.from_json(record.to_json()).results == record.results


def test_a_method_that_writes_into_its_batch_changes_no_memory(measured):
    fields = dict(memory_size=20, population="loss-aware")  # which reads the labels of the batch
    written, copied = (measured(method=f"once:{name}", **fields) for name in ("Fills", "Copies"))
    assert written.results == copied.results


# Arguments in the path

ARGUMENTS = {  # a field, an object of the examples, its default in the code, and another value
    "score": ("surprise", "weight=0.0", "weight=-5.0"),
    "population": ("Fifo", "step=1", "step=3"),
    "method": ("Smoothed", "smoothing=0.1", "smoothing=0.4"),
    "model": ("batch_normed", "width=8", "width=16"),
    "dataset": ("squares", "shade=100", "shade=200"),
}


@pytest.mark.parametrize("field", ARGUMENTS)
def test_an_argument_has_the_effect_of_the_same_default_in_the_code(here, field):
    name, default, value = ARGUMENTS[field]
    source = EXAMPLES.read_text()
    assert f"{default})" in source
    Path("otherwise.py").write_text(source.replace(f"{default})", f"{value})"))
    base = {**BASE, "model": "mine:batch_normed"} | ({} if field == "score" else {"population": "reservoir"})

    def results_of(path):
        return ucl.run(Config(**{**base, field: path}), device="cpu", progress=False).results

    with_argument = results_of(f"mine:{name}({value})")
    assert with_argument == results_of(f"otherwise:{name}") != results_of(f"mine:{name}")


def test_each_value_of_an_argument_is_an_experiment_with_its_own_name(cli):
    fields = {**BASE, "dataset": "mine:squares(shade = 200)-lt", "batch_size": 4}
    labels = [f"mine:surprise(weight={weight}) bottom" for weight in (0.5, 2.0)]
    configs = [Config(**fields, score=label.removesuffix(" bottom")) for label in labels]
    assert [config.label for config in configs] == labels
    assert {config.dataset for config in configs} == {"mine:squares(shade=200)-lt"} and configs[0].imbalance == 0.1
    ucl.sweep(configs, store="runs")
    assert all(config in RecordStore("runs") for config in configs)
    assert all(label in cli("results")[1] for label in labels)


# Wrong objects

WRONG = """
import numpy as np
import torch
from torch import nn
from mine import Buffer, Fifo, Grouped, Method

def overwritten(logits_PNC): return logits_PNC.fill_(float("inf"))[0, :, 0]

class Lazy(Buffer): pass
class Rows(Fifo):
    def update(self, model, batch):
        batch.values["loss"] = torch.zeros(3)
        self.store(batch)
class Breaks(Fifo):
    def update(self, model, batch):
        return 1 / 0
class Draws(Fifo):
    def drawn_slots(self, *given):
        return [][0]
class Short(Fifo):
    def __init__(self, size):
        pass

class Vector(Method):
    def update(self, model, batch, buffer):
        self.descend(model, model(batch.images).mean(1))
class Mixed(Method):
    def update(self, model, batch, buffer):
        mixed = 0.3 * batch.images + 0.7 * batch.images.flip(0)
        self.descend(model, nn.functional.cross_entropy(model(mixed), batch.labels))
class Values(Method):
    def update(self, model, batch, buffer):
        batch.values["logits"] = model(batch.images)[:3].detach()
class Forgets(Method): pass

def square(n_classes): return nn.Linear(3, n_classes)
def number(n_classes, channels, image_size): return 3
def frozen(*shape): return Grouped(*shape).requires_grad_(False)
def conv(n_classes, channels, image_size):
    return nn.Sequential(nn.Conv2d(channels, n_classes, 25), nn.AdaptiveAvgPool2d(1), nn.Flatten())
def untracked(n_classes, channels, image_size):
    return nn.Sequential(nn.BatchNorm2d(channels, track_running_stats=False), Grouped(n_classes, channels, image_size))
def across(n_classes, channels, image_size):
    layers = nn.Linear(channels * image_size**2, 8), nn.TransformerEncoderLayer(8, 1, 8), nn.Linear(8, n_classes)
    return nn.Sequential(nn.Flatten(), *layers)  # The images are one sequence.
class Late(Grouped):
    def forward(self, x):
        return super().forward(x)[:, : -1 if self.training else None]
class Trips(Grouped):
    def forward(self, x):
        assert not self.training, "only for tests"
        return super().forward(x)

def argument(root): return np.zeros((40, 28, 28), np.uint8), np.arange(40) % 4
def missing_file(): return open("nowhere.npz")
"""
REFUSED = {
    "score": "overwritten",
    "population": "Vector Lazy Short Rows Breaks Draws",
    "method": "Forgets Values Vector",
    "model": "square number frozen untracked across Late Trips",
    "dataset": "argument missing_file",
}  # names in wrong.py by the field that cannot use them; further scores are in `test_user_objects` and `test_scorers`


@pytest.mark.parametrize(("field", "name"), [(field, name) for field in REFUSED for name in REFUSED[field].split()])
def test_a_wrong_object_is_refused_in_one_line_that_names_it(run, field, name):
    Path("wrong.py").write_text(WRONG)
    population = {"population": "reservoir"} if field != "score" else {}
    answer = run(**{**BASE, **population, field: f"wrong:{name}", "validation": 0, "batch_size": 8})
    assert_refused(answer, f"ucl run: --{field} wrong:{name}: ")
    assert not Path("runs").exists() or not list(Path("runs").glob("*.json"))


@pytest.mark.parametrize(
    ("fields", "reported"),
    [
        (dict(model="wrong:conv", score="mine:atypical"), "--model wrong:conv: "),
        (dict(score="MC"), "--score MC: "),
        (dict(test_batchnorm="memory"), "--test-batchnorm memory: "),
        (dict(method="wrong:Mixed"), "ucl run: images "),
    ],
)
def test_what_does_not_fit_together_is_refused_in_one_line(run, fields, reported):
    Path("wrong.py").write_text(WRONG)
    assert_refused(run(**{**BASE, **fields, "batch_size": 8}), reported)


@pytest.mark.parametrize(
    "fields",
    [
        dict(scoring_batchnorm="train", view_space="normalized", view_draws="batch"),
        dict(score="MC", scoring_batchnorm="train"),
        dict(test_batchnorm="memory+stream", population="reservoir"),
        pytest.param(dict(score="mine:atypical", precision="bfloat16"), marks=needs_bfloat16),
        dict(method="agem"),
    ],
    ids=str,
)
def test_a_users_network_runs_in_every_mode_and_repeats_its_result(here, fields, monkeypatch):
    monkeypatch.setattr(ucl.evaluation.readings, "BATCHES", 3)
    config = Config(**{**BASE, "model": "mine:batch_normed", "readings": True, "imbalance": 0.9, **fields})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = (ucl.run(config, device="cpu", progress=False) for _ in range(2))
    assert first.results == second.results
    assert {"training", "displaced", "memory", "views", "balanced", "published test", "thinned"} <= set(first.readings)


@pytest.mark.parametrize(("fields", "is_warned_of"), [({}, True), ({"population": "reservoir"}, False)])
def test_a_score_that_the_default_memory_of_a_method_does_not_use_is_warned_of(here, fields, is_warned_of):
    config = Config(**{**BASE, "method": "mine:Smoothed", "score": "mine:surprise", **fields})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ucl.run(config, device="cpu", progress=False)
    assert ["mine:surprise" in str(warning.message) for warning in caught] == [True] * is_warned_of


def test_a_memory_that_stays_empty_is_warned_of(measured):
    with pytest.warns(UserWarning, match="empty"):
        assert measured(population="once:Empty", batch_size=8).memory == {}
