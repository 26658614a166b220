"""The memories: what they keep of a stream. Each image encodes its position, so that contents can be identified."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ucl.buffers import ClassBalancedBuffer, ReservoirBuffer, UncertaintyBuffer
from ucl.buffers.selection import SELECTIONS, quotas
from ucl.errors import InputError
from ucl.scorers import RandomScores
from ucl.streams import Batch

SHAPE = (3, 1, 1)
NO_MODEL = None  # The rules and the scores in these tests use no network.


def images_of(positions):
    """Return images (N, 3, 1, 1), uint8, that encode the positions in base 256."""
    positions = np.asarray(positions, dtype=np.int64)
    digits = np.stack([positions % 256, positions // 256, np.full_like(positions, 77)], axis=1)
    return torch.from_numpy(digits.astype(np.uint8))[:, :, None, None]


def spelt(images_NCHW):
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
    assert spelt(buffer.images[: buffer.n_stored]) == positions
    assert (buffer.labels[buffer.n_stored :] == -1).all() and (buffer.tasks[buffer.n_stored :] == -1).all()
    return positions


def uniform(often, streams, kept):
    """Return the p-value of `often` if all positions are equally likely to be kept.

    `often` counts, for each of n positions, in how many of the streams the memory keeps it. Each stream keeps exactly
    `kept` positions, so its counts are correlated. With p = kept / n, the variance of a count is p (1 - p), the
    covariance of two counts is -p (1 - p) / (n - 1), and the scaled sum of squares has n - 1 degrees of freedom.
    """
    n = len(often)
    p = kept / n
    assert sum(often) == streams * kept
    deviation = ((np.asarray(often) - streams * p) ** 2).sum() / (streams * p * (1 - p) * n / (n - 1))
    return stats.chi2.sf(deviation, n - 1)


# --- what every memory does ---

MEMORIES = {
    "reservoir": lambda size, seed: ReservoirBuffer(size, SHAPE, seed=seed),
    "reservoir, exclusive": lambda size, seed: ReservoirBuffer(size, SHAPE, seed=seed, inclusive=False),
    "class-balanced": lambda size, seed: ClassBalancedBuffer(size, SHAPE, seed=seed),
    "redrawn": lambda size, seed: UncertaintyBuffer(size, SHAPE, "cpu", RandomScores(seed), SELECTIONS["bottom"]),
}
every_memory = pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES.keys())
# Classes 2t and 2t + 1 belong to task t; some classes may be missing or rare.
class_incremental = st.lists(st.lists(st.integers(0, 1), max_size=25), min_size=1, max_size=3).map(
    lambda tasks: [2 * t + c for t, labels in enumerate(tasks) for c in labels]
)


@every_memory
@settings(max_examples=40, deadline=None)
@given(labels=class_incremental, size=st.integers(1, 12), batch_size=st.integers(1, 15), seed=st.integers(0, 99))
def test_a_memory_fills_and_stays_full_of_images_of_the_stream(memory, labels, size, batch_size, seed):
    buffer, seen = memory(size, seed), 0
    for batch in batches_of(labels, batch_size, lambda label: label // 2):
        buffer.update(NO_MODEL, batch)
        seen += len(batch)
        positions = contents(buffer)
        assert buffer.n_seen == seen
        assert buffer.n_stored == len(positions) == min(size, seen)
        assert max(positions) < seen
        assert buffer.labels[: len(positions)].tolist() == [labels[p] for p in positions]
        assert buffer.tasks[: len(positions)].tolist() == [labels[p] // 2 for p in positions]


@every_memory
def test_the_first_samples_are_all_stored_in_their_order(memory):
    buffer = take_in(memory(8, 0), batches_of([0, 1, 0, 1, 0, 1], 4))
    assert contents(buffer) == [0, 1, 2, 3, 4, 5]
    assert buffer.images.shape == (8, *SHAPE) and buffer.images.dtype == torch.uint8


@every_memory
def test_a_seed_repeats_and_another_differs(memory):
    def final(seed):
        return contents(take_in(memory(6, seed), batches_of([0, 1] * 40, 10)))

    assert final(3) == final(3)
    assert len({tuple(sorted(final(seed))) for seed in range(8)}) > 1


# --- reservoir sampling ---


def test_a_reservoir_keeps_every_position_equally_likely():
    size, n, streams = 6, 27, 2000
    often = np.zeros(n, dtype=np.int64)
    batches = batches_of([0] * n, 9)  # A batch is larger than the memory.
    for seed in range(streams):
        often[contents(take_in(ReservoirBuffer(size, SHAPE, seed=seed), batches))] += 1
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


def test_the_sample_after_the_fill_always_enters_an_exclusive_reservoir_only():
    batches = batches_of([0] * 5, 1)
    entered = {
        inclusive: sum(
            4 in contents(take_in(ReservoirBuffer(4, SHAPE, seed=seed, inclusive=inclusive), batches))
            for seed in range(300)
        )
        for inclusive in (True, False)
    }
    assert entered[False] == 300
    assert stats.binomtest(entered[True], 300, 4 / 5).pvalue > 0.001


# --- class-balancing reservoir sampling ---


def counts_of(buffer):
    return Counter(buffer.labels[: buffer.n_stored].tolist())


@settings(max_examples=60, deadline=None)
@given(labels=st.lists(st.integers(0, 4), min_size=1, max_size=80), size=st.integers(1, 12), seed=st.integers(0, 99))
def test_every_step_of_class_balancing_is_one_that_the_algorithm_allows(labels, size, seed):
    buffer = ClassBalancedBuffer(size, SHAPE, seed=seed)
    once_largest = set()
    for place, batch in enumerate(batches_of(labels, 1)):
        before, n_of = set(contents(buffer)), counts_of(buffer)
        buffer.update(NO_MODEL, batch)
        after, label = set(contents(buffer)), labels[place]
        if place < size:
            assert after == before | {place}
            continue
        largest = {c for c, n in n_of.items() if n == max(n_of.values())}
        once_largest |= largest
        gone = {labels[p] for p in before - after}
        if label not in once_largest:
            assert place in after and len(gone) == 1 and gone <= largest
        else:
            assert after == before or (place in after and gone == {label})


@pytest.mark.parametrize("policy", [ReservoirBuffer, ClassBalancedBuffer])
@settings(max_examples=30, deadline=None)
@given(labels=st.lists(st.integers(0, 4), max_size=80), batch_size=st.integers(1, 17), seed=st.integers(0, 99))
def test_how_a_stream_is_cut_into_batches_makes_no_difference_to_a_random_memory(policy, labels, batch_size, seed):
    one_by_one = take_in(policy(9, SHAPE, seed=seed), batches_of(labels, 1))
    in_batches = take_in(policy(9, SHAPE, seed=seed), batches_of(labels, batch_size))
    assert contents(in_batches) == contents(one_by_one)
    assert in_batches.labels.tolist() == one_by_one.labels.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_an_imbalanced_stream_leaves_a_class_balanced_memory_balanced(seed):
    labels = np.random.default_rng(seed).permutation(np.repeat([0, 1, 2, 3], [400, 120, 60, 5]))
    buffer = take_in(ClassBalancedBuffer(40, SHAPE, seed=seed), batches_of(labels, 10))
    counts = counts_of(buffer)
    assert counts[3] == 5  # This class has fewer samples than its share, so all are kept.
    assert sorted(counts[c] for c in (0, 1, 2)) == [11, 12, 12]  # The others share the remaining 35.
    in_memory = set(contents(buffer))
    assert {place for place, label in enumerate(labels) if label == 3} <= in_memory


def test_classes_that_come_late_take_their_share_from_the_largest():
    labels = [0] * 50 + [1] * 50 + [2] * 50 + [3] * 2
    buffer = take_in(ClassBalancedBuffer(12, SHAPE, seed=1), batches_of(labels, 10))
    counts = counts_of(buffer)
    assert counts[3] == 2
    assert sorted(counts[c] for c in (0, 1, 2)) == [3, 3, 4]


def test_within_a_class_a_class_balanced_memory_keeps_every_position_equally_likely():
    streams = 1500
    labels = np.tile([0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0], 4)  # 40 of class 0, 8 of class 1
    batches = batches_of(labels, 6)
    often = np.zeros(len(labels), dtype=np.int64)
    kept = set()
    for seed in range(streams):
        buffer = take_in(ClassBalancedBuffer(8, SHAPE, seed=seed), batches)
        kept.add(tuple(sorted(counts_of(buffer).items())))
        often[buffer.positions.numpy()] += 1
    assert kept == {((0, 4), (1, 4))}
    for label in (0, 1):
        assert uniform(often[labels == label], streams, 4) > 0.001


# --- quotas ---


def poured(available, size):
    """Water-filling one by one: in each turn, each class that has more samples gets a slot, until none is left."""
    quota = dict.fromkeys(available, 0)
    while sum(quota.values()) < min(size, sum(available.values())):
        for label, n in available.items():
            if quota[label] < n and sum(quota.values()) < size:
                quota[label] += 1
    return quota


availabilities = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 30)), max_size=8, unique_by=lambda t: t[0]).map(
    dict
)


@settings(max_examples=300, deadline=None)
@given(available=availabilities, size=st.integers(0, 120))
def test_quotas_are_what_pouring_one_by_one_gives(available, size):
    # The last turn gives the remaining slots to the first classes of the mapping that still have more samples.
    assert quotas(available, size) == poured(available, size)
    assert list(quotas(available, size)) == list(available)


@settings(max_examples=300, deadline=None)
@given(available=availabilities, size=st.integers(0, 120))
def test_quotas_keep_the_memory_full_and_equal_among_those_that_have_more(available, size):
    quota = quotas(available, size)
    assert sum(quota.values()) == min(size, sum(available.values()))
    assert all(0 <= quota[c] <= n for c, n in available.items())
    cut = [quota[c] for c, n in available.items() if quota[c] < n]
    if cut:
        assert max(cut) - min(cut) <= 1
        # A class that keeps all its samples has at most one more than the smallest reduced class.
        assert max(quota.values()) <= min(cut) + 1


def test_what_does_not_divide_goes_to_the_classes_that_came_first():
    assert quotas({7: 9, 3: 9, 5: 9}, 11) == {7: 4, 3: 4, 5: 3}
    assert quotas({5: 9, 7: 9, 3: 9}, 10) == {5: 4, 7: 3, 3: 3}
    assert quotas({5: 1, 7: 9, 3: 9}, 10) == {5: 1, 7: 5, 3: 4}


# --- memory by uncertainty ---


class KnownScores:
    """Draws a different score for each position and moment once; records the positions it was asked to score."""

    def __init__(self, n_positions, seed, moving=True):
        self.table = np.random.default_rng(seed).permutation(n_positions * 400).reshape(n_positions, 400) / 1000
        self.moving = moving
        self.now = 0
        self.asked = []

    def of(self, position):
        return float(self.table[position, self.now if self.moving else 0])

    def __call__(self, model, candidates, positions, labels):
        self.asked, self.asked_classes = [spelt(images) for images in candidates], list(labels)
        assert [at.tolist() for at in positions] == self.asked
        return [torch.tensor([self.of(p) for p in group], dtype=torch.float64) for group in self.asked]


def chosen(rule, candidates, score_of, k):
    """Return the k candidates that a selection keeps, by brute force; of equal scores, the earliest is kept."""
    by_score = sorted(candidates, key=score_of)
    if rule == "top":
        by_score = sorted(candidates, key=score_of, reverse=True)
    if rule == "step" and k > 1 and len({score_of(c) for c in candidates}) == len(candidates):
        spaced = [Fraction(i * (len(by_score) - 1), k - 1) for i in range(k)]
        return [by_score[math.floor(place + Fraction(1, 2))] for place in spaced]
    return by_score[:k]


class BruteForce:
    """The rule of the paper's algorithm 1, class by class and sample by sample, over lists and dictionaries."""

    def __init__(self, size, rule):
        self.size, self.rule = size, rule
        self.members = {}  # Maps each class, in order of arrival, to its positions.
        self.score = {}  # Maps each position to its last score.

    def update(self, positions, labels, score_now, asked=None):
        """Update with a batch; `asked` has the positions scored now, if not all samples of its classes are scored."""
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
        quota = poured({c: len(held) + len(arrived.get(c, [])) for c, held in self.members.items()}, self.size)
        for label, held in self.members.items():
            candidates = held + arrived.get(label, [])
            if label in arrived:
                for position in candidates:
                    if asked is None or position in asked:
                        self.score[position] = score_now(position)
            elif quota[label] == len(held):
                continue
            self.members[label] = chosen(self.rule, candidates, lambda p: self.score.get(p, math.inf), quota[label])
            for position in set(candidates) - set(self.members[label]):
                self.score.pop(position, None)

    @property
    def positions(self):
        return {position for held in self.members.values() for position in held}


def play(rule, labels, size, batch_size, task_of, seed, refresh=1.0):
    """Run memory and brute force in parallel; yields (memory, brute force, scores, batch) after every batch."""
    scores = KnownScores(len(labels), seed)
    buffer = UncertaintyBuffer(size, SHAPE, "cpu", scores, SELECTIONS[rule], refresh)
    naive = BruteForce(size, rule)
    for scores.now, batch in enumerate(batches_of(labels, batch_size, task_of)):
        scores.asked = []
        buffer.update(NO_MODEL, batch)
        asked = None if refresh == 1 else set(itertools.chain(*scores.asked))
        naive.update(batch.positions.tolist(), batch.host_labels.tolist(), scores.of, asked)
        yield buffer, naive, scores, batch


def assert_alike(buffer, naive, labels, task_of):
    positions = contents(buffer)
    assert set(positions) == naive.positions
    assert buffer.labels[: len(positions)].tolist() == [labels[p] for p in positions]
    assert buffer.tasks[: len(positions)].tolist() == [task_of(labels[p]) for p in positions]
    reported = [None if math.isnan(score) else score for score in buffer.scores[: len(positions)].tolist()]
    assert reported == [naive.score.get(p) for p in positions]


def long_stream(seed):
    """Tasks of three imbalanced classes, so that quotas change and classes are absent from batches."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(5, 60, size=draw.integers(1, 4))
    return [int(3 * t + c) for t, n in enumerate(sizes) for c in draw.choice(3, size=n, p=[0.6, 0.3, 0.1])]


short_streams = st.lists(st.lists(st.integers(0, 2), max_size=8), min_size=1, max_size=3).map(
    lambda tasks: [3 * t + c for t, labels in enumerate(tasks) for c in labels]
)
uneven_streams = short_streams | st.integers(0, 10**6).map(long_stream)


def task_of_three(label):
    return label // 3


@pytest.mark.parametrize("rule", ["bottom", "step", "top"])
@settings(max_examples=60, deadline=None)
@given(labels=uneven_streams, size=st.integers(1, 20), batch_size=st.integers(1, 12), seed=st.integers(0, 999))
def test_a_memory_by_uncertainty_keeps_what_brute_force_keeps(rule, labels, size, batch_size, seed):
    seen = 0
    for buffer, naive, _, batch in play(rule, labels, size, batch_size, task_of_three, seed):
        seen += len(batch)
        assert buffer.n_stored == min(size, seen)
        assert_alike(buffer, naive, labels, task_of_three)


@pytest.mark.parametrize("rule", ["bottom", "step", "top"])
def test_with_scores_that_never_change_the_extremes_of_each_class_are_kept(rule):
    labels = np.random.default_rng(5).permutation(np.repeat([0, 1], 40)).tolist()
    scores = KnownScores(80, 3, moving=False)
    buffer = take_in(UncertaintyBuffer(10, SHAPE, "cpu", scores, SELECTIONS[rule]), batches_of(labels, 10))
    for label in (0, 1):
        of_class = sorted((p for p in range(80) if labels[p] == label), key=scores.of)
        kept = sorted((p for p in contents(buffer) if labels[p] == label), key=scores.of)
        assert len(kept) == 5
        if rule == "bottom":
            assert kept == of_class[:5]
        elif rule == "top":
            assert kept == of_class[-5:]
        else:  # Both ends are always kept.
            assert kept[0] == of_class[0] and kept[-1] == of_class[-1]


def test_only_the_classes_of_the_batch_are_scored_their_stored_samples_and_the_new_ones():
    scores = KnownScores(12, 0)
    buffer = UncertaintyBuffer(6, SHAPE, "cpu", scores, SELECTIONS["bottom"])
    buffer.update(NO_MODEL, batch_of(range(6), [0, 1, 0, 1, 0, 1]))
    assert scores.asked == []  # Nothing is scored while there is room.
    buffer.update(NO_MODEL, batch_of([6, 7, 8], [0, 0, 1]))
    assert [sorted(group) for group in scores.asked] == [[0, 2, 4, 6, 7], [1, 3, 5, 8]]
    assert scores.asked_classes == [0, 1]
    buffer.update(NO_MODEL, batch_of([9, 10, 11], [2, 2, 2]))
    assert [sorted(group) for group in scores.asked] == [[9, 10, 11]]
    assert scores.asked_classes == [2]
    assert Counter(buffer.labels.tolist()) == {0: 2, 1: 2, 2: 2}


@pytest.mark.parametrize("seed", range(20))
def test_of_a_batch_that_only_partly_fits_the_rest_competes_with_what_is_stored(seed):
    scores = KnownScores(10, seed)
    buffer = UncertaintyBuffer(4, SHAPE, "cpu", scores, SELECTIONS["bottom"])
    buffer.update(NO_MODEL, batch_of(range(10), [0] * 7 + [1] * 3))
    best = sorted(range(7), key=scores.of)[:2] + sorted(range(7, 10), key=scores.of)[:2]
    assert sorted(contents(buffer)) == sorted(best)
    assert buffer.n_seen == 10


@pytest.mark.parametrize("rule", ["bottom", "step", "top"])
def test_a_class_absent_from_the_batch_gives_up_its_worst_by_the_scores_it_has(rule):
    scores = KnownScores(10, 4)
    buffer = UncertaintyBuffer(6, SHAPE, "cpu", scores, SELECTIONS[rule])
    buffer.update(NO_MODEL, batch_of(range(6), [0, 1, 0, 1, 0, 1]))
    scores.now = 1
    buffer.update(NO_MODEL, batch_of([6, 7], [0, 1]))
    order_of = {}
    for label in (0, 1):
        held = [p for p, c in zip(contents(buffer), buffer.labels.tolist(), strict=True) if c == label]
        order_of[label] = sorted(held, key=scores.of)
        assert len(held) == 3
    scores.now = 2  # All scores differ from here on, but classes 0 and 1 are not rescored.
    buffer.update(NO_MODEL, batch_of([8, 9], [2, 2], task=1))
    leaves = {"bottom": 2, "step": 1, "top": 0}[rule]  # These are the ranks by uncertainty.
    expected = {8, 9}
    for order in order_of.values():
        expected |= set(order) - {order[leaves]}
    assert set(contents(buffer)) == expected
    assert buffer.tasks.tolist() == [int(label == 2) for label in buffer.labels]


@pytest.mark.parametrize("rule", ["bottom", "step", "top"])
def test_a_class_that_was_never_scored_gives_up_its_latest_samples(rule):
    buffer = UncertaintyBuffer(9, SHAPE, "cpu", KnownScores(15, 1), SELECTIONS[rule])
    buffer.update(NO_MODEL, batch_of(range(9), [0] * 9))
    buffer.update(NO_MODEL, batch_of([9, 10], [1, 1], task=1))
    assert sorted(contents(buffer)) == [0, 1, 2, 3, 4, 5, 6, 9, 10]
    buffer.update(NO_MODEL, batch_of([11, 12, 13, 14], [2] * 4, task=2))
    assert [p for p in sorted(contents(buffer)) if p <= 10] == [0, 1, 2, 3, 9, 10]


@pytest.mark.parametrize("smoothing", [1.0, 0.25])
@pytest.mark.parametrize("refresh", [1.0, 2])
def test_a_stored_sample_keeps_a_running_mean_of_its_scores(smoothing, refresh):
    """Compute the means by hand for one class; a sample that was not scored before takes its new score unchanged."""
    scores = KnownScores(80, seed=2)
    memory = UncertaintyBuffer(5, SHAPE, "cpu", scores, SELECTIONS["bottom"], refresh, smoothing)
    by_hand = {}
    for scores.now, start in enumerate(range(0, 80, 4)):
        before = memory.positions.tolist()[: memory.n_stored]
        memory.update(NO_MODEL, batch_of(range(start, start + 4), [0] * 4))
        if start + 4 <= 5:
            continue
        for position in scores.asked[0]:
            new = scores.of(position)
            known = by_hand.get(position) if position in before else None
            by_hand[position] = new if known is None else (1 - smoothing) * known + smoothing * new
        candidates = {*before, *range(start, start + 4)}
        kept = sorted(candidates, key=by_hand.get)[:5]
        assert sorted(memory.positions.tolist()) == sorted(kept)
        for position, score in zip(memory.positions.tolist(), memory.scores.tolist(), strict=True):
            assert score == pytest.approx(by_hand[position], rel=1e-12)


@pytest.mark.parametrize("wrong", [dict(refresh=0), dict(refresh=-1), dict(smoothing=0), dict(smoothing=1.5)], ids=str)
def test_a_memory_refuses_a_refresh_or_smoothing_out_of_range_in_one_line(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(InputError, match=rf"^{name}={value}: give a number in \(0, "):
        UncertaintyBuffer(5, SHAPE, "cpu", RandomScores(0), SELECTIONS["bottom"], **wrong)


def test_a_sample_that_was_never_scored_has_no_score():
    buffer = UncertaintyBuffer(9, SHAPE, "cpu", KnownScores(15, 1), SELECTIONS["bottom"])
    buffer.update(NO_MODEL, batch_of(range(9), [0] * 9))
    for late in ([9, 10], [11, 12], [13, 14]):  # Class 0 gives up samples repeatedly, and is never scored.
        buffer.update(NO_MODEL, batch_of(late, [late[0], late[0]], task=late[0]))
        assert torch.isnan(buffer.scores[buffer.labels == 0]).all()
        assert torch.isfinite(buffer.scores[buffer.labels != 0]).all()


def test_a_memory_smaller_than_the_classes_leaves_the_last_ones_out():
    buffer = take_in(
        UncertaintyBuffer(2, SHAPE, "cpu", KnownScores(9, 1), SELECTIONS["bottom"]), batches_of([0, 1, 2] * 3, 3)
    )
    assert sorted(buffer.labels.tolist()) == [0, 1]
    assert len(contents(buffer)) == 2


@settings(max_examples=60, deadline=None)
@given(
    rule=st.sampled_from(["bottom", "step", "top"]),
    refresh=st.sampled_from([0.05, 0.25, 0.5, 0.8, 2, 5]),
    labels=uneven_streams,
    size=st.integers(1, 20),
    batch_size=st.integers(1, 12),
    seed=st.integers(0, 999),
)
def test_a_partial_refresh_scores_the_oldest_scores_of_a_class_and_always_the_batch(
    rule, refresh, labels, size, batch_size, seed
):
    scored_at = {}  # Maps each stored position to the time of its score.
    held = set()
    for buffer, naive, scores, batch in play(rule, labels, size, batch_size, task_of_three, seed, refresh):
        arrived = batch.positions.tolist()
        stored_now = held | set(arrived[: max(0, size - len(held))])
        for group in scores.asked:
            label = labels[group[0]]
            of_class = [p for p in stored_now if labels[p] == label]
            rescored = [p for p in group if p in stored_now]
            assert set(group) - set(rescored) == {p for p in arrived if labels[p] == label} - stored_now
            if all(p not in scored_at for p in of_class):  # A class without scores is scored completely.
                assert sorted(rescored) == sorted(of_class)
            else:
                n = math.ceil(Fraction(str(refresh)) * len(of_class)) if refresh <= 1 else refresh
                assert len(rescored) == min(n, len(of_class))
                spared = set(of_class) - set(rescored)
                assert max((scored_at[p] for p in rescored), default=-1) <= min(
                    (scored_at[p] for p in spared), default=999
                )
            scored_at.update(dict.fromkeys(group, scores.now))
        assert_alike(buffer, naive, labels, task_of_three)
        held = set(contents(buffer))
        scored_at = {p: when for p, when in scored_at.items() if p in held}


def test_a_full_refresh_is_the_plain_rule_however_it_is_asked_for():
    labels = np.random.default_rng(2).permutation(np.repeat([0, 1, 2], 30)).tolist()
    finals = []
    for refresh in (1.0, 1000):
        *_, (buffer, _, _, _) = play("bottom", labels, 12, 10, lambda label: 0, 7, refresh)
        finals.append((contents(buffer), buffer.scores.tolist()))
    assert finals[0] == finals[1]


@pytest.mark.parametrize(
    ("refresh", "stored", "expected"),
    [
        (0.5, 20, 10),
        (0.3, 10, 3),
        (0.31, 10, 4),
        (0.01, 10, 1),
        (0.07, 100, 7),
        (0.55, 100, 55),
        (2, 10, 2),
        (30, 10, 10),
    ],
)
def test_a_refresh_scores_the_stated_share_rounded_up_or_the_stated_number_and_of_equal_ages_the_first(
    refresh, stored, expected
):
    scores = KnownScores(stored + 2, 0)
    buffer = UncertaintyBuffer(stored, SHAPE, "cpu", scores, SELECTIONS["bottom"], refresh)
    buffer.update(NO_MODEL, batch_of(range(stored), [0] * stored))
    buffer.update(NO_MODEL, batch_of([stored], [0]))
    assert len(scores.asked[0]) == stored + 1  # The first time, all samples are scored.
    in_order = buffer.positions.tolist()
    buffer.update(NO_MODEL, batch_of([stored + 1], [0]))
    assert scores.asked[0] == [*in_order[:expected], stored + 1]


@pytest.mark.parametrize("shape", [(3, 2, 1), (2, 2, 2), (3, 32, 32), (1, 27, 25)], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_an_image_moves_whole_whatever_its_shape(shape, layout):
    stream = torch.randint(0, 256, (60, *shape), dtype=torch.uint8).contiguous(memory_format=layout)
    buffer = UncertaintyBuffer(9, shape, "cpu", RandomScores(0), SELECTIONS["bottom"])
    for start in range(0, 60, 5):
        labels, positions = np.arange(5) % 3, torch.arange(start, start + 5)
        buffer.update(NO_MODEL, Batch(stream[positions], torch.from_numpy(labels), labels, positions, 0))
    assert buffer.positions.max() >= 9 and torch.equal(buffer.images, stream[buffer.positions])


def test_random_scores_redraw_memory_and_batch_alike():
    # At the last update of a stream, all stored and new samples are equally likely to stay.
    streams, often = 1500, np.zeros(10, dtype=np.int64)
    batches = batches_of([0] * 10, 5)
    for seed in range(streams):
        buffer = UncertaintyBuffer(5, SHAPE, "cpu", RandomScores(seed), SELECTIONS["bottom"])
        often[take_in(buffer, batches).positions.numpy()] += 1
    assert uniform(often, streams, 5) > 0.001


# --- replay ---


@settings(max_examples=60, deadline=None)
@given(labels=class_incremental.filter(len), n=st.integers(1, 12), size=st.integers(1, 20), seed=st.integers(0, 99))
def test_replay_draws_distinct_images_of_other_tasks_with_their_labels(labels, n, size, seed):
    buffer = take_in(ReservoirBuffer(size, SHAPE, seed=seed), batches_of(labels, 5, lambda label: label // 2))
    draw = np.random.default_rng(seed)
    for task in range(4):
        eligible = [p for p in contents(buffer) if labels[p] // 2 != task]
        sample = buffer.sample(n, task, draw)
        if not eligible:
            assert sample is None
            continue
        drawn = spelt(sample[0])
        assert len(drawn) == len(set(drawn)) == min(n, len(eligible))
        assert set(drawn) <= set(eligible)
        assert sample[1].tolist() == [labels[p] for p in drawn]
        assert sample[1].dtype == torch.int64


def test_replay_from_an_empty_memory_is_none():
    assert ReservoirBuffer(5, SHAPE).sample(3, 0, np.random.default_rng(0)) is None


def test_replay_draws_every_eligible_image_equally_often():
    buffer = take_in(ReservoirBuffer(15, SHAPE), batches_of([0] * 6 + [2] * 4 + [4] * 5, 5, lambda label: label // 2))
    draw, times, often = np.random.default_rng(0), 3000, Counter()
    for _ in range(times):
        often.update(spelt(buffer.sample(4, 1, draw)[0]))
    assert sorted(often) == [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14]
    assert uniform([often[p] for p in sorted(often)], times, 4) > 0.001


def test_drawing_a_replay_changes_nothing_in_memory():
    buffer = take_in(ReservoirBuffer(6, SHAPE), batches_of([0] * 10, 5))
    before = buffer.images.clone()
    images, _ = buffer.sample(6, 1, np.random.default_rng(0))
    images.zero_()
    assert torch.equal(buffer.images, before)


# --- streams without task numbers, whose classes recur, with many classes per batch ---

recurring = st.lists(st.integers(0, 5), min_size=1, max_size=80)


def without_a_task(_label):
    return None


@every_memory
@settings(max_examples=40, deadline=None)
@given(labels=recurring, size=st.integers(1, 12), batch_size=st.integers(1, 20), seed=st.integers(0, 99))
def test_a_memory_stays_full_where_classes_recur_and_replays_all_it_has(memory, labels, size, batch_size, seed):
    buffer, seen, draw = memory(size, seed), 0, np.random.default_rng(seed)
    for batch in batches_of(labels, batch_size, without_a_task):
        buffer.update(NO_MODEL, batch)
        seen += len(batch)
        positions = contents(buffer)
        assert len(positions) == min(size, seen) and max(positions) < seen
        assert buffer.labels[: len(positions)].tolist() == [labels[p] for p in positions]
        assert (buffer.tasks == -1).all()
        images, drawn = buffer.sample(size + 1, batch.task, draw)
        assert sorted(spelt(images)) == sorted(positions)
        assert drawn.tolist() == [labels[p] for p in spelt(images)]


@pytest.mark.parametrize("rule", SELECTIONS)
@settings(max_examples=25, deadline=None)
@given(labels=recurring, size=st.integers(1, 12), batch_size=st.integers(1, 20), seed=st.integers(0, 99))
def test_uncertain_memories_keep_what_brute_force_keeps_where_classes_recur(rule, labels, size, batch_size, seed):
    for buffer, naive, _, _ in play(rule, labels, size, batch_size, without_a_task, seed):
        assert set(contents(buffer)) == naive.positions


@pytest.mark.parametrize("name", ["class-balanced", "redrawn"])
@pytest.mark.parametrize("batch_size", [1, 7, 20])
def test_balanced_memories_are_balanced_at_the_end_of_a_blurry_stream(name, batch_size):
    """Class 0 has most of the stream, and the last class comes late; each class has its share of the memory."""
    draw = np.random.default_rng(0)
    labels = [*draw.choice(4, 300, p=[0.7, 0.1, 0.1, 0.1]), *draw.choice(5, 100, p=[0.5, 0.1, 0.1, 0.1, 0.2])]
    buffer = take_in(MEMORIES[name](20, 3), batches_of([int(c) for c in labels], batch_size, without_a_task))
    counts = np.bincount(buffer.labels, minlength=5)
    assert counts.sum() == 20 and counts.max() - counts.min() <= (1 if name == "redrawn" else 2)


@pytest.mark.parametrize("memory", [MEMORIES["reservoir"], MEMORIES["redrawn"]])
def test_replay_without_a_task_number_draws_every_stored_image_equally_often(memory):
    buffer = take_in(memory(15, 1), batches_of([0, 1, 2] * 20, 6, without_a_task))
    draw, times, often = np.random.default_rng(0), 3000, Counter()
    for _ in range(times):
        often.update(spelt(buffer.sample(4, None, draw)[0]))
    assert sorted(often) == sorted(contents(buffer))
    assert uniform([often[p] for p in sorted(often)], times, 4) > 0.001
