"""The machine: its memory, its arithmetic, the facts in a record, and complete files."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from conftest import python

import ucl
from ucl import Config
from ucl.machine import files, hardware
from ucl.machine.available import available_bytes

ROOT = Path(ucl.__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, 800 * 1024),
        ({"": (300000, 250000, 40000)}, 300000 - 250000 + 40007),  # page cache counts as available
        ({"job": (300000, 250000, 0), "job/step": ("max", 5, 0)}, 300000 - 250000 + 7),  # the limit of a parent
        ({"job/step": (1000, 2000, 0)}, 0),
    ],
)
def test_available_memory_is_the_smallest_of_the_machine_and_its_control_groups(tmp_path, limits, expected):
    assert available_bytes(tmp_path) is None  # as on other systems than Linux
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 800 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/job/step\n" if "job/step" in limits else "0::/\n")
    for name, (most, taken, cache) in limits.items():
        folder = tmp_path / "sys/fs/cgroup" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{taken}\n")
        (folder / "memory.stat").write_text(f"anon 5\nactive_file {cache}\ninactive_file 7\n")
    assert available_bytes(tmp_path) == expected


@pytest.mark.parametrize(
    ("vendor", "flags", "expected"),
    [
        ("GenuineIntel", {"avx512f", "avx512_bf16", "amx_bf16"}, torch.bfloat16),
        ("GenuineIntel", {"avx512f", "avx512_bf16"}, torch.float32),  # a virtual machine that hides the matrix units
        ("AuthenticAMD", {"avx512f", "avx512_bf16"}, torch.bfloat16),
        ("", {"asimd", "bf16"}, torch.bfloat16),  # ARM
        ("GenuineIntel", {"avx2"}, torch.float32),
        ("", set(), torch.float32),
    ],
)
def test_auto_is_bfloat16_where_the_processor_is_faster_in_it(monkeypatch, vendor, flags, expected):
    monkeypatch.setattr(hardware, "_cpuinfo", lambda key: vendor if key == "vendor_id" else " ".join(flags))
    for supported in (True, False):
        monkeypatch.setattr(hardware, "has_bfloat16", lambda supported=supported: supported)
        chosen = hardware.scoring_dtype(Config(dataset="digits"), torch.device("cpu"))
        assert chosen == (expected if supported else torch.float32)


PRECISIONS = """
import torch, ucl
from ucl.machine.hardware import has_bfloat16, scoring_dtype
print(has_bfloat16())
for precision in ("auto", "float32", "bfloat16"):
    try:
        print(scoring_dtype(ucl.Config(precision=precision), torch.device("cpu")))
    except ucl.InputError as error:
        print("refused", error.name)
"""


def test_bfloat16_is_refused_where_the_processor_has_none():
    """oneDNN reads the variable when a process begins."""
    output = python("-c", PRECISIONS, environment={"ONEDNN_MAX_CPU_ISA": "AVX2"})
    supported, auto, exact, half = output.splitlines()
    assert exact == "torch.float32" and half == ("torch.bfloat16" if supported == "True" else "refused precision")
    assert supported == "True" or auto == "torch.float32"
    assert supported == "False" or os.uname().machine != "x86_64"


def test_the_commit_is_that_of_the_code_that_runs(tmp_path):
    """The folder's name has a space and an accent, and a file is added after the code was imported."""
    checkout = tmp_path / "mes données" / "ucl"
    shutil.copytree(ROOT / "ucl", checkout / "ucl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".gitignore", checkout)  # Python may write bytecode, which does not change the code.
    git = "git init -q && git add ucl && git -c user.name=me -c user.email=me@home commit -qm step"
    subprocess.run(git, shell=True, cwd=checkout, check=True)
    source = """
from ucl.machine.hardware import commit
print(commit())
open("ucl/new.py", "w").close()
print(commit())
commit.cache_clear()  # as in a new process
print(commit())
"""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True).stdout.strip()
    reported = python("-c", source, environment={"PYTHONPATH": str(checkout), "LC_ALL": "C"}, cwd=checkout)
    assert reported.splitlines() == [head, head, f"{head}+"] and re.fullmatch("[0-9a-f]{40}", head)


def test_the_hash_of_the_package_is_of_the_names_and_contents_of_its_files(tmp_path, monkeypatch):
    package = Path(hardware.__file__).parents[1]
    shutil.copytree(package, tmp_path / "ucl", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(hardware, "__file__", str(tmp_path / "ucl" / "machine" / "hardware.py"))
    hashes, file = [hardware.package_hash()], tmp_path / "ucl" / "scorers" / "new.py"
    for change in (file.touch, lambda: file.write_text("x = 1\n"), lambda: file.rename(file.with_name("other.py"))):
        hashes.append(hardware.package_hash.__wrapped__())
        change()
    hashes.append(hardware.package_hash.__wrapped__())
    assert hashes[0] == hashes[1] and len(set(hashes)) == 4


def test_a_file_is_replaced_completely_or_not_at_all(tmp_path, monkeypatch):
    def full(_):
        assert path.read_bytes() == b"old" and len(os.listdir(path.parent)) == 2
        raise OSError("disk full")

    path = tmp_path / "new" / "file"
    files.write_whole(path, b"old")
    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(os, "fsync", full)
        files.write_whole(path, b"new")
    assert path.read_bytes() == b"old" and os.listdir(path.parent) == ["file"]
