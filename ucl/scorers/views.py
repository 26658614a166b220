"""The 12 test-time views of an image (paper, Appendix A.1), drawn per image and computed a batch at a time.

The paper names them with `torchvision.transforms.v2`, which perturbs all images of a batch alike. Here each image has
draws of its own, and the number of tensor operations depends neither on the images nor on the views:

    parameters = draw(len(images), image_size, generator)   # uniforms turned into holes, matrices, factors
    views = apply(images, parameters, fill)                 # (12, N, C, H, W), no randomness left

Nothing is read back to the host, so nothing waits for the device.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ucl.errors import InputError

VIEWS: tuple[str, ...] = (
    "cutout 10", "cutout 20", "horizontal flip", "vertical flip", "rotation 10", "rotation 45", "rotation 90",
    "brightness", "perspective", "affine", "resized crop", "invert",
)  # fmt: skip


_COLUMNS = (4, 4, 4, 1, 2, 1, 8, 10, 10, 2)  # uniforms of an image, by what they decide


@dataclass(frozen=True)
class ViewParameters:
    """How each image is perturbed: a row an image, or a single row that all images share; float32.

    Coordinates are (x, y). The matrices take an output pixel, in pixels from the image's centre, to where the input is
    read, in `grid_sample`'s coordinates: -1 and 1 are the image's edges.

    Attributes:
        holes: (K, 2, 2, 2), for either cutout, in x and y: the first pixel of the hole and the first one after it; may
            reach over the image's edges.
        applied: (K, 4): 1 where horizontal flip, vertical flip, perspective and inversion take place, else 0.
        affine: (K, 4, 2, 3), for the rotations by up to 10, 45 and 90 degrees and the affine view.
        brightness: (K,), the factor, in [0.9, 1.1].
        homography: (K, 3, 3), for the perspective; defined up to a factor.
        crop: (K, 2, 2): the first pixel of the crop in x and y, then its width and height.
    """

    holes: Tensor
    applied: Tensor
    affine: Tensor
    brightness: Tensor
    homography: Tensor
    crop: Tensor

    def __len__(self) -> int:
        return len(self.brightness)

    def __getitem__(self, images: slice | Tensor) -> ViewParameters:
        """The parameters of some of the images; a single row is shared by all and stays."""
        return self if len(self) == 1 else self._map(lambda tensor: tensor[images])

    def to(self, device: torch.device | str) -> ViewParameters:
        """The parameters on a device; waits only where that is the host."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=torch.device(device).type != "cpu"))

    def _map(self, function: Callable[[Tensor], Tensor]) -> ViewParameters:
        return ViewParameters(*(function(getattr(self, field.name)) for field in dataclasses.fields(self)))


def perturb(
    images: Tensor, generator: torch.Generator, fill: Tensor | Sequence[float] | None = None, per_image: bool = True
) -> Tensor:
    """The 12 views of each image, in the order of `VIEWS` (paper, Appendix A.1).

    Args:
        images: (N, C, H, W) float32 in [0, 1], square, C = 1 or 3, on any device.
        generator: the only source of randomness; one on the CPU serves every device.
        fill: (C,), what cutout puts into its hole, best the data's mean; by default 0.5, mid-grey.
        per_image: whether each image has draws of its own; else all share the same.

    Returns:
        (12, N, C, H, W) in [0, 1] up to rounding, on the images' device, laid out as `apply` says.

    Raises:
        InputError: the images have another shape or type.
    """
    return apply(images, draw(len(images), images.shape[-1], generator, per_image), fill)


def draw(n_images: int, image_size: int, generator: torch.Generator, per_image: bool = True) -> ViewParameters:
    """Draw the parameters of the 12 views as torchvision's transforms of Appendix A.1 draw theirs.

    Every parameter is a function of the image's own row of uniforms, read from the generator at once.

    Args:
        n_images: how many images.
        image_size: their height and width, in pixels.
        generator: where the uniforms come from.
        per_image: a row for each image; else one row for all.

    Returns:
        the parameters, on the generator's device; worked out in float64.
    """
    shape = n_images if per_image else 1, sum(_COLUMNS)
    uniforms = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
    return _parameters(uniforms, image_size)


def draw_fixed(names_N: Tensor, image_size: int, seed: int, turn: int = 0) -> ViewParameters:
    """Draw the parameters by the images' names: an image has the same ones whenever it is asked for.

    The uniforms are those of the generator SplitMix64 (Steele et al., 2014), which can begin at any place.

    Args:
        names_N: (N,), whole numbers from 0, such as positions in a data set; int64, on any device.
        image_size: height and width, in pixels.
        seed: another one gives other parameters to all images.
        turn: of several draws for the same image, from 0.

    Returns:
        the parameters, on the names' device.
    """
    n = sum(_COLUMNS)
    place_NU = (turn << 40) + names_N[:, None] * n + torch.arange(1, n + 1, device=names_N.device)
    bits_NU = seed + place_NU * _int64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        bits_NU = (bits_NU ^ _shifted(bits_NU, shift)) * _int64(factor)
    return _parameters(_shifted(bits_NU, 11).double() * 2.0**-53, image_size)


def _int64(word: int) -> int:
    """The signed number of the same 64 bits."""
    return word - (word >> 63 << 64)


def _shifted(bits: Tensor, places: int) -> Tensor:
    """Shifted to the right, zeros coming in."""
    return (bits >> places) & ((1 << (64 - places)) - 1)


def _parameters(uniforms_NU: Tensor, size: int) -> ViewParameters:
    rows, device = len(uniforms_NU), uniforms_NU.device
    holes, coins, turns, zoom, shift, light, corners, area, ratio, start = uniforms_NU.split(_COLUMNS, dim=1)

    def constant(values: Sequence) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).to(device, non_blocking=True)

    # A rotation is an affine map that neither scales nor moves; torchvision turns the two in opposite directions.
    is_affine = constant([0, 0, 0, 1])
    angles = (2 * turns - 1) * constant([-10, -45, -90, 20])
    scales = 1 - is_affine * (0.5 - 0.25 * zoom)
    translations = is_affine * ((2 * shift - 1) * constant([0.1, 0.3]) * size).round()[..., None]

    reach = size // 4 + 1  # how many places a corner has in x and in y
    far = constant([[0, 0], [1, 0], [1, 1], [0, 1]])
    corners = (corners * reach).floor().view(rows, 4, 2) + far * (size - reach)

    return ViewParameters(
        holes=(holes * size).floor().view(rows, 2, 2, 1) + constant([[-5, 5], [-10, 10]])[:, None],
        applied=coins < 0.5,
        affine=_affine(angles, scales, translations) * (2 / size),
        brightness=0.9 + 0.2 * light[:, 0],
        homography=_homography(corners - size / 2, size),
        crop=_crop(area, ratio, start, size),
    )._map(Tensor.float)


def _affine(angles: Tensor, scales: Tensor, translations: Tensor) -> Tensor:
    """Inverses (K, V, 2, 3) of turning by degrees (K, V), scaling by (K, V) and moving by pixels (K, 2, V)."""
    radians, (tx, ty) = angles * (math.pi / 180), translations.unbind(1)
    cos, sin = radians.cos() / scales, radians.sin() / scales
    return torch.stack((cos, sin, -cos * tx - sin * ty, -sin, cos, sin * tx - cos * ty), -1).unflatten(-1, (2, 3))


def _homography(corners: Tensor, size: int) -> Tensor:
    """The projective maps (K, 3, 3) that take corners (K, 4, 2), clockwise from the top left, to the image's own.

    In closed form: a cross product of homogeneous points is the line through them, and in the unit square x is 0 on the
    left edge and y on the top edge. A linear solver would check its result, and so wait for the device.
    """
    p0, p1, p2, p3 = F.pad(corners, (0, 1), value=1.0).unbind(1)
    cross = torch.linalg.cross
    bottom, right = cross(p3, p2), cross(p1, p2)
    a = (p0 * bottom).sum(-1, keepdim=True) / (p1 * bottom).sum(-1, keepdim=True)
    b = (p0 * right).sum(-1, keepdim=True) / (p3 * right).sum(-1, keepdim=True)
    x, y = b * cross(p3, p0), a * cross(p0, p1)
    w = a * b * cross(p1, p3) + x + y
    # torchvision names the image's corners by the first and last pixel, and reads them as distances from the edge.
    to_grid = 2 * (size - 1) / size
    return torch.stack((to_grid * x - w, to_grid * y - w, w), 1)


def _crop(area: Tensor, ratio: Tensor, start: Tensor, size: int) -> Tensor:
    """Crops (K, 2, 2) of uniform area and log-uniform ratio: of the (K, 10) attempts the first that fits the image."""
    pixels = size**2 * (0.8 + 0.2 * area)
    ratio = torch.exp(math.log(0.9) + math.log(1.1 / 0.9) * ratio)
    attempts = torch.stack((pixels * ratio, pixels / ratio), 1).sqrt().round()
    attempts = F.pad(attempts, (0, 1), value=size)  # the whole image, where no attempt fits
    first = (attempts <= size).all(1).byte().argmax(1)
    extent = attempts.gather(2, first[:, None, None].expand(-1, 2, 1)).squeeze(2)
    return torch.stack(((start * (size - extent + 1)).floor(), extent), 1)


@torch.no_grad()
def apply(images: Tensor, parameters: ViewParameters, fill: Tensor | Sequence[float] | None = None) -> Tensor:
    """The 12 views of each image under given parameters: torchvision's results, image by image.

    An image's views do not depend, bit for bit, on the images beside it. Normalised images work too: brightness clamps
    to [0, 1] and inversion is 1 - x whatever the range, as in torchvision; nothing else clamps.

    Args:
        images: (N, C, H, W) float32, square, C = 1 or 3; left as they are.
        parameters: drawn for images of this size: a row each, or one row for all.
        fill: (C,), what cutout puts into its hole; by default 0.5.

    Returns:
        (12, N, C, H, W), on the images' device. Each view is channels-last in memory: flattening the first two
        dimensions copies nothing and gives a batch in `torch.channels_last`.

    Raises:
        InputError: the images have another shape or type.
    """
    square = images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[2] == images.shape[3]
    if not square or images.dtype != torch.float32:
        given = f"{images.dtype} of shape {tuple(images.shape)}"
        raise InputError("images", given, "give float32 images (N, C, H, W), square, with 1 or 3 channels")
    n, channels, size, _ = images.shape
    # The layout that convolutions read fastest is written once here, rather than made from 12 finished views.
    images = images.contiguous(memory_format=torch.channels_last)
    memory = images.new_empty(len(VIEWS), n, size, size, channels)
    views = memory.permute(0, 1, 4, 2, 3)
    p = parameters.to(images.device)
    pixels = torch.arange(size, device=images.device)

    # Between finite images, lerp by 0 or 1 is an exact choice, and on a CPU several times as fast as where.
    hflip, vflip, perspective, invert = p.applied[:, :, None, None, None].unbind(1)
    torch.lerp(images, images.flip(-1), hflip, out=views[2])
    torch.lerp(images, images.flip(-2), vflip, out=views[3])
    torch.mul(images, p.brightness[:, None, None, None], out=views[7]).clamp_(0, 1)
    torch.lerp(images, 1 - images, invert, out=views[11])

    # Columns and channels count as one dimension here: looping over an innermost one of 1 or 3 is slow.
    color = torch.as_tensor(0.5 if fill is None else fill, dtype=images.dtype).to(images.device, non_blocking=True)
    inside = ((p.holes[..., :1] <= pixels) & (pixels < p.holes[..., 1:])).to(images.dtype).transpose(0, 1)
    holes = inside[:, :, 1, :, None] * inside[:, :, 0, None, :].repeat_interleave(channels, -1)
    rows = images.permute(0, 2, 3, 1).flatten(2)
    torch.lerp(rows, color.expand(size, channels).flatten(), holes, out=memory[:2].flatten(3))

    from_centre = pixels - (size - 1) / 2
    turned = _sample(images, _planes(p.affine.transpose(1, 2), from_centre), mode="nearest", padding_mode="zeros")
    views[4:7], views[9] = turned[:3], turned[3]

    planes = _planes(p.homography, from_centre)
    tilted = (planes[:, :2] / planes[:, 2:]).nan_to_num_(nan=2.0)  # 0 / 0 lies on the horizon: out of the image
    warped = _sample(images, torch.stack((tilted, _crop_grid(p.crop, size)), 2), mode="bilinear", padding_mode="border")
    # What is read beyond the edge fades to black; torchvision applies that weight twice, in sampling and in filling.
    covered = ((1 - tilted.abs()) * (size / 2) + 0.5).clamp_(0, 1)
    torch.mul(warped[0], (covered[:, :1] * covered[:, 1:]).square_(), out=views[8])
    torch.lerp(images, views[8], perspective, out=views[8])
    views[10] = warped[1]
    return views


def _planes(coefficients: Tensor, at: Tensor) -> Tensor:
    """a x + b y + c at every pixel: coefficients (..., 3) at coordinates (S,) of rows and columns -> (..., S, S)."""
    a, b, c = coefficients[..., None].unbind(-2)
    return (a * at)[..., None, :] + (b * at + c)[..., :, None]


def _crop_grid(crop: Tensor, size: int) -> Tensor:
    """Where each output pixel is read, (K, 2, size, size): never beyond the centres of the crop's outermost pixels."""
    start, extent = crop[..., None].unbind(1)
    within = (torch.arange(size, device=crop.device) + 0.5) * (extent / size) - 0.5
    within = torch.minimum(within.clamp_min(0), extent - 1)
    x, y = ((start + within + 0.5) * (2 / size) - 1).unbind(1)
    return torch.stack((x[:, None, :].expand(-1, size, -1), y[:, :, None].expand(-1, -1, size)), 1)


def _sample(images: Tensor, grids: Tensor, **how: str) -> Tensor:
    """Images (N, C, S, S) read at V grids each, (N or 1, 2, V, S, S) -> (V, N, C, S, S)."""
    # One grid V times as tall as the image spares copies of the images.
    tall = grids.flatten(2, 3).permute(0, 2, 3, 1).expand(len(images), -1, -1, -1)
    sampled = F.grid_sample(images, tall, align_corners=False, **how)
    return sampled.unflatten(2, grids.shape[2:4]).permute(2, 0, 1, 3, 4)
