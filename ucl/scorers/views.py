"""The 12 test-time views of an image (paper, Appendix A.1), drawn per image and computed for a batch at once.

The paper specifies them with `torchvision.transforms.v2`, which perturbs all images of a batch equally. Here each image
has its own draws, and the number of tensor operations depends neither on the images nor on the draws:

    parameters = draw(len(images), image_size, generator)   # uniform numbers become holes, matrices, factors
    views = apply(images, parameters, fill)                 # (12, N, C, H, W), deterministic

No value is copied back to the host, so the host never waits for the device.
"""

from __future__ import annotations

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
"""The names of the 12 views, in the paper's order."""
_BY_CHANCE = [2, 3, 8, 11]  # views that are applied to half of the images, in the order of `ViewParameters.applied`

_COLUMNS = (4, 4, 4, 1, 2, 1, 8, 10, 10, 2)  # How many uniform numbers an image needs, in the order of `_parameters`.


@dataclass(frozen=True)
class ViewParameters:
    """Parameters of the views: one row per image; float32.

    Coordinates are (x, y). The matrices map an output pixel, in pixels from the image's centre, to the input position
    in `grid_sample`'s coordinates, where -1 and 1 are the image's edges.

    Attributes:
        holes: (K, 2, 2, 2), for each cutout, in x and y: the first pixel of the hole and the first pixel after it. A
            hole may extend beyond the image's edges.
        applied: (K, 4): 1 if the horizontal flip, vertical flip, perspective or inversion is applied, otherwise 0.
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
        return self._map(lambda tensor: tensor[images])

    def to(self, device: torch.device | str) -> ViewParameters:
        """The parameters on a device; the host waits only for a copy to the host itself."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=torch.device(device).type != "cpu"))

    def _map(self, function: Callable[[Tensor], Tensor]) -> ViewParameters:
        return ViewParameters(*map(function, vars(self).values()))


def perturb(images: Tensor, generator: torch.Generator, fill: Tensor | Sequence[float] | None = None) -> Tensor:
    """The 12 views of each image, in the order of `VIEWS` (paper, Appendix A.1).

    Args:
        images: (N, C, H, W) float32 in [0, 1], square, C = 1 or 3, on any device.
        generator: the only source of randomness; a generator on the CPU works for images on every device.
        fill: (C,) or (1,), value of the cutouts' holes, preferably the data's mean; by default 0.5, mid-grey.

    Returns:
        (12, N, C, H, W) in [0, 1] up to rounding, on the images' device, with the memory layout of `apply`.

    Raises:
        InputError: the images have another shape or type.
    """
    return apply(images, draw(len(images), images.shape[-1], generator), fill)


def draw(n: int, image_size: int, generator: torch.Generator) -> ViewParameters:
    """Draw the parameters of the 12 views with the distributions of torchvision's transforms (Appendix A.1).

    Every parameter is a function of the row's uniform numbers. All rows are drawn at once.

    Args:
        n: number of images.
        image_size: height and width of the images, in pixels.
        generator: source of the uniform numbers.

    Returns:
        The parameters, computed in float64, on the generator's device.
    """
    uniforms = torch.rand((n, sum(_COLUMNS)), generator=generator, device=generator.device, dtype=torch.float64)
    return _parameters(uniforms, image_size)


def draw_fixed(names_N: Tensor, image_size: int, seed: int, turn: int = 0) -> ViewParameters:
    """Parameters that depend only on an image's number and the seed, so that an image always has the same views.

    The uniform numbers are those of the generator SplitMix64 (Steele et al., 2014), which can start at any index.

    Args:
        names_N: (N,), a whole number >= 0 that identifies each image, such as its position in the data set; int64, on
            any device.
        image_size: height and width, in pixels.
        seed: another seed gives all images other parameters.
        turn: number of the draw, from 0, if an image has several draws.

    Returns:
        The parameters, on the device of `names_N`.
    """
    n = sum(_COLUMNS)
    index_NU = (turn << 40) + names_N[:, None] * n + torch.arange(1, n + 1, device=names_N.device)
    bits_NU = seed + index_NU * _int64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        bits_NU = (bits_NU ^ _shifted(bits_NU, shift)) * _int64(factor)
    return _parameters(_shifted(bits_NU, 11).double() * 2.0**-53, image_size)


def _int64(word: int) -> int:
    """The signed number with the same 64 bits."""
    return word - (word >> 63 << 64)


def _shifted(bits: Tensor, n_bits: int) -> Tensor:
    """Logical right shift: zeros enter from the left."""
    return (bits >> n_bits) & ((1 << (64 - n_bits)) - 1)


def _parameters(uniforms_NU: Tensor, size: int) -> ViewParameters:
    """The parameters that rows of uniform numbers give, for images of `size` pixels per side."""
    rows, device = len(uniforms_NU), uniforms_NU.device
    holes, coins, turns, zoom, shift, light, corners, area, ratio, start = uniforms_NU.split(_COLUMNS, dim=1)

    def constant(values: Sequence) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).to(device, non_blocking=True)

    # A rotation is an affine map without scaling and translation; torchvision's two transforms rotate in opposite
    # directions.
    is_affine = constant([0, 0, 0, 1])
    angles = (2 * turns - 1) * constant([-10, -45, -90, 20])
    scales = 1 - is_affine * (0.5 - 0.25 * zoom)
    translations = is_affine * ((2 * shift - 1) * constant([0.1, 0.3]) * size).round()[..., None]

    reach = size // 4 + 1  # number of possible coordinates of a corner, in x and in y
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
    """Inverse maps (K, V, 2, 3) of rotations by degrees (K, V), scales (K, V) and translations by pixels (K, 2, V)."""
    radians, (tx, ty) = angles * (math.pi / 180), translations.unbind(1)
    cos, sin = radians.cos() / scales, radians.sin() / scales
    return torch.stack((cos, sin, -cos * tx - sin * ty, -sin, cos, sin * tx - cos * ty), -1).unflatten(-1, (2, 3))


def _homography(corners: Tensor, size: int) -> Tensor:
    """The projective maps (K, 3, 3) from corners (K, 4, 2), clockwise from the top left, to the image's corners.

    The solution is in closed form, because a linear solver would check its result and so wait for the device: the cross
    product of two homogeneous points is the line through them, and in the unit square x is 0 on the left edge and y is
    0 on the top edge.
    """
    p0, p1, p2, p3 = F.pad(corners, (0, 1), value=1.0).unbind(1)
    cross = torch.linalg.cross
    bottom, right = cross(p3, p2), cross(p1, p2)
    a = (p0 * bottom).sum(-1, keepdim=True) / (p1 * bottom).sum(-1, keepdim=True)
    b = (p0 * right).sum(-1, keepdim=True) / (p3 * right).sum(-1, keepdim=True)
    x, y = b * cross(p3, p0), a * cross(p0, p1)
    w = a * b * cross(p1, p3) + x + y
    # torchvision gives the image's corners as indices of the first and last pixel, but uses them as distances from the
    # edge.
    to_grid = 2 * (size - 1) / size
    return torch.stack((to_grid * x - w, to_grid * y - w, w), 1)


def _crop(area: Tensor, ratio: Tensor, start: Tensor, size: int) -> Tensor:
    """Crops (K, 2, 2) of uniform area and log-uniform aspect ratio: of (K, 10) attempts the first that fits."""
    pixels = size**2 * (0.8 + 0.2 * area)
    ratio = torch.exp(math.log(0.9) + math.log(1.1 / 0.9) * ratio)
    attempts = torch.stack((pixels * ratio, pixels / ratio), 1).sqrt().round()
    attempts = F.pad(attempts, (0, 1), value=size)  # The last attempt, the whole image, always fits.
    first = (attempts <= size).all(1).byte().argmax(1)
    extent = attempts.gather(2, first[:, None, None].expand(-1, 2, 1)).squeeze(2)
    return torch.stack(((start * (size - extent + 1)).floor(), extent), 1)


@torch.no_grad()
def apply(images: Tensor, parameters: ViewParameters, fill: Tensor | Sequence[float] | None = None) -> Tensor:
    """The 12 views of each image for given parameters, equal to torchvision's results for each image alone.

    An image's views do not depend, bit for bit, on the other images of the batch. Normalised images are allowed:
    brightness clamps to [0, 1] and inversion is 1 - x for any range, as in torchvision; the other views do not clamp.

    Args:
        images: (N, C, H, W) float32, square, C = 1 or 3; not changed.
        parameters: parameters for images of this size.
        fill: (C,) or (1,), value of the cutouts' holes; by default 0.5.

    Returns:
        (12, N, C, H, W), on the images' device. Each view is channels-last in memory: flattening the first two
        dimensions makes no copy and gives a batch in `torch.channels_last`.

    Raises:
        InputError: the images have another shape or type.
    """
    square = images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[2] == images.shape[3]
    if not square or images.dtype != torch.float32:
        given = f"{images.dtype} of shape {tuple(images.shape)}"
        raise InputError("images", given, "give float32 images (N, C, H, W), square, with 1 or 3 channels")
    n, channels, size, _ = images.shape
    # Channels-last is the fastest layout for convolutions. Converting the input is cheaper than converting 12 views.
    images = images.contiguous(memory_format=torch.channels_last)
    memory = images.new_empty(len(VIEWS), n, size, size, channels)
    views = memory.permute(0, 1, 4, 2, 3)
    p = parameters.to(images.device)
    pixels = torch.arange(size, device=images.device)

    # For finite images, lerp by 0 or 1 selects exactly, and on a CPU it is several times faster than torch.where.
    hflip, vflip, perspective, invert = p.applied[:, :, None, None, None].unbind(1)
    torch.lerp(images, images.flip(-1), hflip, out=views[2])
    torch.lerp(images, images.flip(-2), vflip, out=views[3])
    torch.mul(images, p.brightness[:, None, None, None], out=views[7]).clamp_(0, 1)
    torch.lerp(images, 1 - images, invert, out=views[11])

    # Columns and channels form one dimension here, because loops over an innermost dimension of 1 or 3 are slow.
    color = torch.as_tensor(0.5 if fill is None else fill, dtype=images.dtype).to(images.device, non_blocking=True)
    inside = ((p.holes[..., :1] <= pixels) & (pixels < p.holes[..., 1:])).to(images.dtype).transpose(0, 1)
    holes = inside[:, :, 1, :, None] * inside[:, :, 0, None, :].repeat_interleave(channels, -1)
    rows = images.permute(0, 2, 3, 1).flatten(2)
    torch.lerp(rows, color.expand(size, channels).flatten(), holes, out=memory[:2].flatten(3))

    from_centre = pixels - (size - 1) / 2
    turned = _sample(images, _planes(p.affine.transpose(1, 2), from_centre), mode="nearest", padding_mode="zeros")
    views[4:7], views[9] = turned[:3], turned[3]

    planes = _planes(p.homography, from_centre)
    # 0 / 0 is a point on the horizon; 2 is outside the image.
    tilted = (planes[:, :2] / planes[:, 2:]).nan_to_num_(nan=2.0)
    warped = _sample(images, torch.stack((tilted, _crop_grid(p.crop, size)), 2), mode="bilinear", padding_mode="border")
    # Positions beyond the edge fade to black. torchvision applies this weight twice, in sampling and in filling.
    covered = ((1 - tilted.abs()) * (size / 2) + 0.5).clamp_(0, 1)
    torch.mul(warped[0], (covered[:, :1] * covered[:, 1:]).square_(), out=views[8])
    torch.lerp(images, views[8], perspective, out=views[8])
    views[10] = warped[1]
    return views


def first_equal(parameters: ViewParameters, n: int) -> Tensor:
    """For each view of n images, the first view that equals it, (12, n): indices into the flattened views.

    The horizontal and vertical flip, the perspective and the inversion are the image itself if they are not applied.
    """
    first = torch.arange(len(VIEWS) * n, device=parameters.applied.device).view(len(VIEWS), n)
    by_chance, is_plain = first[_BY_CHANCE], ~parameters.applied.bool().T
    plain = torch.where(is_plain, by_chance, len(VIEWS) * n).amin(0)
    first[_BY_CHANCE] = torch.where(is_plain, plain, by_chance)
    return first


def _planes(coefficients: Tensor, at: Tensor) -> Tensor:
    """a x + b y + c at every pixel: coefficients (..., 3) at coordinates (S,) of rows and columns -> (..., S, S)."""
    a, b, c = coefficients[..., None].unbind(-2)
    return (a * at)[..., None, :] + (b * at + c)[..., :, None]


def _crop_grid(crop: Tensor, size: int) -> Tensor:
    """Input position of each output pixel, (K, 2, size, size), inside the centres of the crop's outermost pixels."""
    start, extent = crop[..., None].unbind(1)
    within = (torch.arange(size, device=crop.device) + 0.5) * (extent / size) - 0.5
    within = torch.minimum(within.clamp_min(0), extent - 1)
    x, y = ((start + within + 0.5) * (2 / size) - 1).unbind(1)
    return torch.stack((x[:, None, :].expand(-1, size, -1), y[:, :, None].expand(-1, -1, size)), 1)


def _sample(images: Tensor, grids: Tensor, **how: str) -> Tensor:
    """Images (N, C, S, S) sampled at V grids each, (N, 2, V, S, S) -> (V, N, C, S, S)."""
    # One grid that is V times as tall as the image avoids copies of the images.
    sampled = F.grid_sample(images, grids.flatten(2, 3).permute(0, 2, 3, 1), align_corners=False, **how)
    return sampled.unflatten(2, grids.shape[2:4]).permute(2, 0, 1, 3, 4)
