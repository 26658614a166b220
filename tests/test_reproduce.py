"""Notebooks in batch: executed whole or named as failed, with pages to browse; the same however they are run."""

import base64
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from ucl.config import InputError
from ucl.reproduce import find_notebooks, notebooks_folder, reproduce

ROOT = Path(__file__).parents[1]


def notebook(path, *cells):
    code = [nbformat.v4.new_code_cell(cell) for cell in cells]
    code[0].metadata["tags"] = ["parameters"]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=code, metadata={"kernelspec": kernel}), path)
    return str(path)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One notebook that ends and one that fails, executed together."""
    folder = tmp_path_factory.mktemp("notebooks")
    good = notebook(
        folder / "good.ipynb",
        "number = 1",
        "import matplotlib.pyplot as plt\nplt.plot([number, 2]);",
        "print('doubled:', 2 * number)",
    )
    bad = notebook(folder / "bad.ipynb", "number = 1", "print('so far')", "raise ValueError(f'no\\n{number}')")
    return reproduce([good, bad], {"number": 21}, folder / "pages", jobs=2), folder / "pages"


def test_each_notebook_has_its_outcome_in_order(done):
    outcomes, _ = done
    assert [outcome.name for outcome in outcomes] == ["good", "bad"]
    assert all(outcome.seconds > 0 for outcome in outcomes)


def test_parameters_reach_the_executed_copy(done):
    outcomes, pages = done
    assert outcomes[0].error == ""
    assert "doubled: 42" in (pages / "good.ipynb").read_text()


def test_a_notebook_that_fails_is_named_with_its_cell_and_error_and_kept_aside(done):
    outcomes, pages = done
    assert re.fullmatch(r"cell \d+: ValueError: no 21", outcomes[1].error)
    assert not (pages / "bad.ipynb").exists()
    assert "so far" in (pages / "bad.failed.ipynb").read_text()


def test_nothing_half_written_is_left(done):
    _, pages = done
    assert sorted(os.listdir(pages)) == ["bad.failed.ipynb", "bad.html", "good.html", "good.ipynb", "index.html"]


def test_the_index_links_every_page_and_shows_a_picture_or_the_error(done):
    _, pages = done
    index = (pages / "index.html").read_text()
    assert 'href="good.html"' in index and 'href="bad.html"' in index
    picture = re.search(r'src="data:image/png;base64,([^"]+)"', index)
    assert base64.b64decode(picture.group(1)).startswith(b"\x89PNG")
    assert "ValueError: no 21" in index


def test_pages_fetch_nothing_and_run_nothing(done):
    _, pages = done
    for page in pages.glob("*.html"):
        text = page.read_text()
        assert "<script" not in text and "http" not in re.sub(r'"data:[^"]*"', "", text).replace("http-equiv", "")


def test_an_unknown_parameter_is_refused_before_anything_runs(tmp_path):
    path = notebook(tmp_path / "one.ipynb", "number = 1", "print(number)")
    with pytest.raises(InputError) as refusal:
        reproduce([path], {"nunber": 2}, tmp_path / "pages")
    assert "nunber" in str(refusal.value) and "did you mean 'number'" in str(refusal.value)
    assert not (tmp_path / "pages").exists()


def test_an_unknown_notebook_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match="table1_cifar10"):
        find_notebooks(["table1_cifar"])


def test_without_names_all_notebooks_are_meant():
    assert find_notebooks() == sorted(notebooks_folder().glob("*.ipynb"))


def test_a_table_is_the_committed_one_whichever_way_its_notebook_runs(tmp_path):
    """From another folder: by plain papermill and by `reproduce`, the same bytes as the committed CSV."""
    reproduce(["table3_long_tailed"], {"output": str(tmp_path / "a")}, tmp_path / "pages")
    command = [sys.executable, "-m", "papermill", str(ROOT / "notebooks" / "table3_long_tailed.ipynb"), "out.ipynb"]
    command += ["-p", "output", str(tmp_path / "b"), "--no-progress-bar"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    committed = (ROOT / "figures" / "table3_long_tailed.csv").read_bytes()
    assert (tmp_path / "a" / "table3_long_tailed.csv").read_bytes() == committed
    assert (tmp_path / "b" / "table3_long_tailed.csv").read_bytes() == committed
