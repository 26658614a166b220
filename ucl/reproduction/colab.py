"""Google Colab: what the set-up cell of the notebooks calls."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.request import urlretrieve

from ucl.errors import InputError

PINNED = ("torch", "torchvision", "numpy", "jupyter-server")


def set_up(source: str, folder: str | Path = "/content") -> None:
    """Put the whole project into `folder`/ucl, install missing packages, and change to its folder of notebooks.

    The set-up cell has installed only the package; the notebooks need the records of the project as well. Colab's own
    `PINNED` packages are not changed, because pip would replace torch with another build of several gigabytes.

    Args:
        source: path or address of a zip archive of the project.
        folder: a project that is already in `folder`/ucl is used as it is; a printed line says so.

    Raises:
        InputError: the archive is of something else than the project.
    """
    folder = Path(folder)
    project = folder / "ucl"
    if project.exists():
        print(f"{project} is used as it is; delete it to make it from {source} again")
    else:
        _unpack(source, project)
    pins = folder / "pins.txt"
    pins.write_text("\n".join(f"{name}=={version(name)}" for name in PINNED))
    pip = [sys.executable, "-m", "pip", "install", "-q"]
    subprocess.run([*pip, "-c", str(pins), "-e", str(project)], check=True)
    for name in [name for name in sys.modules if name.partition(".")[0] == "ucl"]:
        del sys.modules[name]  # The next import finds the project instead of the package that the cell installed.
    sys.path.insert(0, str(project))  # A running kernel does not see an editable installation.
    os.chdir(project / "notebooks")


def _unpack(source: str, project: Path) -> None:
    """Unpack an archive of the project, with or without a folder around it, as GitHub and `git archive` make them."""
    with tempfile.TemporaryDirectory(dir=project.parent) as whole:
        shutil.unpack_archive(urlretrieve(source)[0] if "://" in source else source, whole, "zip")
        roots = [root for root in (Path(whole), *Path(whole).iterdir()) if (root / "ucl" / "__init__.py").is_file()]
        if not roots:
            raise InputError("source", source, "no archive of the project; make it by: git archive -o ucl.zip HEAD")
        shutil.copytree(roots[0], project)


def is_setup(cell: Mapping[str, Any]) -> bool:
    """Whether a cell of a notebook is the set-up cell."""
    return "colab" in cell["metadata"].get("tags", [])
