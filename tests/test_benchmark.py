"""The benchmark's table, and the slow implementation that the package must equal and is timed against."""

import copy
import inspect
import itertools

import naive
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import learn, parts, refused, save_bands

from ucl import Config, views
from ucl.assembly import build_scorer
from ucl.benchmarks import ceiling as yardsticks
from ucl.benchmarks import measure as benchmark
from ucl.benchmarks.ceiling import Stopwatch
from ucl.benchmarks.contender import TimedPasses
from ucl.cli.parser import parser
from ucl.evidence.paper import PUBLISHED_CODE
from ucl.methods import ExperienceReplay
from ucl.scorers import ScoringPasses
from ucl.streams import Batch

pytestmark = pytest.mark.usefixtures("small_networks")

LABELS = ["ER", "A-GEM", "Finetune", "MC", "BI"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(save_bands(tmp_path_factory.mktemp("data") / "bands.npz", train=80, test=12))


@pytest.fixture
def config(data):
    """A run of six batches in two tasks."""
    return Config(dataset=data, n_tasks=2, memory_size=18, lr=0.03, precision="float32")


@pytest.fixture
def trained(config):
    """A network after the stream, so that its running statistics differ from the initial ones, and its images."""
    stream, model, buffer, method = parts(config)
    learn(stream, model, buffer, method)
    return model, torch.cat([task.images for task in stream]), torch.cat([task.labels for task in stream])


# The slow implementation


def test_an_uncertainty_memory_keeps_the_samples_that_the_slow_implementation_keeps(config):
    stream, model, buffer, method = parts(config)
    draws, memories = copy.deepcopy(buffer.scorer.passes.generator), set()
    slow = naive.Memory(18, lambda model, images: naive.exact_scores(model, images, draws))
    for batch in (batch for task in stream for batch in task):
        method.learn(model, batch, buffer)
        buffer.update(model, batch)
        slow.update(naive.plain(model), batch.images, batch.host_labels.tolist(), batch.positions.tolist())
        stored = {label: buffer.positions[torch.from_numpy(buffer.labels == label)].tolist() for label in slow.classes}
        assert {c: sorted(p) for c, p in stored.items()} == {c: sorted(p) for c, p in slow.positions().items()}
        score_of = dict(zip(buffer.positions.tolist(), buffer.scores.tolist(), strict=True))
        for sample in itertools.chain(*slow.classes.values()):
            if sample.score is not None:
                assert score_of[sample.position] == pytest.approx(sample.score, rel=1e-4)
        memories.add(frozenset(buffer.positions.tolist()))
    assert len(memories) == 6 and set(buffer.labels) == {0, 1, 2, 3}  # The memory changed throughout the stream.


def test_the_published_update_is_what_the_published_configuration_computes(trained):
    model, images, _ = trained
    plain, start = naive.plain(model), copy.deepcopy(model)
    scorer = build_scorer(Config(dataset="cifar10", seed=3, precision="float32", **PUBLISHED_CODE))
    draws, size = copy.deepcopy(scorer.passes.generator), images.shape[-1]
    ours, theirs = scorer(model, images[:20], sizes={0: 8, 1: 12}), []
    for candidates in (images[:8], images[8:20]):
        transforms = naive.views_as_drawn(views.draw(1, size, draws), 0, size, model.mean.flatten())
        theirs.append(naive.published_scores(plain, naive.normalised(model, candidates), transforms))
    torch.testing.assert_close(ours, torch.cat(theirs), rtol=1e-3, atol=1e-5)
    for (name, ours), theirs, before in zip(model.named_buffers(), plain.buffers(), start.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        assert "running" not in name or not torch.equal(theirs, before)


def test_the_plain_training_step_learns_as_experience_replay_does(trained):
    model, images, labels = trained
    model, images, labels = model.double(), images[:20], labels[:20]
    plain = naive.plain(model)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05)
    ExperienceReplay(model, 0.05).learn(model, Batch(images, labels, labels.numpy(), torch.arange(20), 0), None)
    assert naive.replay_step(plain, optimizer, naive.normalised(plain, images), labels) > 0
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
        assert theirs.is_contiguous()
    assert not model.blocks[0].conv1.weight.is_contiguous()


# The benchmark


@pytest.fixture(autouse=True, scope="module")
def a_low_ceiling():
    """Use small yardsticks: no test depends on the speed of the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(yardsticks.CHUNKS, "cpu", (8, 16))
        yield


@pytest.fixture(scope="module")
def measured(data):
    return benchmark.benchmark(LABELS, (4, 8), data, n_tasks=2, repeats=1, precision="float32", device="cpu", threads=1)


def test_there_is_a_row_for_each_method_memory_and_task_and_their_mean(measured):
    rows = measured.set_index(["method", "memory_size", "task"])
    assert sorted(rows.index) == sorted(itertools.product(LABELS, (4, 8), ("1", "2", "mean")))
    times = rows.filter(like="_ms").unstack("task").stack(0)  # The tasks are of equal length.
    np.testing.assert_allclose(times["mean"], times[["1", "2"]].mean(axis=1))


def test_parts_methods_and_the_machine_are_measured(measured):
    parts = measured.set_index("method")[[f"{part}_ms" for part in benchmark.PARTS]]
    measured_parts = (parts > 0).groupby(level=0).all()
    assert (measured_parts == (parts > 0).groupby(level=0).any()).all(axis=None)
    training, views_, forwards, selection = measured_parts.loc[LABELS].to_numpy().T.tolist()
    assert all(training) and selection == [True, True, False, True, True]
    assert forwards == [False, False, False, True, True] and views_ == [False, False, False, False, True]
    assert (measured["whole_ms"] >= measured["training_ms"]).all()
    scoring = measured["method"].isin(["MC", "BI"])
    reached = measured["share_of_ceiling"] * measured["ceiling_images_per_s"]
    assert reached.notna().equals(scoring)
    np.testing.assert_allclose(reached, measured["view_images_per_s"])
    assert measured["peak_memory_mib"].gt(0).all()
    assert measured.loc[0, ["device", "threads", "scoring_precision"]].tolist() == ["cpu", 1, "float32"]
    assert measured["load"].ge(0).all()


def test_candidates_are_the_batch_and_what_the_memory_has_of_its_classes(measured):
    candidates = measured[measured["method"] == "BI"].set_index(["memory_size", "task"])["candidates"]
    assert candidates.tolist() == [4 + 10, 2 + 10, 13, 8 + 10, 4 + 10, 16]
    assert measured.set_index("task")["classes"].loc["2"].eq(4).all()


def test_rivals_are_timed_too_and_what_they_do_at_a_tasks_end_is_shared_by_its_batches(data):
    names = ["ER", "DER++", "Joint", "GSS", "Rainbow"]
    table = benchmark.benchmark(names, [8], data, n_tasks=2, repeats=1, precision="float32", device="cpu", threads=1)
    mean = table[table["task"] == "mean"].set_index("method")
    assert list(mean.index) == names and (mean[["training_ms", "whole_ms"]] > 0).all(axis=None)
    assert mean.loc["Joint", "selection_ms"] == 0 < mean.loc["Rainbow", "selection_ms"]


def test_timed_passes_give_the_logits_of_the_passes(trained):
    model, images, _ = trained
    for passes in (0, 3):
        whole, stopwatch = ScoringPasses(torch.Generator().manual_seed(5), passes), Stopwatch(torch.device("cpu"))
        timed = TimedPasses(copy.deepcopy(whole), stopwatch)
        assert torch.equal(*(each.logits(model, images[:50], sizes=[40, 10]) for each in (whole, timed)))
        assert timed.n_images == 50 and timed.per_image == (passes or 12)
        spent = stopwatch.read()
        assert set(spent) == ({"passes"} if passes else {"views", "passes"}) and min(spent.values()) > 0
        assert spent["passes"] > spent.get("views", 0) and stopwatch.read() == {}


def test_the_command_writes_tables(data, tmp_path, cli):
    output = tmp_path / "new" / "speed"
    flags = "--methods BI --memory-sizes 8 --n-tasks 2 --repeats 1 --threads 1 --device cpu --jobs 1 2"
    code, out, _ = cli("benchmark", *flags.split(), "--precision", "float32", "--dataset", data, "--output", output)
    printed = out.splitlines()
    assert code == 0 and " BI " in printed[1]
    assert f"{output}.csv" in printed and printed[-1] == f"{output}_runs.csv"
    runs = pd.read_csv(printed[-1])
    assert runs[["method", "jobs"]].apply(tuple, axis=1).tolist() == [("BI", 1), ("BI", 2)]
    np.testing.assert_allclose(runs["runs_per_hour"] * runs["seconds"], 3600 * runs["jobs"], rtol=1e-3)
    assert (runs["seconds"] > runs["run_seconds"]).all() and (runs["batches"] == 6).all()
    assert (runs["threads"] == 1).all()
    table = pd.read_csv(f"{output}.csv")
    assert table["task"].astype(str).tolist() == ["1", "2", "mean"]


def test_the_command_has_a_flag_for_each_argument_of_the_function():
    flags = {action.dest for action in parser()._subparsers._group_actions[0].choices["benchmark"]._actions}
    assert {*inspect.signature(benchmark.benchmark).parameters} - {"root"} <= flags


def test_fields_of_a_run_may_follow_the_name_of_a_method(data):
    names = ["BI", "BI refresh=2", "BI scoring_batchnorm=train refresh=1", "CBR updates=2"]
    table = benchmark.benchmark(names, [16], data, 2, repeats=1, device="cpu", threads=1)
    mean = table[table["task"] == "mean"].set_index("method")
    assert mean.index.tolist() == names and mean["candidates"].tolist() == [22, 14, 22, 0]


REFUSED = [
    ("methods", ["ERR"]),
    ("methods", ["BI refrsh=2"]),
    *(("methods", [f"BI {field}"]) for field in ("precision=float32", "batch_size=20", "memory_size=5")),  # shared
    ("memory_sizes", [500, 0]),
    ("memory_sizes", [9]),
    ("memory_sizes", [500, 2001]),  # noise like cifar10 has 2000 training images
    ("repeats", 0),
    ("threads", 0),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_value_that_cannot_be_used_is_refused_in_one_line(name, value):
    with refused(name):
        benchmark.benchmark(**{"methods": ["ER"], "memory_sizes": [10], "repeats": 1, "device": "cpu", name: value})


def test_threads_are_set_for_the_measurement_alone(data, set_threads):
    set_threads(2)
    table = benchmark.benchmark(["ER"], [16], data, 2, repeats=1, device="cpu", threads=1)
    assert (table["threads"] == 1).all() and torch.get_num_threads() == 2
