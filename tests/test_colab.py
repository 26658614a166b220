"""Google Colab, tested offline: the set-up cell, the notebooks that have it, and the packages missing in Colab."""

import io
import json
import subprocess
import sys
import types
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from conftest import python
from IPython.core.inputtransformer2 import TransformerManager
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from test_packaging import dependencies, project

from ucl.errors import InputError
from ucl.reproduction import colab

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def archive(*names, inside=""):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened:
        for name in names:
            opened.writestr(inside + name, "")
    return file.getvalue()


FILES = ("pyproject.toml", "ucl/__init__.py", "ucl/colab.py", "notebooks/tables.ipynb", "figures/runs/one.json")


@pytest.mark.parametrize("given", ["", "https://github.com/someone/a.project"], ids=["uploaded", "GitHub"])
def test_on_colab_the_cell_installs_the_package_alone_and_calls_its_set_up(monkeypatch, given):
    (cell,) = {"".join(cells(path)[1]["source"]) for path in NOTEBOOKS}  # one for all notebooks
    assert 'SOURCE = ""' in cell
    sources = []
    google = types.ModuleType("google.colab")
    google.files = types.SimpleNamespace(upload=lambda: {"project-main.zip": b""})
    monkeypatch.setitem(sys.modules, "google", types.ModuleType("google"))
    monkeypatch.setitem(sys.modules, "google.colab", google)
    monkeypatch.setattr(colab, "set_up", sources.append)
    magics, names = [], {}
    shell = types.SimpleNamespace(run_line_magic=lambda name, line: magics.append((name, line.format(**names))))
    names["get_ipython"] = lambda: shell
    exec(TransformerManager().transform_cell(cell.replace('SOURCE = ""', f'SOURCE = "{given}"')), names)
    source = f"{given}/archive/HEAD.zip" if given else "project-main.zip"
    assert magics == [("pip", f"install -q --no-deps {source}")] and sources == [source]


def test_the_set_up_needs_nothing_but_python():
    """It runs before the packages that are missing in Colab are installed."""
    python("-S", "-c", "import ucl.reproduction.colab")


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """The commands of `colab.set_up`, which are not run; `tmp_path` is in the place of /content."""
    commands = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    monkeypatch.chdir(tmp_path)
    return commands


@pytest.mark.parametrize(("inside", "is_uploaded"), [("", True), ("project-main/", False)], ids=["uploaded", "GitHub"])
def test_the_whole_project_is_unpacked_once_and_installed(commands, tmp_path, inside, is_uploaded):
    file, project, pins = tmp_path / "ucl.zip", tmp_path / "ucl", tmp_path / "pins.txt"
    file.write_bytes(archive(*FILES, inside=inside))
    colab.set_up(str(file) if is_uploaded else file.as_uri(), tmp_path)
    assert sorted(p.relative_to(project).as_posix() for p in project.rglob("*") if p.is_file()) == sorted(FILES)
    assert commands == [[sys.executable, "-m", "pip", "install", "-q", "-c", str(pins), "-e", str(project)]]
    assert pins.read_text().split() == [f"{name}=={version(name)}" for name in colab.PINNED]
    assert sys.path[0] == str(project) and Path.cwd() == project / "notebooks"
    assert not any(name.partition(".")[0] == "ucl" for name in sys.modules)  # The next import is from the project.
    colab.set_up("/content/ucl.zip", tmp_path)  # The project that is there is used.


def test_an_archive_of_another_project_is_refused(commands, tmp_path):
    (tmp_path / "ucl.zip").write_bytes(archive("README.md"))
    with pytest.raises(InputError):
        colab.set_up(str(tmp_path / "ucl.zip"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ucl.zip"]


def test_colabs_packages_are_within_our_bounds_so_that_none_is_replaced():
    lines = (Path(__file__).parent / "colab_versions.txt").read_text().splitlines()
    pinned = [Requirement(line) for line in lines if line[0] != "#"]
    versions, required = {r.name: next(iter(r.specifier)).version for r in pinned}, dependencies()
    assert SpecifierSet(project()["requires-python"]).contains("3.12")
    for name in required.keys() & versions.keys():
        assert required[name].specifier.contains(versions[name]), f"{required[name]} but {versions[name]}"
    assert set(colab.PINNED) <= set(versions)
