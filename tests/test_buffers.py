"""The memories: what they keep of a stream. Each image encodes its position, so that contents can be identified."""

import dataclasses
import itertools
import math
from collections import Counter
from fractions import Fraction

import naive
import numpy as np
import pytest
import torch
from conftest import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from own_objects import Fifo
from scipy import stats

from ucl.buffers import ClassBalancedBuffer, ReservoirBuffer, UncertaintyBuffer
from ucl.buffers.selection import SELECTIONS, bottom_k, quotas, step_sized, top_k
from ucl.scorers import RandomScores
from ucl.streams import Batch

SHAPE = (3, 1, 1)
NO_MODEL = None  # The rules and the scores in these tests use no network.


def images_of(positions):
    """Return images (N, 3, 1, 1), uint8, that encode the positions in base 256."""
    positions = np.asarray(positions, dtype=np.int64)
    digits = np.stack([positions % 256, positions // 256, np.full_like(positions, 77)], axis=1)
    return torch.from_numpy(digits.astype(np.uint8))[:, :, None, None]


def positions_in(images_NCHW):
    """Return the positions that images encode."""
    low, high, mark = images_NCHW[:, :, 0, 0].long().unbind(1)
    assert (mark == 77).all()
    return (low + 256 * high).tolist()


def batch_of(positions, labels, task=0):
    labels = np.asarray(labels, dtype=np.int64)
    return Batch(images_of(positions), torch.from_numpy(labels), labels, torch.tensor(list(positions)), task)


def batches_of(labels, batch_size, task_of=lambda label: 0):
    """A stream of these labels, cut into batches wherever the task changes or a batch is full."""
    batches, start = [], 0
    for task, group in itertools.groupby(labels, key=task_of):
        end = start + len(list(group))
        for first in range(start, end, batch_size):
            last = min(first + batch_size, end)
            batches.append(batch_of(range(first, last), labels[first:last], task))
        start = end
    return batches


def take_in(buffer, batches):
    for batch in batches:
        buffer.update(NO_MODEL, batch)
    return buffer


def contents(buffer):
    """Return the positions in memory, after checking that the fields of each slot belong to the same sample."""
    positions = buffer.positions[: buffer.n_stored].tolist()
    assert len(set(positions)) == len(positions)
    assert positions_in(buffer.images[: buffer.n_stored]) == positions
    assert (buffer.labels[buffer.n_stored :] == -1).all() and (buffer.tasks[buffer.n_stored :] == -1).all()
    return positions


def uniform(often, streams, size):
    """Return the p-value of `often` if all positions are equally likely to be stored.

    `often` counts, for each of n positions, in how many of the streams the memory keeps it. Each stream keeps exactly
    `size` positions, so its counts are correlated. With p = size / n, the variance of a count is p (1 - p), the
    covariance of two counts is -p (1 - p) / (n - 1), and the scaled sum of squares has n - 1 degrees of freedom.
    """
    n = len(often)
    p = size / n
    assert sum(often) == streams * size
    deviation = ((np.asarray(often) - streams * p) ** 2).sum() / (streams * p * (1 - p) * n / (n - 1))
    return stats.chi2.sf(deviation, n - 1)


# --- what every memory does ---


def random_scores(size, seed, shape=SHAPE):
    return UncertaintyBuffer(size, shape, scorer=RandomScores(seed), selection=bottom_k)


MEMORIES = {
    "reservoir": lambda size, seed: ReservoirBuffer(size, SHAPE, seed=seed),
    "reservoir, exclusive": lambda size, seed: ReservoirBuffer(size, SHAPE, seed=seed, inclusive=False),
    "class-balanced": lambda size, seed: ClassBalancedBuffer(size, SHAPE, seed=seed),
    "redrawn": random_scores,
}
labels_of_six_classes = st.lists(st.integers(0, 5), max_size=80)


def task_of_two(label):
    return label // 2


@pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES)
@settings(max_examples=60, deadline=None)
@given(
    labels=labels_of_six_classes | labels_of_six_classes.map(sorted),  # Classes come back, or each comes once.
    task_of=st.sampled_from([task_of_two, lambda label: None]),
    size=st.integers(1, 12),
    batch_size=st.integers(1, 20),
    seed=st.integers(0, 99),
)
def test_a_memory_fills_in_order_stays_full_and_replays_all_it_has(memory, labels, task_of, size, batch_size, seed):
    buffer, seen = memory(size, seed), 0
    for batch in batches_of(labels, batch_size, task_of):
        buffer.update(NO_MODEL, batch)
        seen += len(batch)
        positions = contents(buffer)
        assert buffer.n_seen == seen
        assert buffer.n_stored == len(positions) == min(size, seen)
        assert positions == list(range(seen)) if seen <= size else max(positions) < seen
        assert buffer.labels[: len(positions)].tolist() == [labels[p] for p in positions]
        tasks = [task_of(labels[p]) for p in positions]
        assert buffer.tasks[: len(positions)].tolist() == [-1 if task is None else task for task in tasks]
        images, drawn = buffer.samples_at(buffer.drawn_slots(size + 1, None, np.random.default_rng(seed)))
        assert sorted(positions_in(images)) == sorted(positions)
        assert drawn.tolist() == [labels[p] for p in positions_in(images)]
        images.zero_()
        assert contents(buffer) == positions


# --- reservoir sampling ---


@pytest.mark.parametrize(("memory", "size", "n", "batch_size"), [("reservoir", 6, 27, 9), ("redrawn", 5, 10, 5)])
def test_a_random_memory_keeps_every_position_equally_likely(memory, size, n, batch_size):
    """A reservoir in any stream, also with batches larger than the memory; a redrawn memory at its last update."""
    streams, often, batches = 2000, np.zeros(n, dtype=np.int64), batches_of([0] * n, batch_size)
    for seed in range(streams):
        often[contents(take_in(MEMORIES[memory](size, seed), batches))] += 1
    assert uniform(often, streams, size) > 0.001


def test_an_exclusive_reservoir_favours_what_comes_after_the_memory_is_full():
    size, n, streams = 6, 27, 2000
    often = np.zeros(n, dtype=np.int64)
    batches = batches_of([0] * n, 5)
    for seed in range(streams):
        often[take_in(ReservoirBuffer(size, SHAPE, seed=seed, inclusive=False), batches).positions.numpy()] += 1
    # Sample t enters with probability size / t and survives each later sample s with probability 1 - 1 / s; the product
    # telescopes to these two probabilities.
    first, later = (size - 1) / (n - 1), size / (n - 1)
    assert uniform(often, streams, size) < 1e-6
    assert stats.binomtest(int(often[size:].max()), streams, later).pvalue > 1e-4
    assert stats.binomtest(int(often[size:].min()), streams, later).pvalue > 1e-4
    assert often[:size].mean() == pytest.approx(streams * first, rel=0.03)
    assert often[size:].mean() == pytest.approx(streams * later, rel=0.01)


# --- class-balancing reservoir sampling ---


def counts_of(buffer):
    return Counter(buffer.labels[: buffer.n_stored].tolist())


@settings(max_examples=60, deadline=None)
@given(labels=st.lists(st.integers(0, 4), min_size=1, max_size=80), size=st.integers(1, 12), seed=st.integers(0, 99))
def test_every_step_of_class_balancing_is_one_that_the_algorithm_allows(labels, size, seed):
    buffer = ClassBalancedBuffer(size, SHAPE, seed=seed)
    once_largest = set()
    for position, batch in enumerate(batches_of(labels, 1)):
        before, n_of = set(contents(buffer)), counts_of(buffer)
        buffer.update(NO_MODEL, batch)
        after, label = set(contents(buffer)), labels[position]
        if position < size:
            assert after == before | {position}
            continue
        largest = {c for c, n in n_of.items() if n == max(n_of.values())}
        once_largest |= largest
        gone = {labels[p] for p in before - after}
        if label not in once_largest:
            assert position in after and len(gone) == 1 and gone <= largest
        else:
            assert after == before or (position in after and gone == {label})


@pytest.mark.parametrize("policy", [ReservoirBuffer, ClassBalancedBuffer])
@settings(max_examples=30, deadline=None)
@given(labels=st.lists(st.integers(0, 4), max_size=80), batch_size=st.integers(1, 17), seed=st.integers(0, 99))
def test_how_a_stream_is_cut_into_batches_makes_no_difference_to_a_random_memory(policy, labels, batch_size, seed):
    one_by_one = take_in(policy(9, SHAPE, seed=seed), batches_of(labels, 1))
    in_batches = take_in(policy(9, SHAPE, seed=seed), batches_of(labels, batch_size))
    assert contents(in_batches) == contents(one_by_one)
    assert in_batches.labels.tolist() == one_by_one.labels.tolist()


def test_within_a_class_a_class_balanced_memory_keeps_every_position_equally_likely():
    streams = 1500
    labels = np.tile([0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0], 4)  # 40 of class 0, 8 of class 1
    batches = batches_of(labels, 6)
    often = np.zeros(len(labels), dtype=np.int64)
    counts = set()
    for seed in range(streams):
        buffer = take_in(ClassBalancedBuffer(8, SHAPE, seed=seed), batches)
        counts.add(tuple(sorted(counts_of(buffer).items())))
        often[buffer.positions.numpy()] += 1
    assert counts == {((0, 4), (1, 4))}
    for label in (0, 1):
        assert uniform(often[labels == label], streams, 4) > 0.001


@settings(max_examples=300, deadline=None)
@given(available=st.dictionaries(st.integers(0, 99), st.integers(0, 30), max_size=8), size=st.integers(0, 120))
def test_quotas_are_what_pouring_one_by_one_gives(available, size):
    # The last turn gives the remaining slots to the first classes of the mapping that still have more samples.
    assert quotas(available, size) == naive.quotas(available, size)
    assert list(quotas(available, size)) == list(available)


# --- which candidates are retained ---


@st.composite
def scores_and_k(draw):
    """Up to 60 scores, many of them equal, and how many to keep."""
    value = st.sampled_from([0.0, 0.25, 0.5, 1.0, -3.0]) | st.floats(-1e6, 1e6, width=32)
    scores = draw(st.lists(value, max_size=60))
    return scores, draw(st.integers(0, len(scores)))


@settings(deadline=None)
@given(given=scores_and_k())
def test_bottom_and_top_keep_the_least_and_the_most_uncertain_in_order(given):
    scores, k = given
    for rule, sign in ((bottom_k, 1), (top_k, -1)):
        given = torch.tensor(scores, dtype=torch.float64)
        selected, order = rule(given, k), np.argsort(sign * np.array(scores), kind="stable")
        assert selected.tolist() == order[:k].tolist() and selected.dtype == torch.int64
        assert given.tolist() == scores


@settings(deadline=None)
@given(given=scores_and_k())
def test_step_is_evenly_spaced_over_the_sorted_candidates_ends_included(given):
    scores, k = given
    selected = step_sized(torch.tensor(scores, dtype=torch.float64), k)
    order = np.argsort(scores, kind="stable").tolist()
    ranks = [order.index(i) for i in selected.tolist()]
    assert len(ranks) == k and selected.dtype == torch.int64
    if k >= 2:
        gaps = np.diff(ranks)
        assert ranks[-1] == len(scores) - 1
        assert gaps.min() >= 1 and gaps.max() - gaps.min() <= 1
    even = np.arange(k) * (len(scores) - 1) / max(k - 1, 1)
    assert np.abs(np.array(ranks) - even).max(initial=0) <= 0.5


@pytest.mark.parametrize("rule", SELECTIONS.values())
@pytest.mark.parametrize(("n", "k"), [(5, 6), (5, -1)])
def test_more_than_there_are_or_less_than_none_is_refused(rule, n, k):
    with pytest.raises(ValueError, match="k="):
        rule(torch.zeros(n), k)


# --- memory by uncertainty ---


class KnownScores:
    """Draws a score for each position and moment once; records the positions and the classes that it scored."""

    def __init__(self, n_positions, seed):
        self.table = np.random.default_rng(seed).random((n_positions, 400))
        self.time = 0
        self.scored, self.scored_classes = [], []

    def of(self, position):
        return float(self.table[position, self.time])

    def __call__(self, model, images, positions, sizes):
        assert positions.tolist() == positions_in(images)
        self.scored = [group.tolist() for group in positions.split(list(sizes.values()))]
        self.scored_classes = list(sizes)
        return torch.tensor([self.of(p) for p in positions.tolist()], dtype=torch.float64)


def chosen(rule, candidates, score_of, k):
    """Return the k candidates that a selection keeps, by brute force; of equal scores, the earliest is kept."""
    by_score = sorted(candidates, key=score_of)
    if rule == "top":
        by_score = sorted(candidates, key=score_of, reverse=True)
    if rule == "step" and k > 1 and len({score_of(c) for c in candidates}) == len(candidates):
        spaced = [Fraction(i * (len(by_score) - 1), k - 1) for i in range(k)]
        return [by_score[math.floor(rank + Fraction(1, 2))] for rank in spaced]
    return by_score[:k]


class BruteForce:
    """The rule of the paper's algorithm 1, class by class and sample by sample, over lists and dictionaries."""

    def __init__(self, size, rule, smoothing):
        self.size, self.rule, self.smoothing = size, rule, smoothing
        self.members = {}  # Maps each class, in order of arrival, to its positions.
        self.score = {}  # Maps each position to its last score.

    def update(self, positions, labels, score_now, scored=None):
        """Update with a batch; `scored` has the positions scored now, if not all samples of its classes are scored."""
        room = self.size - sum(map(len, self.members.values()))
        for position, label in zip(positions[:room], labels[:room]):
            self.members.setdefault(label, []).append(position)
        if len(positions) <= room:
            return
        arrived = {}
        for position, label in zip(positions[room:], labels[room:]):
            arrived.setdefault(label, []).append(position)
        for label in arrived:
            self.members.setdefault(label, [])
        quota = naive.quotas({c: len(held) + len(arrived.get(c, [])) for c, held in self.members.items()}, self.size)
        for label, held in self.members.items():
            candidates = held + arrived.get(label, [])
            if label in arrived:
                for position in candidates:
                    if scored is None or position in scored:
                        new = score_now(position)
                        old = self.score.get(position, new)
                        self.score[position] = (1 - self.smoothing) * old + self.smoothing * new
            elif quota[label] == len(held):
                continue
            self.members[label] = chosen(self.rule, candidates, lambda p: self.score.get(p, math.inf), quota[label])
            for position in set(candidates) - set(self.members[label]):
                self.score.pop(position, None)

    @property
    def positions(self):
        return {position for held in self.members.values() for position in held}


def long_stream(seed):
    """Tasks of three imbalanced classes, so that quotas change and classes are absent from batches."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(5, 60, size=draw.integers(1, 4))
    return [int(3 * t + c) for t, n in enumerate(sizes) for c in draw.choice(3, size=n, p=[0.6, 0.3, 0.1])]


@pytest.mark.parametrize("rule", SELECTIONS)
@settings(max_examples=150, deadline=None)
@given(
    refresh=st.sampled_from([1.0, 1.0, 0.05, 0.25, 0.5, 0.8, 2, 5, 1000]),
    smoothing=st.sampled_from([1.0, 0.25]),
    labels=labels_of_six_classes.map(sorted) | labels_of_six_classes | st.integers(0, 10**6).map(long_stream),
    task_of=st.sampled_from([lambda label: label // 3, lambda label: None]),
    size=st.integers(1, 20),
    batch_size=st.integers(1, 20),
    seed=st.integers(0, 999),
)
def test_a_memory_by_uncertainty_keeps_what_brute_force_keeps(
    rule, refresh, smoothing, labels, task_of, size, batch_size, seed
):
    """The classes of the batch are scored: all of the batch, and the stored samples with the oldest scores."""
    scores, by_hand = KnownScores(len(labels), seed), BruteForce(size, rule, smoothing)
    how = dict(selection=SELECTIONS[rule], refresh=refresh, smoothing=smoothing)
    buffer = UncertaintyBuffer(size, SHAPE, scorer=scores, **how)
    held, scored_at = set(), {}  # the stored positions, and for each of them the time of its score
    for scores.time, batch in enumerate(batches_of(labels, batch_size, task_of)):
        scores.scored = []
        arrived = batch.positions.tolist()
        stored_now = held | set(arrived[: size - len(held)])
        buffer.update(NO_MODEL, batch)
        assert {labels[p] for p in arrived if p not in stored_now} == {labels[group[0]] for group in scores.scored}
        for group, label in zip(scores.scored, scores.scored_classes):
            stored = {p for p in stored_now if labels[p] == label}
            rescored = set(group) & stored_now
            assert {labels[p] for p in group} == {label} and len(set(group)) == len(group)
            assert set(group) - rescored == {p for p in arrived if labels[p] == label} - stored_now
            if stored.isdisjoint(scored_at):  # A class without scores is scored completely.
                assert rescored == stored
            else:
                n = math.ceil(Fraction(str(refresh)) * len(stored)) if refresh <= 1 else refresh
                assert len(rescored) == min(n, len(stored))
                oldest = min((scored_at[p] for p in stored - rescored), default=999)
                assert max((scored_at[p] for p in rescored), default=-1) <= oldest
            scored_at.update(dict.fromkeys(group, scores.time))
        scored = None if refresh == 1 else set(itertools.chain(*scores.scored))
        by_hand.update(arrived, batch.host_labels.tolist(), scores.of, scored)
        positions = contents(buffer)
        held = set(positions)
        assert held == by_hand.positions
        assert buffer.labels[: len(held)].tolist() == [labels[p] for p in positions]
        tasks = [task_of(labels[p]) for p in positions]
        assert buffer.tasks[: len(held)].tolist() == [-1 if task is None else task for task in tasks]
        reported = [by_hand.score.get(p, math.nan) for p in positions]
        assert buffer.scores[: len(held)].tolist() == pytest.approx(reported, rel=1e-12, nan_ok=True)
        scored_at = {p: when for p, when in scored_at.items() if p in held}


@pytest.mark.parametrize(("refresh", "stored", "n"), [(0.01, 10, 1), (0.07, 100, 7), (0.31, 10, 4), (30, 10, 10)])
def test_a_refresh_scores_its_share_rounded_up_or_its_number_and_of_equal_ages_the_first(refresh, stored, n):
    """In floating point, 0.07 * 100 is slightly above 7."""
    scores = KnownScores(stored + 2, 0)
    buffer = UncertaintyBuffer(stored, SHAPE, scorer=scores, selection=bottom_k, refresh=refresh)
    buffer.update(NO_MODEL, batch_of(range(stored), [0] * stored))
    buffer.update(NO_MODEL, batch_of([stored], [0]))
    assert len(scores.scored[0]) == stored + 1  # The first time, all samples are scored.
    in_order = buffer.positions.tolist()
    buffer.update(NO_MODEL, batch_of([stored + 1], [0]))
    assert scores.scored[0] == [*in_order[:n], stored + 1]


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 27, 25)], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_an_image_moves_whole_whatever_its_shape(shape, layout):
    stream = torch.randint(0, 256, (60, *shape), dtype=torch.uint8).contiguous(memory_format=layout)
    buffer = random_scores(9, 0, shape)
    for start in range(0, 60, 5):
        labels, positions = np.arange(5) % 3, torch.arange(start, start + 5)
        buffer.update(NO_MODEL, Batch(stream[positions], torch.from_numpy(labels), labels, positions, 0))
    assert buffer.positions.max() >= 9 and torch.equal(buffer.images, stream[buffer.positions])


# --- replay ---


@settings(max_examples=60, deadline=None)
@given(labels=labels_of_six_classes.filter(len), n=st.integers(1, 12), size=st.integers(1, 20), seed=st.integers(0, 99))
def test_replay_draws_distinct_images_of_other_tasks_with_their_labels(labels, n, size, seed):
    buffer = take_in(ReservoirBuffer(size, SHAPE, seed=seed), batches_of(labels, 5, task_of_two))
    draw = np.random.default_rng(seed)
    for task in range(4):
        eligible = [p for p in contents(buffer) if labels[p] // 2 != task]
        images, drawn_labels = buffer.samples_at(buffer.drawn_slots(n, task, draw))
        drawn = positions_in(images)
        assert len(drawn) == len(set(drawn)) == min(n, len(eligible))
        assert set(drawn) <= set(eligible)
        assert drawn_labels.tolist() == [labels[p] for p in drawn]
        assert drawn_labels.dtype == torch.int64


@pytest.mark.parametrize("memory", [MEMORIES["reservoir"], MEMORIES["redrawn"]])
@pytest.mark.parametrize("exclude_task", [1, None])
def test_replay_draws_every_eligible_image_equally_often(memory, exclude_task):
    buffer = take_in(memory(15, 1), batches_of([0] * 12 + [2] * 10 + [4] * 11, 5, task_of_two))
    eligible = [p for p, task in zip(contents(buffer), buffer.tasks) if task != exclude_task]
    draw, times, often = np.random.default_rng(0), 3000, Counter()
    for _ in range(times):
        often.update(positions_in(buffer.images[buffer.drawn_slots(4, exclude_task, draw)]))
    assert set(often) == set(eligible)
    assert uniform([often[p] for p in eligible], times, 4) > 0.001


# --- the base class: what a user's policy stores, replaces, and keeps with each sample ---


def with_values(n=2, size=10):
    """Batches whose samples have their position and two noisy numbers."""
    draw = np.random.default_rng(1)
    for number in range(n):
        batch = batch_of(range(number * size, (number + 1) * size), draw.integers(0, 5, size), number // 5)
        batch.values.update(position=batch.positions.clone(), noise=torch.from_numpy(draw.random((size, 2))))
        yield batch


@pytest.mark.parametrize("buffer", [Fifo(12, SHAPE), random_scores(12, 3)])
def test_empty_slots_have_no_values_and_all_batches_the_same_names(buffer):
    first, second = with_values()
    buffer.update(NO_MODEL, first)
    assert buffer.values["noise"].isnan().all(1).tolist() == [slot >= 10 for slot in range(12)]
    assert buffer.values["position"].tolist() == [*range(10), 0, 0]
    del second.values["noise"]
    with pytest.raises(ValueError, match="noise"):
        buffer.update(NO_MODEL, second)


def test_of_two_samples_for_one_slot_the_later_one_is_stored():
    buffer, (first, second) = Fifo(10, SHAPE), with_values()
    assert buffer.store(first) == 10 and buffer.store(second) == 0
    buffer.scores[:] = 1.0
    buffer.replace(torch.tensor([2, 2]), second, [5, 6])
    buffer.replace([], second, [])
    assert buffer.positions.tolist() == [0, 1, 16, *range(3, 10)]
    assert buffer.scores.isnan().tolist() == [slot == 2 for slot in range(10)]  # The old number is gone.
    buffer.replace(np.arange(10), second)
    assert buffer.positions.tolist() == list(range(10, 20)) == buffer.values["position"].tolist()
    assert torch.equal(buffer.values["noise"], second.values["noise"])


@pytest.mark.parametrize(
    ("slots", "chosen"), [([10], [0]), ([-1], [0]), ([1], [10]), ([1, 2], [0]), ([1.5], [0]), (np.ones(10, bool), None)]
)
def test_wrong_slots_are_refused_and_nothing_is_written(slots, chosen):
    buffer, (first, second) = Fifo(10, SHAPE), with_values()
    buffer.store(first)
    with pytest.raises(ValueError):
        buffer.replace(slots, second, chosen)
    assert buffer.positions.tolist() == list(range(10))


def test_a_memory_by_scores_refuses_to_replace_single_slots():
    buffer, (first, second) = random_scores(10, 3), with_values()
    buffer.update(NO_MODEL, first)
    with pytest.raises(TypeError, match="inherit from Buffer"):
        buffer.replace([3], second, [0])


@pytest.mark.parametrize("buffer", [Fifo(7, SHAPE), random_scores(7, 3)])
def test_float_images_are_refused(buffer):
    batch = next(with_values())
    with refused("images"):
        buffer.update(NO_MODEL, dataclasses.replace(batch, images=batch.images / 255))
