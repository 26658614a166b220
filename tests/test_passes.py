"""The fast training-mode passes compared with torch's modules, one pass after another, in float64."""

import copy

import pytest
import scipy.stats
import torch
from conftest import unchanged
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ucl.models import SlimResNet18, training_mode
from ucl.models.batchnorm import BatchNorm2d
from ucl.models.network import norms_of
from ucl.models.passes import in_evaluation_mode, in_training_mode
from ucl.models.slim_resnet import slim_resnet18_groupnorm
from ucl.models.training_mode import TrainingModeNetwork
from ucl.scorers import ScoringPasses
from ucl.scorers import passes as scoring


def network(size=28, channels=3, kind=SlimResNet18, **how):
    """Uneven weights and statistics, some scales negative, as training leaves them."""
    torch.manual_seed(size)
    model = kind(5, channels, size, **how)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d | nn.GroupNorm):
            nn.init.normal_(norm.weight, 0.8, 0.5)
            nn.init.normal_(norm.bias, 0, 0.3)
    for norm in norms_of(model):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    return model


def images_of_passes(n_passes, n_images, channels=3, size=28):
    """Normalised images (P, N, C, H, W); each pass has another shade and contrast."""
    draw = torch.Generator().manual_seed(0)
    shade, contrast = torch.rand(2, n_passes, 1, channels, 1, 1, generator=draw)
    images = torch.randn(n_passes, n_images, channels, size, size, generator=draw)
    return 4 * shade + (0.5 + contrast) * images


@torch.no_grad()
def plain_passes(model, x_PNCHW, sizes=None):
    """Logits class after class, and in each class pass after pass; and the network afterwards."""
    exact, classes = copy.deepcopy(model).double().train(), x_PNCHW.double().split(sizes or x_PNCHW.shape[1], 1)
    return torch.cat([torch.stack([*map(exact.logits, class_PNCHW)]) for class_PNCHW in classes], 1), exact


def assert_close(got, expected, tolerance):
    assert got.dtype == torch.float32 and got.shape == expected.shape
    assert (got - expected).abs().max() < tolerance * expected.abs().max()


def furthest(model, other):
    """The largest difference of a running statistic, relative to the mean magnitude in its layer."""
    pairs = [(a.double(), b.double()) for a, b in zip(model.buffers(), other.buffers(), strict=True)]
    return torch.stack([(a - b).abs().max() / b.abs().mean() for a, b in pairs]).max()


@pytest.mark.parametrize(
    ("size", "channels", "n_passes", "n_images", "threads"),
    [(28, 3, 12, 5, 1), (28, 1, 3, 2, 2), (25, 3, 12, 1, 1), (32, 3, 3, 20, 1), (64, 1, 2, 3, 1)],
)
def test_logits_and_statistics_are_those_of_plain_passes(size, channels, n_passes, n_images, threads, set_threads):
    set_threads(threads)
    model, x = network(size, channels), images_of_passes(n_passes, n_images, channels, size)
    expected, exact = plain_passes(model, x)
    assert_close(TrainingModeNetwork(model).logits(x), expected, 2e-4)
    assert furthest(model, exact) < 1e-4


class CountedOperations(TorchDispatchMode):
    """Counts the operations within the block, views and copies included."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def joined(model, dtype=torch.float32):
    """The passes of all classes at once, as on a GPU."""
    network = TrainingModeNetwork(model, dtype)
    network.joins_classes = True
    return network


@pytest.mark.parametrize("chunk", [1, 40, 1000])  # one pass, three passes and all passes at once
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("make", "multiple"), [(TrainingModeNetwork, 1), (joined, 1), (joined, 8)])
def test_classes_of_any_sizes_have_passes_of_their_own(chunk, channels, make, multiple, monkeypatch):
    monkeypatch.setattr("ucl.models.folded.multiple_of_channels", lambda *_: multiple)
    monkeypatch.setattr(training_mode, "_CHUNK_ON_CPU", chunk)
    sizes, model = [1, 6, 3], network(channels=channels)
    exact, network_of_all = model, make(model)
    for x in images_of_passes(8, 10, channels).split(4):  # two scorings; the running statistics go on
        expected, exact = plain_passes(exact, x, sizes)
        assert_close(network_of_all.logits(x, sizes), expected, 1e-4)
        assert furthest(model, exact) < 1e-5


def test_joined_classes_are_as_exact_as_pass_after_pass():
    x, sizes = images_of_passes(6, 12), [1, 3, 6, 2]
    x += 20  # means that are large compared with the deviations
    errors = []
    for make in (TrainingModeNetwork, joined):
        model = network()
        expected, exact = plain_passes(model, x, sizes)
        pairs = [(make(model).logits(x, sizes), expected), *zip(model.buffers(), exact.buffers(), strict=True)]
        errors.append(torch.stack([(got - true).norm() / true.norm() for got, true in pairs]))
    assert (errors[1][0] < 1.5 * errors[0][0]).all() and errors[1][1:].mean() < 1.5 * errors[0][1:].mean()


def test_the_number_of_operations_depends_neither_on_classes_nor_on_passes():
    counts = set()
    for n_passes, sizes in ((1, [6]), (4, [1, 2, 3]), (12, [1] * 6)):
        with CountedOperations() as operations:
            joined(network()).logits(images_of_passes(n_passes, 6), sizes)
        counts.add(operations.count)
    assert len(counts) == 1


@pytest.mark.parametrize("how", [{}, dict(n_draws=2), dict(view_draws="batch"), dict(dropout_passes=3)], ids=str)
def test_scoring_classes_at_once_is_scoring_one_after_another(how, monkeypatch):
    """On more images than are scored at once, too; an empty class has no passes."""
    images = torch.randint(0, 256, (9, 3, 28, 28), generator=torch.Generator().manual_seed(1)).byte()
    candidates, plain = images.split([2, 1, 0, 2, 4]), network()
    passes = ScoringPasses(torch.Generator().manual_seed(3), batchnorm="train", **how)
    expected = torch.cat([passes.logits(plain, of_class) for of_class in candidates if len(of_class)], 1)
    monkeypatch.setattr(scoring, "images_at_once", lambda *_: 6)
    for make in (TrainingModeNetwork, joined):
        monkeypatch.setattr(scoring, "in_training_mode", make)
        passes.generator.manual_seed(3)
        model = network()
        torch.testing.assert_close(passes.logits(model, images, sizes=[2, 1, 0, 2, 4]), expected, rtol=1e-4, atol=1e-4)
        assert furthest(model, plain) < 1e-5


class Negated(SlimResNet18):
    def features_and_logits(self, x_NCHW):
        features, logits = super().features_and_logits(x_NCHW)
        return features, -logits


class Shifted(BatchNorm2d):
    def forward(self, x_NCHW):
        return super().forward(x_NCHW) + 1


class Cosine(nn.Linear):
    def forward(self, x_NF):
        return nn.functional.linear(nn.functional.normalize(x_NF), nn.functional.normalize(self.weight))


CHANGES = {
    "class": lambda model: setattr(model, "__class__", Negated),
    "norm": lambda model: setattr(model.blocks[1].bn1, "__class__", Shifted),
    "head": lambda model: setattr(model, "linear", Cosine(model.linear.in_features, 5)),
    "hook": lambda model: model.blocks[1].register_forward_hook(lambda layer, given, output: -output),
    "hook before": lambda model: model.blocks[1].register_forward_pre_hook(lambda layer, given: (-given[0],)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_passes_of_a_changed_network_are_its_own(change):
    model, x_PNCHW = network(width=8), images_of_passes(2, 6)
    change(model)
    with torch.no_grad():
        in_training = torch.stack([model.logits(x_NCHW) for x_NCHW in x_PNCHW])
        in_evaluation = model.eval().logits(x_PNCHW[0])
    torch.testing.assert_close(in_evaluation_mode(model).logits(x_PNCHW[0]), in_evaluation)
    torch.testing.assert_close(in_training_mode(model).logits(x_PNCHW), in_training)


@pytest.mark.parametrize(("make", "sizes"), [(TrainingModeNetwork, [20]), (joined, [7, 10, 3])])
def test_bfloat16_is_close_and_ranks_alike(make, sizes):
    model, x = network(), images_of_passes(12, 20)
    expected, exact = plain_passes(model, x, sizes)
    got = make(model, torch.bfloat16).logits(x, sizes)
    assert got.dtype == torch.float32
    error = (got - expected).square().mean().sqrt() / expected.std()
    assert 1e-4 < error < 0.05
    assert furthest(model, exact) < 0.02
    for ours, theirs in zip(got.flatten(1), expected.flatten(1), strict=True):
        assert scipy.stats.spearmanr(ours, theirs).statistic > 0.995


def test_dropout_draws_masks_of_its_rate_for_every_pass():
    """Passes of the same images differ only in their masks; on average they agree with torch's."""
    model = network(dropout=0.3)
    x = images_of_passes(1, 4).expand(60, -1, -1, -1, -1)
    got = TrainingModeNetwork(copy.deepcopy(model)).logits(x).double()
    assert (got.std(0) > 0).all()
    expected, _ = plain_passes(model, x)
    error = ((got.var(0) + expected.var(0)) / len(x)).sqrt()
    assert ((got.mean(0) - expected.mean(0)).abs() < 5 * error).all()
    assert (got.var(0).mean() / expected.var(0).mean()).item() == pytest.approx(1, abs=0.2)


@pytest.fixture
def grouped():
    return network(kind=slim_resnet18_groupnorm, dropout=0.3)


def test_group_normalisation_replaces_every_batch_normalisation(grouped):
    batched = SlimResNet18(5, 3, 28)
    assert not grouped.has_running_statistics and batched.has_running_statistics
    ours, theirs = ([(name, p.shape) for name, p in model.named_parameters()] for model in (grouped, batched))
    assert ours == theirs
    assert {name for name, _ in grouped.named_buffers()} == {"mean", "std"}
    norms = [module for module in grouped.modules() if isinstance(module, nn.GroupNorm)]
    assert len(norms) == 20 and {norm.num_channels for norm in norms} == {20, 40, 80, 160}


def test_its_passes_are_those_of_the_network_one_image_at_a_time(grouped):
    exact, x = copy.deepcopy(grouped).double().eval(), images_of_passes(1, 7)[0]
    expected = torch.cat([exact.logits(image[None].double()) for image in x]).detach()
    assert_close(in_evaluation_mode(grouped).logits(x), expected, 1e-4)
    coarse = in_evaluation_mode(grouped, torch.bfloat16).logits(x)
    assert coarse.dtype == torch.float32
    assert 1e-4 < (coarse - expected).square().mean().sqrt() / expected.std() < 0.05


def test_its_passes_drop_where_they_are_asked_to_and_leave_it_as_it_is(grouped):
    x = images_of_passes(1, 4)[0]
    with unchanged(grouped), torch.random.fork_rng([]):
        dropping, still = (in_evaluation_mode(grouped, torch.bfloat16, dropout) for dropout in (True, False))
        assert not torch.equal(dropping.logits(x), dropping.logits(x))
        assert torch.equal(still.logits(x), still.logits(x))


@pytest.mark.parametrize("dropout_passes", [0, 20])
def test_scoring_it_in_training_mode_is_scoring_it_in_evaluation_mode(grouped, dropout_passes):
    images = torch.randint(0, 256, (5, 3, 28, 28), generator=torch.Generator().manual_seed(1)).byte()
    both = [ScoringPasses(torch.Generator().manual_seed(3), dropout_passes, batchnorm=b) for b in ("eval", "train")]
    assert torch.equal(*(passes.logits(grouped, images, sizes=[2, 3]) for passes in both))
