"""Fixtures that several test files share: one thread, small networks, and a data set learnt in a second.

The fixtures import torch and the networks: the process that only distributes the tests needs neither.
"""

import copy
import gc
import os
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import ucl
from ucl import Config, InputError, user_objects


def __getattr__(name):
    """`needs_bfloat16`, the mark of tests that need convolutions in bfloat16; it is made on use, as it needs torch."""
    if name != "needs_bfloat16":
        raise AttributeError(name)
    from ucl.machine.hardware import has_bfloat16

    return pytest.mark.skipif(not has_bfloat16(), reason="this processor has no convolutions in bfloat16")


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Three workers of the suite for two cores: tests that wait for a process, or for its end, leave a core idle."""
    cores = yield
    return cores + (cores + 1) // 2


def pytest_collection_finish():
    """Imported modules and collected tests stay until the end; garbage collection no longer looks at them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """A result repeats bit for bit only with the same number of threads."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def set_threads(one_thread):
    """Sets the number of threads for the rest of a test."""
    import torch

    yield torch.set_num_threads
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_module_of_another_test():
    """After a test, forget the modules of a user: the next test has others of the same names in another folder."""
    folders = sys.path[:]
    yield
    sys.path[:] = folders
    for name in list(user_objects._imported):
        user_objects.forget(user_objects.source_files(name))
        del user_objects._imported[name]


@pytest.fixture(autouse=True)
def no_open_figure():
    """Close all figures, so that no test sees the figures of another."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


TWO_STAGES = ((1, 2), (8, 4))  # of four: half as many layers, of the same kinds, strides and features


@pytest.fixture(scope="module")
def small_networks():
    """Within a module, networks with two stages and 8 instead of 20 filters at the start, also in its fixtures."""
    from ucl.models import slim_resnet

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slim_resnet, "_STAGES", TWO_STAGES)
        for name, model in list(slim_resnet.MODELS.items()):
            patch.setitem(slim_resnet.MODELS, name, partial(model, width=8))
        yield


@pytest.fixture
def few_batches(monkeypatch):
    """Estimates from three batches test the code as well as those from 25, and three dropout passes as well as 20."""
    monkeypatch.setattr("ucl.evaluation.readings.BATCHES", 3)
    for module in ("assembly", "evaluation.accuracy", "evaluation.readings"):
        monkeypatch.setattr(f"ucl.{module}.DROPOUT_PASSES", 3)


def bands(n, n_classes=4, noise=100, shade=150):
    """Noisy grey squares (n, 28, 28) whose brighter band shows the class, and labels that cycle through the classes."""
    labels, height = np.arange(n) % n_classes, 28 // n_classes
    images = np.random.default_rng(n).integers(0, noise, (n, 28, 28))
    for image, label in zip(images, labels, strict=True):
        image[height * label : height * (label + 1)] += shade
    return images.astype(np.uint8), labels


def save_bands(path, n_classes=4, noise=100, shade=150, **sizes):
    """Write such squares as an .npz in MedMNIST's layout, by default 48 for training and 24 tests; returns the path."""
    arrays = {}
    for split, n in {"train": 48, "test": 24, **sizes}.items():
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = bands(n, n_classes, noise, shade)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


def save_folder(root, images, labels):
    """Write the images as <label>/<number>.png, with the number of an image among all."""
    from PIL import Image

    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        (root / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(root / str(label) / f"{number:02d}.png")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with a tiny data set in it, which is not on the module path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UCL_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    save_bands(tmp_path / "tiny.npz")
    return tmp_path


@pytest.fixture
def cli(capsys):
    """The command in this process: exit code, stdout and stderr."""
    from ucl.cli.main import main

    def call(*arguments):
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return call


def run(config, **options):
    """The record of a run on the CPU, without a progress bar."""
    return ucl.run(config, device="cpu", progress=False, **options)


def parts(config, device="cpu", graphs=None):
    """The parts of a run before its first batch: stream, network, memory and method."""
    from ucl.assembly import assemble, datasets

    return assemble(config, datasets.load(config.dataset), device, graphs)


def learn(tasks, model, buffer, method):
    """The loop of a run over these tasks, without its tests."""
    for batch in (batch for task in tasks for batch in task):
        method.learn(model, batch, buffer)
        if buffer is not None:
            buffer.update(model, batch)


def python(*words, environment=None, **options):
    """The output of a fresh interpreter that imports this tree and has to end with exit code 0."""
    root = str(Path(__file__).resolve().parents[1])
    env = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", **(environment or {})}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=env, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(folder):
    """The contents of all files in a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def refused(name, value=None):
    """Check that the block ends with an `InputError` of one line that names this argument, and this value if given."""
    with pytest.raises(InputError) as refusal:
        yield refusal
    assert refusal.value.name == name and value in (None, refusal.value.value) and "\n" not in str(refusal.value)


@contextmanager
def unchanged(model):
    """Check that the block leaves weights, statistics and modes of a network and torch's global draws as they were."""
    import torch

    def state():
        return copy.deepcopy(model.state_dict()), [layer.training for layer in model.modules()], torch.get_rng_state()

    before = state()
    yield
    torch.testing.assert_close(state(), before, rtol=0, atol=0, equal_nan=True)


def assert_refused(answer, named):
    """Check that a command ended with exit code 2 and one line, which names something."""
    code, out, err = answer
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("ucl") and named in err


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A run of two tasks with a random memory; it takes a second."""
    path = save_bands(tmp_path_factory.mktemp("data") / "tiny.npz")
    return Config(dataset=str(path), n_tasks=2, memory_size=8, population="reservoir", precision="float32")
