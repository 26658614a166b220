"""What all networks share, normalised inputs, features and logits; and a wrapper for users' networks."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import mha
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd

from ucl import user_objects
from ucl.errors import InputError
from ucl.models.convolution import make_narrow_convolutions_contiguous


def to_unit(images_NCHW: Tensor) -> Tensor:
    """Images, uint8 or float in [0, 1], as float32 in [0, 1], channels last in memory."""
    unit_NCHW = images_NCHW.to(torch.float32, memory_format=torch.channels_last)
    return unit_NCHW if images_NCHW.is_floating_point() else unit_NCHW.div_(255)


class Network(nn.Module, ABC):
    """A classifier of images that normalises its input.

    Args:
        mean, std: mean and standard deviation of each channel over the training images, in [0, 1], for `normalize`.

    Attributes:
        mean, std: (C, 1, 1), on the network's device.
        classes: of a loaded network (`ucl.models.load`), the name of each class, by its column of the logits.
    """

    mean: Tensor
    std: Tensor
    classes: list[str]

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1), persistent=False)
        std = [value or 1.0 for value in std]  # A constant channel becomes 0 instead of 0 / 0.
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(-1, 1, 1), persistent=False)

    def normalize(self, images_NCHW: Tensor) -> Tensor:
        """Normalise images, uint8 or float in [0, 1], to zero mean and unit variance: float32, channels last."""
        if images_NCHW.dtype != torch.float32:
            images_NCHW = to_unit(images_NCHW)
        # Whole rows of pixels are faster: an operand with one value per channel would use vectors of three values.
        channels, _, width = images_NCHW.shape[1:]
        mean_R, std_R = (x.expand(channels, 1, 1).flatten().repeat(width) for x in (self.mean, self.std))
        x_NHR = (images_NCHW.permute(0, 2, 3, 1).flatten(2) - mean_R).div_(std_R)
        return x_NHR.unflatten(2, (width, channels)).permute(0, 3, 1, 2)

    @cached_property
    def dropout_rate(self) -> float:
        """The largest rate of the dropout layers, 0 without any. Above 0, tests average several passes.

        It is read once, as scoring asks for it at each batch. A network that draws without such layers sets it.
        """
        return max((layer.p for layer in self.modules() if isinstance(layer, _DropoutNd)), default=0.0)

    @property
    def has_running_statistics(self) -> bool:
        """Whether the network has running statistics, so that training and evaluation mode normalise differently."""
        return bool(norms_of(self))

    @property
    def draws_nothing(self) -> bool:
        """Whether no pass, in any mode, draws random numbers."""
        return not self.dropout_rate

    @abstractmethod
    def features_and_logits(self, x_NCHW: Tensor) -> tuple[Tensor, Tensor]:
        """Features (N, F), the input of the last linear layer, and logits (N, C) of normalised images."""

    def logits(self, x_NCHW: Tensor) -> Tensor:
        """Logits (N, C) of normalised images."""
        return self.features_and_logits(x_NCHW)[1]

    def forward(self, images_NCHW: Tensor) -> Tensor:
        """Logits (N, C) of images, uint8 or float in [0, 1]; an InputError if floats are out of this range."""
        if images_NCHW.is_floating_point():
            low, high = images_NCHW.aminmax()
            if low < -0.01 or high > 1.01:
                reason = "give uint8, or float in [0, 1], such as images.float() / 255; the network normalises them"
                raise InputError("images", f"{low:.3g} to {high:.3g}", reason)
        return self.logits(self.normalize(images_NCHW))


def norms_of(model: nn.Module) -> list[Any]:
    """The layers of a network that keep running statistics, in the network's order."""
    return [layer for layer in model.modules() if isinstance(layer, _NormBase) and layer.running_mean is not None]


def channels_first(x_NCHW: Tensor) -> Tensor:
    """A copy of images with the strides of the layout (N, C, H, W), so that `x.view(len(x), -1)` can flatten them.

    A network may change its input in place, and further passes use the same images.
    """
    return x_NCHW.clone(memory_format=torch.contiguous_format)


class OwnNetwork(Network):
    """A user's network: any `nn.Module` from normalised images (N, C, H, W) to logits (N, n_classes).

    Of a `Network`, such as a wider `SlimResNet18`, only the passes after its `normalize` are used.
    All passes are those of the module itself; nothing is folded. Each training step and each scoring pass in training
    mode begins with the module's `train`, which puts all layers into training mode. To keep a layer in evaluation mode,
    override `train`; `eval` in the constructor does not:

        def train(self, mode=True):
            super().train(mode)
            self.norm.eval()
            return self

    All its buffers are saved, also those that are registered with persistent=False. Other attributes that a pass
    changes, such as a count of steps, are not.

    Args:
        network: the module.
        path: its dotted path, or any other name, for messages.
        n_classes, channels, image_size: classes, channels and pixels per side of the images.
        mean, std: see `Network`.

    Attributes:
        network: the module.

    Raises:
        InputError: the object is not an `nn.Module`, it has a BatchNorm layer without running statistics, its logits
            of two images have another shape or type, or an image's logits depend on the image beside it.
    """

    def __init__(
        self,
        network: nn.Module,
        path: str,
        n_classes: int,
        channels: int,
        image_size: int,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        super().__init__(mean, std)
        self._path, self._n_classes = path, n_classes
        if not isinstance(network, nn.Module):
            raise self._refusal(f"returned {type(network).__name__}; return a torch.nn.Module")
        if isinstance(network, Network) and type(network).forward is not Network.forward:
            raise self._refusal("overrides forward, which no run calls; override logits instead")
        if any(isinstance(layer, _BatchNorm) and layer.running_mean is None for layer in network.modules()):
            reason = "has a BatchNorm layer without running statistics, so an image's logits depend on those beside it"
            raise self._refusal(f"{reason}; set track_running_stats=True, or use GroupNorm")
        self.network = network
        make_narrow_convolutions_contiguous(network)
        with in_mode(self, training=False), torch.no_grad():
            images = torch.linspace(-2, 2, 2 * channels * image_size**2).view(2, channels, image_size, image_size)
            logits_NC, alone_NC = self.logits(images), self.logits(images[:1])
            differ = (logits_NC[:1] - alone_NC).abs().max() > 1e-3 * logits_NC.abs().max()
            if differ and torch.equal(logits_NC, self.logits(images)):  # Otherwise the network draws at random.
                advice = "layers of transformers need batch_first=True"
                raise self._refusal(f"gives an image other logits beside another image; {advice}")
        saved = network.state_dict()
        for name, values in network.named_buffers():
            if name not in saved:  # It is registered with persistent=False.
                layer, _, buffer = name.rpartition(".")
                network.get_submodule(layer).register_buffer(buffer, values)
        if n_classes > 1 and (logits_NC >= 0).all() and torch.allclose(logits_NC.sum(1), torch.ones(2)):
            advice = "the loss takes their softmax, so return logits, without a softmax at the end"
            warnings.warn(f"model={path!r}: its outputs look like probabilities; {advice}", stacklevel=2)

    def logits(self, x_NCHW: Tensor) -> Tensor:
        network, inputs_NCHW = self.network, channels_first(x_NCHW)
        with user_objects.attribute_errors_to("model", self._path, f"images {tuple(x_NCHW.shape)}"):
            # The images are normalised; a call of a network of this package would normalise them again.
            logits_NC = network.logits(inputs_NCHW) if isinstance(network, Network) else network(inputs_NCHW)
        shape = len(x_NCHW), self._n_classes
        if not isinstance(logits_NC, Tensor) or logits_NC.shape != shape or not logits_NC.is_floating_point():
            is_tensor = isinstance(logits_NC, Tensor)
            got = f"{logits_NC.dtype} {tuple(logits_NC.shape)}" if is_tensor else type(logits_NC).__name__
            reason = f"its output for images {tuple(x_NCHW.shape)} is {got}; return float logits of shape {shape}"
            raise self._refusal(reason.replace("torch.", ""))
        return logits_NC

    def features_and_logits(self, x_NCHW: Tensor) -> tuple[Tensor, Tensor]:
        """Features (N, F), the input of the last `nn.Linear` that the pass calls, and logits (N, C).

        Raises:
            InputError: the pass calls no `nn.Linear`, or the last one gets something else than a row per image or does
                not return the logits (those of some classes may be masked).
        """
        calls: list[tuple[Tensor, Tensor]] = []
        with ExitStack() as hooks:
            for layer in self.network.modules():
                if isinstance(layer, nn.Linear):
                    hook = layer.register_forward_hook(lambda _, given, output: calls.append((given[0], output)))
                    hooks.enter_context(hook)
            logits_NC = self.logits(x_NCHW)
        if not calls or calls[-1][0].shape[:-1] != (len(x_NCHW),) or not _share_a_class(calls[-1][1], logits_NC):
            last = "none" if not calls else " to ".join(str(tuple(x.shape)) for x in calls[-1])
            reason = f"its logits {tuple(logits_NC.shape)} are not what an nn.Linear returns for a row per image"
            raise self._refusal(f"{reason} (its last one: {last}); end it with one, whose input is the features")
        return calls[-1][0], logits_NC

    @property
    def draws_nothing(self) -> bool:
        return False  # It may draw without a dropout layer.

    def _refusal(self, reason: str) -> InputError:
        return InputError("model", self._path, reason)


def _share_a_class(outputs_NC: Tensor, logits_NC: Tensor) -> bool:
    """Whether outputs of a layer are the logits of at least one class: a network may mask, copy or cast the others."""
    return outputs_NC is logits_NC or (
        outputs_NC.shape == logits_NC.shape
        and bool(torch.isclose(outputs_NC.float(), logits_NC.float(), equal_nan=True).all(0).any())
    )


@contextmanager
def in_mode(model: nn.Module, training: bool, dropout: bool = False) -> Iterator[None]:
    """Within the block, all layers are in training or in evaluation mode; afterwards each has its earlier mode again.

    Args:
        model: the network.
        training: whether the mode is training mode; a module's own `train` may keep layers in evaluation mode.
        dropout: whether dropout layers are in training mode in evaluation mode, too.
    """
    before, fast_path = [(layer, layer.training) for layer in model.modules()], mha.get_fastpath_enabled()
    try:
        # The fast path of torch's transformer layers in evaluation mode leaves out their dropout.
        mha.set_fastpath_enabled(fast_path and not dropout)
        if training:
            model.train()
        else:
            for layer, _ in before:
                layer.training = dropout and isinstance(layer, _DropoutNd)
        yield
    finally:
        mha.set_fastpath_enabled(fast_path)
        for layer, mode in before:
            layer.training = mode
