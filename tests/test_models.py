"""The slim ResNet-18 compared with torchvision's networks, and its folded form compared with the plain one."""

import pytest
import torch
import torchvision
from conftest import needs_bfloat16, python, unchanged
from torch import nn
from torchvision.transforms.v2.functional import normalize

from ucl.models import FoldedNetwork, SlimResNet18
from ucl.models.batchnorm import BatchNorm2d
from ucl.models.convolution import Conv2d
from ucl.models.folded import _has_fused_convolutions, drop_
from ucl.models.network import norms_of
from ucl.models.slim_resnet import BasicBlock

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)


def pictures(n, channels=3, size=32, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, channels, size, size), dtype=torch.uint8, generator=draw)


def network(**how):
    torch.manual_seed(0)
    return SlimResNet18(**{"n_classes": 10, **how})


def trained(steps=8, **how):
    """A network whose weights and BatchNorm statistics some steps of SGD have moved."""
    model = network(**how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        images = pictures(10, how.get("channels", 3), how.get("image_size", 32), seed=step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), torch.arange(10) % how.get("n_classes", 10)).backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def moved():
    return trained(mean=MEAN, std=STD)


@pytest.fixture(scope="module")
def moved_with_dropout():
    return trained(mean=MEAN, std=STD, dropout=0.3)


# The network


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("size", "features"), [(25, 160), (28, 160), (32, 160), (64, 640)])
def test_any_image_from_25_pixels_gives_its_features_and_logits(size, features, channels):
    model = network(n_classes=7, channels=channels, image_size=size)
    assert model.linear.in_features == features
    for n in (1, 3):
        logits = model.eval()(pictures(n, channels, size))
        assert (logits.shape, logits.dtype) == ((n, 7), torch.float32)
        assert logits.isfinite().all()


def names_in_torchvision(state):
    """The same weights under torchvision's names."""
    renamed = {}
    for name, value in state.items():
        if name.startswith("blocks."):
            _, number, rest = name.split(".", 2)
            name = f"layer{int(number) // 2 + 1}.{int(number) % 2}.{rest}"
        renamed[name.replace("shortcut", "downsample").replace("linear.", "fc.")] = value
    return renamed


@pytest.mark.parametrize("training", [True, False])
def test_with_64_filters_the_network_is_torchvisions_resnet18_with_a_small_stem(training):
    ours = network(n_classes=5, width=64, mean=MEAN, std=STD).train(training)
    for norm in norms_of(ours):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias)
        nn.init.normal_(norm.running_mean)
    theirs = torchvision.models.resnet18(num_classes=5)
    theirs.conv1, theirs.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    theirs.load_state_dict(names_in_torchvision(ours.state_dict()))
    theirs.train(training)
    images = pictures(3)
    expected = theirs(normalize(images / 255, list(MEAN), list(STD)))
    torch.testing.assert_close(ours(images), expected, rtol=1e-3, atol=1e-3)
    for name, value in names_in_torchvision(ours.state_dict()).items():
        torch.testing.assert_close(theirs.state_dict()[name], value, rtol=1e-4, atol=1e-4)


# Batch normalisation


def normalised(norm, x, gradient):
    """What a layer gives for x, its gradients, and its running statistics afterwards."""
    norm, x = norm.train(), x.detach().clone().requires_grad_()
    out = norm(x)
    out.backward(gradient)
    return out.detach(), x.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var


def uneven(layer, channels):
    """A layer whose channels all differ."""
    norm = layer(channels)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-0.5, 2, channels))
        norm.bias.copy_(torch.linspace(-1, 1, channels))
        norm.running_mean.copy_(torch.linspace(3, 5, channels))
        norm.running_var.copy_(torch.linspace(1, 9, channels))
    return norm


def picture_and_gradient(shape):
    draw = torch.Generator().manual_seed(0)
    mean = torch.linspace(-4, 4, shape[1]).view(-1, 1, 1)
    x, gradient = (torch.randn(shape, generator=draw) * (2 + mean / 4) + mean for _ in range(2))
    return x.contiguous(memory_format=torch.channels_last), gradient.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("shape", [(20, 20, 32, 32), (2, 3, 5, 7), (7, 31, 4, 1), (2, 1, 3, 3)])
def test_rows_normalise_as_torch_does_in_float64(set_threads, shape):
    set_threads(2)
    x, gradient = picture_and_gradient(shape)
    ours = normalised(uneven(BatchNorm2d, shape[1]), x, gradient)
    exact = normalised(uneven(nn.BatchNorm2d, shape[1]).double(), x.double(), gradient.double())
    scales = [value.abs().max() for value in exact]
    # The gradient of the weight is a sum of large terms of both signs, whose rounding it keeps.
    terms = gradient * nn.functional.batch_norm(x.double(), None, None, training=True)
    scales[2] = terms.abs().sum((0, 2, 3)).max()
    for value, expected, scale in zip(ours, exact, scales, strict=True):
        assert (value - expected).abs().max() < 2e-6 * scale
    again = normalised(uneven(BatchNorm2d, shape[1]), x, gradient.contiguous())  # a gradient in another layout
    assert all(map(torch.equal, ours, again))


def test_on_two_threads_torch_func_works_and_second_derivatives_are_refused(set_threads):
    set_threads(2)
    x, _ = picture_and_gradient((4, 6, 5, 5))
    norm = uneven(BatchNorm2d, 6).train()
    norm.num_batches_tracked = None  # as in a SlimResNet18

    def loss(weight):
        return torch.func.functional_call(norm, {"weight": weight}, x).square().sum()

    expected = torch.autograd.grad(loss(norm.weight), norm.weight)[0]
    gradient = torch.func.grad(loss)(norm.weight.detach())
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-3)
    frozen = uneven(BatchNorm2d, 6).eval()
    torch.testing.assert_close(torch.func.vmap(lambda image: frozen(image[None])[0])(x), frozen(x))
    (gradient,) = torch.autograd.grad(loss(norm.weight), norm.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("case", ["one thread", "many channels", "contiguous", "evaluation", "bfloat16"])
def test_otherwise_batch_normalisation_is_torchs_bit_for_bit(set_threads, case):
    set_threads(1 if case == "one thread" else 2)
    x, _ = picture_and_gradient((8, 64 if case == "many channels" else 20, 16, 16))
    x = x.contiguous() if case == "contiguous" else x.bfloat16() if case == "bfloat16" else x
    ours, torchs = (uneven(layer, x.shape[1]).train(case != "evaluation") for layer in (BatchNorm2d, nn.BatchNorm2d))
    assert torch.equal(ours(x), torchs(x))
    assert torch.equal(ours.running_var, torchs.running_var)


def test_a_single_value_per_channel_is_refused_as_by_torch(set_threads):
    set_threads(2)
    with pytest.raises(ValueError):
        BatchNorm2d(20)(torch.ones(1, 20, 1, 1))


# The convolution


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("n_in", "n_out", "kernel", "stride", "size"),
    [(3, 20, 3, 1, 32), (20, 20, 3, 1, 9), (20, 40, 3, 2, 10), (20, 40, 3, 2, 9), (20, 40, 1, 2, 9), (1, 4, 3, 1, 7)],
)
def test_weight_gradients_from_patches_are_torchs(n_in, n_out, kernel, stride, size, layout, monkeypatch):
    """On a GPU they are used if a number of channels is not a multiple of 8; here, in any case."""
    monkeypatch.setattr("ucl.models.convolution._is_slow", lambda *_: True)
    torch.manual_seed(0)
    how = dict(kernel_size=kernel, stride=stride, padding=kernel // 2, bias=False, dtype=torch.float64)
    ours, theirs = Conv2d(n_in, n_out, **how), nn.Conv2d(n_in, n_out, **how)
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(5, n_in, size, size, dtype=torch.float64).contiguous(memory_format=layout)
    results = []
    for conv in (ours, theirs):
        x = images.clone().requires_grad_()
        out = conv.to(memory_format=layout)(x)
        out.square().sum().backward()
        results.append((out, x.grad, conv.weight.grad))
    assert type(results[0][0].grad_fn).__name__ == "_ConvolutionBackward"
    for value, expected in zip(*results, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)


def test_patches_give_the_gradients_of_single_images_by_vmap(monkeypatch):
    monkeypatch.setattr("ucl.models.convolution._is_slow", lambda *_: True)
    torch.manual_seed(0)
    conv, images = Conv2d(3, 20, 3, 2, 1, bias=False, dtype=torch.float64), torch.randn(4, 3, 8, 8).double()

    def loss(weights, image):
        return torch.func.functional_call(conv, weights, image[None]).square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss), (None, 0))(dict(conv.named_parameters()), images)["weight"]
    for gradient, image in zip(gradients, images, strict=True):
        expected = torch.autograd.grad(loss(dict(conv.named_parameters()), image), conv.weight)[0]
        torch.testing.assert_close(gradient, expected)


# With narrow layers, torch's oneDNN corrupts memory. One process trains each network and compares its last gradients
# with those in float64.
TRAINED = """
import copy, itertools
import torch
from torch import nn
from torch.nn import functional as F
from ucl.models import SlimResNet18
from ucl.models.network import OwnNetwork

for kind, (width, threads, n) in itertools.product(("built-in", "own"), ((3, 1, 20), (7, 1, 20), (12, 4, 10))):
    print(kind, width, flush=True)
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    statistics = (0.5,) * 3, (0.25,) * 3
    if kind == "built-in":
        model = SlimResNet18(5, 3, 28, *statistics, width=width)
    else:
        layers = nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, 16, 1, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        module = nn.Sequential(*layers, nn.Linear(16, 5)).to(memory_format=torch.channels_last)
        model = OwnNetwork(module, "mine:narrow", 5, 3, 28, *statistics)
    images, labels = torch.rand(n, 3, 28, 28), torch.arange(n) % 5
    for _ in range(20):
        model.zero_grad()
        F.cross_entropy(model(images), labels).backward()
    exact = copy.deepcopy(model).double()
    exact.zero_grad()
    F.cross_entropy(exact.logits(model.normalize(images).double()), labels).backward()
    for name, weight in model.named_parameters():
        gradient = exact.get_parameter(name).grad  # activations near 0 may have the other sign in float32
        assert (weight.grad - gradient).abs().max() < 0.1 * gradient.abs().max(), name
"""


@pytest.mark.parametrize("instructions", ["AVX2", "DEFAULT"])
def test_narrow_networks_have_the_gradients_of_float64(instructions):
    assert python("-c", TRAINED, environment={"ONEDNN_MAX_CPU_ISA": instructions}).count("\n") == 6


# What goes in


@pytest.mark.parametrize(("channels", "mean", "std"), [(3, MEAN, STD), (1, (0.3,), (0.31,)), (3, (0.5,), (0.25,))])
def test_normalising_is_torchvisions(channels, mean, std):
    images = pictures(4, channels)
    model = network(channels=channels, mean=mean, std=std)
    expected = normalize(images / 255, list(mean) * (channels // len(mean)), list(std) * (channels // len(std)))
    for given in (images, images / 255, images.double() / 255):
        x = model.normalize(given)
        assert x.dtype == torch.float32 and x.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(x, expected, rtol=1e-6, atol=1e-6)


def test_a_channel_without_variation_is_nothing_rather_than_no_number():
    images = pictures(4, 3)
    images[:, 2] = 51
    x = network(mean=(0.5, 0.4, 0.2), std=(0.25, 0.3, 0.0)).normalize(images)
    assert x[:, 2].abs().max() < 1e-6 and x[:, :2].abs().max() > 1


# Dropout


@pytest.mark.parametrize(("n_in", "n_out", "stride"), [(20, 20, 1), (20, 40, 2)])
def test_a_block_drops_between_its_first_activation_and_its_second_convolution(n_in, n_out, stride):
    """If all activations are dropped, the second convolution gets zeros, and the shortcut is added as usual."""
    block = BasicBlock(n_in, n_out, stride, dropout=1.0).eval()
    nn.init.normal_(block.bn2.bias)
    block.dropout.train()
    x = torch.randn(2, n_in, 8, 8)
    zeros = torch.zeros(2, n_out, 8 // stride, 8 // stride)
    torch.testing.assert_close(block(x), (block.bn2(block.conv2(zeros)) + block.shortcut(x)).relu())


def dropout_layers(model):
    return [module for module in model.modules() if isinstance(module, nn.Dropout)]


def test_every_block_and_the_head_drop_at_the_rate(moved_with_dropout):
    shares = []

    def record(module, given, out):
        was_on = given[0] != 0
        shares.append(((out == 0) & was_on).sum().item() / was_on.sum().item())

    layers = dropout_layers(moved_with_dropout)
    hooks = [layer.train().register_forward_hook(record) for layer in layers]
    with torch.no_grad():
        moved_with_dropout(pictures(20))
    for hook in hooks:
        hook.remove()
    moved_with_dropout.eval()
    assert shares == pytest.approx([0.3] * 9, abs=0.05)


# The folded network


def relative_error(got, expected):
    return ((got - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize(
    "how",
    [
        {},
        dict(channels=1, mean=(0.3,), std=(0.31,), image_size=28, n_classes=4),
        dict(image_size=64, n_classes=3, steps=3, dropout=0.3),
        dict(image_size=25, width=16),
    ],
    ids=str,
)
def test_the_folded_network_is_the_network_in_evaluation_mode(how):
    """In whatever mode it is, and also if a filter never fired, whose variance is zero."""
    model = trained(**how)
    model.bn1.running_mean[::4], model.bn1.running_var[::4] = 0.0, 0.0
    nn.init.constant_(model.bn1.weight, 0.1)
    images = pictures(17, how.get("channels", 3), how.get("image_size", 32), seed=99)
    with torch.no_grad():
        expected = model(images)
    with unchanged(model.train()):
        folded = FoldedNetwork(model)
        got = folded.logits(model.normalize(images))
    assert expected.std() > 0.05  # the outputs differ between images
    assert relative_error(got, expected) < 1e-4 and not got.requires_grad
    nn.init.zeros_(model.linear.weight)  # The folded network is a copy of the weights as they were.
    assert torch.equal(folded.logits(model.normalize(images)), got)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16)], ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_fused_convolutions_and_channels_of_zeros_change_no_logit(dtype, channels, monkeypatch):
    """On a GPU, 3 channels become 8 and 20 become 24."""
    model = trained(channels=channels)
    x = model.normalize(pictures(40, channels, seed=5))
    fused, plain = FoldedNetwork(model, dtype), FoldedNetwork(model, dtype)
    assert fused.fused == _has_fused_convolutions()
    plain.fused = False
    monkeypatch.setattr("ucl.models.folded.multiple_of_channels", lambda *_: 8)
    filled = FoldedNetwork(model, dtype)
    assert fused.stem[0].shape[:2] == (20, channels) and filled.stem[0].shape[:2] == (24, 8)
    assert filled.features_and_logits(x)[0].shape == fused.features_and_logits(x)[0].shape
    # Only the order of the sums may differ, and the fused convolution rounds the sum once, the plain one twice.
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    for other in (plain, filled):
        assert relative_error(fused.logits(x), other.logits(x)) < tolerance


def test_the_size_of_the_chunks_changes_no_logit(moved, monkeypatch):
    network = FoldedNetwork(moved)
    x = moved.normalize(pictures(21, seed=6))
    whole = network.one_pass(x)
    monkeypatch.setattr("ucl.models.folded.chunk_size", lambda *_: 5)
    torch.testing.assert_close(network.logits(x), whole, rtol=1e-5, atol=1e-5)
    assert network.logits(x[:0]).shape == (0, whole.shape[1])


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.75])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dropout_drops_at_its_rate_and_keeps_the_mean(rate, dtype):
    torch.manual_seed(0)
    for shape in ((60, 20, 12, 12), (401, 433)):
        x = torch.ones(shape, dtype=dtype)
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        assert drop_(x, rate) is x
        values = set(x.unique().tolist()) - {0.0}
        assert values == {torch.tensor(1 / (1 - rate), dtype=dtype).item()}
        dropped = (x == 0).double()
        five_sigma = 5 * (rate * (1 - rate) / x.numel()) ** 0.5
        assert abs(dropped.mean() - rate) <= five_sigma + 2**-16
        # Neighbours in memory share a random number of 64 bits, but must be dropped independently.
        flat = (x if x.ndim == 2 else x.permute(0, 2, 3, 1)).reshape(-1) == 0
        for distance in (1, 2, 3, 4):
            both = (flat[distance:] & flat[:-distance]).double().mean()
            assert abs(both - rate**2) <= 2 * five_sigma + 2**-15


def test_folded_dropout_draws_as_the_network_does(moved_with_dropout, monkeypatch):
    """With one seed, folded passes draw the masks of dropout layers in a network otherwise in evaluation mode."""
    monkeypatch.setattr(nn.functional, "dropout", lambda x, p, training, _: drop_(x.clone(), p) if training else x)
    images = pictures(6, seed=7)
    folded = FoldedNetwork(moved_with_dropout, dropout=True)
    torch.manual_seed(11)
    got = [folded.logits(moved_with_dropout.normalize(images)) for _ in range(3)]
    for layer in dropout_layers(moved_with_dropout):
        layer.train()
    torch.manual_seed(11)
    with torch.no_grad():
        expected = [moved_with_dropout(images) for _ in range(3)]
    moved_with_dropout.eval()
    for ours, theirs in zip(got, expected, strict=True):
        assert relative_error(ours, theirs) < 1e-4
    assert relative_error(got[0], got[1]) > 0.01
