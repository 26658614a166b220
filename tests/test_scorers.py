"""The scores compared with their formulas written out as loops, and the scorer compared with plain forward passes."""

import copy
import functools
import itertools
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


NAIVE = dict(LC=naive_lc, MS=naive_ms, RC=naive_rc, EN=naive_en, RM=naive_rm, BI=naive_bi, MC=naive_mc)


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
    assert got.tolist() == pytest.approx(expected, abs=1e-9, rel=1e-9 if name == "MC" else 0)


@pytest.mark.parametrize("name", NAIVE)
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


def trained(dropout=0.0):
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


SETTLED, DROPPING = functools.cache(trained), functools.cache(functools.partial(trained, dropout=0.3))


def copy_of(model):
    """A copy with the same weights, statistics and mode, because no test may change a shared network."""
    return copy.deepcopy(model)


def passes(seed=0, **how):
    return ScoringPasses(torch.Generator().manual_seed(seed), **how)


def scorer(score=bregman_information, seed=0, averaging="scores", **how):
    return Scorer(score, passes(seed, **how), averaging)


def together(parts):
    """The images of several classes, and the numbers of images of each."""
    return {"images": torch.cat(list(parts)), "sizes": dict(enumerate(map(len, parts)))}


def state_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def moved(model, before):
    """The names of the weights and statistics that differ from an earlier state."""
    return {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}


@torch.no_grad()
def plain_logits(model, candidates, seed, view_space="pixels", per_image=True):
    """The logits of the 12 views by the plain network in its current mode, class after class."""
    generator, fill, logits = torch.Generator().manual_seed(seed), torch.tensor(MEAN), []
    forward = model.logits if view_space == "normalized" else model
    for images in candidates:
        x = model.normalize(images) if view_space == "normalized" else images / 255
        parameters = views.draw(len(x) if per_image else 1, x.shape[-1], generator)
        parameters = parameters if per_image else parameters[torch.zeros(len(x), dtype=torch.int64)]
        logits.append(torch.stack([forward(view) for view in views.apply(x, parameters, fill)]))
    return torch.cat(logits, 1)


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
    model = copy_of(DROPPING()).train(training)
    before, drawn = state_of(model), torch.get_rng_state()
    candidates = [pictures(3), pictures(2, seed=1)]
    scores = scorer(**how)(model, **together(candidates))
    assert scores.shape == (5,) and scores.dtype == torch.float64
    assert torch.equal(candidates[0], pictures(3)) and scores.isfinite().all()
    statistics = {name for name in before if name.endswith(("running_mean", "running_var"))}
    assert moved(model, before) == (statistics if how.get("batchnorm") == "train" else set())
    assert all(module.training is training for module in model.modules())
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    assert torch.equal(torch.get_rng_state(), drawn)


@torch.no_grad()
def plain_training_passes(model, candidates, seed, view_space="pixels", order=range(12)):
    """Float64 passes of torch's modules in training mode: class after class, and view after view in each class."""
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


@pytest.mark.parametrize(("view_space", "training"), [("pixels", True), ("normalized", False)])
def test_in_training_mode_logits_and_statistics_are_those_of_plain_passes(training, view_space):
    """The views are those of evaluation mode, one pass per view and class in order; weights and mode do not change."""
    candidates = [pictures(4), pictures(6, seed=8)]
    model = copy_of(SETTLED()).train(training)
    got = passes(seed=4, batchnorm="train", view_space=view_space).logits(model, torch.cat(candidates), sizes=[4, 6])
    expected, plain = plain_training_passes(SETTLED(), candidates, 4, view_space)
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()
    assert furthest(model, plain) < 1e-4
    for others in ((candidates[::-1], range(12)), (candidates, range(11, -1, -1))):
        _, turned = plain_training_passes(SETTLED(), others[0], 4, view_space, others[1])
        assert furthest(model, turned) > 1e-2  # the order matters


@pytest.mark.parametrize("batchnorm", ["eval", "train"])
def test_several_draws_of_the_views_are_scored_together(batchnorm):
    candidates, model, other = [pictures(3), pictures(2, seed=1)], copy_of(SETTLED()), copy_of(SETTLED())
    got = passes(seed=3, n_draws=3, batchnorm=batchnorm).logits(model, candidates[0])
    once = passes(seed=3, batchnorm=batchnorm)
    expected = torch.cat([once.logits(other, candidates[0]) for _ in range(3)])
    assert got.shape == (36, 3, 5) and torch.equal(got, expected) and not moved(model, state_of(other))
    assert not torch.equal(got[:12], got[12:24])
    assert scorer(entropy, n_draws=2, batchnorm=batchnorm)(model, **together(candidates)).shape == (5,)


@pytest.mark.parametrize("n_draws", [1, 2])
@pytest.mark.parametrize("batchnorm", ["eval", "train"])
def test_an_image_has_the_same_fixed_views_whenever_and_with_whatever_it_is_scored(batchnorm, n_draws):
    """Its position determines them; in training mode, other images of the class affect the logits, not the views."""
    images, at, seen = pictures(6), torch.tensor([7, 3, 1, 400, 0, 9]), {}
    for seed, chosen in ((0, [0, 1, 2]), (0, [2, 1, 5]), (0, [1]), (8, [1])):
        fixed = passes(seed=seed, view_draws="fixed", n_draws=n_draws, batchnorm=batchnorm)
        fixed.logits(SETTLED() if batchnorm == "eval" else copy_of(SETTLED()), images[chosen], at[chosen])
        for turn, parameters in enumerate(fixed._draws(images[chosen], [len(chosen)], at[chosen])):
            for index, i in enumerate(chosen):
                row = torch.cat([getattr(parameters, name)[index].flatten() for name in ("affine", "crop")])
                assert torch.equal(seen.setdefault((seed, i, turn), row), row)
    for (one, row), (another, other) in itertools.combinations(seen.items(), 2):
        assert not torch.equal(row, other), (one, another)


@pytest.mark.parametrize("view_space", ["pixels", "normalized"])
@pytest.mark.parametrize("view_draws", ["image", "batch"])
def test_logits_are_the_networks_in_evaluation_mode_on_the_12_views(view_draws, view_space):
    """Of all views, although equal ones share a pass. Draws are for each image or for all images of a class."""
    candidates = pictures(40, seed=2).split([15, 25])
    got = passes(seed=9, view_draws=view_draws, view_space=view_space).logits(
        SETTLED(), torch.cat(candidates), sizes=[15, 25]
    )
    expected = plain_logits(copy_of(SETTLED()).eval(), candidates, 9, view_space, per_image=view_draws == "image")
    assert got.shape == (12, 40, 5)
    assert expected.std(0).mean() > 0.01  # the views do differ
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("how", [{}, dict(view_draws="batch"), dict(batchnorm="train")], ids=str)
def test_how_many_views_are_held_at_a_time_does_not_show(how, monkeypatch):
    """In training mode, the statistics of a view are those of all images of the class, not of a chunk."""
    candidates, results = [pictures(5), pictures(1, seed=1), pictures(7, seed=2)], []
    for chunk in (1000, 1, 3, 12, 13):
        monkeypatch.setattr("ucl.scorers.passes._CHUNK_ON_CPU", chunk)
        model = copy_of(SETTLED())
        results.append((passes(**how).logits(model, torch.cat(candidates), sizes=[5, 1, 7]), state_of(model)))
    for logits_PNC, state in results[1:]:
        torch.testing.assert_close(logits_PNC, results[0][0], rtol=1e-4, atol=1e-5)
        assert all(torch.equal(values, results[0][1][name]) for name, values in state.items())


@pytest.mark.parametrize("how", [{}, dict(dropout_passes=5), dict(batchnorm="train")], ids=str)
def test_scoring_repeats_with_its_generator_and_goes_on_drawing(how):
    images = pictures(3)
    first = scorer(seed=6, **how)
    a, b = first(copy_of(DROPPING()), images), first(copy_of(DROPPING()), images)
    torch.manual_seed(99)  # the global random state has no influence
    again = scorer(seed=6, **how)
    assert torch.equal(again(copy_of(DROPPING()), images), a)
    assert torch.equal(again(copy_of(DROPPING()), images), b)
    assert not torch.equal(a, b)
    assert not torch.equal(scorer(seed=7, **how)(copy_of(DROPPING()), images), a)


@needs_bfloat16
def test_bfloat16_scores_are_close_and_rank_alike():
    images = pictures(40, seed=3)
    exact, coarse = (scorer(seed=1, dtype=dtype)(SETTLED(), images) for dtype in (torch.float32, torch.bfloat16))
    assert not torch.equal(exact, coarse)
    assert (coarse - exact).abs().max() < 0.1 * exact.max()
    assert scipy.stats.spearmanr(exact.numpy(), coarse.numpy()).statistic > 0.95


@pytest.mark.parametrize("name", [name for name in NAIVE if ROWS[name].of_probabilities])
def test_averaging_probabilities_scores_the_mean_of_the_views(name):
    images = pictures(6)
    got = scorer(SCORES[name], averaging="probabilities")(SETTLED(), images)
    mean_NC = scipy.special.softmax(passes().logits(SETTLED(), images).double().numpy(), -1).mean(0)
    expected = [NAIVE[name]([np.log(p_C).tolist()]) for p_C in mean_NC]
    assert got.tolist() == pytest.approx(expected, abs=1e-9)


@torch.no_grad()
def test_the_dropout_score_is_the_variance_of_plain_dropout_passes():
    """With 200 passes each, means and variances agree within the sampling error."""
    images, model = pictures(3, seed=5), copy_of(DROPPING()).eval()
    got = passes(dropout_passes=200).logits(model, images).double()
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
    images, model, plain = pictures(5), copy_of(DROPPING()), copy_of(DROPPING()).train()
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
    expected = passes().logits(SETTLED(), images).double().abs().amax((0, 2))
    torch.testing.assert_close(users_scorer(loudest)(SETTLED(), images), expected)
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
        users_scorer(WRONG[name])(SETTLED(), pictures(3))


def diverged():
    """A network after one step along a gradient of NaN: all weights are NaN."""
    model = copy_of(SETTLED())
    for weight in model.parameters():
        nn.init.constant_(weight, math.nan)
    return model


@pytest.mark.parametrize("function", [loudest, with_gaps, lambda losses: losses])
def test_a_network_that_has_diverged_is_not_the_fault_of_a_users_score(function):
    scores = users_scorer(function)(diverged(), pictures(3), sizes={1: 2, 0: 1})
    assert scores.isnan().any()


def test_one_logit_that_is_not_finite_is_a_network_that_has_diverged(monkeypatch):
    """A score that compares images with each other then has no finite number at all."""
    score, logits_PNC = users_scorer(lambda logits: logits.mean((0, 2)) - logits.mean()), torch.zeros(12, 3, 5)
    logits_PNC[0, 1, 2] = math.inf
    monkeypatch.setattr(score.passes, "logits", lambda *_: logits_PNC)
    scores = score(SETTLED(), pictures(3))
    assert not scores.isfinite().any()


def test_a_users_score_that_is_not_finite_where_a_class_is_masked_is_refused(monkeypatch):
    score, logits_PNC = users_scorer(lambda logits: logits.var(0).mean(-1)), torch.zeros(12, 3, 5)
    logits_PNC[..., 4] = -math.inf
    monkeypatch.setattr(score.passes, "logits", lambda *_: logits_PNC)
    with pytest.raises(InputError):
        score(SETTLED(), pictures(3))


def test_the_control_is_uniform():
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        scores_N = uniform(torch.zeros(4000, dtype=torch.int64))
    assert scores_N.dtype == torch.float64 and scores_N.shape == (4000,)
    assert scipy.stats.kstest(scores_N.numpy(), "uniform").pvalue > 0.01


@pytest.mark.parametrize("batchnorm", ["eval", "train"])
def test_a_score_gets_labels_features_and_losses_of_the_plain_images(monkeypatch, batchnorm):
    """Views that it does not ask for are computed in training mode only, where they move the statistics."""
    model = copy_of(SETTLED()).train()
    images, seen, before = pictures(5), {}, state_of(model)

    def score(features_ND, labels_N, losses):
        seen.update(features_ND=features_ND, labels_N=labels_N, losses=losses)
        return losses

    scorer_of_losses = Scorer(score, passes(batchnorm=batchnorm), path="mine:score")
    if batchnorm == "eval":
        monkeypatch.setattr(scorer_of_losses.passes, "logits", lambda *_: pytest.fail("views were computed"))
    scores = scorer_of_losses(model, images, sizes={3: 2, 1: 3})
    assert bool(moved(model, before)) == (batchnorm == "train") and model.training
    model.eval()
    with torch.no_grad():
        features_ND, logits_NC = model.features_and_logits(model.normalize(images))
    assert seen["labels_N"].tolist() == [3, 3, 1, 1, 1]
    torch.testing.assert_close(seen["features_ND"], features_ND, rtol=1e-3, atol=1e-4)
    losses = nn.functional.cross_entropy(logits_NC, torch.tensor([3, 3, 1, 1, 1]), reduction="none")
    torch.testing.assert_close(scores.float(), losses, rtol=1e-3, atol=1e-4)


# What is refused


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("view_space", "pixel"),
        ("batchnorm", "training"),
        ("view_draws", "fix"),
        ("n_draws", 0),
        ("dropout_passes", -1),
        ("averaging", "probability"),
    ],
)
def test_an_unknown_value_is_refused(name, value):
    with refused(name):
        scorer(**{name: value})


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


@pytest.mark.parametrize("batchnorm", ["eval", "train"])
def test_a_class_without_candidates_has_no_scores_and_changes_no_other(batchnorm):
    images = pictures(6)
    expected = scorer(batchnorm=batchnorm)(copy_of(SETTLED()), images)
    scores = scorer(batchnorm=batchnorm)(copy_of(SETTLED()), images, sizes={2: 0, 1: 6, 0: 0})
    assert torch.equal(scores, expected)


@pytest.mark.parametrize("how", [{}, {"view_space": "normalized"}, {"batchnorm": "train"}])
def test_float_images_have_the_scores_of_the_same_pixels(how):
    images = pictures(6)
    expected, scores = (scorer(**how)(copy_of(SETTLED()), x) for x in (images, images / 255))
    torch.testing.assert_close(scores, expected)
