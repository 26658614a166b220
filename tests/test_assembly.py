"""The parts of a run do what each field of its configuration says."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from conftest import bands, learn, refused

from ucl.assembly import assemble, build_buffer, build_scorer
from ucl.catalogue import METHODS, POLICIES, SCORES, SELECTIONS
from ucl.config import Config
from ucl.machine.determinism import seed_for
from ucl.streams.augmentation import RandAugment
from ucl.streams.datasets import ImageDataset

pytestmark = pytest.mark.usefixtures("small_networks")


@pytest.fixture(scope="module")
def images():
    """Four classes of different sizes, with images of one channel."""
    squares, labels = bands(240)
    indices = [np.flatnonzero(labels == c)[:size] for c, size in enumerate((20, 40, 60, 30))]
    train, test = np.concatenate(indices), np.arange(40)
    arrays = [array for split in (train, test) for array in (squares[split][..., None], labels[split])]
    return ImageDataset("bands", tuple("abcd"), *arrays)


def config(**fields):
    return Config(dataset="bands.npz", **{"n_tasks": 2, "memory_size": 8, "precision": "float32"} | fields)


def draws_of(seed, purpose):
    """The state of a fresh numpy generator with the seed of a purpose."""
    return np.random.default_rng(seed_for(seed, purpose)).bit_generator.state


def test_the_configured_augmentation_is_applied(images):
    method = assemble(config(augmentation="randaugment", seed=5), images).method
    for source, purpose in {"batch": "augmentation", "memory": "augmentation of memory samples"}.items():
        assert isinstance(method.augmentations[source], RandAugment)
        assert method.augmentations[source].state_dict()["draw"] == draws_of(5, purpose)


@pytest.mark.parametrize("name", [name for name, row in METHODS.items() if row.has_memory])
def test_the_images_of_the_stream_are_augmented_alike_with_and_without_replay(images, name):
    learnt = {}
    for kind in ("finetune", name):
        replaying = {} if kind == "finetune" else {"population": "reservoir", "replay": "all"}
        parts = assemble(config(method=kind, augmentation="randaugment", n_tasks=1, **replaying), images)
        method, seen = parts.method, []
        method.update = lambda *given, seen=seen, update=method.update: (seen.append(given[1].images), update(*given))
        learn([list(parts.stream.tasks[0])[:3]], parts.model, parts.buffer, method)
        learnt[kind] = torch.cat(seen)
    assert torch.equal(learnt["finetune"], learnt[name])


@pytest.mark.parametrize("name", POLICIES)
def test_each_name_gives_its_memory_policy_which_needs_a_slot_per_class_if_it_has_quotas(images, name):
    buffer, policy = build_buffer(config(population=name, seed=5), images), POLICIES[name].resolve()
    assert type(buffer) is getattr(policy, "func", policy) and buffer.size == 8
    assert buffer.draw.bit_generator.state == draws_of(5, "memory")
    with refused("memory_size") if POLICIES[name].has_quotas else nullcontext():
        assert build_buffer(config(population=name, memory_size=3), images).size == 3


def test_images_of_another_size_than_the_configured_are_refused(images):
    with refused("image_size"):
        assemble(config(image_size=48), images)


@pytest.mark.parametrize("fields", [dict(readings=True), dict(scoring_batchnorm="train")])
def test_a_field_about_statistics_that_a_users_network_does_not_have_is_warned_of(images, fields):
    with pytest.warns(UserWarning, match=f"{next(iter(fields))}=.*own_objects:Grouped"):
        assemble(config(model="own_objects:Grouped", **fields), images)


@pytest.mark.parametrize("name", SELECTIONS)
def test_the_uncertainty_memory_has_the_configured_rule_and_settings(images, name):
    buffer = build_buffer(config(score="LC", selection=name, refresh=3, smoothing=0.25), images)
    assert buffer.selection is SELECTIONS[name].resolve()
    assert (buffer.refresh, buffer.smoothing) == (3, 0.25)


@pytest.mark.parametrize("name", SCORES)
def test_each_name_gives_its_score_with_the_views_of_the_seed(name):
    row, scorer = SCORES[name], build_scorer(config(score=name, seed=5))
    assert scorer.score is row.resolve()
    expected = torch.Generator().manual_seed(seed_for(5, "views"))
    assert torch.equal(scorer.passes.generator.get_state(), expected.get_state())
    assert scorer.passes.dropout_passes == (20 if row.dropout_passes else 0)
    averaged = build_scorer(config(score=name, averaging="probabilities")).averaging
    assert (scorer.averaging, averaged) == ("scores", "probabilities" if row.of_probabilities else "scores")


def test_passes_have_the_configured_views_and_batch_normalisation():
    fields = dict(view_draws="batch", view_space="normalized", n_draws=3)
    passes = build_scorer(config(score="BI", scoring_batchnorm="train", **fields)).passes
    assert {name: getattr(passes, name) for name in ("view_draws", "view_space", "n_draws")} == fields
    assert passes.batchnorm == "train"
