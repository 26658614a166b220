"""The committed notebooks, and their execution by papermill, each in its own kernel with tiny settings."""

import ast
import csv
import json
import os
import re
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pandas as pd
import papermill
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient
from PIL import Image
from scipy import stats

import ucl
from ucl import InputError
from ucl.errors import one_of
from ucl.evidence import effects
from ucl.evidence.table_formats import mean_and_std
from ucl.reproduction import colab

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FIGURES = ROOT / "figures"

# For each notebook: the parameters it is run with here, in addition to `output` and `store`, and the files it writes.
# TINY is a data set of six classes of 12 training and 4 test images.
TINY = "tiny.npz"
SMOKE = {"profile": "smoke"}
RUNS = {
    "00_quickstart": (
        {"dataset": TINY, "n_tasks": 3, "memory_size": 8, "device": "cpu"},
        "stream.png accuracy_matrices.png accuracy_over_stream.png accuracy_and_forgetting.png memory_samples.png "
        "score_distributions.png results.csv",
    ),
    "01_streams": (
        {},
        "01_streams_balanced.png 01_streams_long-tailed.png 01_streams_long-tailed_by_size.png 01_streams_batch.png "
        "01_streams_boundaries.png "
        "01_streams.csv",
    ),
    "02_scores": (
        {"dataset": TINY, "n_tasks": 3, "profile": "smoke", "device": "cpu"},
        "02_scores_views.png 02_scores_correlation.png 02_scores_extremes.png 02_scores_repeats.png 02_scores.csv "
        "02_scores_repeats.csv figure5_views.png figure5_views.csv",
    ),
    "03_memory": (
        {"profile": "smoke", "device": "cpu"},
        "03_memory_batch.png 03_memory_candidates.png 03_memory_update.png 03_memory_over_time.png "
        "03_memory_samples.png 03_memory.csv",
    ),
    "04_measures": (
        {"profile": "smoke", "every": 10, "device": "cpu"},
        "04_measures_matrices.png 04_measures_anytime.png 04_measures_projection.png 04_measures.csv "
        "04_measures_anytime.csv",
    ),
    "05_readings": (SMOKE, "readings_digits_10.png readings.csv readings_effects.csv"),
    "avalanche": ({"profile": "smoke"}, "avalanche.csv"),
    "bloodcell": (SMOKE, "bloodcell_over_stream.png bloodcell_at_the_end.png bloodcell.csv"),
    "claims": (SMOKE, "claims.csv claims_differences.csv claims_memories.csv"),
    "deviations": (SMOKE, "deviations.csv"),
    "explore_memory": (
        {"profile": "smoke", "device": "cpu"},
        "explore_memory.png explore_memory_class.png explore_memory.csv",
    ),
    "figure1_relative_improvement": (SMOKE, "figure1_relative_improvement.png figure1_relative_improvement.csv"),
    "figure2_bregman_information": (
        {"networks": 2},
        "figure2_bregman_information.png figure2_bregman_information.csv",
    ),
    "figure3_task_accuracy": (SMOKE, "figure3_task_accuracy.png figure3_task_accuracy.csv"),
    "figures4_and_6": (
        SMOKE,
        "figure4_birds.png figure4_blood_cells.png figure6_score_distributions_digits.png figures4_and_6.csv",
    ),
    "memory_autopsy": (
        SMOKE,
        "memory_autopsy.png memory_autopsy_stays.png memory_autopsy.csv memory_autopsy_stays.csv "
        "memory_autopsy_effects.csv memory_autopsy_traits_digits.csv.gz",
    ),
    "memory_swap": (
        {"profile": "smoke", "device": "cpu"},
        "memory_swap.png memory_swap.csv memory_swap_effects.csv",
    ),
    "repeatability": (SMOKE, "repeatability.png repeatability.csv"),
    "results": (SMOKE, "coverage.csv effects.png effects_er.png leaderboard.png"),
    "scoring_cost": (
        SMOKE,
        "benchmark.png benchmark.csv scoring_cost_refresh.png scoring_cost_refresh.csv scoring_cost_precision.csv "
        "table4_runtime.csv table4_runtime_refresh.csv",
    ),
    "tables": (SMOKE, "table1_cifar10.csv table2_cifar100.csv table3_long_tailed.csv"),
    "your_own": ({"images": 25}, "your_own.png your_own.csv my_score.py my_memory.py my_images.py"),
}
# What IPython runs before the first cell: networks of two stages and 8 instead of 20 filters, see conftest.py, and few
# batches and images for what is estimated or timed.
SMALL_NETWORKS = """
from functools import partial
from ucl.evaluation import running_statistics
from ucl.benchmarks import ceiling
from ucl.models import slim_resnet
slim_resnet._STAGES = ((1, 2), (8, 4))
slim_resnet.MODELS.update({name: partial(model, width=8) for name, model in slim_resnet.MODELS.items()})
running_statistics.BATCHES = 3
ceiling.CHUNKS["cpu"], ceiling.MATRIX["cpu"], ceiling.CANDIDATES = (8, 16), 64, 2
"""
WHOLE = {"00_quickstart"}  # trains the networks as they are, in a kernel of its own
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}  # of the kernels
LESSONS = [path for path in NOTEBOOKS if re.match(r"0[1-9]_", path.name)]
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]*)\)")
each_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def parameters_of(notebook):
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    return cell


def test_every_notebook_is_run_here():
    assert sorted(RUNS) == [path.stem for path in NOTEBOOKS]


# As committed


@each_notebook
def test_a_notebook_is_committed_clean(path):
    raw = json.loads(path.read_text(encoding="utf-8"))
    nbformat.validate(raw)
    assert set(raw["metadata"]) <= {"kernelspec", "language_info"}  # papermill adds its own
    assert raw["metadata"]["kernelspec"]["name"] == "python3"
    for cell in raw["cells"]:
        assert set(cell["metadata"]) <= {"tags"}
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
    assert len({cell["id"] for cell in raw["cells"]}) == len(raw["cells"])


@each_notebook
def test_a_notebook_is_short_and_begins_with_prose(path):
    notebook = nbformat.read(path, as_version=4)
    own = [cell for cell in notebook.cells if colab.TAG not in cell.metadata.get("tags", [])]
    assert 3 <= len(own) <= (60 if path in LESSONS else 28)
    assert notebook.cells[0].cell_type == "markdown" and notebook.cells[0].source.startswith("# ")
    assert all(cell.source.strip() for cell in notebook.cells)
    assert parameters_of(notebook).cell_type == "code"


@each_notebook
def test_a_notebook_defines_nothing(path):
    code = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    tree = ast.parse("\n".join(TransformerManager().transform_cell(source) for source in code))
    assert [
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ] == []


@each_notebook
def test_the_parameters_are_plain_values_with_the_paths_of_nobody(path):
    notebook = nbformat.read(path, as_version=4)
    names = set()
    for statement in ast.parse(parameters_of(notebook).source).body:
        (target,) = statement.targets
        value = ast.literal_eval(statement.value)
        names.add(target.id)
        assert not (isinstance(value, str) and os.path.isabs(value))
    assert "output" in names
    assert set(RUNS[path.stem][0]) <= names


@each_notebook
def test_own_data_can_have_any_number_of_classes(path):
    """The default number of tasks, 5, is more than some data sets have classes."""
    notebook = nbformat.read(path, as_version=4)
    if "any name or path that ucl.datasets.load takes" in parameters_of(notebook).source:
        assert "\nn_tasks = None  #" in parameters_of(notebook).source
        assert "ucl.Config(dataset=dataset, n_tasks=n_tasks, " in "".join(cell.source for cell in notebook.cells)


@pytest.mark.parametrize(("smallest", "at_each_end"), [(30, 5), (10, 5), (9, 4), (3, 1)])
def test_each_extreme_image_of_a_class_is_shown_once(smallest, at_each_end):
    notebook = nbformat.read(ROOT / "notebooks" / "02_scores.ipynb", as_version=4)
    (source,) = (
        cell.source for cell in notebook.cells if "02_scores_extremes" in cell.source and "plots." in cell.source
    )
    labels = np.repeat([0, 1, 2], [20, smallest, 12])
    scores, shown = np.random.default_rng(0).permutation(len(labels)) / 100, []
    names = dict(
        np=np, labels=labels, table=pd.DataFrame({"BI": scores}), arrays=np.arange(len(labels)), folder=Path("figures"),
        data=SimpleNamespace(classes="abc"),
        plots=SimpleNamespace(save=print, scored_images=lambda *given, columns: shown.extend([*given, columns])),
    )  # fmt: skip
    exec(source, names)
    images, values, classes, columns = shown
    assert columns == 2 * at_each_end and len(set(images)) == len(images) == 3 * columns
    for row, label in enumerate("abc"):
        part = slice(row * columns, (row + 1) * columns)
        own = np.sort(scores[labels == row])
        assert values[part].tolist() == [*own[:at_each_end], *own[-at_each_end:]] and set(classes[part]) == {label}


def source_of(name, cell_id):
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    (source,) = (cell.source for cell in notebook.cells if cell.id == cell_id)
    return source


def test_the_log_sum_exp_by_hand_does_not_overflow():
    names = {"np": np, "z": np.array([[1000.0, 0.0], [2000.0, 0.0]]), "mean_logits": np.array([1500.0, 0.0])}
    exec(source_of("02_scores", "scores-18"), names)
    exec(source_of("02_scores", "scores-20").partition("\n")[2], names)
    assert (names["lse"].tolist(), names["lse_of_mean"]) == ([1000, 2000], 1500)


def test_a_bar_by_hand_has_the_seeds_of_the_figure_or_says_that_there_is_none(capsys):
    rows = [(0, "ER", 0.0), (0, "BI bottom", 10.0), (1, "ER", 40.0), (1, "BI bottom", 10.0)]
    runs = pd.DataFrame(rows, columns=["seed", "label", "F"]).assign(memory_size=40, refresh=1)
    for own in (runs, runs[runs["label"] == "ER"]):
        exec(source_of("figure1_relative_improvement", "figure1-4"), {"runs": own})
    assert capsys.readouterr().out.splitlines() == ["the bar: 75.0 %", "no bar: no such pair"]


@pytest.mark.parametrize(("name", "first"), [("readings", []), ("readings_effects", ["reading"])])
def test_readings_are_in_the_order_of_methods_and_streams(name, first):
    groups = pd.read_csv(FIGURES / f"{name}.csv").drop_duplicates([*first, "method", "dataset", "memory_size"])
    order = ucl.plots.method_order(list(groups["method"]))
    for _, own in groups.groupby(first or (lambda _: 0)):
        rows = [(order.index(row.method), row.dataset, row.memory_size) for row in own.itertuples()]
        assert rows == sorted(rows) and len(rows) > 1


@pytest.mark.parametrize(
    ("values", "line"),
    [([0.5, 0.6, 0.7], "F of ER at the smaller memory: 60.0 ± 10.0 % (n = 3)"),
     ([0.5], "F of ER at the smaller memory: 50.0 % (n = 1)"), ([], "no such run")],
)  # fmt: skip
def test_a_cell_by_hand_is_not_the_mean_of_nothing(capsys, values, line):
    runs = pd.DataFrame({"label": "ER", "memory_size": 500.0, "seed": range(len(values)), "last_forgetting": values})
    names = dict(session=SimpleNamespace(runs=runs), mean_and_std=mean_and_std)
    exec(source_of("tables", "tables-13"), names)
    assert capsys.readouterr().out == f"{line}\n"


@pytest.mark.parametrize(("values", "line"), [([1.0], "n = 1, no interval"), ([1, 3], "+2.00 [-10.71, +14.71], n = 2")])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_single_pair_has_no_interval_by_hand(capsys, values, line):
    f = pd.DataFrame({"BI bottom": values, "EN bottom": 0})
    exec(source_of("claims", "by-hand-interval"), dict(stats=stats, effects=effects, f=f))
    assert capsys.readouterr().out == f"{line}\n"


def test_a_misspelt_class_of_cifar10_is_refused_with_the_names():
    columns = ["dataset", "memory_size", "seed", "class_name", "method", "bregman_information"]
    rows = [("cifar10", 500, 0, name, "CBR", 1.0) for name in ("bird", "cat")] + [
        ("bloodcell", 40, 0, "ig", "CBR", 1.0)
    ]
    table = pd.DataFrame(rows, columns=columns)
    source = source_of("figures4_and_6", "figures46-10")
    names = dict(table=table, class_name="brid", profile="published", one_of=one_of)
    with pytest.raises(
        InputError, match=r"class_name='brid': unknown .* did you mean 'bird'\? choose from: bird, cat$"
    ):
        exec(source, dict(names))
    exec(source, {**names, "table": table[2:]})  # Without CIFAR-10 there is no such class, and nothing to draw.
    exec(source, {**names, "class_name": "bird"})


def test_another_store_is_not_answered_with_the_committed_table():
    """Without the images, the traits of stored images are only known for the committed records."""
    committed = pd.DataFrame({"settings": ["refresh=2"]})
    names = dict(
        profile="published", store="own", ucl=ucl, described={"bloodcell": None}, folder=Path("out"),
        figures_folder=Path, images_here=print, pd=SimpleNamespace(read_csv=lambda path: committed),
    )  # fmt: skip
    source = source_of("memory_autopsy", "autopsy-17").partition("\nkept.to_csv")[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ucl, "load_records", lambda store: None)
        with pytest.raises(InputError, match="store='own': needs the images of bloodcell; `ucl data get bloodcell`"):
            exec(source, names)
        exec(source, names := {**names, "store": None})
    assert names["kept"].equals(committed)


def test_a_store_without_a_score_has_no_autopsy():
    names = dict(
        profile="published",
        store="own",
        ucl=ucl,
        datasets=["a", "b"],
        kept=None,
        most_rescored=lambda _: pd.DataFrame(),
    )
    with pytest.raises(
        InputError, match="store='own': has no run with a score on a or b; give another folder or other"
    ):
        exec(source_of("memory_autopsy", "autopsy-18"), names)


def refusal(name, **values):
    """The message with which a notebook refuses parameters; its cells are executed in this process."""
    names = {}
    with pytest.raises(InputError) as refused:
        for cell in nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells:
            tags = cell.metadata.get("tags", [])
            if cell.cell_type == "code" and colab.TAG not in tags:
                exec(cell.source, names)
                names |= values if "parameters" in tags else {}
    return str(refused.value)


@pytest.fixture
def empty_checkout(tmp_path, monkeypatch):
    """A working folder in place of the checkout, so that a notebook that refuses nothing changes no committed file."""
    monkeypatch.setattr("ucl.reproduction.session.figures_folder", lambda: tmp_path / "figures")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", sorted(set(RUNS) - {"your_own"}))  # your_own is the same under every profile
def test_a_profile_that_is_not_known_is_not_the_published_one(name, empty_checkout):
    if name == "avalanche":
        pytest.importorskip("avalanche", reason="avalanche-lib is not installed: make test-avalanche")
    said = refusal(name, profile="Smoke")
    assert said == "profile='Smoke': unknown profile; did you mean 'smoke'? choose from: published, smoke"


@pytest.mark.parametrize(("profile", "folder"), [("published", None), ("smoke", "smoke")])
@pytest.mark.parametrize(("name", "cell"), [("avalanche", "imports"), ("explore_memory", "explore-02")])
def test_small_runs_do_not_replace_the_results_of_the_others(name, cell, profile, folder, empty_checkout):
    if name == "avalanche":
        pytest.importorskip("avalanche", reason="avalanche-lib is not installed: make test-avalanche")
    names = {"profile": profile, "output": None, "seeds": [0]}
    exec(source_of(name, cell), names)
    assert names["folder"] == empty_checkout / "figures" / (folder or name)


@pytest.mark.parametrize("name", [name for name, (values, _) in RUNS.items() if values is SMOKE])
def test_results_of_another_store_need_another_output(name, empty_checkout):
    (empty_checkout / "own").mkdir()
    assert refusal(name, store="own").endswith("with another store give output too")
    assert sorted(empty_checkout.rglob("*")) == [empty_checkout / "own"]


@pytest.mark.parametrize(
    "name", ["00_quickstart", "bloodcell", "claims", "deviations", "figure1_relative_improvement",
             "figure3_task_accuracy", "figures4_and_6", "memory_swap", "repeatability", "results", "scoring_cost"],
)  # fmt: skip
def test_seeds_that_are_no_list_of_numbers_are_refused(name, empty_checkout):
    said = refusal(name, seeds="[0, 1]", output="out")
    assert said.startswith("seeds='[0, 1]': give a list of") and said.endswith("takes it with -y 'seeds: [0, 1, 2]'")


@pytest.mark.parametrize("name", ["figure1_relative_improvement", "figure3_task_accuracy", "figures4_and_6", "results"])
def test_a_store_without_runs_is_not_drawn(name, empty_checkout):
    (empty_checkout / "own").mkdir()
    assert re.match(r"store='own': has (none of the|no records)", refusal(name, store="own", output="out"))


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("01_streams", dict(n_tasks=1), "n_tasks=1: give a whole number from 2 to 10"),
        ("02_scores", dict(batches=-1), "batches=-1: give a whole number from 1 to 1000000"),
        ("03_memory", dict(batches=0), "batches=0: give a whole number from 1 to 1000000"),
        ("03_memory", dict(n_tasks=1), "n_tasks=1: give a whole number from 2 to 10"),
        ("03_memory", dict(n_tasks=2, batches=1), "memory_size=40: .* from 10 to 20: otherwise it is never full"),
        ("03_memory", dict(memory_size=300), "memory_size=300: .* from 10 to 270: otherwise it is never full"),
        ("04_measures", dict(n_tasks=1), "n_tasks=1: give a whole number from 2 to 10"),
        ("04_measures", dict(every=0), "every=0: give a whole number from 1 to 1000000"),
    ],
)
def test_a_lesson_refuses_what_it_cannot_show_before_it_trains(name, values, said, empty_checkout, monkeypatch):
    for method in ("Finetune", "ExperienceReplay"):
        monkeypatch.setattr(f"ucl.methods.{method}.learn", None)
    assert re.fullmatch(said, refusal(name, **values, device="cpu", output="out"))


@each_notebook
def test_the_prose_shows_the_committed_pictures(path):
    """Each picture in the prose exists and has a text; a notebook with committed pictures shows at least one."""
    prose = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown")
    shown = PICTURE.findall(prose)
    for text, target in shown:
        assert text and target.startswith("../figures/") and (path.parent / target).is_file(), target
    committed = [name for name in RUNS[path.stem][1].split() if name.endswith(".png") and (FIGURES / name).is_file()]
    assert shown or not committed


@each_lesson
def test_a_lesson_goes_in_small_steps(path):
    """Each cell has at most five lines of code, not counting imports; each lesson has an assert and a recap."""
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and not cell.metadata.get("tags")]
    for cell in code:
        lines = [line for line in cell.source.splitlines() if line and not line.startswith(("import ", "from "))]
        assert len(lines) <= 5, cell.source
    assert any(isinstance(node, ast.Assert) for cell in code for node in ast.walk(ast.parse(cell.source)))
    assert (
        notebook.cells[-1].cell_type == "markdown" and "## Recap\n\n| term | meaning |\n" in notebook.cells[-1].source
    )


# As they run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    draw = np.random.default_rng(0)
    arrays = {}
    for split, n in (("train", 72), ("test", 24)):
        labels = np.arange(n) % 6
        images = draw.integers(0, 100, (n, 28, 28))
        for image, label in zip(images, labels, strict=True):
            image[4 * label : 4 * label + 8] += 150  # the position of a bright band shows the class
        arrays |= {f"{split}_images": images.astype(np.uint8), f"{split}_labels": labels}
    path = tmp_path_factory.mktemp("data") / TINY
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="session")
def smoke_records(suite_folder):
    """One folder for all notebooks in all processes of the suite: each notebook reads what another has measured."""
    folder = suite_folder / "smoke_records"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """A kernel for all notebooks with small networks: starting one and importing what they import takes 4 seconds."""
    ipython = tmp_path_factory.mktemp("ipython")
    startup = ipython / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "small_networks.py").write_text(SMALL_NETWORKS)
    # A cell shows its picture whole and not cut to its content, for which IPython would draw it once more.
    (startup.parent / "ipython_kernel_config.py").write_text("c.InlineBackend.print_figure_kwargs = {}\n")
    client = NotebookClient(nbformat.v4.new_notebook(), kernel_name="python3")
    with client.setup_kernel(env=os.environ | ENVIRONMENT | {"IPYTHONDIR": str(ipython)}):
        yield client.km


def as_if_started(kernel, folder):
    """The kernel after it has forgotten the names of the last notebook, in this folder."""
    code = f"%reset -f\n__import__('os').chdir({str(folder)!r})"
    NotebookClient(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)]), km=kernel).execute()
    return kernel


@each_notebook
def test_a_notebook_runs_and_leaves_what_it_promises(path, tmp_path, tiny, smoke_records, monkeypatch, request):
    if path.stem == "avalanche":
        pytest.importorskip("avalanche", reason="avalanche-lib is not installed: make test-avalanche")
    settings, promised = RUNS[path.stem]
    known = papermill.inspect_notebook(path)
    values = {name: str(tiny) if value == TINY else value for name, value in settings.items()}
    values |= {"output": str(tmp_path / "figures")}
    if settings is SMOKE:
        values |= {"store": str(smoke_records)}
    assert set(values) <= set(known)  # papermill would only warn about unknown parameters
    folder, committed = tmp_path / "elsewhere", path.read_bytes()
    folder.mkdir()
    options = dict(kernel_name="python3", progress_bar=False, start_timeout=200, cwd=str(folder))
    if path.stem in WHOLE:
        for name, value in ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
    else:
        options |= {"km": as_if_started(request.getfixturevalue("kernel"), folder)}
    executed = papermill.execute_notebook(path, None, values, **options)
    for cell in (cell for cell in executed.cells if cell.cell_type == "code"):
        assert cell.execution_count
        shown = any("image/png" in output.get("data", {}) for output in cell.outputs)
        assert shown == ("plots.save(" in cell.source), cell.source
    assert path.read_bytes() == committed
    assert list((tmp_path / "elsewhere").iterdir()) == []  # everything goes where `output` says
    for name in promised.split():
        assert_filled(tmp_path / "figures" / name)
    if settings is SMOKE:
        assert not (tmp_path / "figures" / "runs").exists()  # all records go where `store` says


@pytest.mark.skipif(find_spec("avalanche") is not None, reason="avalanche-lib is installed")
def test_without_avalanche_its_notebook_ends_with_how_to_install_it(tmp_path, kernel):
    path, values = ROOT / "notebooks" / "avalanche.ipynb", {"output": str(tmp_path / "figures")}
    options = dict(kernel_name="python3", progress_bar=False, km=as_if_started(kernel, tmp_path))
    executed = papermill.execute_notebook(path, None, values, **options)
    shown = [output.text for cell in executed.cells for output in cell.get("outputs", []) if "text" in output]
    assert "ends here: python -m pip install 'avalanche-lib>=0.6'" in shown[0]
    assert not (tmp_path / "figures").exists()


def assert_filled(file):
    """Check that a picture is not blank, also in print quality, or that a table has a row."""
    assert file.is_file(), file.name
    if file.suffix == ".png":
        with Image.open(file) as image:
            pixels = np.asarray(image.convert("L"))
        assert min(pixels.shape) >= 100 and pixels.std() > 5  # a blank one has 0
        assert 0.005 < (pixels < 250).mean() < 0.999
        assert file.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    elif file.suffix == ".csv":
        with file.open(encoding="utf-8", newline="") as lines:
            head, *rows = csv.reader(lines)
        assert len(head) > 1 and rows and all(len(row) == len(head) for row in rows)
        assert any(cell for row in rows for cell in row)


def test_a_blank_picture_is_noticed(tmp_path):
    Image.new("RGB", (400, 300), "white").save(tmp_path / "blank.png")
    (tmp_path / "blank.pdf").write_bytes(b"%PDF")
    with pytest.raises(AssertionError):
        assert_filled(tmp_path / "blank.png")
