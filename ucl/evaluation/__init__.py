"""Tests of a network: after each task, between task ends, and in readings with other running statistics."""

from ucl.evaluation.accuracy import Evaluation, predictions
from ucl.evaluation.anytime import AnytimeEvaluation

__all__ = ["AnytimeEvaluation", "Evaluation", "predictions"]
