"""Networks: the slim ResNet-18, and its folded form for fast inference."""

from ucl.models.folded import FoldedNetwork
from ucl.models.slim_resnet import MODELS, SlimResNet18, to_unit

__all__ = ["MODELS", "FoldedNetwork", "SlimResNet18", "to_unit"]
