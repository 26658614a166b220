"""The user's own functions: no other module replaces those of the working folder, and errors name the function."""

import importlib
import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from conftest import save_bands

import ucl
from ucl import InputError, own
from ucl.own.modules import imported
from ucl.scorers import resolve

ROOT = Path(ucl.__file__).resolve().parents[1]

MODULES = {
    "of_mine.py": """
import helper_of_mine

def spread(logits_PNC):
    return helper_of_mine.top(logits_PNC).std(0)

def of_two(logits_PNC, labels):
    return labels

def per_image(losses_N):
    return losses_N

def by_name(*, logits_PNC):
    return logits_PNC

def optional(logits_PNC, temperature=1.0):
    return logits_PNC.mean((0, 2)) * temperature

class Of:
    def __call__(self, logits_PNC):
        return logits_PNC.mean((0, 2))

of = Of()

def reshapes(logits_PNC):
    n = 7
    return logits_PNC.view(n, n)

number = 3

def network(n_classes, channels, image_size):
    from torch import nn
    layers = nn.Conv2d(channels, 8, 3, 4, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(128, n_classes))

def imports(logits_PNC):
    import statistics
    from late_of_mine import top
    return top(logits_PNC) * statistics.mean([2, 4])
""",
    "late_of_mine.py": "def top(logits_PNC):\n    return logits_PNC.amax(-1)\n",
    "helper_of_mine.py": "def top(logits_PNC):\n    return logits_PNC.softmax(-1).amax(-1)\n",
    "lacks_of_mine.py": "\nimport nothing_of_this_name\n",
    "divides_of_mine.py": "def f(x):\n    return x\n\nf(1 / 0)\n",
    "torn_of_mine.py": "def f(:\n",
    "statistics.py": "def spread(logits_PNC):\n    return logits_PNC\n",
}


@pytest.fixture
def working(tmp_path, monkeypatch):
    """A working folder that is not on the module search path."""
    for name, source in MODULES.items():
        (tmp_path / name).write_text(source)
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.endswith("_of_mine") or name == "of_mine":
            del sys.modules[name]


def test_a_function_is_found_in_the_working_folder_and_the_folder_stays_off_the_path(working):
    before = list(sys.path)
    logits_PNC = torch.randn(12, 3, 5)
    expected = logits_PNC.softmax(-1).amax(-1).std(0)
    assert torch.equal(resolve("of_mine:spread")(logits_PNC), expected)
    assert sys.path == before
    with pytest.raises(ImportError):
        importlib.import_module("lacks_of_mine")
    with pytest.raises(ImportError, match="No module named 'torn_of_mine'"):
        importlib.import_module("torn_of_mine")


def test_an_import_within_a_function_finds_the_working_folder_and_the_folder_stays_off_the_path(working, monkeypatch):
    before, path, logits_PNC = list(sys.path), "of_mine:imports", torch.randn(12, 3, 5)
    monkeypatch.delitem(sys.modules, "statistics", raising=False)  # The installed module is found, not the user's.
    assert torch.equal(own.call("score", path, resolve(path), logits_PNC), logits_PNC.amax(-1) * 3)
    assert sys.path == before


def test_in_a_folder_that_was_removed_a_function_is_still_called(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert own.call("score", "of_mine:spread", abs, -3) == 3


def test_a_path_that_has_the_working_folder_keeps_it(working, monkeypatch):
    monkeypatch.syspath_prepend(working)
    before = list(sys.path)
    resolve("of_mine:spread")
    assert sys.path == before


def test_an_installed_module_goes_before_one_of_the_working_folder_and_the_message_says_so(working):
    assert resolve("statistics:mean").__module__ == "statistics"
    with pytest.raises(InputError) as refusal:
        resolve("statistics:spread")
    assert "statistics has no 'spread'; the installed statistics (" in str(refusal.value)
    assert "hides statistics.py in the working folder: rename that" in str(refusal.value)
    with pytest.raises(InputError, match=r"^score='of_mine:gone': of_mine has no 'gone'; give package.module:function"):
        resolve("of_mine:gone")


def test_a_folder_without_an_init_file_hides_nothing_and_a_similar_name_is_suggested(working):
    (working / "space_of_mine").mkdir()
    shutil.copy("of_mine.py", "space_of_mine/inner_of_mine.py")
    with pytest.raises(InputError) as refusal:
        resolve("space_of_mine.inner_of_mine:spred")
    advice = "did you mean 'spread'? give package.module:function, importable from the working folder"
    assert refusal.value.reason == f"space_of_mine.inner_of_mine has no 'spred'; {advice}, {working}"


def test_a_module_that_other_code_imported_is_executed_again_only_after_its_file_has_changed(working, monkeypatch):
    """Two classes of one name would fail isinstance and pickle, and a user's list would be filled in another module."""
    monkeypatch.syspath_prepend(working)
    source = "log = []\n\ndef spread(logits_PNC: 'torch.Tensor'):\n    log.append(1)\n    return logits_PNC[0, :, 0]\n"
    for future in ("", "from __future__ import annotations\n"):
        Path("watched_of_mine.py").write_text(future + source)
        importlib.invalidate_caches()
        module = importlib.import_module("watched_of_mine")
        log, function = module.log, module.spread
        assert resolve("watched_of_mine:spread") is function
        resolve("watched_of_mine:spread")(torch.zeros(2, 3, 4))
        assert log == [1]
        Path("watched_of_mine.py").write_text(future + source.replace("[0, :, 0]", "[0, :, 1]"))
        assert resolve("watched_of_mine:spread") is not function
        del sys.modules["watched_of_mine"]


CHANGES = {
    "a class": ("class Of:\n    def __call__(self, x):\n        return x + 1\n", "+ 1", "- 1"),
    "a property": ("class Of:\n    @property\n    def one(self):\n        return 1\n", "return 1", "return 2"),
    "a decorated function": ("import torch\n\n@torch.no_grad()\ndef Of(x):\n    return x + 1\n", "+ 1", "- 1"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_module_that_other_code_imported_is_seen(working, monkeypatch, change):
    """Also one of the same size in the same second, after which compiled code of before counts as current."""
    source, before, after = CHANGES[change]
    monkeypatch.syspath_prepend(working)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = Path("edited_of_mine.py")
    file.write_text(source)
    importlib.invalidate_caches()
    first = importlib.import_module("edited_of_mine").Of
    assert imported("score", "edited_of_mine:Of") is first
    for text in (source.replace(before, after), source):
        file.write_text(text)
        os.utime(file, (1_700_000_000, 1_700_000_000))
        found = imported("score", "edited_of_mine:Of")
        assert found is not first and imported("score", "edited_of_mine:Of") is found
        first = found


RENAMED = """
import math
try:
    log
except NameError:
    log = []

class Of:
    def __call__(self, x):
        return x

def spread(x):
    return x

of = Of()
"""


@pytest.mark.parametrize("name", ["Of", "of", "spread"])
def test_a_name_that_a_changed_file_no_longer_has_is_not_found(working, name):
    """Otherwise the old object would run, and the record would have the hash of the new source."""
    Path("edited_of_mine.py").write_text(RENAMED)
    imported("score", f"edited_of_mine:{name}")
    log = sys.modules["edited_of_mine"].log
    Path("edited_of_mine.py").write_text(RENAMED.replace("Of", "Into").replace("of ", "to ").replace("spread", "width"))
    for _ in range(2):
        with pytest.raises(InputError, match=f"edited_of_mine has no '{name}'"):
            imported("score", f"edited_of_mine:{name}")
    assert imported("score", "edited_of_mine:width")(3) == 3
    assert sys.modules["edited_of_mine"].log is log and sys.modules["edited_of_mine"].math


@pytest.mark.parametrize("wrong", ["def half(:\n", "def half(x):\n    return 0\n\n1 / 0\n"])
def test_functions_in_use_are_as_before_after_their_changed_file_fails(working, wrong):
    file = Path("edited_of_mine.py")
    file.write_text("def half(x):\n    return x / 2\n\ndef spread(x):\n    return half(x)\n")
    spread = imported("score", "edited_of_mine:spread")
    file.write_text(wrong)
    for _ in range(2):
        with pytest.raises(InputError, match="importing edited_of_mine raised"):
            imported("score", "edited_of_mine:spread")
        assert spread(4) == 2


@pytest.mark.parametrize("change", CHANGES)
def test_the_hash_of_an_object_without_a_file_covers_what_is_called(monkeypatch, change):
    source, before, after = CHANGES[change]
    hashes = []
    for text in (source, source, source.replace(before, after)):
        module = types.ModuleType("typed_of_mine")
        exec(compile(text, "<prompt>", "exec"), vars(module))
        monkeypatch.setitem(sys.modules, "typed_of_mine", module)
        hashes.append(own.source_hash("typed_of_mine:Of"))
    assert hashes[0] == hashes[1] != hashes[2] and len(hashes[0]) == 16


def test_the_hash_of_an_object_without_a_file_is_the_same_in_every_process():
    code = """
import sys, types
from ucl import own
module = sys.modules["typed"] = types.ModuleType("typed")
text = "def score(x, act=[].append, other=lambda v: v):\\n    return x in {'a', 'b', 'c'}"
exec(text, vars(module))
print(own.source_hash("typed:score"))
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = [sys.executable, "-c", code]
    hashes = {
        subprocess.run(run, env={**env, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True).stdout
        for seed in "012"
    }
    assert len(hashes) == 1 and len(hashes.pop().strip()) == 16


def test_an_installed_function_is_taken_as_it_is():
    assert resolve("torch.nn.functional:relu") is torch.nn.functional.relu


@pytest.mark.parametrize("name", ["spread", "optional", "of", "by_name"])
def test_what_can_be_called_with_logits_alone_is_taken(working, name):
    assert callable(resolve(f"of_mine:{name}"))


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        (
            "of_two",
            "of_two(logits_PNC, labels) can't be called with (logits_PNC): missing a required argument: 'labels'",
        ),
        ("per_image", "per_image(losses_N) has the unknown parameter 'losses_N'; did you mean 'losses'?"),
        ("Of", "Of() can't be called with (logits_PNC): too many positional arguments"),
        ("number", "number is not a function; give a function of (logits_PNC)"),
    ],
)
def test_a_wrong_signature_is_refused_before_anything_runs(working, name, reported):
    with pytest.raises(InputError) as refusal:
        resolve(f"of_mine:{name}")
    assert str(refusal.value).startswith(f"score='of_mine:{name}': {reported}")


def test_it_is_refused_before_the_data_are_looked_for(working, monkeypatch):
    monkeypatch.setattr(ucl.datasets, "load", lambda *_: pytest.fail("data were loaded"))
    with pytest.raises(InputError, match="of_two"):
        ucl.run(ucl.Config(dataset="cifar10", score="of_mine:of_two"), device="cpu")


@pytest.mark.parametrize(
    ("module", "reported"),
    [
        ("lacks_of_mine", "ModuleNotFoundError: No module named 'nothing_of_this_name' (lacks_of_mine.py, line 2)"),
        ("divides_of_mine", "ZeroDivisionError: division by zero (divides_of_mine.py, line 4)"),
        ("torn_of_mine", "SyntaxError: invalid syntax (torn_of_mine.py, line 1)"),
    ],
)
def test_a_module_that_fails_as_it_is_imported_is_named_with_its_line(working, module, reported):
    with pytest.raises(InputError) as refusal:
        resolve(f"{module}:f")
    assert str(refusal.value) == f"score='{module}:f': importing {module} raised {reported}"


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("reshapes", "raised RuntimeError: shape '[7, 7]' is invalid for input of size 24 (of_mine.py, line 27)"),
    ],
)
def test_a_function_that_raises_is_named_with_its_line(working, name, reported):
    path = f"of_mine:{name}"
    function = resolve(path)
    with pytest.raises(InputError) as refusal:
        own.call("score", path, function, torch.zeros(2, 3, 4))
    assert (refusal.value.name, refusal.value.value, refusal.value.reason) == ("score", path, reported)
    assert refusal.value.__cause__ is not None  # a notebook shows the whole traceback


AS_A_SCRIPT = ["-c", "import sys; del sys.path[0]; from ucl.cli.main import main; sys.exit(main())"]


@pytest.mark.parametrize(
    "how, verb", [(["-m", "ucl"], "run"), (AS_A_SCRIPT, "sweep")], ids=["python -m ucl run", "ucl sweep"]
)
def test_files_named_like_installed_modules_are_never_taken_for_them(working, how, verb):
    save_bands(working / "tiny.npz")
    for name in ("random", "torch", "numpy", "tempfile", "platform"):
        (working / f"{name}.py").write_text("open('taken', 'a').write(__name__)\nraise RuntimeError('taken')\n")
    fields = {"dataset": "tiny.npz", "n_tasks": 2, "memory_size": 8, "batch_size": 8}
    own_objects = {"score": "of_mine:spread", "model": "of_mine:network"}
    (working / "mine.json").write_text(json.dumps({**fields, **own_objects}))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONSAFEPATH", None)
    command = [sys.executable, *how, verb, "--config", "mine.json", "--device", "cpu", "--threads", "1"]
    done = subprocess.run(command, cwd=working, env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, "taken" in done.stderr) == (0, False) and not (working / "taken").exists()
    assert verb == "sweep" or done.stderr == ""  # a sweep has a line per run
    assert len(list((working / "runs").glob("*.json"))) == 1


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no PYTHONSAFEPATH")
def test_processes_started_for_a_sweep_do_not_look_in_the_working_folder(working, monkeypatch):
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    look = [sys.executable, "-c", "import of_mine"]
    with own.kept_from_processes():
        assert b"No module named 'of_mine'" in subprocess.run(look, capture_output=True).stderr
    assert subprocess.run(look, capture_output=True).returncode == 0
    assert "PYTHONSAFEPATH" not in os.environ


# What a function asks for by the names of its parameters

KNOWN = ("logits_PNC", "labels_N", "losses")
GIVEN = dict(zip(KNOWN, "abc", strict=True))
ASKING = {
    "any name": (lambda x: x, "a"),
    "its name": (lambda logits_PNC: logits_PNC, "a"),
    "another first": (lambda labels_N: labels_N, "b"),
    "two": (lambda labels_N, logits_PNC: labels_N + logits_PNC, "ba"),
    "any name first": (lambda x, losses: x + losses, "ac"),
    "by name only": (lambda *, losses, logits_PNC: losses + logits_PNC, "ca"),
    "a default": (lambda x, t=2, labels_N=None: x * t + labels_N, "aab"),
    "all positional": (lambda *x: "".join(x), "a"),
}


@pytest.mark.parametrize("how", ASKING)
def test_a_function_gets_what_its_parameters_are_named_after(how):
    function, expected = ASKING[how]
    asking = own.ByName(function, KNOWN)
    asking.check()
    assert asking({name: value for name, value in GIVEN.items() if name in asking.asked}) == expected
    assert asking.asked == {name for name, value in GIVEN.items() if value in expected}


@pytest.mark.parametrize("function", [lambda: 0, lambda x, y: 0, lambda logits_PNC, *, temperature: 0])
def test_a_function_that_asks_for_something_unknown_or_nothing_is_refused(function):
    with pytest.raises(TypeError):
        own.ByName(function, KNOWN).check()


def test_an_error_is_named_after_the_innermost_object(working):
    with pytest.raises(InputError) as refusal, own.blamed("method", "outer:x"), own.blamed("model", "of_mine:y"):
        resolve("of_mine:reshapes")(torch.zeros(2, 3, 4))
    assert (refusal.value.name, refusal.value.value) == ("model", "of_mine:y")
    assert refusal.value.reason.endswith("(of_mine.py, line 27)")
    with pytest.raises(ZeroDivisionError), own.blamed("method", ""):
        _ = 1 / 0
