"""The memory that a run on the CPU needs, estimated before it starts."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ucl.catalogue import is_own
from ucl.config import Config
from ucl.errors import InputError
from ucl.machine.available import available_bytes, in_gib

_FIRST_STAGE = 20 * 4  # bytes per pixel of an activation of the network's first stage: 20 filters in float32
_LIBRARIES = 100 * 2**20  # bytes of torch's libraries during computation, weights and gradients included
_GIVEN_BACK_AT_ONCE = 2**25  # bytes; freed blocks of this size or more leave the process, smaller ones are reused


@dataclass(frozen=True)
class Footprint:
    """Peak memory of a run in bytes, by purpose.

    Attributes:
        data: images of the data set, uint8.
        stream: copy of the images in the order of the stream.
        memory: the replay memory.
        training: activations that the backward pass of a training step needs.
        scoring: views of a chunk of images and the activations of their forward passes.
        evaluation: a chunk of test images and its activations.
        sums: whether the process keeps the memory of training while it scores.
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
        """Total bytes. For large images, the memory of training is freed before scoring; for small images, both add."""
        passes = max(self.scoring, self.evaluation)
        working = self.training + passes if self.sums else max(self.training, passes)
        return self.data + self.stream + self.memory + working + _LIBRARIES


def bytes_needed(
    config: Config,
    n_images: int,
    image_size: int,
    channels: int,
    n_classes: int,
    threads: int = 1,
    lazy: bool = False,
) -> Footprint:
    """Estimate the memory of a run on the CPU, in addition to that of Python and torch after their import.

    Args:
        config: the run.
        n_images: number of training, test and validation images together.
        image_size: pixels per side.
        channels, n_classes: channels and classes of the data set.
        threads: torch's CPU threads.
        lazy: whether the images stay in a file and are read batch by batch.
    """
    pixels, batch = image_size**2, config.batch_size
    # The activations of a network of the user's own are not known. They count as none.
    image, layer = pixels * channels, 0 if is_own(config.model) else pixels * _FIRST_STAGE
    batches = {"finetune": 1, "joint": 1, "agem": 1, "derpp": 3}.get(config.method, 2)  # in memory at a time
    at_once = batches * batch
    stored = min(config.memory_size, n_images) if config.uses_memory else 0

    def inference(images: int, most: int) -> int:
        """Bytes of float32 images, and of three activations of the images that the network processes at a time."""
        return images * image * 4 + 3 * min(images, most) * layer

    n_tested = min(128, n_images)
    scoring, chunk = 0, 12 * min(32, stored)
    if stored:  # At the end of every run, its memory is scored with 12 views.
        scoring = inference(chunk, 48 * threads) + chunk * image * 4
    if config.uses_scores and config.score == "MC":
        scoring = max(scoring, inference(stored + batch, 128) + (stored + batch) * image * 4)
    if config.uses_scores and config.scoring_batchnorm == "train":
        # The classes of the first task have the most images in memory.
        of_class = batch + stored * config.n_tasks // n_classes
        scoring = max(scoring, 2 * 12 * of_class * image * 4 + 5 * of_class * layer)
    return Footprint(
        data=0 if lazy else n_images * image,
        stream=0 if lazy else n_images * image,
        memory=stored * image,
        training=21 * at_once * layer,
        scoring=scoring,
        evaluation=inference(n_tested, 128 if config.dropout else 48 * threads),
        sums=at_once * layer < _GIVEN_BACK_AT_ONCE,
    )


def check(needed: Footprint, n_images: int, image_size: int) -> None:
    """Refuse a run that needs more memory than is available; if the available memory is unknown, none is refused.

    Args:
        needed: by the run, whose images are loaded.
        n_images, image_size: see `bytes_needed`.

    Raises:
        InputError: there is too little memory; the message has both numbers and says what to reduce.
    """
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
    size = f"{n_images} images of {image_size} pixels per side"
    reason = f"a run of {size} needs about {in_gib(further)} more memory ({listed})"
    advised = advice[max(terms, key=terms.__getitem__)]
    raise InputError("image_size", image_size, f"{reason}, and {in_gib(available)} are available here; {advised}")
