"""Networks: the slim ResNet-18, a copy of it with folded BatchNorm for fast inference, users' networks; `load`."""

from ucl.models.folded import FoldedNetwork
from ucl.models.network import Network, OwnNetwork, to_unit
from ucl.models.saved import load
from ucl.models.slim_resnet import MODELS, SlimResNet18

__all__ = ["MODELS", "FoldedNetwork", "Network", "OwnNetwork", "SlimResNet18", "load", "to_unit"]
