"""The running statistics of BatchNorm layers: read, replace, compare, follow and estimate them.

`ucl.evaluation.readings` describes in pseudocode which statistics each reading has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ucl.buffers import Buffer
from ucl.machine.determinism import restored_draws
from ucl.models import Network, to_unit
from ucl.models.network import norms_of
from ucl.scorers import ScoringPasses, views
from ucl.streams import Task

BATCHES = 25  # batches per estimate
BATCH_SIZE = 20  # images per batch, as in a training step with ten stream images and ten memory samples
LAST_BATCHES = 10  # the last batches of a task that an estimate uses, few enough for a method to store them

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


def displace_statistics(
    model: Network, task: Task, buffer: Buffer | None, draw: np.random.Generator, dtype: torch.dtype
) -> None:
    """Apply the training-mode scoring passes of the reading "displaced", which change the running statistics only.

    Args:
        model, task, buffer, dtype: see `ucl.evaluation.readings.with_statistics`; the classes of the task are scored.
        draw: seeds the views.
    """
    sources = [_last_batches(task)]
    if buffer is not None:
        sources.insert(0, (buffer.images[: buffer.n_stored], buffer.labels[: buffer.n_stored]))
    candidates = [
        torch.cat([images[torch.from_numpy(np.flatnonzero(labels == c))] for images, labels in sources])
        for c in task.classes
    ]
    generator = torch.Generator().manual_seed(int(draw.integers(2**62)))
    published = ScoringPasses(generator, batchnorm="train", view_draws="batch", view_space="normalized", dtype=dtype)
    if scored := sorted((images for images in candidates if len(images)), key=len):  # none: possible in blurry tasks
        published.logits(model, scored)


def estimate_statistics(model: Network, batches: Iterator[Tensor]) -> None:
    """Set the running statistics to the mean of the statistics of batches.

    Args:
        model: the network; it remains in training mode. In each pass, every layer normalises by the batch itself.
        batches: images (B, C, H, W), uint8 or float in [0, 1].
    """
    model.train()
    for number, images_NCHW in enumerate(batches):
        for norm in norms_of(model):
            norm.momentum = 1 / (number + 1)
        model(images_NCHW)


def batches_for_estimate(
    name: str, model: Network, seen: Sequence[Task], buffer: Buffer | None, draw: np.random.Generator
) -> Iterator[Tensor]:
    """Draw the batches of an estimate.

    Args:
        name, model, seen, buffer: see `ucl.evaluation.readings.with_statistics`; "balanced" needs no memory.
        draw: draws images and views.

    Yields:
        Images (B, C, H, W): float in [0, 1] for "views", otherwise uint8.
    """
    if name == "balanced":
        classes = [(task, np.flatnonzero(task.host_labels == c)) for task in seen for c in task.classes]
        # A blurry class may have no images in one of its tasks.
        classes = [(task, indices) for task, indices in classes if len(indices)]
        for _ in range(BATCHES):
            chosen = [classes[i] for i in draw.integers(len(classes), size=BATCH_SIZE)]
            yield torch.stack([task.images[int(draw.choice(indices))] for task, indices in chosen])
        return
    assert buffer is not None
    stored = buffer.images[: buffer.n_stored]
    recent, _ = _last_batches(seen[-1])
    half = BATCH_SIZE // 2
    shares = [(stored, half), (recent, half)] if name == "memory+stream" else [(stored, BATCH_SIZE)]
    generator = torch.Generator().manual_seed(int(draw.integers(2**62)))
    for _ in range(BATCHES):
        drawn = [
            images[torch.from_numpy(draw.choice(len(images), min(n, len(images)), replace=False))]
            for images, n in shares
        ]
        images_NCHW = torch.cat(drawn)
        if name == "views":
            views_PNCHW = views.perturb(to_unit(images_NCHW), generator, model.mean.flatten())
            view_N = torch.from_numpy(draw.integers(len(views_PNCHW), size=len(images_NCHW)))
            images_NCHW = views_PNCHW[view_N, torch.arange(len(view_N))]
        yield images_NCHW


def _last_batches(task: Task) -> tuple[Tensor, np.ndarray]:
    """Images and labels of the last batches of a task."""
    end = len(task) * task.batch_size
    last = slice(max(0, end - LAST_BATCHES * task.batch_size), end)
    return task.images[last], task.host_labels[last]
