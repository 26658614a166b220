"""The running statistics of BatchNorm layers: read, replace, compare and follow them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ucl.machine.determinism import restored_draws
from ucl.models import Network
from ucl.models.network import norms_of

Statistics = list[tuple[Tensor, Tensor]]  # running mean and variance of each BatchNorm, in the network's order


def statistics_of(model: nn.Module) -> Statistics:
    """Copies of the running statistics of a network's BatchNorm layers; [] if it has none."""
    return [(norm.running_mean.clone(), norm.running_var.clone()) for norm in norms_of(model)]


def load_statistics(model: nn.Module, statistics: Statistics) -> None:
    """Copy running statistics into a network's BatchNorm layers."""
    for norm, (mean, var) in zip(norms_of(model), statistics, strict=True):
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(var)


def shift(statistics: Statistics, reference: Statistics) -> float:
    """Mean distance of the running means from those of a reference, over all channels; 0 without BatchNorm.

    The unit is the reference's standard deviation of the channel.
    """
    distances = [
        ((mean - reference_mean) / reference_var.add(1e-5).sqrt()).abs()
        for (mean, _), (reference_mean, reference_var) in zip(statistics, reference, strict=True)
    ]
    return torch.cat(distances).mean().item() if distances else 0.0


class TrainingStatistics:
    """The running statistics after the training steps alone, for a run whose scoring passes change them.

    Each call of the network in training mode with a gradient is repeated on these statistics, which leaves the network
    and all results as they are. Without such a call, because a user's method calls other functions of the network
    only, the statistics are those of the network.
    """

    def __init__(self, model: Network) -> None:
        self._model = model
        # All buffers, as training mode may also change others of a user's network.
        self._buffers = {name: values.clone() for name, values in model.named_buffers()}
        self._has_followed = False
        model.register_forward_pre_hook(self._follow)

    def __call__(self) -> Statistics:
        if not self._has_followed:
            return statistics_of(self._model)
        names, buffers = {layer: name for name, layer in self._model.named_modules()}, self._buffers
        prefixes = [f"{names[norm]}.running" for norm in norms_of(self._model)]
        return [(buffers[f"{prefix}_mean"].clone(), buffers[f"{prefix}_var"].clone()) for prefix in prefixes]

    def state_dict(self) -> dict[str, Any]:
        return {"has followed": self._has_followed, "buffers": self._buffers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._has_followed = state["has followed"]
        for name, values in self._buffers.items():
            values.copy_(state["buffers"][name])

    def _follow(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if model.training and torch.is_grad_enabled():
            # The pass that follows draws the same dropout masks.
            with torch.no_grad(), restored_draws(self._model.mean.device):
                torch.func.functional_call(model, self._buffers, inputs)
            self._has_followed = True
