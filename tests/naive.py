"""The slow implementation, in torchvision and plain torch: the package must give equal results in less time.

- `published_scores` with `published_views`: an update as the paper's reference implementation does it. The 12
  transforms are applied one after another. Each is drawn once for all normalised images of a class, and is followed by
  a forward pass in training mode.
- `exact_scores`: the paper's definition, one image and one view at a time, with our draws, in evaluation mode.
- `Memory`: Algorithm 1 with lists, for either score.
- `replay_step`: a training step as it is usually written.

Images and weights are contiguous float32 throughout.
"""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from ucl import views


def plain(model):
    """A copy of a network in torch's default memory layout."""
    return copy.deepcopy(model).to(memory_format=torch.contiguous_format)


def normalised(model, images):
    """uint8 images normalised for the network, in torch's default memory layout."""
    return ((images.contiguous().float() / 255 - model.mean) / model.std).contiguous()


def bregman_information(logits):
    """Return BI (N,) from a list of logits (N, C), one per view."""
    logits = torch.stack(logits).double()
    return logits.logsumexp(2).mean(0) - logits.mean(0).logsumexp(1)


# Training


def replay_step(model, optimizer, images, labels):
    """Take one step on batch and memory samples together; the images are normalised."""
    model.train()
    optimizer.zero_grad()
    loss = F.cross_entropy(model.logits(images), labels)
    loss.backward()
    optimizer.step()
    return loss


# Views


class Cutout(nn.Module):
    """Fill a square around a random centre with one colour; torchvision has no such transform."""

    def __init__(self, side, color):
        super().__init__()
        self.side, self.color = side, torch.as_tensor(color).view(-1, 1, 1)

    def forward(self, images):
        height, width = images.shape[-2:]
        y, x = (int(torch.randint(n, ())) - self.side // 2 for n in (height, width))
        top, left, bottom, right = max(y, 0), max(x, 0), min(y + self.side, height), min(x + self.side, width)
        return tv.erase(images, top, left, bottom - top, right - left, self.color)


def published_views(size, mean):
    """The 12 transforms of Appendix A.1; each applies one draw to the whole batch."""
    return [
        Cutout(10, mean),
        Cutout(20, mean),
        v2.RandomHorizontalFlip(),
        v2.RandomVerticalFlip(),
        v2.RandomRotation(10),
        v2.RandomRotation(45),
        v2.RandomRotation(90),
        v2.ColorJitter(brightness=0.1),
        v2.RandomPerspective(),
        v2.RandomAffine(20, translate=(0.1, 0.3), scale=(0.5, 0.75)),
        v2.RandomResizedCrop(size, scale=(0.8, 1.0), ratio=(0.9, 1.1), antialias=True),
        v2.RandomInvert(),
    ]


def torchvision_arguments(parameters, size):
    """Arguments of torchvision's functions, from the matrices: angles, scales, translations, corners (N, 4, 2)."""
    affine = parameters.affine.double() * size / 2
    turn = affine[..., :2]
    angles = torch.rad2deg(torch.atan2(turn[..., 0, 1], turn[..., 0, 0]))
    scales = 1 / torch.linalg.vector_norm(turn[..., 0, :], dim=-1)
    translations = -torch.linalg.solve(turn, affine[..., 2])
    last = 1 - 2 / size  # the image's corners as torchvision names them, pixels 0 and size - 1, in grid coordinates
    image_corners = torch.tensor([[-1, -1, 1], [last, -1, 1], [last, last, 1], [-1, last, 1]], dtype=torch.float64)
    corners = image_corners @ torch.linalg.inv(parameters.homography.double()).mT
    corners = corners[..., :2] / corners[..., 2:] + size / 2
    torch.testing.assert_close(translations, translations.round(), atol=1e-3, rtol=0)
    torch.testing.assert_close(corners, corners.round(), atol=1e-3, rtol=0)
    return angles, scales, translations.round(), corners.round()


def views_as_drawn(parameters, i, size, color):
    """The 12 views that `ucl.views.draw` drew for image i, as torchvision functions with fixed arguments."""
    angles, scales, translations, moved = (values[i] for values in torchvision_arguments(parameters, size))
    (left, top), (width, height) = parameters.crop[i].int().tolist()
    corners = [[0, 0], [size - 1, 0], [size - 1, size - 1], [0, size - 1]]
    flip, turn_over, tilt, negate = (bool(flag) for flag in parameters.applied[i])
    color = torch.as_tensor(color).view(-1, 1, 1)

    def cutout(hole):
        (x0, x1), (y0, y1) = hole.clamp(0, size).int().tolist()
        return lambda image: tv.erase(image, y0, x0, y1 - y0, x1 - x0, color)

    def rotation(angle):
        return lambda image: tv.rotate(image, -angle)

    def where(applied, function):
        return function if applied else lambda image: image

    return [
        *(cutout(hole) for hole in parameters.holes[i]),
        where(flip, tv.horizontal_flip),
        where(turn_over, tv.vertical_flip),
        *(rotation(angle) for angle in angles[:3].tolist()),
        lambda image: tv.adjust_brightness(image, parameters.brightness[i].item()),
        where(tilt, lambda image: tv.perspective(image, corners, moved.int().tolist(), fill=0)),
        lambda image: tv.affine(image, angles[3].item(), translations[3].int().tolist(), scales[3].item(), [0.0, 0.0]),
        lambda image: tv.resized_crop(image, top, left, height, width, [size, size], antialias=True),
        where(negate, tv.invert),
    ]


# Scores


@torch.no_grad()
def published_scores(model, images, transforms):
    """BI of the normalised images of one class; each view updates the running statistics of BatchNorm."""
    model.train()
    return bregman_information([model.logits(transform(images)) for transform in transforms])


@torch.no_grad()
def exact_scores(model, images, generator):
    """BI of uint8 images, one image and one view at a time."""
    model.eval()
    size = images.shape[-1]
    parameters = views.draw(len(images), size, generator)
    logits = []
    for i, image in enumerate(images.contiguous().float() / 255):
        image_views = views_as_drawn(parameters, i, size, model.mean.flatten())
        logits.append([model.logits(((view(image) - model.mean) / model.std)[None]) for view in image_views])
    return bregman_information([torch.cat(view) for view in zip(*logits, strict=True)])


# Memory


def quotas(available, size):
    """Distribute the slots one by one: in each turn, each class that has more samples gets one, until none is left."""
    quota = dict.fromkeys(available, 0)
    while sum(quota.values()) < min(size, sum(available.values())):
        for label, n in available.items():
            if quota[label] < n and sum(quota.values()) < size:
                quota[label] += 1
    return quota


@dataclass
class Sample:
    image: torch.Tensor
    position: int
    score: float | None = None


class Memory:
    """A class-balanced memory of the least uncertain samples of each class.

    Args:
        size: number of slots.
        score: maps a network and the images (N, C, H, W) of one class to scores (N,).
    """

    def __init__(self, size, score):
        self.size, self.score = size, score
        self.classes = {}

    def update(self, model, images, labels, positions):
        """Update with a batch: images in the form that `score` takes, labels and positions as lists."""
        fresh = {}
        for image, label, position in zip(images, labels, positions, strict=True):
            full = sum(map(len, self.classes.values())) == self.size
            (fresh if full else self.classes).setdefault(label, []).append(Sample(image, position))
        for label, samples in fresh.items():
            candidates = self.classes.get(label, []) + samples
            scores = self.score(model, torch.stack([sample.image for sample in candidates]))
            for sample, score in zip(candidates, scores.tolist(), strict=True):
                sample.score = score
            self.classes[label] = sorted(candidates, key=lambda sample: sample.score)
        for label, quota in quotas({c: len(samples) for c, samples in self.classes.items()}, self.size).items():
            del self.classes[label][quota:]

    def positions(self):
        return {label: [sample.position for sample in samples] for label, samples in self.classes.items()}
