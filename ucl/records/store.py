"""The store: a folder of records, one JSON file per run, each written completely or not at all.

Three things identify a result (`Record.identity`): its experiment, the fingerprint of its images and the hash of the
sources of the user's objects. A stored result counts for a run only if all three are those of this machine. Results of
other versions stay in the store, in files whose names end in the fingerprint and the hash of the sources.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ucl import user_objects
from ucl.catalogue import is_user_object
from ucl.config import Config
from ucl.errors import InputError, first_of
from ucl.machine.files import write_whole
from ucl.records.record import Record, Version
from ucl.streams import datasets

_NAME = re.compile(r"(.*-s\d+-)([0-9a-f]{16})(?:-[0-9a-f]+)*\.json")  # beginning and key in the name of a record's file
_fingerprints: dict[tuple[str, int | None], str] = {}  # by the stamp of the files and the image size


class StoredRun(NamedTuple):
    """What a store has of a run: a result, an outdated one, or none.

    Attributes:
        path: file of the record, or of a new record of the current version.
        record: the record that counts, or None.
        outdated: without a `record`, the one of another version that ranks highest (`Record.rank`), or None.
        note: one line for the user: why a record is outdated, or that it could not be compared; "" otherwise.
    """

    path: Path
    record: Record | None = None
    outdated: Record | None = None
    note: str = ""


class RecordStore:
    """A folder of records, one file per run, named after the experiment.

    A file that cannot be read as a record is skipped with a warning, and never replaced. Two processes may write to one
    folder.

    Args:
        folder: created when the first record is saved.
        root: folder of the data sets to compare with, see `ucl.datasets.load`.

    Raises:
        InputError: the folder's name is empty or that of a file.
    """

    def __init__(self, folder: str | Path, root: str | Path | None = None) -> None:
        self.folder, self.root = Path(folder), root
        if not os.fspath(folder) or (os.path.exists(folder) and not os.path.isdir(folder)):
            raise InputError("store", str(folder), "is not a folder; give a folder for the records")

    def path(self, config: Config) -> Path:
        """The file of an experiment's first record, which may not exist; see `StoredRun.path` for other versions."""
        return self.folder / f"{stem(config)}.json"

    def __contains__(self, config: Config) -> bool:
        """Whether an experiment has a record; warns about records that are outdated."""
        stored = self.lookup(config)
        report([stored])
        return stored.record is not None

    def lookup(self, config: Config) -> StoredRun:
        """What the store has of one experiment, see `find`."""
        return self.find([config])[config.key]

    def find(self, configs: Iterable[Config]) -> dict[str, StoredRun]:
        """What the store has of each experiment, by `Config.key`; takes time linear in experiments and files.

        A record with further tests (`ucl.config.FURTHER_TESTS`) is also one of the same run without them. Of several
        records the one with the highest `Record.rank` counts, as in all tables (`ucl.records.runs.latest`). If the
        images are not on this machine, records of the same name or path count. If the user's objects cannot be
        imported, their sources are not compared.
        """
        configs = list(configs)
        records_of = self._records(configs)
        # The version is computed once per data set and user's objects, because a data set may have many files.
        version_of = functools.cache(functools.partial(current_version, root=self.root))
        runs = {}
        for config in configs:
            runs[config.key] = StoredRun(self.path(config))
            if records := records_of[config.experiment]:
                current, why = version_of(config.dataset, config.image_size, tuple(config.user_objects.values()))
                runs[config.key] = self._choose(config, records, current, why)
        return runs

    def _records(self, configs: list[Config]) -> dict[str, list[tuple[Path, Record]]]:
        """The records of some experiments and their files, by `Config.experiment`, the highest rank last.

        The name of a record's file has the experiment's key. A run with further tests, or whose data set was typed as
        another path, has another key, but the same beginning of the name.
        """
        keys, beginnings = {config.key for config in configs}, {_beginning(config) for config in configs}
        names = sorted(os.listdir(self.folder)) if self.folder.is_dir() else []
        found = [match for match in map(_NAME.fullmatch, names) if match]
        files = [self.folder / match[0] for match in found if match[1] in beginnings or match[2] in keys]
        records = [(file, record) for file in files for record in _read(file)]
        records_of = defaultdict(list)
        for file, record in sorted(records, key=lambda pair: pair[1].rank):
            for experiment in {record.config.experiment, record.config.without_further_tests.experiment}:
                records_of[experiment].append((file, record))
        return records_of

    def _choose(self, config: Config, stored: list[tuple[Path, Record]], current: Version, why: str) -> StoredRun:
        """The record of an experiment that counts, otherwise the outdated one; for `why` see `current_version`."""
        # Another folder of the same name may have other images. What is not known here is not compared.
        named = [(f, r) for f, r in stored if os.path.abspath(r.config.dataset) == os.path.abspath(config.dataset)]
        counting = [
            (file, record)
            for file, record in (stored if current.images else named)
            if all(here in ("", there) for here, there in zip(current, record.version))
        ]
        if counting:
            note = f"{config.dataset}: {why}; its records are used without a comparison" if why else ""
            return StoredRun(*counting[-1], note=note)
        path = self._new_path(config, current)
        if not named:
            return StoredRun(path)
        outdated = named[-1][1]
        images = config.dataset, "images", outdated.version.images, current.images
        sources = ", ".join(config.user_objects.values()), "sources", outdated.version.source, current.source
        name, kind, old, new = sources if current.images in ("", outdated.version.images) else images
        reason = f"the stored record is of other {kind} ({old or 'unknown'})"
        return StoredRun(path, outdated=outdated, note=f"{name}: {reason}; a run measures the current ones ({new})")

    def _new_path(self, config: Config, version: Version) -> Path:
        """The file of a new record. It can replace a record of the same experiment and version, and no other file."""
        path = self.path(config)
        if path.exists() and not any(
            (record.config.experiment, record.version) == (config.experiment, version) for record in _read(path)
        ):
            return path.with_name(f"{stem(config, version)}.json")
        return path

    def save(self, record: Record) -> Path:
        """Write a record completely or not at all; returns its path. It replaces a record of the same version only.

        Raises:
            OSError: the record cannot be written, for example because the disk is full.
        """
        path = self._new_path(record.config, record.version)
        files = {kind: _relative(file, path.parent) for kind, file in record.files.items()}
        write_whole(path, dataclasses.replace(record, files=files).to_json().encode())
        return path

    def __iter__(self) -> Iterator[Record]:
        """All records, sorted by file name; a file that is not a record is skipped with a warning."""
        for path in sorted(self.folder.glob("*.json")):
            yield from _read(path)


def _read(path: Path) -> list[Record]:
    """The record in a file; none, with a warning, if it can't be read."""
    try:
        record = Record.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        warnings.warn(f"{path}: not a readable record ({error}); the file is skipped", stacklevel=1)
        return []
    files = {kind: os.path.abspath(path.parent / file) for kind, file in record.files.items()}
    return [dataclasses.replace(record, files=files)]


def _relative(file: str, folder: Path) -> str:
    """A file as a path from the folder of its record, so that both can be moved together."""
    with suppress(ValueError):  # Windows: they are on different drives.
        return Path(os.path.relpath(file, folder)).as_posix()
    return file


def stem(config: Config, version: Version | None = None) -> str:
    """The name of a run's files without their ending; with the version of images and user's code if it is given."""
    return "-".join([_beginning(config) + config.key, *filter(None, version or ())])


def _beginning(config: Config) -> str:
    """The name of an experiment's file up to the key: data set, memory, method and seed."""
    stem = re.sub(r"[^A-Za-z0-9]+", "-", Path(config.dataset_name).stem).strip("-")[:60] or "data"
    label = re.sub(r"[^A-Za-z0-9]+", "-", config.label).strip("-")[:100]  # A file name has at most 255 bytes.
    memory = f"-m{config.memory_size}" if config.uses_memory else ""
    return f"{stem}{memory}-{label}-s{config.seed}-"


def current_version(
    dataset: str, image_size: int | None, paths: Iterable[str], root: str | Path | None = None
) -> tuple[Version, str]:
    """The version of a run on this machine, and the reason why its images are unknown ("" if they are known).

    A data set is read once per process, and again only if its files change. Which files a user's function reads is not
    known, so it is called each time. Nothing is downloaded. `paths` are the values of `Config.user_objects`.

    Raises:
        InputError: the source of one of the user's objects is not known.
    """
    images, why = "", "its images are not on this machine"
    try:
        if stamp := datasets.stamp(dataset, root, image_size):
            if (stamp, image_size) not in _fingerprints or is_user_object(dataset):
                _fingerprints[stamp, image_size] = datasets.load(dataset, root, image_size).fingerprint
            images, why = _fingerprints[stamp, image_size], ""
    except (InputError, OSError) as error:
        why = f"its images can't be read ({error})"
    return Version(images, user_objects.source_hash(paths)), why


def report(runs: Iterable[StoredRun]) -> None:
    """Issue the notes of look-ups as warnings, each once."""
    for note in dict.fromkeys(run.note for run in runs if run.note):
        # The warning's origin is this line, so that Python shows equal notes of different callers only once.
        warnings.warn(note, stacklevel=1)


def report_missing_files(runs: Iterable[StoredRun], **folders: str | Path | None) -> None:
    """Warn if runs that have a record lack the files of a kind in `Record.files` whose folder is not None."""
    stored = [(run.path, run.record) for run in runs if run.record is not None]
    for kind in [kind for kind, folder in folders.items() if folder is not None]:
        if without := [path.name for path, record in stored if kind not in record.files]:
            reason = f"measured without {kind}; delete the record to measure the run again"
            warnings.warn(f"{first_of(without)}: {reason}", stacklevel=3)
