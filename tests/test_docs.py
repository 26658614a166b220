"""The documentation site: it builds without warnings, has every public name, and fetches nothing."""

import inspect
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from conftest import python
from filelock import FileLock

import ucl
from ucl import buffers, models, records, scorers, streams
from ucl.config import Config

ROOT = Path(__file__).parents[1]
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


class Page(HTMLParser):
    """The sources that a page loads, its anchors and its text."""

    def __init__(self, path):
        super().__init__()
        self.loaded, self.ids, self.text = [], set(), ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids.add(given.get("id"))
        if tag != "a" and not (tag == "link" and given.get("rel") in ("canonical", "next", "prev")):
            self.loaded += [value for name, value in attributes if name in ("src", "srcset", "href", "data", "poster")]

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory, worker_id):
    """The pages of the site by path; notebooks are not executed.

    Any warning is an error, such as a link that leads nowhere, or a page that is not in the menu.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "site"  # that of all processes of the suite
    with FileLock(f"{folder}.lock"):  # One process of the suite builds it.
        if not folder.exists():
            environment = {"UCL_EXECUTED": str(folder / "none"), "NO_MKDOCS_2_WARNING": "1"}
            python("-m", "mkdocs", "build", "--strict", "--site-dir", folder, environment=environment, cwd=ROOT)
    return {path: Page(path) for path in sorted(folder.rglob("*.html"))}, folder


def test_every_public_name_is_on_a_page_of_the_api(site):
    pages, folder = site
    ids = set().union(*(page.ids for path, page in pages.items() if path.is_relative_to(folder / "api")))
    for room in (scorers, buffers, streams, models, records):
        for name in room.__all__:
            assert any(re.fullmatch(rf"{room.__name__}\.\w+\.{name}", i or "") for i in ids), (room.__name__, name)
    listed = re.findall(r"`ucl\.(\w+)`", (ROOT / "docs" / "api" / "index.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(ucl.__all__)


def test_every_module_is_on_exactly_one_page_of_the_api(site):
    pages, _ = site
    for path in (ROOT / "ucl").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if not module.startswith("ucl._") and module != "ucl":
            assert sum(module in page.ids for page in pages.values()) == 1, module


def test_the_fields_of_a_configuration_are_explained(site):
    pages, folder = site
    text = " ".join(pages[folder / "api" / "config" / "index.html"].text.split())
    for field in Config.__dataclass_fields__.values():
        assert " ".join(field.metadata["help"].replace("`", "").split()) in text, field.name
    assert "= _field(" not in text  # The signature of Config is the source of its fields.


def test_a_reader_fetches_nothing_from_elsewhere(site):
    pages, folder = site
    for path, page in pages.items():
        assert [source for source in page.loaded if urlsplit(source).scheme not in ("", "data")] == [], path
    for path in folder.rglob("*.css"):
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"@import.*|url\([\s'\"]*(?:\w+:)?//[^)]*", text) == [], path
    assert "font: false" in CONFIG and "repo_url" not in CONFIG  # Otherwise the theme would contact Google and GitHub.


def test_every_formula_is_set(site):
    pages, _ = site
    markup = {path: path.read_text(encoding="utf-8") for path in pages}
    assert sum(text.count("<math") for text in markup.values()) > 40
    for path, text in markup.items():
        assert "arithmatex" not in text, path
        outside = re.sub(r"<(pre|code|script|math)\b.*?</\1>", "", text, flags=re.DOTALL)
        assert not re.search(r"\$[^$<]*[\\_^][^$<]*\$", outside), path


def test_the_search_finds_what_is_written_for_readers_and_no_source_code(site):
    pages, folder = site
    entries = json.loads((folder / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    assert any("def " in page.text for page in pages.values())  # Each function has its source below its description.
    assert not [entry["location"] for entry in entries if "Source code in" in entry["text"]]
    texts = {entry["location"]: entry["text"] for entry in entries}
    for name in (name for name in ucl.scorers.__all__ if inspect.isroutine(getattr(ucl.scorers, name))):
        anchor = re.compile(rf"api/\w+/#ucl\.scorers\.\w+\.{name}")
        (text,) = (text for location, text in texts.items() if anchor.fullmatch(location))
        described = getattr(ucl.scorers, name).__doc__.split("\n")[0].replace("`", "")
        assert " ".join(described.split()[:4]) in " ".join(re.sub(r"<[^>]+>", "", text).split()), name
