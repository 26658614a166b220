"""The time per batch of each method by part, compared with the highest throughput of the machine; whole runs."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import pandas as pd
import psutil  # type: ignore[import-untyped]
import torch

from ucl.assembly import build_model, build_stream
from ucl.benchmarks.ceiling import bare_forward
from ucl.benchmarks.contender import Contender
from ucl.catalogue import PAPER, SHOWN, WITHOUT_SCORE
from ucl.config import Config
from ucl.errors import MOST_AT_ONCE, InputError, one_of, whole_number
from ucl.evidence import leaderboard
from ucl.fields import known_fields
from ucl.machine.determinism import repeatable
from ucl.machine.hardware import environment, resolve_device, scoring_dtype
from ucl.models import SlimResNet18
from ucl.naming import STREAM
from ucl.scorers import resolve
from ucl.streams import ClassIncrementalStream, datasets
from ucl.sweeps.grid import from_yaml
from ucl.sweeps.sweep import sweep

PARTS = ("training", "views", "forwards", "selection")
_SYNTHETIC = 200  # images per class
_SHARED = {*STREAM, "batch_size", "precision"}  # fields that all methods have in common


def benchmark(
    methods: Sequence[str] = PAPER,
    memory_sizes: Sequence[int] = (500, 1000),
    dataset: str | None = None,
    n_tasks: int | None = None,
    repeats: int = 5,
    precision: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    root: str | Path | None = None,
) -> pd.DataFrame:
    """Time a batch of each method at each memory size and in each task of a stream, with a full memory.

    In task t of CIFAR-10, 2 t classes have been seen, a memory of size M has M / (2 t) images of each, and a batch has
    both classes of its task: M / t + 10 candidates are scored. Methods alternate batch by batch, so that other work of
    the machine affects all of them equally.

    Args:
        methods: names in `ucl.catalogue.SHOWN`, scores with bottom-k, or your own score, "package.module:function"; by
            default the methods of the paper and Finetune. Fields of `Config` may follow, but not those of the stream:
            "CBR updates=4", "BI refresh=2". "leaderboard" means all methods that the leaderboard compares.
        memory_sizes: images in the memory.
        dataset: see `ucl.datasets.load`; by default noise in the shape of CIFAR-10, which needs no data.
        n_tasks: number of tasks; by default that of the data set, see `Config`.
        repeats: timed batches per method, memory size and task, after one batch for warm-up (four on a GPU).
        precision, device: see `Config` and `ucl.run`.
        threads: CPU threads; by default torch's current number.
        root: folder of the data sets.

    Returns:
        One row per method, memory size and task ("1", "2", …; "mean" over all batches of the stream), with columns

        - method, memory_size, task; classes (seen so far); candidates (images scored per batch);
        - training_ms, views_ms, forwards_ms, selection_ms (scores, selection, copies): medians of the parts of a batch;
          whole_ms: median of training and memory update together;
        - view_images_per_s: views (or dropout passes) divided by the time of the whole update; ceiling_images_per_s:
          throughput of `bare_forward`, measured in alternation with the methods; share_of_ceiling: their quotient;
        - repeats, dataset, load (processes running or waiting at the start) and the machine, see
          `ucl.records.Record`; peak_memory_mib is that of all methods together.

    Raises:
        InputError: a value can't be used.
    """
    threads = torch.get_num_threads() if threads is None else threads
    whole_number("threads", threads, 1, MOST_AT_ONCE)
    whole_number("repeats", repeats, 1, 1_000_000)
    torch_device = resolve_device(device)
    data = datasets.load(dataset, root) if dataset else noise()
    for size in memory_sizes:  # The memory is full, and keeps at least one image per class.
        whole_number("memory_sizes", size, data.n_classes, len(data.train_labels))
    fields: dict[str, Any] = dict(dataset=dataset or "cifar10", n_tasks=n_tasks, precision=precision)
    grid = [_configs(methods, memory_size=size, **fields) for size in memory_sizes]
    shared = Config(memory_size=memory_sizes[0], **fields)
    load, before = psutil.getloadavg()[0], torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with repeatable(0, torch_device):
            dtype, stream = scoring_dtype(shared, torch_device), build_stream(shared, data, torch_device)
            model = cast(SlimResNet18, build_model(shared, data, torch_device))
            ceiling = bare_forward(model, data.image_size, dtype, repeats)
            tables = [_table(configs, data, stream, repeats, ceiling) for configs in grid]
            table = pd.concat(tables, ignore_index=True).assign(**environment(torch_device, dtype))
    finally:
        torch.set_num_threads(before)
    return table.assign(repeats=repeats, dataset=data.name, load=round(load, 2), threads=threads)


def runs_per_hour(
    jobs: Sequence[int],
    dataset: str,
    methods: Sequence[str] = ("BI", "BI refresh=2"),
    memory_sizes: Sequence[int] = (500,),
    device: str = "auto",
    root: str | Path | None = None,
    **fields: Any,
) -> pd.DataFrame:
    """Measure how many whole runs a machine makes per hour, with several at a time.

    A sweep makes n runs at a time, each with another seed and with one CPU thread. Its time includes the starts of the
    processes; with n = 1, the run uses this process.

    Args:
        jobs: the numbers n.
        dataset, methods, memory_sizes, device, root: see `benchmark`; images are needed.
        fields: further fields of `Config` for methods without their own.

    Returns:
        One row per method, memory size and n: method, memory_size, jobs, seconds (of the sweep), run_seconds (median of
        its runs), batches (of a run), runs_per_hour, dataset and the machine, see `ucl.records.Record`.
    """
    rows = []
    for size, n in itertools.product(memory_sizes, jobs):
        for name, config in _configs(methods, memory_size=size, dataset=dataset, **fields).items():
            runs = [config.replace(seed=seed) for seed in range(n)]
            with TemporaryDirectory() as store:
                begin = time.perf_counter()
                records = sweep(runs, store, jobs=n, device=device, root=root, progress=False, threads=1)
                seconds = time.perf_counter() - begin
            facts = {"method": name, "memory_size": size, "jobs": n, "seconds": seconds}
            facts["run_seconds"] = statistics.median(record.timing["total"] for record in records)
            facts |= {"batches": records[0].timing["batches"], "runs_per_hour": 3600 * n / seconds, "dataset": dataset}
            rows.append(facts | {k: v for k, v in records[0].environment.items() if k != "sources"})
    return pd.DataFrame(rows)


def _configs(methods: Iterable[str], **fields: Any) -> dict[str, Config]:
    """The configuration of each of the `methods` of `benchmark` by its name there; `fields` are for those without."""
    configs = {}
    for name in itertools.chain(*(leaderboard.benchmark_names() if m == "leaderboard" else [m] for m in methods)):
        pairs = [word.split("=", 1) for word in name.split() if "=" in word]
        own = known_fields({field: from_yaml(value, field) for field, value in pairs}, "methods")
        for field in own.keys() & _SHARED:
            raise InputError("methods", name, f"all methods of a benchmark have the same {field}; leave it out")
        method = " ".join(word for word in name.split() if "=" not in word)
        if method not in WITHOUT_SCORE:
            if ":" not in method:
                one_of("methods", method, SHOWN, "method")
            resolve(method)
        chosen = WITHOUT_SCORE[method].fields if method in WITHOUT_SCORE else {"score": method}
        configs[name] = Config(**(fields | chosen | own))
    return configs


def noise() -> datasets.ImageDataset:
    """Random images in the shape of CIFAR-10, 200 per class; every 20th of them is also a test image."""
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), _SYNTHETIC)
    images = draw.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8)
    return datasets.ImageDataset("noise like cifar10", tuple("0123456789"), images, labels, images[::20], labels[::20])


def _table(
    configs: Mapping[str, Config],
    data: datasets.ImageDataset,
    stream: ClassIncrementalStream,
    repeats: int,
    ceiling: Callable[[], float],
) -> pd.DataFrame:
    """The rows of the methods at one memory size: one per task, then the mean over the batches of the stream."""
    rows, memory_size = [], next(iter(configs.values())).memory_size
    # CUDA's libraries allocate memory in the first steps.
    warm_up = 4 if stream.tasks[0].images.device.type == "cuda" else 1
    for task in stream:
        seen = stream.tasks[: task.number + 1]
        contenders = {name: Contender(config, data, seen) for name, config in configs.items()}
        rates = []
        for batch in itertools.islice(itertools.cycle(task), warm_up + repeats):
            rates.append(ceiling())
            for contender in contenders.values():
                contender.time_batch(batch)
        facts = {"task": str(task.number + 1), "classes": sum(len(t.classes) for t in seen), "batches": len(task)}
        facts["ceiling_images_per_s"] = statistics.median(rates[warm_up:])
        rows += [{"method": name} | contender.row(warm_up) | facts for name, contender in contenders.items()]
    table = pd.DataFrame(rows)
    weighted = table.drop(columns=["method", "task"]).mul(table["batches"] / stream.n_batches, axis=0)
    mean = weighted.groupby(table["method"], sort=False).sum().reset_index().assign(task="mean")
    table = pd.concat([table, mean], ignore_index=True).assign(memory_size=memory_size)
    table["view_images_per_s"] = (1000 * table["view_images"] / table["update_ms"]).where(table["view_images"] > 0)
    table["share_of_ceiling"] = table["view_images_per_s"] / table["ceiling_images_per_s"]
    parts = [f"{part}_ms" for part in PARTS]
    names = ["method", "memory_size", "task", "classes", "candidates", *parts, "whole_ms"]
    return table[[*names, "view_images_per_s", "ceiling_images_per_s", "share_of_ceiling"]]
