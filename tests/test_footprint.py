"""The estimate of a run's memory use is near the measured one, and a run is refused if it would not fit."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ucl
from ucl import Config, InputError
from ucl.cli.main import main
from ucl.machine import footprint
from ucl.machine.footprint import bytes_needed

ROOT = Path(ucl.__file__).resolve().parents[1]
ER = Config(dataset="images", n_tasks=2, memory_size=20, population="reservoir", validation=0)
MIB = 2**20


def total(config=ER, n_images=60, image_size=64, channels=3, n_classes=4, threads=1):
    return bytes_needed(config, n_images, image_size, channels, n_classes, threads).total


def check(config, data):
    needed = bytes_needed(config, data.n_images, data.image_size, data.channels, data.n_classes, threads=1)
    footprint.check(needed, data.n_images, data.image_size)


def test_images_are_counted_as_bytes_in_the_data_the_stream_and_the_memory():
    few, many = (bytes_needed(ER.replace(memory_size=m), n, 32, 3, 4) for n, m in ((1000, 100), (3000, 700)))
    image = 32 * 32 * 3
    assert (many.data - few.data, many.stream - few.stream) == (2000 * image, 2000 * image)
    assert many.memory - few.memory == 600 * image
    assert bytes_needed(ER.replace(memory_size=10**7), 1000, 32, 3, 4).memory == 1000 * image  # The rest stays empty.


@pytest.mark.parametrize(
    "change",
    [
        dict(image_size=96),
        dict(n_images=60_000),
        dict(channels=3, config=ER.replace(batch_size=20)),
        dict(config=ER.replace(memory_size=60), n_images=6000, image_size=64),
        dict(config=ER.replace(population="uncertainty", scoring_batchnorm="train", memory_size=60)),
        dict(config=ER.replace(population="uncertainty", score="MC", memory_size=2000), n_images=6000),
        dict(threads=8),
    ],
    ids=str,
)
def test_more_of_anything_needs_more(change):
    assert total(**change) > total()


def test_what_does_not_train_on_a_memory_needs_less():
    assert total(ER.replace(method="finetune")) < total(ER.replace(method="agem")) < total()


PROBE = """
import json, sys
from pathlib import Path
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
needed = footprint.bytes_needed(config, 60, size, 3, 4, threads=1)
print(json.dumps([needed.total - needed.data, peak() - before]))
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


def test_a_run_that_does_not_fit_is_refused_with_numbers(tiny, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(footprint, "available_bytes", lambda: 50 * MIB)
    typed = ["--dataset", tiny.dataset, "--n-tasks", "2", "--memory-size", "8", "--store", str(tmp_path / "runs")]
    assert main(["run", *typed, "--device", "cpu"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ucl run: --image-size 28: a run of 72 images of 28 pixels per side needs about 0.1")
    for term in ("stream 0.00 GiB", "memory 0.00 GiB", "training 0.02 GiB", "scoring 0.0", "evaluation 0.0"):
        assert term in line
    assert line.endswith("and 0.05 GiB are available here; give smaller images or a smaller batch_size")
    assert not list((tmp_path / "runs").iterdir())


def test_the_largest_part_is_what_to_make_smaller(tiny, monkeypatch):
    data = ucl.datasets.load(tiny.dataset)
    data = dataclasses.replace(
        data, train_images=data.train_images.repeat(300, 0), train_labels=data.train_labels.repeat(300)
    )
    for available, advice in ((20 * MIB, "smaller batch_size"), (10**6, "smaller batch_size")):
        monkeypatch.setattr(footprint, "available_bytes", lambda n=available: n)
        with pytest.raises(InputError, match=advice):
            check(tiny, data)
    many = dataclasses.replace(
        data, train_images=data.train_images.repeat(20, 0), train_labels=data.train_labels.repeat(20)
    )
    with pytest.raises(InputError, match=r"288024 images.*give fewer or smaller images$"):
        check(tiny, many)


@pytest.mark.parametrize("available", [None, 2**50])
def test_what_fits_or_cannot_be_known_prints_nothing(tiny, monkeypatch, capsys, available):
    monkeypatch.setattr(footprint, "available_bytes", lambda: available)
    check(tiny, ucl.datasets.load(tiny.dataset))
    assert capsys.readouterr() == ("", "")
