"""Rainbow Memory: at a task's end, each class keeps images from the least to the most uncertain."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ucl.buffers.task_end import TaskEndBuffer
from ucl.models import Network, to_unit
from ucl.models.passes import in_evaluation_mode
from ucl.scorers import disagreement
from ucl.streams import Task

CUTOUTS, ROTATIONS, SOLARIZED = (8, 16, 24, 32), (45, 90), (128, 64, 32)  # pixels of 32, degrees, values of 255
N_UNIFORMS = 2 * len(CUTOUTS) + 2 + len(ROTATIONS)
_CHUNK = 32  # images whose views are in memory at a time


def every_nth(scores: Tensor, k: int) -> Tensor:
    """The indices (k,) of every (N // k)-th score in ascending order, starting with the lowest.

    Unlike `ucl.selection.step_sized`, which includes the largest score, this leaves out the end of the order if k does
    not divide N. For N < 2k it returns the k lowest scores.
    """
    return torch.argsort(scores, stable=True)[:: max(1, len(scores) // max(1, k))][:k]


class RainbowBuffer(TaskEndBuffer):
    """Rainbow Memory's diversity-aware update (Bang et al., 2021).

    At a task's end, the network classifies 12 views of each image of the task and of the memory, in evaluation mode.
    The uncertainty is one minus the largest share of views with the same predicted class. Each class fills its quota in
    even steps from the least to the most uncertain image, see `every_nth`. A class with fewer than twice as many images
    as its quota keeps the least uncertain ones, for example when its quota shrinks by less than half. The cost is 12
    forward passes per image of the task and of the memory.

    Views and steps are the defaults of the authors' code (`clovaai/rainbow-memory`); its script of experiments takes
    twelve draws of RandAugment as views. That code chooses at random after the first task, and fills slots that classes
    cannot share equally with random images; here, all tasks are treated equally, as in the paper, and `quotas` gives
    some classes one slot more. The training of the paper, with CutMix and many epochs, is not included.
    """

    selection = staticmethod(every_nth)

    @torch.no_grad()
    def candidate_scores(self, model: Network, task: Task, n: int) -> Tensor:
        network, scores = in_evaluation_mode(model), []
        for images, end in ((self.images, self.n_stored), (task.images, n)):
            for start in range(0, end, _CHUNK):
                x_NCHW = to_unit(images[start : min(start + _CHUNK, end)])
                uniforms = torch.from_numpy(self.draw.random((len(x_NCHW), N_UNIFORMS))).float().to(self.device)
                views_PNCHW = rainbow_views(x_NCHW, uniforms, model.mean.flatten())
                logits = network.logits(model.normalize(views_PNCHW.flatten(0, 1)))
                scores.append(disagreement(logits.unflatten(0, views_PNCHW.shape[:2])))
        return torch.cat(scores).double().cpu()


def rainbow_views(images_NCHW: Tensor, uniforms_NU: Tensor, fill_C: Tensor) -> Tensor:
    """The views (12, N, C, H, W) of Rainbow Memory: 4 cutouts, 2 flips, 2 rotations, inversion, 3 solarized ones.

    A cutout is a square around a random pixel, with 8, 16, 24 or 32 pixels per side if the images have 32, otherwise
    the same share of the image's side. Flips are applied with probability 1/2. Rotation angles are uniform, up to 45
    and up to 90 degrees to both sides, with black corners. Solarization inverts all values at or above a threshold.

    Args:
        images_NCHW: images in [0, 1], square.
        uniforms_NU: 12 uniform numbers in [0, 1) per image.
        fill_C: value of each channel in the cutouts.
    """
    size = images_NCHW.shape[-1]
    centres, flips, turns = uniforms_NU.split((2 * len(CUTOUTS), 2, len(ROTATIONS)), 1)
    views = [
        _cutout(images_NCHW, (centres[:, 2 * i : 2 * i + 2] * size).floor(), side * size // 32 // 2, fill_C)
        for i, side in enumerate(CUTOUTS)
    ]
    for i, axis in enumerate((-1, -2)):
        views.append(torch.where(flips[:, i, None, None, None] < 0.5, images_NCHW.flip(axis), images_NCHW))
    views += [_rotated(images_NCHW, (2 * turns[:, i] - 1) * degrees) for i, degrees in enumerate(ROTATIONS)]
    views.append(1 - images_NCHW)
    thresholds = torch.tensor(SOLARIZED, dtype=images_NCHW.dtype, device=images_NCHW.device) / 255
    views += [torch.where(images_NCHW < threshold, images_NCHW, 1 - images_NCHW) for threshold in thresholds]
    return torch.stack(views)


def _cutout(images_NCHW: Tensor, centres_N2: Tensor, half: int, fill_C: Tensor) -> Tensor:
    distances_N2S = torch.arange(images_NCHW.shape[-1], device=images_NCHW.device) - centres_N2[:, :, None]
    is_inside_N2S = (distances_N2S >= -half) & (distances_N2S < half)
    is_hole_N1HW = (is_inside_N2S[:, 0, :, None] & is_inside_N2S[:, 1, None, :])[:, None]
    return torch.where(is_hole_N1HW, fill_C.view(1, -1, 1, 1), images_NCHW)


def _rotated(images_NCHW: Tensor, degrees_N: Tensor) -> Tensor:
    """Each image rotated counter-clockwise by its angle, with nearest-neighbour sampling and black corners."""
    angles_N = degrees_N * (math.pi / 180)
    cos_N, sin_N, zero_N = angles_N.cos(), angles_N.sin(), torch.zeros_like(angles_N)
    matrices = torch.stack([cos_N, -sin_N, zero_N, sin_N, cos_N, zero_N], 1).view(-1, 2, 3)
    grid = F.affine_grid(matrices, list(images_NCHW.shape), align_corners=False)
    return F.grid_sample(images_NCHW, grid, mode="nearest", padding_mode="zeros", align_corners=False)
