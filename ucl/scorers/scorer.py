"""The scorer, which runs a network on several views of each image and computes a score from the logits."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from ucl import own
from ucl.config import check_fields
from ucl.errors import InputError, one_of, whole_number
from ucl.machine.checkpoints import State
from ucl.machine.determinism import own_draws
from ucl.models import Network, to_unit
from ucl.models.folded import images_at_once
from ucl.models.passes import TrainingPasses, in_evaluation_mode, in_training_mode
from ucl.scorers import views
from ucl.scorers.scores import INPUTS, Score, mean_probabilities


def _like_logits(inputs: Mapping[str, Tensor]) -> Tensor:
    """The input of a score that shows whether the network has diverged, as (P, N, any): NaN or infinite if it has."""
    if "logits_PNC" in inputs:
        return inputs["logits_PNC"]
    found = inputs.get("features_ND", inputs.get("losses"))
    return inputs["labels_N"][None, :, None] if found is None else found.reshape(1, len(found), -1)


def _check_network(model: object) -> None:
    if not isinstance(model, Network):
        call = "ucl.models.OwnNetwork(model, 'name', n_classes, channels, image_size, mean, std)"
        raise InputError("model", type(model).__name__, f"is no network of ucl.models; give {call}")


def _not_finite(name: str, images: str) -> InputError:
    return InputError("score", name, f"returned NaN or infinity for {images}; return finite numbers")


@dataclass
class Scorer:
    """Computes an uncertainty score of images from the network's logits; weights and mode of the network do not change.

    Args:
        score: function from logits (P, N, C) to uncertainty (N,); a user's own may have other inputs, see `INPUTS`.
        generator: draws the views, or the seed of the dropout masks.
        dropout_passes: 0 to score the 12 views; otherwise the number of dropout passes of the unchanged image (MC).
        averaging: "scores" or "probabilities", see `Config`.
        batchnorm: "eval", or "train": batch statistics of each view and class, which also update the running ones.
        view_draws: "image", "batch" or "fixed", see `Config`; "fixed" views depend only on the image's position and the
            generator's seed.
        n_draws: number of draws of the 12 views.
        view_space: "pixels" or "normalized".
        dtype: arithmetic of the forward passes.
        chunk: number of images whose views are in memory at a time. It limits the memory use, and changes results only
            by rounding. By default 32 on a CPU, which fit into its caches, and 1024 of 32 x 32 pixels on a GPU, which
            needs few, large operations.
        own: name of a user's own score, whose results are checked; "" for one of `SCORES`.

    Raises:
        InputError: the score is not a function, or another value is unknown or out of range.
    """

    score: Score
    generator: torch.Generator
    dropout_passes: int = 0
    averaging: str = "scores"
    batchnorm: str = "eval"
    view_draws: str = "image"
    view_space: str = "pixels"
    n_draws: int = 1
    dtype: torch.dtype = torch.float32
    chunk: int | None = None
    own: str = ""
    # Number of images whose logits are not finite, and number of images with finite logits but no finite score.
    _flaws: Tensor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.score):
            raise InputError("score", self.score, "give a function; ucl.scorers.resolve returns that of a name")
        one_of("batchnorm", self.batchnorm, ("eval", "train"))
        check_fields(averaging=self.averaging, view_draws=self.view_draws, view_space=self.view_space)
        check_fields(n_draws=self.n_draws)
        whole_number("dropout_passes", self.dropout_passes, 0, 1000)
        if self.chunk is not None:
            whole_number("chunk", self.chunk, 1, 10_000_000)

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
                infinity; or positions or labels are needed and missing; or the model is not a `Network`.
        """
        _check_network(model)
        sizes = [len(images) for images in candidates]
        if self.own:
            by_name = own.ByName(self.score, INPUTS)
            inputs = self._inputs(by_name.asked, model, candidates, positions, labels)
            scores_N = own.call("score", self.own, by_name, inputs)
            logits_PNC = _like_logits(inputs)
        else:
            logits_PNC = self.logits(model, candidates, positions)
            if self.averaging == "probabilities":
                logits_PNC = mean_probabilities(logits_PNC)
            scores_N = self.score(logits_PNC)
        if not isinstance(scores_N, Tensor) or scores_N.shape != (sum(sizes),):
            got = f"shape {tuple(scores_N.shape)}" if isinstance(scores_N, Tensor) else type(scores_N).__name__
            advice = f"return a tensor of shape ({sum(sizes)},)"
            raise InputError("score", self._name, f"returned {got} for logits {tuple(logits_PNC.shape)}; {advice}")
        if scores_N.is_complex():
            raise InputError("score", self._name, "returned complex numbers; return real ones")
        diverged_N = ~logits_PNC.isfinite().all(-1).all(0)
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
            found["logits_PNC"] = self.logits(model, candidates, positions)
        if "labels_N" in names or "losses" in names:
            if len(labels) != len(candidates):
                raise InputError("score", self._name, "needs the labels of the candidates; give them to the scorer")
            sizes, device = torch.tensor([len(images) for images in candidates]), candidates[0].device
            found["labels_N"] = torch.tensor(labels).repeat_interleave(sizes).to(device, non_blocking=True)
        if "features_ND" in names or "losses" in names:
            network = in_evaluation_mode(model, self.dtype)
            x_NCHW = network.normalize(torch.cat(list(candidates)))
            if "features_ND" in names:
                found["features_ND"], logits_NC = network.features_and_logits(x_NCHW)
            else:
                logits_NC = network.logits(x_NCHW)
            if "losses" in names:
                found["losses"] = F.cross_entropy(logits_NC, found["labels_N"], reduction="none")
        return found

    def state(self) -> State:
        """All that `restore` needs: the state of the generator."""
        return {"generator": self.generator.get_state().numpy()}

    def restore(self, state: State) -> None:
        """Continue from what `state` returned."""
        self.generator.set_state(torch.from_numpy(state["generator"]))

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

    @torch.no_grad()
    def logits(self, model: Network, candidates: Sequence[Tensor], positions: Sequence[Tensor] = ()) -> Tensor:
        """Logits (P, N, C) of the candidates' views, in the order of the classes.

        With `batchnorm` "train" the passes are those of the reference implementation: one pass in training mode for
        each class and view, which updates the running statistics of the model.

        Raises:
            InputError: the model is not a `Network`, or positions are needed and missing.
        """
        _check_network(model)
        sizes = [len(images) for images in candidates]
        if not (self.batchnorm == "train" and model.has_running_statistics):
            at_N = torch.cat(list(positions)) if len(positions) else None
            return self._evaluation_mode_logits(model, torch.cat(list(candidates)), sizes, at_N)
        network = in_training_mode(model, self.dtype)
        of_classes: Sequence[Tensor | None] = positions or [None] * len(sizes)
        return torch.cat(
            [
                self._training_mode_logits(network, model, images, at_N)
                for images, at_N in zip(candidates, of_classes, strict=True)
            ],
            1,
        )

    def _evaluation_mode_logits(
        self, model: Network, images_NCHW: Tensor, sizes: list[int], at_N: Tensor | None
    ) -> Tensor:
        """Logits of all classes at once; in evaluation mode, images do not affect each other."""
        network = in_evaluation_mode(model, self.dtype, dropout=self.dropout_passes > 0)
        if self.dropout_passes:
            with _own_dropout_masks(model, self.generator, images_NCHW.device):
                x_NCHW = network.normalize(images_NCHW)
                if x_NCHW.device.type == "cpu":
                    return torch.stack([network.logits(x_NCHW) for _ in range(self.dropout_passes)])
                passes = [  # All passes at once: on a GPU, launching a small operation costs more than computing it.
                    network.logits(torch.cat([x_NCHW[part]] * self.dropout_passes)).unflatten(
                        0, (self.dropout_passes, -1)
                    )
                    for part in self.parts(x_NCHW)
                ]
                return torch.cat(passes, 1)
        of_draws = []
        for parameters in self._draws(images_NCHW, sizes, at_N):
            inputs = self._view_inputs(model, images_NCHW, parameters)
            logits = [network.logits(x_PNCHW.flatten(0, 1)).unflatten(0, x_PNCHW.shape[:2]) for x_PNCHW in inputs]
            of_draws.append(torch.cat(logits, 1))
        return torch.cat(of_draws)

    def _training_mode_logits(
        self, network: TrainingPasses, model: Network, images_NCHW: Tensor, at_N: Tensor | None
    ) -> Tensor:
        """Logits of the images of one class, whose views are normalised by their own batch statistics."""
        with _own_dropout_masks(model, self.generator, images_NCHW.device):
            if self.dropout_passes:
                return network.logits(model.normalize(images_NCHW).expand(self.dropout_passes, -1, -1, -1, -1))
            of_draws = []
            for parameters in self._draws(images_NCHW, [len(images_NCHW)], at_N):
                # The statistics of a view need all images, so only the views are computed chunk by chunk.
                inputs = self._view_inputs(model, images_NCHW, parameters)
                in_memory_PNHWC = torch.cat([x_PNCHW.to(self.dtype).permute(0, 1, 3, 4, 2) for x_PNCHW in inputs], 1)
                of_draws.append(network.logits(in_memory_PNHWC.permute(0, 1, 4, 2, 3)))
            return torch.cat(of_draws)

    def parts(self, images_NCHW: Tensor) -> Iterator[slice]:
        """Slices that split the images into chunks."""
        on_cpu = images_NCHW.device.type == "cpu"
        chunk = self.chunk or (32 if on_cpu else images_at_once(1024, images_NCHW.shape[-1]))
        return (slice(start, start + chunk) for start in range(0, len(images_NCHW), chunk))

    def _view_inputs(self, model: Network, images_NCHW: Tensor, parameters: views.ViewParameters) -> Iterator[Tensor]:
        """Normalised views (P, n, C, H, W) of n images, chunk by chunk."""
        for part in self.parts(images_NCHW):
            views_PNCHW = self._views(model, images_NCHW[part], parameters[part])
            if self.view_space == "pixels":
                views_PNCHW = model.normalize(views_PNCHW.flatten(0, 1)).unflatten(0, views_PNCHW.shape[:2])
            yield views_PNCHW

    def _draws(self, images_NCHW: Tensor, sizes: list[int], at_N: Tensor | None) -> Iterator[views.ViewParameters]:
        """The parameters of the views, once per draw."""
        image_size, device = images_NCHW.shape[-1], images_NCHW.device
        for turn in range(self.n_draws):
            if self.view_draws == "fixed":
                if at_N is None:
                    raise InputError(
                        "view_draws", "fixed", "needs the positions of the images; give them to the scorer"
                    )
                yield views.draw_fixed(at_N, image_size, self.generator.initial_seed(), turn).to(device)
            elif self.view_draws == "image":
                yield views.draw(sum(sizes), image_size, self.generator).to(device)
            else:
                of_image = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
                yield views.draw(len(sizes), image_size, self.generator)[of_image].to(device)

    def _views(self, model: Network, images_NCHW: Tensor, parameters: views.ViewParameters) -> Tensor:
        x_NCHW = model.normalize(images_NCHW) if self.view_space == "normalized" else to_unit(images_NCHW)
        return views.apply(x_NCHW, parameters, model.mean.flatten())


class RandomScores:
    """A scorer that draws random scores.

    At each update, an `UncertaintyBuffer` with it draws at random which of the stored samples and those in the batch it
    keeps.
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

    def state(self) -> State:
        return {"draw": self._draw.get_state().numpy()}

    def restore(self, state: State) -> None:
        self._draw.set_state(torch.from_numpy(state["draw"]))


@contextmanager
def _own_dropout_masks(model: Network, generator: torch.Generator, device: torch.device) -> Iterator[None]:
    """Within the block, dropout draws its masks from a seed of this generator."""
    if model.draws_nothing:
        yield
        return
    # Dropout draws from the global generator: without the fork, scoring would change the masks of the training steps.
    seed = int(torch.randint(2**62, (1,), generator=generator))
    with own_draws(seed, device):
        yield
