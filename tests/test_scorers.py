"""The scores compared with their formulas by numpy and scipy, and the scorer compared with plain forward passes."""

import copy
import functools
import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from conftest import needs_bfloat16, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from test_passes import furthest
from torch import nn

from ucl import views
from ucl.catalogue import SCORES as ROWS
from ucl.errors import InputError
from ucl.models import OwnNetwork, SlimResNet18
from ucl.scorers import (
    SCORES,
    Scorer,
    ScoringPasses,
    bregman_information,
    dropout_variance,
    entropy,
    mean_probabilities,
    resolve,
)

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)


# The paper's formulas, for the logits (P, C) of one image


def top_two(z_PC):
    return np.sort(scipy.special.softmax(z_PC, 1))[:, :-3:-1].T


NAIVE = {
    "LC": lambda z_PC: 1 - top_two(z_PC)[0].mean(),
    "MS": lambda z_PC: 1 - np.mean(top_two(z_PC)[0] - top_two(z_PC)[1]),
    "RC": lambda z_PC: np.mean(top_two(z_PC)[1] / top_two(z_PC)[0]),
    "EN": lambda z_PC: scipy.special.entr(scipy.special.softmax(z_PC, 1)).sum(1).mean(),
    "RM": lambda z_PC: 1 - np.bincount(z_PC.argmax(1)).max() / len(z_PC),
    "BI": lambda z_PC: scipy.special.logsumexp(z_PC, 1).mean() - scipy.special.logsumexp(z_PC.mean(0)),
    "MC": lambda z_PC: z_PC.var(0).mean(),
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


@pytest.mark.parametrize("name", SCORES)
@settings(deadline=None, max_examples=40)
@given(z=logits())
def test_a_score_is_its_formula(name, z):
    got = SCORES[name](z)
    expected = [NAIVE[name](z[:, n].double().numpy()) for n in range(z.shape[1])]
    assert got.shape == (z.shape[1],)
    # The variance of logits reaches 90,000, so its tolerance is relative.
    assert got.tolist() == pytest.approx(expected, abs=1e-9, rel=1e-9 if name == "MC" else 0)


@pytest.mark.parametrize("name", SCORES)
def test_a_class_that_a_network_masks_changes_no_score(name):
    z = torch.randn(12, 5, 4)
    masked = torch.cat([z, torch.full((12, 5, 1), -torch.inf)], dim=-1)
    expected = SCORES[name](z) * (4 / 5 if name == "MC" else 1)  # a mean over the classes
    torch.testing.assert_close(SCORES[name](masked), expected)


@settings(deadline=None, max_examples=50)
@given(z=logits())
def test_mean_probabilities_are_logits_of_the_mean_softmax(z):
    expected = scipy.special.softmax(z.double().numpy(), -1).mean(0)
    got = mean_probabilities(z)
    assert got.shape == (1, *z.shape[1:])
    np.testing.assert_allclose(got[0].softmax(-1).numpy(), expected, atol=1e-12)


# The scorer and its model


def pictures(n, seed=0):
    """Smooth pictures, unlike each other in colour and shade: views of noise would all look the same."""
    draw = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, 3, 4, 4, generator=draw) * torch.rand(n, 1, 1, 1, generator=draw)
    return (nn.functional.interpolate(coarse, size=(28, 28), mode="bilinear") * 255).byte()


@functools.cache
@torch.enable_grad()
def trained(dropout):
    """A network of 16 filters whose weights and BatchNorm statistics some steps of SGD have moved."""
    torch.manual_seed(3)
    model = SlimResNet18(5, channels=3, image_size=28, mean=MEAN, std=STD, dropout=dropout, width=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        images = pictures(10, seed=100 + step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), torch.arange(10) % 5).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model


def network(dropout=0.0):
    """A copy, because no test may change a shared network."""
    return copy.deepcopy(trained(dropout))


def passes(seed=0, **how):
    return ScoringPasses(torch.Generator().manual_seed(seed), **how)


def scorer(score=bregman_information, seed=0, averaging="scores", **how):
    return Scorer(score, passes(seed, **how), averaging)


def moved(model, start):
    """The names of the weights and statistics in which two networks differ."""
    pairs = zip(model.state_dict().items(), start.state_dict().values(), strict=True)
    return {name for (name, value), other in pairs if not torch.equal(value, other)}


@torch.no_grad()
def plain_passes(model, candidates, seed, view_space="pixels", per_image=True, order=range(12)):
    """Float64 logits of the 12 views in the network's mode, class after class and view after view; and the network."""
    draw, exact, logits = torch.Generator().manual_seed(seed), copy.deepcopy(model).double(), []
    for images in candidates:
        x = model.normalize(images) if view_space == "normalized" else images / 255
        if per_image:
            inputs = views.perturb(x, draw, MEAN)
        else:
            inputs = views.apply(x, views.draw(1, 28, draw)[torch.zeros(len(x), dtype=torch.int64)], MEAN)
        if view_space == "pixels":
            inputs = model.normalize(inputs.flatten(0, 1)).unflatten(0, (12, -1))
        logits.append(torch.stack([exact.logits(inputs[view].double()) for view in order]))
    return torch.cat(logits, 1), exact


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
        dict(batchnorm="train"),
        dict(batchnorm="train", dropout_passes=20, score=dropout_variance),
    ],
    ids=lambda how: "-".join(how) or "default",
)
def test_scoring_leaves_the_model_as_it_was(how, training):
    model = network(0.3).train(training)
    images, drawn = pictures(5), torch.get_rng_state()
    scores = scorer(**how)(model, images, sizes={0: 3, 1: 2})
    assert scores.shape == (5,) and scores.dtype == torch.float64
    assert torch.equal(images, pictures(5)) and scores.isfinite().all()
    statistics = {name for name in model.state_dict() if name.endswith(("running_mean", "running_var"))}
    assert moved(model, network(0.3)) == (statistics if how.get("batchnorm") == "train" else set())
    assert all(module.training is training for module in model.modules())
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize(("view_space", "training"), [("pixels", True), ("normalized", False)])
def test_in_training_mode_logits_and_statistics_are_those_of_plain_passes(training, view_space):
    """The views are those of evaluation mode, one pass per view and class in order; weights and mode do not change."""
    candidates = [pictures(4), pictures(6, seed=8)]
    model, start = network().train(training), network().train()
    got = passes(seed=4, batchnorm="train", view_space=view_space).logits(model, torch.cat(candidates), sizes=[4, 6])
    expected, plain = plain_passes(start, candidates, 4, view_space)
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()
    assert furthest(model, plain) < 1e-4
    for classes, order in ((candidates[::-1], range(12)), (candidates, range(11, -1, -1))):
        _, turned = plain_passes(start, classes, 4, view_space, order=order)
        assert furthest(model, turned) > 1e-2  # the order matters


@pytest.mark.parametrize("batchnorm", ["eval", "train"])
def test_several_draws_of_the_views_are_scored_together(batchnorm):
    images, model, other, once = pictures(5), network(), network(), passes(seed=3, batchnorm=batchnorm)
    got = passes(seed=3, n_draws=3, batchnorm=batchnorm).logits(model, images)
    expected = torch.cat([once.logits(other, images) for _ in range(3)])
    assert got.shape == (36, 5, 5) and torch.equal(got, expected) and not moved(model, other)
    assert not torch.equal(got[:12], got[12:24])
    assert scorer(entropy, n_draws=2, batchnorm=batchnorm)(model, images, sizes={0: 3, 1: 2}).shape == (5,)


@pytest.mark.parametrize("n_draws", [1, 2])
@pytest.mark.parametrize("batchnorm", ["eval", "train"])
def test_an_image_has_the_same_fixed_views_whenever_and_with_whatever_it_is_scored(batchnorm, n_draws):
    """Its position determines them; in training mode, other images of the class affect the logits, not the views."""
    images, at, seen = pictures(6), torch.tensor([7, 3, 1, 400, 0, 9]), {}
    for seed, chosen in ((0, [0, 1, 2]), (0, [2, 1, 5]), (0, [1]), (8, [1])):
        fixed = passes(seed=seed, view_draws="fixed", n_draws=n_draws, batchnorm=batchnorm)
        fixed.logits(network(), images[chosen], at[chosen])
        for turn, parameters in enumerate(fixed._draws(images[chosen], [len(chosen)], at[chosen])):
            for index, i in enumerate(chosen):
                row = tuple(torch.cat([values[index].flatten() for values in vars(parameters).values()]).tolist())
                assert seen.setdefault((seed, i, turn), row) == row
    assert len(set(seen.values())) == len(seen)


@pytest.mark.parametrize(("view_draws", "view_space"), [("image", "pixels"), ("batch", "normalized")])
def test_logits_are_the_networks_in_evaluation_mode_on_the_12_views(view_draws, view_space):
    """Of all views, although equal ones share a pass. Draws are for each image or for all images of a class."""
    candidates = pictures(40, seed=2).split([15, 25])
    of_views = passes(seed=9, view_draws=view_draws, view_space=view_space)
    got = of_views.logits(network(), torch.cat(candidates), sizes=[15, 25])
    expected, _ = plain_passes(network().eval(), candidates, 9, view_space, per_image=view_draws == "image")
    assert got.shape == (12, 40, 5)
    assert expected.std(0).mean() > 0.01  # the views do differ
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("how", [{}, dict(batchnorm="train")], ids=str)
def test_how_many_views_are_held_at_a_time_does_not_show(how, monkeypatch):
    """In training mode, the statistics of a view are those of all images of the class, not of a chunk."""
    images, results = pictures(13), []
    for chunk in (1000, 1, 3, 12, 13):
        monkeypatch.setattr("ucl.scorers.passes._CHUNK_ON_CPU", chunk)
        model = network()
        results.append((passes(**how).logits(model, images, sizes=[5, 1, 7]), model))
        torch.testing.assert_close(results[-1][0], results[0][0], rtol=1e-4, atol=1e-5)
        assert not moved(model, results[0][1])


@pytest.mark.parametrize("how", [{}, dict(dropout_passes=5), dict(batchnorm="train")], ids=str)
def test_scoring_repeats_with_its_generator_and_goes_on_drawing(how):
    images = pictures(3)
    first = scorer(seed=6, **how)
    a, b = first(network(0.3), images), first(network(0.3), images)
    torch.manual_seed(99)  # the global random state has no influence
    again = scorer(seed=6, **how)
    assert torch.equal(again(network(0.3), images), a)
    assert torch.equal(again(network(0.3), images), b)
    assert not torch.equal(a, b)
    assert not torch.equal(scorer(seed=7, **how)(network(0.3), images), a)


@needs_bfloat16
def test_bfloat16_scores_are_close_and_rank_alike():
    images = pictures(40, seed=3)
    exact, coarse = (scorer(seed=1, dtype=dtype)(network(), images) for dtype in (torch.float32, torch.bfloat16))
    assert not torch.equal(exact, coarse)
    assert (coarse - exact).abs().max() < 0.1 * exact.max()
    assert scipy.stats.spearmanr(exact.numpy(), coarse.numpy()).statistic > 0.95


@pytest.mark.parametrize("name", [name for name in SCORES if ROWS[name].of_probabilities])
def test_averaging_probabilities_scores_the_mean_of_the_views(name):
    images = pictures(6)
    got = scorer(SCORES[name], averaging="probabilities")(network(), images)
    mean_NC = scipy.special.softmax(passes().logits(network(), images).double().numpy(), -1).mean(0)
    expected = [NAIVE[name](np.log(p_C)[None]) for p_C in mean_NC]
    assert got.tolist() == pytest.approx(expected, abs=1e-9)


def test_dropout_passes_in_training_mode_move_the_statistics_once_a_pass():
    """The stem has no dropout before it, so its statistics move as by plain passes of the same images."""
    images, model, plain = pictures(5), network(0.3), network(0.3).train()
    scorer(dropout_variance, dropout_passes=20, batchnorm="train")(model, images)
    with torch.no_grad():
        for _ in range(20):
            plain(images)
    torch.testing.assert_close(model.bn1.running_mean, plain.bn1.running_mean)
    torch.testing.assert_close(model.bn1.running_var, plain.bn1.running_var)
    drawn = (model.blocks[0].bn2.running_var, plain.blocks[0].bn2.running_var)  # after other masks of the same rate
    assert not torch.equal(*drawn) and torch.allclose(*drawn, rtol=0.1)


# A user's score


def loudest(logits):
    return logits.abs().amax((0, 2))


def users_scorer(function):
    return Scorer(function, passes(), path="mine:score")


def test_a_users_score_gets_the_logits_of_the_views():
    images = pictures(5)
    expected = loudest(passes().logits(network(), images))
    torch.testing.assert_close(users_scorer(loudest)(network(), images), expected.double())
    assert resolve("ucl.scorers:entropy") is entropy


def with_gaps(logits):
    return logits.std(0).mean(-1) / torch.tensor([0.0, 1.0, 1.0])


WRONG = {
    "axis": lambda logits: logits.mean(1),
    "number": lambda logits: logits.mean(),
    "list": lambda logits: [0.0] * logits.shape[1],
    "nothing": lambda logits: None,
    "gaps": with_gaps,
    "complex": lambda logits: torch.complex(logits, logits).std(0).mean(-1) + 1j,
    "device": lambda logits: logits.mean((0, 2)).to("meta"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_score_that_cannot_be_used_is_refused_with_its_path(name):
    with refused("score", "mine:score"):
        users_scorer(WRONG[name])(network(), pictures(3))


@pytest.mark.parametrize("function", [loudest, with_gaps, lambda losses: losses])
def test_a_network_that_has_diverged_is_not_the_fault_of_a_users_score(function):
    model = network()
    for weight in model.parameters():  # after one step along a gradient of NaN
        nn.init.constant_(weight, math.nan)
    assert users_scorer(function)(model, pictures(3), sizes={1: 2, 0: 1}).isnan().any()


def test_one_infinite_logit_is_a_network_that_has_diverged_and_a_masked_class_is_none(monkeypatch):
    """A score that compares images with each other has no finite number at all."""
    score, logits_PNC = users_scorer(lambda logits: logits.var(0).mean(-1) - logits.mean()), torch.zeros(12, 3, 5)
    monkeypatch.setattr(score.passes, "logits", lambda *_: logits_PNC)
    logits_PNC[0, 1, 2] = math.inf
    assert not score(network(), pictures(3)).isfinite().any()
    logits_PNC.zero_()[..., 4] = -math.inf
    with pytest.raises(InputError):
        score(network(), pictures(3))


@pytest.mark.parametrize("batchnorm", ["eval", "train"])
def test_a_score_gets_labels_features_and_losses_of_the_plain_images(monkeypatch, batchnorm):
    """Views that it does not ask for are computed in training mode only, where they move the statistics."""
    model = network().train()
    images, seen = pictures(5), {}

    def score(features_ND, labels_N, losses):
        seen.update(features_ND=features_ND, labels_N=labels_N, losses=losses)
        return losses

    scorer_of_losses = Scorer(score, passes(batchnorm=batchnorm), path="mine:score")
    if batchnorm == "eval":
        monkeypatch.setattr(scorer_of_losses.passes, "logits", lambda *_: pytest.fail("views were computed"))
    scores = scorer_of_losses(model, images, sizes={3: 2, 1: 3})
    assert bool(moved(model, network())) == (batchnorm == "train") and model.training
    model.eval()
    with torch.no_grad():
        features_ND, logits_NC = model.features_and_logits(model.normalize(images))
    assert seen["labels_N"].tolist() == [3, 3, 1, 1, 1]
    torch.testing.assert_close(seen["features_ND"], features_ND, rtol=1e-3, atol=1e-4)
    losses = nn.functional.cross_entropy(logits_NC, torch.tensor([3, 3, 1, 1, 1]), reduction="none")
    torch.testing.assert_close(scores, losses.double(), rtol=1e-3, atol=1e-4)


# What is refused


UNKNOWN = dict(view_space="pixel", batchnorm="on", view_draws="fix", averaging="score")


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_value_is_refused(name):
    with refused(name):
        scorer(**{name: UNKNOWN[name]})


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if not row.of_probabilities])
def test_a_score_that_compares_the_passes_cannot_be_taken_of_mean_probabilities(name):
    with pytest.raises(InputError):
        scorer(SCORES[name], averaging="probabilities")


def test_a_plain_module_is_refused_and_scored_when_wrapped():
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, 5))
    for function in (scorer(), passes().logits):
        with pytest.raises(InputError):
            function(net, pictures(2))
    assert scorer()(OwnNetwork(net, "name", 5, 3, 28, MEAN, STD), pictures(2)).shape == (2,)


@pytest.mark.parametrize("how", [{}, {"view_space": "normalized"}])
def test_float_images_have_the_scores_of_the_same_pixels(how):
    images = pictures(6)
    expected, scores = (scorer(**how)(network(), x) for x in (images, images / 255))
    torch.testing.assert_close(scores, expected)
