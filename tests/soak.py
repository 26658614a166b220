"""Random kills of runs: `make soak`. Each run must end with the record of one that was never killed, bit for bit.

Prints one line per method, and each difference with the seed that repeats its kills (their moments also depend on the
machine's speed). Exits with 1 if there is a difference.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

# One thread per process, set before torch is loaded. Processes that are killed are forked, so that a start takes
# milliseconds instead of the seconds of importing torch, and a kill hits a run at work.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from conftest import bands  # noqa: E402

import ucl  # noqa: E402
from ucl import Config  # noqa: E402

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
    n_kills = n_continued = n_wrong = 0
    with tempfile.TemporaryDirectory(prefix="ucl-soak-") as folder:
        for name in options.only:
            config = Config(**dict(dataset=data(Path(folder)), n_tasks=4, memory_size=8, batch_size=4) | METHODS[name])
            draw = random.Random(f"{options.seed} {name}")
            kills, continued, wrong = soak(config, options.kills, draw, Path(folder, name.replace(" ", "_")))
            print(f"{name:15} {kills:4} kills, {continued:4} starts from a checkpoint, {wrong} differences", flush=True)
            n_kills, n_continued, n_wrong = n_kills + kills, n_continued + continued, n_wrong + wrong
    print(f"{n_kills} kills, {n_continued} starts from a checkpoint, {n_wrong} differences; seed {options.seed}")
    return int(n_wrong > 0)


def data(folder: Path) -> str:
    """A data set of 80 images of four classes, in the folder."""
    arrays = {}
    for split, n in (("train", 80), ("test", 24)):
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = bands(n)
    np.savez(folder / "bands.npz", **arrays)
    return str(folder / "bands.npz")


def soak(config: Config, n_kills: int, draw: random.Random, folder: Path) -> tuple[int, int, int]:
    """Kill runs until there were `n_kills`.

    Returns:
        The number of kills, of starts from a checkpoint, and of runs that failed or had another result.
    """
    folder.mkdir()
    whole, checkpoint = folder / "whole.json", folder / "checkpoint.pt"
    begin = time.monotonic()
    if wait(start(config, None, whole)) != 0:
        return 0, 0, 1
    seconds, expected = time.monotonic() - begin, whole.read_text()
    kills = continued = wrong = 0
    while kills < n_kills:
        result = folder / "result.json"
        while not result.exists():  # A run is killed again and again until it ends before its kill.
            continued += checkpoint.exists()
            pid = start(config, checkpoint, result)
            code = wait(pid, draw.uniform(0, 0.8 * seconds) if kills < n_kills else None)
            kills += code == -signal.SIGKILL
            if code not in (0, -signal.SIGKILL):
                wrong += 1
                break
        wrong += result.exists() and result.read_text() != expected
        for path in folder.iterdir():
            if path != whole:
                path.unlink()
    return kills, continued, wrong


def start(config: Config, checkpoint: Path | None, result: Path) -> int:
    """Run a configuration in a new process that writes its results to a file; returns the process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        torch.set_num_threads(1)
        warnings.simplefilter("error")  # A checkpoint that is ignored is an error.
        record = ucl.run(config, device="cpu", progress=False, checkpoint=checkpoint)
        part = result.with_suffix(".part")
        part.write_text(json.dumps(record.results))
        part.rename(result)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int, seconds: float | None = None) -> int:
    """The exit code of a process, which is killed after so many seconds; minus the signal if it was killed."""
    if seconds is not None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
