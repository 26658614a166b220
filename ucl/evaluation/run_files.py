"""Files that a run writes beside its record: the network after each task, and the predictions of its tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ucl.config import Config
from ucl.evaluation.run_tests import RunTests
from ucl.listeners import Listener
from ucl.machine.clock import Clock
from ucl.machine.files import write_or_warn
from ucl.models import saved
from ucl.records import predictions
from ucl.records.record import Version
from ucl.records.store import stem
from ucl.streams import Task
from ucl.streams.image_dataset import ImageDataset

_ENDINGS = {"weights": "", "predictions": ".npz"}


class RunFiles(Listener):
    """Writes the network and the predictions after each task; the record names the files.

    They are named after the run (`ucl.records.store.stem`), with the version of its images and of the user's code.

    Args:
        source: hash of the user's code.
        folders: the folder of the files by their kind, weights or predictions; None for no such files.

    Attributes:
        paths: by kind, the folder of the networks (`ucl.models.saved.file_of`), and the file of the predictions
            (`ucl.records.predictions`); without those that can't be written.
    """

    def __init__(
        self,
        config: Config,
        dataset: ImageDataset,
        source: str,
        tests: RunTests,
        clock: Clock,
        **folders: str | Path | None,
    ) -> None:
        self._tests, self._clock = tests, clock
        name = stem(config, Version(dataset.fingerprint, source))
        self.paths = {k: Path(f).absolute() / (name + _ENDINGS[k]) for k, f in folders.items() if f is not None}
        self._facts: dict[str, Any] = {"key": config.without_further_tests.key, "classes": list(dataset.classes)}
        shape = [dataset.n_classes, dataset.channels, dataset.image_size]
        self._network = dict(model=config.model, dropout=config.dropout, shape=shape)
        self._network |= dict(mean=list(map(float, dataset.mean)), std=list(map(float, dataset.std)))

    def after_task(self, task: Task) -> None:
        with self._clock("evaluation"):
            for kind, path in list(self.paths.items()):
                file = saved.file_of(path, task.number) if kind == "weights" else path
                content = self._network_file(task.number) if kind == "weights" else self._predictions_file()
                if not write_or_warn(file, content, kind):
                    del self.paths[kind]  # One warning is enough, and the record does not name them.

    def _network_file(self, number: int) -> bytes:
        row = self._tests.evaluation.accuracy[number]
        facts = {**self._facts, **self._network, "task": number, "accuracy": row[~np.isnan(row)].tolist()}
        return saved.as_bytes(self._tests.tested, facts)

    def _predictions_file(self) -> bytes:
        tests = self._tests.evaluation
        tested = dict(labels=tests.labels_N, tasks=tests.tasks_N, positions=tests.positions_N)
        return predictions.as_bytes(predictions=tests.predictions_TN, **tested, **self._facts)

    def finish(self) -> dict[str, Any]:
        return {"files": {kind: str(path) for kind, path in self.paths.items()}}
