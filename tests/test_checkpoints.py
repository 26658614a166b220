"""Checkpoints: a stopped run continues after its last complete task, to the same record, or starts again."""

import io
import itertools
import json
import os
import random
import time
import zipfile
from functools import cache
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import run, save_bands
from own_objects import Counting, Fifo, Growing, Slower, Smoothed, growing

import ucl
from ucl import Config, RecordStore, checkpoints
from ucl.buffers import Buffer, UncertaintyBuffer
from ucl.buffers.selection import bottom_k
from ucl.catalogue import METHODS, POLICIES
from ucl.checkpoints import Checkpoint
from ucl.evaluation import Evaluation
from ucl.evidence.paper import PUBLISHED_CODE
from ucl.methods import ExperienceReplay, Method
from ucl.scorers import RandomScores

pytestmark = pytest.mark.usefixtures("small_networks", "few_batches")
VARIANTS = {name: dict(method=name) for name in METHODS} | {
    "BI, views of the reference implementation, readings": dict(**PUBLISHED_CODE, readings=True),
    "EN, refresh=2, gradual": dict(score="EN", refresh=2, selection="step", boundaries="gradual"),
    "MC": dict(score="MC"),
    "controls": dict(score="EN", n_draws=2, smoothing=0.5, updates=2, view_draws="fixed", model="slim_resnet18"),
    "user's score": dict(score="ucl.scorers:uniform"),
    "ER, all readings": dict(population="reservoir", dropout=0.3, imbalance=0.5, readings=True, batch_size=2),
    "gradual, BI, anytime": dict(boundaries="gradual", evaluate_every=1),
    "blurry, CBR": dict(boundaries="blurry", blur=0.5, population="class-balanced", dropout=0.3, evaluate_every=2),
    "MIR, augmented": dict(method="mir", augmentation="randaugment", updates=2),
    "DER++, Rainbow": dict(method="derpp", population="rainbow"),
    **{policy: dict(population=policy, model="own_objects:batch_normed") for policy in POLICIES},
}


class Killed(BaseException):
    """An exception that is not an Exception, so that no error handling catches it."""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Nine batches of five in three tasks; the memory is full after two."""
    path = save_bands(tmp_path_factory.mktemp("data") / "bands.npz", n_classes=6, test=18, val=12)
    return Config(dataset=str(path), n_tasks=3, memory_size=9, batch_size=5, lr=0.05, seed=2, validation=0.0)


undisturbed = cache(run)


@pytest.fixture
def er(base):
    return base.replace(population="reservoir")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint.pt"


@pytest.fixture
def moment(monkeypatch):
    """Is called at each moment of a run: steps, updates, tests, and three moments of writing a checkpoint."""
    moment = Mock()

    def before(owner, name):
        original = getattr(owner, name)

        def call(*arguments, **named):
            moment()
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    for owner in (*Method.__subclasses__(), *Buffer.__subclasses__()):
        before(owner, "learn" if issubclass(owner, Method) else "update")
    for owner, name in ((Evaluation, "add"), (os, "fsync"), (os, "replace"), (torch, "save")):
        before(owner, name)
    return moment


def at_moment(n):
    """What a moment does that kills the run when it comes for the n-th time."""
    return itertools.chain([None] * (n - 1), [Killed], itertools.repeat(None))


def stop(config, path, **folders):
    """Run until the checkpoint of the next task is written."""
    after_task = Checkpoint.after_task

    def save_and_stop(self, task):
        after_task(self, task)
        if path.exists() and task.number < 2:
            raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Checkpoint, "after_task", save_and_stop)
        run(config, checkpoint=path, **folders)


def stopped_after_each_task(config, path):
    """Run until the end of each task, then to the end."""
    for seed in range(2):
        torch.manual_seed(seed)  # The result must not depend on the caller's draws.
        stop(config, path)
    return run(config, checkpoint=path)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_that_stops_after_each_task_ends_as_if_it_had_never_stopped(base, variant, path):
    config = base.replace(**VARIANTS[variant])
    whole, again = run(config), stopped_after_each_task(config, path)
    assert json.dumps(again.results) == json.dumps(whole.results)
    assert again.timing["batches"] == whole.timing["batches"]


def test_a_run_killed_at_random_moments_ends_as_if_it_had_never_stopped(base, tmp_path, path, moment):
    config = base.replace(**VARIANTS["gradual, BI, anytime"])
    whole = run(config, checkpoint=tmp_path / "another.pt")
    draw, n_moments, kills, continued = random.Random(1), moment.call_count, 0, 0
    while kills < 6:
        moment.side_effect = at_moment(draw.randint(1, 3 * n_moments // 4))
        continued += path.exists()
        try:
            again = run(config, checkpoint=path)
        except Killed:
            kills += 1
        else:
            assert again.results == whole.results
            path.unlink()
    moment.side_effect = None
    again = run(config, checkpoint=path)
    assert json.dumps(again.results) == json.dumps(whole.results)
    assert continued > 1


# Users' objects


class Resumed:
    """For a class whose state is that of its base class."""

    def state_dict(self):
        return super().state_dict()

    def load_state_dict(self, state):
        super().load_state_dict(state)


class Annealed(Resumed, UncertaintyBuffer):
    """Changes attributes of its base class."""

    def __init__(self, size, image_shape, device, seed):
        super().__init__(size, image_shape, device, seed, scorer=RandomScores(seed), selection=bottom_k)

    def update(self, model, batch):
        super().update(model, batch)
        self.refresh, self.smoothing = 0.9 * self.refresh, 0.8 * self.smoothing


class WithoutSuper(Counting):
    """Leaves the state of its base class to the checkpoint."""

    def state_dict(self):
        return {"seen": sorted(self.seen), "noise": self.noise.bit_generator.state}

    def load_state_dict(self, state):
        self.seen, self.noise.bit_generator.state = set(state["seen"]), state["noise"]


class Slowed(Resumed, Slower):
    pass


class Counts(torch.nn.Module):
    """A network that counts its steps in a buffer that is not persistent."""

    def __init__(self, n_classes, channels, image_size):
        super().__init__()
        self.head = torch.nn.Linear(channels * image_size**2, n_classes)
        self.register_buffer("steps", torch.zeros(()), persistent=False)

    def forward(self, x):
        if self.training:
            self.steps += 1
        return self.head(x.flatten(1)) * (1 + self.steps / 10)


LIGHT = dict(model="own_objects:batch_normed")  # a network that takes no time
USERS_OBJECTS = {
    "attributes": dict(population="own_objects:Counting", method=f"{__name__}:Slowed"),
    "attributes, without super()": dict(population=f"{__name__}:WithoutSuper"),
    "attributes of the base class": dict(population=f"{__name__}:Annealed"),
    "score": dict(score="own_objects:growing"),
    "buffer of a network": dict(model=f"{__name__}:Counts", population="reservoir"),
}


@pytest.mark.parametrize("variant", USERS_OBJECTS)
def test_a_stopped_run_with_a_users_state_ends_as_if_it_had_never_stopped(base, variant, path):
    config = base.replace(**LIGHT | USERS_OBJECTS[variant])
    growing.calls = 0
    whole = run(config)
    growing.calls = 5  # A new process starts with 0; the checkpoint knows better.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Growing, "calls", 0)
        del growing.calls
        assert stopped_after_each_task(config, path).results == whole.results


class Hidden(Fifo):
    """Replaces slots by a count that is in no `state_dict`."""

    count = 0

    def update(self, model, batch):
        for i in range(self.store(batch), len(batch)):
            self.count += 1
            self.replace([self.count % self.size], batch, [i])
        self.n_seen += len(batch)


class HalfSaved(Hidden):
    """Saves its count and does not load it."""

    def state_dict(self):
        return {**super().state_dict(), "count": self.count}


class Array(Hidden):
    """Saves an object that `torch.load` does not read."""

    def state_dict(self):
        return {**super().state_dict(), "count": np.array([self.count])}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.count = int(state["count"][0])


class Rolls(Smoothed):
    """Replaces its augmentation during the run."""

    def update(self, model, batch, buffer):
        super().update(model, batch, buffer)
        self.augment = lambda images: images.roll(1, -1)


def counted(logits_PNC):
    """A function with an attribute."""
    counted.calls += 1
    return logits_PNC.mean((0, 2))


counted.calls = 0


class Tracker:
    """Its method is a score with a hidden state."""

    def score(self, logits_PNC):
        self.calls = 1
        return logits_PNC.mean((0, 2))


class Powered(Growing):
    """Its `state_dict` is out of reach in a path with arguments."""

    def __call__(self, logits_PNC, power=1):
        return super().__call__(logits_PNC) ** power


tracked, powered = Tracker().score, Powered()
HIDDEN = {
    "Hidden": dict(population=f"{__name__}:Hidden"),
    "HalfSaved": dict(population=f"{__name__}:HalfSaved"),
    "Rolls": dict(method=f"{__name__}:Rolls"),
    "score function": dict(score=f"{__name__}:counted"),
    "score method": dict(score=f"{__name__}:tracked"),
    "score Powered": dict(score=f"{__name__}:powered(power=3)"),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_run_with_hidden_state_starts_again_and_says_so(base, name, path, caplog):
    config = base.replace(**LIGHT | HIDDEN[name])
    with caplog.at_level("INFO", "ucl"):
        whole = run(config, checkpoint=path)
    assert [name in message for message in caplog.messages] == [True] and not path.exists()
    assert run(config).results == whole.results


def test_a_run_starts_again_with_a_warning_if_its_state_is_not_plain(base, path):
    with pytest.warns(UserWarning, match="state_dict") as reported:
        run(base.replace(**LIGHT, population=f"{__name__}:Array"), checkpoint=path)
    assert len(reported) == 1 and not path.exists()


# What a checkpoint is


@pytest.fixture
def stopped(er, path):
    """The checkpoint of a run that was stopped after its first task."""
    stop(er, path)
    return path


def test_what_was_learnt_is_not_learnt_again_and_its_time_counts(er, path, moment, caplog, monkeypatch):
    """Also after a commit that changes no file of the package."""
    learn = ExperienceReplay.learn
    with monkeypatch.context() as patch:
        patch.setattr(ExperienceReplay, "learn", lambda *given: time.sleep(0.05) or learn(*given))
        stop(er, path)
    moment.reset_mock()
    monkeypatch.setattr(ucl.machine.hardware, "commit", lambda: "f00")
    with caplog.at_level("INFO", "ucl"):
        again = run(er, checkpoint=path)
    assert len(caplog.messages) == 1 and again.timing["batches"] == 9
    assert moment.call_count == 2 * 6 + 2 + 3  # Two tasks of three steps and updates, two tests, one checkpoint.
    assert again.timing["training"] > 3 * 0.05  # The time of three slow steps was retained.
    assert sum(again.timing[part] for part in ("training", "memory", "evaluation")) <= again.timing["total"] + 0.002
    assert again.results == undisturbed(er).results and again.environment["commit"] == "f00"


def test_a_checkpoint_holds_plain_values_that_torch_loads_without_executing_anything(stopped):
    content = torch.load(stopped, weights_only=True)
    parts = {"model", "buffer", "method", "generators", "tests", "anytime", "clock"}
    assert content["state"].keys() == {"tasks learnt", *parts}
    assert content["state"]["buffer"][0]["images"].dtype == torch.uint8


CHANGES = {
    "torch": lambda patch, config: patch.setattr(torch, "__version__", "1.13.0"),
    "source of ucl": lambda patch, config: patch.setattr("ucl.experiment.package_hash", lambda: "0123"),
    "source": lambda patch, config: patch.setattr("ucl.user_objects.source_hash", lambda paths: "0123"),
    "threads": lambda patch, config: patch.setattr(torch, "get_num_threads", lambda: 77),
    "data": lambda patch, config: patch.setattr(ucl.datasets.ImageDataset, "fingerprint", "0123"),
    "experiment": lambda patch, config: config.replace(lr=0.06),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_checkpoint_of_another_run_is_ignored_with_a_line_that_says_what_differs(er, change, stopped):
    with pytest.MonkeyPatch.context() as patch, pytest.warns(UserWarning) as reported:
        config = CHANGES[change](patch, er) or er
        record = run(config, checkpoint=stopped)
    (line,) = {str(warning.message) for warning in reported}
    assert str(stopped) in line and f"({change} " in line and "\n" not in line
    if config == er and change != "threads":  # Results depend on the number of threads.
        assert record.results == undisturbed(er).results


DAMAGES = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1000]),
    "other state": lambda path: torch.save({"x": 1}, path),
    "folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_ignored_with_a_line(er, damage, stopped):
    DAMAGES[damage](stopped)
    with pytest.warns(UserWarning) as reported:
        record = run(er, checkpoint=stopped)
    lines = [str(warning.message) for warning in reported]  # In place of a folder, no checkpoint can be written either.
    assert (len(lines) == 1) == (damage != "folder") and str(stopped) in lines[0] and "\n" not in lines[0]
    assert record.results == undisturbed(er).results


@pytest.mark.filterwarnings("ignore")
def test_no_bit_of_a_checkpoint_can_change_a_result_in_silence(stopped):
    """A damaged file is either read as it was written or ignored."""
    whole, draw = stopped.read_bytes(), random.Random(1)
    identity = torch.load(stopped, weights_only=True)["identity"]

    def content():
        """The state in the file as bytes; None if it is ignored."""
        state, data = checkpoints.read(stopped, identity, torch.device("cpu")), io.BytesIO()
        torch.save(state, data)
        return state and data.getvalue()

    as_written = content()
    with zipfile.ZipFile(stopped) as archive:
        directory = archive.start_dir
    for n in range(60):
        flipped = bytearray(whole)
        at = draw.randrange(directory, len(whole)) if n % 2 else draw.randrange(len(whole))
        flipped[at] ^= 1 << draw.randrange(8)
        stopped.write_bytes(flipped)
        assert content() in (None, as_written)


def test_a_checkpoint_that_can_not_be_written_is_a_warning_and_the_run_continues(er, tmp_path, path, monkeypatch):
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.warns(UserWarning, match="No space left on device"):
        record = run(er, checkpoint=path)
    assert record.results == undisturbed(er).results
    assert list(tmp_path.iterdir()) == []


def test_the_command_continues_a_stopped_run_and_removes_its_checkpoint(er, tmp_path, moment, cli):
    store, file = tmp_path / "runs", tmp_path / "run.json"
    file.write_text(er.to_json())
    arguments = ["run", "--config", file, "--store", store, "--device", "cpu"]
    moment.side_effect = at_moment(20)
    with pytest.raises(Killed):
        cli(*arguments)
    assert checkpoints.path_of(store, er).exists()
    moment.side_effect = None
    moment.reset_mock()
    assert cli(*arguments)[0] == 0
    assert moment.call_count < 20
    assert RecordStore(store).lookup(er).record.results == undisturbed(er).results
    assert [name for name in os.listdir(store) if name.startswith(".checkpoint")] == []
