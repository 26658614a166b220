"""The arithmetic that "auto" chooses for a processor."""

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
