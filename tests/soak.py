"""Thousands of kills and hostile inputs: `make soak`. Prints counts and every failure; exits with 1 if there is any.

A case is drawn from (seed, kind, number) alone, so `--only KIND --case N` repeats it; the moment of a kill depends also
on the machine's speed. Linux only: this process adopts what a killed process leaves behind (PR_SET_CHILD_SUBREAPER).
"""

import argparse
import ctypes
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

# Each process has one thread; this must be set before torch is loaded. A lane forks the processes that it kills, so
# that a start takes milliseconds instead of the seconds of importing torch, and a kill hits the program at work.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", PYTHONWARNINGS="ignore")
ROOT = Path(__file__).resolve().parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import pandas as pd  # noqa: E402
import soak_inputs  # noqa: E402
import soak_kills  # noqa: E402

from ucl.machine.hardware import commit  # noqa: E402

KILLS = {"run": 0.50, "sweep": 0.20, "worker": 0.20, "parent": 0.05, "dask": 0.035, "reproduce": 0.015}
INPUTS = {"config": 0.30, "record": 0.25, "archive": 0.15, "image": 0.10, "command": 0.20}
LANES = (  # Two lanes run at a time.
    ("run", "sweep"),
    ("worker", "parent", "dask", "reproduce"),
    ("config", "record"),
    ("archive", "image", "command"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="processes to kill (default: %(default)s)")
    parser.add_argument("--inputs", type=int, default=10_000, help="hostile inputs to try (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=[*KILLS, *INPUTS], default=[*KILLS, *INPUTS], metavar="KIND")
    parser.add_argument("--case", type=int, help="this case alone, of one KIND: " + ", ".join([*KILLS, *INPUTS]))
    parser.add_argument("--output", help="write a table to this CSV, unless --only or --case leaves something out")
    options = parser.parse_args()
    shares = {kind: math.ceil(options.kills * share) for kind, share in KILLS.items()}
    shares |= {kind: math.ceil(options.inputs * share) for kind, share in INPUTS.items()}
    shares = {kind: 1 if options.case is not None else shares[kind] for kind in options.only if shares[kind]}
    begin, found = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="ucl-soak-") as work:
        if shares.keys() - {"config"}:
            runs = "all" if shares.keys() & KILLS.keys() else "methods"
            pid = soak_kills.fork(lambda: soak_kills.prepare(Path(work), runs))
            if os.waitpid(pid, 0)[1]:
                return 1
        lanes = {}
        for lane in LANES:
            asked = {kind: shares[kind] for kind in lane if kind in shares}
            if asked:
                if len(lanes) == 2:
                    end_of_one(lanes, found)
                results = Path(work, f"{lane[0]}.json")
                pid = soak_kills.fork(lambda a=asked, r=results: run_lane(a, options, Path(work), r))
                lanes[pid] = lane, results
        while lanes:
            end_of_one(lanes, found)
    kills, inputs = (sum(n for kind, n, *_ in found if kind in kinds) for kinds in (KILLS, INPUTS))
    failures = sum(failed for _, _, failed, _ in found)
    minutes = (time.monotonic() - begin) / 60
    print(f"{kills} kills, {inputs} hostile inputs, {failures} failures, {minutes:.0f} minutes")
    if options.output and {kind for kind, *_ in found} == KILLS.keys() | INPUTS.keys() and options.case is None:
        table = pd.DataFrame(sorted(found), columns=["kind", "tried", "failures", "seconds"])
        facts = {"is_kill": table["kind"].isin(KILLS), "seed": options.seed, "commit": commit()[:7]}
        table.assign(**facts).to_csv(options.output, index=False)
    return int(failures > 0 or len(found) < len(shares))


def run_lane(asked: dict[str, int], options: argparse.Namespace, work: Path, results: Path) -> None:
    """Try the given number of cases of each kind; writes (kind, number tried, failures, seconds) to a file."""
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: this process adopts orphans of killed processes.
    found = []
    for kind, wanted in asked.items():
        begin, done, failed, case = time.monotonic(), 0, 0, options.case or 0
        first = case
        module = soak_kills if kind in KILLS else soak_inputs
        while done < wanted:
            folder = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=work))
            n, failures = module.CASES[kind](random.Random(f"{options.seed} {kind} {case}"), folder, work)
            for failure in failures:
                again = f"python tests/soak.py --seed {options.seed} --only {kind} --case {case}"
                print(f"FAILED {kind} {case}: {failure}\n       again: {again}", flush=True)
            done, failed, case = done + n, failed + len(failures), case + 1
            shutil.rmtree(folder, ignore_errors=True)
            if options.case is not None:
                break
        seconds = time.monotonic() - begin
        print(f"{kind:10} {done:6} in {case - first:5} cases, {failed} failures, {seconds:.0f} s", flush=True)
        found.append((kind, done, failed, round(seconds)))
        results.write_text(json.dumps(found))


def end_of_one(lanes: dict[int, tuple[tuple[str, ...], Path]], found: list[tuple[str, int, int, int]]) -> None:
    """Wait until any lane ends, and collect its results."""
    pid, status = os.wait()
    kinds, results = lanes.pop(pid)
    found += json.loads(results.read_text()) if results.exists() else []
    if status:
        print(f"FAILED the lane of {', '.join(kinds)} ended with {os.waitstatus_to_exitcode(status)}", flush=True)
        found.append((kinds[0], 0, 1, 0))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
