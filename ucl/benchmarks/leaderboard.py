"""Time per batch of every policy of the leaderboard, in turns in one process: ``python -m ucl.benchmarks.leaderboard``.

It takes some minutes and writes figures/leaderboard_costs.csv. Other work on the machine affects all policies alike,
but makes the times longer and less exact.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ucl.benchmarks.measure import benchmark
from ucl.evidence import leaderboard


def costs(
    dataset: str, memory_size: int, repeats: int = 20, threads: int | None = None, root: str | Path | None = None
) -> pd.DataFrame:
    """Time each policy of `ucl.evidence.leaderboard.POLICIES` on a stream, see `ucl.benchmarks.measure.benchmark`.

    Args:
        dataset, memory_size: the stream; the images must be on this machine or are downloaded.
        repeats: timed batches per policy and task.
        threads, root: see `benchmark`.

    Returns:
        The table of `benchmark`: times in milliseconds.

    Raises:
        InputError: a value can't be used.
    """
    table = benchmark(leaderboard.to_time(), [memory_size], dataset, repeats=repeats, threads=threads, root=root)
    return table.assign(dataset=dataset)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure a stream and write its rows; rows of other streams in the file are kept. Returns the exit code."""
    (name, size), *_ = leaderboard.STREAMS
    parser = argparse.ArgumentParser("python -m ucl.benchmarks.leaderboard", description=str(__doc__).partition(":")[0])
    parser.add_argument("--dataset", default=name, help="data set (default: %(default)s)")
    parser.add_argument("--memory-size", type=int, default=size, help="images in the memory (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=20, help="timed batches per policy and task (default: 20)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all cores, or OMP_NUM_THREADS)")
    parser.add_argument("--data", metavar="DIR", help="folder of the data sets (default: $UCL_DATA or ~/.cache/ucl)")
    parser.add_argument("--output", type=Path, default=Path("figures/leaderboard_costs.csv"), metavar="FILE")
    options = parser.parse_args(arguments)
    options.output.parent.mkdir(parents=True, exist_ok=True)  # It raises here, before the measurement.
    found = costs(options.dataset, options.memory_size, options.repeats, options.threads, options.data)
    if options.output.is_file():
        others = pd.read_csv(options.output)
        same = (others["dataset"] == options.dataset) & (others["memory_size"] == options.memory_size)
        found = pd.concat([others[~same], found], ignore_index=True)
    found.to_csv(options.output, index=False, float_format="%.5g")
    print(options.output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
