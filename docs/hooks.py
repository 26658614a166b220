"""What MkDocs does not do itself: pages made from the repository's files, formulas as MathML, tables that scroll.

Nothing here imports torch or needs the network. A page has the path of the file that it is made from, so relative
links work on the site as they do in the repository.
"""

from __future__ import annotations

import dataclasses
import html
import os
import re
from pathlib import Path
from typing import Any

import nbformat
from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

from ucl.config import Config
from ucl.reproduction import colab
from ucl.reproduction.pages import readable

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "figures"
# Notebooks that `make docs` has executed. One that is not there is shown without outputs.
EXECUTED = Path(os.environ.get("UCL_EXECUTED", ROOT / "build" / "executed"))
NOT_EXECUTED = """
!!! note "Without outputs"

    This notebook was not executed for the site. Run it in Jupyter to see its outputs.
"""
API = {  # page: its title and what it documents; a package with all its modules
    "config": ("Configuration", ["config", "fields", "catalogue", "errors"]),
    "experiment": ("One run", ["experiment", "listeners", "assembly"]),
    "evaluation": ("Evaluation", ["evaluation"]),
    "streams": ("Streams and data sets", ["streams"]),
    "models": ("Networks", ["models"]),
    "scorers": ("Views and scores", ["scorers"]),
    "buffers": ("Replay memories", ["buffers"]),
    "methods": ("Methods", ["methods"]),
    "metrics": ("Measures", ["metrics"]),
    "records": ("Records", ["records"]),
    "sweeps": ("Sweeps", ["sweeps"]),
    "evidence": ("Evidence", ["evidence"]),
    "plots": ("Figures", ["plots"]),
    "report": ("Pages of results", ["report"]),
    "studies": ("Studies", ["studies"]),
    "benchmarks": ("Benchmarks", ["benchmarks"]),
    "reproduction": ("Notebooks in batch", ["reproduction"]),
    "avalanche": ("Avalanche", ["avalanche"]),
    "user_objects": ("Own objects", ["user_objects"]),
    "machine": ("Machine", ["machine"]),
    "cli": ("Command", ["cli"]),
}
# Fenced blocks instead of nbconvert's indented ones, which cannot have a class.
TEMPLATE = """
{%- extends 'markdown/index.md.j2' -%}
{% block stream %}
{{ fenced(output.text) }}
{% endblock stream %}
{% block data_text scoped %}
{{ fenced(output.data['text/plain']) }}
{% endblock data_text %}
{% block data_png %}
![Picture drawn by the code above]({{ output.metadata.filenames['image/png'] }}){ loading=lazy }
{% endblock data_png %}
"""
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
# Results that the notebooks link to.
LINKED_RESULTS = ("RESULTS.md", "PROTOCOL.md", "table1_cifar10.md", "table2_cifar100.md", "table3_long_tailed.md")
# Results link files as seen from the project's folder or from figures/, and are shown on a page of notebooks/.
LINK = re.compile(r"\]\((?:figures/)?(\w+\.\w+)\)")
# Jupyter's anchor of a heading has its capitals, the site's does not.
NOTEBOOK_LINK = re.compile(r"\]\((\w+)\.ipynb(#[^)]*)?\)")
# The signature of Config and of its Fields is their source: the list of the fields says the same in words.
FIELDS_SIGNATURE = re.compile(
    r'(id="ucl\.(?:config\.Config|fields\.Fields)".*?)<div class="[^"]*doc-signature.*?</div>', re.DOTALL
)
STYLE = re.compile(r"<style\b.*?</style>", re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and files that are made from the repository's."""

    def add(path: str, content: str | bytes) -> None:
        files.append(File.generated(config, path, content=content))

    add("index.md", (ROOT / "README.md").read_text(encoding="utf-8"))
    for name in ("CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "CITATION.cff"):
        add(name, (ROOT / name).read_text(encoding="utf-8"))
    for path in sorted(FIGURES.iterdir()):
        if path.suffix in (".png", ".csv") or path.name in LINKED_RESULTS:
            add(f"figures/{path.name}", path.read_bytes())
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        text, pictures = notebook_page(path.stem)
        add(f"notebooks/{path.stem}.md", text)
        for name, content in pictures.items():
            add(f"notebooks/{name}", content)
    add("gallery.md", gallery())
    for page in API:
        add(f"api/{page}.md", api_page(page))
    return files


def on_page_content(content: str, **_: Any) -> str:
    """Set formulas as MathML, let the theme style the tables of pandas, and keep source code out of the search."""
    content = FORMULA.sub(lambda match: formula(html.unescape(match[2]), match[1] == "div"), content)
    content = FIELDS_SIGNATURE.sub(r"\1", content)
    content = content.replace('class="mkdocstrings-source"', 'class="mkdocstrings-source" data-search-exclude')
    # The theme scrolls and styles tables without a class.
    return re.sub(r"<table [^>]*>", "<table>", content)


def formula(tex: str, block: bool) -> str:
    """A formula as MathML, which browsers set themselves; the source is its text for copying."""
    mathml = convert(tex.strip(), display="block" if block else "inline")
    return f'<div class="formula">{mathml}</div>' if block else mathml


def api_page(page: str) -> str:
    """Markdown of a page of the API, which mkdocstrings fills in.

    What a package offers is documented where it is defined, so that no name is there twice.
    """
    title, rooms = API[page]
    lines = [f"# {title}"]
    if page == "config":
        lines.append(fields())
    for room in rooms:
        folder = ROOT / "ucl" / room
        lines.append(f"::: ucl.{room}" + ("\n    options: {members: false}" if folder.is_dir() else ""))
        lines += [f"::: ucl.{room}.{path.stem}" for path in sorted(folder.glob("*.py")) if path.stem != "__init__"]
    return "\n\n".join(lines) + "\n"


def fields() -> str:
    """The fields of `Config` with their defaults, meaning and choices, as the command line shows them."""
    lines = ["## Fields of Config"]
    for field in dataclasses.fields(Config):
        default = "" if field.default is None else f", default `{field.default!r}`"
        lines.append(f"- **`{field.name}`** (`{field.type}`{default}): {field.metadata['help']}")
        choices = field.metadata["choices"]
        if isinstance(choices, dict):
            lines += [f"    - `{name}`: {text}" for name, text in choices.items()]
        elif choices:
            lines.append(f"    - one of {', '.join(f'`{name}`' for name in choices)}")
    return "\n".join([lines[0], "", *lines[1:]])


def notebook_page(name: str) -> tuple[str, dict[str, bytes]]:
    """Markdown of a notebook with its outputs, and its pictures by file name."""
    executed = EXECUTED / f"{name}.ipynb"
    source = executed if executed.exists() else ROOT / "notebooks" / f"{name}.ipynb"
    notebook = nbformat.read(source, as_version=4)
    if source == executed:
        notebook = readable(notebook)
    notebook.cells = [cell for cell in notebook.cells if not {colab.TAG, "injected-parameters"} & set(tags(cell))]
    for cell in notebook.cells:
        # Warnings name the folders of the machine that built the site.
        cell.outputs = [one for one in cell.get("outputs", []) if one.get("name") != "stderr"]
        for output in cell.outputs:
            data = output.get("data", {})
            if "text/html" in data:  # A blank line would end the HTML block.
                data["text/html"] = re.sub(r"\n\s*\n", "\n", STYLE.sub("", data["text/html"]))
            if "text/markdown" in data:
                data["text/markdown"] = LINK.sub(r"](../figures/\1)", data["text/markdown"])
    exporter = MarkdownExporter(raw_template=TEMPLATE)
    exporter.environment.globals["fenced"] = fenced
    text, resources = exporter.from_notebook_node(notebook, {"unique_key": name, "metadata": {"name": name}})
    text = NOTEBOOK_LINK.sub(lambda match: f"]({match[1]}.md{(match[2] or '').lower()})", text)
    if source != executed:
        title, _, rest = text.lstrip().partition("\n")
        text = f"{title}\n{NOT_EXECUTED}\n{rest}"
    return text, resources.get("outputs", {})


def tags(cell: Any) -> list[str]:
    """The tags of a cell."""
    return cell.metadata.get("tags", [])


def fenced(text: str) -> str:
    """Text of an output as a fenced block."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).strip("\n")
    return f"````{{.text .output}}\n{plain}\n````"


def gallery() -> str:
    """A page with each committed picture, its caption, and a link to the notebook that draws it."""
    sources = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
    cards = [picture_card(path.stem, sources) for path in sorted(FIGURES.glob("*.png"))]
    return f'# Gallery\n\n<div class="grid cards" markdown>\n\n{"".join(cards)}\n</div>\n'


def picture_card(picture: str, sources: dict[str, str]) -> str:
    """The entry of a picture in the gallery.

    Raises:
        PluginError: no notebook draws it.
    """
    drawn = [name for name in sources if picture.startswith(name)]
    drawn += [name for name, source in sources.items() if f'/ \\"{picture}\\"' in source]
    drawn += [name for name, source in sources.items() if f"](../figures/{picture}.png)" in source]
    if not drawn:
        raise PluginError(f"figures/{picture}.png: no notebook saves or shows it; remove it or show it in its notebook")
    captions = re.findall(rf"!\[([^\]]+)\]\(\.\./figures/{re.escape(picture)}\.png\)", sources[drawn[0]])
    caption = captions[0] if captions else picture
    title = re.findall(r'"# (.*?)(?:\\n)?"', sources[drawn[0]])[0]
    page = f"notebooks/{drawn[0]}.md"
    image = f"[![{caption}](figures/{picture}.png){{ loading=lazy }}]({page})"
    return f"-   {image}\n\n    {caption if captions else f'`{picture}`'}. [{title}]({page})\n\n"
