"""What a batch costs: the milliseconds of each method by part, beside the most this machine can do."""

from __future__ import annotations

import argparse
import copy
import inspect
import itertools
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ucl import datasets, plots, views
from ucl.buffers import Buffer, UncertaintyBuffer, random_scores
from ucl.config import Config, InputError, one_of
from ucl.experiment import _repeatable, build_buffer, build_model, build_stream
from ucl.hardware import environment, resolve_device, scoring_dtype
from ucl.methods import METHODS
from ucl.models import FoldedNetwork, SlimResNet18, to_unit
from ucl.scorers import Scorer, resolve
from ucl.streams import Batch, ClassIncrementalStream, Task, seed_for

# Neutral shades, dark where the unavoidable is: methods have the colours.
PARTS = {"training": (0.2, 0.2, 0.2), "views": "#7fa8a3", "forwards": "#c9a66b", "selection": "#d9d4cc"}
_BASELINES: dict[str, dict[str, Any]] = {
    "ER": dict(population="reservoir"),
    "CBR": dict(population="class-balanced"),
    "A-GEM": dict(method="agem"),
    "Finetune": dict(method="finetune"),
}
CHUNKS = {"cpu": (32, 64, 128, 256), "cuda": (128, 512, 2048, 8192)}  # images a bare forward pass, see `BareForward`
MATRIX = {"cpu": 2048, "cuda": 8192}  # rows and columns of the matrices that are multiplied
_SYNTHETIC = 200  # images a class


def benchmark(
    methods: Sequence[str] = plots.ORDER,
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
    """Time a batch of each method at each memory size and in each task of a stream, the memory full.

    In task t a memory of M holds M / (2 t) images of each of the 2 t classes seen (CIFAR-10), and a batch brings both
    classes of its task: a score then looks at M / t + 10 candidates. Time is taken twice of each batch: of learning and
    the memory's update as a run does them, and of the same update taken apart. Methods take turns, batch after batch,
    so that what else the machine does meets all alike.

    Args:
        methods: ER, CBR, A-GEM, Finetune, or a score (kept bottom-k), also one of your own, "package.module:function".
        memory_sizes: slots.
        dataset: see `ucl.datasets.load`; by default noise in the shape of CIFAR-10, which needs no data.
        n_tasks: by default the data set's, see `Config`.
        repeats: timed batches of each method, memory size and task; one more before them warms up.
        refresh, precision: of the scores, see `Config`.
        device: see `ucl.run`.
        threads: of the processor; by default as torch has it.
        root: folder of the data sets.

    Returns:
        A row a method, memory size and task ("1", "2", …; "mean" over all batches of the stream), with columns

        - method, memory_size, task; classes seen; candidates, images scored a batch;
        - training_ms, views_ms, forwards_ms, selection_ms (scores, selection, copies): the parts of a batch, medians;
          parts_ms, their sum; whole_ms, the median of learning and updating as a run does;
        - view_images_per_s: views (or dropout passes) over the time of the whole update; ceiling_images_per_s: see
          `BareForward`, at its best chunk size, measured in turn with the methods; share_of_ceiling: their quotient;
          ceiling_gflop_per_s, the same in arithmetic;
        - ceiling_chunk, that size; ceiling_float32_images_per_s; product_gflop_per_s of two large matrices, in the
          arithmetic of the scores;
        - refresh, repeats, dataset, load (processes running or waiting, as the measurement began) and the machine, see
          `ucl.records.Record`; peak_memory_mib counts all that is compared together.

    Raises:
        InputError: a value can't be used.
    """
    configs = [
        _config(name, size, dataset=dataset or "cifar10", n_tasks=n_tasks, refresh=refresh, precision=precision)
        for size in _whole_numbers("memory_sizes", memory_sizes)
        for name in dict.fromkeys(methods)
    ]
    if not configs:
        raise InputError("methods" if memory_sizes else "memory_sizes", "", "give one at least")
    (repeats,) = _whole_numbers("repeats", [repeats])
    (threads,) = _whole_numbers("threads", [torch.get_num_threads() if threads is None else threads])
    place = resolve_device(device)
    data = datasets.load(dataset, root) if dataset else _noise()
    if min(memory_sizes) < data.n_classes:
        reason = f"{data.name} has {data.n_classes} classes and the memory keeps one of each at least; give that many"
        raise InputError("memory_sizes", min(memory_sizes), reason)
    stream = build_stream(configs[0], data, place)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with _repeatable(0, place):
            table = _measure(configs, data, stream, repeats)
    finally:
        torch.set_num_threads(before)
    return table.assign(refresh=refresh, repeats=repeats, dataset=data.name, load=round(load, 2), threads=threads)


def _measure(
    configs: Sequence[Config], data: datasets.ImageDataset, stream: ClassIncrementalStream, repeats: int
) -> pd.DataFrame:
    device = stream.tasks[0].images.device
    dtype = scoring_dtype(configs[0], device)
    model = build_model(configs[0], data, device)
    bare = BareForward(model, data.image_size, dtype)
    chunk, rate = bare.best_chunk(repeats)
    if dtype != torch.float32:
        rate = BareForward(model, data.image_size, torch.float32).best_chunk(repeats)[1]
    product = matrix_product_gflop_per_s(device, dtype, repeats)
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
        product_gflop_per_s=product,
        **environment(device, dtype),
    )


class BareForward:
    """The yardstick: forward passes of the folded network alone, over images that are there in its arithmetic already.

    Args:
        model: the network, on the device.
        image_size: pixels a side.
        dtype: arithmetic.
    """

    def __init__(self, model: SlimResNet18, image_size: int, dtype: torch.dtype) -> None:
        self._network, self._time_of = FoldedNetwork(model, dtype), Stopwatch(model.mean.device)
        self.sizes = CHUNKS[model.mean.device.type]
        x_NCHW = torch.randn(self.sizes[-1], model.conv1.in_channels, image_size, image_size, device=model.mean.device)
        self._x_NCHW = x_NCHW.to(dtype, memory_format=torch.channels_last)

    @property
    def gflop(self) -> float:
        """What a forward pass of one image computes, a multiplication and an addition counted as two, in 1e9."""
        plain = copy.copy(self._network)
        plain.fused = False  # the counter knows the plain convolutions only
        with FlopCounterMode(display=False) as counter:
            plain.logits(self._x_NCHW[:1])
        return counter.get_total_flops() / 1e9

    def images_per_s(self, chunk: int) -> float:
        """Time one pass over so many images at a time."""
        with self._time_of("forwards"):
            self._network.chunk = chunk
            self._network.logits(self._x_NCHW)
        return 1000 * len(self._x_NCHW) / self._time_of.read()["forwards"]

    def best_chunk(self, repeats: int = 5) -> tuple[int, float]:
        """The chunk size with the most images a second, and those: the median of so many passes, the sizes in turns."""
        turns = [[self.images_per_s(size) for size in self.sizes] for _ in range(1 + repeats)]
        rates = np.median(turns[1:], axis=0)
        return self.sizes[int(rates.argmax())], float(rates.max())


def matrix_product_gflop_per_s(device: torch.device, dtype: torch.dtype, repeats: int = 5) -> float:
    """What a device computes in the product of two large square matrices, in 1e9 a second: the median of `repeats`."""
    n, time_of = MATRIX[device.type], Stopwatch(device)
    a, b = torch.randn(2, n, n, device=device).to(dtype)
    milliseconds = []
    for _ in range(1 + repeats):
        with time_of("product"):
            torch.mm(a, b)
        milliseconds.append(time_of.read()["product"])
    return 2e-6 * n**3 / statistics.median(milliseconds[1:])


def write(table: pd.DataFrame, output: str | Path) -> list[Path]:
    """Write a benchmark's table as <output>.csv and its picture as <output>.png and .pdf; returns CSV and PNG."""
    figure = picture(table)
    png = plots.save(figure, output)
    plt.close(figure)
    csv = Path(f"{output}.csv")
    table.to_csv(csv, index=False, float_format="%.5g")
    return [csv, png]


def picture(table: pd.DataFrame) -> Figure:
    """Left: a batch by part, middle: over the stream, both at the smallest memory. Right: against the memory's size."""
    is_mean = table["task"] == "mean"
    labels = plots.method_order(table["method"])
    sizes = sorted(table["memory_size"].unique())
    smallest = table["memory_size"] == sizes[0]
    with plt.rc_context(plots.STYLE):
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 2 + 0.26 * max(len(labels), 7)))
        bars = table[smallest & is_mean].set_index("method").loc[labels]
        start = np.zeros(len(labels))
        for part, shade in PARTS.items():
            left.barh(labels, bars[f"{part}_ms"], left=start, color=shade, label=part, height=0.7)
            start = start + bars[f"{part}_ms"].to_numpy()
        left.plot(bars["whole_ms"], labels, "|", color="black", ms=9, label="in a run")
        left.invert_yaxis()
        left.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.45, -0.2), ncols=5, columnspacing=0.8)
        left.set(xlabel="time a batch [ms]", title=f"Memory {sizes[0]}: by part")
        middle.sharey(right)
        for label in labels:
            own, style = table["method"] == label, dict(marker="o", ms=4, color=plots.color(label), label=label)
            middle.plot("task", "whole_ms", data=table[own & smallest & ~is_mean], **style)
            right.plot("memory_size", "whole_ms", data=table[own & is_mean].sort_values("memory_size"), **style)
        middle.set(xlabel="task being learnt", ylabel="time a batch [ms]", title=f"Memory {sizes[0]}: over the stream")
        right.set(xlabel="memory [images]", yscale="log", title="By size of the memory")
        right.set_xticks(sizes, [str(size) for size in sizes])
        figure.legend(*right.get_legend_handles_labels(), loc="outside right center")
        facts = table.iloc[0]
        device = facts["processor"] if facts["device"] == "cpu" else facts["device"]
        figure.suptitle(
            f"{device}, threads: {facts['threads']}, scoring in {facts['scoring_precision']}, refresh "
            f"{facts['refresh']:g}; left and right: mean over the tasks of {facts['dataset']}",
            fontsize="small",
        )
    return figure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `ucl benchmark`: the arguments of `benchmark`, and where to write."""
    default = {name: parameter.default for name, parameter in inspect.signature(benchmark).parameters.items()}
    names = f"any of {', '.join(plots.ORDER)}, or a score of your own as module:function (default: all but your own)"
    kinds: dict[str, tuple[type, str]] = {
        "methods": (str, names),
        "memory_sizes": (int, "images the memory holds (default: 500 1000)"),
        "dataset": (str, "default: noise in the shape of CIFAR-10, which needs no data"),
        "n_tasks": (int, "default: the data set's, as in ucl run"),
        "repeats": (int, "timed batches of each method, memory and task (default: %(default)s)"),
        "refresh": (float, "share or number of a class's memory that is scored anew (default: %(default)s)"),
        "precision": (str, "arithmetic of the scoring passes: auto, float32, bfloat16 (default: %(default)s)"),
        "device": (str, "cpu, cuda, cuda:1, …; auto takes a GPU where there is one"),
        "threads": (int, "processor threads (default: all cores)"),
        "root": (str, "folder of the data sets (default: $UCL_DATA, else ~/.cache/ucl)"),
    }
    for name, (kind, text) in kinds.items():
        flag = "--data" if name == "root" else f"--{name.replace('_', '-')}"
        several = {"nargs": "+"} if isinstance(default[name], tuple) else {}
        metavar = {int: "N", float: "X", str: "DIR" if name == "root" else "NAME"}[kind]
        parser.add_argument(flag, dest=name, type=kind, default=default[name], metavar=metavar, help=text, **several)
    parser.add_argument(
        "--output",
        default="figures/benchmark",
        metavar="PATH",
        help="writes PATH.csv, PATH.png and PATH.pdf (default: %(default)s)",
    )


def command(options: argparse.Namespace) -> int:
    """Measure, print a short table, write it and its picture; returns the exit code."""
    sys.path.insert(0, "")  # a score of the user's own lies in the working folder
    Path(options.output).parent.mkdir(parents=True, exist_ok=True)  # better refused now than after the measurement
    table = benchmark(**{name: getattr(options, name) for name in inspect.signature(benchmark).parameters})
    print(summary(table))
    for path in write(table, options.output):
        print(path)
    return 0


def summary(table: pd.DataFrame) -> str:
    """A benchmark's means over the stream in a few lines, for a terminal."""
    facts = table.iloc[0]
    lines = [f"{'memory':>6}  {'method':12} {'ms a batch':>10} " + " ".join(f"{part:>9}" for part in PARTS)]
    lines[0] += f" {'x ER':>6} {'of ceiling':>10}"
    mean = table[table["task"] == "mean"]
    er = mean[mean["method"] == "ER"].set_index("memory_size")["whole_ms"]
    for _, row in mean.iterrows():
        parts = " ".join(f"{row[f'{part}_ms']:9.1f}" for part in PARTS)
        ratio = f"{row['whole_ms'] / er[row['memory_size']]:6.2f}" if row["memory_size"] in er else ""
        share = "" if pd.isna(row["share_of_ceiling"]) else f"{100 * row['share_of_ceiling']:8.0f} %"
        line = f"{row['memory_size']:>6}  {row['method']:12} {row['whole_ms']:10.1f} {parts} {ratio:>6} {share:>10}"
        lines.append(line.rstrip())
    top = mean["ceiling_gflop_per_s"].mean()
    lines.append(
        f"ceiling: {mean['ceiling_images_per_s'].mean():,.0f} images/s in {facts['scoring_precision']} "
        f"({facts['ceiling_float32_images_per_s']:,.0f} in float32), {top:,.0f} GFLOP/s: "
        f"{100 * top / facts['product_gflop_per_s']:.0f} % of a matrix product's {facts['product_gflop_per_s']:,.0f}"
    )
    lines.append(
        f"threads: {facts['threads']}, {facts['device']} ({facts['processor']}), load {facts['load']:g} at the start, "
        f"peak memory {facts['peak_memory_mib']} MiB in all"
    )
    return "\n".join(lines)


def _config(name: str, memory_size: int, **fields: Any) -> Config:
    if name not in _BASELINES and ":" not in name:
        one_of("methods", name, plots.ORDER, "method")
    if name not in _BASELINES:
        resolve(name)
    return Config(memory_size=memory_size, **_BASELINES.get(name, dict(score=name)), **fields)


def _whole_numbers(name: str, values: Sequence[int]) -> Sequence[int]:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= value <= 1_000_000:
            raise InputError(name, value, "give whole numbers from 1 to 1000000")
    return values


def _noise() -> datasets.ImageDataset:
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
    """The rows of the methods at one memory size: task after task, then their mean over the batches of the stream."""
    rows = []
    for task in stream:
        seen = stream.tasks[: task.number + 1]
        contenders = [_Contender(config, data, seen) for config in configs]
        batches, rates = itertools.cycle(task), []
        for _ in range(1 + repeats):
            batch = next(batches)
            rates.append(ceiling())
            for contender in contenders:
                contender.take(batch)
        classes = sum(len(one.classes) for one in seen)
        facts = {"task": str(task.number + 1), "classes": classes, "batches": len(task)}
        facts["ceiling_images_per_s"] = statistics.median(rates[1:])
        rows += [contender.row() | facts for contender in contenders]
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


class _Contender:
    """One method in the middle of a task: its network, its memory, full, and a second one whose update is taken apart.

    Both memories score by the same weights and draws, and so keep the same images.
    """

    def __init__(self, config: Config, data: datasets.ImageDataset, seen: Sequence[Task]) -> None:
        device = seen[0].images.device
        self.name = config.label.removesuffix(f" {config.selection}")
        self.model = build_model(config, data, device)
        self.method = METHODS[config.method](self.model, config.lr, seed_for(config.seed, "replay"))
        self.buffer, self.apart = (self._full_memory(config, data, seen, device) for _ in range(2))
        self.whole, self.parts = Stopwatch(device), Stopwatch(device)
        self.steps = None
        if isinstance(self.apart, UncertaintyBuffer):
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
            buffer.update(self.model, _images_of(task, shares, device))
        if isinstance(buffer, UncertaintyBuffer):
            # A class is scored whole the first time: have that over, by draws, before `refresh` counts.
            scorer, buffer.scorer = buffer.scorer, random_scores(0)
            buffer.update(self.model, _images_of(seen[-1], dict.fromkeys(labels, 1), device))
            buffer.scorer = scorer
        return buffer

    def take(self, batch: Batch) -> None:
        """Learn a batch and update both memories."""
        with self.whole("training"):
            self.method.learn(self.model, batch, self.buffer)
        if self.buffer is not None:
            with self.whole("update"):
                self.buffer.update(self.model, batch)
            with self.parts("all"):
                self.apart.update(self.model, batch)
        timing = {"update": 0.0, "views": 0.0, "forwards": 0.0, "all": 0.0} | self.whole.read() | self.parts.read()
        timing["whole"] = timing["training"] + timing["update"]
        timing["selection"] = timing.pop("all") - timing["views"] - timing["forwards"]
        for part, milliseconds in timing.items():
            self.timings[part].append(milliseconds)

    def row(self) -> dict[str, Any]:
        """What a batch took; the first was to warm up."""
        medians = {f"{part}_ms": statistics.median(values[1:]) for part, values in self.timings.items()}
        candidates, passes = (self.steps.scored, self.steps.passes) if self.steps else (0, 0)
        return {"method": self.name, "candidates": candidates, "view_images": candidates * passes, **medians}


def _images_of(task: Task, shares: Mapping[int, int], device: torch.device) -> Batch:
    """So many images of each class of a task as one batch; a class that has fewer gives them again and again."""
    chosen = np.concatenate([np.resize(np.flatnonzero(task.host_labels == c), shares[c]) for c in task.classes])
    at = torch.from_numpy(chosen).to(device)
    return Batch(task.images[at], task.labels[at], task.host_labels[chosen], task.positions[at], task.number)


class ScoringSteps:
    """A scorer of the paper's views or of dropout passes, taken apart: the same scores, each step under a stopwatch.

    Args:
        scorer: whose steps.
        stopwatch: adds up "views" and "forwards".

    Attributes:
        passes: forward passes an image.
        scored: images in the last call.
    """

    def __init__(self, scorer: Scorer, stopwatch: Stopwatch) -> None:
        self.scorer, self.time_of = scorer, stopwatch
        self.passes = scorer.dropout_passes or len(views.VIEWS)
        self.scored = 0

    @torch.no_grad()
    def __call__(self, model: SlimResNet18, candidates: Sequence[Tensor]) -> list[Tensor]:
        """The scores of each class's candidates, see `Scorer`."""
        sizes = [len(images) for images in candidates]
        self.scored = sum(sizes)
        if self.scorer.dropout_passes:
            with self.time_of("forwards"):
                logits_PNC = self.scorer.logits(model, candidates)
        else:
            logits_PNC = self._logits(model, torch.cat(list(candidates)))
        return list(self.scorer.score(logits_PNC).double().split(sizes))

    def _logits(self, model: SlimResNet18, images_NCHW: Tensor) -> Tensor:
        with self.time_of("forwards"):
            network = FoldedNetwork(model, self.scorer.dtype)
        with self.time_of("views"):
            draws = views.draw(len(images_NCHW), images_NCHW.shape[-1], self.scorer.generator).to(images_NCHW.device)
        logits = []
        for start in range(0, len(images_NCHW), self.scorer.chunk):
            part = slice(start, start + self.scorer.chunk)
            with self.time_of("views"):
                views_PNCHW = views.apply(to_unit(images_NCHW[part]), draws[part], model.mean.flatten())
                x_NCHW = network.normalize(views_PNCHW.flatten(0, 1))
            with self.time_of("forwards"):
                logits.append(network.logits(x_NCHW).unflatten(0, (len(views.VIEWS), -1)))
        return torch.cat(logits, 1)


class Stopwatch:
    """Milliseconds by part: by the clock, or, where the host runs ahead of a GPU, by events in the GPU's own queue."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spans: list[tuple[str, Any, Any]] = []

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        begin = self._now()
        yield
        self._spans.append((part, begin, self._now()))

    def read(self) -> dict[str, float]:
        """The milliseconds of each part since this was last asked; waits for the device."""
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            torch.cuda.synchronize(self._device)
        sums: dict[str, float] = defaultdict(float)
        for part, begin, end in self._spans:
            sums[part] += begin.elapsed_time(end) if on_gpu else 1000 * (end - begin)
        self._spans.clear()
        return dict(sums)

    def _now(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event
