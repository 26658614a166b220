"""The store: a folder of records, one JSON file per run, each written completely or not at all."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import stat
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ucl.config import FURTHER_TESTS, Config
from ucl.errors import InputError
from ucl.machine.files import part_of, try_writing
from ucl.records import versions
from ucl.records.json_form import NewerRecord
from ucl.records.measures import COLUMNS
from ucl.records.record import FACTS, Record, Version
from ucl.records.versions import Found

if TYPE_CHECKING:
    import pandas as pd

_NAME = re.compile(r"(.*-s\d+-)([0-9a-f]{16})(?:-[0-9a-f]+)*\.json")  # beginning and key in the name of a record's file


class RecordStore:
    """A folder of records, one file per run, named after the experiment.

    A record counts only if its images and the sources of the user's objects are the current ones on this machine
    (`ucl.records.versions`). Records of other versions are in the same folder, with file names that end in the
    fingerprint.

    Writing is atomic: a file is always complete, even if a process was killed. Two processes may write to one folder.

    Args:
        folder: created when the first record is saved.
        root: folder of the data sets to compare with, see `ucl.datasets.load`.

    Raises:
        InputError: the folder's name is empty or that of a file.
    """

    def __init__(self, folder: str | Path, root: str | Path | None = None) -> None:
        self.folder, self.root = Path(folder), root
        try:
            usable = bool(os.fspath(folder)) and stat.S_ISDIR(os.stat(folder).st_mode)
        except OSError:  # It does not exist yet.
            usable = True
        except ValueError:  # It has characters that are not allowed in file names.
            usable = False
        if not usable:
            raise InputError("store", str(folder), "is not a folder; give a folder for the records")

    def check_writable(self) -> None:
        """Create the folder and test that files can be written to it, before a long run needs it.

        Raises:
            InputError: the folder can't be created or written to.
        """
        try:
            try_writing(self.folder)
        except OSError as error:
            reason = f"can't be written to ({error.strerror}); give another folder"
            raise InputError("store", str(self.folder), reason) from None

    def path(self, config: Config) -> Path:
        """The file of an experiment's first record, whether it exists or not; see `Found.path` for other versions."""
        return self.folder / f"{_beginning(config)}{config.key}.json"

    def __contains__(self, config: Config) -> bool:
        """Whether an experiment has a record, or a damaged file instead; warns about records that are outdated."""
        found = self.lookup(config)
        versions.report([found])
        return found.exists

    def lookup(self, config: Config) -> Found:
        """What the store has of one experiment, see `find`."""
        return self.find([config])[config.key]

    def find(self, configs: Iterable[Config]) -> dict[str, Found]:
        """What the store has of each experiment, by `Config.key`; takes time linear in experiments and files.

        A record with further tests (`ucl.config.FURTHER_TESTS`) is also one of the same run without them. Of several
        records the one with the highest `Record.rank` counts, as in all tables (`ucl.records.runs.latest`). The images
        of a data set are read once per process, see `ucl.records.versions.fingerprint`.
        """
        configs = list(configs)
        contents = self._candidates(configs)
        of_run: dict[str, list[tuple[Path, Record]]] = defaultdict(list)
        for file, content in contents.items():
            if isinstance(content, Record):
                of_run[content.config.without_further_tests.experiment].append((file, content))
        # The version is computed once per data set and user's objects, because a data set may have many files.
        known: dict[tuple, tuple[Version, str]] = {}
        found = {}
        for config in configs:
            path = self.path(config)
            stored = of_run.get(config.without_further_tests.experiment, [])
            if config.further_tests:
                stored = [(file, record) for file, record in stored if record.config.experiment == config.experiment]
            chosen, files = Found(path), [path]
            if stored:
                facts = config.dataset, config.image_size, *(path.partition("(")[0] for path in config.own.values())
                if facts not in known:
                    known[facts] = versions.current_version(config, self.root)
                version, at_path = known[facts][0], contents.get(path)
                of_version = _of_version(path, version)
                files.append(of_version)
                # As in `save`: the record of another version keeps its file, and its curve, which has the same name.
                new = of_version if isinstance(at_path, Record) and at_path.version != version else path
                chosen = versions.choose(new, config, stored, *known[facts])
            if chosen.record is None:
                errors = (_why_not(file, contents[file], config) for file in files if file in contents)
                chosen = chosen._replace(error=next(filter(None, errors), ""))
            found[config.key] = chosen
        return found

    def _candidates(self, configs: list[Config]) -> dict[Path, Record | OSError | ValueError]:
        """The contents of the files that may be records of some experiments, in the order of their names.

        These are files with the experiments' keys in their names. A run with further tests, or whose data set was typed
        as another path, has another key; but the beginning of its name is the same.
        """
        keys, datasets = {config.key for config in configs}, defaultdict[str, set[str]](set)
        for config in configs:
            datasets[_beginning(config)].add(config.dataset)
        names = sorted(os.listdir(self.folder)) if self.folder.is_dir() else []
        contents = {}
        for name, match in zip(names, map(_NAME.fullmatch, names), strict=True):
            file = self.folder / name
            if match and (
                match[2] in keys or (match[1] in datasets and _may_have_another_key(file, datasets[match[1]]))
            ):
                contents[file] = _read(file)
        return contents

    def load(self, config: Config) -> Record:
        """The record of an experiment that counts; an outdated one with a warning.

        Raises:
            InputError: there is no record, or it is damaged, or its file contains another experiment.
        """
        found = self.lookup(config)
        record = found.record or (None if found.error else found.outdated)
        if record is None:
            missing = f"{found.path}: no such record; measure it by ucl.run or ucl.sweep"
            raise InputError("", None, found.error or missing)
        versions.report([found] if found.record is None else [])
        return record

    def save(self, record: Record) -> Path:
        """Write a record atomically; returns its path.

        It replaces a record of the same version. A file that contains anything else, such as a record of other images,
        is not changed, and the name of the new file ends in the fingerprint.

        Raises:
            OSError: the record cannot be written, for example because the disk is full.
        """
        path = self.path(record.config)
        stored = _read(path) if path.exists() else record
        if not isinstance(stored, Record) or _stored_as(stored) != _stored_as(record):
            path = _of_version(path, record.version)
        with part_of(path, lambda file: file.write(record.to_json().encode())) as part:
            os.replace(part, path)
        return path

    def __iter__(self) -> Iterator[Record]:
        """All records, sorted by file name; a damaged file is skipped with a warning."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                yield Record.from_json(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                warnings.warn(f"{path}: not a readable record ({error}); the file is skipped", stacklevel=2)


def load_records(store: str | Path) -> pd.DataFrame:
    """The records of a folder as a table.

    Args:
        store: the folder.

    Returns:
        One row per record: its `label` (the method's name in the paper's tables), one column per field of `Config`
        (empty if the field can't change the run's result), then its measures (`Record.measures`): last_accuracy (A),
        last_forgetting (F), learning_accuracy, best_accuracy, retained_accuracy ("retained"), last_task_accuracy,
        average_accuracy, last_share, backward_transfer, balanced_last_accuracy, worst_class_recall,
        average_anytime_accuracy and worst_case_accuracy, in [0, 1] (F and backward_transfer in [-1, 1]), NaN if the
        record does not have the results they need; then diverged_after
        (NA if the run did not diverge) and collapsed (see `Record`), seconds, seconds_per_batch, device, processor (see
        `Record`), threads, fingerprint, date, key and the `record` itself. Without records the table is empty.

    Raises:
        InputError: there is no such folder.
    """
    records = RecordStore(store)
    if not records.folder.is_dir():
        raise InputError("store", str(store), "no such folder; give the folder that `ucl run` or `ucl sweep` wrote to")
    return as_table(records)


def as_table(records: pd.DataFrame | Iterable[Record]) -> pd.DataFrame:
    """The table of `load_records` for some records, such as those that `ucl.sweep` returns.

    Args:
        records: the records, or already such a table.

    Raises:
        InputError: it is something else, for example the name of a folder or a table of means.
    """
    import pandas as pd

    if isinstance(records, pd.DataFrame) and ("record" in records or records.empty):
        return records
    found: list[Any] = (
        list(records) if isinstance(records, Iterable) and not isinstance(records, pd.DataFrame) else [None]
    )
    if not all(isinstance(record, Record) for record in found):
        given = records if isinstance(records, (str, Path)) else type(records).__name__
        raise InputError("records", given, "give records, or a table of them: ucl.load_records(folder)")
    rows = [record.summary() for record in found]
    if rows:
        return pd.DataFrame(rows).astype({"diverged_after": "Int64"})
    fields = [field.name for field in dataclasses.fields(Config)]
    return pd.DataFrame(columns=["label", *fields, *COLUMNS.values(), *FACTS])


def _beginning(config: Config) -> str:
    """The name of an experiment's file up to the key: data set, memory, method and seed."""
    stem = re.sub(r"[^A-Za-z0-9]+", "-", Path(config.dataset_name).stem).strip("-")[:60] or "data"
    label = re.sub(r"[^A-Za-z0-9]+", "-", config.label).strip("-")[:100]  # A file name has at most 255 bytes.
    memory = f"-m{config.memory_size}" if config.uses_memory else ""
    return f"{stem}{memory}-{label}-s{config.seed}-"


def _may_have_another_key(file: Path, datasets: set[str]) -> bool:
    """Whether a record may be of a run with another key: it has further tests, or another path of the data set.

    Only the configuration is read, which is a line of its own near the beginning.

    Args:
        datasets: the data sets of the runs, as they were typed.
    """
    with suppress(OSError, ValueError, KeyError), open(file, encoding="utf-8") as lines:
        for line in lines:
            if line.startswith('"config": '):
                config = json.loads(line.partition(": ")[2].strip().rstrip(","))
                return any(config.get(name) for name in FURTHER_TESTS) or {config["dataset"]} != datasets
    return True


def _read(file: Path) -> Record | OSError | ValueError:
    """The record in a file, or why it can't be read."""
    try:
        return Record.from_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return error


def _why_not(file: Path, content: Record | Exception, config: Config) -> str:
    """Why a file with the name of an experiment's record is not one, or ""."""
    if isinstance(content, Exception):
        # A record of a newer version, or one that can't be read at the moment, may be good.
        advice = "" if isinstance(content, (NewerRecord, OSError)) else "; delete it to measure again"
        return f"{file}: can't be read ({content}){advice}"
    if config.experiment in (content.config.experiment, content.config.without_further_tests.experiment):
        return ""
    return f"{file}: is of another experiment ({content.name}, {content.config.key}); restore its name, or delete it"


def _of_version(path: Path, version: Version) -> Path:
    """The file of a record of this version if the file at `path` has another one."""
    return path.with_name("-".join([path.stem, *filter(None, version)]) + ".json")


def _stored_as(record: Record) -> tuple[str, Version]:
    """What has a file of its own. Unlike `Record.identity`, it includes the further tests."""
    return record.config.experiment, record.version
