"""User objects: imported from the working folder, identified by their sources, called, and named in errors."""

import hashlib
import json
import os
import sys
import types
from keyword import iskeyword

import pytest
import torch
from conftest import assert_refused, python
from hypothesis import given
from hypothesis import strategies as st
from made_up import two_tasks

import ucl
from ucl import Config, InputError, user_objects
from ucl.scorers import resolve

MODULES = {
    "mine.py": """
import helper
from package_of_mine import nested
import numpy as np

def spread(logits_PNC):
    return helper.top(logits_PNC).std(0) * nested.value

def two_inputs(logits_PNC, labels):
    return labels

def per_image(losses_N):
    return losses_N

def optional(logits_PNC, temperature=1.0):
    return logits_PNC.mean((0, 2)) * temperature

class Mean:
    def __call__(self, logits_PNC):
        return logits_PNC.mean((0, 2))

number = 3

def reshapes(logits_PNC):
    n = 7
    return logits_PNC.view(n, n)

def later(logits_PNC):
    import statistics
    from mpl_toolkits import mplot3d  # an installed package without an __init__.py
    from late import top
    return top(logits_PNC) * statistics.mean([2, 4])

def network(n_classes, channels, image_size):
    from torch import nn
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * channels, n_classes))
""",
    "helper.py": "def top(logits_PNC):\n    return logits_PNC.softmax(-1).amax(-1)\n",
    "late.py": "def top(logits_PNC):\n    return logits_PNC.amax(-1)\n",
    "alone.py": "def score(logits_PNC):\n    return logits_PNC[0, :, 0]\n",
    "package_of_mine/nested.py": "from . import deeper\nfrom .deeper import value\n",
    "package_of_mine/deeper.py": "value = 1\n",
    "divides.py": "def f(x):\n    return x\n\nf(1 / 0)\n",
    "torn.py": "def f(:\n",
    "statistics.py": "def spread(logits_PNC):\n    return logits_PNC\n",
}


def write_modules(folder):
    for name, source in MODULES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source)


@pytest.fixture
def working(here):
    """The working folder of `here` with the modules in it."""
    write_modules(here)
    return here


def hash_of(*names):
    return user_objects.source_hash([f"mine:{name}" for name in names or ("spread",)])


# Finding


def test_the_working_folder_is_searched_last(working):
    logits_PNC = torch.randn(12, 3, 5)
    assert torch.equal(resolve("mine:spread")(logits_PNC), logits_PNC.softmax(-1).amax(-1).std(0))
    assert sys.path.count(str(working)) == 1 and sys.path[-1] == str(working)
    assert torch.equal(resolve("mine:later")(logits_PNC), logits_PNC.amax(-1) * 3)
    assert resolve("torch.nn.functional:relu") is torch.nn.functional.relu


def test_files_named_like_installed_modules_are_never_taken_for_them(working):
    for name in ("random", "torch", "numpy", "tempfile", "platform"):
        (working / f"{name}.py").write_text("open('taken', 'a').write(__name__)\nraise RuntimeError('taken')\n")
    fields = {"dataset": "tiny.npz", "n_tasks": 2, "memory_size": 8, "batch_size": 8}
    (working / "mine.json").write_text(json.dumps({**fields, "score": "mine:spread", "model": "mine:network"}))
    command = ["-m", "ucl", "run", "--config", "mine.json", "--device", "cpu", "--threads", "1"]
    python(*command, environment={"PYTHONSAFEPATH": ""}, cwd=working, timeout=120)
    assert not (working / "taken").exists()
    assert len(list((working / "runs").glob("*.json"))) == 1


def test_reading_a_config_or_records_imports_nothing(working):
    config = Config.from_json(Config(score="alone:score", dataset="bloodcell").to_json())
    ucl.RecordStore("runs").save(two_tasks(config))
    assert len(ucl.results(ucl.load_records("runs"))) == 1 and "alone" not in sys.modules


# The version of the sources


def test_the_hash_covers_the_modules_that_a_module_imports_and_nothing_else(working):
    resolve("mine:spread")
    files = {"mine", "helper", "late", "package_of_mine.nested", "package_of_mine.deeper"}
    assert set(user_objects.source_files("mine")) == files
    assert user_objects.source_hash(["torch:relu", "ucl.scorers:uniform", "nowhere.at.all:score"]) == ""


@pytest.mark.parametrize("file", ["mine.py", "helper.py", "late.py", "package_of_mine/deeper.py"])
def test_a_change_of_any_imported_module_is_another_version(working, file):
    before = hash_of()
    (working / file).write_text(MODULES[file] + "# changed\n")
    assert hash_of() != before
    (working / file).write_text(MODULES[file])
    (working / "alone.py").write_text("changed = 1\n")
    assert hash_of() == before


def test_the_hash_is_the_same_in_every_folder_and_for_all_objects_of_a_module(working, monkeypatch):
    before = hash_of()
    assert hash_of("spread", "Mean", "optional(temperature=2)") == before and len(before) == 16
    sys.path.remove(str(working))
    user_objects.forget(user_objects.source_files("mine"))
    write_modules(working / "moved")
    monkeypatch.chdir("moved")
    assert hash_of() == before and sys.modules["mine"].__file__.startswith(str(working / "moved"))


def test_a_module_without_imports_has_the_hash_of_its_file(working):
    """The rule of records of earlier versions, which therefore still count."""
    expected = hashlib.sha256(MODULES["alone.py"].encode()).hexdigest()[:16]
    assert user_objects.source_hash(["alone:score"]) == expected


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [("mine.py", "std(0)", "sum(0)"), ("helper.py", "amax(-1)", "amin(-1)"), ("package_of_mine/deeper.py", "1", "2")],
)
@pytest.mark.parametrize("imported_by", ["the package", "other code"])
def test_a_changed_module_is_imported_again(working, monkeypatch, file, old, new, imported_by):
    """Also after a change of the same size in the same second, for which compiled code counts as current."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    if imported_by == "other code":
        monkeypatch.syspath_prepend(working)
        before = __import__("mine").spread
        monkeypatch.setattr(user_objects, "_STARTED", 0)
    else:
        before = resolve("mine:spread")
        assert resolve("mine:spread") is before
    source, logits_PNC = MODULES[file], torch.randn(12, 3, 5)
    expected = before(logits_PNC)
    for text in (source.replace(old, new), source):
        (working / file).write_text(text)
        os.utime(working / file, (1_700_000_000, 1_700_000_000))
        current = resolve("mine:spread")
        assert current is not before and torch.equal(current(logits_PNC), expected) == (text == source)
        before = current


def test_an_object_without_a_file_is_refused(monkeypatch):
    module = types.ModuleType("__main__")  # of a notebook
    module.score = lambda logits_PNC: logits_PNC.amax((0, 2))
    monkeypatch.setitem(sys.modules, "__main__", module)
    with pytest.raises(InputError):
        resolve("__main__:score")


LITERALS = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text() | st.booleans() | st.none()


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True), LITERALS, max_size=4))
def test_the_arguments_are_read_as_they_were_written_in_any_order(arguments):
    arguments = {name: value for name, value in arguments.items() if not iskeyword(name)}
    texts = [f"{name} =  {value!r}" for name, value in arguments.items()]
    paths = [f"of.mine:f( {','.join(order)} )" for order in (texts, texts[::-1])]
    first, second = (user_objects.parsed("score", path) for path in paths)
    assert first == second == ("of.mine", "f", arguments)
    spelled = str(first)
    assert user_objects.parsed("score", spelled) == first and spelled.startswith("of.mine:f")
    keys = {Config(score=path, seed=1).key for path in (*paths, spelled)}
    assert len(keys) == 1 and Config(score=paths[0], seed=1).score == spelled


# Refusals: exit code 2 and one line; (path of a score, a part of the line that names the cause)

REFUSED = {
    "mine:two_inputs": "'labels'",
    "mine:per_image": "mine:per_image",  # its first parameter is not `losses`, so it gets the logits
    "mine:Mean": "too many positional arguments",
    "mine:number": "not a callable",
    ":": "",
    "quux": "",
    "nowhere.at.all:score": "",
    "mine:gone": "'gone'",
    "mine.py:spread": "mine.py",
    "statistics:spread": "of Python itself",  # also if the working folder has a statistics.py
    "torch:relu": "signature",
    "divides:f": "divides.py, line 4",
    "torn:f": "torn.py, line 1",
    "mine:optional(2)": "mine:optional(power=2)",
    "mine:optional(temperature=two)": "by name",
    "mine:optional(temperature=2": "by name",
    "mine:optional(temperature=2)(3)": "by name",
    "mine:optional(temprature=2)": "'temprature'",
    "mine:reshapes": "mine.py, line 26",
}


@pytest.mark.parametrize("path", REFUSED)
def test_a_score_that_cannot_be_used_is_refused_in_one_line(working, path, cli):
    answer = cli("run", "--dataset", "tiny.npz", "--n-tasks", 2, "--memory-size", 8, "--batch-size", 8, "--score", path)
    assert_refused(answer, f"score {path}")
    assert REFUSED[path] in answer[2]


def test_an_error_is_attributed_to_the_innermost_object(working):
    outer = user_objects.attribute_errors_to("method", "outer:x")
    inner = user_objects.attribute_errors_to("model", "mine:reshapes", "logits")
    with pytest.raises(InputError) as refusal, outer, inner:
        resolve("mine:reshapes")(torch.zeros(2, 3, 4))
    assert (refusal.value.name, refusal.value.value) == ("model", "mine:reshapes")
    assert "(mine.py, line 26) for logits" in refusal.value.reason and refusal.value.__cause__ is not None
    with pytest.raises(ZeroDivisionError), user_objects.attribute_errors_to("method", ""):
        _ = 1 / 0


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
    "any name and the first": (lambda x, logits_PNC: x + logits_PNC, "aa"),
    "a default": (lambda x, t=2, labels_N=None: x * t + labels_N, "aab"),
    "all positional": (lambda *x: "".join(x), "a"),
}


@pytest.mark.parametrize("how", ASKING)
def test_a_function_gets_what_its_parameters_are_named_after(how):
    function, expected = ASKING[how]
    asking = user_objects.ByName(function, KNOWN)
    assert asking({name: value for name, value in GIVEN.items() if name in asking.asked}) == expected
    assert asking.asked == {name for name, value in GIVEN.items() if value in expected}
