"""Test results counted again in plain Python, and the published tests compared with torch's modules."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from conftest import parts, unchanged
from torch import nn

from ucl import Config
from ucl.evaluation.readings import published_test
from ucl.machine.determinism import seed_for

pytestmark = pytest.mark.usefixtures("small_networks")


@pytest.fixture(scope="module")
def learnt(tiny):
    """A network with dropout after a task of bands, and its stream."""
    config = Config(dataset=tiny.dataset, n_tasks=1, score="MC", memory_size=8, lr=0.05)
    stream, model, _, method = parts(config)
    for batch in [*stream.tasks[0]] * 3:
        method.learn(model, batch)
    return model, stream.tasks[0]


def test_the_published_test_is_the_mean_of_training_mode_logits_over_batches_of_ten(learnt):
    """The masks and therefore some answers differ, but the accuracy is similar; evaluation mode answers differently."""
    model, task = learnt
    given = [published_test(model, task, seed) for seed in range(3)]
    plain = copy.deepcopy(model).train()
    expected = []
    torch.manual_seed(0)
    with torch.no_grad():
        for _ in given:
            predicted = torch.empty_like(task.test_labels)
            for batch in torch.randperm(len(predicted)).split(10):
                predicted[batch] = torch.stack([plain(task.test_images[batch]) for _ in range(20)]).mean(0).argmax(-1)
            expected.append(predicted.numpy())
    truth = task.test_labels.numpy()
    accuracy, reference = (np.mean(np.array(labels) == truth) for labels in (given, expected))
    assert accuracy == pytest.approx(reference, abs=0.12)
    assert np.mean(np.array(given) == np.array(expected)) > 0.6


def test_the_published_test_follows_its_seed_and_leaves_all_as_it_was(learnt):
    model, task = learnt
    noise = torch.randint(0, 256, task.test_images.shape, generator=torch.Generator().manual_seed(0)).byte()
    task = dataclasses.replace(task, test_images=noise)  # the network is unsure about noise
    with unchanged(model):
        first, again, other = (published_test(model, task, seed) for seed in (1, 1, 2))
    assert (first == again).all() and first.shape == task.test_labels.shape
    assert (first != other).any()


def test_without_dropout_the_published_test_is_one_training_mode_pass_per_batch(learnt):
    """The results equal those of torch's layers on batches of ten images, in the order that the seed draws."""
    model, task = learnt
    certain = copy.deepcopy(model).train()
    for layer in certain.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    certain.dropout_rate = 0.0
    order = np.random.default_rng(seed_for(5, "published test of task 0")).permutation(len(task.test_labels))
    expected, plain = np.empty(len(order), dtype=np.int64), copy.deepcopy(certain)
    with torch.no_grad():
        for start in range(0, len(order), 10):
            batch = order[start : start + 10]
            expected[batch] = plain(task.test_images[torch.from_numpy(batch)]).argmax(-1).numpy()
    assert (published_test(certain, task, 5) == expected).all()
    assert len(set(expected.tolist())) > 1
