"""The base class of memories: what a user's policy stores, replaces, and keeps with each sample."""

import dataclasses

import numpy as np
import pytest
import torch
from own_objects import Fifo

from ucl.buffers import UncertaintyBuffer
from ucl.buffers.selection import bottom_k
from ucl.errors import InputError
from ucl.scorers import RandomScores
from ucl.streams import Batch

SHAPE = (3, 8, 8)


def batches(n=2, size=10):
    """Batches of images; each sample has its position and two noisy numbers."""
    draw = np.random.default_rng(1)
    for number in range(n):
        at, labels = np.arange(number * size, (number + 1) * size), draw.integers(0, 5, size)
        images = torch.from_numpy(draw.integers(0, 256, (size, *SHAPE), dtype=np.uint8))
        batch = Batch(images, torch.from_numpy(labels), labels, torch.from_numpy(at), number // 5)
        batch.values.update(position=torch.from_numpy(at), noise=torch.from_numpy(draw.random((size, 2))))
        yield batch


def random_memory(size, **options):
    return UncertaintyBuffer(size, SHAPE, scorer=RandomScores(3), selection=bottom_k, **options)


@pytest.mark.parametrize(("name", "value"), [("size", 0), ("size", 2.5), ("refresh", 0), ("smoothing", 1.5)])
def test_a_memory_refuses_sizes_and_shares_out_of_range(name, value):
    with pytest.raises(InputError) as refusal:
        random_memory(**{"size": 5, name: value})
    assert (refusal.value.name, refusal.value.value) == (name, value)


def test_a_fifo_memory_has_the_last_images():
    buffer, all_batches = Fifo(12, SHAPE), list(batches(7))
    for batch in all_batches:
        buffer.update(None, batch)
    assert sorted(buffer.positions.tolist()) == list(range(58, 70))
    for name in ("position", "noise"):
        values = torch.cat([batch.values[name] for batch in all_batches])
        assert torch.equal(buffer.values[name], values[buffer.positions])


@pytest.mark.parametrize("memory", [lambda: Fifo(12, SHAPE), lambda: random_memory(12)])
def test_empty_slots_have_no_values_and_all_batches_the_same_names(memory):
    buffer, (first, second) = memory(), batches()
    buffer.update(None, first)
    assert buffer.values["noise"].isnan().all(1).tolist() == [slot >= 10 for slot in range(12)]
    assert buffer.values["position"].tolist() == [*range(10), 0, 0]
    del second.values["noise"]
    with pytest.raises(ValueError, match="noise"):
        buffer.update(None, second)


def test_of_two_samples_for_one_slot_the_later_one_is_stored():
    buffer, (first, second) = Fifo(10, SHAPE), batches()
    assert buffer.store(first) == 10 and buffer.store(second) == 0
    buffer.scores[:] = 1.0
    buffer.replace(torch.tensor([2, 2]), second, [5, 6])
    buffer.replace([], second, [])
    assert buffer.positions.tolist() == [0, 1, 16, *range(3, 10)]
    assert buffer.scores.isnan().tolist() == [slot == 2 for slot in range(10)]  # The old number is gone.
    buffer.replace(np.arange(10), second)
    assert buffer.positions.tolist() == list(range(10, 20))


@pytest.mark.parametrize(
    ("slots", "chosen"), [([10], [0]), ([-1], [0]), ([1], [10]), ([1, 2], [0]), ([1.5], [0]), (np.ones(10, bool), None)]
)
def test_wrong_slots_are_refused_and_nothing_is_written(slots, chosen):
    buffer, (first, second) = Fifo(10, SHAPE), batches()
    buffer.store(first)
    with pytest.raises(ValueError):
        buffer.replace(slots, second, chosen)
    assert buffer.positions.tolist() == list(range(10))


def test_a_memory_by_scores_refuses_to_replace_single_slots():
    buffer, (first, second) = random_memory(10), batches()
    buffer.update(None, first)
    with pytest.raises(TypeError, match="inherit from Buffer"):
        buffer.replace([3], second, [0])


@pytest.mark.parametrize("memory", [lambda size: Fifo(size, SHAPE), random_memory])
def test_float_images_are_refused(memory):
    batch = next(batches())
    with pytest.raises(InputError) as refusal:
        memory(7).update(None, dataclasses.replace(batch, images=batch.images / 255))
    assert refusal.value.name == "images"
