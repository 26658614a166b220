"""What a run takes of a processor's memory, estimated before it starts."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ucl.config import Config
from ucl.errors import InputError
from ucl.machine.available import available_bytes, in_gib

_FIRST_STAGE = 20 * 4  # bytes per pixel of an activation of the network's first stage: 20 filters in float32
_LIBRARIES = 100 * 2**20  # of torch's libraries once they compute, weights and gradients included
_GIVEN_BACK_AT_ONCE = (
    2**25
)  # bytes: freed blocks from this size on leave the process; smaller ones wait to be used again


@dataclass(frozen=True)
class Footprint:
    """Bytes that a run needs at its peak, by what needs them.

    Attributes:
        data: the images of the data set, uint8.
        stream: their copy in the order of the stream.
        memory: the replay memory.
        training: a training step: the activations that its backward pass needs.
        scoring: the views of a chunk of images and the activations of the network that sees them.
        evaluation: a chunk of test images and its activations.
        sums: whether what training needed stays with the process while it scores.
    """

    data: int
    stream: int
    memory: int
    training: int
    scoring: int
    evaluation: int
    sums: bool

    @property
    def total(self) -> int:
        """All of it. What large images need for training is given back before they are scored; small ones need both."""
        passes = max(self.scoring, self.evaluation)
        working = self.training + passes if self.sums else max(self.training, passes)
        return self.data + self.stream + self.memory + working + _LIBRARIES


def bytes_needed(
    config: Config, n_images: int, image_size: int, channels: int, n_classes: int, threads: int = 1
) -> Footprint:
    """Estimate the memory of a run on a processor, beside what Python and torch take once imported.

    Args:
        config: the run.
        n_images: training, test and validation images together.
        image_size: pixels a side.
        channels, n_classes: of the data set.
        threads: of torch.
    """
    pixels, batch = image_size**2, config.batch_size
    image, layer = pixels * channels, pixels * _FIRST_STAGE
    at_once = batch if config.method in ("finetune", "agem") else 2 * batch
    stored = 0 if config.method == "finetune" else min(config.memory_size or 0, n_images)

    def inference(images: int, most: int) -> int:
        """float32 images, and three activations of as many of them as the network takes at a time."""
        return images * image * 4 + 3 * min(images, most) * layer

    n_tested = min(128, n_images)
    scoring, chunk = 0, 12 * min(32, stored)
    if stored:  # at the end each run sees its memory by 12 views
        scoring = inference(chunk, 48 * threads) + chunk * image * 4
    if config.uses_scores and config.score == "MC":
        scoring = max(scoring, inference(stored + batch, 128) + (stored + batch) * image * 4)
    if config.uses_scores and config.scoring_batchnorm == "train":
        of_class = batch + stored * (config.n_tasks or 1) // n_classes  # of the first task's classes there are the most
        scoring = max(scoring, 2 * 12 * of_class * image * 4 + 5 * of_class * layer)
    return Footprint(
        data=n_images * image,
        stream=n_images * image,
        memory=stored * image,
        training=21 * at_once * layer,
        scoring=scoring,
        evaluation=inference(n_tested, 128 if config.dropout else 48 * threads),
        sums=at_once * layer < _GIVEN_BACK_AT_ONCE,
    )


def check(config: Config, n_images: int, image_size: int, channels: int, n_classes: int, threads: int = 1) -> None:
    """Refuse a run that needs more memory than is available; where the system does not tell, none is refused.

    Args:
        config, n_images, image_size, channels, n_classes, threads: see `bytes_needed`; the images are loaded already.

    Raises:
        InputError: there is too little memory; the message has both numbers and says what to make smaller.
    """
    needed = bytes_needed(config, n_images, image_size, channels, n_classes, threads)
    further, available = needed.total - needed.data, available_bytes()
    if available is None or further <= available:
        return
    advice = {
        "stream": "give fewer or smaller images",
        "memory": "give a smaller memory_size",
        "training": "give smaller images or a smaller batch_size",
        "scoring": "give smaller images",
        "evaluation": "give smaller images",
    }
    terms = {name: asdict(needed)[name] for name in advice}
    listed = ", ".join(f"{name} {in_gib(n)}" for name, n in terms.items())
    reason = f"a run of {n_images} images of {image_size} pixels a side needs about {in_gib(further)} more ({listed})"
    advised = advice[max(terms, key=terms.__getitem__)]
    raise InputError("image_size", image_size, f"{reason}, and {in_gib(available)} are available here; {advised}")
