"""A record: what a run measured, and with what, as one JSON object."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ucl import metrics
from ucl.config import Config
from ucl.records import checks as record_checks

FORMAT = 1
MEASURES = ("A", "F", "learning", "best", "retained", "last", "average", "last_share")


class Version(NamedTuple):
    """The images and the code of a result.

    Attributes:
        images: fingerprint of the data set; "" where it is not known.
        score: hash of the source of the user's own score; "" for a score of the package, and where it is not known.
    """

    images: str = ""
    score: str = ""

    def __str__(self) -> str:
        return f"images {self.images or 'unknown'}" + (f", score source {self.score}" if self.score else "")


@dataclass
class Reading:
    """The same networks tested in another way, mostly under other BatchNorm statistics, see `ucl.readings`.

    Attributes:
        accuracy, class_recall, answer_shares: as in `Record`.
        shift: (T,), >= 0: how far the means are from those of training alone after each task: the mean over all
            channels, in standard deviations; NaN for a reading that sets no statistics.
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
        readings: by name, the same networks tested in other ways; {} without `Config.readings`.
        classes: for each class its name.
        class_order: labels in the order of the stream.
        memory: the final memory, a list for each of position (in the training images), label, score (the last one it
            was kept by; None without), confidence and bregman_information (by the final model); {} without a memory.
        timing: seconds in all, in training steps, in memory updates and in evaluation; batches. The parts are None on
            a GPU, where they run beside the host.
        environment: device, processor, threads, precision of scoring, versions, commit of the code; graphs, whether a
            GPU repeated training steps from CUDA graphs (absent from older records); score_source, the hash of the
            source of a score of the user's own (`ucl.records.versions.own_source`); peak memory in MiB: on a GPU that
            of the run's tensors, else that of the process, from its start to the end of this run.
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
        measures = self.measures()
        return {
            "label": self.config.label,
            **dict.fromkeys(json.loads(self.config.to_json())),
            **self.config.relevant,
            "last_accuracy": measures["A"],
            "last_forgetting": measures["F"],
            "learning_accuracy": measures["learning"],
            "best_accuracy": measures["best"],
            "kept_accuracy": measures["retained"],
            "last_task_accuracy": measures["last"],
            "average_accuracy": measures["average"],
            "last_share": measures["last_share"],
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


def _sha256(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _rounded(a: np.ndarray) -> list:
    return [[None if np.isnan(v) else float(v) for v in row] for row in a]
