"""Square arrays of pixels made from Pillow images and arrays, in memory or, if they are large, in a temporary file."""

from __future__ import annotations

import logging
import math
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ucl.catalogue import LARGEST_IMAGE
from ucl.errors import InputError, one_line
from ucl.machine.available import available_bytes

if TYPE_CHECKING:
    from PIL import Image

# The decoders of IMAGE_FILES only: Pillow also opens PostScript, which is a program that would be executed.
IMAGE_FILES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")
_DECODERS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
_log = logging.getLogger(__name__)
_ADVICE = "give opaque images with 8 bits per channel, one per file, such as PNG or JPEG, or remove it"


def decode(
    source: str, n: int, items: Iterable[tuple[str, Any, Any]], size: int | None, folder: Path
) -> tuple[np.ndarray, list[Any]]:
    """Decode the items of a data set, each once.

    Args:
        source: the data set; error messages name it.
        n: number of items.
        items: (name, image, label); the name is for error messages. An image is a file, a Pillow image, a uint8 array
            (H, W), (H, W, 1) or (H, W, 3), or a tensor with channels first.
        size: pixels per side; None for those of the first image, or 32 if it is not square.
        folder: where the temporary file of large images is.

    Returns:
        Images (n, size, size, 3), uint8, see `square`, and the labels unchanged. A log message (level INFO) counts the
        images that lose more than a tenth when they are cropped.

    Raises:
        InputError: an image can't be used, or there is no item.
    """
    labels: list[Any] = []
    cropped = []
    for i, (name, image, label) in enumerate(items):
        try:
            with _opened(image) as opened:
                size = size or _size_of(opened)
                pixels = square(opened, size)
                cropped.append(1 - min(opened.size) / max(opened.size))
        except Exception as error:  # A decoder can raise any error on a damaged file.
            raise InputError("dataset", source, f"{name} can't be used: {one_line(error)}; {_ADVICE}") from None
        if i == 0:
            images = empty_images((n, size, size, 3), folder)
        images[i] = pixels
        labels.append(label)
    if not labels:
        raise InputError("dataset", source, "has no images; give at least one of each class")
    if max(cropped) > 0.1:
        many = f"{sum(share > 0.1 for share in cropped)} of {n} images are not square"
        _log.info("%s: %s; only their middle is used, up to %.0f %% is cropped", source, many, 100 * max(cropped))
    return images, labels


def square(image: Image.Image, size: int) -> np.ndarray:
    """The middle of an image, (size, size, 3), uint8.

    The image is turned upright if it has an EXIF orientation. The shorter side is resized to `size`, the longer one
    cropped around its centre.

    Raises:
        ValueError: the pixels would be changed silently: they have more than 8 bits or are transparent.
    """
    from PIL import Image, ImageOps

    # convert() would clip values of 16 bits, and Pillow drops the low byte of some images when it reads them.
    if image.mode.startswith(("I", "F")) or _has_16_bits_in_file(image):
        raise ValueError("it has more than 8 bits per channel")
    if image.has_transparency_data and np.asarray(image.convert("RGBA"))[..., 3].min() < 255:
        raise ValueError("it has transparent pixels")
    pixels = ImageOps.exif_transpose(image).convert("RGB")
    if pixels.size != (size, size):
        pixels = ImageOps.fit(pixels, (size, size), Image.Resampling.BICUBIC)
    return np.asarray(pixels)


def grey_if_equal(images: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays of images (N, H, W, 3): with one channel if in all images the channels are equal, otherwise unchanged."""
    if any((image != image[..., :1]).any() for array in images.values() for image in array):
        return images
    grey = {key: array[..., :1] for key, array in images.items()}
    return {key: array if isinstance(array, np.memmap) else array.copy() for key, array in grey.items()}


def empty_images(shape: tuple[int, ...], folder: Path) -> np.ndarray:
    """An array for images: in memory, or in a temporary file if it needs more than a quarter of what is available.

    The system deletes the file when the process ends.

    Raises:
        OSError: it needs more than the free space on the disk.
    """
    needed, available = math.prod(shape), available_bytes()
    if available is None or 4 * needed <= available:
        return np.empty(shape, np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:  # The mapping keeps the file until the process ends.
        os.posix_fallocate(file.fileno(), 0, needed)  # Writing to a mapped file on a full disk would kill the process.
        return np.memmap(file, np.uint8, "w+", shape=shape)


@contextmanager
def _opened(image: Any) -> Iterator[Image.Image]:
    from PIL import Image

    if not isinstance(image, Path):
        yield _as_pillow(image)
        return
    with Image.open(image, formats=_DECODERS) as opened:
        n_images = getattr(opened, "n_frames", 1)
        if n_images > 1 and opened.format != "MPO":  # An MPO is a photo with further versions of itself.
            raise ValueError(f"{n_images} images in one file")
        yield opened


def _as_pillow(image: Any) -> Image.Image:
    if hasattr(image, "convert"):
        return image
    from PIL import Image

    array = np.asarray(image)
    if hasattr(image, "permute") and array.ndim == 3:  # a tensor of torch, channels first
        array = array.transpose(1, 2, 0)
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or array.shape[2:] not in ((), (1,), (3,)):
        given = f"{type(image).__name__} of {array.dtype} and shape {tuple(np.shape(image))}"
        raise ValueError(f"a {given}: give uint8, (H, W) or (H, W, 3), and leave out transforms such as ToTensor")
    return Image.fromarray(array.squeeze(-1) if array.shape[2:] == (1,) else np.ascontiguousarray(array))


def _size_of(image: Image.Image) -> int:
    """Pixels per side of a square image; 32 for an image that is not square."""
    width, height = image.size
    if width == height and width > LARGEST_IMAGE:
        raise ValueError(f"{width} pixels per side: give image_size, at most {LARGEST_IMAGE}")
    return width if width == height else 32


def _has_16_bits_in_file(image: Image.Image) -> bool:
    """Whether an image that Pillow opened from a PNG, TIFF or PPM file has more than 8 bits per channel there."""
    if not getattr(image, "tile", None):  # It is not from a file, or its pixels are already read.
        return False
    arguments = image.tile[0][3]  # type: ignore[attr-defined]  # such as RGB;16B, or (RGB, 65535) of a PPM
    raw_mode, *others = arguments if isinstance(arguments, tuple) else (arguments,)
    return ";16" in str(raw_mode) or (image.format == "PPM" and bool(others) and others[-1] > 255)
