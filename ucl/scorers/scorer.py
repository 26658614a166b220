"""The scorer, which computes a score of each image from the logits of scoring passes."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ucl import user_objects
from ucl.errors import InputError
from ucl.fields import check_fields
from ucl.models import Network
from ucl.models.passes import in_evaluation_mode
from ucl.scorers.passes import ScoringPasses, check_candidates, check_network, network_draws_taken_back
from ucl.scorers.scores import INPUTS, OF_PROBABILITIES, Score, mean_probabilities


def _like_logits(inputs: Mapping[str, Tensor]) -> Tensor:
    """The input of a score that shows whether the network has diverged, as (P, N, any): NaN or infinite if it has."""
    if "logits_PNC" in inputs:
        return inputs["logits_PNC"]
    found = inputs.get("features_ND", inputs.get("losses"))
    return inputs["labels_N"][None, :, None] if found is None else found.reshape(1, len(found), -1)


def _diverged(logits_PNC: Tensor) -> Tensor:
    """(N,), True for images with a logit that is NaN or infinite."""
    return ~logits_PNC.isfinite().all(-1).all(0)


def _listed(inputs: Mapping[str, Tensor], parameter: str) -> str:
    """The inputs of a score with their shapes, such as "logits (12, 6, 4), labels (6,)".

    Args:
        inputs: the inputs by their names in `INPUTS`.
        parameter: the parameter that gets the logits, if it has a name of its own; "" otherwise.
    """
    own_name = f", its parameter {parameter!r}" if parameter else ""
    listed = {name: f"{_plain(name)} {tuple(values.shape)}" for name, values in inputs.items()}
    return ", ".join(text + own_name if name == "logits_PNC" else text for name, text in listed.items())


def _plain(name: str) -> str:
    """The name of an input without its dimensions: "logits" for "logits_PNC"."""
    return name.partition("_")[0]


def _not_finite(name: str, images: str) -> InputError:
    """The error of a score that is NaN or infinite for these images."""
    return InputError("score", name, f"returned NaN or infinity for {images}; return finite numbers")


@dataclass
class Scorer:
    """Computes an uncertainty score of images from the logits of scoring passes: u(TTA(a)) in the paper's Algorithm 1.

    Args:
        score: function from logits (P, N, C) to uncertainty (N,); a user's own may have other inputs, see `INPUTS`.
        passes: compute the logits.
        averaging: "scores" or "probabilities", see `Config`.
        own: name of a user's own score; "" for one of `SCORES`. Only with a name does the score get its inputs by the
            names of its parameters (`INPUTS`), and does each call check that its results are finite.

    Raises:
        InputError: the score is not a function, or `averaging` is unknown or not for this score.
    """

    score: Score
    passes: ScoringPasses
    averaging: str = "scores"
    own: str = ""
    # Number of images whose logits are not finite, and number of images with finite logits but no finite score.
    _flaws: Tensor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.score):
            raise InputError("score", self.score, "give a function; ucl.scorers.resolve returns that of a name")
        check_fields(averaging=self.averaging)
        if self.averaging == "probabilities" and self.score not in OF_PROBABILITIES:
            reason = "is for LC, MS, RC and EN; other scores compare the passes, and mean probabilities are one"
            raise InputError("averaging", self.averaging, f"{reason}; give 'scores'")

    @torch.no_grad()
    def __call__(
        self,
        model: Network,
        candidates: Sequence[Tensor],
        positions: Sequence[Tensor] = (),
        labels: Sequence[int] = (),
    ) -> list[Tensor]:
        """Score the candidates of several classes at once.

        Args:
            model: the network.
            candidates: images (N, C, H, W) of each class, uint8 or float in [0, 1].
            positions: indices (N,), int64, of each class's images in the data set's training images; only `view_draws`
                "fixed" needs them.
            labels: label of each class; only a score of the user's own may need them.

        Returns:
            The scores (N,) of each class, float64, on the images' device.

        Raises:
            InputError: the user's own score raised an error, or returned another shape, complex numbers, NaN or
                infinity, or a tensor on another device; or positions or labels are needed and missing; or the model is
                not a `Network`; or candidates are no images.
        """
        check_network(model)
        check_candidates(candidates)
        sizes = [len(images) for images in candidates]
        by_name = user_objects.ByName(self.score, INPUTS) if self.own else None
        if by_name is not None:
            inputs = self._inputs(by_name.asked, model, candidates, positions, labels)
        else:
            logits_PNC = self.passes.logits(model, candidates, positions)
            averages = self.averaging == "probabilities"
            inputs = {"logits_PNC": mean_probabilities(logits_PNC) if averages else logits_PNC}
        diverged_N = _diverged(_like_logits(inputs))  # before the call: a user's own score may write into its inputs
        if by_name is not None:
            scores_N = user_objects.call("score", self.own, by_name, inputs)
        else:
            scores_N = self.score(inputs["logits_PNC"])
        if not isinstance(scores_N, Tensor) or scores_N.shape != (sum(sizes),):
            got = f"shape {tuple(scores_N.shape)}" if isinstance(scores_N, Tensor) else type(scores_N).__name__
            given = _listed(inputs, by_name.unknown if by_name else "")
            raise InputError(
                "score", self._name, f"returned {got} for {given}; return a tensor of shape ({sum(sizes)},)"
            )
        first, *_ = inputs
        if scores_N.device != inputs[first].device:
            got = f"a tensor on {scores_N.device} for {_plain(first)} on {inputs[first].device}"
            raise InputError("score", self._name, f"returned {got}; return it on the device of its inputs")
        if scores_N.is_complex():
            raise InputError("score", self._name, "returned complex numbers; return real ones")
        flaws = torch.stack([diverged_N.sum(), (~scores_N.isfinite() & ~diverged_N).sum()])
        if self.own:
            n_diverged, n_not_finite = flaws.tolist()  # It is acceptable that a user's own score waits for the GPU.
            if n_not_finite and not n_diverged:
                raise _not_finite(self._name, f"{n_not_finite} of {len(scores_N)} images")
        self._flaws = flaws if self._flaws is None else self._flaws + flaws
        return list(scores_N.double().split(sizes))

    def _inputs(
        self,
        names: Container[str],
        model: Network,
        candidates: Sequence[Tensor],
        positions: Sequence[Tensor],
        labels: Sequence[int],
    ) -> dict[str, Tensor]:
        """Those of `INPUTS` that a score of the user's own has as parameters; nothing else is computed."""
        found: dict[str, Tensor] = {}
        if "logits_PNC" in names:
            found["logits_PNC"] = self.passes.logits(model, candidates, positions)
        if "labels_N" in names or "losses" in names:
            if len(labels) != len(candidates):
                raise InputError("score", self._name, "needs the labels of the candidates; give them to the scorer")
            sizes, device = torch.tensor([len(images) for images in candidates]), candidates[0].device
            labels_N = torch.tensor(labels).repeat_interleave(sizes).to(device, non_blocking=True)
            if "labels_N" in names:
                found["labels_N"] = labels_N
        if "features_ND" in names or "losses" in names:
            network = in_evaluation_mode(model, self.passes.dtype)
            x_NCHW = network.normalize(torch.cat(list(candidates)))
            with network_draws_taken_back(model, x_NCHW.device):
                if "features_ND" in names:
                    found["features_ND"], logits_NC = network.features_and_logits(x_NCHW)
                else:
                    logits_NC = network.logits(x_NCHW)
            if "losses" in names:
                found["losses"] = F.cross_entropy(logits_NC, labels_N, reduction="none")
        return found

    def state_dict(self) -> dict[str, Any]:
        """The state of the generator, and of a score that has one."""
        score = self.score.state_dict() if hasattr(self.score, "state_dict") else {}
        return {"generator": self.passes.generator.get_state(), "score": score}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self.passes.generator.set_state(state["generator"])
        if hasattr(self.score, "load_state_dict"):
            self.score.load_state_dict(state["score"])

    def check(self) -> bool:
        """Whether all logits since the last call were finite; False if the network has diverged.

        The counts stay on the device until this is called, so that no memory update waits for the device.

        Raises:
            InputError: all logits were finite, but some scores were not.
        """
        n_diverged, n_not_finite = (0, 0) if self._flaws is None else self._flaws.tolist()
        self._flaws = None
        if n_not_finite and not n_diverged:
            raise _not_finite(self._name, f"{n_not_finite} images")
        return not n_diverged

    @property
    def _name(self) -> str:
        return self.own or getattr(self.score, "__name__", type(self.score).__name__)


class RandomScores:
    """A scorer that draws random scores.

    At each update, an `UncertaintyBuffer` with it draws at random which of the stored samples and those in the batch it
    keeps.

    Args:
        seed: seed of the scores.
    """

    def __init__(self, seed: int) -> None:
        self._draw = torch.Generator().manual_seed(seed)

    def __call__(
        self,
        model: Network,
        candidates: Sequence[Tensor],
        positions: Sequence[Tensor] = (),
        labels: Sequence[int] = (),
    ) -> list[Tensor]:
        """Random numbers (N,) in [0, 1) for each class's candidates; the other arguments are not used."""
        return [
            torch.rand(len(c), generator=self._draw, dtype=torch.float64).to(c.device, non_blocking=True)
            for c in candidates
        ]

    def state_dict(self) -> dict[str, Any]:
        return {"draw": self._draw.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._draw.set_state(state["draw"])
