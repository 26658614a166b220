"""Random kills of runs: `make soak`. Each run must end with the record of one that was never killed, bit for bit.

Prints one line per method. The seed repeats the moments of the kills, as far as the machine's speed allows. Exits with
1 if there is a difference.
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path

# One thread per process, set before torch is loaded. Processes that are killed are forked, so that a start takes
# milliseconds instead of the seconds of importing torch, and a kill hits a run at work.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

import torch  # noqa: E402
from conftest import save_bands  # noqa: E402

import ucl  # noqa: E402
from ucl import Config  # noqa: E402
from ucl.machine.files import write_whole  # noqa: E402

METHODS = {
    "ER": dict(population="reservoir", dropout=0.2),
    "BI": dict(score="BI", refresh=2),
    "MC": dict(score="MC"),
    "A-GEM": dict(method="agem"),
    "DER++": dict(method="derpp", population="class-balanced"),
    "GSS": dict(population="gss"),
    "Rainbow": dict(population="rainbow"),
    "readings": dict(score="BI", scoring_batchnorm="train", readings=True),
    "evaluate_every": dict(score="EN", evaluate_every=1, validation=0.2),
    "user objects": dict(population="own_objects:Counting", method="own_objects:Slower"),
    "user score": dict(score="own_objects:growing", model="own_objects:batch_normed"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="kills per method (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD")
    options = parser.parse_args()
    n_wrong = 0
    for name in options.only:
        with tempfile.TemporaryDirectory(prefix="ucl-soak-") as folder:
            dataset = str(save_bands(Path(folder, "bands.npz"), train=80))
            config = Config(**dict(dataset=dataset, n_tasks=4, memory_size=8, batch_size=4) | METHODS[name])
            draw = random.Random(f"{options.seed} {name}")
            continued, wrong = soak(config, options.kills, draw, Path(folder))
        print(
            f"{name:15} {options.kills:4} kills, {continued:4} starts from a checkpoint, {wrong} differences",
            flush=True,
        )
        n_wrong += wrong
    return int(n_wrong > 0)


def soak(config: Config, n_kills: int, draw: random.Random, folder: Path) -> tuple[int, int]:
    """Kill runs until there were `n_kills`.

    Returns:
        The number of starts from a checkpoint, and of runs that failed or had another result.
    """
    whole, result, checkpoint = folder / "whole.json", folder / "result.json", folder / "checkpoint.pt"
    begin = time.monotonic()
    if attempt(config, None, whole) != 0:
        return 0, 1
    seconds, kills, continued, wrong = time.monotonic() - begin, 0, 0, 0
    while kills < n_kills and not wrong:
        code = None
        while not result.exists() and code in (None, -signal.SIGKILL):  # until a run ends before its kill
            continued += checkpoint.exists()
            code = attempt(config, checkpoint, result, draw.uniform(0, 0.8 * seconds) if kills < n_kills else None)
            kills += code == -signal.SIGKILL
        wrong += not result.exists() or result.read_text() != whole.read_text()
        result.unlink(missing_ok=True)
        checkpoint.unlink(missing_ok=True)
    return continued, wrong


def attempt(config: Config, checkpoint: Path | None, result: Path, seconds: float | None = None) -> int:
    """The exit code of a process that measures a run; it is killed after so many seconds."""
    process = multiprocessing.get_context("fork").Process(target=measure, args=(config, checkpoint, result))
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    return process.exitcode


def measure(config: Config, checkpoint: Path | None, result: Path) -> None:
    """Run a configuration and write its results to a file."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")  # A checkpoint that is ignored is an error.
    record = ucl.run(config, device="cpu", progress=False, checkpoint=checkpoint)
    write_whole(result, json.dumps(record.results).encode())


if __name__ == "__main__":
    sys.exit(main())
