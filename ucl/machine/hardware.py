"""Devices, arithmetic, and the facts of the machine that a record contains."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ucl._version import __version__
from ucl.config import Config
from ucl.errors import InputError


def resolve_device(name: str) -> torch.device:
    """The device with a name; "auto" is the first GPU, or the CPU if there is none.

    Raises:
        InputError: there is no such device here.
    """
    # Without is_available, the count may include GPUs whose driver this torch can't work with.
    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if name == "auto":
        return torch.device(gpus[0] if gpus else "cpu")
    full = "cuda:0" if name == "cuda" else name
    if full not in ["cpu", *gpus]:
        raise InputError("device", name, f"is not here; choose from: {', '.join(['auto', 'cpu', *gpus])}")
    return torch.device(full)


def scoring_dtype(config: Config, device: torch.device) -> torch.dtype:
    """The dtype of the scoring passes on a device; "auto" is bfloat16 if the hardware is faster in it.

    Raises:
        InputError: the precision is bfloat16, and the processor has no convolutions in it.
    """
    if config.precision == "auto":
        if device.type == "cuda":
            faster = torch.cuda.get_device_capability(device) >= (8, 0)
        else:
            faster = has_bfloat16() and _is_faster_in_bfloat16()
        return torch.bfloat16 if faster else torch.float32
    if config.precision == "bfloat16" and device.type == "cpu" and not has_bfloat16():
        raise InputError("precision", "bfloat16", "this processor has no convolutions in bfloat16; give float32")
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.precision]


def has_bfloat16() -> bool:
    """Whether torch has convolutions in bfloat16 on this processor: oneDNN needs AVX-512 or AVX-NE-CONVERT."""
    return not torch.backends.mkldnn.is_available() or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _is_faster_in_bfloat16() -> bool:
    flags = {*_cpuinfo("flags").split(), *_cpuinfo("Features").split()}  # x86 has the first, ARM the second
    # On Intel's processors only the matrix units (AMX) are faster; the vector instructions for bfloat16 are slower.
    return bool(flags & {"amx_bf16", "bf16"}) or ("avx512_bf16" in flags and _cpuinfo("vendor_id") != "GenuineIntel")


def environment(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """The environment entry of a record, see `ucl.records.Record`."""
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "processor": _processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "scoring_precision": str(dtype).removeprefix("torch."),
        "peak_memory_mib": peak_memory_mib(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "ucl": __version__,
        "commit": commit(),
    }


def _cpuinfo(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.split(":")[0].strip() == key), "")


@functools.cache
def _processor_name() -> str:
    """The processor's name, such as "Apple M2 Pro"; on macOS, Python itself only knows "arm"."""
    if sys.platform == "darwin":
        ask = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(ask, capture_output=True, text=True).stdout.strip() or platform.processor()
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def peak_memory_mib(device: torch.device) -> int:
    """Peak memory in MiB: of the tensors on a GPU, otherwise of this process since its start."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / 2**20 if sys.platform == "darwin" else peak / 2**10)


@functools.cache
def commit() -> str:
    """The commit of this source tree, with "+" if files differ from it; "" outside a checkout of this project."""
    # It is read once per process, because imported code does not change with later commits.
    source = Path(__file__).resolve().parents[2]
    git = ["git", "-C", str(source)]
    try:
        top = subprocess.run([*git, "rev-parse", "--show-toplevel", "HEAD"], capture_output=True, check=True)
        dirty = subprocess.run([*git, "status", "--porcelain", "ucl"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    # Git writes the folder in the encoding of file names, which may not be that of the locale.
    folder, head = os.fsdecode(top.stdout).splitlines()
    return head + ("+" if dirty.stdout else "") if Path(folder) == source else ""


@functools.cache
def package_hash() -> str:
    """A hash of the Python files of this package, which also shows changes that are not committed; read once."""
    package = Path(__file__).resolve().parents[1]
    sources = {path.relative_to(package).as_posix(): path.read_bytes() for path in sorted(package.rglob("*.py"))}
    return hashlib.sha256(repr(sources).encode()).hexdigest()[:16]
