"""Uncertainty scores, the 12 test-time views, and the scorer that computes a network's scores of images from views."""

from ucl.scorers.passes import ScoringPasses
from ucl.scorers.scorer import SCORES, RandomScores, Scorer, resolve
from ucl.scorers.scores import (
    INPUTS,
    Score,
    bregman_information,
    confidence_ratio,
    disagreement,
    dropout_variance,
    entropy,
    least_confidence,
    margin,
    mean_probabilities,
    uniform,
)

__all__ = [
    "INPUTS", "SCORES", "RandomScores", "Score", "Scorer", "ScoringPasses", "bregman_information", "confidence_ratio",
    "disagreement", "dropout_variance", "entropy", "least_confidence", "margin", "mean_probabilities", "resolve",
    "uniform",
]  # fmt: skip
