"""The arithmetic that "auto" chooses for a processor, and the facts of the machine and of the code."""

import locale
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from ucl import Config
from ucl.machine import hardware


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
    assert hardware.scoring_dtype(Config(dataset="digits"), torch.device("cpu")) == expected
    for name in ("float32", "bfloat16"):
        asked = Config(dataset="digits", precision=name)
        assert str(hardware.scoring_dtype(asked, torch.device("cpu"))) == f"torch.{name}"


def test_the_processor_has_its_full_name_on_macos(monkeypatch):
    asked = subprocess.CompletedProcess([], 0, stdout="Apple M2 Pro\n")
    monkeypatch.setattr(hardware, "_cpuinfo", lambda key: "")
    monkeypatch.setattr(hardware, "_name_on_macos", hardware._name_on_macos.__wrapped__)
    monkeypatch.setattr(hardware.platform, "processor", lambda: "arm")
    monkeypatch.setattr(hardware.subprocess, "run", lambda command, **_: asked)
    monkeypatch.setattr(hardware.sys, "platform", "linux")
    assert hardware._processor_name() == "arm"
    monkeypatch.setattr(hardware.sys, "platform", "darwin")
    assert hardware._processor_name() == "Apple M2 Pro"


def test_the_commit_is_found_in_a_folder_whose_name_the_locale_does_not_have(tmp_path, monkeypatch):
    checkout = tmp_path / "données"
    checkout.mkdir()
    git = ["git", "-C", str(checkout), "-c", "user.name=me", "-c", "user.email=me@home"]
    for step in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "step"]):
        subprocess.run([*git, *step], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    monkeypatch.setattr(hardware, "__file__", str(checkout / "ucl" / "machine" / "hardware.py"))
    before = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C")
    try:
        assert hardware.commit.__wrapped__() == head
    finally:
        locale.setlocale(locale.LC_CTYPE, before)


def test_the_hash_of_the_package_is_of_the_names_and_contents_of_its_files(tmp_path, monkeypatch):
    package = Path(hardware.__file__).parents[1]
    shutil.copytree(package, tmp_path / "ucl", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(hardware, "__file__", str(tmp_path / "ucl" / "machine" / "hardware.py"))
    hashes, file = [hardware.package_hash()], tmp_path / "ucl" / "scorers" / "new.py"
    for change in (file.touch, lambda: file.write_text("x = 1\n"), lambda: file.rename(file.with_name("other.py"))):
        hashes.append(hardware.package_hash.__wrapped__())
        change()
    hashes.append(hardware.package_hash.__wrapped__())
    file.with_name(".#new.py").symlink_to("nowhere")  # as Emacs leaves it beside a changed file
    assert hardware.package_hash.__wrapped__() == hashes[-1]
    assert hashes[0] == hashes[1] and len(set(hashes)) == 4
