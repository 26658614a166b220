"""Networks: the slim ResNet-18, and a copy with folded BatchNorm for fast inference."""

from ucl.models.folded import FoldedNetwork
from ucl.models.slim_resnet import MODELS, SlimResNet18, to_unit

__all__ = ["MODELS", "FoldedNetwork", "SlimResNet18", "to_unit"]
