"""Augmentation of the images of a training step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ucl.machine.determinism import seeded_draws

N_OPERATIONS, MAGNITUDE = 1, 14  # one of 14 operations; a magnitude of 14 out of 30


class RandAugment:
    """RandAugment (Cubuk et al., 2020): a random operation per image, in torchvision's implementation.

    Repeated augmented rehearsal (Zhang et al., 2022) augments batch and memory samples in this way. Its code uses 16
    operations, including a cutout; torchvision has 14.
    """

    def __init__(self, seed: int) -> None:
        from torchvision.transforms.v2 import RandAugment as Transform  # Imported here because it takes a second.

        self._transform = Transform(N_OPERATIONS, MAGNITUDE)
        self._draw = np.random.default_rng(seed)

    def __call__(self, images_NCHW: Tensor) -> Tensor:
        """Images (N, C, H, W), uint8, each augmented separately."""
        with seeded_draws(int(self._draw.integers(2**62)), images_NCHW.device):
            return torch.stack([self._transform(image) for image in images_NCHW])

    def state_dict(self) -> dict[str, Any]:
        return {"draw": self._draw.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._draw.bit_generator.state = state["draw"]
