"""The base class of memories: what a user's policy stores, replaces, and keeps with each sample."""

import dataclasses

import numpy as np
import pytest
import torch
from own_objects import Fifo, Hardest, batch_normed

from ucl.buffers import ClassBalancedBuffer, ReservoirBuffer, UncertaintyBuffer
from ucl.buffers.selection import bottom_k
from ucl.errors import InputError
from ucl.models import OwnNetwork
from ucl.scorers import RandomScores
from ucl.streams import Batch

IMAGES = np.random.default_rng(0).integers(0, 256, (200, 8, 8, 3), dtype=np.uint8)
SHAPE = (3, 8, 8)
POLICIES = {
    "FIFO": lambda size: Fifo(size, SHAPE),
    "hardest": lambda size: Hardest(size, SHAPE, seed=3),
    "reservoir": lambda size: ReservoirBuffer(size, SHAPE, seed=3),
    "class-balanced": lambda size: ClassBalancedBuffer(size, SHAPE, seed=3),
    "uncertainty": lambda size: UncertaintyBuffer(size, SHAPE, "cpu", RandomScores(3), bottom_k),
    "uncertainty, refresh=2": lambda size: UncertaintyBuffer(size, SHAPE, "cpu", RandomScores(3), bottom_k, 2),
}


@pytest.fixture(scope="module")
def model():
    return OwnNetwork(batch_normed(5, 3, 8), "mine:net", 5, 3, 8, (0.5,) * 3, (0.25,) * 3)


def batches(n=20, size=10, start=0):
    """Batches of the images with random labels; each sample has its position and two noisy numbers."""
    draw = np.random.default_rng(1)
    for number in range(n):
        at, labels = np.arange(number * size, (number + 1) * size), draw.integers(0, 5, size)
        noise = draw.random((size, 2))
        if number < start:
            continue
        images = torch.from_numpy(IMAGES[at]).permute(0, 3, 1, 2)
        batch = Batch(images, torch.from_numpy(labels), labels, torch.from_numpy(at), number // 5)
        batch.values.update(position=torch.from_numpy(at), noise=torch.from_numpy(noise))
        yield batch


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("size", [7, 33])
def test_values_stay_with_their_sample_whatever_slot_it_gets(policy, size, model):
    buffer, noise = POLICIES[policy](size), {}
    for batch in batches():
        noise |= dict(zip(batch.positions.tolist(), batch.values["noise"].tolist(), strict=True))
        buffer.update(model, batch)
        n = buffer.n_stored
        positions = buffer.positions[:n].tolist()
        assert buffer.values["position"][:n].tolist() == positions and len(set(positions)) == n
        assert buffer.values["noise"][:n].tolist() == [noise[position] for position in positions]
        assert torch.equal(buffer.images[:n], torch.from_numpy(IMAGES[positions]).permute(0, 3, 1, 2))
    assert (buffer.n_seen, buffer.n_stored) == (200, size)


@pytest.mark.parametrize("size", [0, -1, 2.5])
def test_a_memory_without_a_slot_is_refused(size):
    with pytest.raises(InputError, match=f"^size={size}: give a whole number from 1"):
        ReservoirBuffer(size, (3, 8, 8))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_restored_memory_goes_on_with_the_same_values_and_draws(policy, model, tmp_path):
    whole, first, second = (POLICIES[policy](45) for _ in range(3))
    for batch in batches():
        whole.update(model, batch)
    for batch in batches(n=9):
        first.update(model, batch)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for batch in batches(start=9):
        second.update(model, batch)
    assert whole.positions.tolist() == second.positions.tolist() and whole.labels.tolist() == second.labels.tolist()
    assert torch.equal(whole.scores, second.scores) or whole.scores.isnan().all()
    for name, values in whole.values.items():
        assert torch.equal(values, second.values[name])


def test_a_fifo_memory_has_the_last_images(model):
    buffer = Fifo(12, SHAPE)
    for batch in batches(n=7):
        buffer.update(model, batch)
    assert sorted(buffer.positions.tolist()) == list(range(58, 70))


def test_a_sample_without_a_value_has_nan_or_zero_and_an_old_value_is_gone(model):
    buffer, (first, second) = Fifo(10, SHAPE), batches(n=2)
    assert buffer.lacks("noise")
    buffer.update(model, first)
    assert not buffer.lacks("noise")
    second.values.clear()
    buffer.replace([3, 4], second, [0, 1])
    restored = Fifo(10, SHAPE)
    restored.load_state_dict(buffer.state_dict())
    assert buffer.lacks("noise") and restored.lacks("noise")
    assert buffer.values["noise"].isnan().all(1).tolist() == [slot in (3, 4) for slot in range(10)]
    assert buffer.values["position"][3:5].tolist() == [0, 0]
    buffer.values["noise"][3:5] = 0.5  # A user may change values in place.
    assert not buffer.values["noise"].isnan().any()


def test_of_two_samples_for_one_slot_the_later_one_is_stored(model):
    buffer, (first, second) = Fifo(10, SHAPE), batches(n=2)
    assert buffer.store(first) == 10 and buffer.store(second) == 0
    buffer.replace(torch.tensor([2, 2]), second, [5, 6])
    buffer.replace([], second, [])
    assert buffer.positions.tolist() == [0, 1, 16, *range(3, 10)]
    buffer.replace(np.arange(10), second)
    assert buffer.positions.tolist() == list(range(10, 20))


@pytest.mark.parametrize(
    ("slots", "chosen", "reported"),
    [
        ([10], [0], "slots contain 10; give numbers from 0 to 9"),
        ([-1], [0], "slots contain -1; give numbers from 0 to 9"),
        ([1], [10], "chosen contain 10; give numbers from 0 to 9"),
        ([1, 2], [0], "2 slots for 1 samples"),
        ([1.5], [0], "slots are float64; give whole numbers"),
        (np.ones(10, bool), None, "slots are bool; give whole numbers"),
    ],
)
def test_wrong_slots_are_refused_and_nothing_is_written(slots, chosen, reported):
    buffer, (first, second) = Fifo(10, SHAPE), batches(n=2)
    buffer.store(first)
    with pytest.raises(ValueError, match=reported):
        buffer.replace(slots, second, chosen)
    assert buffer.positions.tolist() == list(range(10))


def test_a_memory_by_scores_refuses_to_replace_single_slots(model):
    buffer, (first, second) = POLICIES["uncertainty"](10), batches(n=2)
    buffer.update(model, first)
    with pytest.raises(TypeError, match=r"^UncertaintyBuffer cannot replace .*; give a scorer and a selecti"):
        buffer.replace([3], second, [0])
    assert buffer.positions.tolist() == first.positions.tolist()


def test_a_method_draws_slots_to_find_values_of_its_samples(model):
    buffer = Fifo(30, SHAPE)
    for batch in batches(n=6):
        buffer.update(model, batch)
    slots = buffer.drawn_slots(6, 1, np.random.default_rng(0))
    images, labels = buffer.sample(6, 1, np.random.default_rng(0))
    assert torch.equal(images, buffer.images_at(torch.from_numpy(slots))) and (buffer.tasks[slots] == 0).all()
    assert labels.tolist() == buffer.labels[slots].tolist() and len(buffer.values["noise"][slots]) == 6
    assert len(buffer.drawn_slots(6, 0, np.random.default_rng(0))) == 6
    assert len(Fifo(3, SHAPE).drawn_slots(6, 0, np.random.default_rng(0))) == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_float_images_are_refused_with_the_conversion(policy, model):
    batch = next(batches())
    with pytest.raises(
        InputError, match=r"^images='float32 \(10, 3, 8, 8\)': .*give \(x \* 255\).round\(\).to\(torch.uint8"
    ):
        POLICIES[policy](7).update(model, dataclasses.replace(batch, images=batch.images / 255))
    buffer = POLICIES[policy](7)
    buffer.update(model, dataclasses.replace(batch, images=(batch.images / 255 * 255).round().to(torch.uint8)))
    assert buffer.n_stored == 7
