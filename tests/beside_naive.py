"""Time the package against the slow implementation: both take turns batch by batch in one process, with a full memory.

    python tests/beside_naive.py [--memory-sizes [N ...]] [--rounds N] [--threads N] [--output PATH]

The slow implementation is `naive`: contiguous float32, torchvision's transforms one after another, forward passes in
training mode. It runs at the first memory size only. Run this on an otherwise idle machine; it takes five minutes.
Each row of the CSV is one variant in one task. It has separate medians of the training step and of the memory update,
in milliseconds per batch.
"""

import argparse
import itertools
import os
import time
from pathlib import Path

import naive
import pandas as pd
import torch

from ucl.assembly import build_stream
from ucl.benchmarks import measure as benchmark
from ucl.benchmarks.contender import Contender
from ucl.config import Config
from ucl.machine.hardware import environment

REFRESH = (1, 10, 2)


def timed(function, *arguments):
    begin = time.perf_counter()
    function(*arguments)
    return 1000 * (time.perf_counter() - begin)


class NaiveMemory:
    """The slow implementation of ER with BI bottom, starting from the state of a contender of the benchmark."""

    def __init__(self, contender, data):
        self.model = naive.plain(contender.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        views, stored = naive.published_views(data.image_size, data.mean), contender.buffer
        self.memory = naive.Memory(stored.size, lambda model, x: naive.published_scores(model, x, views))
        x = naive.normalised(self.model, stored.images)
        self.memory.update(self.model, x, stored.labels.tolist(), stored.positions.tolist())

    def take(self, batch, replay):
        images, labels = naive.normalised(self.model, batch.images), batch.labels
        all_images, all_labels = images, labels
        if replay:
            all_images = torch.cat([images, naive.normalised(self.model, replay[0])])
            all_labels = torch.cat([labels, replay[1]])
        step = timed(naive.replay_step, self.model, self.optimizer, all_images, all_labels)
        return step, timed(self.memory.update, self.model, images, labels.tolist(), batch.positions.tolist())


def measure(memory_size, rounds, with_naive):
    """Return a row for each variant, task and round: milliseconds of the training step and of the memory update."""
    base = Config(dataset="cifar10", memory_size=memory_size)
    variants = {"ER": base.replace(population="reservoir")}
    variants |= {f"BI refresh {r}": base.replace(refresh=r, precision="bfloat16") for r in REFRESH}
    variants["BI refresh 1 float32"] = base.replace(precision="float32")
    data = benchmark.noise()
    stream = build_stream(base, data)
    rows = []
    for task in stream:
        contenders = {variant: Contender(c, data, stream.tasks[: task.number + 1]) for variant, c in variants.items()}
        slow = NaiveMemory(contenders["BI refresh 1 float32"], data) if with_naive else None
        for turn, batch in zip(range(rounds + 1), itertools.cycle(task)):
            times = {}
            for variant, c in contenders.items():
                step = timed(c.method.learn, c.model, batch, c.buffer)
                times[variant] = step, timed(c.buffer.update, c.model, batch)
            if slow is not None:
                er = contenders["ER"]
                times["naive"] = slow.take(batch, er.method.drawn(len(batch), batch.task, er.buffer))
            if turn:  # The first turn is a warm-up.
                rows += [(variant, task.number + 1, turn, *both) for variant, both in times.items()]
        print(f"memory {memory_size}, task {task.number + 1} of {len(stream)}", flush=True)
    return pd.DataFrame(rows, columns=["variant", "task", "round", "step_ms", "update_ms"])


def medians(rounds):
    """Return the medians over the rounds, a row for each variant and task."""
    rounds = rounds.assign(whole_ms=rounds["step_ms"] + rounds["update_ms"])
    return rounds.drop(columns="round").groupby(["variant", "task"], sort=False).median().reset_index()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory-sizes", nargs="*", type=int, default=[500, 1000])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--output", default="figures/beside_naive.csv")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    load = os.getloadavg()[0]
    tables = []
    for size in options.memory_sizes:
        table = medians(measure(size, options.rounds, with_naive=size == options.memory_sizes[0]))
        tables.append(table.assign(memory_size=size))
        means = table.groupby("variant", sort=False)["whole_ms"].mean()
        print(pd.DataFrame({"ms": means, "times ER": means / means["ER"]}).round(2), flush=True)
    facts = environment(torch.device("cpu"), torch.bfloat16) | {"threads": options.threads, "load": round(load, 2)}
    table = pd.concat(tables).assign(rounds=options.rounds, **facts)
    if Path(options.output).exists():  # Rows that were not measured again are retained.
        row = ["processor", "threads", "memory_size", "variant", "task"]
        table = pd.concat([pd.read_csv(options.output), table]).drop_duplicates(row, keep="last")
        table = table.sort_values(["processor", "memory_size", "threads"], kind="stable")
    table.to_csv(options.output, index=False, float_format="%.5g")
    print(options.output)


if __name__ == "__main__":
    main()
