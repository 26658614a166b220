"""The verb `ucl benchmark`: its flags and its command. Its defaults are those of `ucl.benchmarks.measure.benchmark`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ucl.catalogue import ORDER, PAPER
from ucl.cli.arguments import check_output, integer, number

_METHODS = (
    f"any of {', '.join(ORDER)}, or your own score as module:function; 'CBR updates=4' takes four training steps per "
    "batch, and leaderboard is all that the leaderboard compares (default: the methods of the paper and Finetune)"
)
_COUNT, _NUMBER, _NAME = ({"type": integer, "metavar": "N"}, {"type": number, "metavar": "X"}, {"metavar": "NAME"})
# The arguments of `benchmark`, in its order: default, kind of flag and help. Its signature is not read, because
# importing it takes seconds.
ARGUMENTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "methods": (PAPER, {**_NAME, "nargs": "+"}, _METHODS),
    "memory_sizes": ((500, 1000), {**_COUNT, "nargs": "+"}, "numbers of images in the memory (default: 500 1000)"),
    "dataset": (None, _NAME, "default: noise in the shape of CIFAR-10, which needs no data"),
    "n_tasks": (None, _COUNT, "number of tasks (default: that of the data set, as in ucl run)"),
    "repeats": (5, _COUNT, "timed batches per method, memory size and task (default: %(default)s)"),
    "refresh": (1.0, _NUMBER, "how many stored images of a class are rescored, see ucl run (default: %(default)s)"),
    "precision": ("auto", _NAME, "arithmetic of the scoring passes: auto, float32, bfloat16 (default: %(default)s)"),
    "device": ("auto", _NAME, "cpu, cuda, cuda:1, …; auto uses a GPU if there is one (default: %(default)s)"),
    "threads": (None, _COUNT, "CPU threads (default: all cores)"),
    "root": (None, {"metavar": "DIR"}, "folder of the data sets (default: $UCL_DATA or ~/.cache/ucl)"),
}


def add_benchmark(add_parser: Callable) -> None:
    parser = add_parser(description="Measure the milliseconds per batch of each method, by part.")
    parser.set_defaults(command=benchmark, verb=parser)
    for name, (default, kind, text) in ARGUMENTS.items():
        flag = "--data" if name == "root" else f"--{name.replace('_', '-')}"
        parser.add_argument(flag, dest=name, default=default, help=text, **kind)
    text = "writes PATH.csv, PATH_updates.csv, PATH.png and PATH.pdf (default: %(default)s)"
    parser.add_argument("--output", default="figures/benchmark", metavar="PATH", help=text)


def benchmark(options: argparse.Namespace) -> int:
    """Measure, write tables and a picture, and print a summary."""
    check_output(options.output)
    import torch

    from ucl.benchmarks import measure, report, updates
    from ucl.machine.hardware import resolve_device
    from ucl.records.record import processor_of

    table = measure.benchmark(**{name: getattr(options, name) for name in ARGUMENTS})
    files = [*report.write(table, options.output), f"{options.output}_updates.csv"]
    facts = table.iloc[0]
    torch.set_num_threads(int(facts["threads"]))  # `measure.benchmark` has restored the number from before it.
    times = updates.update_times(device=resolve_device(options.device))
    of_machine = times.assign(processor=processor_of(facts.to_dict()), threads=facts["threads"])
    of_machine.to_csv(files[-1], index=False, float_format="%.3g")
    print(report.summary(table), updates.in_words(times), *files, sep="\n")  # at the end, as it fails on a closed pipe
    return 0
