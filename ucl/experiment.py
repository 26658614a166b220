"""One run: the online loop, evaluation, timing and progress. It reads like the paper's Algorithm 1."""

from __future__ import annotations

import datetime
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ucl import scorers
from ucl.buffers import Buffer, ClassBalancedBuffer, ReservoirBuffer, UncertaintyBuffer
from ucl.buffers.selection import SELECTIONS, bottom_k
from ucl.config import SMALLEST_IMAGE, Config
from ucl.errors import InputError, exits_are_failures
from ucl.evaluation import DROPOUT_PASSES
from ucl.machine import checkpoints, footprint
from ucl.machine.clock import Clock
from ucl.machine.determinism import own_draws, repeatable, seed_for
from ucl.machine.hardware import commit, environment, resolve_device, scoring_dtype
from ucl.machine.terminal import progress_bar
from ucl.methods import METHODS, Method
from ucl.models import MODELS, SlimResNet18
from ucl.readings import Tests
from ucl.records import Record, versions
from ucl.scorers import RandomScores, Scorer
from ucl.streams import ClassIncrementalStream, Task, datasets


@exits_are_failures()
def run(
    config: Config,
    device: str = "auto",
    root: str | Path | None = None,
    progress: bool | None = None,
    graphs: bool = False,
    checkpoint: str | Path | None = None,
) -> Record:
    """Learn a stream once and measure what is remembered.

    Args:
        config: the experiment.
        device: "cpu", "cuda", "cuda:1" and so on; "auto" takes a GPU where there is one.
        root: folder of the data sets; see `ucl.datasets.load`.
        progress: whether to show a progress bar; None shows one in a terminal or notebook.
        graphs: whether a GPU repeats training steps from CUDA graphs, see `ucl.machine.cuda_graphs`; changes no result.
        checkpoint: a file in which the run's state is kept after each task but the last. Where it is there already and
            of this very run, data, code and machine, the run goes on from it, and its result is bit for bit the one it
            would have been; otherwise it is ignored with a warning. The caller deletes it once the record is stored.

    Returns:
        The record. It is not stored: see `ucl.RecordStore` and `ucl.sweep`. A network that has diverged is a result
        too: the run ends with that task, with a warning, and `Record.diverged_after` names the task.

    Raises:
        InputError: (a ValueError) the data, the device or a field of the configuration can't be used.
        UserExit: (a RuntimeError) code of the user's own, such as a score, tried to end the program.
    """
    commit()  # asked now: it may change while this runs
    place = resolve_device(device)
    dtype = scoring_dtype(config, place)
    if place.type == "cuda":
        torch.cuda.init()  # before that there are no statistics
        torch.cuda.reset_peak_memory_stats(place)
    if config.uses_scores:
        scorers.resolve(config.score)  # refused before data are fetched
    dataset = datasets.load(config.dataset, root, config.image_size)
    if config.method != "finetune" and config.memory_size < dataset.n_classes:
        reason = (
            f"{config.dataset} has {dataset.n_classes} classes and the memory keeps at least one of each; "
            f"give {dataset.n_classes} or more"
        )
        raise InputError("memory_size", config.memory_size, reason)
    if place.type == "cpu":
        threads = torch.get_num_threads()
        footprint.check(config, dataset.n_images, dataset.image_size, dataset.channels, dataset.n_classes, threads)
    with repeatable(config.seed, place):
        stream = build_stream(config, dataset, place)
        model = build_model(config, dataset, place)
        buffer = build_buffer(config, dataset, place, dtype)
        source = versions.own_source(config)  # now: its file may change while this runs
        method = build_method(config, model, graphs)
        clock = Clock(place)
        tests = Tests(config, model, stream, dtype)
        state = _State(model, buffer, method, tests, clock, place)
        saved = None
        if checkpoint is not None:
            identity = _identity(config, dataset, source, environment(place, dtype))
            saved = checkpoints.load(Path(checkpoint), identity)
        n_learnt = 0 if saved is None else state.restore(saved, dataset.train_images)
        diverged_after = None
        with tests, progress_bar(stream.n_batches, config.label, progress) as bar:
            bar.update(sum(map(len, stream.tasks[:n_learnt])))
            for task in stream.tasks[n_learnt:]:
                for batch in task:
                    with clock("training"):
                        method.learn(model, batch, buffer)
                    if buffer is not None:
                        with clock("memory"):
                            buffer.update(model, batch)
                    bar.update()
                if has_diverged(model, buffer):
                    diverged_after = task.number  # no later step makes numbers of NaN
                    break
                with clock("evaluation"):
                    tests.add(task, buffer)
                with clock("readings"):
                    tests.add_readings(task, buffer)
                if checkpoint is not None and task is not stream.tasks[-1]:
                    checkpoints.save(Path(checkpoint), identity, state.after(task))
        timing = clock.seconds(sum(map(len, stream.tasks[: task.number + 1])))
        memory = _memory_contents(config, model, buffer) if buffer is not None else {}

    record = Record(
        config=config,
        accuracy=tests.evaluation.accuracy,
        class_recall=tests.evaluation.class_recall,
        answer_shares=tests.evaluation.answer_shares,
        readings=tests.readings,
        classes=list(dataset.classes),
        class_order=list(stream.class_order),
        memory=memory,
        timing=timing,
        environment={
            **environment(place, dtype),
            "graphs": method.graphs_in_use,
            **({"score_source": source} if source else {}),
        },
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


def build_stream(
    config: Config, dataset: datasets.ImageDataset, device: torch.device | str = "cpu"
) -> ClassIncrementalStream:
    """The stream of a configuration."""
    return ClassIncrementalStream(
        dataset,
        n_tasks=config.n_tasks,
        class_order=config.class_order,
        imbalance=config.imbalance,
        validation=config.validation,
        batch_size=config.batch_size,
        seed=config.seed,
        long_tailed_test=config.long_tailed_test,
        evaluate_on=config.evaluate_on,
        device=device,
    )


def build_model(config: Config, dataset: datasets.ImageDataset, device: torch.device | str = "cpu") -> SlimResNet18:
    """The network of a configuration, its initial weights drawn by the seed, alike on every device.

    Raises:
        InputError: the images are too small for it.
    """
    if dataset.image_size < SMALLEST_IMAGE:
        reason = (
            f"its images have {dataset.image_size} pixels a side, and the network's last pooling needs "
            f"{SMALLEST_IMAGE} at least; enlarge them, or give a folder of images and an image_size"
        )
        raise InputError("dataset", config.dataset, reason)
    with own_draws(seed_for(config.seed, "weights"), device):
        model = MODELS[config.model](
            dataset.n_classes, dataset.channels, dataset.image_size, dataset.mean, dataset.std, config.dropout
        )
    return model.to(device)


def build_method(config: Config, model: SlimResNet18, graphs: bool = False) -> Method:
    """How a configuration's batches are learnt, the replay drawn by the seed."""
    return METHODS[config.method](model, config.lr, seed_for(config.seed, "replay"), config.updates, graphs)


def build_buffer(
    config: Config,
    dataset: datasets.ImageDataset,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Buffer | None:
    """The memory of a configuration, empty; None for finetuning."""
    if config.method == "finetune":
        return None
    shape = (dataset.channels, dataset.image_size, dataset.image_size)
    size = min(config.memory_size, len(dataset.train_labels))  # more would stay empty
    seed = seed_for(config.seed, "memory")
    if config.population == "reservoir":
        return ReservoirBuffer(size, shape, device, seed, config.reservoir_index == "inclusive")
    if config.population == "uncertainty":
        scorer = build_scorer(config, dtype)
        rule = SELECTIONS[config.selection]
        return UncertaintyBuffer(size, shape, device, scorer, rule, config.refresh, config.smoothing)
    if config.class_balancing == "redraw":
        return UncertaintyBuffer(size, shape, device, RandomScores(seed), bottom_k)
    return ClassBalancedBuffer(size, shape, device, seed)


def build_scorer(config: Config, dtype: torch.dtype = torch.float32) -> Scorer:
    """The scorer of a configuration, its views drawn by the seed."""
    return Scorer(
        score=scorers.resolve(config.score),
        generator=torch.Generator().manual_seed(seed_for(config.seed, "views")),
        dropout_passes=DROPOUT_PASSES if config.score == "MC" else 0,
        averaging=config.averaging if config.score in ("LC", "MS", "RC", "EN") else "scores",
        batchnorm=config.scoring_batchnorm,
        view_draws=config.view_draws,
        n_draws=config.n_draws,
        view_space=config.view_space,
        dtype=dtype,
        own=config.score if ":" in config.score else "",
    )


@torch.no_grad()
def has_diverged(model: SlimResNet18, buffer: Buffer | None) -> bool:
    """Whether weights, statistics of BatchNorm, or logits that a memory scored are NaN or infinite.

    The device is waited for, so this is asked once a task.

    Raises:
        InputError: the network is as it should be, and the memory's score is NaN or infinite.
    """
    finite = torch.stack([values.isfinite().all() for values in model.state_dict().values()])
    return not finite.all() or (buffer is not None and not buffer.check())


@dataclass
class _State:
    """All that changes while a stream is learnt, as a checkpoint holds it after a task."""

    model: SlimResNet18
    buffer: Buffer | None
    method: Method
    tests: Tests
    clock: Clock
    device: torch.device

    def after(self, task: Task) -> checkpoints.State:
        return {
            "tasks learnt": task.number + 1,
            "model": checkpoints.state_of(self.model),
            "buffer": {} if self.buffer is None else self.buffer.state(),
            "method": self.method.state(),
            "tests": self.tests.state(),
            "draws": checkpoints.global_draws(self.device),
            "clock": self.clock.state(),
        }

    def restore(self, state: checkpoints.State, train_images_NHWC: np.ndarray) -> int:
        """Take over a state; returns how many tasks are learnt."""
        checkpoints.restore(self.model, state["model"])
        if self.buffer is not None:
            self.buffer.restore(state["buffer"], train_images_NHWC)
        self.method.restore(state["method"])
        self.tests.restore(state["tests"])
        checkpoints.restore_global_draws(self.device, state["draws"])
        self.clock.restore(state["clock"])
        return state["tasks learnt"]


def _identity(config: Config, dataset: datasets.ImageDataset, source: str, facts: dict[str, Any]) -> dict[str, Any]:
    """What must be the same where a run goes on from a checkpoint, so that it ends as if it had never stopped."""
    return {
        "experiment": config.key,
        "data": dataset.fingerprint,
        "score_source": source,
        **{name: value for name, value in facts.items() if name != "peak_memory_mib"},
    }


def _memory_contents(config: Config, model: SlimResNet18, buffer: Buffer) -> dict[str, list]:
    """What the memory holds at the end, and how the final model sees it, by views drawn alike for every method."""
    n = buffer.n_stored
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
