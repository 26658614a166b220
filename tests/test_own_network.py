"""A user's network gets the package's interface (modes, features, statistics) and is not changed itself."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from conftest import refused, unchanged
from own_objects import Grouped, batch_normed
from torch import nn

from ucl.methods import METHODS
from ucl.methods.method import gradient_of
from ucl.models import OwnNetwork, SlimResNet18
from ucl.models.network import in_mode, norms_of
from ucl.models.passes import features_of, in_evaluation_mode, in_training_mode, logits_of
from ucl.scorers import Scorer, ScoringPasses, bregman_information
from ucl.streams import Batch

IMAGES = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def wrapped(make, channels=3, size=8):
    torch.manual_seed(0)
    network = make(5, channels, size)
    return OwnNetwork(network, "mine:net", 5, channels, size, (0.5,) * channels, (0.25,) * channels)


def test_evaluation_passes_are_those_of_the_module_and_leave_it_as_it_is():
    model = wrapped(batch_normed).train()
    model.network[1].eval()  # a layer that the user froze
    with unchanged(model):
        logits, features = logits_of(model, IMAGES), features_of(model, IMAGES)
    model.eval()
    with torch.no_grad():
        x = model.normalize(IMAGES)
        torch.testing.assert_close(logits, model.network(x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(features, model.network[:-1](x), rtol=1e-5, atol=1e-5)
    assert features.shape == (6, 128) and not features.requires_grad and model.dropout_rate == 0.2


def test_dropout_passes_of_a_transformer_have_dropout():
    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(24, 2, 16, dropout=0.5, batch_first=True)
            self.linear = nn.Linear(24, 5)

        def forward(self, x_NCHW):
            return self.linear(self.layer(x_NCHW.permute(0, 2, 1, 3).flatten(2)).mean(1))

    model = wrapped(lambda *shape: Transformer())
    logits_PNC = ScoringPasses(torch.Generator(), dropout_passes=4).logits(model, IMAGES)
    assert model.dropout_rate == 0.5 and len(logits_PNC.unique(dim=0)) == 4
    assert torch.backends.mha.get_fastpath_enabled() and torch.equal(*(logits_of(model, IMAGES) for _ in range(2)))


def test_a_network_of_the_package_as_a_user_object_normalises_once():
    shape, statistics = (5, 3, 28), ((0.2, 0.4, 0.6), (0.1, 0.2, 0.3))
    built_in, network = SlimResNet18(*shape, *statistics, width=8), SlimResNet18(*shape, width=8)
    network.load_state_dict(built_in.state_dict())
    model, images = OwnNetwork(network, "mine:wide", *shape, *statistics), IMAGES.repeat(1, 1, 4, 4)[..., :28, :28]
    with torch.no_grad():
        for training in (False, True):
            expected = built_in.train(training)(images)
            torch.testing.assert_close(model.train(training)(images), expected, rtol=1e-3, atol=1e-3)


def test_training_passes_move_the_running_statistics_as_the_module_itself_does():
    model, twin = wrapped(batch_normed), wrapped(batch_normed)
    model.network[5].p = twin.network[5].p = 0.0
    x_PNCHW = model.normalize(IMAGES).expand(3, -1, -1, -1, -1)
    logits_PNC = in_training_mode(model.eval()).logits(x_PNCHW)
    twin.train()
    with torch.no_grad():
        expected = torch.stack([twin.logits(x) for x in x_PNCHW])
    assert torch.equal(logits_PNC, expected) and not model.training
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=0, atol=0)
    assert norms_of(model) == [model.network[1]] and model.has_running_statistics


class Frozen(nn.Sequential):
    """The layers of `batch_normed` without dropout; its BatchNorm stays in evaluation mode."""

    def __init__(self, *shape):
        super().__init__(*(layer for layer in batch_normed(*shape) if not isinstance(layer, nn.Dropout)))

    def train(self, mode=True):
        super().train(mode)
        self[1].eval()
        return self


def test_a_layer_that_the_module_keeps_in_evaluation_mode_stays_so_in_training_passes():
    model = wrapped(Frozen)
    logits = logits_of(model, IMAGES)
    for mode in (True, False):
        with unchanged(model.train(mode)):
            assert torch.equal(in_training_mode(model).logits(model.normalize(IMAGES)[None])[0], logits)
        assert not model.network[1].training


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", [batch_normed, Frozen])
def test_all_methods_train_the_same_layers_in_evaluation_mode(make, method):
    """Those that the module's `train` sets to it; what a constructor set has no effect."""
    model, labels = wrapped(make), torch.arange(6) % 5
    model.network[1].eval()
    before = copy.deepcopy(model.state_dict())
    METHODS[method](model, 0.1).learn(model, Batch(IMAGES, labels, labels.numpy(), torch.arange(6), 0))
    is_frozen = torch.equal(before["network.1.running_mean"], model.network[1].running_mean)
    assert is_frozen == (make is Frozen)
    assert not all(map(torch.equal, before.values(), model.state_dict().values()))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_network_that_changes_its_input_changes_no_other_pass(channels):
    class InPlace(nn.Sequential):
        def forward(self, x):
            x.mul_(0.5)
            return super().forward(x)

    def make(n_classes, channels, size):
        return InPlace(nn.Flatten(), nn.Linear(channels * size**2, n_classes), nn.Dropout(0.0))

    model = wrapped(make, channels)
    x = model.normalize(IMAGES[:, :channels])
    first, second = model.logits(x), model.logits(x)
    assert torch.equal(first, second) and torch.equal(x, model.normalize(IMAGES[:, :channels]))
    passes = ScoringPasses(torch.Generator().manual_seed(0), dropout_passes=4).logits(model, IMAGES[:, :channels])
    assert torch.equal(passes, first[None].expand_as(passes))


@pytest.mark.parametrize("last", [nn.Softmax(1), nn.LogSoftmax(1), nn.Sigmoid(), nn.ReLU()])
def test_a_network_that_ends_with_a_softmax_is_warned_of(last):
    with warnings.catch_warnings(record=True) as reported:
        wrapped(lambda *shape: nn.Sequential(Grouped(*shape), last))
    assert len(reported) == isinstance(last, nn.Softmax)


def test_a_network_of_the_package_with_another_forward_is_refused():
    class Doubled(SlimResNet18):
        def forward(self, images_NCHW):
            return 2 * super().forward(images_NCHW)

    with refused("model", "mine:wide"):
        OwnNetwork(Doubled(5, 3, 28, width=8), "mine:wide", 5, 3, 28, (0.5,) * 3, (0.25,) * 3)


@pytest.mark.parametrize("score", [bregman_information, lambda losses: losses, lambda features_ND: features_ND[:, 0]])
def test_scoring_a_network_that_draws_in_evaluation_mode_leaves_the_global_draws_as_they_are(score):
    class AlwaysDrops(Grouped):
        def forward(self, x):
            return super().forward(F.dropout(x, 0.3))

    model = wrapped(AlwaysDrops)
    with unchanged(model):
        Scorer(score, ScoringPasses(torch.Generator()), path="mine:score")(model, IMAGES, sizes={1: 6})
    assert not torch.equal(logits_of(model, IMAGES), logits_of(model, IMAGES))


def test_a_weight_that_no_pass_uses_has_no_gradient_and_stays():
    class Spare(Grouped):
        def __init__(self, *shape):
            super().__init__(*shape)
            self.spare = nn.Linear(2, 2)

    model = wrapped(Spare)
    loss = F.cross_entropy(model(IMAGES), torch.zeros(6, dtype=torch.int64))
    assert [g.abs().sum().item() for g in gradient_of(model, loss)][-2:] == [0, 0]


def test_features_are_those_of_the_linear_layer_called_last():
    class Crossed(Grouped):
        def __init__(self, *shape):
            super().__init__(*shape)
            self.other = nn.Linear(128, 128)

        def forward(self, x):
            return self.head(self.other(self.pool(self.conv(x)).flatten(1)))

    model = wrapped(Crossed)
    torch.testing.assert_close(model.network.head(features_of(model, IMAGES)), logits_of(model, IMAGES))


class Patches(Grouped):
    """The head is applied per patch."""

    def forward(self, x):
        return self.head(self.pool(self.conv(x)).flatten(1)[:, None].expand(-1, 7, -1)).mean(1)


class Cosine(Grouped):
    """The head is a cosine classifier without an `nn.Linear`; the last layer of this class has 7 outputs."""

    def __init__(self, n_classes, *shape):
        super().__init__(n_classes, *shape)
        self.head, self.weight = nn.Linear(128, 7), nn.Parameter(torch.randn(n_classes, 7))

    def forward(self, x):
        return 10 * F.linear(F.normalize(super().forward(x).relu()), F.normalize(self.weight))


class TwoHeads(Grouped):
    def __init__(self, *shape):
        super().__init__(*shape)
        self.other = nn.Linear(3 * 8 * 8, 5)

    def forward(self, x):
        return super().forward(x) + self.other(x.flatten(1))


WITHOUT_HEAD = [lambda *_: nn.Sequential(nn.Conv2d(3, 5, 8), nn.Flatten()), Patches, Cosine, TwoHeads]


@pytest.mark.parametrize("make", WITHOUT_HEAD)
def test_a_linear_layer_that_is_not_the_head_gives_no_features(make):
    with refused("model", "mine:net"):
        features_of(wrapped(make), IMAGES)


def test_a_head_whose_logits_are_masked_or_cast_gives_features():
    class Masked(Grouped):  # as Avalanche's IncrementalClassifier
        def forward(self, x):
            return super().forward(x).masked_fill(torch.tensor([False, True, True, False, True]), -1000.0)

    class Cast(Grouped):
        def forward(self, x):
            return super().forward(x).float()

    expected = features_of(wrapped(Grouped), IMAGES)
    assert torch.equal(features_of(wrapped(Masked), IMAGES), expected)
    passes = in_evaluation_mode(wrapped(Cast), torch.bfloat16)
    rough, _ = passes.features_and_logits(wrapped(Cast).normalize(IMAGES))
    torch.testing.assert_close(rough, expected, rtol=0.05, atol=0.05)


def test_a_single_image_that_batchnorm_cannot_normalise_is_refused_in_one_line():
    """Scored in training mode, a class with one candidate is a batch of one image."""

    def normed_after_pooling(n_classes, channels, size):
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(channels * size**2), nn.Linear(channels * size**2, n_classes))

    scorer = Scorer(bregman_information, ScoringPasses(torch.Generator(), batchnorm="train"))
    assert len(scorer(wrapped(batch_normed), IMAGES, sizes={0: 1, 1: 5})) == 6
    with refused("model", "mine:net"):
        scorer(wrapped(normed_after_pooling), IMAGES, sizes={0: 1, 1: 5})
    assert len(scorer(wrapped(normed_after_pooling), IMAGES, sizes={0: 2, 1: 4})) == 6


def test_a_mode_is_restored_after_an_error():
    model = wrapped(Grouped).train()
    with pytest.raises(ZeroDivisionError), in_mode(model, training=False):
        assert not model.network.norm.training
        raise ZeroDivisionError
    assert all(layer.training for layer in model.modules())
