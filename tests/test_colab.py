"""Google Colab, without it: what the set-up cell does there and here, which notebooks have it, what Colab lacks."""

import io
import json
import re
import shutil
import subprocess
import sys
import types
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from test_packaging import dependencies, project

from ucl.errors import InputError
from ucl.reproduction import colab

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
KEPT = ("torch", "torchvision", "numpy", "jupyter-server")


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def address():
    """What the committed set-up cell has for a repository: empty until the project is published."""
    return re.search(r'^REPOSITORY = "(.*?)"', "".join(cells(NOTEBOOKS[0])[1]["source"]), re.M).group(1)


def archive(*names):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened:
        for name in names:
            opened.writestr(name, "")
    return file.getvalue()


PROJECT = archive("pyproject.toml", "ucl/__init__.py", "ucl/colab.py", "notebooks/claims.ipynb")


# The cell


@pytest.fixture
def on_colab(monkeypatch, tmp_path):
    """Runs the set-up cell as on Colab, with a folder for /content; returns the commands it gave."""
    commands = []

    def start(command, check):
        commands.append(command)
        if command[0] == "git":
            (tmp_path / "ucl" / "notebooks").mkdir(parents=True)

    def run(repository="", uploaded=None):
        module = types.ModuleType("google.colab")
        module.files = types.SimpleNamespace(upload=lambda: uploaded)
        monkeypatch.setitem(sys.modules, "google", types.ModuleType("google"))
        monkeypatch.setitem(sys.modules, "google.colab", module)
        commands.clear()
        exec(colab.setup_source(repository).replace("/content", tmp_path.as_posix()), {})
        return commands

    monkeypatch.setattr(subprocess, "run", start)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    return run


def assert_installed(pip, folder):
    pins, project = str(folder / "pins.txt"), str(folder / "ucl")
    assert pip == [sys.executable, "-m", "pip", "install", "-q", "-c", pins, "-e", project]
    assert Path(pins).read_text().split() == [f"{name}=={version(name)}" for name in KEPT]
    assert sys.path[0] == project and Path.cwd() == folder / "ucl" / "notebooks"


def test_with_a_repository_the_project_is_cloned_and_installed_beside_what_is_there(on_colab, tmp_path):
    clone, pip = on_colab("someone/some.project")
    address = "https://github.com/someone/some.project"
    assert clone == ["git", "clone", "--depth", "1", address, str(tmp_path / "ucl")]
    assert_installed(pip, tmp_path)


def test_without_one_the_archive_is_asked_for_and_unpacked(on_colab, tmp_path):
    (pip,) = on_colab(uploaded={"ucl (1).zip": PROJECT})
    assert (tmp_path / "ucl" / "ucl" / "colab.py").is_file()
    assert_installed(pip, tmp_path)


@pytest.mark.parametrize("repository", ["", "someone/project"])
def test_a_project_that_is_there_is_used_as_it_is(on_colab, tmp_path, repository):
    (tmp_path / "ucl" / "notebooks").mkdir(parents=True)
    (pip,) = on_colab(repository, uploaded=None)
    assert_installed(pip, tmp_path)


@pytest.mark.parametrize(
    "uploaded",
    [{}, {"ucl.zip": b"no archive"}, {"other.zip": archive("README.md")}, {"ucl.zip": PROJECT[:-30]}],
    ids=["nothing", "no zip", "another project", "cut off"],
)
def test_what_is_no_archive_of_the_project_is_refused_in_one_line(on_colab, tmp_path, uploaded):
    with pytest.raises(ValueError, match=r"^no archive of the project; make it by: git archive .* HEAD$"):
        on_colab(uploaded=uploaded)
    assert list(tmp_path.iterdir()) == []


def test_elsewhere_the_cell_does_nothing(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    path, modules, names = [*sys.path], {*sys.modules}, {}
    exec(colab.setup_source(), names)
    assert names.keys() - {"__builtins__"} == {"sys", "REPOSITORY"}
    assert sys.path == path and {*sys.modules} == modules
    assert Path.cwd() == tmp_path and list(tmp_path.iterdir()) == []


# The notebooks


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_has_the_cell_before_its_other_code(path):
    title, setup, parameters, *_ = cells(path)
    assert title["cell_type"] == "markdown"
    assert "".join(setup["source"]) == colab.setup_source(address()) and setup["metadata"] == {"tags": [colab.TAG]}
    assert "parameters" in parameters["metadata"].get("tags", [])


@pytest.fixture
def checkout(tmp_path):
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", ignore=shutil.ignore_patterns(".*"))
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


def contents(folder):
    return {path.name: path.read_bytes() for path in [*(folder / "notebooks").iterdir(), folder / "README.md"]}


def test_the_committed_files_are_as_they_are_written(checkout):
    colab.write(checkout, address())
    committed = {path.name: path.read_bytes() for path in [*NOTEBOOKS, ROOT / "README.md"]}
    assert [name for name, text in contents(checkout).items() if text != committed[name]] == [], "make badges"


def test_badges_come_once_open_their_notebook_and_go_again(checkout):
    colab.write(checkout)
    bare = contents(checkout)
    assert not any(b"Open in Colab" in text for text in bare.values())
    for repository in ("first/name", "someone/project", "someone/project"):
        colab.write(checkout, repository)
    for name, text in contents(checkout).items():
        notebook = "00_quickstart.ipynb" if name == "README.md" else name
        link = f"(https://colab.research.google.com/github/someone/project/blob/main/notebooks/{notebook})"
        assert text.count(b"Open in Colab") == 1 and link.encode() in text and b"first/name" not in text
    for path in (checkout / "notebooks").iterdir():
        title, blank, badge, blank_too, *_ = "".join(cells(path)[0]["source"]).splitlines()
        assert title.startswith("# ") and badge.startswith("[![Open in Colab](https://") and blank == blank_too == ""
    colab.write(checkout)
    assert contents(checkout) == bare


@pytest.mark.parametrize("repository", ["name", "https://github.com/a/b", 'a/b"', "a/b/c", "a/b\n"])
def test_what_is_no_repository_is_refused_before_anything_is_written(checkout, repository):
    before = contents(checkout)
    with pytest.raises(InputError, match="owner/name"):
        colab.write(checkout, repository)
    assert contents(checkout) == before


# What Colab has


def preinstalled():
    lines = (Path(__file__).parent / "colab_versions.txt").read_text().splitlines()
    return {r.name: next(iter(r.specifier)).version for r in map(Requirement, filter(lambda x: x[0] != "#", lines))}


def test_what_colab_has_is_within_our_bounds_so_that_nothing_is_replaced():
    there = preinstalled()
    assert SpecifierSet(project()["requires-python"]).contains("3.12")
    assert [
        str(asked)
        for name, asked in dependencies().items()
        if name in there and not asked.specifier.contains(there[name])
    ] == []
    assert set(KEPT) <= set(there)


def test_what_colab_lacks_is_installed_there():
    """And what torch, Jupyter and papermill bring with them; the list names none of it."""
    brought = {"bleach", "filelock", "nbconvert", "nbformat", "pillow", "psutil", "pygments", "pyyaml"}
    assert set(dependencies()) - set(preinstalled()) == {"medmnist", "papermill", "jupyter"} | brought
