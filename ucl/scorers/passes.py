"""The scoring passes: the forward passes of several views of each image, whose logits an uncertainty score takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ucl.errors import InputError, one_of
from ucl.fields import check_field
from ucl.machine.cuda_graphs import Graphed
from ucl.machine.determinism import restored_draws, seeded_draws
from ucl.models import Network, to_unit
from ucl.models.folded import FoldedNetwork, images_at_once
from ucl.models.passes import in_evaluation_mode, in_training_mode
from ucl.scorers import views

# Number of images, of 32 x 32 pixels on a GPU, whose views are in memory at a time: a CPU needs few, which fit into its
# caches, and a GPU large operations.
_CHUNK_ON_CPU, _CHUNK_ON_GPU = 32, 1024


@dataclass
class ScoringPasses:
    """Runs a network on the 12 views of images, or with dropout; weights and mode of the network do not change.

    With views, this is TTA (test-time augmentation) in the paper's Algorithm 1.

    Args:
        generator: draws the views, or the seed of the dropout masks.
        dropout_passes: 0 for the 12 views; otherwise the number of dropout passes of the unchanged image (MC).
        batchnorm: "eval", or "train": batch statistics of each view and class, which also update the running ones.
        view_draws: "image", "batch" or "fixed", see `Config`; "fixed" views depend only on the image's position and the
            generator's seed.
        view_space: "pixels" or "normalized".
        n_draws: number of draws of the 12 views.
        dtype: arithmetic of the forward passes.
        graphs: whether a GPU repeats the passes of the views in evaluation mode from CUDA graphs.

    Raises:
        InputError: a value is unknown.
    """

    generator: torch.Generator
    dropout_passes: int = 0
    batchnorm: str = "eval"
    view_draws: str = "image"
    view_space: str = "pixels"
    n_draws: int = 1
    dtype: torch.dtype = torch.float32
    graphs: bool = False
    _graphed: Graphed = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        one_of("batchnorm", self.batchnorm, ("eval", "train"))
        check_field("view_draws", self.view_draws)
        check_field("view_space", self.view_space)
        self._graphed = Graphed(self._logits_of_draw, self.graphs)

    @torch.no_grad()
    def logits(
        self, model: Network, images_NCHW: Tensor, positions_N: Tensor | None = None, sizes: Sequence[int] = ()
    ) -> Tensor:
        """Logits (P, N, C) of the views of images, class after class; `sizes` by default: all are of one class.

        With `batchnorm` "train" the passes are those of the reference implementation: one pass in training mode for
        each class and view, which updates the running statistics of the model.

        Raises:
            InputError: the model is not a `Network`.
        """
        if not isinstance(model, Network):
            call = "ucl.models.OwnNetwork(model, 'name', n_classes, channels, image_size, mean, std)"
            raise InputError("model", type(model).__name__, f"is no network of ucl.models; give {call}")
        sizes = list(sizes) or [len(images_NCHW)]
        if self.batchnorm == "train" and model.has_running_statistics:
            return self._training_mode_logits(model, images_NCHW, positions_N, sizes)
        if self.dropout_passes:  # In evaluation mode, images do not affect each other.
            return self._dropout_logits(model, images_NCHW)
        # A user's network may draw in evaluation mode, too, which would change the masks of training steps.
        with restored_draws(images_NCHW.device):
            draws = self._draws(images_NCHW, sizes, positions_N)
            return torch.cat([self._graphed(model, images_NCHW, *vars(parameters).values()) for parameters in draws])

    def _dropout_logits(self, model: Network, images_NCHW: Tensor) -> Tensor:
        network = in_evaluation_mode(model, self.dtype, dropout=True)
        with _seeded_dropout(model, self.generator):
            x_NCHW = model.normalize(images_NCHW)
            if x_NCHW.device.type == "cpu":
                return torch.stack([network.logits(x_NCHW) for _ in range(self.dropout_passes)])
            # All passes at once: on a GPU, launching a small operation costs more than computing it.
            repeated = (torch.cat([x_NCHW[part]] * self.dropout_passes) for part in _parts(x_NCHW))
            return torch.cat([network.logits(x).unflatten(0, (self.dropout_passes, -1)) for x in repeated], 1)

    def _logits_of_draw(self, model: Network, images_NCHW: Tensor, *tensors: Tensor) -> Tensor:
        """Logits (P, N, C) of the views with these parameters; on a CPU, equal views of an image share a pass."""
        network, parameters = in_evaluation_mode(model, self.dtype), views.ViewParameters(*tensors)
        logits, inputs = [], self._view_inputs(model, images_NCHW, parameters)
        for part, x_PNCHW in zip(_parts(images_NCHW), inputs, strict=True):
            x_KCHW, size = x_PNCHW.flatten(0, 1), x_PNCHW.shape[:2]
            # On a GPU the host would wait for the number of passes. A user's network may draw in evaluation mode.
            if x_KCHW.device.type == "cpu" and isinstance(network, FoldedNetwork):
                distinct, shared = views.first_equal(parameters[part], size[1]).unique(return_inverse=True)
                logits_KC = network.shared_logits(x_KCHW[distinct], shared.flatten())
            else:
                logits_KC = network.logits(x_KCHW)
            logits.append(logits_KC.unflatten(0, size))
        return torch.cat(logits, 1)

    def _training_mode_logits(
        self, model: Network, all_NCHW: Tensor, positions_N: Tensor | None, all_sizes: list[int]
    ) -> Tensor:
        """Logits of classes in their order; each view of a class is normalised by its own batch statistics."""
        network, logits_of_groups = in_training_mode(model, self.dtype), []
        # Several draws of the views, or of views and masks, are made class by class.
        one_draw = self.dropout_passes > 0 or (self.n_draws == 1 and model.draws_nothing)
        limit = images_at_once(1024, all_NCHW.shape[-1]) if network.joins_classes and one_draw else 1
        for part, sizes in _groups(all_sizes, limit):
            images_NCHW, at_N = all_NCHW[part], None if positions_N is None else positions_N[part]
            with _seeded_dropout(model, self.generator):
                if self.dropout_passes:
                    x_NCHW = model.normalize(images_NCHW)
                    logits_of_groups.append(network.logits(x_NCHW.expand(self.dropout_passes, -1, -1, -1, -1), sizes))
                    continue
                logits_of_draws = []
                for parameters in self._draws(images_NCHW, sizes, at_N):
                    # The statistics of a view need all images, so only the views are computed chunk by chunk.
                    inputs = self._view_inputs(model, images_NCHW, parameters)
                    in_memory_PNHWC = torch.cat([x.to(self.dtype).permute(0, 1, 3, 4, 2) for x in inputs], 1)
                    logits_of_draws.append(network.logits(in_memory_PNHWC.permute(0, 1, 4, 2, 3), sizes))
                logits_of_groups.append(torch.cat(logits_of_draws))
        return torch.cat(logits_of_groups, 1)

    def _view_inputs(self, model: Network, images_NCHW: Tensor, parameters: views.ViewParameters) -> Iterator[Tensor]:
        """Normalised views (P, n, C, H, W) of n images, chunk by chunk."""
        fill = model.mean.flatten()
        for part in _parts(images_NCHW):
            if self.view_space == "normalized":
                yield views.apply(model.normalize(images_NCHW[part]), parameters[part], fill)
            else:
                views_PNCHW = views.apply(to_unit(images_NCHW[part]), parameters[part], fill)
                yield model.normalize(views_PNCHW.flatten(0, 1)).unflatten(0, views_PNCHW.shape[:2])

    def _draws(self, images_NCHW: Tensor, sizes: list[int], at_N: Tensor | None) -> Iterator[views.ViewParameters]:
        image_size, device = images_NCHW.shape[-1], images_NCHW.device
        for turn in range(self.n_draws):
            if self.view_draws == "fixed":
                assert at_N is not None, "fixed views need the positions of the images"
                yield views.draw_fixed(at_N, image_size, self.generator.initial_seed(), turn).to(device)
            elif self.view_draws == "image":
                yield views.draw(sum(sizes), image_size, self.generator).to(device)
            else:
                class_N = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
                yield views.draw(len(sizes), image_size, self.generator)[class_N].to(device)


def _groups(sizes: list[int], limit: int) -> Iterator[tuple[slice, list[int]]]:
    """Parts of all images, with the sizes of their classes: about `limit` images, or a class that has more."""
    classes = zip(sizes, itertools.accumulate(sizes), strict=True)
    for _, group in itertools.groupby((of_class for of_class in classes if of_class[0]), lambda item: item[1] // limit):
        group_sizes, ends = zip(*group, strict=True)
        yield slice(ends[-1] - sum(group_sizes), ends[-1]), list(group_sizes)


def _parts(images_NCHW: Tensor) -> Iterator[slice]:
    """Slices that split the images into chunks."""
    on_cpu = images_NCHW.device.type == "cpu"
    chunk = _CHUNK_ON_CPU if on_cpu else images_at_once(_CHUNK_ON_GPU, images_NCHW.shape[-1])
    return (slice(start, start + chunk) for start in range(0, len(images_NCHW), chunk))


def _seeded_dropout(model: Network, generator: torch.Generator) -> AbstractContextManager[None]:
    """A block within which dropout draws its masks from a seed of this generator."""
    if model.draws_nothing:
        return nullcontext()
    # Dropout draws from the global generator: without the fork, scoring would change the masks of the training steps.
    return seeded_draws(int(torch.randint(2**62, (1,), generator=generator)), model.mean.device)
