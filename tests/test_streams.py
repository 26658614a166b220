"""The stream: its training images, its test images and their order. Each image encodes its split and index."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from ucl.assembly import build_stream
from ucl.catalogue import BOUNDARIES
from ucl.config import Config
from ucl.machine.determinism import seed_for
from ucl.streams import ClassIncrementalStream, long_tailed_counts
from ucl.streams.datasets import ImageDataset

TRAIN, TEST, VALIDATION = 0, 1, 2


def images_of(count, split):
    """(count, 2, 2, 3) uint8: red and green encode the image's index, blue its split."""
    images = np.zeros((count, 2, 2, 3), dtype=np.uint8)
    images[..., 0] = (np.arange(count) % 256)[:, None, None]
    images[..., 1] = (np.arange(count) // 256)[:, None, None]
    images[..., 2] = split
    return images


def identities(images_NCHW):
    """What `images_of` encoded: a list of (split, index)."""
    red, green, blue = images_NCHW[:, :, 1, 1].long().unbind(1)
    return list(zip(blue.tolist(), (red + 256 * green).tolist(), strict=True))


def indices_in(images_NCHW, split):
    """Indices of images that must all be of one split."""
    splits_and_indices = identities(images_NCHW)
    assert {origin for origin, _ in splits_and_indices} <= {split}
    return [index for _, index in splits_and_indices]


def dataset(sizes, test_sizes=None, validation_sizes=None):
    """Classes of the given sizes, their images shuffled."""

    def split(counts, number):
        labels = np.random.default_rng(number).permutation(np.repeat(np.arange(len(counts)), counts))
        return images_of(len(labels), number), labels.astype(np.int64)

    parts = [*split(sizes, TRAIN), *split(test_sizes or [4] * len(sizes), TEST)]
    if validation_sizes:
        parts += split(validation_sizes, VALIDATION)
    return ImageDataset("synthetic", tuple(f"class {c}" for c in range(len(sizes))), *parts)


def stream_of(data, **fields):
    """The stream of a data set, with two tasks unless the fields say something else."""
    return ClassIncrementalStream(Config(**{"n_tasks": 2, **fields}), data)


def images_learnt(stream):
    """Indices of all images in the stream's batches, in their order."""
    return [index for task in stream for batch in task for index in indices_in(batch.images, TRAIN)]


def images_tested(stream, split=TEST):
    return [index for task in stream for index in indices_in(task.test_images, split)]


def labels_learnt(stream):
    """The label of each training index in the tasks, including the incomplete last batch."""
    samples = (zip(indices_in(task.images, TRAIN), task.labels.tolist(), strict=True) for task in stream)
    return dict(itertools.chain(*samples))


sizes_of_classes = st.lists(st.integers(21, 90), min_size=4, max_size=4)
choices = dict(n_tasks=st.integers(1, 4), batch_size=st.sampled_from([2, 7, 10]), seed=st.integers(0, 2**32 - 1))
choices["class_order"] = st.sampled_from(["seed", "size"])


@settings(max_examples=60, deadline=None)
@given(sizes=sizes_of_classes, choice=st.fixed_dictionaries(choices))
def test_tasks_split_the_classes_and_their_batches_show_each_training_image_at_most_once(sizes, choice):
    data, batch_size = dataset(sizes), choice["batch_size"]
    stream = stream_of(data, **choice)
    per_task, more = divmod(4, choice["n_tasks"])
    assert [len(task.classes) for task in stream] == [per_task + 1] * more + [per_task] * (len(stream) - more)
    assert [c for task in stream for c in task.classes] == list(stream.class_order)
    assert sorted(stream.class_order) == [0, 1, 2, 3] and len(stream) == choice["n_tasks"]
    for number, task in enumerate(stream):
        for batch in task:
            assert batch.positions.tolist() == indices_in(batch.images, TRAIN) and len(batch) == batch_size
            assert batch.labels.tolist() == batch.host_labels.tolist() == data.train_labels[batch.positions].tolist()
            assert set(batch.labels.tolist()) <= set(task.classes)
            assert batch.task == task.number == number
        left_in = sum(sizes[c] - int(0.05 * sizes[c]) for c in task.classes)
        assert len(set(indices_in(task.images, TRAIN))) == len(task.images) == left_in
        assert len(task) * batch_size + task.n_left_out == left_in and task.n_left_out < batch_size
        indices = indices_in(task.test_images, TEST)
        assert task.test_labels.tolist() == data.test_labels[indices].tolist()
        assert set(task.test_labels.tolist()) == set(task.classes)
    shown = images_learnt(stream)
    assert len(set(shown)) == len(shown) == stream.n_batches * batch_size
    assert sorted(images_tested(stream)) == list(range(16))


@pytest.mark.parametrize("evaluate_on", ["test", "validation"])
@pytest.mark.parametrize("has_validation", [False, True])
@pytest.mark.parametrize("imbalance", [1.0, 0.2])
def test_no_image_is_both_learnt_and_tested(evaluate_on, has_validation, imbalance):
    data = dataset([100, 80, 60, 120], [10, 11, 12, 13], [9, 8, 7, 6] if has_validation else None)
    stream = stream_of(data, imbalance=imbalance, evaluate_on=evaluate_on, seed=5)

    learnt = {image for task in stream for image in identities(task.images)}
    tested = [image for task in stream for image in identities(task.test_images)]
    assert len(set(tested)) == len(tested)
    assert learnt.isdisjoint(tested)
    assert {split for split, _ in learnt} == {TRAIN}


@settings(max_examples=30, deadline=None)
@given(
    sizes=sizes_of_classes,
    share=st.sampled_from([0.0, 0.05, 0.5]),
    seed=st.integers(0, 1000),
    fields=st.sampled_from([{}, {"class_order": "size"}, {"n_tasks": 4}, {"batch_size": 7}]),
)
def test_the_last_images_of_each_shuffled_class_are_held_out(sizes, share, seed, fields):
    """Committed records were measured on these streams, so their draws must not change."""
    data = dataset(sizes)
    stream, thinned = (stream_of(data, validation=share, seed=seed, imbalance=i, **fields) for i in (1, 0.5))
    draw = np.random.default_rng(seed_for(seed, "validation"))
    shuffled = [draw.permutation(np.flatnonzero(data.train_labels == c)) for c in range(4)]
    n_learnt = [n - int(share * n) for n in sizes]
    for task, (held_out, labels) in zip(stream, stream.validation_tests(), strict=True):
        learnt = np.concatenate([shuffled[c][: n_learnt[c]] for c in task.classes])
        order = np.random.default_rng(seed_for(seed, f"batches of task {task.number}"))
        assert task.positions.tolist() == order.permutation(learnt).tolist()
        indices = indices_in(held_out, TRAIN) if len(held_out) else []
        assert sorted(indices) == sorted(np.concatenate([shuffled[c][n_learnt[c] :] for c in task.classes]).tolist())
        assert labels.tolist() == data.train_labels[indices].tolist()
    for (one, _), (other, _) in zip(stream.validation_tests(), thinned.validation_tests(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("share", "held_out"), [(0.29, 29), (0.285, 28), (0.07, 7), (0.05, 5)])
def test_a_share_that_is_a_whole_number_of_images_holds_out_this_number(share, held_out):
    """In floating point, 0.29 * 100 is below 29."""
    data = dataset([100, 100, 100, 100])
    stream = stream_of(data, validation=share, evaluate_on="validation")
    assert np.bincount(data.train_labels[images_tested(stream, TRAIN)]).tolist() == [held_out] * 4


def test_a_data_set_with_a_validation_set_holds_out_nothing_more():
    data = dataset([100, 80, 60, 120], validation_sizes=[5, 6, 7, 8])
    stream = stream_of(data, seed=5, evaluate_on="validation")
    assert sorted(labels_learnt(stream)) == list(range(360))
    alone = replace(data, val_images=None, val_labels=None)
    assert images_learnt(stream) == images_learnt(stream_of(alone, seed=5, validation=0.0))
    assert sorted(images_tested(stream, VALIDATION)) == list(range(26))
    for task, (images, labels) in zip(stream, stream.validation_tests(), strict=True):
        assert task.test_labels.tolist() == data.val_labels[indices_in(task.test_images, VALIDATION)].tolist()
        assert sorted(indices_in(images, VALIDATION)) == sorted(indices_in(task.test_images, VALIDATION))
        assert labels.tolist() == data.val_labels[indices_in(images, VALIDATION)].tolist()


@given(n_max=st.integers(1, 6000), n_classes=st.integers(2, 12), hundredths=st.integers(1, 100))
def test_long_tailed_counts_are_the_formula_rounded_down_and_at_least_one(n_max, n_classes, hundredths):
    counts = long_tailed_counts(n_max, n_classes, hundredths / 100)
    # m <= n_max (h / 100)^(c / K) in whole numbers: m^K 100^c <= n_max^K h^c
    k = n_classes - 1
    for c, m in enumerate(counts):
        assert m == 1 or m**k * 100**c <= n_max**k * hundredths**c
        assert n_max**k * hundredths**c < (m + 1) ** k * 100**c
    assert counts[0] == n_max and long_tailed_counts(n_max, 1, hundredths / 100) == [n_max]
    assert all(a >= b for a, b in itertools.pairwise(counts))


@pytest.mark.parametrize("class_order", ["seed", "size"])
@pytest.mark.parametrize("seed", range(3))
def test_the_tail_follows_the_class_order_and_a_smaller_class_keeps_all_it_has(class_order, seed):
    sizes = [500, 500, 500, 500, 300, 40]
    data = dataset(sizes, [100] * 6, validation_sizes=[1] * 6)
    how = dict(n_tasks=3, class_order=class_order, imbalance=0.1, seed=seed)
    whole, thinned = (stream_of(data, long_tailed_test=thin, **how) for thin in (False, True))
    assert long_tailed_counts(500, 6, 0.1) == [500, 315, 199, 125, 79, 50]
    tail = dict(zip(whole.class_order, long_tailed_counts(500, 6, 0.1), strict=True))
    n_of = np.bincount(list(labels_learnt(whole).values()))
    assert n_of.tolist() == [min(n, tail[c]) for c, n in enumerate(sizes)]
    assert sorted(images_tested(whole)) == list(range(600))
    n_tested = np.bincount(data.test_labels[images_tested(thinned)])
    assert [n_tested[c] for c in thinned.class_order] == long_tailed_counts(100, 6, 0.1)
    assert images_learnt(thinned) == images_learnt(whole)


def test_classes_come_by_size_or_in_an_order_that_the_seed_draws_uniformly():
    data = dataset([30, 70, 70])
    often = {}
    for seed in range(600):
        order = stream_of(data, n_tasks=1, seed=seed).class_order
        often[order] = often.get(order, 0) + 1
    assert len(often) == 6  # each expected 100 times, with a standard deviation of 9
    assert all(60 < n < 140 for n in often.values())
    assert {stream_of(data, class_order="size", seed=seed).class_order for seed in range(3)} == {(1, 2, 0)}


@pytest.mark.parametrize(
    ("changes", "tasks"),
    [
        ({"class_order": "2,0,3,1", "n_tasks": 3}, [(2, 0), (3,), (1,)]),
        ({"class_order": "class 3,0,class 1,2"}, [(3, 0), (1, 2)]),
        ({"tasks": "3|1,0,class 2", "n_tasks": None}, [(3,), (1, 0, 2)]),
        ({"tasks": "1,0,2,3", "n_tasks": None}, [(1, 0, 2, 3)]),
    ],
)
def test_an_explicit_stream_has_the_given_tasks_and_its_tail_follows_them(changes, tasks):
    stream = stream_of(dataset([50] * 4), validation=0, imbalance=0.2, **changes)
    assert [task.classes for task in stream] == tasks
    assert stream.class_order == tuple(c for classes in tasks for c in classes)
    n_of = np.bincount(list(labels_learnt(stream).values()))
    assert [n_of[c] for c in stream.class_order] == long_tailed_counts(50, 4, 0.2)
    for task in stream:
        assert set(task.host_labels.tolist()) == set(task.test_labels.tolist()) == set(task.classes)


def test_a_name_of_a_class_counts_before_an_index():
    """Folders 1 and 10 are the classes 0 and 1."""
    data = replace(dataset([30] * 3), classes=("1", "10", "two"))
    assert stream_of(data, n_tasks=1, class_order="1,two,10").class_order == (0, 2, 1)


@pytest.mark.parametrize("boundaries", BOUNDARIES)
@pytest.mark.parametrize("seed", [3, 8])
def test_the_explicit_order_of_the_seed_is_the_stream_of_the_seed(boundaries, seed):
    data = dataset([40, 50, 60, 70, 45])
    config = Config(seed=seed, n_tasks=2, boundaries=boundaries, imbalance=0.5)
    drawn = build_stream(config, data)
    tasks = "|".join(",".join(map(str, task.classes)) for task in drawn)
    for fields in ({"class_order": tasks.replace("|", ",")}, {"tasks": tasks, "n_tasks": None}):
        explicit = build_stream(config.replace(**fields), data)
        assert images_learnt(explicit) == images_learnt(drawn) and images_tested(explicit) == images_tested(drawn)
        assert [task.classes for task in explicit] == [task.classes for task in drawn]


def test_two_purposes_never_share_their_draws():
    purposes = ["class order", "validation", "weights", "replay", "memory", "views", "dropout", "final views"]
    purposes += [f"batches of task {t}" for t in range(20)]
    seeds = {seed_for(seed, purpose) for seed in range(50) for purpose in purposes}
    assert len(seeds) == 50 * len(purposes)


# Sizes of classes, of their test and validation images, fields, and the one refused.
REFUSED = [
    ([30] * 6, None, None, {"n_tasks": 7}, "n_tasks"),
    ([30] * 3, None, None, {"class_order": "0,1,2,3"}, "class_order"),
    ([30] * 3, None, None, {"class_order": "0,1,2,class 1"}, "class_order"),
    ([30] * 3, None, None, {"tasks": "0,1|-1", "n_tasks": None, "class_order": None}, "tasks"),
    ([30, 30, 4, 4], None, [1] * 4, {}, "batch_size"),
    ([19, 18], [4, 0], None, {}, "evaluate_on"),
    ([19, 18], None, [3, 0], {"evaluate_on": "validation"}, "evaluate_on"),
    ([19, 19], None, None, {"evaluate_on": "validation"}, "evaluate_on"),  # 5 % of 19 images are none.
]


@pytest.mark.parametrize(("sizes", "test_sizes", "validation_sizes", "changes", "field"), REFUSED)
def test_a_field_that_does_not_fit_the_images_is_refused(sizes, test_sizes, validation_sizes, changes, field):
    with refused(field):
        stream_of(dataset(sizes, test_sizes, validation_sizes), **{"class_order": "size", **changes})


@pytest.mark.parametrize("imbalance", [0, 1.1, 100])
def test_an_imbalance_that_is_no_share_is_refused(imbalance):
    with refused("imbalance"):
        long_tailed_counts(9, 3, imbalance)


@pytest.mark.parametrize(
    ("sizes", "n_tasks", "batch_size", "n_left_out", "reported"),
    [
        ([100, 50, 19, 19], 4, 10, [0, 0, 9, 9], 2),
        ([20, 19], 2, 6, [2, 1], 0),  # exactly a tenth, and less
        ([20, 20], 2, 10, [0, 0], 0),
    ],
)
def test_tasks_that_lose_more_than_a_tenth_are_warned_of(caplog, sizes, n_tasks, batch_size, n_left_out, reported):
    caplog.set_level("WARNING", "ucl.streams")
    data = dataset(sizes, validation_sizes=[1] * len(sizes))
    stream = stream_of(data, n_tasks=n_tasks, class_order="size", batch_size=batch_size)
    assert [task.n_left_out for task in stream] == n_left_out and len(caplog.messages) == reported


def test_a_class_without_a_learnt_or_a_tested_image_is_named(caplog):
    caplog.set_level("WARNING", "ucl.streams")
    dropped = 0
    for seed in range(60):
        caplog.clear()
        stream = stream_of(dataset([40, 20, 40, 1]), class_order="size", validation=0, seed=seed)
        learnt = {label for task in stream for batch in task for label in batch.host_labels.tolist()}
        dropped += 3 not in learnt
        assert ["class 3" in message for message in caplog.messages] == [True] * (3 not in learnt)
    assert dropped
    for tested in dict(evaluate_on="validation"), dict(evaluate_every=2):
        caplog.clear()
        stream_of(dataset([40, 40, 15, 10]), n_tasks=1, class_order="size", **tested)
        assert ["class 2, class 3" in message for message in caplog.messages] == [True]


@pytest.mark.parametrize(("order", "reported"), [("size", False), ("0,1,2,3", False), ("0,3,2,1", True)])
def test_a_long_tail_that_small_classes_prevent_is_reported(caplog, order, reported):
    stream_of(dataset([200, 200, 150, 20]), n_tasks=2, class_order=order, imbalance=0.1, batch_size=2)
    assert len(caplog.messages) == reported


def test_joint_training_mixes_the_images_of_all_tasks_and_nothing_else():
    images, how = dataset([30, 25, 20, 35]), dict(validation=0, batch_size=5, seed=3)
    plain, joint = (stream_of(images, method=method, **how) for method in ("finetune", "joint"))
    positions = [[p for task in stream for p in task.positions.tolist()] for stream in (plain, joint)]
    assert sorted(positions[0]) == sorted(positions[1]) == list(range(110))
    for task, mixed in zip(plain, joint, strict=True):
        assert len(mixed.host_labels) == len(task.host_labels) and mixed.classes == task.classes
        assert mixed.test_labels.tolist() == task.test_labels.tolist()
        assert set(mixed.host_labels.tolist()) == {0, 1, 2, 3}
        assert mixed.labels.tolist() == mixed.host_labels.tolist() == images.train_labels[mixed.positions].tolist()
        assert indices_in(mixed.images, TRAIN) == mixed.positions.tolist()


def test_a_change_of_a_batch_in_place_changes_nothing_else():
    data = dataset([12, 9, 8, 12])
    written, other = (stream_of(data, batch_size=4) for _ in range(2))
    for batch in (batch for task in written for batch in task):
        batch.images.fill_(7)
        batch.labels.fill_(0)
        batch.host_labels[:] = 0
    assert images_learnt(written) == images_learnt(other) and labels_learnt(written) == labels_learnt(other)
    assert all(np.array_equal(*(task.host_labels for task in tasks)) for tasks in zip(written, other, strict=True))
