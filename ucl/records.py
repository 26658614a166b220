"""Records: what a run measured, and with what. One JSON file a run, written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ucl import metrics
from ucl.config import Config
from ucl.errors import InputError

FORMAT = 1
MEASURES = ("A", "F", "learning", "best", "retained", "last", "average", "last_share")


@dataclass
class Reading:
    """The same networks tested under other BatchNorm statistics, see `ucl.readings`.

    Attributes:
        accuracy, class_recall, answer_shares: as in `Record`.
        shift: (T,), how far the means are from those of training alone after each task: the mean over all channels, in
            standard deviations.
    """

    accuracy: np.ndarray
    class_recall: np.ndarray
    answer_shares: np.ndarray
    shift: list[float]


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
        environment: device, processor, threads, precision of scoring, versions, commit of the code; peak memory in MiB:
            on a GPU that of the run's tensors, else that of the process, from its start to the end of this run.
        data: name, fingerprint and number of training images of the data set.
        date: UTC, ISO 8601.
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

    @property
    def last_accuracy(self) -> float:
        """Last accuracy A, in [0, 1]; the balanced one where the configuration says so."""
        return self.measures()["A"]

    @property
    def last_forgetting(self) -> float:
        """Last forgetting F of the task accuracies, in [-1, 1]."""
        return metrics.last_forgetting(self.accuracy)

    @property
    def kept_accuracy(self) -> float:
        """Mean accuracy at the end on all tasks but the last, in [0, 1]; NaN for a single task."""
        return metrics.kept_accuracy(self.accuracy)

    @property
    def average_accuracy(self) -> float:
        """Mean over the stream of the accuracy on what was seen by then, in [0, 1]."""
        return metrics.average_accuracy(self.accuracy)

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
        if of is None:
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
        }
        if self.answer_shares is not None:
            found["answer_shares"] = _rounded(self.answer_shares)
        if self.readings:
            found["readings"] = {
                name: {
                    "accuracy": _rounded(of.accuracy),
                    "class_recall": _rounded(of.class_recall),
                    "answer_shares": _rounded(of.answer_shares),
                    "shift": of.shift,
                }
                for name, of in self.readings.items()
            }
        return found

    def to_json(self) -> str:
        """One JSON object, an attribute a line; NaN as null."""
        head = {
            "format": FORMAT,
            "date": self.date,
            "config": json.loads(self.config.to_json()),
            "data": self.data,
            "environment": self.environment,
            "timing": self.timing,
            "classes": self.classes,
        }
        lines = [f"{json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in {**head, **self.results}.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Record:
        """The record that `to_json` wrote.

        Raises:
            ValueError: the text is no record; the message says why.
        """
        try:
            raw = json.loads(text)
            if not isinstance(raw, dict) or raw.get("format") != FORMAT:
                raise ValueError(f"format is not {FORMAT}")
            values = {k: raw[k] for k in ("classes", "class_order", "memory", "timing", "environment", "data", "date")}
            names = ("accuracy", "class_recall", *(("answer_shares",) if "answer_shares" in raw else ()))
            readings = {
                name: Reading(**_arrays(of, _READING_ARRAYS), shift=of["shift"])
                for name, of in raw.get("readings", {}).items()
            }
            config = Config.from_json(json.dumps(raw["config"]))
            record = cls(config=config, readings=readings, **_arrays(raw, names), **values)
            if record.class_recall.shape != (len(record.accuracy), len(record.classes)):
                raise ValueError(f"class_recall of shape {record.class_recall.shape}")
            record.summary()
        except (KeyError, TypeError, AttributeError, IndexError, ZeroDivisionError, RecursionError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None
        return record


class NotStored(OSError):
    """A record can't be written to its store; the message says where it is instead."""


class RecordStore:
    """A folder of records, one file a run, named after the experiment.

    Writing is atomic: a file that is there is whole, whatever was killed. Two processes may write to one folder.

    Args:
        folder: made when the first record is saved.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
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
        """Where the record of an experiment is, or would be."""
        stem = re.sub(r"[^A-Za-z0-9]+", "-", Path(config.dataset).stem).strip("-")[:60]
        label = re.sub(r"[^A-Za-z0-9]+", "-", config.label).strip("-")
        memory = "" if config.method == "finetune" else f"-m{config.memory_size}"
        return self.folder / f"{stem}{memory}-{label}-s{config.seed}-{config.key}.json"

    def __contains__(self, config: Config) -> bool:
        return self.path(config).exists()

    def load(self, config: Config) -> Record:
        """The record of an experiment.

        Raises:
            InputError: it is not there, or damaged.
        """
        try:
            return Record.from_json(self.path(config).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            reason = f"{self.path(config)}: can't be read ({error}); delete it to measure anew"
            raise InputError("", None, reason) from None

    def save(self, record: Record) -> Path:
        """Write a record, atomically; returns its path.

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
        self.folder.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=self.folder, prefix=".", suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(record.to_json())
                file.flush()
                os.fsync(file.fileno())
            os.chmod(part, 0o644)
            os.replace(part, path)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
        return path

    def __iter__(self) -> Iterator[Record]:
        """All records, by file name; a damaged file is named in a warning and left alone."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                yield Record.from_json(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                warnings.warn(f"{path}: not a readable record ({error}); left alone, the others are read", stacklevel=2)


def load_records(store: str | Path) -> pd.DataFrame:
    """The records of a folder as a table.

    Args:
        store: the folder.

    Returns:
        A row a record: its `label` (the method's name in the paper's tables), a column for each field of `Config`,
        empty where the field can't show in the run's result, then last_accuracy, last_forgetting, kept_accuracy and
        average_accuracy in [0, 1], seconds, seconds_per_batch, device, fingerprint, date, key and the `record` itself.
        Without records the table is empty.

    Raises:
        InputError: there is no such folder.
    """
    if not Path(store).is_dir():
        raise InputError("store", str(store), "no such folder; give the folder that `ucl run` or `ucl.sweep` wrote to")
    rows = [record.summary() for record in RecordStore(store)]
    if rows:
        return pd.DataFrame(rows)
    metrics_of_a_run = ["last_accuracy", "last_forgetting", "kept_accuracy", "average_accuracy"]
    facts = ["seconds", "seconds_per_batch", "device", "fingerprint", "date", "key", "record"]
    return pd.DataFrame(columns=["label", *json.loads(Config().to_json()), *metrics_of_a_run, *facts])


_READING_ARRAYS = ("accuracy", "class_recall", "answer_shares")


def _arrays(raw: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: np.array(raw[name], dtype=np.float64) for name in names}


def _rescue(record: Record, path: Path) -> str:
    """Write a record that has no place in its store to the temporary folder; returns where it is, as one says it."""
    try:
        handle, rescued = tempfile.mkstemp(prefix=f"{path.stem}-", suffix=".json")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(record.to_json())
    except OSError as error:
        return f"nor can the temporary folder ({error.strerror}), so the record is lost"
    return f"the record is in {rescued} on {socket.gethostname()}; move it to {path}"


def _rounded(a: np.ndarray) -> list:
    return [[None if np.isnan(v) else float(v) for v in row] for row in a]
