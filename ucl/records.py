"""Records: what a run measured, and with what. One JSON file a run, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import socket
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ucl import datasets, metrics, record_checks, versions
from ucl.config import Config
from ucl.errors import InputError
from ucl.files import read_text
from ucl.versions import Found, Version

FORMAT = 1
MEASURES = ("A", "F", "learning", "best", "retained", "last", "average", "last_share")


@dataclass
class Reading:
    """The same networks tested under other BatchNorm statistics, see `ucl.readings`.

    Attributes:
        accuracy, class_recall, answer_shares: as in `Record`.
        shift: (T,), >= 0: how far the means are from those of training alone after each task: the mean over all
            channels, in standard deviations.
    """

    accuracy: np.ndarray
    class_recall: np.ndarray
    answer_shares: np.ndarray
    shift: np.ndarray


@dataclass
class Record:
    """The evidence of one run.

    Attributes:
        config: the experiment.
        accuracy: (T, T), a[t, i] in [0, 1]: accuracy on task i after task t; NaN above the diagonal.
        class_recall: (T, C), in [0, 1]: recall of each class after task t; NaN for classes not seen yet.
        answer_shares: (T, T), in [0, 1]: share of the answers after task t, to all test images of the tasks seen, that
            name a class of task i; None in records made before it was counted.
        readings: by name, the same networks under other statistics; {} without `Config.readings`.
        classes: for each class its name.
        class_order: labels in the order of the stream.
        memory: the final memory, a list for each of position (in the training images), label, score (the last one it
            was kept by; None without), confidence and bregman_information (by the final model); {} without a memory.
        timing: seconds in all, in training steps, in memory updates and in evaluation; batches. The parts are None on
            a GPU, where they run beside the host.
        environment: device, processor, threads, precision of scoring, versions, commit of the code; graphs, whether a
            GPU repeated training steps from CUDA graphs (absent from older records); score_source, the hash of the
            source of a score of the user's own (`ucl.versions.own_source`); peak memory in MiB: on a GPU that of the
            run's tensors, else that of the process, from its start to the end of this run.
        data: name, fingerprint and number of training images of the data set.
        date: UTC, ISO 8601.
        diverged_after: the task, from 0, after which the network's weights or statistics were no finite numbers; the
            run ended there, and `accuracy` and `class_recall` have no numbers from this row on. None where it did not.
    """

    config: Config
    accuracy: np.ndarray
    class_recall: np.ndarray
    classes: list[str]
    class_order: list[int]
    memory: dict[str, list] = field(default_factory=dict)
    timing: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    date: str = ""
    answer_shares: np.ndarray | None = None
    readings: dict[str, Reading] = field(default_factory=dict)
    diverged_after: int | None = None

    @property
    def collapsed(self) -> bool:
        """Whether the network ends by giving one class for every test image, and forgetting does not explain it.

        A network that forgets gives classes of the last task only, and may happen to prefer one of them. It counts as
        collapsed where the class is of an earlier task, or where it gave a single class after the task before as well.
        """
        if self.diverged_after is not None:
            return False
        answer = _only_answer(self.class_recall[-1])
        last_task = self.class_order[-len(self.class_order) // len(self.accuracy) :]
        if answer is None or answer not in last_task:
            return answer is not None
        return len(last_task) > 1 and (len(self.accuracy) == 1 or _only_answer(self.class_recall[-2]) is not None)

    @property
    def failure(self) -> str:
        """ "diverged", "collapsed", or "" for a network whose results count in means."""
        return "diverged" if self.diverged_after is not None else "collapsed" if self.collapsed else ""

    @property
    def warning(self) -> str:
        """What a user should know of a run that failed, and what to do, in one line; "" for others."""
        n_tasks, lr = len(self.accuracy), self.config.lr
        if self.diverged_after is not None:
            return (
                f"the network diverged during task {self.diverged_after + 1} of {n_tasks}: its weights or statistics "
                f"are NaN or infinite, so the run ended there without a last accuracy; give an lr below {lr:g}"
            )
        if self.collapsed:
            name = self.classes[int(np.nanargmax(self.class_recall[-1]))]
            return (
                f"at the end the network gives the class {name!r} for every test image: it has collapsed, or hardly "
                f"learnt anything; give an lr below {lr:g}, or more training images"
            )
        return ""

    @property
    def last_accuracy(self) -> float:
        """Last accuracy A, in [0, 1]; the balanced one where the configuration says so; NaN after divergence."""
        return self.measures()["A"]

    @property
    def last_forgetting(self) -> float:
        """Last forgetting F of the task accuracies, in [-1, 1]; NaN after divergence."""
        return math.nan if self.diverged_after is not None else metrics.last_forgetting(self.accuracy)

    @property
    def kept_accuracy(self) -> float:
        """Mean accuracy at the end on all tasks but the last, in [0, 1]; NaN for a single task and after divergence."""
        return math.nan if self.diverged_after is not None else metrics.kept_accuracy(self.accuracy)

    @property
    def average_accuracy(self) -> float:
        """Mean over the stream of the accuracy on what was seen by then, in [0, 1]; NaN after divergence."""
        return math.nan if self.diverged_after is not None else metrics.average_accuracy(self.accuracy)

    @property
    def seconds_per_batch(self) -> float:
        """Seconds a batch of the stream takes to learn and take in, evaluation not counted."""
        tests = self.timing["evaluation"] + self.timing.get("readings", 0.0)
        return (self.timing["total"] - tests) / self.timing["batches"]

    def measures(self, reading: str = "running") -> dict[str, float]:
        """What the run, or one reading of its networks, achieved.

        Args:
            reading: a name in `readings`, or "running" for the run itself.

        Returns:
            All in [0, 1], F in [-1, 1]: A, F, learning (accuracy on each task right after it was learnt), best and
            retained (all tasks but the last, at their best and at the end; F is the difference), last (the last task),
            average (over the stream), last_share (answers at the end that name a class of the last task; NaN where
            they were not counted). NaN throughout for a reading that the record does not have.
        """
        of: Record | Reading | None = self if reading == "running" else self.readings.get(reading)
        if of is None or self.diverged_after is not None:
            return dict.fromkeys(MEASURES, np.nan)
        a, shares = of.accuracy, of.answer_shares
        balanced = self.config.balanced_accuracy
        return {
            "A": metrics.balanced_accuracy(of.class_recall[-1]) if balanced else metrics.last_accuracy(a),
            "F": metrics.last_forgetting(a),
            "learning": metrics.learning_accuracy(a),
            "best": metrics.best_accuracy(a),
            "retained": metrics.kept_accuracy(a),
            "last": metrics.last_task_accuracy(a),
            "average": metrics.average_accuracy(a),
            "last_share": np.nan if shares is None else float(shares[-1, -1]),
        }

    @property
    def version(self) -> Version:
        """The images and the own score that were measured."""
        return Version(self.data["fingerprint"], self.environment.get("score_source", ""))

    @property
    def arithmetic(self) -> str:
        """The arithmetic of the scoring passes, such as "bfloat16"; "" where it can't show in the result."""
        scored = self.config.uses_scores and "precision" in self.config.relevant
        return str(self.environment.get("scoring_precision") or "") if scored else ""

    def summary(self) -> dict[str, Any]:
        """The run in one row, see `load_records`."""
        return {
            "label": self.config.label,
            **dict.fromkeys(json.loads(self.config.to_json())),
            **self.config.relevant,
            "last_accuracy": self.last_accuracy,
            "last_forgetting": self.last_forgetting,
            "kept_accuracy": self.kept_accuracy,
            "average_accuracy": self.average_accuracy,
            "diverged_after": self.diverged_after,
            "collapsed": self.collapsed,
            "seconds": self.timing["total"],
            "seconds_per_batch": self.seconds_per_batch,
            "device": self.environment["device"],
            "fingerprint": self.data["fingerprint"],
            "date": self.date,
            "key": self.config.key,
            "record": self,
        }

    @property
    def results(self) -> dict[str, Any]:
        """What repeats bit for bit when the run is repeated on the same machine."""
        found: dict[str, Any] = {
            "accuracy": _rounded(self.accuracy),
            "class_recall": _rounded(self.class_recall),
            "class_order": self.class_order,
            "memory": self.memory,
            **({} if self.diverged_after is None else {"diverged_after": self.diverged_after}),
        }
        if self.answer_shares is not None:
            found["answer_shares"] = _rounded(self.answer_shares)
        if self.readings:
            found["readings"] = {
                name: {
                    "accuracy": _rounded(of.accuracy),
                    "class_recall": _rounded(of.class_recall),
                    "answer_shares": _rounded(of.answer_shares),
                    "shift": _rounded(of.shift[None])[0],
                }
                for name, of in self.readings.items()
            }
        return found

    def to_json(self) -> str:
        """One JSON object, an attribute a line; NaN as null. Its `sha256` covers all other attributes."""
        head = {
            "format": FORMAT,
            "date": self.date,
            "config": json.loads(self.config.to_json()),
            "data": self.data,
            "environment": self.environment,
            "timing": self.timing,
            "classes": self.classes,
        }
        content = {**head, **self.results}
        content["sha256"] = _sha256(content)
        lines = [f"{json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in content.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Record:
        """The record that `to_json` wrote; records without a `sha256` are of older versions, and valid.

        Raises:
            ValueError: the text is no record, or its content is not what was written; the message says why.
        """
        try:
            raw = json.loads(text)
            if not isinstance(raw, dict) or raw.get("format") != FORMAT:
                raise ValueError(f"format is not {FORMAT}")
            if "sha256" in raw and raw.pop("sha256") != _sha256(raw):
                raise ValueError("its sha256 is that of another content: it was changed after it was written")
            record_checks.check(raw)
            values = {k: raw[k] for k in ("classes", "class_order", "memory", "timing", "environment", "data", "date")}
            names = ("accuracy", "class_recall", *(("answer_shares",) if "answer_shares" in raw else ()))
            readings = {
                name: Reading(**_arrays(of, _READING_ARRAYS), shift=np.array(of["shift"], np.float64))
                for name, of in raw.get("readings", {}).items()
            }
            config = Config.from_json(json.dumps(raw["config"]))
            values["diverged_after"] = raw.get("diverged_after")
            record = cls(config=config, readings=readings, **_arrays(raw, names), **values)
            record.summary()
        except ValueError:
            raise
        except Exception as error:  # a damaged file fails in as many ways as it has bytes
            raise ValueError(f"{type(error).__name__}: {error}") from None
        return record


class NotStored(OSError):
    """A record can't be written to its store; the message says where it is instead."""


class RecordStore:
    """A folder of records, one file a run, named after the experiment.

    A record stands for a run only where it is of the images, and of the version of the user's own score, that are here
    (`ucl.versions`). Records of other versions lie beside it, and their file names end in the fingerprint.

    Writing is atomic: a file that is there is whole, whatever was killed. Two processes may write to one folder.

    Args:
        folder: made when the first record is saved.
        root: folder of the data sets whose images count as being here, see `ucl.datasets.load`.
    """

    def __init__(self, folder: str | Path, root: str | Path | None = None) -> None:
        self.folder, self.root = Path(folder), root
        if os.path.exists(folder) and not os.path.isdir(folder):
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
        """What is there of one experiment; reads its images once per process, see `ucl.versions.here`."""
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
        empty where the field can't show in the run's result, then last_accuracy, last_forgetting, kept_accuracy and
        average_accuracy in [0, 1], diverged_after (NA where the run did not diverge) and collapsed (see `Record`),
        seconds, seconds_per_batch, device, fingerprint, date, key and the `record` itself. Without records the table
        is empty.

    Raises:
        InputError: there is no such folder.
    """
    if not Path(store).is_dir():
        raise InputError("store", str(store), "no such folder; give the folder that `ucl run` or `ucl.sweep` wrote to")
    return as_table(RecordStore(store))


def as_table(records: Iterable[Record]) -> pd.DataFrame:
    """Records as the table that `load_records` returns."""
    rows = [record.summary() for record in records]
    if rows:
        return pd.DataFrame(rows).astype({"diverged_after": "Int64"})
    metrics_of_a_run = ["last_accuracy", "last_forgetting", "kept_accuracy", "average_accuracy"]
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


_READING_ARRAYS = ("accuracy", "class_recall", "answer_shares")


def _arrays(raw: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: np.array(raw[name], dtype=np.float64) for name in names}


def failures(records: Iterable[Record]) -> str:
    """How many of the records are of a network that failed, such as "1 diverged, 2 collapsed"; "" where none is."""
    counts = Counter(record.failure for record in records)
    return ", ".join(f"{counts[name]} {name}" for name in ("diverged", "collapsed") if counts[name])


def _only_answer(recall_C: np.ndarray) -> int | None:
    """The class that a network gives for every test image, where it does; None where a single class is tested."""
    (told,) = np.nonzero(recall_C > 0)
    one_of_many = len(told) == 1 and recall_C[told[0]] == 1 and np.count_nonzero(~np.isnan(recall_C)) > 1
    return int(told[0]) if one_of_many else None


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


def _sha256(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _rounded(a: np.ndarray) -> list:
    return [[None if np.isnan(v) else float(v) for v in row] for row in a]
