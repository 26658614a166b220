"""Uncertainty scores: pure functions of the logits of several views of each image.

Each function takes logits (P, N, C) of P views (for MC: dropout passes) of N images over C classes and returns (N,).
Higher scores mean more uncertainty. Scores are computed in float64: they are exact to 1e-5 for logits up to 300. A
class whose logits are -inf has the probability 0.

A user's score gets its inputs by the names of its parameters (`INPUTS`). One call scores candidates of all
classes in a batch. With `Config.refresh` 1 these are all candidates; otherwise, those in the batch and the stored ones
that are rescored:

    logits_PNC    logits of the P views; a first parameter with a name unlike all of these gets them, too
    labels_N      the candidates' classes, int64
    features_ND   the network's penultimate features of the unchanged image, in evaluation mode
    losses        (N,) cross-entropy of the unchanged image, in evaluation mode, in nats

The passes of the views are computed if the score asks for their logits. In training mode they are always computed,
because they change the statistics that tests read.

A score that keeps something between calls is an object with `state_dict` and `load_state_dict`; with a function, a
continued run would have another result.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ucl import user_objects

Score = Callable[..., Tensor]
"""A score: takes the logits (P, N, C) of P views of N images, and returns one number per image, high if uncertain."""
INPUTS = user_objects.KINDS["score"].arguments
"""The inputs that a user's score can have, by the names of its parameters."""


def least_confidence(logits_PNC: Tensor) -> Tensor:
    """One minus the mean probability of the most probable class (paper, eq. 2): (N,), in [0, 1 - 1/C]."""
    return 1 - _top_two(logits_PNC)[0].mean(0)


def margin(logits_PNC: Tensor) -> Tensor:
    """One minus the mean gap between the two highest probabilities (paper, eq. 3): (N,), in [0, 1]."""
    first_PN, second_PN = _top_two(logits_PNC)
    return 1 - (first_PN - second_PN).mean(0)


def confidence_ratio(logits_PNC: Tensor) -> Tensor:
    """Mean of the second highest over the highest probability (paper, eq. 4): (N,), in [0, 1]."""
    first_PN, second_PN = _top_two(logits_PNC)
    return (second_PN / first_PN).mean(0)


def entropy(logits_PNC: Tensor) -> Tensor:
    """Mean entropy of the class probabilities (paper, eq. 5): (N,), in [0, ln C] nats."""
    log_p_PNC = logits_PNC.double().log_softmax(-1)
    finite_PNC = log_p_PNC.clamp_min(torch.finfo(torch.float64).min)  # 0 log 0 is 0, also where a logit is -inf
    return -(log_p_PNC.exp() * finite_PNC).sum(-1).mean(0)


def disagreement(logits_PNC: Tensor) -> Tensor:
    """One minus the largest share of views that predict one class, as in Rainbow Memory (paper, eq. 1).

    Returns:
        (N,), in [0, 1 - 1/min(P, C)]: a multiple of 1/P, so many images have equal scores.
    """
    votes_PNC = torch.nn.functional.one_hot(logits_PNC.argmax(-1), logits_PNC.shape[-1])
    return 1 - votes_PNC.double().mean(0).amax(-1)


def bregman_information(logits_PNC: Tensor) -> Tensor:
    """Bregman Information of the logits, the variance term of the log-loss (paper, eq. 6): (N,), >= 0, in nats.

    It is 0 where all views give the same logits up to a constant.
    """
    logits_PNC = logits_PNC.double()
    mean_of_lse_N = logits_PNC.logsumexp(-1).mean(0)
    lse_of_mean_N = logits_PNC.mean(0).logsumexp(-1)
    return (mean_of_lse_N - lse_of_mean_N).clamp_min(0)  # By Jensen's inequality, only rounding makes it negative.


def dropout_variance(logits_PNC: Tensor) -> Tensor:
    """Variance of the logits over P dropout passes, averaged over the classes (Gal & Ghahramani, 2016): (N,), >= 0."""
    finite_PNC = logits_PNC.double().clamp_min(torch.finfo(torch.float32).min)  # of a masked class, -inf in all passes
    return finite_PNC.var(0, correction=0).mean(-1)


def uniform(labels_N: Tensor) -> Tensor:
    """Random control, ``score="ucl.scorers:uniform"``: it needs no views.

    Each scoring of an image draws a new number, so a stored image can be replaced whenever it is rescored, and the
    memory holds mostly recent images; `notebooks/what_a_memory_keeps.ipynb` compares it with other scores. With
    `Config.smoothing` near 0 an image keeps its first number, so all images of a class are equally likely to be stored.

    Returns:
        (N,), in [0, 1), from torch's global generator. The dropout masks of the training steps come from it too, so in
        a network with dropout they are not those of other scores at the same seed.
    """
    return torch.rand(len(labels_N), dtype=torch.float64, device=labels_N.device)


def mean_probabilities(logits_PNC: Tensor) -> Tensor:
    """Logits (1, N, C) whose softmax is the mean over the views' softmax, for scores of the mean probabilities."""
    return logits_PNC.double().log_softmax(-1).logsumexp(0, keepdim=True)


def _top_two(logits_PNC: Tensor) -> tuple[Tensor, Tensor]:
    """The highest and the second highest class probability, (P, N) each, float64."""
    first_PN, second_PN = logits_PNC.double().softmax(-1).topk(2, -1).values.unbind(-1)
    return first_PN, second_PN
