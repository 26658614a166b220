"""What the repository promises around the code: bounds that agree, a licence, a citation, imports that stay light."""

import ast
import json
import re
import shutil
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path

import pytest
from conftest import python, save_bands
from IPython.core.inputtransformer2 import TransformerManager
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from test_plots import record_of

import ucl
from ucl import RecordStore, user_objects

ROOT = Path(__file__).resolve().parents[1]
# where a distribution's module has another name
MODULES = {"avalanche-lib": "avalanche", "ruamel-yaml": "ruamel", "scikit-learn": "sklearn"}
MODULES |= {"ipython": "IPython", "pillow": "PIL"}


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def project():
    """The entries of [project] in pyproject.toml that these tests need. Python 3.10 does not have tomllib."""
    text = read("pyproject.toml").split("\n[project]\n")[1].split("\n[project.scripts]\n")[0]
    lists = {name: ast.literal_eval(items) for name, items in re.findall(r"^([\w-]+) = (\[[^{\]]*\])", text, re.M)}
    return {**dict(re.findall(r'^([\w-]+) = "(.*)"', text, re.M)), **lists}


def by_name(lines):
    requirements = [Requirement(line) for line in lines]
    named = {canonicalize_name(r.name): r for r in requirements}
    assert len(named) == len(requirements)
    return named


def dependencies():
    return by_name(project()["dependencies"])


def constraints():
    lines = [line for line in read("constraints.txt").splitlines() if line and line[0] != "#"]
    return by_name(lines)


def tracked():
    """The files of the repository."""
    git = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(git, capture_output=True, text=True, check=True).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


# Bounds


def test_every_dependency_has_a_lower_bound_and_no_upper_one():
    for requirement in dependencies().values():
        assert [clause.operator for clause in requirement.specifier] == [">="], requirement


def test_the_pinned_versions_are_exact_and_within_the_bounds():
    pins = constraints()
    extras = (Requirement(line) for extra in ("test", "avalanche") for line in project()[extra])
    for requirement in pins.values():
        assert [clause.operator for clause in requirement.specifier] == ["=="], requirement
    for requirement in (*dependencies().values(), *extras):
        (pin,) = pins[canonicalize_name(requirement.name)].specifier
        assert requirement.specifier.contains(pin.version), f"{requirement} but {pin}"


def imported(sources):
    """The modules that Python sources import, except those of the standard library and of ucl."""
    names = (name for source in sources for name in user_objects._imports(source.encode(), ""))
    return {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - {"ucl"}


def modules_of(*extras):
    """The import names of the required packages and of those that the extras require."""
    names = [*dependencies(), *(name for extra in extras for name in by_name(project()[extra]))]
    return {MODULES.get(name, name) for name in names}


def test_every_package_that_is_imported_is_asked_for():
    """The next release of a dependency may no longer require a package that we import."""
    package = [file.read_text(encoding="utf-8") for file in (ROOT / "ucl").rglob("*.py")]
    notebooks = [
        TransformerManager().transform_cell("".join(cell["source"]))
        for file in (ROOT / "notebooks").glob("*.ipynb")
        for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code" and not cell["source"][0].startswith("%%")
    ]
    assert imported(package) <= modules_of("avalanche")
    assert imported(notebooks) <= modules_of("avalanche") | {"google"}  # `google` comes with Colab
    tests = [file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py")]
    helpers = {file.stem for file in (ROOT / "tests").rglob("*.py")}
    assert imported(tests) - helpers <= modules_of("avalanche", "test")


# Imports


def test_importing_the_package_loads_nothing_heavy_reads_nothing_and_prints_nothing(tmp_path):
    code = f"import os, json, sys; os.environ['UCL_DATA'] = {str(tmp_path / 'data')!r}; import ucl, ucl.cli.main; "
    (line,) = python("-c", code + "print(json.dumps(list(sys.modules)))").splitlines()
    loaded = set(json.loads(line))
    assert list(tmp_path.iterdir()) == []
    for module in (
        *("torch", "pandas", "ucl.experiment"),
        *("avalanche", "distributed", "dask", "medmnist", "sklearn", "torchvision", "PIL", "scipy"),
        *("papermill", "jupyter", "nbformat", "nbconvert", "IPython", "ipykernel", "yaml", "ruamel.yaml"),
        *("matplotlib.pyplot", "seaborn"),
    ):
        assert module not in loaded, module


@pytest.mark.parametrize(("given", "expected"), [("", "10000"), ("GOMP_SPINCOUNT", "7"), ("OMP_WAIT_POLICY", "None")])
def test_waiting_threads_soon_give_their_core_away_unless_the_user_has_decided(monkeypatch, given, expected):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(given or "OTHER", "7")
    assert python("-c", "import os, ucl; print(os.environ.get('GOMP_SPINCOUNT'))").strip() == expected


ANSWERED_AT_ONCE = {  # exit code by arguments
    "--help": 0,
    "run --help": 0,
    "data list": 0,
    "run --datset digits": 2,
    "run --memory-size 0": 2,
    "run --config {record} --store {folder}/runs": 0,  # This run has a record.
    "status tabel1": 2,
    "status table1 --set foo 3": 2,
    "status table1 --config missing.json": 2,
    "status table1 --store {folder}/file": 2,
    "results nowhere": 2,
    "plot tasks --output tasks.txt": 2,
    "benchmark --repeats many": 2,
}


def test_what_is_answered_at_once_does_not_wait_for_torch(tmp_path):
    (tmp_path / "file").touch()
    record = record_of("ER", n_tasks=2, dataset=str(save_bands(tmp_path / "set.npz")))
    record.data["fingerprint"] = ucl.datasets.load(record.config.dataset).fingerprint
    path = RecordStore(tmp_path / "runs").save(record)
    words = {given: given.format(folder=tmp_path, record=path).split() for given in ANSWERED_AT_ONCE}
    program = f"""
import json, sys
from ucl.cli.main import main
codes, late = {{}}, []
for given, words in {words}.items():
    try:
        codes[given] = main(words)
    except SystemExit as end:
        codes[given] = end.code or 0
    late += [given] if {{"torch", "pandas"}} & {{*sys.modules}} else []
print(json.dumps([codes, late]))
"""
    assert json.loads(python("-c", program).splitlines()[-1]) == [ANSWERED_AT_ONCE, []]


def test_a_notebook_of_committed_records_starts_without_torch():
    code = "import sys; from ucl import paper; from ucl.reproduction.session import open_session; "
    figures = ROOT / "figures"
    code += f"session = open_session(paper.grid('table1'), {str(figures / 'runs')!r}, {str(figures)!r}); "
    code += "print(len(session.runs) > 0, 'torch' in sys.modules)"
    assert python("-c", code) == "True False\n"


def test_without_avalanche_its_module_says_in_one_line_how_to_install_it(monkeypatch):
    for name in [name for name in sys.modules if name == "ucl.avalanche" or name.startswith("avalanche.")]:
        monkeypatch.delitem(sys.modules, name)  # where avalanche-lib is installed, another test has imported them
    monkeypatch.delitem(vars(ucl), "avalanche", raising=False)
    monkeypatch.setitem(sys.modules, "avalanche", None)
    with pytest.raises(ImportError) as missing:
        _ = ucl.avalanche
    assert "pip install 'avalanche-lib>=0.6'" in str(missing.value) and "\n" not in str(missing.value)


def test_completion_offers_the_public_names_before_they_are_imported():
    code = "import ucl, sys; from ucl import streams; "
    code += "print([{*room.__all__} <= {*dir(room)} for room in (ucl, streams)], 'torch' in sys.modules)"
    assert python("-c", code) == "[True, True] False\n"


# A wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this tree."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "ucl", folder / "ucl", ignore=shutil.ignore_patterns("__pycache__"))
    code = f"from setuptools import build_meta; build_meta.build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_a_wheel_holds_every_module_and_table(wheel):
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = {p.relative_to(wheel.parent).as_posix() for p in (wheel.parent / "ucl").rglob("*") if p.is_file()}
    assert inside == sources >= {"ucl/py.typed", "ucl/experiment.py", "ucl/evidence/published.csv"}


def test_an_installed_wheel_runs_anywhere_and_its_records_name_its_version(wheel, tmp_path):
    target, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    elsewhere.mkdir()
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*install, "--target", target, wheel], check=True, capture_output=True)
    environment = {"PYTHONPATH": str(target), "PYTHONSAFEPATH": "1"}
    command = partial(python, target / "bin" / "ucl", environment=environment, cwd=elsewhere)
    version = wheel.name.split("-")[1]
    assert command("--version").split() == ["ucl", version]
    images = save_bands(elsewhere / "bands.npz")
    command("run", "--dataset", images.name, "--n-tasks", "2", "--method", "finetune", "--store", "runs")
    (path,) = (elsewhere / "runs").glob("*.json")
    record = json.loads(path.read_text())
    assert (record["environment"]["ucl"], record["environment"]["commit"]) == (version, "")
    table = ucl.load_records(elsewhere / "runs")
    assert table["dataset"].tolist() == [images.name] and table["A"].between(0, 1).all()


# Files


def test_no_file_is_larger_than_a_megabyte():
    files = tracked()
    assert ROOT / "pyproject.toml" in files and len(files) > 30
    assert [(path.name, path.stat().st_size) for path in files if path.stat().st_size > 2**20] == []


def test_no_file_names_a_folder_of_one_machine():
    homes = re.compile(rb"(?<![\w.~-])/(?:home|Users|root|work|mnt|media|scratch)/\w|[A-Z]:\\\\?Users")
    named = [
        f"{path.relative_to(ROOT)}: {match.group().decode()}"
        for path in tracked()
        if path.suffix not in (".png", ".pdf") and (match := homes.search(path.read_bytes()))
    ]
    assert named == []
