"""Square arrays of pixels made from Pillow images and arrays, in memory or, if they are large, in a temporary file."""

from __future__ import annotations

import logging
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ucl.errors import first_of, one_line
from ucl.machine.available import available_bytes

if TYPE_CHECKING:
    from PIL import Image

# The decoders of IMAGE_FILES only: Pillow also opens PostScript, which is a program that would be executed.
IMAGE_FILES = (".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")
_DECODERS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
_log = logging.getLogger(__name__)
_ADVICE = "give opaque images with 8 bits per channel, one per file, such as PNG or JPEG, or remove them"


def decode(
    source: str, splits: Mapping[str, tuple[int, Iterable[tuple[str, Any, Any]]]], size: int | None, folder: Path
) -> dict[str, Any]:
    """Decode the items of the splits of a data set, each once.

    Args:
        source: the data set, for log messages.
        splits: number of items and the items of each split: (name, image, label); the name is for error messages. An
            image is a file, a Pillow image, a uint8 array (H, W), (H, W, 1) or (H, W, 3), or a tensor with channels
            first.
        size: pixels per side; None for those of the first image, or 32 if it is not square.
        folder: where the temporary file of large images is.

    Returns:
        For each split its images, (n, size, size, C) uint8, see `square`, and the list of its labels, by their names in
        MedMNIST's layout. C is 1 if all images of all splits are grey, otherwise 3. A log message (level INFO) counts
        the images that lose more than a tenth when they are cropped.

    Raises:
        ValueError: images can't be used, or a split has no item.
    """
    arrays: dict[str, Any] = {}
    for split, (n, items) in splits.items():
        labels: list[Any] = []
        cropped, unusable = [], []
        for i, (name, image, label) in enumerate(items):
            try:
                with _opened(image) as opened:
                    size = size or (opened.width if opened.width == opened.height else 32)
                    pixels = square(opened, size)
                    cropped.append(1 - min(opened.size) / max(opened.size))
            except Exception as error:  # A decoder can raise any error on a damaged file.
                unusable.append(f"{name} ({one_line(error)})")
                continue
            if not labels:
                images = empty_images((n, size, size, 3), folder)
            images[i] = pixels
            labels.append(label)
        if unusable:
            raise ValueError(f"can't use {first_of(unusable, 20)}; {_ADVICE}")  # so many that one round mends most
        if not labels:
            raise ValueError(f"has no {split} images; give at least one of each class")
        if max(cropped) > 0.1:
            count = f"{sum(share > 0.1 for share in cropped)} of {n} images are not square"
            _log.info("%s: %s; only their middle is used, up to %.0f %% is cropped", source, count, 100 * max(cropped))
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
    keys = [f"{split}_images" for split in splits]
    if all((image == image[..., :1]).all() for key in keys for image in arrays[key]):
        grey = {key: arrays[key][..., :1] for key in keys}
        arrays |= {key: images if isinstance(images, np.memmap) else images.copy() for key, images in grey.items()}
    return arrays


def square(image: Image.Image, size: int) -> np.ndarray:
    """The middle of an image, (size, size, 3), uint8, see `as_rgb`.

    The shorter side is resized to `size`, the longer one cropped around its centre.
    """
    from PIL import Image, ImageOps

    pixels = as_rgb(image)
    if pixels.size != (size, size):
        pixels = ImageOps.fit(pixels, (size, size), Image.Resampling.BICUBIC)
    return np.asarray(pixels)


def as_rgb(image: Image.Image) -> Image.Image:
    """The image in RGB, upright by its EXIF orientation.

    Raises:
        ValueError: the pixels would be changed silently: they are grey with more than 8 bits, are transparent, or are
            those of several images in one file. Of colours with 16 bits, Pillow reads the higher 8.
    """
    from PIL import ImageOps

    n_images = getattr(image, "n_frames", 1)
    if n_images > 1 and image.format != "MPO":  # An MPO is a photo with further versions of itself.
        raise ValueError(f"{n_images} images in one file")
    if image.mode.startswith(("I", "F")):  # convert() would clip them
        raise ValueError("it has more than 8 bits per channel")
    if image.has_transparency_data and np.asarray(image.convert("RGBA"))[..., 3].min() < 255:
        raise ValueError("it has transparent pixels")
    return ImageOps.exif_transpose(image).convert("RGB")


def empty_images(shape: tuple[int, ...], folder: Path) -> np.ndarray:
    """An array for images: in memory, or in a temporary file if it needs more than a quarter of what is available."""
    needed, available = math.prod(shape), available_bytes()
    if available is None or 4 * needed <= available:
        return np.empty(shape, np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:  # The mapping keeps the file until the process ends.
        os.posix_fallocate(file.fileno(), 0, needed)  # Writing to a mapped file on a full disk would kill the process.
        return np.memmap(file, np.uint8, "w+", shape=shape)


@contextmanager
def _opened(image: Any) -> Iterator[Image.Image]:
    """A file, an array or a tensor as a Pillow image."""
    from PIL import Image

    if isinstance(image, Path):
        with Image.open(image, formats=_DECODERS) as opened:
            yield opened
    elif hasattr(image, "convert"):
        yield image
    else:
        array = np.asarray(image)
        if hasattr(image, "permute") and array.ndim == 3:  # a tensor of torch, channels first
            array = array.transpose(1, 2, 0)
        if array.dtype != np.uint8 or array.ndim not in (2, 3) or array.shape[2:] not in ((), (1,), (3,)):
            given = f"{type(image).__name__} of {array.dtype} and shape {tuple(np.shape(image))}"
            raise ValueError(f"a {given}: give uint8, (H, W) or (H, W, 3), and leave out transforms such as ToTensor")
        yield Image.fromarray(array.squeeze(-1) if array.shape[2:] == (1,) else np.ascontiguousarray(array))
