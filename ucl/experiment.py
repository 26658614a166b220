"""One run: the online loop, evaluation, timing and progress. `run` follows the paper's Algorithm 1."""

from __future__ import annotations

import datetime
import logging
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ucl import own, scorers
from ucl.assembly import assemble, find_own
from ucl.buffers import Buffer
from ucl.choices import is_own
from ucl.config import Config
from ucl.errors import InputError, exits_are_failures
from ucl.evaluation import AnytimeEvaluation
from ucl.machine import checkpoints, footprint
from ucl.machine.clock import Clock
from ucl.machine.determinism import repeatable, seed_for
from ucl.machine.hardware import commit, environment, resolve_device, scoring_dtype
from ucl.machine.terminal import progress_bar
from ucl.methods import Method
from ucl.models import Network
from ucl.readings import Tests
from ucl.records import Record, versions
from ucl.records import curves as curve_file
from ucl.scorers import Scorer
from ucl.streams import Task, datasets

_log = logging.getLogger(__name__)


@exits_are_failures()
def run(
    config: Config,
    device: str = "auto",
    root: str | Path | None = None,
    progress: bool | None = None,
    graphs: bool = False,
    checkpoint: str | Path | None = None,
    curves: str | Path | None = None,
) -> Record:
    """Learn a stream once and measure what is remembered.

    Args:
        config: the experiment.
        device: "cpu", "cuda", "cuda:1" and so on; "auto" uses a GPU if there is one.
        root: folder of the data sets; see `ucl.datasets.load`.
        progress: whether to show a progress bar; None shows one in a terminal or notebook.
        graphs: whether a GPU repeats training steps from CUDA graphs, see `ucl.machine.cuda_graphs`. Results are equal.
        checkpoint: a file for the state of the run, written after each task except the last. If the file exists and has
            the same run, data, code and machine, the run continues from it, and its result is bit for bit that of an
            uninterrupted run. Otherwise the file is ignored with a warning. The caller deletes it after storing the
            record.
        curves: a CSV file with one row per task learnt, written after each task, see `ucl.records.curves`.

    Returns:
        The record. It is not stored: see `ucl.RecordStore` and `ucl.sweep`. If the network diverges, the run ends after
        that task with a warning, and `Record.diverged_after` is the number of the task.

    Raises:
        InputError: (a ValueError) the data, the device or a field of the configuration can't be used.
        UserExit: (a RuntimeError) the user's own code, such as a score, tried to end the program.
    """
    if not isinstance(config, Config):
        raise InputError("config", config, "give a ucl.Config")
    setting = _prepare(config, device, root)
    dataset = setting.dataset
    learner, memory_policy = _blamed(config, "method", "model"), _blamed(config, "population")
    with repeatable(config.seed, setting.device):
        stream, model, buffer, method = assemble(config, dataset, setting.device, setting.dtype, graphs)
        tests, clock = Tests(config, model, stream, setting.dtype), Clock(setting.device)
        anytime = AnytimeEvaluation(stream, config.evaluate_every, config.seed)
        saved = _Saved(checkpoint, setting, model, buffer, method, tests, anytime, clock)
        tasks_learnt, diverged_after = saved.restore(), None
        batches_before = sum(map(len, stream.tasks[:tasks_learnt]))
        with tests, progress_bar(stream.n_batches, config.label, progress) as bar:
            bar.update(batches_before)
            for task in stream.tasks[tasks_learnt:]:
                for n_learnt, batch in enumerate(task, start=batches_before + 1):
                    with clock("training"), learner():
                        method.learn(model, batch, buffer)
                    if buffer is not None:
                        with clock("memory"), memory_policy():
                            buffer.update(model, batch)
                    bar.update()
                    if anytime.is_due(n_learnt):
                        with clock("evaluation"):
                            anytime.add(model, task, n_learnt)
                batches_before += len(task)
                if buffer is not None:
                    with clock("memory"), memory_policy():
                        buffer.end_of_task(model, task)
                if has_diverged(model, buffer):
                    diverged_after = task.number
                    break
                with clock("evaluation"):
                    tests.add(task, buffer)
                if curves is not None:
                    curve_file.save(tests.evaluation.accuracy, curves)
                with clock("readings"):
                    tests.add_readings(task, buffer)
                if task is not stream.tasks[-1]:
                    saved.save(task)
        timing = clock.seconds(batches_before)
        memory = _memory_contents(config, model, buffer) if buffer is not None else {}
    record = Record(
        config=config,
        accuracy=tests.evaluation.accuracy,
        class_recall=tests.evaluation.class_recall,
        answer_shares=tests.evaluation.answer_shares,
        readings=tests.readings,
        anytime=anytime.results,
        classes=list(dataset.classes),
        class_order=list(stream.class_order),
        memory=memory,
        timing=timing,
        environment=setting.environment() | {"graphs": method.graphs_in_use},
        data={
            "name": dataset.name,
            "fingerprint": dataset.fingerprint,
            "training_images": len(dataset.train_labels),
        },
        date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        diverged_after=diverged_after,
    )
    if record.diverged_after is not None:
        warnings.warn(record.warning, stacklevel=2)
    return record


def _blamed(config: Config, *fields: str) -> Callable[[], AbstractContextManager[None]]:
    """A factory of `own.blamed` blocks for the first of these fields that names an object of the user's own."""
    field = next((field for field in fields if field in config.own), "")
    return partial(own.blamed, field, config.own.get(field, ""))


@torch.no_grad()
def has_diverged(model: Network, buffer: Buffer | None) -> bool:
    """Whether weights, BatchNorm statistics, or logits that the memory scored are NaN or infinite.

    The check waits for the device, so a run makes it once per task.

    Raises:
        InputError: the logits are finite, but a score of the memory is NaN or infinite.
    """
    states = [values for values in model.state_dict().values() if isinstance(values, torch.Tensor)]
    finite = torch.stack([values.isfinite().all() for values in states])
    return not finite.all() or (buffer is not None and not buffer.check())


@dataclass
class _Setting:
    """The inputs of a run, and its device and arithmetic."""

    config: Config
    dataset: datasets.ImageDataset
    device: torch.device
    dtype: torch.dtype
    sources: dict[str, str]  # sources of the user's own objects, by field

    def environment(self) -> dict[str, Any]:
        """The environment entry of the record, see `Record`."""
        sources = {f"{field}_source": source for field, source in self.sources.items()}
        return {**environment(self.device, self.dtype), **sources}


def _prepare(config: Config, device: str, root: str | Path | None) -> _Setting:
    """Load the data and choose the device; raise an InputError if the run is not possible."""
    commit()  # read now, as the commit and the files of own objects may change during the run
    chosen = resolve_device(device)
    dtype = scoring_dtype(config, chosen)
    if chosen.type == "cuda":
        torch.cuda.init()  # before that there are no memory statistics
        torch.cuda.reset_peak_memory_stats(chosen)
    for field, path in config.own.items():
        find_own(field, path)  # before the data are downloaded
    datasets.check_tasks(config.dataset, config.n_tasks, root, config.image_size)  # before the data are downloaded
    dataset = datasets.load(config.dataset, root, config.image_size)
    check_memory_size(config, dataset)
    if chosen.type == "cpu":
        n_images, size, threads = dataset.n_images, dataset.image_size, torch.get_num_threads()
        shape = size, dataset.channels, dataset.n_classes
        needed = footprint.bytes_needed(config, n_images, *shape, threads, dataset.is_lazy)
        footprint.check(needed, n_images, size)
    return _Setting(config, dataset, chosen, dtype, versions.own_sources(config))


_OF_ANY_SIZE = ("reservoir", "loss-aware", "gss")  # memory policies without a quota per class


def check_memory_size(config: Config, dataset: datasets.ImageDataset) -> None:
    """Check that a memory whose policy gives each class a quota has at least one slot per class.

    Raises:
        InputError: it has fewer.
    """
    has_quotas = config.uses_memory and config.population not in _OF_ANY_SIZE and not is_own(config.population)
    if has_quotas and config.memory_size < dataset.n_classes:
        reason = (
            f"{config.dataset} has {dataset.n_classes} classes and the memory keeps at least one of each; "
            f"give {dataset.n_classes} or more, or the population 'reservoir'"
        )
        raise InputError("memory_size", config.memory_size, reason)


@dataclass
class _Saved:
    """The parts of a run that have state, and the checkpoint that stores their state after each task."""

    file: str | Path | None
    setting: _Setting
    model: Network
    buffer: Buffer | None
    method: Method
    tests: Tests
    anytime: AnytimeEvaluation
    clock: Clock

    def save(self, task: Task) -> None:
        """Write the checkpoint, if a file is given."""
        if self.file is None:
            return
        try:
            state: checkpoints.State = {
                "tasks learnt": task.number + 1,
                "model": checkpoints.state_of(self.model),
                "buffer": {} if self.buffer is None else self._state_of_buffer(self.buffer),
                "method": checkpoints.complete(self.method.state()),
                "tests": self.tests.state(),
                "anytime": self.anytime.state(),
                "draws": checkpoints.global_draws(self.setting.device),
                "clock": self.clock.state(),
            }
            checkpoints.save(Path(self.file), self._identity(), state)
        except checkpoints.Unsaved as error:
            warnings.warn(f"{error}: no checkpoint is written, so a stopped run starts again", stacklevel=4)
            self.file = None

    def _state_of_buffer(self, buffer: Buffer) -> checkpoints.State:
        """The state of the memory.

        Raises:
            Unsaved: a policy of the user's own has other state, or stores images that the data set does not have.
        """
        n, images_NHWC = buffer.n_stored, self.setting.dataset.train_images
        own_NHWC = buffer.images[:n].permute(0, 2, 3, 1).cpu().numpy()
        if not np.array_equal(own_NHWC, images_NHWC[buffer.positions[:n].cpu().numpy()]):
            raise checkpoints.Unsaved("the memory stores changed images")
        return checkpoints.complete(buffer.state())

    def restore(self) -> int:
        """Load the state from the checkpoint, if there is one of this run; returns the number of tasks learnt."""
        state = None if self.file is None else checkpoints.load(Path(self.file), self._identity())
        if state is None:
            return 0
        checkpoints.restore(self.model, state["model"])
        if self.buffer is not None:
            self.buffer.restore(state["buffer"], self.setting.dataset.train_images)
        self.method.restore(state["method"])
        self.tests.restore(state["tests"])
        self.anytime.restore(state["anytime"])
        checkpoints.restore_global_draws(self.setting.device, state["draws"])
        self.clock.restore(state["clock"])
        learnt: int = state["tasks learnt"]
        of = self.setting.config.n_tasks
        _log.info("continued after %d of %d tasks, from the checkpoint of a stopped run", learnt, of)
        return learnt

    def _identity(self) -> dict[str, Any]:
        """What must be equal for a continued run to give the result of an uninterrupted one."""
        facts = self.setting.environment()
        del facts["peak_memory_mib"]
        return {"experiment": self.setting.config.key, "data": self.setting.dataset.fingerprint, **facts}


def _memory_contents(config: Config, model: Network, buffer: Buffer) -> dict[str, list]:
    """The memory at the end, with the final model's uncertainty of each image by the same views for every method."""
    n = buffer.n_stored
    if not n:
        return {}
    draw = torch.Generator().manual_seed(seed_for(config.seed, "final views"))
    logits_PNC = Scorer(scorers.bregman_information, draw).logits(model, [buffer.images[:n]])
    return {
        "position": buffer.positions[:n].tolist(),
        "label": buffer.labels[:n].tolist(),
        "score": [_short(score) if config.uses_scores else None for score in buffer.scores[:n].tolist()],
        "confidence": [_short(1 - score) for score in scorers.least_confidence(logits_PNC).tolist()],
        "bregman_information": [_short(score) for score in scorers.bregman_information(logits_PNC).tolist()],
    }


def _short(value: float) -> float | None:
    return float(f"{value:.6g}") if np.isfinite(value) else None
