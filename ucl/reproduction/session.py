"""Common set-up of the notebooks: the runs of a notebook, their records, and the folder of its figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ucl.config import Config, unique
from ucl.errors import InputError, one_of
from ucl.evidence import paper
from ucl.records import RecordStore, as_table, load_records
from ucl.records.store import report
from ucl.streams import datasets
from ucl.streams.datasets import ImageDataset

PROFILES = {
    "published": "the committed records; nothing is trained unless compute is True, and then only missing runs",
    "smoke": "a minute of real training on a small part of digits: shows that the code works, and nothing else",
}
_SMOKE_LABELS = ("ER", "CBR", "A-GEM", "BI bottom", "BI top")


@dataclass(frozen=True)
class Session:
    """The runs of a notebook, each once, the table of their records, and the folders of records and of figures."""

    configs: list[Config]
    runs: pd.DataFrame
    store: Path
    output: Path

    @property
    def missing(self) -> int:
        """Number of runs without a record."""
        # A record with further tests is also one of the same run without them, see `RecordStore.find`.
        configs = [record.config for record in self.runs["record"]]
        measured = {same.experiment for config in configs for same in (config, config.without_further_tests)}
        return sum(config.experiment not in measured for config in self.configs)

    def __str__(self) -> str:
        return f"{len(self.configs) - self.missing} of {len(self.configs)} runs measured"


def figures_folder() -> Path:
    """The folder `figures` of the checkout, or of the working folder if the package does not run from a checkout."""
    checkout = Path(__file__).resolve().parents[2]
    return (checkout if (checkout / "notebooks").is_dir() else Path.cwd()) / "figures"


def output_folder(output: str | Path | None = None) -> Path:
    """The folder for a notebook's results, created if missing: `output` if given, otherwise `figures_folder`."""
    folder = Path(output) if output else figures_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def profile_folder(
    profile: str, output: str | Path | None = None, compute: bool = False, store: str | Path | None = None
) -> Path:
    """The folder for the results of a notebook with profiles: `output_folder`, or figures/smoke with "smoke".

    It is an InputError if `compute` is not a bool, or if results of other records would replace the committed ones. The
    arguments are those of `open_session`.
    """
    one_of("profile", profile, PROFILES)
    if not isinstance(compute, bool):  # `papermill -p compute false` gives the text "false", which counts as true.
        raise InputError("compute", compute, "give True or False; papermill -p reads any other spelling as text")
    if profile == "smoke":
        return output_folder(output or figures_folder() / "smoke")
    if store and not output and Path(store).resolve() != (figures_folder() / "runs").resolve():
        reason = f"its results would replace those in {figures_folder()}; with another store give output too"
        raise InputError("store", str(store), reason)
    return output_folder(output)


def seed_list(seeds: Iterable[int]) -> list[int]:
    """The seeds of a notebook as a list; InputError if they are not a list of numbers, or there is none."""
    paper.check_seeds(seeds)
    given = list(seeds)
    if not given:
        raise InputError("seeds", given, "give at least one seed")
    return given


def open_session(
    grid: str | Sequence[Config],
    profile: str = "published",
    store: str | Path | None = None,
    output: str | Path | None = None,
    seeds: Iterable[int] = range(3),
    compute: bool = False,
    device: str = "auto",
    needs_runs: bool = False,
) -> Session:
    """Find the records of a notebook's runs; with `compute`, measure the missing ones first.

    A record counts only if its images and the source of the user objects are the current ones, see `ucl.sweep`.
    Without `compute`, records of other images are used too if there are no others; a warning says so.

    Args:
        grid: a name in `ucl.paper.GRIDS`, or the runs themselves.
        profile: a name in `PROFILES`.
        store: folder of the records; by default figures/runs of the checkout, or runs in `output` with "smoke".
        output: folder of the figures; by default figures, or figures/smoke with "smoke". With another store than
            figures/runs it must be given, because figures has the results of the committed records.
        seeds: of the runs of a named grid; at least one.
        compute: whether to measure runs that have no record yet; with "smoke" they are always measured.
        device: see `ucl.sweep`.
        needs_runs: whether to raise an InputError if the folder has none of the runs.
    """
    seeds = seed_list(seeds)
    configs = unique(paper.grid(grid, seeds) if isinstance(grid, str) else grid)
    folder = profile_folder(profile, output, compute, store)
    if profile == "smoke":
        configs, compute = unique(small(config) for config in configs if config.label in _SMOKE_LABELS), True
    records = Path(store) if store else (folder if profile == "smoke" else figures_folder()) / "runs"
    if compute:
        from ucl.sweeps.sweep import sweep  # Imported here because committed records are shown without torch.

        sweep(configs, store=records, device=device)
    if not records.is_dir():
        load_records(records)  # Raises InputError.
    files = sorted(RecordStore(records).find(configs).values(), key=lambda file: file.path)
    report(files)
    by_path = {file.path: file.record or (None if compute else file.outdated) for file in files}
    runs = as_table(filter(None, by_path.values()))
    if needs_runs and runs.empty:
        reason = f"has none of the {len(configs)} runs of this notebook; set compute to True or give another folder"
        raise InputError("store", str(records), reason)
    return Session(configs, runs, records, folder)


def images_here(name: str, fingerprint: str = "") -> ImageDataset | None:
    """A data set if its images are on this machine; otherwise None, and one line says why. Nothing is downloaded.

    Without the images, a committed picture stays as it is.

    Args:
        name: a name that `ucl.datasets.load` takes.
        fingerprint: of the images that a record was measured on; with "", any version of the images is accepted.
    """
    if not any(row.name == name and row.where for row in datasets.available()):
        print(f"{name}: not on this machine, so its pictures are not drawn (`ucl data get {name}` downloads it)")
        return None
    data = datasets.load(name)
    if fingerprint and data.fingerprint != fingerprint:
        print(f"{name}: the images here differ from those of the records, so their pictures are not drawn")
        return None
    return data


def small(config: Config) -> Config:
    """The same method on a small part of digits, long-tailed also in the tests, with seed 0; it takes a few seconds.

    Batches of five: with half as many steps, a network of few filters still predicts one class for every image.
    """
    reads = config.readings and config.label == "ER"  # One run of two tasks is enough to show the readings.
    return Config(
        dataset="digits",
        validation=0.5,
        imbalance=0.1,
        long_tailed_test=True,
        memory_size=10,
        batch_size=5,
        method=config.method,
        population=config.population,
        score=config.score,
        selection=config.selection,
        refresh=config.refresh,
        n_tasks=2 if reads else 5,
        readings=reads,
    )
