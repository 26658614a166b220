"""The time per batch of each method by part, compared with the highest throughput of the machine."""

from __future__ import annotations

import itertools
import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ucl.assembly import build_buffer, build_method, build_model, build_stream
from ucl.benchmarks.ceiling import BareForward, Stopwatch, matrix_product_gflop_per_s, training_mode_images_per_s
from ucl.buffers import Buffer, UncertaintyBuffer
from ucl.buffers.task_end import TaskEndBuffer
from ucl.choices import METHOD_LABELS, POPULATION_LABELS
from ucl.config import Config
from ucl.errors import InputError, one_of, whole_number
from ucl.evidence import plots
from ucl.evidence.costs import timed_name
from ucl.machine.determinism import repeatable
from ucl.machine.hardware import environment, resolve_device, scoring_dtype
from ucl.models import Network, SlimResNet18, to_unit
from ucl.models.passes import in_evaluation_mode, logits_of
from ucl.scorers import RandomScores, Scorer, resolve, views
from ucl.streams import Batch, ClassIncrementalStream, Task, datasets

PARTS = ("training", "views", "forwards", "selection")
_FIELDS: dict[str, dict[str, Any]] = {
    **{label: dict(population=name) for name, label in POPULATION_LABELS.items()},
    **{label: dict(method=name) for name, label in METHOD_LABELS.items()},
}
_SYNTHETIC = 200  # images per class


def benchmark(
    methods: Sequence[str] = plots.PAPER,
    memory_sizes: Sequence[int] = (500, 1000),
    dataset: str | None = None,
    n_tasks: int | None = None,
    repeats: int = 5,
    refresh: float = 1.0,
    precision: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    root: str | Path | None = None,
) -> pd.DataFrame:
    """Time a batch of each method at each memory size and in each task of a stream, with a full memory.

    In task t of CIFAR-10, 2 t classes have been seen, a memory of size M has M / (2 t) images of each, and a batch has
    both classes of its task: M / t + 10 candidates are scored. Each batch is timed twice: training and the memory
    update as in a run, and the same update with separately timed parts. Methods alternate batch by batch, so that other
    work of the machine affects all of them equally.

    Args:
        methods: names in `ucl.plots.ORDER`, scores with bottom-k, or your own score, "package.module:function"; by
            default the methods of the paper. "CBR updates=4" takes four training steps per batch, and so on.
        memory_sizes: images in the memory.
        dataset: see `ucl.datasets.load`; by default noise in the shape of CIFAR-10, which needs no data.
        n_tasks: number of tasks; by default that of the data set, see `Config`.
        repeats: timed batches per method, memory size and task, after a first one for warm-up.
        refresh, precision: options of the scores, see `Config`.
        device: see `ucl.run`.
        threads: CPU threads; by default torch's current number.
        root: folder of the data sets.

    Returns:
        One row per method, memory size and task ("1", "2", …; "mean" over all batches of the stream), with columns

        - method, memory_size, task; classes (seen so far); candidates (images scored per batch);
        - training_ms, views_ms, forwards_ms, selection_ms (scores, selection, copies): medians of the parts of a batch;
          parts_ms: their sum; whole_ms: median of training and memory update as in a run;
        - view_images_per_s: views (or dropout passes) divided by the time of the whole update; ceiling_images_per_s:
          throughput of `BareForward` at its best chunk size, measured in alternation with the methods;
          share_of_ceiling: their quotient; ceiling_gflop_per_s: the ceiling in 1e9 operations per second;
        - ceiling_chunk: that chunk size; ceiling_float32_images_per_s; product_gflop_per_s: product of two large
          matrices in the arithmetic of the scores; training_mode_images_per_s and plain_training_mode_images_per_s, see
          `ucl.benchmarks.ceiling.training_mode_images_per_s`: views scored with scoring_batchnorm="train";
        - refresh, repeats, dataset, load (processes running or waiting at the start) and the machine, see
          `ucl.records.Record`; peak_memory_mib is that of all methods together.

    Raises:
        InputError: a value can't be used.
    """
    threads = torch.get_num_threads() if threads is None else threads
    counts = [("repeats", repeats), ("threads", threads), *(("memory_sizes", size) for size in memory_sizes)]
    for name, value in counts:
        whole_number(name, value, 1, 1_000_000)
    configs = [
        _config(name, size, dataset=dataset or "cifar10", n_tasks=n_tasks, refresh=refresh, precision=precision)
        for size in memory_sizes
        for name in dict.fromkeys(methods)
    ]
    if not configs:
        raise InputError("methods" if memory_sizes else "memory_sizes", "", "give at least one")
    torch_device = resolve_device(device)
    data = datasets.load(dataset, root) if dataset else noise()
    if min(memory_sizes) < data.n_classes:
        reason = f"the memory keeps at least one image per class of {data.name}; give {data.n_classes} or more"
        raise InputError("memory_sizes", min(memory_sizes), reason)
    if max(memory_sizes) > (most := len(data.train_labels)):
        reason = f"{data.name} has {most} training images, and the memory must be full; give {most} or less"
        raise InputError("memory_sizes", max(memory_sizes), reason)
    stream = build_stream(configs[0], data, torch_device)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with repeatable(0, torch_device):
            table = _measure(configs, data, stream, repeats)
    finally:
        torch.set_num_threads(before)
    return table.assign(refresh=refresh, repeats=repeats, dataset=data.name, load=round(load, 2), threads=threads)


def _measure(
    configs: Sequence[Config], data: datasets.ImageDataset, stream: ClassIncrementalStream, repeats: int
) -> pd.DataFrame:
    device = stream.tasks[0].images.device
    dtype = scoring_dtype(configs[0], device)
    model = cast(SlimResNet18, build_model(configs[0], data, device))
    bare = BareForward(model, data.image_size, dtype)
    chunk, rate = bare.best_chunk(repeats)
    if dtype != torch.float32:
        rate = BareForward(model, data.image_size, torch.float32).best_chunk(repeats)[1]
    in_training_mode, plain = training_mode_images_per_s(model, data.image_size, dtype, repeats)
    product = matrix_product_gflop_per_s(device, dtype)
    by_size: dict[int | None, list[Config]] = defaultdict(list)
    for config in configs:
        by_size[config.memory_size].append(config)
    ceiling = partial(bare.images_per_s, chunk)
    table = pd.concat(
        [_table(of_size, data, stream, repeats, ceiling) for of_size in by_size.values()], ignore_index=True
    )
    return table.assign(
        share_of_ceiling=table["view_images_per_s"] / table["ceiling_images_per_s"],
        ceiling_gflop_per_s=bare.gflop * table["ceiling_images_per_s"],
        ceiling_chunk=chunk,
        ceiling_float32_images_per_s=rate,
        training_mode_images_per_s=in_training_mode,
        plain_training_mode_images_per_s=plain,
        product_gflop_per_s=product,
        **environment(device, dtype),
    )


def _config(name: str, memory_size: int, **fields: Any) -> Config:
    method, several, updates = name.partition(" updates=")
    if several and not updates.isdecimal():
        raise InputError("methods", name, "give the number of training steps per batch, such as 'CBR updates=4'")
    if method not in _FIELDS and ":" not in method:
        one_of("methods", method, plots.ORDER, "method")
    if method not in _FIELDS:
        resolve(method)
    chosen = _FIELDS.get(method, dict(score=method))
    return Config(memory_size=memory_size, updates=int(updates or 1), **chosen, **fields)


def noise() -> datasets.ImageDataset:
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), _SYNTHETIC)
    images = draw.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8)
    return datasets.ImageDataset("noise like cifar10", tuple("0123456789"), images, labels, images[::20], labels[::20])


def _table(
    configs: Sequence[Config],
    data: datasets.ImageDataset,
    stream: ClassIncrementalStream,
    repeats: int,
    ceiling: Callable[[], float],
) -> pd.DataFrame:
    """The rows of the methods at one memory size: one per task, then the mean over the batches of the stream."""
    rows = []
    # CUDA's libraries allocate memory in the first steps.
    warm_up = 4 if stream.tasks[0].images.device.type == "cuda" else 1
    for task in stream:
        seen = stream.tasks[: task.number + 1]
        contenders = [Contender(config, data, seen) for config in configs]
        batches, rates = itertools.cycle(task), []
        for _ in range(warm_up + repeats):
            batch = next(batches)
            rates.append(ceiling())
            for contender in contenders:
                contender.take(batch)
        classes = sum(len(one.classes) for one in seen)
        facts = {"task": str(task.number + 1), "classes": classes, "batches": len(task)}
        facts["ceiling_images_per_s"] = statistics.median(rates[warm_up:])
        rows += [contender.row(warm_up) | facts for contender in contenders]
    table = pd.DataFrame(rows)
    numbers = table.drop(columns=["method", "task"])
    weighted = numbers.mul(table["batches"] / stream.n_batches, axis=0)
    mean = weighted.groupby(table["method"], sort=False).sum().reset_index().assign(task="mean")
    table = pd.concat([table, mean], ignore_index=True).assign(memory_size=configs[0].memory_size)
    table["view_images_per_s"] = (1000 * table["view_images"] / table["update_ms"]).where(table["view_images"] > 0)
    parts = [f"{part}_ms" for part in PARTS]
    table["parts_ms"] = table[parts].sum(axis=1)
    names = ["method", "memory_size", "task", "classes", "candidates", *parts, "parts_ms", "whole_ms"]
    return table[[*names, "view_images_per_s", "ceiling_images_per_s"]]


class Contender:
    """One method during a task: its network, a full memory, and a second memory whose update is timed by part.

    Both memories use the same weights and random draws, so they keep the same images. What a memory does at a task's
    end is timed once and divided by the batches of the task.
    """

    def __init__(self, config: Config, data: datasets.ImageDataset, seen: Sequence[Task]) -> None:
        device = seen[0].images.device
        self.name = timed_name(config)
        self.model = build_model(config, data, device)
        self.method = build_method(config, self.model)
        self.whole, self.parts = Stopwatch(device), Stopwatch(device)
        self.buffer, self.apart = (self._full_memory(config, data, seen, device) for _ in range(2))
        self.end_ms = self.whole.read().get("end of task", 0.0) / (2 * len(seen[-1]))  # of two memories, per batch
        self.steps = None
        if isinstance(self.apart, UncertaintyBuffer) and isinstance(self.apart.scorer, Scorer):
            self.steps = self.apart.scorer = ScoringSteps(self.apart.scorer, self.parts)
        self.timings: dict[str, list[float]] = defaultdict(list)

    def _full_memory(
        self, config: Config, data: datasets.ImageDataset, seen: Sequence[Task], device: torch.device
    ) -> Buffer | None:
        buffer = build_buffer(config, data, device, scoring_dtype(config, device))
        if buffer is None:
            return None
        labels = [label for task in seen for label in task.classes]
        shares = dict(zip(labels, map(len, np.array_split(np.arange(config.memory_size), len(labels)))))
        for task in seen:
            batches: Iterable[Batch] = [_images_of(task, shares, device)]
            if isinstance(buffer, TaskEndBuffer):
                # Only the end of the last task is timed. Of earlier ones, as many batches as slots fill the memory.
                batches = itertools.islice(task, None if task is seen[-1] else config.memory_size)
            for batch in batches:
                if config.method == "derpp":
                    batch.values["logits"] = logits_of(self.model, batch.images)
                buffer.update(self.model, batch)
            with self.whole("end of task" if task is seen[-1] else "earlier tasks"):
                buffer.end_of_task(self.model, task)
        if isinstance(buffer, UncertaintyBuffer):
            # The first update scores all images of a class. It is done here, with random scores, because only the later
            # updates depend on `refresh`.
            scorer, buffer.scorer = buffer.scorer, RandomScores(0)
            buffer.update(self.model, _images_of(seen[-1], dict.fromkeys(labels, 1), device))
            buffer.scorer = scorer
        return buffer

    def take(self, batch: Batch) -> None:
        """Train on a batch and update both memories, and store the times."""
        with self.whole("training"):
            self.method.learn(self.model, batch, self.buffer)
        if self.buffer is not None and self.apart is not None:
            with self.whole("update"):
                self.buffer.update(self.model, batch)
            with self.parts("all"):
                self.apart.update(self.model, batch)
        timing = {"update": 0.0, "views": 0.0, "forwards": 0.0, "all": 0.0} | self.whole.read() | self.parts.read()
        timing["update"] += self.end_ms
        timing["all"] += self.end_ms
        timing["whole"] = timing["training"] + timing["update"]
        timing["selection"] = timing.pop("all") - timing["views"] - timing["forwards"]
        for part, milliseconds in timing.items():
            self.timings[part].append(milliseconds)

    def row(self, warm_up: int) -> dict[str, Any]:
        """Median times of a batch, without the first `warm_up` ones."""
        medians = {f"{part}_ms": statistics.median(values[warm_up:]) for part, values in self.timings.items()}
        candidates, passes = (self.steps.scored, self.steps.passes) if self.steps else (0, 0)
        return {"method": self.name, "candidates": candidates, "view_images": candidates * passes, **medians}


def _images_of(task: Task, shares: Mapping[int, int], device: torch.device) -> Batch:
    """A batch with a given number of images of each class of a task; images repeat if a class has fewer."""
    chosen = np.concatenate([np.resize(np.flatnonzero(task.host_labels == c), shares[c]) for c in task.classes])
    at = torch.from_numpy(chosen).to(device)
    return Batch(task.images[at], task.labels[at], task.host_labels[chosen], task.positions[at], task.number)


class ScoringSteps:
    """A scorer whose steps are timed separately; it returns the same scores as the original.

    Args:
        scorer: the original, with the 12 views or dropout passes.
        stopwatch: measures the parts "views" and "forwards".

    Attributes:
        passes: forward passes per image.
        scored: number of images in the last call.
    """

    def __init__(self, scorer: Scorer, stopwatch: Stopwatch) -> None:
        self.scorer, self.time_of = scorer, stopwatch
        self.passes = scorer.dropout_passes or len(views.VIEWS)
        self.scored = 0

    @torch.no_grad()
    def __call__(self, model: Network, candidates: Sequence[Tensor], positions: Sequence[Tensor] = ()) -> list[Tensor]:
        """The scores of each class's candidates, see `Scorer`."""
        sizes = [len(images) for images in candidates]
        self.scored = sum(sizes)
        if self.scorer.dropout_passes:
            with self.time_of("forwards"):
                logits_PNC = self.scorer.logits(model, candidates)
        else:
            logits_PNC = self._logits(model, torch.cat(list(candidates)))
        return list(self.scorer.score(logits_PNC).double().split(sizes))

    def _logits(self, model: Network, images_NCHW: Tensor) -> Tensor:
        with self.time_of("forwards"):
            network = in_evaluation_mode(model, self.scorer.dtype)
        with self.time_of("views"):
            draws = views.draw(len(images_NCHW), images_NCHW.shape[-1], self.scorer.generator).to(images_NCHW.device)
        logits = []
        for part in self.scorer.parts(images_NCHW):
            with self.time_of("views"):
                views_PNCHW = views.apply(to_unit(images_NCHW[part]), draws[part], model.mean.flatten())
                x_NCHW = network.normalize(views_PNCHW.flatten(0, 1))
            with self.time_of("forwards"):
                logits.append(network.logits(x_NCHW).unflatten(0, (len(views.VIEWS), -1)))
        return torch.cat(logits, 1)
