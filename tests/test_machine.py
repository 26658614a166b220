"""The machine: its memory and what a run needs of it, its arithmetic, the facts in a record, and complete files."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ucl
from ucl import Config, InputError, RecordStore, load_records
from ucl.cli.main import main
from ucl.machine import files, footprint, hardware
from ucl.machine.available import available_bytes, in_gib
from ucl.machine.footprint import bytes_needed

ROOT = Path(ucl.__file__).resolve().parents[1]
ER = Config(dataset="images", n_tasks=2, memory_size=20, population="reservoir", validation=0)
MIB = 2**20

# Memory


def system(root, group="", limits=None, available=800):
    """A folder with the files of /proc and /sys from which the available memory is read, in KiB and bytes."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: {available} kB\n")
    (root / "proc/self/cgroup").write_text(f"0::/{group}\n")
    for name, (most, taken, cache) in (limits or {}).items():
        folder = root / "sys/fs/cgroup" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{taken}\n")
        (folder / "memory.stat").write_text(f"anon 5\nactive_file {cache}\ninactive_file 7\n")
    return root


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, 800 * 1024),
        ({"": ("max", 5, 0)}, 800 * 1024),
        ({"": (300000, 250000, 40000)}, 300000 - 250000 + 40007),  # page cache counts as available
        ({"job": (300000, 250000, 0), "job/step": ("max", 5, 0)}, 300000 - 250000 + 7),  # the limit of a parent
        ({"job/step": (1000, 2000, 0)}, 0),
    ],
)
def test_available_memory_is_the_smallest_of_the_machine_and_its_control_groups(tmp_path, limits, expected):
    assert available_bytes(system(tmp_path, "job/step" if "job/step" in limits else "", limits)) == expected


def test_available_memory_is_unknown_on_other_systems(tmp_path):
    assert available_bytes(tmp_path) is None


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="needs Linux")
def test_this_machine_has_less_than_it_was_built_with():
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert 0 < available_bytes() < total


def test_bytes_are_written_in_gib_with_two_digits_or_thousands():
    assert [in_gib(n) for n in (2**29, 3 * 2**29, 2**40)] == ["0.50 GiB", "1.5 GiB", "1,024.0 GiB"]


# What a run needs


def total(config=ER, n_images=60, image_size=64, channels=3, n_classes=4, threads=1):
    return sum(bytes_needed(config, n_images, image_size, channels, n_classes, threads).values())


def test_images_are_counted_as_bytes_in_the_stream_and_the_memory():
    few, many = (bytes_needed(ER.replace(memory_size=m), n, 32, 3, 4) for n, m in ((1000, 100), (3000, 700)))
    assert many["images"] - few["images"] == (2000 + 600) * 32 * 32 * 3
    assert bytes_needed(ER.replace(memory_size=10**7), 1000, 32, 3, 4)["images"] == 2 * 1000 * 32 * 32 * 3


@pytest.mark.parametrize(
    "change",
    [
        dict(image_size=96),
        dict(n_images=60_000),
        dict(config=ER.replace(batch_size=20)),
        dict(config=ER.replace(memory_size=60), n_images=6000),
        dict(config=ER.replace(population="uncertainty", scoring_batchnorm="train", memory_size=60)),
        dict(config=ER.replace(population="uncertainty", score="MC", memory_size=2000), n_images=6000),
        dict(threads=8),
    ],
    ids=str,
)
def test_more_of_anything_needs_more(change):
    assert total(**change) > total()


def test_what_does_not_train_on_a_memory_needs_less():
    assert total(ER.replace(method="finetune")) <= total(ER.replace(method="agem")) < total()


PROBE = """
import json, sys
import numpy as np, torch, ucl
from ucl.machine import footprint
torch.set_num_threads(1)
peak = lambda: int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))) * 1024
size, fields = int(sys.argv[1]), json.loads(sys.argv[2])
draw = np.random.default_rng(0)
train, test = (draw.integers(0, 256, (n, size, size, 3), dtype=np.uint8) for n in (44, 16))
before = peak()
data = ucl.datasets.ImageDataset("images", tuple("abcd"), train, np.arange(44) % 4, test, np.arange(16) % 4)
ucl.datasets.load = lambda *_: data
config = ucl.Config(dataset="images", n_tasks=2, memory_size=20, validation=0, precision="float32", **fields)
ucl.run(config, device="cpu", progress=False)
print(json.dumps([sum(footprint.bytes_needed(config, 60, size, 3, 4, threads=1).values()), peak() - before]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
@pytest.mark.parametrize(
    "fields", [{"population": "reservoir"}, {"score": "BI", "scoring_batchnorm": "train"}], ids=["ER", "training mode"]
)
def test_the_estimate_is_near_what_a_run_takes(fields):
    command = [sys.executable, "-c", PROBE, "64", json.dumps(fields)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    env.pop("MALLOC_TRIM_THRESHOLD_", None)  # Dask sets it; freed memory would return sooner.
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    estimated, measured = json.loads(done.stdout)
    assert 0.6 * estimated < measured < 1.4 * estimated


@pytest.mark.parametrize("available", [50 * MIB, None, 2**50])
def test_a_run_that_does_not_fit_is_refused(tiny, monkeypatch, capsys, tmp_path, available):
    monkeypatch.setattr(footprint, "available_bytes", lambda: available)
    typed = ["--dataset", tiny.dataset, "--n-tasks", "2", "--memory-size", "8", "--population", "reservoir"]
    code = main(["run", *typed, "--device", "cpu", "--store", str(tmp_path / "runs")])
    err = capsys.readouterr().err
    assert code == (2 if available == 50 * MIB else 0) and ("0.05 GiB" in err) == (code == 2)


# Arithmetic


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
print(has_bfloat16(), torch.cpu._is_avx512_supported())
for precision in ("auto", "float32", "bfloat16"):
    try:
        print(scoring_dtype(ucl.Config(precision=precision), torch.device("cpu")))
    except ucl.InputError as error:
        print("refused", error.name)
"""


@pytest.mark.parametrize("isa", ["AVX2", None])
def test_bfloat16_is_refused_where_the_processor_has_none(isa):
    env = {**os.environ, "PYTHONPATH": str(ROOT)} | ({"ONEDNN_MAX_CPU_ISA": isa} if isa else {})
    done = subprocess.run([sys.executable, "-c", PRECISIONS], capture_output=True, text=True, check=True, env=env)
    first, auto, exact, half = done.stdout.splitlines()
    supported, avx512 = (word == "True" for word in first.split())
    assert exact == "torch.float32" and half == ("torch.bfloat16" if supported else "refused precision")
    if isa == "AVX2" and os.uname().machine == "x86_64":
        assert not supported and auto == "torch.float32"
    elif avx512:
        assert supported


# Facts of a record


def test_the_commit_is_that_of_the_code_that_runs(tmp_path):
    """The folder's name has a space and an accent, and a file is added after the code was imported."""
    checkout = tmp_path / "mes données" / "ucl"
    shutil.copytree(ROOT / "ucl", checkout / "ucl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".gitignore", checkout)  # Python may write bytecode, which is no change of the code.
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
    env = {**os.environ, "PYTHONPATH": str(checkout), "LC_ALL": "C"}
    reported = subprocess.run([sys.executable, "-c", source], cwd=checkout, capture_output=True, text=True, env=env)
    assert reported.stdout.splitlines() == [head, head, f"{head}+"] and re.fullmatch("[0-9a-f]{40}", head)


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


def test_a_record_names_its_machine(tiny):
    facts = hardware.environment(torch.device("cpu"), torch.float32)
    assert facts["device"] == "cpu" and facts["processor"] and facts["scoring_precision"] == "float32"
    assert (facts["threads"], facts["torch"]) == (torch.get_num_threads(), torch.__version__)
    assert facts["peak_memory_mib"] > 10 and facts["ucl"] == ucl.__version__


# Files


def test_a_text_is_read_through_a_link_and_only_from_a_regular_file(tmp_path):
    (tmp_path / "file").write_text("text: ä", encoding="utf-8")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "device").symlink_to("/dev/zero")
    assert files.read_text(tmp_path / "link") == "text: ä"
    for name in ("device", "", "gone"):
        with pytest.raises(OSError):
            files.read_text(tmp_path / name)


def test_a_file_is_replaced_completely_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "file"
    with files.part_of(path, lambda file: file.write(b"old")) as part:
        assert part.parent == path.parent and not path.exists()
        part.replace(path)

    def fails(file):
        file.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError), files.part_of(path, fails):
        pass
    assert path.read_bytes() == b"old" and os.listdir(path.parent) == ["file"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_in_a_store_is_named_and_the_others_are_read(tmp_path, tiny):
    store = RecordStore(tmp_path / "runs")
    store.save(ucl.run(tiny, device="cpu", progress=False))
    os.mkfifo(store.folder / "a.json")
    with pytest.warns(UserWarning, match=r"a\.json"):
        assert load_records(store.folder)["key"].tolist() == [tiny.key]


@pytest.mark.parametrize("name", ["tpu", "cuda:63", ""])
def test_a_device_that_is_not_here_is_refused(name):
    with pytest.raises(InputError):
        hardware.resolve_device(name)
