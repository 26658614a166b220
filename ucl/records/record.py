"""A record: the results of a run, its configuration and its environment, as one JSON object."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ucl import metrics
from ucl.config import Config
from ucl.errors import first_of, one_line_with_type
from ucl.fields import decimal
from ucl.naming import run_name
from ucl.records.measures import MEANINGS, Anytime, Reading, accuracy_so_far, to_lists

FORMAT = 1  # version of the record format, stored in each record


class Version(NamedTuple):
    """The version of the images and of the user's code that a result was measured with.

    Attributes:
        images: fingerprint of the data set; "" if unknown.
        source: hash of the sources of the user's objects, such as a score; "" without any.
    """

    images: str = ""
    source: str = ""


@dataclass(repr=False)
class Record:
    """The record of one run; `print` shows its results.

    Attributes:
        config: the experiment.
        accuracy: (T, T), a[t, i] in [0, 1]: accuracy on task i after task t; NaN above the diagonal, and for
            tasks not tested (`Config.evaluate_tasks`), as in class_recall and answer_shares.
        class_recall: (T, C), in [0, 1]: recall of each class after task t; NaN for classes not seen yet.
        answer_shares: (T, T), in [0, 1]: share of the predictions after task t, on all test images of the tasks seen,
            that are a class of task i; None in older records, which do not have it.
        readings: results of the same networks tested in other ways, by name; {} without `Config.readings`.
        anytime: results between task ends; None without `Config.evaluate_every`. If the network diverged, the last
            results are those of the diverged network.
        classes: names of the classes.
        class_order: labels in the order of the stream.
        memory: the final memory, as lists with one value per image: position (index in the training images), label,
            score (the last one that the memory used; None without a score), confidence and bregman_information (both
            computed by the final network); {} without a memory.
        timing: seconds in total, in training steps ("training"), in memory updates ("memory"), in tests ("evaluation")
            and in those of the readings ("readings", 0 without `Config.readings`; absent from older records), and the
            number of batches ("batches"). training and memory are None on a GPU, where they overlap with the host's
            work.
        environment: device, processor, threads, precision of scoring, versions, commit of the code; graphs, whether a
            GPU repeated training steps from CUDA graphs (absent from older records); source, the hash of the sources of
            the user's objects (`ucl.user_objects.source_hash`), and sources, that of each by its path; peak memory in
            MiB: on a GPU of the run's tensors, otherwise of the process from its start to the end of this run.
        data: name, fingerprint and number of training images of the data set.
        date: UTC, ISO 8601.
        diverged_after: the task, from 0, after which the network's weights, statistics or logits were NaN or infinite.
            The run ended there, and `accuracy` and `class_recall` are NaN from this row on. None if the network did not
            diverge.
        files: paths of the files that the run has written by `weights` (the folder of the networks, see
            `ucl.models.load`) and `predictions` (see `ucl.records.predictions`); {} without. In the record's file they
            are relative to its folder, so that all can be moved together.
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
    anytime: Anytime | None = None
    diverged_after: int | None = None
    files: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Record {self.name}: {self.in_brief}>"

    def __str__(self) -> str:
        lines = [self.name, "accuracy in per cent on each task (columns) after each task (rows):"]
        lines += [" ".join("     ." if a != a else f"{100 * a:6.1f}" for a in row) for row in self.accuracy]
        if self.diverged_after is None:
            recall_C = self.class_recall[-1]
            worst = first_of([name for name, recall in zip(self.classes, recall_C) if recall == np.nanmin(recall_C)])
            measures = {name: f"{decimal(100 * value)} %" for name, value in self.measures().items()}
            balanced = " (balanced)" if self.config.balanced_accuracy else f", balanced {measures['balanced']}"
            of_tasks = f" of the tasks, {measures['balanced_F']} balanced" if self.config.balanced_accuracy else ""
            lines += [f"last accuracy {measures['A']}{balanced}, last forgetting {measures['F']}{of_tasks}"]
            lines += [f"lowest recall of a class {measures['worst_class']} ({worst})"]
        peak = self.environment.get("peak_memory_mib")  # Records do not need to have it.
        seconds = f"{self.timing['total']:.1f} s, {1000 * self.seconds_per_batch:.1f} ms per batch"
        lines += [seconds + ("" if peak is None else f", peak memory {peak} MiB")]
        lines += [f"warning: {self.warning}"] if self.warning else []
        return "\n".join(lines)

    @property
    def name(self) -> str:
        """See `ucl.naming.run_name`."""
        return run_name(self.config)

    @property
    def in_brief(self) -> str:
        """The results, such as "A 84.2 %, F 17.4 %", or the kind of failure if the run failed."""
        if self.diverged_after is not None:
            return self.failure
        balanced = " (balanced)" if self.config.balanced_accuracy else ""
        f = "" if len(self.accuracy) == 1 else f", F {decimal(100 * self.last_forgetting)} %"
        return f"A {decimal(100 * self.last_accuracy)} %{balanced}{f}"

    @property
    def failure(self) -> str:
        """ "diverged", or "" for a run whose results enter means."""
        return "diverged" if self.diverged_after is not None else ""

    @property
    def warning(self) -> str:
        """Why the run failed and what to do, in one line; "" if it did not fail."""
        if self.diverged_after is None:
            return ""
        return (
            f"the network diverged during task {self.diverged_after + 1} of {len(self.accuracy)}: its weights, "
            "statistics or logits are NaN or infinite, so it ended there without a last accuracy; give an lr below "
            f"{self.config.lr:g}"
        )

    @property
    def last_accuracy(self) -> float:
        """Last accuracy A, in [0, 1], balanced if `Config.balanced_accuracy` is set; NaN after divergence."""
        return self.measures()["A"]

    @property
    def last_forgetting(self) -> float:
        """Last forgetting F of the task accuracies, in [-1, 1]; NaN after divergence."""
        return self.measures()["F"]

    @property
    def accuracy_so_far(self) -> np.ndarray:
        """A after each task, (T,): the accuracy on all tasks learnt so far, in [0, 1], balanced as A is."""
        return accuracy_so_far(self.accuracy, self.class_recall, self.config.balanced_accuracy)

    @property
    def seconds_per_batch(self) -> float:
        """Seconds per batch of the stream: all of the run but its tests, so mostly training and memory updates."""
        tests = self.timing["evaluation"] + self.timing.get("readings", 0.0)
        return (self.timing["total"] - tests) / self.timing["batches"]

    def measures(self, reading: str = "running") -> dict[str, float]:
        """The measures (`ucl.records.measures.MEANINGS`) of one of the `readings`, by default of the run itself.

        A and average are balanced over the classes if `Config.balanced_accuracy` is set. A measure is NaN where the
        record does not have the results.
        """
        tested: Record | Reading | None = self if reading == "running" else self.readings.get(reading)
        measures = dict.fromkeys(MEANINGS, np.nan)
        if tested is None or self.diverged_after is not None:
            return measures
        a, recall, shares = tested.accuracy, tested.class_recall, tested.answer_shares
        so_far = accuracy_so_far(a, recall, self.config.balanced_accuracy)
        measures |= {
            "A": float(so_far[-1]),
            "F": metrics.last_forgetting(a),
            "learning": metrics.learning_accuracy(a),
            "best": metrics.best_accuracy(a),
            "retained": metrics.retained_accuracy(a),
            "last": float(a[-1, -1]),
            "average": float(so_far.mean()),
            "last_share": np.nan if shares is None else float(shares[-1, -1]),
            "backward": metrics.backward_transfer(a),
            "balanced": metrics.balanced_accuracy(recall[-1]),
            "balanced_F": metrics.class_forgetting(recall),
            "worst_class": float(np.nanmin(recall[-1])),
        }
        if self.anytime is not None and reading == "running":
            measures |= self.anytime.measures()
        return measures

    @property
    def version(self) -> Version:
        """The versions of the images and of the user's objects that were measured."""
        source = self.environment.get("source", "")
        if not source:  # Older records have a hash per object, such as score_source.
            source = "-".join(sorted({value for name, value in self.environment.items() if name.endswith("_source")}))
        return Version(self.data["fingerprint"], source)

    @property
    def identity(self) -> tuple[str, Version]:
        """What identifies the result: equal for records of one run, with equal images and user code."""
        return self.config.without_further_tests.experiment, self.version

    @property
    def rank(self) -> tuple[int, str]:
        """Of several records of one identity, the one with the highest rank counts.

        It has the most kinds of further tests (`ucl.config.FURTHER_TESTS`), and of equal ones it is the latest.
        """
        return len(self.config.further_tests), self.date

    @property
    def arithmetic(self) -> str:
        """The arithmetic of the scoring passes, such as "bfloat16"; "" if it can't change the result."""
        scored = self.config.uses_scores and "precision" in self.config.relevant
        return str(self.environment.get("scoring_precision") or "") if scored else ""

    @property
    def processor(self) -> str:
        """See `processor_of`."""
        return processor_of(self.environment)

    @property
    def results(self) -> dict[str, Any]:
        """The results in their JSON form; they are equal bit for bit if the run is repeated on the same machine."""
        results: dict[str, Any] = {
            "accuracy": to_lists(self.accuracy),
            "class_recall": to_lists(self.class_recall),
            "class_order": self.class_order,
            "memory": self.memory,
            **({} if self.diverged_after is None else {"diverged_after": self.diverged_after}),
        }
        if self.answer_shares is not None:
            results["answer_shares"] = to_lists(self.answer_shares)
        if self.anytime is not None:
            results["anytime"] = self.anytime.to_raw()
        if self.readings:
            results["readings"] = {name: reading.to_raw() for name, reading in self.readings.items()}
        return results

    def to_json(self) -> str:
        """The record as one JSON object, one attribute per line; NaN is null. `sha256` covers all other attributes.

        Raises:
            ValueError: a number outside the tables of results is NaN or infinite.
        """
        content = {
            "format": FORMAT,
            "date": self.date,
            "config": dataclasses.asdict(self.config),
            "data": self.data,
            "environment": self.environment,
            "timing": self.timing,
            "classes": self.classes,
            **self.results,
            **({"files": self.files} if self.files else {}),
        }
        content["sha256"] = _sha256(content)
        lines = [f"{json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in content.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Record:
        """The record that `to_json` wrote; older records without a `sha256` are valid.

        Raises:
            ValueError: the text is not a record of this version of ucl, or was changed; the message says why.
        """
        try:
            raw = json.loads(text)
            if raw["format"] != FORMAT:
                raise ValueError(f"its format is {raw['format']!r}, and this version of ucl reads {FORMAT}")
            if "sha256" in raw and raw.pop("sha256") != _sha256(raw):
                raise ValueError("its sha256 does not match its content: the file was changed after it was written")
            values = {k: raw[k] for k in ("classes", "class_order", "memory", "timing", "environment", "data", "date")}
            tables = [name for name in ("accuracy", "class_recall", "answer_shares") if name in raw]
            values |= {name: np.array(raw[name], np.float64) for name in tables}
            return cls(
                config=Config.from_json(json.dumps(raw["config"])),
                readings={name: Reading.from_raw(reading) for name, reading in raw.get("readings", {}).items()},
                anytime=Anytime.from_raw(raw["anytime"]) if "anytime" in raw else None,
                diverged_after=raw.get("diverged_after"),
                files=raw.get("files", {}),
                **values,
            )
        except ValueError:
            raise
        except Exception as error:  # A damaged file can raise any error.
            raise ValueError(one_line_with_type(error)) from None


def processor_of(environment: dict[str, Any]) -> str:
    """The processor of a run with such an environment: the GPU, or the CPU of a run without one; "" if unknown."""
    device = environment["device"]
    return str(environment.get("processor") or "") if device == "cpu" else device


def failures(records: Iterable[Record]) -> str:
    """The number of records of failed runs, such as "1 diverged"; "" if there are none."""
    n = sum(bool(record.failure) for record in records)
    return f"{n} diverged" if n else ""


def _sha256(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
