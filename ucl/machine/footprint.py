"""The memory that a run on the CPU needs, estimated before it starts."""

from __future__ import annotations

from ucl.catalogue import is_user_object, score_row
from ucl.config import Config
from ucl.errors import InputError
from ucl.machine.available import available_bytes, in_gib

_FIRST_STAGE = 20 * 4  # bytes per pixel of an activation of the network's first stage: 20 filters in float32
_LIBRARIES = 100 * 2**20  # bytes of torch's libraries during computation, weights and gradients included
_GIVEN_BACK_AT_ONCE = 2**25  # bytes; freed blocks of this size or more leave the process, smaller ones are reused


def bytes_needed(
    config: Config, n_images: int, image_size: int, channels: int, n_classes: int, threads: int = 1, lazy: bool = False
) -> dict[str, int]:
    """Estimate the peak memory of a run on the CPU in bytes, in addition to Python, torch and the loaded images.

    Args:
        config: the run.
        n_images: number of training, test and validation images together.
        image_size: pixels per side.
        channels, n_classes: channels and classes of the data set.
        threads: torch's CPU threads.
        lazy: whether the images stay in a file and are read batch by batch.

    Returns:
        The bytes of "images" (copied in the order of the stream, and those of the memory), of "passes" (the activations
        of training steps and of scoring or testing), and of "libraries".
    """
    pixels, batch = image_size**2, config.batch_size
    # The activations of a network of the user's own are not known. They count as none.
    image, layer = pixels * channels, 0 if is_user_object(config.model) else pixels * _FIRST_STAGE
    at_once = {"finetune": 1, "joint": 1, "agem": 1, "derpp": 3}.get(config.method, 2) * batch
    stored = min(config.memory_size, n_images) if config.uses_memory else 0
    views = 12 * min(32, stored)  # At the end of every run, its memory is scored with 12 views.
    scoring = 2 * views * image * 4 + 3 * min(views, 48 * threads) * layer
    if config.uses_scores and score_row(config.score).dropout_passes:
        scoring = max(scoring, (stored + batch) * 2 * image * 4 + 3 * 128 * layer)
    if config.uses_scores and config.scoring_batchnorm == "train":
        # The classes of the first task have the most images in memory.
        of_class = batch + stored * config.n_tasks // n_classes
        scoring = max(scoring, 2 * 12 * of_class * image * 4 + 5 * of_class * layer)
    training, scoring = 21 * at_once * layer, max(scoring, min(128, n_images) * (image * 4 + 3 * layer))
    together = training + scoring if at_once * layer < _GIVEN_BACK_AT_ONCE else max(training, scoring)
    images = (0 if lazy else n_images * image) + stored * image
    return {"images": images, "passes": together, "libraries": _LIBRARIES}


def check(needed: dict[str, int], n_images: int, image_size: int) -> None:
    """Refuse a run that needs more memory than is available; if the available memory is unknown, none is refused.

    Args:
        needed: see `bytes_needed`.
        n_images, image_size: see `bytes_needed`.

    Raises:
        InputError: there is too little memory; the message has both numbers.
    """
    total, available = sum(needed.values()), available_bytes()
    if available is not None and total > available:
        parts = ", ".join(f"{name} {in_gib(n)}" for name, n in needed.items())
        reason = f"a run of {n_images} images of {image_size} pixels per side needs about {in_gib(total)} more memory"
        reason += f" ({parts}), and {in_gib(available)} are available here; give fewer or smaller images, a smaller"
        raise InputError("image_size", image_size, f"{reason} batch_size or a smaller memory_size")
