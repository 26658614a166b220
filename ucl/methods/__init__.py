"""Methods, which define how a batch is learnt by SGD, and the base class for your own."""

from ucl import catalogue
from ucl.catalogue import resolved
from ucl.methods.derpp import DERPP
from ucl.methods.er_ace import ERACE, over_own_classes
from ucl.methods.method import Method
from ucl.methods.mir import MIR
from ucl.methods.replay import AGEM, ExperienceReplay, Finetune, project

__all__ = [
    "AGEM", "DERPP", "ERACE", "METHODS", "MIR", "ExperienceReplay", "Finetune", "Method", "over_own_classes",
    "project",
]  # fmt: skip

METHODS: dict[str, type[Method]] = resolved(catalogue.METHODS)
"""The methods by the names that `Config.method` takes."""
