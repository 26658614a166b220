"""The committed notebooks: each is executed once by papermill with tiny settings."""

import ast
import json
import os
import re
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import papermill
import pytest
from conftest import save_bands
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient
from PIL import Image

from ucl.reproduction import colab
from ucl.reproduction.pages import code_hash

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FIGURES = ROOT / "figures"

# The parameters that a notebook is run with here, in addition to `output`, and the files that it writes there, if any.
# Its working folder is beside a folder figures with the committed records, as notebooks/ is.
# TINY is a data set of six classes of 20 training and 4 test images.
TINY = "tiny.npz"
RUNS = {
    "00_quickstart": ({"dataset": TINY, "memory_size": 8, "seeds": [0, 1], "jobs": 1, "device": "cpu"}, ""),
    "02_scores": ({"batches": 5, "networks": 2}, "figure2_bregman_information.png figure2_bregman_information.csv"),
    "03_memory": ({"dataset": TINY, "memory_size": 12, "device": "cpu"}, ""),
    "04_measures": ({"dataset": TINY, "memory_size": 12, "device": "cpu"}, ""),
    "figures1_and_3": (
        {},
        "figure1_relative_improvement.png figure1_relative_improvement.csv figure1_bars.csv "
        "figure3_task_accuracy.png figure3_task_accuracy.csv",
    ),
    "figures4_to_6": (
        {"store": "../figures/digits", "streams": {"digits": {"memory_size": 30}}, "class_name": "3", "seeds": [0]}
        | {"compute": True, "device": "cpu"},
        "figure4_birds.png figure4_blood_cells.png figure5_views.png figure6_score_distributions_digits.png "
        "figures4_and_6.csv",
    ),
    "readings_and_repeatability": (
        {"scorings": str(FIGURES / "repeatability.csv")},
        "readings.csv readings_effects.csv readings_effects.png repeatability.csv repeatability.png",
    ),
    "tables": (
        {},
        "table1_cifar10.csv table2_cifar100.csv table3_long_tailed.csv deviations.csv claims.csv "
        "claims_differences.csv",
    ),
    "what_a_memory_keeps": (
        {"observed": TINY, "device": "cpu"},
        "explore_memory.png memory_autopsy_stays.png memory_autopsy.png memory_autopsy.csv memory_autopsy_effects.csv "
        "memory_autopsy_remedies.csv memory_swap.png memory_swap_effects.csv",
    ),
    "your_own": ({"images": 25, "seeds": [0, 1]}, "my_network.py my_score.py my_memory.py my_method.py"),
}
# What IPython runs before the first cell: networks of two stages and 8 instead of 20 filters, see conftest.py, few
# batches and images for what is estimated or timed, every second image of digits, and pictures that are coarse and
# drawn only to be saved and shown.
SMALL_NETWORKS = """
from functools import partial
from ucl.evaluation import readings
from ucl.models import slim_resnet
slim_resnet._STAGES = ((1, 2), (8, 4))
slim_resnet.MODELS.update({name: partial(model, width=8) for name, model in slim_resnet.MODELS.items()})
readings.BATCHES = 3
from matplotlib import pyplot
from ucl.plots import style
from ucl.streams import datasets
datasets.read_digits = lambda read=datasets.read_digits: {name: array[::2] for name, array in read().items()}
style.STYLE.update({"figure.dpi": 50, "savefig.dpi": 100, "pdf.fonttype": 3})
from seaborn import matrix
matrix._draw_figure = lambda figure: None
pyplot.uninstall_repl_displayhook()
"""
WITH_OUTPUTS = [path for path in NOTEBOOKS if re.match(r"0\d_", path.name)]
LESSONS = WITH_OUTPUTS[1:]  # without the quickstart
ABSOLUTE_PATH = re.compile(r"(?<![\w./:<\\-])/\w[\w.-]*/\w")
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


# As committed


@each_notebook
def test_a_notebook_is_committed_clean(path):
    raw = json.loads(path.read_text(encoding="utf-8"))
    nbformat.validate(raw)
    assert set(raw["metadata"]) <= {"kernelspec", "language_info", "outputs_of"}  # papermill adds its own
    assert raw["metadata"]["kernelspec"]["name"] == "python3"
    for cell in raw["cells"]:
        assert set(cell["metadata"]) <= {"tags"} or colab.is_setup(cell)
        if cell["cell_type"] == "code" and (path not in WITH_OUTPUTS or colab.is_setup(cell)):
            assert cell["outputs"] == [] and cell["execution_count"] is None
    assert len({cell["id"] for cell in raw["cells"]}) == len(raw["cells"])


@pytest.mark.parametrize("path", WITH_OUTPUTS, ids=lambda path: path.stem)
def test_a_lesson_is_committed_with_the_outputs_of_its_code(path):
    """`make figures` writes them. They are in order, fresh and small, and name no folder of a machine."""
    raw = nbformat.read(path, as_version=4)
    code = [cell for cell in raw["cells"] if cell["cell_type"] == "code"]
    code = [cell for cell in code if not colab.is_setup(cell)]
    assert raw["metadata"].get("outputs_of") == code_hash(raw), "make figures"
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert path.stat().st_size < 300_000
    for cell in code:
        images = 0
        for output in cell["outputs"]:
            assert output["output_type"] != "error" and output.get("name") != "stderr"
            data = {"text": output.get("text", [])} | output.get("data", {})
            images += data.pop("image/png", "") != ""
            assert not any("widget" in kind for kind in data)
            assert not ABSOLUTE_PATH.search("".join(line for text in data.values() for line in text))
        assert images == "".join(cell["source"]).endswith(";")


@each_notebook
def test_a_notebook_is_prose_and_short_code(path):
    """It begins with prose and defines nothing; a lesson goes in small steps, has an assert, and ends with a recap."""
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if not colab.is_setup(cell)]
    assert 3 <= len(cells) <= 34
    assert cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")
    assert all(cell.source.strip() for cell in cells)
    for cell in cells:
        lines = [line for line in cell.source.splitlines() if not line.startswith("|")]  # rows of tables
        assert max(map(len, lines)) <= (100 if cell.cell_type == "code" else 120), cell.source
    code = [TransformerManager().transform_cell(cell.source) for cell in cells if cell.cell_type == "code"]
    nodes = list(ast.walk(ast.parse("\n".join(code))))
    assert not [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    if path in LESSONS:
        for cell in (cell for cell in cells if cell.cell_type == "code" and not cell.metadata.get("tags")):
            lines = [line for line in cell.source.splitlines() if line and not line.startswith(("import ", "from "))]
            assert len(lines) <= 5, cell.source
        assert any(isinstance(node, ast.Assert) for node in nodes)
        assert "## Recap\n\n| term | meaning |\n" in cells[-1].source


@each_notebook
def test_the_parameters_are_plain_values_with_the_paths_of_nobody(path):
    notebook = nbformat.read(path, as_version=4)
    names = set()
    code = "".join(cell.source for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    for statement in ast.parse(code).body:
        (target,) = statement.targets
        value = ast.literal_eval(statement.value)
        names.add(target.id)
        assert not (isinstance(value, str) and os.path.isabs(value))
    assert set(RUNS.get(path.stem, [()])[0]) <= names


# As they run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return save_bands(tmp_path_factory.mktemp("data") / TINY, n_classes=6, train=120)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """A kernel for all notebooks: starting one and importing what they import takes 4 seconds."""
    ipython = tmp_path_factory.mktemp("ipython")
    startup = ipython / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "small_networks.py").write_text(SMALL_NETWORKS)
    # A cell shows its picture whole and not cut to its content, for which IPython would draw it once more.
    (startup.parent / "ipython_kernel_config.py").write_text("c.InlineBackend.print_figure_kwargs = {}\n")
    client = NotebookClient(nbformat.v4.new_notebook(), kernel_name="python3")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "IPYTHONDIR": str(ipython)}
    with client.setup_kernel(env=environment):
        yield client.km


def execute(kernel, path, folder, **values):
    """Execute a notebook in a kernel that has forgotten the names of the last one, with `folder` as working folder."""
    forget = nbformat.v4.new_code_cell(f"%reset -f\n__import__('os').chdir({str(folder)!r})")
    NotebookClient(nbformat.v4.new_notebook(cells=[forget]), km=kernel).execute()
    assert set(values) <= set(papermill.inspect_notebook(path))  # papermill would only warn about unknown parameters
    return papermill.execute_notebook(path, None, values, kernel_name="python3", progress_bar=False, km=kernel)


@each_notebook
def test_a_notebook_runs_and_leaves_what_it_promises(path, tmp_path, tiny, kernel):
    settings, promised = RUNS.get(path.stem, ({}, ""))
    values = {name: str(tiny) if value == TINY else value for name, value in settings.items()}
    folder, figures, committed = tmp_path / "notebooks", tmp_path / "figures", path.read_bytes()
    folder.mkdir()
    figures.mkdir()
    parameters = papermill.inspect_notebook(path)
    for records in ("runs", "alone") if "store" in parameters else ():
        (figures / records).symlink_to(FIGURES / records)
    if "output" in parameters:
        values["output"] = str(figures)
    executed = execute(kernel, path, folder, **values)
    for cell in (cell for cell in executed.cells if cell.cell_type == "code"):
        assert cell.execution_count
        images = sum("image/png" in output.get("data", {}) for output in cell.outputs)
        draws = "plots.save(" in cell.source or cell.source.endswith(";")
        assert (images if cell.source.endswith(";") else images > 0) == draws, cell.source
    assert path.read_bytes() == committed
    assert list(folder.iterdir()) == []  # everything goes where `output` says, and all records where `store` says
    for name in promised.split():
        assert_filled(figures / name)
        if name.endswith(".csv") and "store" in set(parameters) - set(settings):  # made from the committed records
            made, stored = (pd.read_csv(folder / name) for folder in (figures, FIGURES))
            pd.testing.assert_frame_equal(made, stored, rtol=0, atol=1e-4)  # The last digit depends on the processor.


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
        table = pd.read_csv(file)
        assert table.shape[1] > 1 and table.notna().any(axis=None)
