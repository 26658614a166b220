"""The scores compared with their formulas written out as loops, and the scorer compared with plain forward passes."""

import copy
import functools
import itertools
import math
import sys

import numpy as np
import pytest
import scipy.stats
import torch
from conftest import needs_bfloat16
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

from ucl import views
from ucl.assembly import build_scorer
from ucl.catalogue import SCORES as ROWS
from ucl.config import Config
from ucl.errors import InputError
from ucl.models import OwnNetwork, SlimResNet18
from ucl.scorers import (
    SCORES,
    Scorer,
    ScoringPasses,
    bregman_information,
    confidence_ratio,
    disagreement,
    dropout_variance,
    entropy,
    least_confidence,
    margin,
    mean_probabilities,
    resolve,
    uniform,
)

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)


# The paper's formulas, one number after another


def lse(z):
    top = max(z)
    return top + math.log(math.fsum(math.exp(v - top) for v in z))


def softmax(z):
    norm = lse(z)
    return [math.exp(v - norm) for v in z]


def mean(values):
    values = list(values)
    return math.fsum(values) / len(values)


def naive_lc(z_PC):
    return 1 - mean(max(softmax(z)) for z in z_PC)


def naive_ms(z_PC):
    def gap(p):
        first, second = sorted(p)[:-3:-1]
        return first - second

    return 1 - mean(gap(softmax(z)) for z in z_PC)


def naive_rc(z_PC):
    def ratio(p):
        first, second = sorted(p)[:-3:-1]
        return second / first

    return mean(ratio(softmax(z)) for z in z_PC)


def naive_en(z_PC):
    return mean(-math.fsum(p * math.log(p) for p in softmax(z) if p > 0) for z in z_PC)


def naive_rm(z_PC):
    predicted = [max(range(len(z)), key=lambda c: z[c]) for z in z_PC]  # the first of several equal maxima
    return 1 - max(predicted.count(c) for c in predicted) / len(predicted)


def naive_bi(z_PC):
    mean_z = [mean(column) for column in zip(*z_PC, strict=True)]
    return mean(lse(z) for z in z_PC) - lse(mean_z)


def naive_mc(z_PC):
    def variance(values):
        middle = mean(values)
        return mean((v - middle) ** 2 for v in values)

    return mean(variance(column) for column in zip(*z_PC, strict=True))


NAIVE = {
    "LC": naive_lc,
    "MS": naive_ms,
    "RC": naive_rc,
    "EN": naive_en,
    "RM": naive_rm,
    "BI": naive_bi,
    "MC": naive_mc,
}


@st.composite
def logits(draw):
    """Logits (P, N, C) within +-300: small ones with ties and extremes, and full-sized ones of any spread."""
    if draw(st.booleans()):
        shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 2), st.integers(2, 5)))
        value = st.sampled_from([-300.0, 0.0, 1.0, 300.0]) | st.floats(-300, 300, width=32)
        z = draw(arrays(np.float32, shape, elements=value))
    else:
        shape = draw(st.tuples(st.integers(1, 20), st.integers(1, 8), st.integers(2, 100)))
        noise = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        spread, common = (draw(st.sampled_from([1e-4, 1.0, 30.0, 300.0])) for _ in range(2))
        z = common * noise.standard_normal(shape[1:]) + spread * noise.standard_normal(shape)
        z = z.clip(-300, 300).astype(np.float32)
    z = torch.from_numpy(z)
    return z.bfloat16() if draw(st.booleans()) else z


@pytest.mark.parametrize("name", NAIVE)
@settings(deadline=None, max_examples=40)
@given(z=logits())
def test_a_score_is_its_formula(name, z):
    got = SCORES[name](z)
    expected = [NAIVE[name](z[:, n].double().tolist()) for n in range(z.shape[1])]
    assert got.shape == (z.shape[1],)
    # The variance of logits reaches 90,000, so its tolerance is relative.
    assert got.tolist() == pytest.approx(expected, abs=1e-5, rel=1e-9 if name == "MC" else 0)


@settings(deadline=None, max_examples=100)
@given(z=logits())
def test_scores_keep_to_their_ranges(z):
    views_, _, classes = z.shape
    highest = {
        "LC": 1 - 1 / classes,
        "MS": 1,
        "RC": 1,
        "EN": math.log(classes),
        "RM": 1 - 1 / min(views_, classes),
        "BI": math.inf,
        "MC": math.inf,
    }
    for name, score in SCORES.items():
        values = score(z)
        assert values.isfinite().all(), name
        if name in highest:
            assert values.min() >= -1e-12 and values.max() <= highest[name] + 1e-12, name


def test_extreme_logits_reach_the_ends_of_the_ranges():
    sure, torn = torch.zeros(3, 1, 4), torch.zeros(3, 1, 4)
    sure[..., 0] = 300
    for name in NAIVE:
        assert SCORES[name](sure).item() == pytest.approx(0, abs=1e-12)
    assert [SCORES[name](torn).item() for name in ("LC", "MS", "RC", "EN")] == pytest.approx([0.75, 1, 1, math.log(4)])
    quarrel = torch.eye(4)[:, None, :] * 300  # each view is sure of another class
    assert disagreement(quarrel).item() == 0.75
    assert bregman_information(quarrel).item() == pytest.approx(300 - (75 + math.log(4)))


@settings(deadline=None, max_examples=100)
@given(z=logits(), constant=st.floats(-300, 300), seed=st.integers(0, 2**32 - 1))
def test_bregman_information_does_not_see_a_constant_added_to_a_view(z, constant, seed):
    constants_PN1 = constant * torch.from_numpy(np.random.default_rng(seed).standard_normal((*z.shape[:2], 1)))
    shifted = bregman_information(z.double() + constants_PN1)
    assert shifted.tolist() == pytest.approx(bregman_information(z).tolist(), abs=1e-9)


@settings(deadline=None, max_examples=50)
@given(z=logits(), copies=st.integers(1, 20))
def test_views_that_agree_carry_no_bregman_information_and_no_variance(z, copies):
    alike = z[:1].expand(copies, -1, -1)
    zero = [0.0] * z.shape[1]
    assert bregman_information(alike).tolist() == pytest.approx(zero, abs=1e-9)
    assert dropout_variance(alike).tolist() == pytest.approx(zero, abs=1e-9)
    assert disagreement(alike).tolist() == zero


@settings(deadline=None, max_examples=50)
@given(z=logits(), seed=st.integers(0, 2**32 - 1))
def test_the_order_of_views_classes_and_images_does_not_matter(z, seed):
    draw = np.random.default_rng(seed)
    # There are no ties: of two equal maxima, the prediction would depend on the order of the classes.
    z = z.double() + torch.from_numpy(1e-3 * draw.random(z.shape))
    by_view, by_image, by_class = (torch.from_numpy(draw.permutation(size)) for size in z.shape)
    for score in SCORES.values():
        expected = score(z)[by_image].tolist()
        assert score(z[by_view][:, by_image][..., by_class]).tolist() == pytest.approx(expected, abs=1e-9, rel=1e-9)


@settings(deadline=None, max_examples=50)
@given(z=logits())
def test_entropy_is_scipys_and_torchs(z):
    p = torch.distributions.Categorical(logits=z.double())
    assert entropy(z).tolist() == pytest.approx(p.entropy().mean(0).tolist(), abs=1e-9)
    assert entropy(z).numpy() == pytest.approx(scipy.stats.entropy(p.probs.numpy(), axis=-1).mean(0), abs=1e-9)


@settings(deadline=None, max_examples=50)
@given(z=logits())
def test_mean_probabilities_are_logits_of_the_mean_softmax(z):
    exponent = np.exp(z.double().numpy() - z.double().numpy().max(-1, keepdims=True))
    expected = (exponent / exponent.sum(-1, keepdims=True)).mean(0)
    got = mean_probabilities(z)
    assert got.shape == (1, *z.shape[1:])
    np.testing.assert_allclose(got[0].softmax(-1).numpy(), expected, atol=1e-12)
    assert least_confidence(got).numpy() == pytest.approx(1 - expected.max(-1), abs=1e-9)
    assert entropy(got).numpy() == pytest.approx(scipy.stats.entropy(expected, axis=-1), abs=1e-9)


def test_the_mean_of_scores_is_not_the_score_of_the_mean():
    """Two views are certain of different classes, but the mean of their probabilities is a fair coin."""
    z = torch.tensor([[[30.0, 0.0]], [[0.0, 30.0]]])
    scores = (least_confidence, margin, confidence_ratio, entropy)
    assert [score(z).item() for score in scores] == pytest.approx([0] * 4, abs=1e-9)
    assert [score(mean_probabilities(z)).item() for score in scores] == pytest.approx([0.5, 1, 1, math.log(2)])


# The scorer and its model


def pictures(n, channels=3, size=28, seed=0):
    """Smooth pictures, unlike each other in colour and shade: views of noise would all look the same."""
    draw = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, channels, 4, 4, generator=draw) * torch.rand(n, 1, 1, 1, generator=draw)
    return (nn.functional.interpolate(coarse, size=(size, size), mode="bilinear") * 255).byte()


def trained(steps=6, size=28, dropout=0.0, channels=3):
    """A network of 16 filters whose weights and BatchNorm statistics some steps of SGD have moved."""
    torch.manual_seed(3)
    mean, std = MEAN[:channels], STD[:channels]
    model = SlimResNet18(5, channels=channels, image_size=size, mean=mean, std=std, dropout=dropout, width=16)
    for step in range(steps):
        take_a_step(model, pictures(10, channels, size, seed=100 + step))
    return model


def take_a_step(model, images):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), torch.arange(len(images)) % 5).backward()
    optimizer.step()
    optimizer.zero_grad()


SETTLED, DROPPING = functools.cache(trained), functools.cache(functools.partial(trained, dropout=0.3))


def copy_of(model):
    """A copy with the same weights, statistics and mode, because no test may change a shared network."""
    return copy.deepcopy(model)


def passes(seed=0, **how):
    return ScoringPasses(torch.Generator().manual_seed(seed), **how)


def scorer(score=bregman_information, seed=0, averaging="scores", **how):
    return Scorer(score, passes(seed, **how), averaging)


def state_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same_state(model, state):
    return all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@torch.no_grad()
def plain_logits(model, images, seed, view_space="pixels", per_image=True):
    """The logits of the 12 views by the plain network in its current mode."""
    generator, fill = torch.Generator().manual_seed(seed), torch.tensor(MEAN)
    x = model.normalize(images) if view_space == "normalized" else images / 255
    forward = model.logits if view_space == "normalized" else model
    parameters = views.draw(len(x) if per_image else 1, x.shape[-1], generator)
    return torch.stack([forward(view) for view in views.apply(x, parameters, fill)])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "how",
    [
        {},
        dict(view_draws="batch"),
        dict(view_space="normalized"),
        dict(averaging="probabilities", score=entropy),
        pytest.param(dict(dtype=torch.bfloat16), marks=needs_bfloat16),
        dict(dropout_passes=20, score=dropout_variance),
    ],
    ids=lambda how: "-".join(how) or "default",
)
def test_scoring_leaves_the_model_as_it_was(how, training):
    model = copy_of(DROPPING()).train(training)
    before, drawn = state_of(model), torch.get_rng_state()
    candidates = [pictures(3), pictures(2, seed=1)]
    scores = scorer(**how)(model, candidates)
    assert [(s.shape, s.dtype) for s in scores] == [((3,), torch.float64), ((2,), torch.float64)]
    assert torch.equal(candidates[0], pictures(3)) and torch.cat(scores).isfinite().all()
    assert same_state(model, before)
    assert all(module.training is training for module in model.modules())
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    assert torch.equal(torch.get_rng_state(), drawn)


@torch.no_grad()
def plain_training_passes(model, candidates, seed, view_space="pixels", order=range(12)):
    """Float64 passes of torch's own modules in training mode: class after class, and view after view in each class."""
    draw, exact, logits = torch.Generator().manual_seed(seed), copy_of(model).double().train(), []
    for images in candidates:
        x = model.normalize(images) if view_space == "normalized" else images / 255
        perturbed = views.perturb(x, draw, torch.tensor(MEAN))
        if view_space == "pixels":
            perturbed = model.normalize(perturbed.flatten(0, 1)).unflatten(0, (12, -1))
        logits.append(torch.stack([exact.logits(perturbed[view].double()) for view in order]))
    return torch.cat(logits, 1), exact


def furthest(model, other):
    """The largest difference of a running statistic, relative to the mean magnitude in its layer."""
    pairs = [(a.double(), b.double()) for a, b in zip(model.buffers(), other.buffers(), strict=True)]
    return max(((a - b).abs().max() / b.abs().mean()).item() for a, b in pairs)


@pytest.mark.parametrize("view_space", ["pixels", "normalized"])
@pytest.mark.parametrize("training", [True, False])
def test_in_training_mode_logits_and_statistics_are_those_of_plain_passes(training, view_space):
    """The views are those of evaluation mode, one pass per view and class in order; weights and mode do not change."""
    candidates = [pictures(4), pictures(6, seed=8)]
    ours = copy_of(SETTLED()).train(training)
    before = state_of(ours)
    got = passes(seed=4, batchnorm="train", view_space=view_space).logits(ours, candidates)
    expected, plain = plain_training_passes(SETTLED(), candidates, 4, view_space)
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()
    assert furthest(ours, plain) < 1e-4
    for others in ((candidates[::-1], range(12)), (candidates, range(11, -1, -1))):
        _, turned = plain_training_passes(SETTLED(), others[0], 4, view_space, others[1])
        assert furthest(ours, turned) > 1e-2  # the order matters
    assert all(module.training is training for module in ours.modules())
    moved = {name for name, value in ours.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if name.endswith(("running_mean", "running_var"))}


def test_in_training_mode_the_size_of_the_chunks_does_not_show():
    """A chunk holds the views of a few images, but the statistics of a view are those of all its images."""
    models = [copy_of(SETTLED()) for _ in range(2)]
    whole, parts = (
        passes(batchnorm="train", chunk=chunk).logits(model, [pictures(7)])
        for chunk, model in zip((32, 3), models, strict=True)
    )
    torch.testing.assert_close(parts, whole)
    assert same_state(models[0], state_of(models[1]))


@pytest.mark.parametrize("batchnorm", ["eval", "train"])
def test_several_draws_of_the_views_are_scored_together(batchnorm):
    candidates, model, other = [pictures(3), pictures(2, seed=1)], copy_of(SETTLED()), copy_of(SETTLED())
    got = passes(seed=3, n_draws=3, batchnorm=batchnorm).logits(model, candidates[:1])
    once = passes(seed=3, batchnorm=batchnorm)
    expected = torch.cat([once.logits(other, candidates[:1]) for _ in range(3)])
    assert got.shape == (36, 3, 5) and torch.equal(got, expected) and same_state(model, state_of(other))
    assert not torch.equal(got[:12], got[12:24])
    scores = scorer(entropy, n_draws=2, batchnorm=batchnorm)(model, candidates)
    assert [s.shape for s in scores] == [(3,), (2,)]


@pytest.mark.parametrize("n_draws", [1, 2])
@pytest.mark.parametrize("batchnorm", ["eval", "train"])
def test_fixed_views_are_an_images_own_whenever_and_with_whatever_it_is_scored(batchnorm, n_draws):
    """Its position determines them; in training mode, other images of the class affect the logits, not the views."""
    images, at, seen = pictures(6), torch.tensor([7, 3, 1, 400, 0, 9]), {}
    for seed, chosen in ((0, [0, 1, 2]), (0, [2, 1, 5]), (0, [1]), (8, [1])):
        fixed = passes(seed=seed, view_draws="fixed", n_draws=n_draws, batchnorm=batchnorm)
        fixed.logits(SETTLED() if batchnorm == "eval" else copy_of(SETTLED()), [images[chosen]], [at[chosen]])
        for turn, parameters in enumerate(fixed._draws(images[chosen], [len(chosen)], at[chosen])):
            for place, i in enumerate(chosen):
                row = torch.cat([getattr(parameters, name)[place].flatten() for name in ("affine", "crop")])
                assert torch.equal(seen.setdefault((seed, i, turn), row), row)
    for (one, row), (another, other) in itertools.combinations(seen.items(), 2):
        assert not torch.equal(row, other), (one, another)


def test_fixed_views_give_a_score_that_repeats():
    images, at = pictures(5), torch.arange(5)
    fixed, free = scorer(view_draws="fixed"), scorer()
    first, again = (fixed(SETTLED(), [images], [at])[0] for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(*(free(SETTLED(), [images])[0] for _ in range(2)))
    backwards = fixed(SETTLED(), [images[3:], images[:3]], [at[3:], at[:3]])
    torch.testing.assert_close(torch.cat(backwards), first.roll(2))
    with pytest.raises(InputError, match="positions"):
        fixed(SETTLED(), [images])


@pytest.mark.parametrize("dropout_passes", [0, 20])
@pytest.mark.parametrize("batchnorm", ["eval", "train"])
def test_scoring_does_not_move_the_global_generator(batchnorm, dropout_passes):
    torch.manual_seed(21)
    before = torch.get_rng_state()
    scorer(batchnorm=batchnorm, dropout_passes=dropout_passes)(copy_of(DROPPING()), [pictures(3)])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("view_space", ["pixels", "normalized"])
@pytest.mark.parametrize("view_draws", ["image", "batch"])
def test_logits_are_the_networks_in_evaluation_mode_on_the_12_views(view_draws, view_space):
    images = pictures(7, seed=2)
    got = passes(seed=9, view_draws=view_draws, view_space=view_space).logits(SETTLED(), [images])
    expected = plain_logits(copy_of(SETTLED()).eval(), images, 9, view_space, per_image=view_draws == "image")
    assert got.shape == (12, 7, 5)
    assert expected.std(0).mean() > 0.01  # the views do differ
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()


def test_draws_of_a_view_are_for_each_image_or_for_all_of_a_class():
    twice = pictures(1).expand(2, -1, -1, -1).contiguous()
    own = passes(view_draws="image").logits(SETTLED(), [twice, twice])
    shared = passes(view_draws="batch").logits(SETTLED(), [twice, twice])
    for n, m in itertools.combinations(range(4), 2):
        assert not torch.allclose(own[:, n], own[:, m], atol=1e-4)
        assert torch.allclose(shared[:, n], shared[:, m], atol=1e-5) is (n // 2 == m // 2)


@pytest.mark.parametrize("name", ["LC", "BI", "EN"])
@pytest.mark.parametrize("view_draws", ["image", "batch"])
def test_how_many_views_are_held_at_a_time_does_not_show(view_draws, name):
    candidates = [pictures(5), pictures(1, seed=1), pictures(7, seed=2)]
    whole = torch.cat(scorer(SCORES[name], view_draws=view_draws, chunk=1000)(SETTLED(), candidates))
    for chunk in (1, 3, 12, 13):
        parts = torch.cat(scorer(SCORES[name], view_draws=view_draws, chunk=chunk)(SETTLED(), candidates))
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("how", [{}, dict(dropout_passes=5), dict(batchnorm="train")], ids=str)
def test_scoring_repeats_with_its_generator_and_goes_on_drawing(how):
    images = [pictures(3)]
    first = scorer(seed=6, **how)
    a, b = first(copy_of(DROPPING()), images)[0], first(copy_of(DROPPING()), images)[0]
    torch.manual_seed(99)  # the global random state has no influence
    again = scorer(seed=6, **how)
    assert torch.equal(again(copy_of(DROPPING()), images)[0], a)
    assert torch.equal(again(copy_of(DROPPING()), images)[0], b)
    assert not torch.equal(a, b)
    assert not torch.equal(scorer(seed=7, **how)(copy_of(DROPPING()), images)[0], a)


@needs_bfloat16
def test_bfloat16_scores_are_close_and_rank_alike():
    images = [pictures(40, seed=3)]
    exact, coarse = (scorer(seed=1, dtype=dtype)(SETTLED(), images)[0] for dtype in (torch.float32, torch.bfloat16))
    assert not torch.equal(exact, coarse)
    assert (coarse - exact).abs().max() < 0.1 * exact.max()
    assert scipy.stats.spearmanr(exact.numpy(), coarse.numpy()).statistic > 0.95


@pytest.mark.parametrize("name", [name for name in NAIVE if ROWS[name].of_probabilities])
def test_averaging_probabilities_scores_the_mean_of_the_views(name):
    images = [pictures(6)]
    got = scorer(SCORES[name], averaging="probabilities")(SETTLED(), images)[0]
    z_PNC = passes().logits(SETTLED(), images).double().numpy()
    exponent = np.exp(z_PNC - z_PNC.max(-1, keepdims=True))
    mean_NC = (exponent / exponent.sum(-1, keepdims=True)).mean(0)
    expected = [NAIVE[name]([np.log(p_C).tolist()]) for p_C in mean_NC]
    assert got.tolist() == pytest.approx(expected, abs=1e-9)


def test_grey_images_are_scored_too():
    model = trained(steps=1, channels=1)
    scores = scorer()(model, [pictures(3, channels=1)])[0]
    assert scores.shape == (3,) and (scores > 0).all()


# Monte-Carlo dropout


def test_the_dropout_score_takes_20_passes():
    z = build_scorer(Config(score="MC")).passes.logits(DROPPING(), [pictures(3)])
    assert z.shape == (20, 3, 5)
    assert build_scorer(Config(score="BI")).passes.logits(SETTLED(), [pictures(3)]).shape == (12, 3, 5)


def test_without_dropping_the_passes_are_the_image_as_it_is():
    """At a vanishing rate the masks drop nothing: every pass sees the unperturbed image, and nothing varies."""
    model, images = copy_of(SETTLED()).eval(), pictures(5)
    model.dropout_rate = 1e-9
    mc = scorer(dropout_variance, dropout_passes=20)
    with torch.no_grad():
        expected = model(images).expand(20, -1, -1)
    torch.testing.assert_close(mc.passes.logits(model, [images]), expected, rtol=1e-4, atol=1e-4)
    assert mc(model, [images])[0].tolist() == pytest.approx([0] * 5, abs=1e-8)


@torch.no_grad()
def test_the_dropout_score_is_the_variance_of_plain_dropout_passes():
    """With 200 passes each, means and variances agree within the sampling error."""
    images, model = pictures(3, seed=5), copy_of(DROPPING()).eval()
    got = passes(dropout_passes=200).logits(model, [images]).double()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    torch.manual_seed(17)
    plain = model(images.repeat(200, 1, 1, 1)).view(200, 3, 5).double()
    error = ((got.var(0) + plain.var(0)) / 200).sqrt()
    assert ((got.mean(0) - plain.mean(0)).abs() < 5 * error).all()
    expected = plain.numpy().var(axis=0).mean(axis=-1)
    assert (dropout_variance(got).numpy() / expected) == pytest.approx(np.ones(3), abs=0.35)


def test_dropout_passes_in_training_mode_move_the_statistics_once_a_pass():
    """The stem has no dropout before it, so its statistics move as by plain passes of the same images."""
    images, ours, plain = pictures(5), copy_of(DROPPING()), copy_of(DROPPING()).train()
    scorer(dropout_variance, dropout_passes=20, batchnorm="train")(ours, [images])
    with torch.no_grad():
        for _ in range(20):
            plain(images)
    torch.testing.assert_close(ours.bn1.running_mean, plain.bn1.running_mean)
    torch.testing.assert_close(ours.bn1.running_var, plain.bn1.running_var)
    drawn = (ours.blocks[0].bn2.running_var, plain.blocks[0].bn2.running_var)  # after other masks of the same rate
    assert not torch.equal(*drawn) and torch.allclose(*drawn, rtol=0.1)


# A score of the user's own


OWN = """
import torch

def loudest(logits):
    return logits.abs().amax((0, 2))

def rank(logits):
    return torch.arange(logits.shape[1])

def wrong_axis(logits):
    return logits.mean(1)

def one_number(logits):
    return logits.mean()

def a_list(logits):
    return [0.0] * logits.shape[1]

def nothing(logits):
    pass

def with_gaps(logits):
    scores = logits.std(0).mean(-1)
    scores[0], scores[2] = float("nan"), -float("inf")
    return scores

def complex_numbers(logits):
    return torch.complex(logits, logits).std(0).mean(-1) + 1j
"""


@pytest.fixture
def own_scorer(tmp_path, monkeypatch):
    """A function that builds the scorer of a function in `OWN`."""
    (tmp_path / "scores_of_my_own.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda name: build_scorer(Config(score=f"scores_of_my_own:{name}", precision="float32"))
    sys.modules.pop("scores_of_my_own", None)


def test_a_score_of_the_users_own_gets_the_logits_of_the_views(own_scorer):
    images = [pictures(3), pictures(2, seed=1)]
    expected = own_scorer("loudest").passes.logits(SETTLED(), images).double().abs().amax((0, 2))
    torch.testing.assert_close(torch.cat(own_scorer("loudest")(SETTLED(), images)), expected)
    assert [s.tolist() for s in own_scorer("rank")(SETTLED(), [pictures(2), pictures(1)])] == [[0.0, 1.0], [2.0]]
    assert resolve("ucl.scorers:entropy") is entropy


@pytest.mark.parametrize("name", ["wrong_axis", "one_number", "a_list", "nothing", "with_gaps", "complex_numbers"])
def test_a_score_that_cannot_be_used_is_refused_with_its_path(own_scorer, name):
    with pytest.raises(InputError) as refusal:
        own_scorer(name)(SETTLED(), [pictures(2), pictures(1)])
    assert (refusal.value.name, refusal.value.value) == ("score", f"scores_of_my_own:{name}")


def diverged():
    """A network after one step along a gradient of NaN: all weights are NaN."""
    model = copy_of(SETTLED())
    for weight in model.parameters():
        nn.init.constant_(weight, math.nan)
    return model


@pytest.mark.parametrize("name", ["loudest", "with_gaps"])
def test_a_network_that_has_diverged_is_not_the_fault_of_a_score_of_the_users_own(own_scorer, name):
    own = own_scorer(name)
    own(diverged(), [pictures(2), pictures(1)])
    assert not own.check()
    of_losses = Scorer(lambda losses: losses, passes(), own="mine:score")
    of_losses(diverged(), [pictures(2)], labels=[1])
    assert not of_losses.check()


@pytest.mark.parametrize("name", SCORES)
def test_a_built_in_score_of_a_diverged_network_is_reported_at_the_next_check(name):
    of_name = scorer(SCORES[name])
    of_name(SETTLED(), [pictures(2)])
    (scores,) = of_name(diverged(), [pictures(3)])
    assert scores.isnan().all() or name == "RM"  # it counts votes, and NaN has an argmax
    assert not of_name.check()
    assert of_name.check()  # only what came since the last check counts


def test_a_score_that_is_not_finite_where_the_network_is_is_refused_when_checked():
    flawed = scorer(lambda logits_PNC: entropy(logits_PNC) / 0)
    flawed(SETTLED(), [pictures(2), pictures(1)])  # this call does not wait for the values
    with pytest.raises(InputError):
        flawed.check()
    assert flawed.check()


@pytest.mark.parametrize("path", [":", ":loudest", "no_such_module_anywhere:score", "ucl.scorers:lowdest", "quux"])
def test_a_score_that_does_not_exist_is_refused(path):
    with pytest.raises(InputError) as refusal:
        resolve(path)
    assert (refusal.value.name, refusal.value.value) == ("score", path)


def test_the_control_is_uniform_whatever_the_logits_are():
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        scores_N = uniform(torch.zeros(12, 4000, 10))
    assert scores_N.dtype == torch.float64 and scores_N.shape == (4000,)
    assert scipy.stats.kstest(scores_N.numpy(), "uniform").pvalue > 0.01


@pytest.mark.parametrize("batchnorm", ["eval", "train"])
def test_a_score_gets_labels_features_and_losses_of_the_plain_images_and_no_views_unasked(monkeypatch, batchnorm):
    model = copy_of(SETTLED()).train()
    images, seen, before = pictures(5), {}, state_of(model)

    def score(features_ND, labels_N, losses):
        seen.update(features_ND=features_ND, labels_N=labels_N, losses=losses)
        return losses

    of_losses = Scorer(score, passes(batchnorm=batchnorm), own="mine:score")
    monkeypatch.setattr(of_losses.passes, "logits", lambda *_: pytest.fail("views were computed"))
    scores = of_losses(model, [images[:2], images[2:]], labels=[3, 1])
    assert same_state(model, before) and model.training and of_losses.check()
    model.eval()
    with torch.no_grad():
        features_ND, logits_NC = model.features(model.normalize(images)), model(images)
    assert seen["labels_N"].tolist() == [3, 3, 1, 1, 1]
    torch.testing.assert_close(seen["features_ND"], features_ND, rtol=1e-3, atol=1e-4)
    losses = nn.functional.cross_entropy(logits_NC, torch.tensor([3, 3, 1, 1, 1]), reduction="none")
    torch.testing.assert_close(torch.cat(scores).float(), losses, rtol=1e-3, atol=1e-4)


# What is refused


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("view_space", "pixel"),
        ("batchnorm", "training"),
        ("view_draws", "fix"),
        ("n_draws", 0),
        ("dropout_passes", -1),
        ("chunk", 0),
        ("averaging", "probability"),
        ("score", "BI"),
    ],
)
def test_an_unknown_value_is_refused(name, value):
    with pytest.raises(InputError) as refusal:
        scorer(**{name: value})
    assert refusal.value.name == name


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if not row.of_probabilities])
def test_a_score_that_compares_the_passes_cannot_be_taken_of_mean_probabilities(name):
    with pytest.raises(InputError):
        scorer(SCORES[name], averaging="probabilities")


@pytest.mark.parametrize("batchnorm", ["eval", "train"])
@pytest.mark.parametrize("wrong", [pictures(2), [], [pictures(2)[0]], [pictures(2)[:0]], [2]])
def test_candidates_that_are_not_images_of_each_class_are_refused(wrong, batchnorm):
    asked = scorer(batchnorm=batchnorm)
    for ask in (asked, asked.passes.logits):
        with pytest.raises(InputError):
            ask(copy_of(SETTLED()), wrong)


def test_a_plain_module_is_refused_and_scored_when_wrapped():
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, 5))
    for ask in (scorer(), passes().logits):
        with pytest.raises(InputError):
            ask(net, [pictures(2)])
    assert scorer()(OwnNetwork(net, "name", 5, 3, 28, MEAN, STD), [pictures(2)])[0].shape == (2,)


# Any candidates


@pytest.mark.parametrize("batchnorm", ["eval", "train"])
def test_a_class_without_candidates_has_no_scores_and_changes_no_other(batchnorm):
    images = pictures(6)
    whole = scorer(batchnorm=batchnorm)(copy_of(SETTLED()), [images])
    found = scorer(batchnorm=batchnorm)(copy_of(SETTLED()), [images[:0], images, images[:0]])
    assert [len(scores) for scores in found] == [0, 6, 0] and torch.equal(found[1], whole[0])


@pytest.mark.parametrize("how", [{}, {"view_space": "normalized"}, {"batchnorm": "train"}])
def test_float_images_have_the_scores_of_the_same_pixels(how):
    images = pictures(6)
    of_pixels, of_floats = (scorer(**how)(copy_of(SETTLED()), [of])[0] for of in (images, images / 255))
    torch.testing.assert_close(of_floats, of_pixels)
