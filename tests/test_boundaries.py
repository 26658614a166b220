"""Gradual and blurry boundaries: every image comes once, shares are as defined, and clear boundaries are the limit."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_streams import dataset, images_learnt, labels_learnt, stream_of

import ucl
from ucl.assembly import build_stream
from ucl.streams.boundaries import blurry, disjoint_classes, gradual

shares = st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.75, 1.0]) | st.floats(0, 1)
seeds = st.integers(0, 2**32 - 1)


def in_blocks(sizes):
    """Positions 0, 1, 2, ... in blocks of these sizes."""
    ends = np.cumsum([0, *sizes])
    return [np.arange(a, b) for a, b in itertools.pairwise(ends)]


# Gradual


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=5), blur=shares, seed=seeds)
def test_gradual_periods_mix_neighbours_only_and_keep_the_order_within_a_task(sizes, blur, seed):
    blocks = in_blocks(sizes)
    periods = gradual(blocks, blur, np.random.default_rng(seed))
    assert [len(period) for period in periods] == sizes
    stream, ends = np.concatenate(periods), np.cumsum(sizes)
    tasks = np.searchsorted(ends, stream, side="right")
    for task, block in enumerate(blocks):
        assert stream[tasks == task].tolist() == block.tolist()
    for number, (a, b) in enumerate(itertools.pairwise(sizes)):
        half = int(blur * min(a, b) / 2 + 1e-9)
        transition = tasks[ends[number] - half : ends[number] + half]
        assert np.bincount(transition, minlength=number + 2)[number : number + 2].tolist() == [half, half]


@settings(deadline=None)
@given(half=st.integers(1, 200), seed=seeds)
def test_the_share_of_the_next_task_rises_linearly(half, seed):
    """At each moment the number of its images so far differs from the expected i^2 / 4h by less than one."""
    stream = np.concatenate(gradual(in_blocks([2 * half, 2 * half]), 1.0, np.random.default_rng(seed)))
    new = np.cumsum(stream[half : 3 * half] >= 2 * half)
    for i, so_far in enumerate(new.tolist(), start=1):
        assert abs(so_far - Fraction(i * i, 4 * half)) < 1
    assert new[-1] == half


def test_each_image_of_a_transition_is_of_the_next_task_with_the_linear_probability():
    streams = [np.concatenate(gradual(in_blocks([8, 8]), 1.0, np.random.default_rng(seed))) for seed in range(4000)]
    often = np.mean([stream[4:12] >= 8 for stream in streams], axis=0)
    assert often == pytest.approx([(i + 0.5) / 8 for i in range(8)], abs=0.04)  # This is 5 standard deviations.


# Blurry


@st.composite
def classes(draw):
    n_tasks, n_classes = draw(st.sampled_from([(1, 3), (2, 4), (3, 6), (5, 10), (4, 4), (3, 7), (3, 8), (4, 5)]))
    sizes = draw(st.lists(st.integers(0, 60), min_size=n_classes, max_size=n_classes))
    order = draw(st.permutations(range(n_classes)))
    return in_blocks(sizes), [tuple(map(int, task)) for task in np.array_split(order, n_tasks)]


@settings(deadline=None)
@given(classes=classes(), blur=shares, share=shares, seed=seeds)
def test_blurry_tasks_have_each_image_once_and_the_shares_of_their_definition(classes, blur, share, seed):
    images_of, classes_of_task = classes
    disjoint = disjoint_classes(classes_of_task, share, np.random.default_rng(seed))
    tasks = blurry(images_of, classes_of_task, disjoint, blur)

    assert sorted(np.concatenate(tasks).tolist()) == list(range(sum(map(len, images_of))))
    n_shared = {c: 0 if c in disjoint else round(blur * len(images)) for c, images in enumerate(images_of)}
    for task, main in zip(tasks, classes_of_task, strict=True):
        for c, images in enumerate(images_of):
            minor = np.isin(task, images).sum() - (len(images) - n_shared[c] if c in main else 0)
            assert abs(minor - Fraction(n_shared[c], len(tasks))) < 1
    beyond = [len(task) - sum(len(images_of[c]) - n_shared[c] for c in cs) for task, cs in zip(tasks, classes_of_task)]
    assert max(beyond) - min(beyond) <= 1


@settings(deadline=None)
@given(classes=classes(), share=shares, seed=seeds)
def test_disjoint_classes_are_the_share_of_all_and_spread_over_the_tasks(classes, share, seed):
    images_of, classes_of_task = classes
    disjoint = disjoint_classes(classes_of_task, share, np.random.default_rng(seed))
    assert len(disjoint) == round(share * len(images_of))
    per_task = [len(disjoint & set(main)) for main in classes_of_task]
    assert max(per_task) - min(per_task) <= 1


@pytest.mark.parametrize(("share", "per_task"), [(1, [1, 5, 2]), (0.75, [1, 3, 2]), (0.375, [1, 1, 1]), (0, [0] * 3)])
def test_a_small_task_leaves_its_disjoint_classes_to_larger_ones(share, per_task):
    classes_of_task = [(7,), (0, 1, 2, 3, 4), (5, 6)]
    for seed in range(5):
        disjoint = disjoint_classes(classes_of_task, share, np.random.default_rng(seed))
        assert [len(disjoint & set(main)) for main in classes_of_task] == per_task


def test_the_seed_draws_every_disjoint_class_alike():
    often = np.zeros(6)
    for seed in range(600):
        often[list(disjoint_classes([(0, 1), (2, 3), (4, 5)], 1 / 3, np.random.default_rng(seed)))] += 1
    assert often.sum() == 1200 and (abs(often - 200) < 60).all()  # The standard deviation is 11.5.


# Streams


KINDS = [dict(boundaries="gradual", blur=0.6), dict(boundaries="blurry", blur=0.3)]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind["boundaries"])


@kinds
def test_every_image_of_the_clear_stream_is_in_the_other_one_once(kind):
    data = dataset([60, 50, 70, 80])
    clear, other = (stream_of(data, seed=4, **changes) for changes in ({}, kind))
    assert labels_learnt(other) == labels_learnt(clear)
    assert sum(len(task.labels) for task in other) == len(labels_learnt(other))
    assert other.class_order == clear.class_order
    for task, clear_task in zip(other, clear, strict=True):
        assert task.classes == clear_task.classes
        assert task.test_labels.tolist() == clear_task.test_labels.tolist()
        assert [len(batch) for batch in task] == [10] * (len(task.labels) // 10)
    again, differs = (stream_of(data, seed=seed, **kind) for seed in (4, 5))
    assert images_learnt(other) == images_learnt(again) != images_learnt(differs)


def test_the_limits_of_blur_are_the_clear_stream():
    data, blurry = dataset([60, 50, 70, 80]), dict(boundaries="blurry")
    changes = {}, dict(boundaries="gradual", blur=0), {**blurry, "blur": 0}, {**blurry, "disjoint": 1}
    clear, *limits = (images_learnt(stream_of(data, seed=4, **kind)) for kind in changes)
    assert limits == [clear] * 3


@kinds
def test_batches_tell_no_task_where_the_whole_memory_is_replayed(kind):
    config = ucl.Config(n_tasks=5)
    data = ucl.datasets.load("digits")
    assert {batch.task for task in build_stream(config, data) for batch in task} == set(range(5))
    for changed in (config.replace(**kind), config.replace(replay="all")):
        assert {batch.task for task in build_stream(changed, data) for batch in task} == {None}
