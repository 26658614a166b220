"""How a batch is learnt, compared with steps written out with plain autograd."""

import copy

import numpy as np
import pytest
import torch
from conftest import refused, unchanged
from hypothesis import given, settings
from hypothesis import strategies as st

from ucl.buffers import ReservoirBuffer
from ucl.methods import AGEM, DERPP, ERACE, METHODS, MIR, ExperienceReplay, Finetune, over_own_classes, project
from ucl.models import SlimResNet18
from ucl.models.slim_resnet import group_norm
from ucl.streams import Batch
from ucl.streams.augmentation import RandAugment

SIDE, CLASSES, LR = 28, 4, 0.1
each_method = pytest.mark.parametrize("method", dict.fromkeys(METHODS.values()))  # "joint" is Finetune, too


def new_model():
    torch.manual_seed(1)
    return SlimResNet18(CLASSES, 3, SIDE, (0.5,) * 3, (0.25,) * 3, width=8)


def new_batch(seed, labels, task=0, images=None):
    labels = np.asarray(labels, dtype=np.int64)
    if images is None:
        draw = np.random.default_rng(seed)
        images = torch.from_numpy(draw.integers(0, 256, (len(labels), 3, SIDE, SIDE), dtype=np.uint8))
    positions = torch.arange(1000 * seed, 1000 * seed + len(labels))
    return Batch(images, torch.from_numpy(labels), labels, positions, task)


def memory_of(*batches):
    """A memory that holds just these batches."""
    buffer = ReservoirBuffer(sum(map(len, batches)), (3, SIDE, SIDE))
    for batch in batches:
        buffer.update(None, batch)
    return buffer


def gradient_by_hand(model, images, labels):
    """Gradients of the mean of -log p(label), one per weight; BatchNorm sees one batch and updates its statistics."""
    model.train()
    log_p_NC = torch.log_softmax(model(images), dim=1)
    loss = -log_p_NC[torch.arange(len(labels)), labels].mean()
    return torch.autograd.grad(loss, list(model.parameters()))


def step_by_hand(model, gradient):
    with torch.no_grad():
        for weight, g in zip(model.parameters(), gradient, strict=True):
            weight -= LR * g


def flat(tensors):
    return torch.cat([t.flatten() for t in tensors]).double()


def learnt(kind, *batches, memory=None, **named):
    """A network that a method has taught these batches, and a copy of it from before."""
    model = new_model()
    before, method = copy.deepcopy(model), kind(model, LR, **named)
    for batch in batches:
        method.learn(model, batch, memory)
    return model, before


def assert_same(model, by_hand):
    """Check that two networks have the same weights and running statistics, and that no step left them unchanged."""
    mine, other, start = model.state_dict(), by_hand.state_dict(), new_model().state_dict()
    assert any(name.endswith("running_var") for name in mine)
    for name, value in mine.items():
        torch.testing.assert_close(value, other[name], rtol=1e-4, atol=2e-6, msg=lambda m, name=name: f"{name}: {m}")
        assert not torch.equal(value, start[name]), name


EARLIER = new_batch(1, [0, 1, 0, 1, 0, 1])
EARLIER.values["logits"] = torch.zeros(6, CLASSES)  # as DER++ would have stored them
BATCH = new_batch(2, [2, 3, 2, 3, 3, 2], task=1)


@pytest.fixture(autouse=True)
def values_as_they_were():
    """DER++ writes logits into the values of the batches that it learns; no other test may see them."""
    yield
    BATCH.values.clear()
    EARLIER.values["logits"] = torch.zeros(6, CLASSES)


def test_finetuning_is_plain_gradient_descent_and_carries_nothing_over_but_the_weights():
    model, by_hand = learnt(Finetune, EARLIER, BATCH)
    for batch in (EARLIER, BATCH):
        step_by_hand(by_hand, gradient_by_hand(by_hand, batch.images, batch.labels))
    assert_same(model, by_hand)


@each_method
def test_the_learning_rate_scales_the_next_step_and_is_part_of_the_state(method):
    moved = []
    for lr in (0.02, 0.04):
        model = new_model()
        start, changed, restored = flat(model.parameters()).clone(), method(model, LR), method(model, LR)
        changed.lr = lr
        restored.load_state_dict(changed.state_dict())
        restored.learn(model, EARLIER, None)
        moved.append(flat(model.parameters()) - start)
    torch.testing.assert_close(moved[1], 2 * moved[0], rtol=1e-3, atol=1e-6)


def test_experience_replay_is_one_step_on_the_batch_and_as_many_samples_of_earlier_tasks():
    memory = memory_of(new_batch(4, [0, 1] * 10), new_batch(3, [2, 3, 2], task=1))
    model, by_hand = learnt(ExperienceReplay, BATCH, memory=memory, replay_seed=5)
    slots = np.random.default_rng(5).choice(np.arange(20), 6, replace=False)  # The others are of the batch's task.
    labels = torch.cat([BATCH.labels, torch.from_numpy(memory.labels[slots])])
    step_by_hand(by_hand, gradient_by_hand(by_hand, torch.cat([BATCH.images, memory.images[slots]]), labels))
    assert_same(model, by_hand)


@pytest.mark.parametrize("method", [ExperienceReplay, AGEM])
def test_without_samples_of_earlier_tasks_a_method_is_finetuning_to_the_bit(method):
    batches = [new_batch(seed, [0, 1, 0, 1], task=1) for seed in (5, 6)]
    plain, _ = learnt(Finetune, *batches)
    other, _ = learnt(method, *batches, memory=memory_of(new_batch(3, [0, 1, 0], task=1)))
    for name, value in plain.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def agem_by_hand(model, batch, memory):
    """A-GEM step; returns g.r before and after the projection."""
    r = gradient_by_hand(model, memory.images, memory.labels)
    g = gradient_by_hand(model, batch.images, batch.labels)
    dot, square = flat(g) @ flat(r), flat(r) @ flat(r)
    share = (min(dot, 0) / square).float()
    g = [a - share * b for a, b in zip(g, r, strict=True)]
    step_by_hand(model, g)
    return dot.item(), (flat(g) @ flat(r)).item()


@pytest.mark.parametrize("opposes", [True, False])
def test_agem_takes_out_what_opposes_the_memory_gradient(opposes):
    """The batch has the images of the memory, with other labels, or mirrored with the same labels."""
    images, labels = (EARLIER.images, [2, 3, 2, 3, 3, 2]) if opposes else (EARLIER.images.flip(-1), [0, 1, 0, 1, 0, 1])
    batch = new_batch(2, labels, task=1, images=images)
    model, by_hand = learnt(AGEM, batch, memory=memory_of(EARLIER))
    before, after = agem_by_hand(by_hand, batch, EARLIER)
    assert (before < -0.01 and after == pytest.approx(0, abs=1e-5)) if opposes else before == after > 0.01
    assert_same(model, by_hand)


@pytest.mark.parametrize(("given", "n"), [(0, 6), (4, 4), (256, 12)])
def test_agems_reference_has_as_many_samples_as_asked_for_or_all_of_earlier_tasks(given, n):
    memory = memory_of(new_batch(4, [0, 1] * 6), new_batch(3, [2, 3, 2], task=1))
    model, by_hand = learnt(AGEM, BATCH, memory=memory, replay_seed=5, reference_batch=given)
    slots = np.random.default_rng(5).choice(np.arange(12), n, replace=False)  # The others are of the batch's task.
    agem_by_hand(by_hand, BATCH, new_batch(0, memory.labels[slots].tolist(), images=memory.images[slots]))
    assert_same(model, by_hand)


@pytest.mark.parametrize("opposes", [True, False])
def test_agem_projects_the_gradient_of_replay_and_is_experience_replay_where_nothing_opposes(opposes):
    """A new batch opposes the memory in a network that has learnt the memory, and not in a new network."""
    start, _ = learnt(Finetune, *([EARLIER] * 5 if opposes else []))
    start.double()  # Rounding in float32 could flip an activation.
    model, replayed, by_hand = copy.deepcopy(start), copy.deepcopy(start), copy.deepcopy(start)
    AGEM(model, LR, projected="replay").learn(model, BATCH, memory_of(EARLIER))
    ExperienceReplay(replayed, LR).learn(replayed, BATCH, memory_of(EARLIER))
    r = gradient_by_hand(by_hand, EARLIER.images, EARLIER.labels)
    g = gradient_by_hand(by_hand, torch.cat([BATCH.images, EARLIER.images]), torch.cat([BATCH.labels, EARLIER.labels]))
    dot = flat(g) @ flat(r)
    assert dot < -0.1 if opposes else dot > 0.1
    step_by_hand(by_hand, [a - dot.clamp_max(0) / (flat(r) @ flat(r)) * b for a, b in zip(g, r, strict=True)])
    assert all(map(torch.equal, model.parameters(), replayed.parameters())) != opposes
    assert_same(model, by_hand)


vectors = st.lists(st.floats(-100, 100, width=32).map(lambda v: 0.0 if abs(v) < 1e-4 else v), min_size=5, max_size=5)


def parts(vector):
    """A vector as the gradients of two weights, a matrix and a bias."""
    whole = torch.tensor(vector, dtype=torch.float32)
    return [whole[:4].view(2, 2).clone(), whole[4:].clone()]


@settings(max_examples=300, deadline=None)
@given(g=vectors, r=vectors)
def test_a_projected_gradient_never_opposes_its_reference(g, r):
    gradient, reference = parts(g), parts(r)
    project(gradient, reference)
    projected, exact_g, exact_r = flat(gradient), flat(parts(g)), flat(parts(r))
    scale = exact_g.norm() * exact_r.norm()
    assert torch.equal(flat(reference), exact_r)
    assert projected @ exact_r >= -1e-5 * scale
    dot = exact_g @ exact_r
    if dot >= 1e-6 * scale:
        assert torch.equal(projected, exact_g)
    elif dot < 0:
        closed_form = exact_g - dot / (exact_r @ exact_r) * exact_r
        assert (projected - closed_form).norm() <= 1e-5 * exact_g.norm()
        # This is the nearest vector of the half-space: the removed part is parallel to the reference.
        assert projected.norm() <= exact_g.norm() * (1 + 1e-6)


@each_method
def test_learning_leaves_images_labels_and_memory_as_they_were(method):
    buffer = memory_of(EARLIER)
    before = BATCH.images.clone(), BATCH.labels.clone(), buffer.images.clone(), buffer.labels.copy()
    learnt(method, BATCH, memory=buffer)
    assert torch.equal(BATCH.images, before[0]) and torch.equal(BATCH.labels, before[1])
    assert torch.equal(buffer.images, before[2]) and (buffer.labels == before[3]).all()


@each_method
def test_updates_of_a_batch_are_steps_one_after_another_each_with_new_memory_samples(method):
    memory = memory_of(EARLIER)
    thrice, _ = learnt(method, BATCH, memory=memory, replay_seed=5, updates=3)
    drawn, draw = [], memory.drawn_slots
    memory.drawn_slots = lambda *given: drawn.append(draw(*given)) or drawn[-1]
    one_by_one, _ = learnt(method, BATCH, BATCH, BATCH, memory=memory, replay_seed=5)
    assert all(torch.equal(a, b) for a, b in zip(thrice.state_dict().values(), one_by_one.state_dict().values()))
    if method is not Finetune:
        batches_per_step = 2 if method is DERPP else 1
        assert len({tuple(slots) for slots in drawn}) == len(drawn) == 3 * batches_per_step


# --- ER-ACE and DER++ ---


def with_logits(*batches):
    """A memory that holds just these batches, each sample with different logits."""
    for number, batch in enumerate(batches):
        batch.values["logits"] = torch.randn(len(batch), CLASSES, generator=torch.Generator().manual_seed(number))
    return memory_of(*batches)


def cross_entropy_by_hand(logits_NC, labels, classes):
    """Mean of -log of the label's probability, in float64, with a softmax over some of the classes only."""
    exp = logits_NC.double().exp()
    shares = [exp[i, label] / sum(exp[i, c] for c in classes) for i, label in enumerate(labels.tolist())]
    return -torch.stack(shares).log().mean()


def step_of_loss(model, loss):
    step_by_hand(model, [g.float() for g in torch.autograd.grad(loss, list(model.parameters()))])


@settings(max_examples=30, deadline=None)
@given(labels=st.lists(st.integers(0, 5), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_the_loss_over_the_classes_of_a_batch_is_that_of_a_head_with_these_classes_only(labels, seed):
    logits = torch.randn(len(labels), 6, generator=torch.Generator().manual_seed(seed), requires_grad=True)
    loss = torch.nn.functional.cross_entropy(over_own_classes(logits, torch.tensor(labels)), torch.tensor(labels))
    expected = cross_entropy_by_hand(logits, torch.tensor(labels), sorted(set(labels)))
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    (gradient,) = torch.autograd.grad(loss, logits)
    absent = [c for c in range(6) if c not in labels]
    assert gradient.isfinite().all() and (gradient[:, absent] == 0).all()


def test_er_ace_is_one_step_on_two_losses_of_two_passes_with_samples_of_the_current_task_too():
    memory = memory_of(new_batch(4, [0, 1, 0]), new_batch(3, [2, 3, 2], task=1))
    model, by_hand = learnt(ERACE, BATCH, memory=memory)
    by_hand.train()
    loss = cross_entropy_by_hand(by_hand(BATCH.images), BATCH.labels, [2, 3])
    loss = loss + cross_entropy_by_hand(by_hand(memory.images), memory.labels, range(CLASSES))
    step_of_loss(by_hand, loss)
    assert_same(model, by_hand)


def test_der_is_one_step_on_the_batch_stored_logits_and_stored_labels_of_the_current_task_too():
    memory = with_logits(new_batch(4, [0, 1] * 5), new_batch(3, [2, 3] * 5, task=1))
    model, by_hand = learnt(DERPP, BATCH, memory=memory, replay_seed=5)
    by_hand.train()
    logits = by_hand(BATCH.images)
    loss = cross_entropy_by_hand(logits, BATCH.labels, range(CLASSES))
    draw = np.random.default_rng(5)
    first, second = (draw.choice(np.arange(20), 6, replace=False) for _ in range(2))
    loss = loss + 0.2 * ((by_hand(memory.images[first]) - memory.values["logits"][first]).double() ** 2).mean()
    labels = torch.from_numpy(memory.labels[second])
    loss = loss + 0.5 * cross_entropy_by_hand(by_hand(memory.images[second]), labels, range(CLASSES))
    step_of_loss(by_hand, loss)
    assert_same(model, by_hand)
    torch.testing.assert_close(BATCH.values["logits"], logits)


# --- MIR ---


def mir_by_hand(model, batch, images, labels, training):
    """Indices of the memory samples by how much a step on the batch raises their loss, largest first."""

    def losses(network):
        network.train(training)
        with torch.no_grad():
            log_p_NC = network(images).double().log_softmax(1)
        return -log_p_NC[torch.arange(len(labels)), labels]

    earlier, later = copy.deepcopy(model), copy.deepcopy(model)
    before = losses(earlier)  # in training mode, later is normalised by the same images
    running = [b.clone() for b in earlier.buffers()]
    step_by_hand(later, gradient_by_hand(later, batch.images, batch.labels))
    for statistic, value in zip(later.buffers(), running, strict=True):
        statistic.copy_(value)
    return (losses(later) - before).argsort(descending=True), running


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_mir_is_experience_replay_of_the_samples_whose_loss_the_batch_raises_most(mode):
    memory = memory_of(new_batch(4, [0, 1] * 30))  # more than the 50 candidates
    model = new_model()
    gradient = gradient_by_hand(model, EARLIER.images, EARLIER.labels)
    step_by_hand(model, gradient)
    by_hand = copy.deepcopy(model)
    MIR(model, LR, replay_seed=5, scoring_batchnorm=mode).learn(model, BATCH, memory)
    slots = memory.drawn_slots(50, 1, np.random.default_rng(5))
    images, labels = memory.images[slots], torch.from_numpy(memory.labels[slots])
    order, running = mir_by_hand(by_hand, BATCH, images, labels, mode == "train")
    for statistic, value in zip(by_hand.buffers(), running, strict=True):
        statistic.copy_(value)
    chosen = order[:6]
    together = torch.cat([BATCH.images, images[chosen]]), torch.cat([BATCH.labels, labels[chosen]])
    step_by_hand(by_hand, gradient_by_hand(by_hand, *together))
    assert_same(model, by_hand)


def test_looking_for_interference_leaves_the_network_as_it_was_to_the_bit():
    model, given = new_model(), (BATCH.images, BATCH.labels, EARLIER.images, EARLIER.labels)
    before = copy.deepcopy(model.state_dict())
    with unchanged(model.train()):
        rises = MIR(model, LR).loss_increase(model, *given)
    assert rises.shape == (6,) and (rises != 0).all()
    MIR(model, LR, scoring_batchnorm="train").loss_increase(model, *given)
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved and all("running" in name for name in moved)


def test_mir_refuses_an_unknown_mode():
    with refused("scoring_batchnorm"):
        MIR(new_model(), LR, scoring_batchnorm="training")


def test_without_running_statistics_mir_scores_in_evaluation_mode():
    model = SlimResNet18(CLASSES, 3, SIDE, (0.5,) * 3, (0.25,) * 3, dropout=0.5, width=8, norm=group_norm)
    increases = []
    for mode in ("eval", "train"):
        torch.manual_seed(0)  # for the dropout of the virtual step
        mir = MIR(model, LR, scoring_batchnorm=mode)
        increases.append(mir.loss_increase(model, BATCH.images, BATCH.labels, EARLIER.images, EARLIER.labels))
    assert torch.equal(*increases)


def test_mir_with_fewer_samples_than_it_replays_is_experience_replay():
    memory = memory_of(new_batch(3, [0, 1]))
    (one, _), (other, _) = (learnt(method, BATCH, memory=memory) for method in (MIR, ExperienceReplay))
    assert_same(one, other)  # The samples come in another order.


# --- augmentation ---


@each_method
def test_a_method_learns_augmented_images_of_batch_and_memory_and_stores_them_as_they_are(method):
    model, memory = new_model(), with_logits(new_batch(4, [0, 1] * 10))
    stored = {image.numpy().tobytes() for image in memory.images}
    seen = []
    hook = model.register_forward_pre_hook(lambda module, inputs: seen.extend(255 - inputs[0]))
    augmenting = type("Augmenting", (method,), {"augment": lambda self, images: 255 - images})
    augmenting(model, LR).learn(model, BATCH, memory)
    hook.remove()
    images = {image.numpy().tobytes() for image in seen}
    arrived = {image.numpy().tobytes() for image in BATCH.images}
    assert arrived <= images <= arrived | stored
    assert bool(images - arrived) == (method is not Finetune)
    assert {image.numpy().tobytes() for image in memory.images} == stored


def test_each_image_and_each_step_has_its_own_random_operation():
    images = new_batch(4, [0] * 20).images[:1].expand(20, -1, -1, -1)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    augment = RandAugment(7)
    first, second = augment(images), augment(images)
    assert first.dtype == torch.uint8 and first.shape == images.shape
    assert len({image.numpy().tobytes() for image in first}) > 5
    assert not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)
    again = RandAugment(7)
    assert torch.equal(again(images), first)
    other = RandAugment(1)
    other.load_state_dict(again.state_dict())
    assert torch.equal(other(images), second)
