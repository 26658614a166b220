"""Notebooks: what they share, and their batch execution, which gives the same results as every other way."""

import copy
import os
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch

import ucl
from ucl.errors import InputError
from ucl.reproduction import colab
from ucl.reproduction.batch import find_notebooks, notebooks_folder, reproduce
from ucl.reproduction.pages import code_hash, readable, with_outputs
from ucl.reproduction.session import images_here, open_session

new = nbformat.v4


def notebook(path, *cells):
    """A notebook like a published one, with a title and a set-up cell."""
    title, code = new.new_markdown_cell("# Title\n\nProse, [another](bad.ipynb)"), [*map(new.new_code_cell, cells)]
    code[0].metadata["tags"] = ["parameters"]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    (setup,) = filter(colab.is_setup, nbformat.read(notebooks_folder() / "tables.ipynb", as_version=4).cells)
    nbformat.write(new.new_notebook(cells=[title, setup, *code], metadata={"kernelspec": kernel}), path)
    return str(path)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One notebook that ends and one that fails, executed together."""
    folder = tmp_path_factory.mktemp("notebooks")
    good = notebook(
        folder / "good.ipynb",
        "number = 1\nlr = 0.1\noutput = None",
        "import matplotlib.pyplot as plt\nplt.plot([number, 2]);",
        "from tqdm.auto import tqdm\nfor _ in tqdm(range(number)):\n    pass",
        "print('doubled:', 2 * number)",
        "import os\nprint('threads:', os.environ['OMP_NUM_THREADS'], 'folder:', os.path.basename(os.getcwd()))",
    )
    parameters, failure = "number = 1\nlr = 0.1\noutput = None", "raise ValueError(f'no {number}')"
    bad, pages = notebook(folder / "bad.ipynb", parameters, "print('so far')", failure), folder / "pages"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 6)
        return reproduce([good, bad], {"number": 21, "lr": 1e-05, "output": "mine"}, pages, jobs=2), pages


def test_each_notebook_has_its_outcome_in_order(done):
    outcomes, pages = done
    assert (outcomes[0].name, outcomes[0].error, outcomes[1].name) == ("good", "", "bad")
    assert all(outcome.seconds > 0 for outcome in outcomes)
    assert outcomes[1].error == "ValueError: no 21"
    assert sorted(os.listdir(pages)) == ["bad.failed.ipynb", "bad.html", "good.html", "good.ipynb", "index.html"]


def test_a_notebook_runs_with_its_parameters_in_its_folder_and_shares_the_threads(done):
    _, pages = done
    text = (pages / "good.ipynb").read_text()
    assert "doubled: 42" in text and f"threads: 3 folder: {pages.parent.name}" in text
    parameters = nbformat.read(pages / "good.ipynb", as_version=4).metadata.papermill.parameters
    assert (parameters["number"], parameters["lr"]) == (21, 1e-05)
    assert (pages.parent / parameters["output"]).resolve() == Path("mine").resolve()


def links_of(page):
    return re.findall(r'<a [^>]*href="([^"]+)"', page.read_text(encoding="utf-8"))


def test_pages_have_what_was_executed_and_nothing_for_colab_or_a_kernel(done):
    _, pages = done
    page = (pages / "good.html").read_text()
    assert "data:image/png" in page and "doubled: 42" in page and "bad.html" in links_of(pages / "good.html")
    assert "google.colab" in (pages / "good.ipynb").read_text() and "google.colab" not in page
    assert "widget-view" in (pages / "good.ipynb").read_text() and "widget-view+json" not in page.partition("<body")[2]
    assert links_of(pages / "index.html") == ["good.html", "bad.html"]
    assert "ValueError: no 21" in (pages / "index.html").read_text()


def test_a_committed_picture_is_left_out_if_it_is_drawn():
    cells = []
    for name, outputs in {"one": [], "two": [new.new_output("display_data", {"image/png": ""})]}.items():
        cells.append(new.new_markdown_cell(f"![{name}](../figures/{name}.png)"))
        cells.append(new.new_code_cell(f'plots.save(figure, folder / "{name}")', outputs=outputs))
    page = readable(new.new_notebook(cells=cells))
    assert [cell.source for cell in page.cells if cell.cell_type == "markdown"] == ["![one](../figures/one.png)", ""]


def test_a_notebook_gets_the_outputs_of_its_executed_copy_without_progress_bars(done):
    _, pages = done
    before, executed = (nbformat.read(folder / "good.ipynb", as_version=4) for folder in (pages.parent, pages))
    after = with_outputs(copy.deepcopy(before), executed)
    assert after.metadata == before.metadata | {"outputs_of": code_hash(before)}
    assert [cell.source for cell in after.cells] == [cell.source for cell in before.cells]
    setup, *code = [cell for cell in after.cells if cell.cell_type == "code"]
    assert setup == before.cells[1]
    assert [cell.execution_count for cell in code] == [1, 2, 3, 4, 5]
    assert [len(cell.outputs) for cell in code] == [0, 1, 0, 1, 1]
    assert "image/png" in code[1].outputs[0].data and code[3].outputs[0].text == "doubled: 42\n"


def test_notebooks_are_found_by_name_or_path_each_once_and_all_without_names():
    path = notebooks_folder() / "tables.ipynb"
    assert find_notebooks(["tables", str(path), "your_own.ipynb"]) == [path, path.with_name("your_own.ipynb")]
    assert find_notebooks() == sorted(notebooks_folder().glob("*.ipynb"))


def test_each_run_of_a_notebook_counts_once(here):
    session = open_session([ucl.Config(seed=seed) for seed in (0, 0, 1)], store=".", output="here")
    assert session.missing == 2 and "0 of 2 runs" in str(session) and session.output.is_dir()


@pytest.mark.parametrize("refused", [{"store": "gone"}, {"compute": "false"}])
def test_a_session_without_a_store_or_with_a_text_for_a_truth_value_is_refused(here, refused):
    with pytest.raises(InputError):
        open_session([ucl.Config()], **{"store": ".", "output": "here", **refused})


def test_images_are_loaded_if_they_are_here_and_those_of_the_records(here, capsys):
    digits = ucl.datasets.load("digits")
    assert np.array_equal(images_here("digits", digits.fingerprint).train_images, digits.train_images)
    assert capsys.readouterr().out == ""
    assert images_here("digits", "0123456789abcdef") is None and images_here("cifar10") is None
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["digits", "cifar10"]
    assert not (here / "data").exists()  # Nothing is downloaded.
