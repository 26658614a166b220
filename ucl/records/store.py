"""Records on disk: one JSON file a run, written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ucl.config import Config
from ucl.errors import InputError
from ucl.machine.files import read_text
from ucl.records import versions
from ucl.records.record import Reading, Record, Version, failures
from ucl.records.versions import Found
from ucl.streams import datasets

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["NotStored", "Reading", "Record", "RecordStore", "as_table", "failures", "load_records"]


class NotStored(OSError):
    """A record can't be written to its store; the message says where it is instead."""


class RecordStore:
    """A folder of records, one file a run, named after the experiment.

    A record stands for a run only where it is of the images, and of the version of the user's own score, that are here
    (`ucl.records.versions`). Records of other versions lie beside it, and their file names end in the fingerprint.

    Writing is atomic: a file that is there is whole, whatever was killed. Two processes may write to one folder.

    Args:
        folder: made when the first record is saved.
        root: folder of the data sets whose images count as being here, see `ucl.datasets.load`.
    """

    def __init__(self, folder: str | Path, root: str | Path | None = None) -> None:
        self.folder, self.root = Path(folder), root
        try:
            usable = stat.S_ISDIR(os.stat(folder).st_mode)
        except OSError:  # it is not there yet
            usable = True
        except ValueError:  # it has characters that no file's name can have
            usable = False
        if not usable:
            raise InputError("store", str(folder), "is no folder; name a folder for the records")

    def check_writable(self) -> None:
        """Make the folder and try a file in it, so that a long run does not end without a place for its record.

        Raises:
            InputError: the folder can't be made or written to.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".", suffix=".part"):
                pass
        except OSError as error:
            raise InputError(
                "store", str(self.folder), f"can't be written to ({error.strerror}); name another"
            ) from None

    def path(self, config: Config) -> Path:
        """Where the first record of an experiment is, or would be; see `Found.path` for others."""
        stem = re.sub(r"[^A-Za-z0-9]+", "-", Path(config.dataset_name).stem).strip("-")[:60]
        label = re.sub(r"[^A-Za-z0-9]+", "-", config.label).strip("-")
        memory = "" if config.method == "finetune" else f"-m{config.memory_size}"
        return self.folder / f"{stem}{memory}-{label}-s{config.seed}-{config.key}.json"

    def __contains__(self, config: Config) -> bool:
        """Whether an experiment has its record, or a damaged file in its place; warns of records that do not count."""
        found = self.lookup(config)
        versions.tell([found])
        return found.there

    def lookup(self, config: Config) -> Found:
        """What is there of one experiment; reads its images once per process, see `ucl.records.versions.here`."""
        return self.find([config])[config.key]

    def find(self, configs: Iterable[Config]) -> dict[str, Found]:
        """What is there of each experiment, by its key."""
        names = sorted(os.listdir(self.folder)) if self.folder.is_dir() else []
        known: dict[tuple, tuple[Version, str]] = {}  # asked once per data set and score: a folder may hold many files
        found = {}
        for config in configs:
            path = self.path(config)
            # a path may have been spelled in another way, and so have another key
            alike = path.stem.removesuffix(config.key) if datasets.is_path(config.dataset) else path.stem
            ours = [name for name in names if name.startswith(alike) or name.endswith(f"-{config.key}.json")]
            files = [self.folder / name for name in ours if name.endswith(".json")]
            stored, error = _read_alike(files, path, config)
            if stored:
                facts = config.dataset, config.image_size, config.uses_scores and config.score
                if facts not in known:
                    known[facts] = versions.here(config, self.root)
                found[config.key] = versions.choose(path, config, stored, *known[facts])
            else:
                found[config.key] = Found(path)
            if found[config.key].record is None:
                found[config.key] = found[config.key]._replace(error=error)
        return found

    def load(self, config: Config) -> Record:
        """The record of an experiment: of the images and the score that are here, or, with a warning, of others.

        Raises:
            InputError: it is not there, or damaged, or the file of its name holds another experiment.
        """
        found = self.lookup(config)
        record = found.record or (None if found.error else found.other)
        if record is None:
            raise InputError("", None, found.error or f"{found.path}: can't be read (there is no such record)")
        if not found.record:
            versions.tell([found])
        return record

    def save(self, record: Record) -> Path:
        """Write a record, atomically; returns its path.

        It replaces a record of the same version. One of other images or another own score stays, and so does another
        experiment's: the new file's name then ends in the fingerprint.

        Raises:
            NotStored: (an OSError) it can't be written here, such as on a full disk; the message names the file in the
                temporary folder where it is instead.
        """
        path = self.path(record.config)
        try:
            return self._write(record, path)
        except OSError as error:
            raise NotStored(f"{path}: can't be written ({error.strerror}); {_rescue(record, path)}") from error

    def _write(self, record: Record, path: Path) -> Path:
        other = path.with_name("-".join([path.stem, *filter(None, record.version)]) + ".json")
        self.folder.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=self.folder, prefix=".", suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(record.to_json())
                file.flush()
                os.fsync(file.fileno())
            os.chmod(part, 0o644)
            with suppress(OSError):  # fails where a file is there, perhaps since a moment ago
                os.link(part, path)
                return path
            path = path if _may_replace(path, record) else other
            os.replace(part, path)
        finally:
            Path(part).unlink(missing_ok=True)
        return path

    def __iter__(self) -> Iterator[Record]:
        """All records, by file name; a damaged file is named in a warning and left alone."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                yield Record.from_json(read_text(path))
            except (OSError, ValueError) as error:
                warnings.warn(f"{path}: not a readable record ({error}); left alone, the others are read", stacklevel=2)


def load_records(store: str | Path) -> pd.DataFrame:
    """The records of a folder as a table.

    Args:
        store: the folder.

    Returns:
        A row a record: its `label` (the method's name in the paper's tables), a column for each field of `Config`,
        empty where the field can't show in the run's result, then its measures (`Record.measures`): last_accuracy (A),
        last_forgetting (F), learning_accuracy, best_accuracy, kept_accuracy ("retained"), last_task_accuracy,
        average_accuracy and last_share, NaN where the record does not hold enough; then diverged_after (NA where the
        run did not diverge) and collapsed (see `Record`), seconds, seconds_per_batch, device, fingerprint, date, key
        and the `record` itself. Without records the table is empty.

    Raises:
        InputError: there is no such folder.
    """
    if not Path(store).is_dir():
        raise InputError("store", str(store), "no such folder; give the folder that `ucl run` or `ucl.sweep` wrote to")
    return as_table(RecordStore(store))


def as_table(records: Iterable[Record]) -> pd.DataFrame:
    """Records as the table that `load_records` returns."""
    import pandas as pd

    rows = [record.summary() for record in records]
    if rows:
        return pd.DataFrame(rows).astype({"diverged_after": "Int64"})
    metrics_of_a_run = [
        "last_accuracy",
        "last_forgetting",
        "learning_accuracy",
        "best_accuracy",
        "kept_accuracy",
        "last_task_accuracy",
        "average_accuracy",
        "last_share",
    ]
    facts = [
        "diverged_after",
        "collapsed",
        "seconds",
        "seconds_per_batch",
        "device",
        "fingerprint",
        "date",
        "key",
        "record",
    ]
    return pd.DataFrame(columns=["label", *json.loads(Config().to_json()), *metrics_of_a_run, *facts])


def _rescue(record: Record, path: Path) -> str:
    """Write a record that has no place in its store to the temporary folder; returns where it is, as one says it."""
    try:
        handle, rescued = tempfile.mkstemp(prefix=f"{path.stem}-", suffix=".json")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(record.to_json())
    except OSError as error:
        return f"nor can the temporary folder ({error.strerror}), so the record is lost"
    return f"the record is in {rescued} on {socket.gethostname()}; move it to {path}"


def _read_alike(files: list[Path], path: Path, config: Config) -> tuple[list[tuple[Path, Record]], str]:
    """The records of an experiment among files, and what is wrong with the file at `path`."""
    stored, error = [], ""
    for file in files:
        try:
            record = Record.from_json(read_text(file))
        except (OSError, ValueError) as reason:
            if file == path:
                error = f"{path}: can't be read ({reason}); delete it to measure anew"
            continue
        if record.config.experiment == config.experiment:
            stored.append((file, record))
        elif file == path:
            inside = f"{record.config.dataset}, {record.config.label}, seed {record.config.seed}, {record.config.key}"
            error = f"{path}: is of another experiment ({inside}); give it its own name again, or delete it"
    return stored, error


def _may_replace(path: Path, record: Record) -> bool:
    """Whether a file holds nothing but an earlier measurement of the same run, or no record at all."""
    try:
        there = Record.from_json(read_text(path))
    except (OSError, ValueError):
        return True
    return (there.config.experiment, there.version) == (record.config.experiment, record.version)
