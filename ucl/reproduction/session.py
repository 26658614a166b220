"""Common set-up of the notebooks: the runs of a notebook, their records, and the folder of its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ucl.config import Config, unique
from ucl.errors import InputError
from ucl.records import RecordStore, as_table, load_records
from ucl.records.store import report
from ucl.streams import datasets
from ucl.streams.datasets import ImageDataset


@dataclass(frozen=True)
class Session:
    """The table of the records of a notebook's runs, and the folder of its figures.

    Of `n` runs, each counted once, `missing` have no record.
    """

    runs: pd.DataFrame
    n: int
    missing: int
    output: Path

    def __str__(self) -> str:
        return f"{self.n - self.missing} of {self.n} runs measured"


def open_session(
    grid: Sequence[Config], store: str | Path, output: str | Path, compute: bool = False, device: str = "auto"
) -> Session:
    """Find the records of a notebook's runs; with `compute`, measure the missing ones first.

    A record counts only if its images and the source of the user objects are the current ones, see `ucl.sweep`.
    Without `compute`, records of other images are used too if there are no others; a warning says so.

    Args:
        grid: the runs.
        store: folder of the records.
        output: folder of the figures, which is created.
        compute: whether to measure runs that have no record yet.
        device: see `ucl.sweep`.

    Raises:
        InputError: there is no folder `store`, or `compute` is a text: `papermill -p compute false` gives "false".
    """
    if not isinstance(compute, bool):
        raise InputError("compute", compute, "give True or False (papermill -p compute False, ucl reproduce: false)")
    configs = unique(grid)
    store, output = Path(store), Path(output)
    output.mkdir(parents=True, exist_ok=True)
    if compute:
        from ucl.sweeps.sweep import sweep  # Imported here because committed records are shown without torch.

        sweep(configs, store=store, device=device)
    if not store.is_dir():
        load_records(store)  # Raises InputError.
    stored = sorted(RecordStore(store).find(configs).values(), key=lambda run: run.path)
    report(stored)
    records = [(run.path, run.record or (None if compute else run.outdated)) for run in stored]
    found = {path: record for path, record in records if record is not None}  # Two runs may share a record.
    return Session(as_table(found.values()), len(configs), sum(record is None for _, record in records), output)


def images_here(name: str, fingerprint: str = "") -> ImageDataset | None:
    """A data set if its images are on this machine; otherwise None, and one line says why. Nothing is downloaded.

    Without the images, a committed picture stays as it is.

    Args:
        name: a name that `ucl.datasets.load` takes.
        fingerprint: of the images that a record was measured on; with "", any version of the images is accepted.
    """
    if not any(row.name == name and row.where for row in datasets.available()):
        print(f"{name}: not on this machine, so its pictures are not drawn (`ucl data check {name}` downloads it)")
        return None
    data = datasets.load(name)
    if fingerprint and data.fingerprint != fingerprint:
        print(f"{name}: the images here differ from those of the records, so their pictures are not drawn")
        return None
    return data
