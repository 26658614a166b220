"""Batch execution of notebooks with papermill, one process each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import torch

from ucl.errors import MOST_AT_ONCE, InputError, one_of, whole_number
from ucl.reproduction.pages import Outcome, write_index, write_page

_FOLDERS = ("store", "output")  # parameters of notebooks
_PAPERMILL = "import json, sys, papermill; papermill.execute_notebook(**json.loads(sys.argv[1]))"


def notebooks_folder() -> Path:
    """The folder `notebooks` of this checkout, or of the working folder if the package does not run from a checkout."""
    here = Path(__file__).resolve().parents[2] / "notebooks"
    return here if here.is_dir() else Path("notebooks").resolve()


def find_notebooks(names: Sequence[str] = ()) -> list[Path]:
    """The notebooks with the given names or paths, each once; without names, all of `notebooks_folder`.

    Raises:
        InputError: there is no such notebook.
    """
    by_name = {path.stem: path for path in sorted(notebooks_folder().glob("*.ipynb"))}
    selected = []
    for name in map(str, names):
        if name.endswith(".ipynb") and Path(name).is_file():
            selected.append(Path(name).resolve())
        else:
            one_of("notebook", name.removesuffix(".ipynb"), by_name)
            selected.append(by_name[name.removesuffix(".ipynb")])
    if not selected and not by_name:
        raise InputError("notebook", str(notebooks_folder()), "no notebooks there; run this in a copy of the project")
    return list(dict.fromkeys(selected)) or list(by_name.values())


def reproduce(
    names: Sequence[str] = (),
    parameters: Mapping[str, Any] | None = None,
    output: str | Path = "reproduced",
    jobs: int = 1,
) -> list[Outcome]:
    """Execute notebooks and write executed copies, HTML pages and an index; one that fails does not stop the others.

    Args:
        names: names or paths of notebooks; empty for all.
        parameters: values for the notebooks' parameter cell; the folders `store` and `output` are relative to the
            working folder of the caller.
        output: folder for <name>.ipynb (or <name>.failed.ipynb), <name>.html and index.html.
        jobs: notebooks at a time; they share this process's threads.

    Returns:
        One outcome per notebook, in the same order.

    Raises:
        InputError: a notebook does not exist, or it has no parameter of a given name.
    """
    import papermill

    whole_number("jobs", jobs, 1, MOST_AT_ONCE)
    paths = find_notebooks(names)
    parameters = dict(parameters or {})
    for path in paths:
        for name in parameters:  # papermill itself would only warn
            one_of("parameter", name, papermill.inspect_notebook(str(path)), f"parameter of {path.stem}")
    folder = Path(output).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    # With more threads than cores, threads use the cores while they wait for each other, and all notebooks become many
    # times slower.
    threads = max(1, torch.get_num_threads() // jobs)
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        try:
            outcomes = list(pool.map(partial(_execute, parameters=parameters, folder=folder, threads=threads), paths))
        except BaseException:  # Ctrl-C or SIGTERM: without it, the pool would wait for the notebooks.
            pool.shutdown(wait=False, cancel_futures=True)
            for child in psutil.Process().children(recursive=True):  # papermill and its kernels
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            raise
    for outcome in outcomes:
        if outcome.executed.exists():
            write_page(outcome)
    write_index(outcomes, folder)
    return outcomes


def _execute(path: Path, parameters: Mapping[str, Any], folder: Path, threads: int) -> Outcome:
    folders = {name: value for name, value in parameters.items() if name in _FOLDERS and value}
    given = {**parameters, **{name: os.path.relpath(value, path.parent) for name, value in folders.items()}}
    # A notebook is complete if its name is `done`; one that is stopped leaves the earlier result.
    done, failed = folder / f"{path.stem}.ipynb", folder / f"{path.stem}.failed.ipynb"
    failed.unlink(missing_ok=True)
    call = dict(input_path=str(path), output_path=str(failed), parameters=given)
    command = [sys.executable, "-c", _PAPERMILL, json.dumps(call | dict(kernel_name="python3", progress_bar=False))]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    begin = time.perf_counter()
    ended = subprocess.run(command, cwd=path.parent, env=env, capture_output=True, text=True, errors="replace")
    seconds = time.perf_counter() - begin
    if ended.returncode == 0:
        return Outcome(path.stem, seconds, "", failed.replace(done))
    if ended.returncode > 0:  # not killed
        done.unlink(missing_ok=True)
    lines = ended.stderr.strip().splitlines() or ["stopped"]
    return Outcome(path.stem, seconds, lines[-1], failed)
