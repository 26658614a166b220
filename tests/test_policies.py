"""Memory policies of the literature: what they keep, compared with their rules written out in plain Python."""

import copy
import dataclasses
import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from conftest import unchanged
from hypothesis import given, settings
from hypothesis import strategies as st
from own_objects import batch_normed
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize
from test_buffers import SHAPE as ONE_PIXEL
from test_buffers import batches_of, contents, positions_in, take_in
from torchvision.transforms.v2 import functional as tv

from ucl import Config, catalogue
from ucl.assembly import build_memory
from ucl.buffers import (
    CoresetBuffer,
    GSSGreedyBuffer,
    LossAwareBuffer,
    RainbowBuffer,
    gss,
    homogeneous,
    loss_aware,
    rainbow,
)
from ucl.buffers.coreset import TAU, coreset_measure, last_layer_gradients
from ucl.buffers.herding import herding
from ucl.buffers.task_end import TaskEndBuffer
from ucl.models import OwnNetwork
from ucl.models.passes import features_of
from ucl.streams import Batch, Task

SIDE, N_CLASSES = 8, 5
SHAPE = 3, SIDE, SIDE
IMAGES = np.random.default_rng(0).integers(0, 256, (200, SIDE, SIDE, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    network = OwnNetwork(batch_normed(N_CLASSES, 3, SIDE), "mine:net", N_CLASSES, 3, SIDE, (0.5,) * 3, (0.25,) * 3)
    with torch.no_grad():
        network(torch.from_numpy(IMAGES).permute(0, 3, 1, 2))  # changes the initial BatchNorm statistics
    return network


def images_at(positions):
    return torch.from_numpy(IMAGES[np.asarray(positions)]).permute(0, 3, 1, 2)


def stream(n_tasks=3, n_batches=4, size=8, seed=1):
    """Tasks of two classes each and their batches; the last images of a task are in no batch."""
    draw, tasks = np.random.default_rng(seed), []
    for number in range(n_tasks):
        positions = np.arange(number * 40, number * 40 + n_batches * size + 3)
        labels = np.minimum(2 * number + draw.integers(0, 2, len(positions)), N_CLASSES - 1)
        images, at = images_at(positions), torch.from_numpy(positions)
        nothing = torch.zeros(0, 3, SIDE, SIDE), torch.zeros(0), np.zeros(0)
        classes = tuple(sorted(set(labels.tolist())))
        tasks.append(Task(number, classes, images, torch.from_numpy(labels), labels, at, *nothing, size))
    return tasks


def updates(model, tasks):
    """The updates of a memory in a stream, as functions of the memory; the samples have their positions as a value."""
    for task in tasks:
        for batch in task:
            batch.values["position"] = batch.positions.clone()
            yield lambda buffer, batch=batch: buffer.update(model, batch)
        yield lambda buffer, task=task: buffer.end_of_task(model, task)


def learn(buffer, model, tasks):
    for update in updates(model, tasks):
        update(buffer)
    return buffer


POLICIES = {name: dict(population=name) for name in catalogue.POLICIES} | {
    "exclusive": dict(population="reservoir", reservoir_index="exclusive"),
    "redraw": dict(population="class-balanced", class_balancing="redraw"),
    "EN, refresh=2": dict(score="EN", refresh=2, selection="step"),
    "fixed views": dict(view_draws="fixed"),
    **{name: dict(population=f"own_objects:{name}") for name in ("Fifo", "Hardest")},
}


def memory_of(policy, size):
    return build_memory(Config(**POLICIES[policy]), size, SHAPE)


# --- what all of them do ---


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("size", [5, 50, 500])
def test_a_policy_stores_images_of_the_stream_with_all_that_belongs_to_them(policy, size, model):
    """The first batch is larger than the smallest memory, which also has fewer slots than the stream has images."""
    tasks, buffer = stream(), memory_of(policy, size)
    with unchanged(model):
        learn(buffer, model, tasks)
    n = buffer.n_stored
    positions = buffer.positions[:n].tolist()
    seen = {}
    for task in tasks:
        seen |= {p: (label, task.number) for b in task for p, label in zip(b.positions.tolist(), b.labels.tolist())}
    assert buffer.n_seen == len(seen) == 96 and n == len(set(positions)) == min(size, 96)
    assert buffer.values["position"][:n].tolist() == positions
    assert torch.equal(buffer.images[:n], images_at(positions)) and buffer.images.shape == (size, *SHAPE)
    assert list(zip(buffer.labels[:n].tolist(), buffer.tasks[:n].tolist())) == [seen[p] for p in positions]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_seed_repeats_and_a_restored_policy_goes_on_as_if_it_had_never_stopped(policy, model, tmp_path):
    whole, first, second = learn(memory_of(policy, 12), model, stream()), memory_of(policy, 12), memory_of(policy, 12)
    in_order = list(updates(model, stream()))
    for update in in_order[:7]:  # a task with its end, and two batches
        update(first)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for update in in_order[7:]:
        update(second)
    assert second.labels.tolist() == whole.labels.tolist() and second.tasks.tolist() == whole.tasks.tolist()
    ours, expected = ((b.positions, b.images, b.scores, b.values) for b in (second, whole))
    torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("policy", [name for name, row in catalogue.POLICIES.items() if row.has_quotas])
def test_classes_have_equal_shares(policy, model):
    buffer = learn(memory_of(policy, 12), model, stream(n_tasks=2))
    assert Counter(buffer.labels.tolist()) == dict.fromkeys(range(4), 3)


# --- loss-aware reservoir ---


@given(losses=st.lists(st.floats(0, 100), min_size=1, max_size=12))
def test_slots_leave_in_proportion_to_the_distance_of_their_loss_from_the_largest(losses):
    probabilities = loss_aware.leaving_probabilities(np.array(losses))
    total = sum(max(losses) - loss for loss in losses)
    expected = [(max(losses) - loss) / total if total else 1 / len(losses) for loss in losses]
    assert probabilities == pytest.approx(expected) and sum(probabilities) == pytest.approx(1)
    for flaw in (math.nan, math.inf):  # Without finite losses, all slots are equally likely.
        assert loss_aware.leaving_probabilities(np.array([*losses, flaw])) == pytest.approx(1 / (len(losses) + 1))


def naive_lars(losses, size, batch_size, seed):
    """The rule, sample by sample, with the draws of a batch at its start; losses never change."""
    draw, memory = np.random.default_rng(seed), []
    for start in range(0, len(losses), batch_size):
        batch = list(range(start, min(start + batch_size, len(losses))))
        n_stored = min(size - len(memory), len(batch))
        memory += batch[:n_stored]
        uniforms = draw.random(len(batch) - n_stored)
        for position, u in zip(batch[n_stored:], uniforms, strict=True):
            if u < size / (position + 1):
                below = [max(losses[p] for p in memory) - losses[p] for p in memory]
                shares = [b / sum(below) for b in below]
                memory[draw.choice(size, p=shares)] = position
    return memory


@pytest.mark.parametrize("batch_size", [1, 7])
def test_it_is_the_rule_applied_sample_by_sample(monkeypatch, batch_size):
    losses = torch.rand(40, generator=torch.Generator().manual_seed(5))
    monkeypatch.setattr(loss_aware, "losses_of", lambda model, images, labels: losses[positions_in(images)])
    for seed in range(10):
        buffer = take_in(LossAwareBuffer(6, ONE_PIXEL, seed=seed), batches_of([0] * 40, batch_size))
        assert contents(buffer) == naive_lars(losses.tolist(), 6, batch_size, seed)


def test_losses_are_renewed_when_samples_are_replayed_and_only_then(model):
    buffer = LossAwareBuffer(30, SHAPE, seed=1)
    first, second, third = next(iter(stream(1, 3)))
    buffer.update(model, first)
    buffer.values["loss"][:] = -1.0
    slots = buffer.drawn_slots(3, None, np.random.default_rng(0))
    buffer.update(model, second)
    model.eval()
    with torch.no_grad():
        log_p_NC = model(buffer.images[:16]).double().log_softmax(1)
    model.train()
    expected = [-log_p_NC[i, buffer.labels[i]].item() if i in slots or i >= 8 else -1.0 for i in range(16)]
    assert buffer.values["loss"][:16].tolist() == pytest.approx(expected, rel=1e-4)
    buffer.values["loss"][:] = -1.0
    buffer.update(model, third)  # without a draw in between
    assert (buffer.values["loss"][:16] == -1).all() and (buffer.values["loss"][16:24] >= 0).all()


# --- herding and closest to the mean ---


def naive_herding(features):
    """iCaRL's algorithm 4: the order in which samples are picked."""
    unit, order = normalize(features), []
    mean = normalize([unit.mean(0)])
    for _ in unit:
        left = [i for i in range(len(unit)) if i not in order]
        order.append(min(left, key=lambda i: np.linalg.norm(mean - normalize([unit[[*order, i]].mean(0)]))))
    return order


@settings(max_examples=40, deadline=None)
@given(n=st.integers(3, 9), d=st.integers(2, 5), seed=st.integers(0, 99))  # n = 2 is always a tie
def test_herding_picks_in_the_order_of_icarls_algorithm(n, d, seed):
    features = torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert herding(features).argsort().tolist() == naive_herding(features.tolist())


@pytest.mark.parametrize(("policy", "naive"), [
    ("herding", naive_herding),
    ("closest-to-mean", lambda f: np.linalg.norm(np.array(f) - np.mean(f, 0), axis=1).argsort(kind="stable").tolist()),
])  # fmt: skip
def test_a_class_keeps_the_best_of_its_stored_samples_and_the_batch(policy, naive, model):
    buffer = memory_of(policy, 6)
    kept = []
    for start in range(0, 40, 5):
        positions, labels = np.arange(start, start + 5), np.zeros(5, dtype=np.int64)
        batch = Batch(images_at(positions), torch.from_numpy(labels), labels, torch.from_numpy(positions), 0)
        buffer.update(model, batch)
        kept += positions.tolist()
        if len(kept) > 6:
            features = features_of(model, images_at(kept)).double().tolist()
            kept = [kept[i] for i in naive(features)[:6]]
        assert buffer.positions[: len(kept)].tolist() == kept or set(buffer.positions.tolist()) == set(kept)


# --- GSS-greedy ---


def naive_gradient(model, images, labels):
    """Gradient of the mean of -log p, weight by weight, flat, in float64."""
    model.eval()
    log_p_NC = model(images).log_softmax(1)
    loss = -log_p_NC[torch.arange(len(labels)), torch.as_tensor(labels)].mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    model.train()
    return torch.cat([g.flatten() for g in gradients]).double()


def naive_cosine(a, b):
    return torch.cosine_similarity(a, b, 0).item()


def naive_gss(model, batches, size, seed):
    """Algorithm 2 with the authors' scaling, in lists: positions and similarities of the memory."""
    draw, memory = np.random.default_rng(seed), []  # of (position, label, similarity)

    def references():
        n = min(10, len(memory))
        order = draw.permutation(len(memory))[: 10 * n]
        groups = [[memory[j] for j in order[i : i + n]] for i in range(0, len(order) - n + 1, n)]
        return [naive_gradient(model, images_at([m[0] for m in group]), [m[1] for m in group]) for group in groups]

    def similarity(images, labels, gradients):
        gradient = naive_gradient(model, images, labels)
        return max(naive_cosine(gradient, reference) for reference in gradients)

    fired = 0
    for batch in batches:
        positions, labels = batch.positions.tolist(), batch.labels.tolist()
        if len(memory) < size:
            memory_gradients = references() if memory else []
            for p, label in list(zip(positions, labels))[: size - len(memory)]:
                s = similarity(images_at([p]), [label], memory_gradients) if memory_gradients else 0.1
                memory.append((p, label, s))
            continue
        memory_gradients = references()
        if similarity(images_at(positions), labels, memory_gradients) >= 0:
            continue
        fired += 1
        old = np.array([s for _, _, s in memory])
        weights = (old - old.min()) / (old.max() - old.min() + 0.01)
        drawable = np.flatnonzero(weights > 0)
        n = min(len(batch), size)
        slots = draw.choice(drawable, n, replace=False, p=weights[drawable] / weights.sum())
        draw.choice(np.flatnonzero(weights <= 0), 0, replace=False)
        new = [similarity(images_at([p]), [label], memory_gradients) for p, label in zip(positions[:n], labels)]
        for slot, s, p, label, u in zip(slots, new, positions, labels, draw.random(n)):
            leaves, enters = (memory[slot][2] + 1) / 2, (s + 1) / 2
            if u < leaves / (leaves + enters):
                memory[slot] = (p, label, s)
    return memory, fired


def test_gss_is_the_authors_algorithm(model):
    batches = [batch for task in stream(n_batches=4) for batch in task]
    buffer = GSSGreedyBuffer(20, SHAPE, seed=4)
    for batch in batches:
        buffer.update(model, batch)
    memory, fired = naive_gss(model, batches, 20, 4)
    assert fired
    assert buffer.positions.tolist() == [p for p, _, _ in memory]
    assert buffer.values["similarity"].tolist() == pytest.approx([s for _, _, s in memory], abs=1e-4)


@given(weights=st.lists(st.sampled_from([0.0, 0.1, 0.5]), min_size=1, max_size=9), data=st.data())
def test_slots_are_drawn_once_each_and_those_without_weight_last(weights, data):
    n = data.draw(st.integers(0, len(weights)))
    drawn = gss.drawn_by_weight(np.array(weights), n, np.random.default_rng(0)).tolist()
    assert len(set(drawn)) == len(drawn) == n
    n_drawable = sum(w > 0 for w in weights)
    assert all(weights[i] > 0 for i in drawn[:n_drawable])


# --- at a task's end ---


@pytest.mark.parametrize("policy", [p for p in POLICIES if isinstance(memory_of(p, 9), TaskEndBuffer)])
@pytest.mark.parametrize("numbered", [True, False])
def test_memories_filled_at_a_tasks_end_have_nothing_of_the_current_task(policy, numbered, model):
    buffer, (task,) = memory_of(policy, 12), stream(1)
    task = dataclasses.replace(task, numbered=numbered)
    for batch in task:
        buffer.update(model, batch)
    assert buffer.n_stored == 0 and buffer.n_seen == 32
    buffer.end_of_task(model, task)
    assert buffer.n_stored == 12 and set(buffer.tasks.tolist()) == {0 if numbered else -1}


@pytest.mark.parametrize("numbered", [True, False])
def test_a_task_that_is_left_before_its_end_leaves_nothing_to_the_next(numbered, model):
    left, task = (dataclasses.replace(task, numbered=numbered) for task in stream(2))
    buffer, expected = memory_of("icarl", 60), memory_of("icarl", 60)
    next(updates(model, [left]))(buffer)
    for memory in (buffer, expected):
        learn(memory, model, [task])
    assert buffer.n_stored == 32 and torch.equal(buffer.positions, expected.positions)
    assert torch.equal(buffer.values["position"], buffer.positions.clamp_min(0))


def test_a_task_that_is_ended_early_gives_only_what_was_learnt_of_it(model):
    (left, task), buffer = stream(2), memory_of("icarl", 60)
    learnt = list(itertools.islice(task, 2))
    for batch in (*itertools.islice(left, 3), *learnt):
        buffer.update(model, batch)
    buffer.end_of_task(model, task)
    stored = buffer.positions[: buffer.n_stored].tolist()
    assert sorted(stored) == sorted(position for batch in learnt for position in batch.positions.tolist())


def icarl_order(features, labels, draw):
    rows = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    return np.concatenate([of_class[naive_herding(features[of_class].double())] for of_class in rows])


def naive_homogeneity_order(features, labels, draw):
    """The order in which samples are kept; those rejected come last."""
    neighbours = homogeneous.nearest(features, 20).tolist()
    share = [sum(labels[j] == labels[i] for j in near[:5]) / len(near[:5]) for i, near in enumerate(neighbours)]
    kept, rejected, order = [], set(), sorted(range(len(labels)), key=lambda i: -share[i])
    for i in order:
        if i in rejected:
            continue
        kept.append(i)
        for j, u in zip(neighbours[i], draw.random(len(neighbours[i])).tolist()):
            if labels[j] == labels[i] and u < 0.6:
                rejected.add(j)
    return kept + [i for i in order if i not in kept]


@pytest.mark.parametrize(("policy", "order_of"), [("icarl", icarl_order), ("homogeneous", naive_homogeneity_order)])
@pytest.mark.parametrize("size", [4, 9, 32])
def test_a_class_keeps_its_first_images_in_the_order_of_its_task(policy, order_of, size, model):
    """Five classes in three tasks, so that quotas shrink twice; the network does not change, nor do the orders.

    In the largest memory, homogeneity also keeps images that were rejected.
    """
    buffer, orders = memory_of(policy, size), {}
    draw = copy.deepcopy(buffer.draw)
    for task in stream():
        learn(buffer, model, [task])
        positions, labels = task.positions[:32].numpy(), task.host_labels[:32]
        order = order_of(features_of(model, images_at(positions)), labels, draw)
        orders |= {c: positions[[i for i in order if labels[i] == c]].tolist() for c in set(labels.tolist())}
        kept = {c: set(buffer.positions[torch.from_numpy(buffer.labels == c)].tolist()) for c in orders}
        assert kept == {c: set(orders[c][: len(k)]) for c, k in kept.items()} and sum(map(len, kept.values())) == size


@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 15), seed=st.integers(0, 99), k=st.integers(1, 20))
def test_neighbours_are_the_others_with_the_largest_cosines(n, seed, k):
    features = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(homogeneous, "CHUNK", 4)  # so that a few samples need several parts
        exact = NearestNeighbors(n_neighbors=min(k, n - 1), metric="cosine").fit(features.numpy())
        assert homogeneous.nearest(features, k).tolist() == exact.kneighbors(return_distance=False).tolist()


def test_rainbow_keeps_even_steps_of_the_uncertainty(model):
    buffer, task = RainbowBuffer(6, SHAPE, seed=3), stream(1)[0]
    scores, original = [], buffer.candidate_scores
    buffer.candidate_scores = lambda *given: scores.append(original(*given)) or scores[-1]
    learn(buffer, model, [task])
    labels = task.host_labels[:32]
    kept = []
    for label in dict.fromkeys(labels.tolist()):
        at = np.flatnonzero(labels == label)
        order = at[np.argsort(scores[0].numpy()[at], kind="stable")]
        kept += order[:: len(at) // 3][:3].tolist()
    assert sorted(buffer.positions.tolist()) == sorted(task.positions[kept].tolist())
    assert {round(12 * s, 6) for s in scores[0].tolist()} <= set(range(12))  # shares of 12 votes


@pytest.mark.parametrize("side", [32, 28])
@pytest.mark.parametrize("channels", [1, 3])
def test_rainbow_views_are_those_of_torchvision(side, channels):
    draw = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (6, channels, side, side), generator=draw, dtype=torch.uint8)
    uniforms, fill = torch.rand(6, rainbow.N_UNIFORMS, generator=draw), torch.full((channels,), 0.4)
    views = rainbow.rainbow_views(images / 255, uniforms, fill)
    assert views.shape == (12, *images.shape)
    for i, (image, u) in enumerate(zip(images, uniforms.double().tolist(), strict=True)):
        for v, pixels in enumerate((8, 16, 24, 32)):
            half = pixels * side // 32 // 2
            y, x = (int(x * side) for x in u[2 * v : 2 * v + 2])
            hole = (image / 255).clone()
            hole[:, max(0, y - half) : y + half, max(0, x - half) : x + half] = 0.4
            torch.testing.assert_close(views[v, i], hole)
        for v, flip in ((4, tv.horizontal_flip), (5, tv.vertical_flip)):
            assert torch.equal(views[v, i], (flip(image) if u[8 + v - 4] < 0.5 else image) / 255)
        for v, degrees in ((6, 45), (7, 90)):
            turned = tv.rotate(image, (2 * u[10 + v - 6] - 1) * degrees) / 255
            assert (views[v, i] != turned).double().mean() < 0.01  # rounding of positions between two pixels
        torch.testing.assert_close(views[8, i], tv.invert(image) / 255)
        for v, threshold in ((9, 128), (10, 64), (11, 32)):
            torch.testing.assert_close(views[v, i], tv.solarize(image, threshold) / 255)


# --- OCS ---


def head_gradients(model, positions, labels):
    """For each image the gradient of -log p for the last layer's weights and bias, flat."""
    n = sum(weight.numel() for weight in list(model.parameters())[-2:])
    return [naive_gradient(model, images_at([p]), [label])[-n:] for p, label in zip(positions, labels, strict=True)]


def test_the_measure_of_ocs_is_that_of_the_gradients_of_the_last_layer(model):
    positions, labels = list(range(8)), [0, 1] * 4
    earlier, earlier_labels = list(range(50, 60)), [2, 3] * 5
    candidates = last_layer_gradients(model, images_at(positions), torch.tensor(labels))
    reference = last_layer_gradients(model, images_at(earlier), torch.tensor(earlier_labels))
    g = head_gradients(model, positions, labels)
    mean, memory = torch.stack(g).mean(0), torch.stack(head_gradients(model, earlier, earlier_labels)).mean(0)
    without = [naive_cosine(a, mean) - sum(naive_cosine(a, b) for b in g) / len(g) for a in g]
    assert coreset_measure(candidates, None).tolist() == pytest.approx(without, abs=1e-5)
    expected = [m + TAU * naive_cosine(a, memory) for m, a in zip(without, g)]
    assert coreset_measure(candidates, reference).tolist() == pytest.approx(expected, abs=1e-5 * TAU)


def test_ocs_keeps_the_candidates_with_the_highest_measure_of_each_class(model):
    buffer, tasks = CoresetBuffer(8, SHAPE), stream(n_tasks=2)
    learn(buffer, model, tasks[:1])
    batch = next(iter(tasks[1]))
    batch.values["position"] = batch.positions.clone()
    samples = (batch.images, batch.labels), (buffer.images, torch.from_numpy(buffer.labels))
    measure = coreset_measure(*(last_layer_gradients(model, *given) for given in samples))
    buffer.update(model, batch)
    for c in (2, 3):
        best = batch.positions[batch.labels == c][measure[batch.labels == c].argsort(descending=True)[:2]]
        assert set(buffer.positions[torch.from_numpy(buffer.labels == c)].tolist()) == set(best.tolist())
