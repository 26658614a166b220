"""Square arrays of pixels, made from image files and from Pillow images."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ucl.errors import MOST_NAMED, InputError, one_line
from ucl.machine.files import regular_file

if TYPE_CHECKING:
    from PIL import Image

# The decoders of these suffixes only: Pillow also opens PostScript, which is a program that would be executed.
_DECODERS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
_SAVE_AGAIN = (
    "save each again, for example as PNG or JPEG, with 8 bits per channel, opaque, with fewer pixels, or remove it"
)
_BITS_PER_SAMPLE = 258  # the tag of a TIFF file
_log = logging.getLogger(__name__)


def flaw(image: Image.Image) -> str:
    """Why the pixels of an opened image would be changed silently; "" if they would not be."""
    # convert() would clip values of 16 bits, and Pillow drops the low byte of some images when it reads them.
    if image.mode.startswith(("I", "F")) or _bits_in_file(image) > 8:
        return f"more than 8 bits per channel: mode {image.mode}"
    if image.has_transparency_data and np.asarray(image.convert("RGBA"))[..., 3].min() < 255:
        return "transparent pixels"
    return ""


def square(image: Image.Image, size: int) -> tuple[np.ndarray, float]:
    """The middle of an image, (size, size, 3), uint8, and the share of the image that is cropped, in [0, 1).

    The image is turned upright if it has an EXIF orientation. The shorter side is resized to `size`, the longer one
    cropped around its centre.
    """
    from PIL import Image, ImageOps

    pixels = ImageOps.exif_transpose(image).convert("RGB")
    if pixels.size != (size, size):
        pixels = ImageOps.fit(pixels, (size, size), Image.Resampling.BICUBIC)
    return np.asarray(pixels), 1 - min(image.size) / max(image.size)


def report_cropped(name: str, lost: Sequence[float]) -> None:
    """Log how many images of a data set lose more than a tenth, where `lost` is the share that is cropped of each."""
    cropped = [share for share in lost if share > 0.1]
    if cropped:
        many = f"{len(cropped)} of {len(lost)} images are not square"
        _log.info("%s: %s; only their middle is used, up to %.0f %% is cropped", name, many, 100 * max(cropped))


def read_images(files: list[Path], size: int) -> tuple[np.ndarray, list[float]]:
    """Images (N, size, size, 3), uint8, and the share of each image that was cropped.

    Raises:
        InputError: files can't be read; the message names the first ones.
    """
    from PIL import Image

    images, lost = np.empty((len(files), size, size, 3), np.uint8), [0.0] * len(files)
    errors: dict[Path, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        for i, file in enumerate(files):
            try:
                images[i], lost[i] = _read_image(file, size)
            except Exception as error:  # A decoder can raise any error on a damaged file.
                errors[file] = one_line(error)
            if len(errors) > MOST_NAMED:
                break
    if errors:
        first, *others = list(errors)[:MOST_NAMED]
        more = " and more" if len(errors) > MOST_NAMED else ""
        fault = f"are not readable images (the first: {errors[first]})"
        fault = fault if others else f"is not a readable image ({errors[first]})"
        raise InputError("dataset", ", ".join(map(str, [first, *others])) + more, f"{fault}; {_SAVE_AGAIN}")
    return images, lost


def _read_image(file: Path, size: int) -> tuple[np.ndarray, float]:
    """See `square`."""
    from PIL import Image

    with Image.open(regular_file(file), formats=_DECODERS) as image:
        if reason := flaw(image):
            raise ValueError(reason)
        n_images = getattr(image, "n_frames", 1)
        if n_images > 1 and image.format != "MPO":  # An MPO is a photo with further versions of itself.
            raise ValueError(f"{n_images} images in one file")
        return square(image, size)


def _bits_in_file(image: Image.Image) -> int:
    """Bits per channel of a PNG, TIFF or PPM file, which may be 16 in an opened image of 8.

    8 for other formats, and for an image that is not of a file, or is no longer.
    """
    if image.format == "TIFF":
        return max(image.tag_v2.get(_BITS_PER_SAMPLE, (1,)))  # type: ignore[attr-defined]
    if not getattr(image, "tile", None):
        return 8
    how = image.tile[0][3]  # type: ignore[attr-defined]  # such as RGB;16B, or for PPM the mode and the largest value
    if image.format == "PPM":
        return 16 if isinstance(how, tuple) and how[-1] > 255 else 8
    return 16 if image.format == "PNG" and str(how).endswith("16B") else 8
