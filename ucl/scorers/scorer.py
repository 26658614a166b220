"""The scorer, which computes a score of each image from the logits of scoring passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ucl import catalogue, user_objects
from ucl.catalogue import is_user_object, resolved
from ucl.errors import InputError
from ucl.fields import check_field
from ucl.machine.determinism import restored_draws
from ucl.models import Network
from ucl.models.passes import in_evaluation_mode
from ucl.scorers.passes import ScoringPasses
from ucl.scorers.scores import INPUTS, Score, mean_probabilities

SCORES: dict[str, Score] = resolved(catalogue.SCORES)
"""The scores by their short names, in the order of tables."""
OF_PROBABILITIES = tuple(SCORES[name] for name, row in catalogue.SCORES.items() if row.of_probabilities)
"""The scores that need one pass only, and can be taken of the mean probabilities."""


def resolve(name: str) -> Score:
    """The score with a name in `SCORES`, or the user's score, given as ``package.module:function``.

    Raises:
        InputError: the name is unknown, or the function can't be imported or needs something else than `INPUTS`.
    """
    if is_user_object(name):
        return user_objects.find("score", name)
    check_field("score", name)
    return SCORES[name]


@dataclass
class Scorer:
    """Computes an uncertainty score of images from the logits of scoring passes: u(TTA(a)) in the paper's Algorithm 1.

    Args:
        score: function from logits (P, N, C), or other inputs by the names of its parameters (`INPUTS`), to uncertainty
            (N,).
        passes: compute the logits.
        averaging: "scores" or "probabilities", see `Config`.
        path: dotted path of a user's score; "" for one of `SCORES`. Only a user's score is checked for finite results.

    Raises:
        InputError: `averaging` is unknown or not for this score.
    """

    score: Score
    passes: ScoringPasses
    averaging: str = "scores"
    path: str = ""
    _by_name: user_objects.ByName = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._by_name = user_objects.ByName(self.score, INPUTS)
        check_field("averaging", self.averaging)
        if self.averaging == "probabilities" and self.score not in OF_PROBABILITIES:
            reason = "is for LC, MS, RC and EN; other scores compare the passes, and mean probabilities are one"
            raise InputError("averaging", self.averaging, f"{reason}; give 'scores'")

    @torch.no_grad()
    def __call__(
        self, model: Network, images: Tensor, positions: Tensor | None = None, sizes: Mapping[int, int] | None = None
    ) -> Tensor:
        """Score the candidates of several classes at once.

        Args:
            model: the network.
            images: (N, C, H, W), uint8 or float in [0, 1], class after class.
            positions: (N,), int64: index of each image in the data set's training images; only `view_draws` "fixed"
                needs them.
            sizes: number of candidates of each class, by its label; without it all are of one class, and no score
                with labels or losses as inputs can be computed.

        Returns:
            The scores (N,), float64, on the images' device.

        Raises:
            InputError: the user's score raised an error, or returned something else than a finite real number per
                image on their device; or see `ScoringPasses.logits`.
        """
        inputs = self._inputs(model, images, positions, sizes)
        # Before the call, as a user's score may write into its inputs. Only a user's score waits for the GPU. A network
        # that masks classes by -inf has not diverged.
        has_diverged = bool(self.path) and any((v.isnan() | v.isposinf()).any() for v in inputs.values())
        scores_N = user_objects.call("score", self.path, self._by_name, inputs)
        is_real = isinstance(scores_N, Tensor) and not scores_N.is_complex()
        if not is_real or scores_N.shape != (len(images),) or scores_N.device != images.device:
            got = type(scores_N).__name__
            if isinstance(scores_N, Tensor):
                got = f"{scores_N.dtype} {tuple(scores_N.shape)} on {scores_N.device}".removeprefix("torch.")
            reason = f"returned {got}; return a real number per image: a tensor ({len(images)},) on {images.device}"
            raise InputError("score", self._name, reason)
        if self.path and not has_diverged and not scores_N.isfinite().all():
            reason = f"returned NaN or infinity for {int((~scores_N.isfinite()).sum())} images; return finite numbers"
            raise InputError("score", self._name, reason)
        return scores_N.double()

    def _inputs(
        self, model: Network, images: Tensor, positions: Tensor | None, sizes: Mapping[int, int] | None
    ) -> dict[str, Tensor]:
        """Those of `INPUTS` that the score asks for, and the labels for the losses; nothing else is computed."""
        inputs: dict[str, Tensor] = {}
        names = self._by_name.asked
        if self.passes.batchnorm == "train" and model.has_running_statistics:
            names |= {"logits_PNC"}  # The passes change the statistics that tests read, whatever the score is.
        if "logits_PNC" in names:
            logits_PNC = self.passes.logits(model, images, positions, list(sizes.values()) if sizes else ())
            averages = self.averaging == "probabilities"
            inputs["logits_PNC"] = mean_probabilities(logits_PNC) if averages else logits_PNC
        if "labels_N" in names or "losses" in names:
            assert sizes is not None, "labels need the number of images of each class"
            labels_N = torch.tensor([*sizes]).repeat_interleave(torch.tensor([*sizes.values()]))
            inputs["labels_N"] = labels_N.to(images.device, non_blocking=True)
        if "features_ND" in names or "losses" in names:
            network, x_NCHW = in_evaluation_mode(model, self.passes.dtype), model.normalize(images)
            with restored_draws(images.device):
                if "features_ND" in names:
                    inputs["features_ND"], logits_NC = network.features_and_logits(x_NCHW)
                else:
                    logits_NC = network.logits(x_NCHW)
            if "losses" in names:
                inputs["losses"] = F.cross_entropy(logits_NC, inputs["labels_N"], reduction="none")
        return inputs

    def state_dict(self) -> dict[str, Any]:
        score = self.score.state_dict() if hasattr(self.score, "state_dict") else {}
        return {"generator": self.passes.generator.get_state(), "score": score}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.passes.generator.set_state(state["generator"])
        if hasattr(self.score, "load_state_dict"):
            self.score.load_state_dict(state["score"])

    @property
    def _name(self) -> str:
        return self.path or getattr(self.score, "__name__", type(self.score).__name__)


class RandomScores:
    """A scorer with random scores: an `UncertaintyBuffer` with it draws all that a class keeps anew at each update."""

    def __init__(self, seed: int) -> None:
        self._draw = torch.Generator().manual_seed(seed)

    def __call__(self, model: Network, images: Tensor, *_: object) -> Tensor:
        """Random numbers (N,) in [0, 1) for the candidates."""
        scores_N = torch.rand(len(images), generator=self._draw, dtype=torch.float64)
        return scores_N.to(images.device, non_blocking=True)

    def state_dict(self) -> dict[str, Any]:
        return {"draw": self._draw.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._draw.set_state(state["draw"])
