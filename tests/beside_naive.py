"""Time the package against the slow implementation: both take turns batch by batch in one process, with a full memory.

    python tests/beside_naive.py    # five minutes on an otherwise idle machine; writes figures/beside_naive.csv

The slow implementation is `naive`: contiguous float32, torchvision's transforms one after another, forward passes in
training mode. It runs at the first memory size only. Each row of the CSV is one variant in one task. It has separate
medians of the training step and of the memory update, in milliseconds per batch.
"""

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

MEMORY_SIZES, REFRESH, ROUNDS = (500, 1000), (1, 10, 2), 7
OUTPUT = Path(__file__).resolve().parents[1] / "figures" / "beside_naive.csv"


def timed(function, *arguments):
    begin = time.perf_counter()
    function(*arguments)
    return 1000 * (time.perf_counter() - begin)


class NaiveMemory:
    """The slow implementation of ER with BI bottom, starting from the state of a contender of the benchmark."""

    def __init__(self, contender, data):
        self.model, self.times = naive.plain(contender.model), []
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        views, stored = naive.published_views(data.image_size, data.mean), contender.buffer
        self.memory = naive.Memory(stored.size, lambda model, x: naive.published_scores(model, x, views))
        x = naive.normalised(self.model, stored.images)
        self.memory.update(self.model, x, stored.labels.tolist(), stored.positions.tolist())

    def time_batch(self, batch, replay):
        images, labels = naive.normalised(self.model, batch.images), batch.labels
        all_images, all_labels = images, labels
        if replay:
            all_images = torch.cat([images, naive.normalised(self.model, replay[0])])
            all_labels = torch.cat([labels, replay[1]])
        step = timed(naive.replay_step, self.model, self.optimizer, all_images, all_labels)
        update = timed(self.memory.update, self.model, images, labels.tolist(), batch.positions.tolist())
        self.times.append({"training_ms": step, "update_ms": update, "whole_ms": step + update})


def measure(memory_size):
    """A row for each variant and task: the medians over the rounds, without the first, a warm-up."""
    base = Config(dataset="cifar10", memory_size=memory_size)
    variants = {"ER": base.replace(population="reservoir")}
    variants |= {f"BI refresh {r}": base.replace(refresh=r, precision="bfloat16") for r in REFRESH}
    variants["BI refresh 1 float32"] = base.replace(precision="float32")
    data, rows = benchmark.noise(), []
    for task in (stream := build_stream(base, data)):
        contenders = {variant: Contender(c, data, stream.tasks[: task.number + 1]) for variant, c in variants.items()}
        er = contenders["ER"]
        slow = NaiveMemory(contenders["BI refresh 1 float32"], data) if memory_size == MEMORY_SIZES[0] else None
        for batch in itertools.islice(itertools.cycle(task), 1 + ROUNDS):
            for contender in contenders.values():
                contender.time_batch(batch)
            if slow is not None:
                slow.time_batch(batch, er.method.drawn(len(batch), batch.task, er.buffer))
        times = {variant: contender.row(1) for variant, contender in contenders.items()}
        times |= {"naive": pd.DataFrame(slow.times[1:]).median()} if slow is not None else {}
        for variant, medians in times.items():
            step, update, whole = (medians[f"{part}_ms"] for part in ("training", "update", "whole"))
            facts = {"variant": variant, "task": task.number + 1, "memory_size": memory_size}
            rows.append(facts | {"step_ms": step, "update_ms": update, "whole_ms": whole})
        print(f"memory {memory_size}, task {task.number + 1} of {len(stream)}", flush=True)
    return pd.DataFrame(rows)


def main():
    load = os.getloadavg()[0]
    torch.set_num_threads(os.cpu_count())
    table = pd.concat(map(measure, MEMORY_SIZES)).assign(rounds=ROUNDS)
    table = table.assign(**environment(torch.device("cpu"), torch.bfloat16), load=round(load, 2))
    row = ["processor", "threads", "memory_size", "variant", "task"]  # those of other processors are retained
    table = pd.concat([pd.read_csv(OUTPUT), table]).drop_duplicates(row, keep="last")
    table = table.sort_values(["processor", "memory_size", "threads"], kind="stable")
    table.to_csv(OUTPUT, index=False, float_format="%.5g")
    means = table.groupby(["processor", "memory_size", "variant"], sort=False)["whole_ms"].mean()
    print(means.round(1).to_string(), OUTPUT, sep="\n")


if __name__ == "__main__":
    main()
