"""Batch execution of notebooks with papermill, one process each, and HTML pages of the results."""

from __future__ import annotations

import base64
import html
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch

from ucl.errors import InputError, one_of
from ucl.reproduction import colab

_CSS = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
a { color: #0173b2; }
img { max-width: 100%; height: auto; }
pre { overflow-x: auto; }
table { border: 0; border-collapse: collapse; font-size: .9rem; }
td, th { padding: .2rem .6rem; border: 0; border-bottom: 1px solid #ddd; text-align: right; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(18rem, 100%), 1fr)); gap: 1.2rem; }
.card { border: 1px solid #ddd; border-radius: .4rem; padding: .8rem; overflow-wrap: anywhere; }
.card img { display: block; margin: .5rem auto; max-height: 12rem; }
.card h2 { font-size: 1.05rem; margin: 0; }
.failed { border-color: #d55e00; }
.failed strong { color: #a34700; }
.highlight { background: #f6f6f6; margin: .8rem 0; padding: .1rem .6rem; font-size: .85rem; }
.output_subarea { overflow-x: auto; }
.prompt { display: none; }
"""
# papermill in a process that ends when its standard input ends, and kills its kernel then. Alone, a kernel would notice
# the end of papermill within a second, but not during a long call.
_STOPPED = 75
_PAPERMILL = f"""
import os, sys, threading

def end_with_input():
    os.read(0, 1)
    import psutil
    for process in psutil.Process().children(recursive=True):
        process.kill()
    os._exit({_STOPPED})

threading.Thread(target=end_with_input, daemon=True).start()
from papermill.__main__ import papermill
papermill(prog_name="papermill")
"""
_WIDGET = "application/vnd.jupyter.widget-view+json"

# Tags and attributes that a page may have. All others are removed: scripts, forms, frames, event handlers, and
# everything that would be downloaded.
# fmt: off
_TAGS = [
    "a", "abbr", "b", "blockquote", "br", "caption", "code", "col", "colgroup", "dd", "del", "details", "div",
    "dl", "dt", "em", "figcaption", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "img", "kbd", "li",
    "ol", "p", "pre", "s", "samp", "small", "span", "strong", "sub", "summary", "sup", "table", "tbody", "td",
    "tfoot", "th", "thead", "tr", "u", "ul", "var",
]
_ATTRIBUTES = [
    "align", "alt", "border", "class", "colspan", "height", "id", "lang", "open", "rowspan", "scope", "start",
    "title", "valign", "width",
]
# fmt: on
_LINK = re.compile(r"https?://|mailto:|#|[\w.-][\w./-]*(#|$)")
_PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp|svg\+xml)[;,]")
_COMMITTED_PICTURE = re.compile(r"!\[[^\]]*\]\(\.\./figures/[^)]*\)\n*")
_STYLE_OR_SCRIPT = re.compile(r"<(style|script)\b[^>]*>(.*?)</\1\s*>", re.DOTALL | re.IGNORECASE)
_MORE_THAN_STYLE = re.compile(r"[<@\\(]")  # These start an import, a function such as url(), or another element.


@dataclass(frozen=True)
class Outcome:
    """The result of executing a notebook.

    Attributes:
        name: name of the notebook, without folder and suffix.
        seconds: time of the execution.
        error: "" if it was executed completely, otherwise the failed cell and its error in one line.
        executed: the executed copy; for a failed notebook up to the failed cell.
    """

    name: str
    seconds: float
    error: str
    executed: Path


def notebooks_folder() -> Path:
    """The folder `notebooks` of this checkout, or of the working folder if the package does not run from a checkout."""
    here = Path(__file__).resolve().parents[2] / "notebooks"
    return here if here.is_dir() else Path("notebooks").resolve()


def find_notebooks(names: Sequence[str] = ()) -> list[Path]:
    """The notebooks with the given names or paths; without names, all of `notebooks_folder`.

    Raises:
        InputError: there is no such notebook.
    """
    known = {path.stem: path for path in sorted(notebooks_folder().glob("*.ipynb")) if path.is_file()}
    if not names and not known:
        raise InputError(
            "notebook", str(notebooks_folder()), "no notebooks there; run this in a checkout of the project"
        )
    found = []
    for name in names:
        if Path(name).suffix == ".ipynb" and Path(name).is_file():
            found.append(Path(name).resolve())
        else:
            one_of("notebook", Path(name).stem, known)
            found.append(known[Path(name).stem])
    return found or list(known.values())


def reproduce(
    names: Sequence[str] = (),
    parameters: Mapping[str, Any] | None = None,
    output: str | Path = "reproduced",
    jobs: int = 1,
) -> list[Outcome]:
    """Execute notebooks and write executed copies, HTML pages and an index with pictures.

    A notebook that fails does not stop the others. Executed copies are written to temporary files and then renamed, so
    a file with its final name is complete.

    Args:
        names: names or paths of notebooks; empty for all.
        parameters: values for the notebooks' parameter cell.
        output: folder for <name>.ipynb (or <name>.failed.ipynb), <name>.html and index.html.
        jobs: notebooks at a time; they share this process's threads.

    Returns:
        One outcome per notebook, in the same order.

    Raises:
        InputError: a notebook does not exist, or has no parameter of a given name, or the folder can't be created.
    """
    paths = find_notebooks(names)
    parameters = dict(parameters or {})
    for path in paths:
        check_parameters(path, parameters)
    folder = Path(output).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("output", str(output), f"can't be created ({error.strerror}); give another folder") from None
    threads = max(1, torch.get_num_threads() // jobs)
    with ThreadPoolExecutor(max_workers=jobs) as pool, _lifeline() as lifeline:
        outcomes = list(pool.map(lambda path: _execute(path, parameters, folder, threads, lifeline), paths))
    for outcome in outcomes:
        write_page(outcome)
    write_index(outcomes, folder)
    return outcomes


def check_parameters(path: Path, parameters: Mapping[str, Any]) -> None:
    """Check that a notebook has all given parameters; papermill itself would only warn.

    Raises:
        InputError: the notebook has no such parameter; the message lists its parameters.
    """
    import papermill

    known = papermill.inspect_notebook(str(path))
    for name in parameters:
        if name not in known:
            one_of("parameter", name, known, f"parameter of {path.stem}")


@contextmanager
def _lifeline() -> Iterator[int]:
    """A standard input for child processes that ends with this block, and with this process, however it ends."""
    theirs, ours = os.pipe()
    try:
        yield theirs
    finally:
        os.close(ours)
        os.close(theirs)


def _execute(path: Path, parameters: Mapping[str, Any], folder: Path, threads: int, lifeline: int) -> Outcome:
    import yaml

    part = folder / f".{path.stem}.{os.getpid()}.part.ipynb"
    done, failed = folder / f"{path.stem}.ipynb", folder / f"{path.stem}.failed.ipynb"
    # One process per notebook, because papermill's working folder is that of its process.
    command = [sys.executable, "-c", _PAPERMILL, str(path), str(part), "--cwd", str(path.parent), "--no-progress-bar"]
    command += ["--kernel", "python3", "--parameters_yaml", yaml.safe_dump(dict(parameters))]
    # With more threads than cores, threads spin while they wait for each other, and all notebooks become many times
    # slower.
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    begin = time.perf_counter()
    with TemporaryFile() as stderr:  # A file instead of a pipe: a kernel may keep a pipe open after papermill's end.
        status = subprocess.run(command, stdin=lifeline, stdout=subprocess.DEVNULL, stderr=stderr, env=env).returncode
        stderr.seek(0)
        last_line = _last_line(stderr.read().decode(errors="replace"))
    seconds = time.perf_counter() - begin
    error = "" if status == 0 else _error_of(part) or last_line
    if status == _STOPPED:
        part.unlink(missing_ok=True)
        return Outcome(path.stem, seconds, "stopped", done)
    done.unlink(missing_ok=True)
    failed.unlink(missing_ok=True)
    target = failed if error else done
    if part.exists():
        part.replace(target)
    return Outcome(path.stem, seconds, error, target)


def _error_of(executed: Path) -> str:
    import nbformat

    if not executed.exists():
        return ""
    for number, cell in enumerate(nbformat.read(executed, as_version=4).cells):
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                # The number is from 1, because papermill inserts a banner cell at the top.
                return f"cell {number}: {output.ename}: {' '.join(output.evalue.split())}"
    return ""


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "failed without an error message"


def write_page(outcome: Outcome) -> Path | None:
    """Write the executed notebook as <name>.html: one file without scripts and downloads; None if not executed."""
    import nbformat
    from nbconvert import HTMLExporter
    from pygments.formatters import HtmlFormatter

    if not outcome.executed.exists():
        return None
    notebook = nbformat.read(outcome.executed, as_version=4)
    notebook.metadata.pop("widgets", None)
    notebook.cells = [cell for cell in notebook.cells if colab.TAG not in cell.metadata.get("tags", [])]
    for cell in notebook.cells:
        cell.source = colab.with_badge(cell.source)  # Remove the badge, whose picture would be downloaded.
        if cell.cell_type == "markdown":  # Remove committed pictures: the page has those of this execution.
            cell.source = _COMMITTED_PICTURE.sub("", cell.source)
        if cell.cell_type == "code":  # Remove progress bars: they are widgets, which need scripts.
            cell.outputs = [output for output in cell.outputs if _WIDGET not in output.get("data", {})]
    body, _ = HTMLExporter(template_name="basic", exclude_anchor_links=True).from_notebook_node(notebook)
    body, styles = sanitized(body)
    style = HtmlFormatter().get_style_defs(".highlight") + styles
    page = outcome.executed.parent / f"{outcome.name}.html"
    page.write_text(
        _page(outcome.name, f'<p><a href="index.html">all notebooks</a></p>{body}', style), encoding="utf-8"
    )
    return page


def sanitized(body: str) -> tuple[str, str]:
    """HTML without anything that executes or downloads, and the text of its plain style sheets.

    Tables, embedded pictures, highlighted code and formulas do not change.
    """
    import bleach

    styles = [text for kind, text in _STYLE_OR_SCRIPT.findall(body) if kind.lower() == "style"]
    body = bleach.clean(
        _STYLE_OR_SCRIPT.sub("", body),  # bleach would remove the tags, but keep their text.
        tags=_TAGS,
        attributes=_is_harmless,
        protocols=["http", "https", "mailto", "data"],
        strip=True,
    )
    return body, "".join(text for text in styles if not _MORE_THAN_STYLE.search(text))


def _is_harmless(tag: str, name: str, value: str) -> bool:
    if (tag, name) == ("a", "href"):
        return _LINK.match(value) is not None
    if (tag, name) == ("img", "src"):
        return _PICTURE.match(value) is not None
    return name in _ATTRIBUTES


def write_index(outcomes: Sequence[Outcome], folder: Path) -> Path:
    """Write index.html: one card per notebook, with its first picture, or its error."""
    cards = []
    for outcome in outcomes:
        name = html.escape(outcome.name)
        link = f'<a href="{name}.html">{name}</a>' if outcome.executed.exists() else name
        state = f"<strong>failed: {html.escape(outcome.error)}</strong>" if outcome.error else "ran to its end"
        picture = _first_picture(outcome.executed)
        image = f'<img alt="first picture of {name}" src="data:image/png;base64,{picture}">' if picture else ""
        card = "card failed" if outcome.error else "card"
        cards.append(f'<div class="{card}"><h2>{link}</h2>{image}<p>{state}, {outcome.seconds:.0f} s</p></div>')
    page = folder / "index.html"
    page.write_text(
        _page("Notebooks", f'<h1>Notebooks</h1><div class="cards">{"".join(cards)}</div>'), encoding="utf-8"
    )
    return page


def _first_picture(executed: Path) -> str:
    import nbformat

    if not executed.exists():
        return ""
    for cell in nbformat.read(executed, as_version=4).cells:
        for output in cell.get("outputs", []):
            if picture := output.get("data", {}).get("image/png"):
                return base64.b64encode(base64.b64decode(picture)).decode()
    return ""


def _page(title: str, body: str, style: str = "") -> str:
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{html.escape(title)}</title>'
    )
    head += f'<link rel="icon" href="data:,"><style>{_CSS}{style}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'
