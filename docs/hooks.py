"""What MkDocs does not do itself: pages made from the repository's files, and formulas as MathML.

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
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

from ucl.config import Config
from ucl.reproduction.pages import readable

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# Notebooks that `make docs` has executed. Others, the lessons, are shown as they are committed.
EXECUTED = Path(os.environ.get("UCL_EXECUTED", ROOT / "build" / "executed"))
# Fenced blocks instead of nbconvert's indented ones, which cannot have a class.
TEMPLATE = r"""
{%- extends 'markdown/index.md.j2' -%}
{% macro fenced(text) %}
````{.text .output}
{{ text | strip_ansi | trim('\n') }}
````
{% endmacro %}
{% block stream %}{{ fenced(output.text) }}{% endblock stream %}
{% block data_text scoped %}{{ fenced(output.data['text/plain']) }}{% endblock data_text %}
{% block data_png %}
![Picture drawn by the code above]({{ output.metadata.filenames['image/png'] }}){ loading=lazy }
{% endblock data_png %}
"""
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
NOTEBOOK_LINK = re.compile(r"\]\((?:([\w./]+)\.ipynb)?(#[^)]*)?\)")
# The signature of Config and of its Fields is their source: the list of the fields says the same in words.
FIELDS_SIGNATURE = re.compile(
    r'(id="ucl\.(?:config\.Config|fields\.Fields)".*?)<div class="[^"]*doc-signature.*?</div>', re.DOTALL
)


def on_config(config: Any) -> Any:
    """Add the pages of the API to the menu."""
    (api,) = (part["API"] for part in config["nav"] if "API" in part)
    api += [{room: f"api/{room}.md"} for room in rooms()]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and files that are made from the repository's."""
    contents: dict[str, str | bytes] = {name: path.read_bytes() for name, path in copied().items()}
    for path in NOTEBOOKS:
        executed = EXECUTED / path.name
        text, pictures = notebook_page(executed if executed.exists() else path)
        contents |= {f"notebooks/{name}": content for name, content in pictures.items()}
        contents[f"notebooks/{path.stem}.md"] = text
    contents |= {f"api/{room}.md": api_page(room) for room in rooms()}
    for name, content in contents.items():
        files.append(File.generated(config, name, content=content))
    return files


def copied() -> dict[str, Path]:
    """The files of the repository that are on the site as they are, by their paths there."""
    names = ("CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "CITATION.cff")
    figures = [path for path in (ROOT / "figures").iterdir() if path.suffix in (".png", ".csv", ".md")]
    paths = [*(ROOT / name for name in names), *sorted(figures)]
    return {"index.md": ROOT / "README.md"} | {path.relative_to(ROOT).as_posix(): path for path in paths}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lead links to notebooks to their pages. Jupyter's anchor of a heading has its capitals, the site's does not."""
    return NOTEBOOK_LINK.sub(lambda link: f"]({link[1] + '.md' if link[1] else ''}{(link[2] or '').lower()})", markdown)


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


def rooms() -> list[str]:
    """The public modules and packages of `ucl`."""
    return sorted(path.stem for path in (ROOT / "ucl").iterdir() if re.fullmatch(r"[a-z]\w*(\.py)?", path.name))


def api_page(room: str) -> str:
    """Markdown of the page of a room, which mkdocstrings fills in; a package has all its modules on it.

    What a package offers is documented where it is defined, so that each name is there once.
    """
    modules = sorted(path.stem for path in (ROOT / "ucl" / room).glob("*.py") if path.stem != "__init__")
    options = "{heading_level: 1, members: false}" if modules else "{heading_level: 1}"
    parts = [f"::: ucl.{room}\n    options: {options}", *(f"::: ucl.{room}.{module}" for module in modules)]
    return "\n\n".join([fields(), *parts] if room == "config" else parts) + "\n"


def fields() -> str:
    """The fields of `Config` with their defaults, meaning and choices, as the command line shows them."""
    lines = ["## Fields of Config", ""]
    for field in dataclasses.fields(Config):
        default = "" if field.default is None else f", default `{field.default!r}`"
        lines.append(f"- **`{field.name}`** (`{field.type}`{default}): {field.metadata['help']}")
        choices = field.metadata["choices"]
        if isinstance(choices, dict):
            lines += [f"    - `{name}`: {text}" for name, text in choices.items()]
        elif choices:
            lines.append(f"    - one of {', '.join(f'`{name}`' for name in choices)}")
    return "\n".join(lines)


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Markdown of a notebook with its outputs, and its pictures by file name."""
    notebook = readable(nbformat.read(path, as_version=4))
    notebook.cells = [cell for cell in notebook.cells if "injected-parameters" not in cell.metadata.get("tags", [])]
    for cell in notebook.cells:
        # Warnings name the folders of the machine that built the site.
        cell.outputs = [output for output in cell.get("outputs", []) if output.get("name") != "stderr"]
        for data in (output.data for output in cell.outputs if "text/html" in output.get("data", {})):
            without_style = re.sub(r"<style\b.*?</style>", "", data["text/html"], flags=re.DOTALL)
            data["text/html"] = re.sub(r"\n\s*\n", "\n", without_style)  # A blank line would end the HTML block.
    exporter = MarkdownExporter(raw_template=TEMPLATE)
    text, resources = exporter.from_notebook_node(notebook, {"unique_key": path.stem, "metadata": {"name": path.stem}})
    return text, resources.get("outputs", {})
