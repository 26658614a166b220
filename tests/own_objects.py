"""Objects that a user may plug in. Tests copy this file as `mine.py` to their folder."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ucl.buffers import Buffer
from ucl.methods import Method
from ucl.models.passes import logits_of


def surprise(logits_PNC, labels_N, weight=0.0):
    """Cross-entropy of the views' mean logits with the true class, plus a share of their disagreement."""
    true_N = F.cross_entropy(logits_PNC.mean(0), labels_N, reduction="none")
    return true_N + weight * logits_PNC.softmax(-1).amax(-1).std(0)


def atypical(features_ND, labels_N):
    """Distance of the features from the mean of the class."""
    distances_N = torch.zeros(len(labels_N))
    for label in labels_N.unique():
        features_CD = features_ND[labels_N == label]
        distances_N[labels_N == label] = (features_CD - features_CD.mean(0)).norm(dim=1)
    return distances_N


def loss(losses):
    return losses


class Fifo(Buffer):
    """The last images of the stream, or the last of every n-th image."""

    def __init__(self, *arguments, step=1):
        super().__init__(*arguments)
        self.step = step

    def update(self, model, batch):
        n = self.store(batch)
        rest = np.arange(n, len(batch))
        rest = rest[(self.n_seen + rest) % self.step == 0]
        self.replace((self.n_seen + rest) % self.size, batch, rest)
        self.n_seen += len(batch)


class Hardest(Buffer):
    """The images with the largest loss when they arrived; the others have some chance to enter."""

    def update(self, model, batch):
        batch.values["loss"] = F.cross_entropy(logits_of(model, batch.images), batch.labels, reduction="none")
        for i in range(self.store(batch), len(batch)):
            easiest = int(self.values["loss"].argmin())
            if batch.values["loss"][i] > self.values["loss"][easiest] or self.draw.random() < 0.1:
                self.replace([easiest], batch, [i])
        self.n_seen += len(batch)


class Smoothed(Method):
    """Experience replay with smoothed labels."""

    def __init__(self, *arguments, smoothing=0.1):
        super().__init__(*arguments)
        self.smoothing = smoothing

    def update(self, model, batch, buffer):
        images, labels = self.with_replay(batch, buffer)
        self.descend(model, F.cross_entropy(model(images), labels, label_smoothing=self.smoothing))


class Counting(Hardest):
    """Its state includes a set and a further generator."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.seen, self.noise = set(), np.random.default_rng(7)

    def update(self, model, batch):
        self.seen.add(len(self.seen))
        batch.values["noise"] = self.scores.new_tensor(self.noise.random((len(batch), 2)) + len(self.seen))
        if self.noise.random() < 0.9:
            super().update(model, batch)

    def state_dict(self):
        return {**super().state_dict(), "seen": sorted(self.seen), "noise": self.noise.bit_generator.state}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.seen, self.noise.bit_generator.state = set(state["seen"]), state["noise"]


class Slower(Smoothed):
    """Reduces its learning rate."""

    def learn(self, model, batch, buffer=None):
        self.lr *= 0.9
        super().learn(model, batch, buffer)


class Growing:
    """A score whose numbers depend on the number of its calls."""

    calls = 0

    def __call__(self, logits_PNC):
        self.calls += 1
        return logits_PNC.mean((0, 2)) * (-1) ** self.calls

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


growing = Growing()


class Grouped(nn.Module):
    """A network with group normalisation."""

    def __init__(self, n_classes, channels, image_size):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, 8, 3, 2, 1), nn.GroupNorm(2, 8)
        self.pool, self.head = nn.AdaptiveAvgPool2d(4), nn.Linear(128, n_classes)

    def forward(self, x):
        return self.head(self.pool(F.relu(self.norm(self.conv(x)))).view(len(x), -1))


def batch_normed(n_classes, channels, image_size, *, width=8):
    layers = nn.Conv2d(channels, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(4)
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.2), nn.Linear(16 * width, n_classes))


def squares(shade=100):
    """Squares with a bright band that shows the class, as pairs (image, label) for training and testing."""
    labels = np.arange(96) % 4
    pixels = np.random.default_rng(0).integers(0, 50, (96, 28, 28), dtype=np.uint8)
    for image, label in zip(pixels, labels, strict=True):
        image[7 * label : 7 * label + 7] += shade
    pairs = list(zip(pixels, labels.tolist(), strict=True))
    return pairs[:80], pairs[80:]


def faces():
    """A data set of torchvision."""
    from torchvision.datasets import FakeData

    return FakeData(60, (3, 40, 32), 4), FakeData(24, (3, 40, 32), 4, random_offset=60)
