"""Memory policies in Avalanche: memories equal those of a run, and scoring changes neither model nor samples."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import parts, refused, unchanged
from torch import nn
from torch.utils.data import TensorDataset

import ucl
from ucl import InputError
from ucl.catalogue import POLICIES as ROWS
from ucl.catalogue import SCORES
from ucl.models import OwnNetwork, SlimResNet18
from ucl.scorers import Scorer

pytest.importorskip("avalanche", reason="avalanche-lib is not installed: make test-avalanche")

from avalanche.benchmarks import with_classes_timeline
from avalanche.benchmarks.scenarios.online import split_online_stream
from avalanche.benchmarks.utils import make_avalanche_dataset
from avalanche.benchmarks.utils.data_attribute import DataAttribute
from avalanche.benchmarks.utils.transform_groups import TransformGroups
from avalanche.core import SupervisedPlugin
from avalanche.models import IncrementalClassifier, MTSimpleMLP, SimpleMLP
from avalanche.training import Naive
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin

from ucl.avalanche import StoragePolicy, benchmark_of

pytestmark = [pytest.mark.usefixtures("small_networks"), pytest.mark.filterwarnings("ignore")]
AT_TASK_ENDS = ("homogeneous", "icarl", "rainbow")
POLICIES = [{"population": name} for name in ROWS if name != "uncertainty"]
POLICIES += [{"population": "uncertainty", "score": score} for score in SCORES]
POLICIES += [{"population": "uncertainty", "selection": "top", "refresh": 2, "view_draws": "fixed"}]
POLICIES += [{"population": "class-balanced", "class_balancing": "redraw"}]


@pytest.fixture(scope="module")
def base(tiny):
    return ucl.Config(dataset=tiny.dataset, n_tasks=2, memory_size=8, batch_size=8, replay="all", precision="float32")


def strategy_of(model, policy, plugins=()):
    """Naive finetuning with replay from a storage policy."""
    return Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        train_mb_size=8,
        plugins=[ReplayPlugin(policy.max_size, storage_policy=policy), *plugins],
        evaluator=EvaluationPlugin(loggers=[]),
    )


def online(stream):
    return split_online_stream(stream, 8, shuffle=False, drop_last=True)


def experience(images, labels, **options):
    """An experience of these images, all with task label 7."""
    names = [("targets", labels.tolist(), False), ("targets_task_labels", [7] * len(labels), True)]
    options["data_attributes"] = [DataAttribute(values, name, use_in_getitem=used) for name, values, used in names]
    return SimpleNamespace(dataset=make_avalanche_dataset(TensorDataset(images, labels), **options))


def in_unit(n, size=28, seed=0):
    """Images of pixels in [0, 1] that are whole 255ths, and labels of four classes."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(256, (n, 1, size, size), generator=draw) / 255, torch.arange(n) % 4


def assert_equal_memories(ours, theirs):
    n = ours.n_stored
    assert theirs.n_stored == n > 0 and theirs.n_seen == ours.n_seen
    assert torch.equal(theirs.images[:n], ours.images[:n]) and np.array_equal(theirs.labels, ours.labels)
    assert torch.equal(theirs.scores.nan_to_num(-1), ours.scores.nan_to_num(-1))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: "-".join(map(str, policy.values())))
def test_the_memory_is_that_of_our_buffer_fed_with_the_same_batches(base, policy):
    """A policy that acts at the ends of tasks takes whole tasks."""
    config = base.replace(**policy)
    (stream, model, ours, _), at_task_ends = parts(config), config.population in AT_TASK_ENDS
    left = iter(stream if at_task_ends else [batch for task in stream for batch in task])

    def follow(strategy, **_):
        part = next(left)
        if config.view_draws == "fixed":  # In a run, fixed views depend on the position in the data set.
            part.positions[:] = torch.arange(ours.n_seen, ours.n_seen + len(part))
        for batch in part if at_task_ends else [part]:
            ours.update(strategy.model, batch)
        if at_task_ends:
            ours.end_of_task(strategy.model, part)
        assert_equal_memories(ours, storage.memory)

    benchmark, storage, plugin = benchmark_of(stream), StoragePolicy(config), SupervisedPlugin()
    plugin.after_training_exp = follow  # is called after each experience
    experiences = benchmark.train_stream if at_task_ends else online(benchmark.train_stream)
    strategy_of(model, storage, [plugin]).train(experiences)
    assert next(left, None) is None and len(storage.buffer) == storage.max_size == 8
    if config.uses_scores or at_task_ends:
        assert np.bincount(storage.memory.labels).tolist() == [2, 2, 2, 2]
    if config.uses_scores:
        assert not storage.memory.scores.isnan().any() and type(storage.memory.scorer) is Scorer
    if at_task_ends:
        with pytest.raises(InputError):
            strategy_of(model, StoragePolicy(config)).train(online(benchmark.train_stream))


def test_images_with_another_normalisation_are_scored_as_the_pixels_they_were(base):
    """The memory equals that of an `OwnNetwork` that normalises pixels with the same mean and standard deviation."""
    config, (pixels, labels) = base.replace(score="BI", memory_size=6), in_unit(24)
    mean, std = 0.4, 0.2
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 4))
    network = OwnNetwork(model, "mine:model", 4, 1, 28, (mean,), (std,))
    storage, ours = StoragePolicy(config, mean, std), parts(config).buffer
    for start in range(0, 24, 4):
        part = slice(start, start + 4)
        storage.post_adapt(SimpleNamespace(model=model), experience((pixels[part] - mean) / std, labels[part]))
        images = (pixels[part] * 255).round().to(torch.uint8)
        positions = torch.arange(start, start + 4)
        ours.update(network, ucl.streams.Batch(images, labels[part], labels[part].numpy(), positions, None))
    assert_equal_memories(ours, storage.memory)
    assert not ours.scores.isnan().any()


def test_replayed_samples_have_their_labels_task_labels_and_training_transformations(base):
    storage, (images, labels) = StoragePolicy(base.replace(score="BI")), in_unit(40)
    groups = TransformGroups({"train": (lambda x: x + 3, None), "eval": (None, None)}, current_group="train")
    model = SimpleNamespace(model=SimpleMLP(4, 28 * 28))
    for start in range(0, 40, 5):
        part = slice(start, start + 5)
        storage.post_adapt(model, experience(images[part], labels[part], transform_groups=groups))
        assert len(storage.buffer) == min(start + 5, 8)
        for slot, (image, label, task) in enumerate(storage.buffer[i] for i in range(len(storage.buffer))):
            position = int(storage.memory.positions[slot])
            assert torch.equal(image, images[position] + 3) and (int(label), task) == (int(labels[position]), 7)
            assert torch.equal(storage.memory.images[slot], (images[position] * 255).round().to(torch.uint8))
            assert storage.memory.labels[slot] == label
    assert list(storage.buffer.targets_task_labels) == [7] * 8
    assert np.bincount(list(storage.buffer.targets)).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("model", ["ours", "with dropout", "with BatchNorm"])
def test_scoring_leaves_the_strategys_model_and_the_global_draws_as_they_were(base, model):
    config = base.replace(score="MC" if model == "with dropout" else "BI")
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(2704, 4)
    own = SimpleMLP(4, 28 * 28) if model == "with dropout" else nn.Sequential(*layers)
    network = (parts(config).model if model == "ours" else own).train()
    storage, (images, labels) = StoragePolicy(config), in_unit(20)
    with unchanged(network):
        for part in (slice(0, 10), slice(10, 20)):
            storage.post_adapt(SimpleNamespace(model=network), experience(images[part], labels[part]))
    assert not storage.memory.scores.isnan().any()


def test_a_head_may_grow_and_classes_may_outnumber_the_memory(base):
    images, _ = in_unit(30, size=8)
    body, storage = nn.Flatten(), StoragePolicy(base.replace(memory_size=3))
    for n_classes in (2, 4, 6):
        labels = torch.arange(30) % n_classes
        model = nn.Sequential(body, nn.Linear(64, n_classes))
        storage.post_adapt(SimpleNamespace(model=model), experience(images, labels))
        assert len(storage.buffer) == 3 == len(set(storage.buffer.targets)) + (n_classes == 2)


def test_images_of_another_shape_are_refused(base):
    model, storage = nn.Sequential(nn.Flatten(), nn.LazyLinear(4)), StoragePolicy(base.replace(memory_size=3))
    images, labels = in_unit(8, size=8)
    storage.post_adapt(SimpleNamespace(model=model), experience(images.expand(-1, 3, -1, -1), labels))
    with pytest.raises(InputError):
        storage.post_adapt(SimpleNamespace(model=model), experience(images, labels))


def test_the_benchmark_has_the_batches_and_tests_of_the_stream(base):
    stream = parts(base).stream
    benchmark = benchmark_of(stream)
    batches = [batch for task in stream for batch in task]
    experiences = list(online(benchmark.train_stream))
    assert len(experiences) == len(batches)
    for batch, exp in zip(batches, experiences, strict=True):
        images = torch.stack([exp.dataset[i][0] for i in range(len(batch))])
        assert torch.equal((images * 255).round().to(torch.uint8), batch.images)
        assert list(exp.dataset.targets) == batch.labels.tolist()
    for task, exp in zip(stream, benchmark.test_stream, strict=True):
        assert list(exp.dataset.targets) == task.test_labels.tolist()
        assert torch.equal(exp.dataset[0][0], task.test_images[0] / 255)


@pytest.mark.parametrize("split", [lambda stream: stream, lambda stream: with_classes_timeline(online(stream))])
def test_a_growing_head_has_the_classes_so_far(base, split):
    config = base.replace(n_tasks=None, tasks="1,0|3|2", memory_size=6)
    benchmark = benchmark_of(parts(config).stream)
    head, storage = IncrementalClassifier(28 * 28, 1), StoragePolicy(config)
    strategy, sizes = strategy_of(nn.Sequential(nn.Flatten(), head), storage), []
    for exp in benchmark.train_stream:
        strategy.train(split([exp]))
        sizes.append(head.classifier.out_features)
    strategy.eval(benchmark.test_stream)
    assert sizes == [2, 4, 4] and np.bincount(storage.memory.labels).tolist() == [2, 2, 1, 1]
    timeline = [(exp.classes_in_this_experience, exp.classes_seen_so_far) for exp in benchmark.train_stream]
    assert timeline == [({0, 1}, {0, 1}), ({3}, {0, 1, 3}), ({2}, {0, 1, 2, 3})]


IMAGES, LABELS = in_unit(12)
MLP = SimpleMLP(4, 784)
UNUSABLE = {  # fields of the configuration, options of the policy, model, images
    "method": (dict(method="mir"), {}, MLP, IMAGES),
    "std": ({}, dict(std=0), MLP, IMAGES),
    "mean": ({}, dict(mean=(0.1, 0.2)), MLP, IMAGES),
    "mean, three numbers for a grey image": ({}, dict(mean=(0.1, 0.2, 0.3)), MLP, IMAGES),
    "mean, with a network that normalises": ({}, dict(mean=0.5), SlimResNet18(4, 1, 28), IMAGES),
    "mean, with pixels below 0": ({}, {}, MLP, IMAGES * 2 - 1),
    "images": ({}, {}, MLP, (IMAGES * 255).byte()),
    "score, MC without dropout": (dict(score="MC"), {}, nn.Sequential(nn.Flatten(), nn.Linear(784, 4)), IMAGES),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_what_a_policy_cannot_use_is_refused_in_one_line(base, case):
    fields, options, model, images = UNUSABLE[case]
    with refused(case.partition(",")[0]):
        storage = StoragePolicy(base.replace(**fields), **options)
        storage.post_adapt(SimpleNamespace(model=model), experience(images, LABELS))


def test_a_random_memory_asks_nothing_of_the_model(base):
    storage = StoragePolicy(base.replace(population="reservoir"))
    storage.post_adapt(SimpleNamespace(model=MTSimpleMLP(784)), experience(IMAGES, LABELS))
    assert len(storage.buffer) == 8
