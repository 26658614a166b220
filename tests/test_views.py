"""The views are torchvision's, image by image: the same results for the same parameters, and the same distributions."""

import dataclasses

import naive
import numpy as np
import pytest
import torch
from conftest import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp
from torchvision import transforms

from ucl import views
from ucl.scorers.views import VIEWS

FILL = (0.2, 0.5, 0.7)


def noise(n=8, channels=3, size=32, seed=0):
    return torch.rand(n, channels, size, size, generator=torch.Generator().manual_seed(seed))


def drawn(n=8, size=32, seed=0):
    return views.draw(n, size, torch.Generator().manual_seed(seed))


def view(name, result):
    return result[VIEWS.index(name)]


def torchvision_views(images, parameters, fill):
    """The 12 views by torchvision's functions, one image and one view at a time."""
    of_each = [naive.views_as_drawn(parameters, i, images.shape[-1], fill) for i in range(len(images))]
    return torch.stack([torch.stack([view(image) for view in own]) for image, own in zip(images, of_each)], 1)


def on_a_tie(parameters, size):
    """(4, N, 1, size, size): whether a rotated or affine pixel is half-way between two, within rounding error."""
    at = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    y, x = torch.meshgrid(at, at, indexing="ij")
    pixels = torch.stack((x, y, torch.ones_like(x)), -1)
    read = torch.einsum("nvij,hwj->vnhwi", parameters.affine.double() * size / 2, pixels) + (size - 1) / 2
    return ((read - read.floor() - 0.5).abs() < 1e-4).any(-1)[:, :, None]


@pytest.mark.parametrize("normalised", [False, True], ids=["in [0, 1]", "normalised"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [28, 32, 64])
def test_every_view_is_torchvisions(size, channels, normalised):
    images, parameters, fill = noise(24, channels, size), drawn(24, size), torch.tensor(FILL[:channels])
    if normalised:
        images = (images - 0.5) / 0.25
    ours, theirs = views.apply(images, parameters, fill), torchvision_views(images, parameters, fill)

    for name in ("cutout 10", "cutout 20", "horizontal flip", "vertical flip", "brightness", "invert"):
        assert torch.equal(view(name, ours), view(name, theirs)), name

    nearest = [VIEWS.index(name) for name in ("rotation 10", "rotation 45", "rotation 90", "affine")]
    differs = ours[nearest] != theirs[nearest]
    assert not (differs & ~on_a_tie(parameters, size)).any()
    assert differs.float().mean() < 1e-4

    # In white noise, neighbours differ by up to the whole range, so rounded sampling points have the largest effect.
    span = images.max() - images.min()
    assert (view("perspective", ours) - view("perspective", theirs)).abs().max() < 3e-5 * span
    assert (view("resized crop", ours) - view("resized crop", theirs)).abs().max() < 1e-5 * span
    left_alone = parameters.applied[:, 2] == 0
    assert torch.equal(view("perspective", ours)[left_alone], images[left_alone])


def draws(n, size):
    """Every scalar that `draw` decides, n times each."""
    parameters = drawn(n, size)
    angles, scales, translations, corners = naive.torchvision_arguments(parameters, size)
    assert (scales[:, :3] - 1).abs().max() < 1e-6 and not translations[:, :3].any()
    centres = parameters.holes.mean(-1)
    scalars = {f"rotation {d}": angles[:, k] for k, d in enumerate((10, 45, 90))}
    scalars |= {"affine angle": angles[:, 3], "affine scale": scales[:, 3], "brightness": parameters.brightness}
    scalars |= {f"affine shift {axis}": translations[:, 3, k] for k, axis in enumerate("xy")}
    scalars |= {f"corner {k} {axis}": corners[:, k, j] for k in range(4) for j, axis in enumerate("xy")}
    scalars |= {f"hole {k} {axis}": centres[:, k, j] for k in range(2) for j, axis in enumerate("xy")}
    scalars |= {f"applied {k}": parameters.applied[:, k] for k in range(4)}
    scalars |= {f"crop {k}{j}": parameters.crop[:, k, j] for k in range(2) for j in range(2)}
    return {name: values.double().numpy() for name, values in scalars.items()}


def torchvision_draws(n, size):
    """The same scalars by torchvision's draws; numpy draws the cutouts and coins, which torchvision does not draw."""
    rng, blank = np.random.default_rng(0), torch.zeros(1, size, size)
    drawn, affine = [], ((-20, 20), (0.1, 0.3), (0.5, 0.75), None, [size, size])
    for _ in range(n):
        angle, shift, scale, _ = transforms.RandomAffine.get_params(*affine)
        _, corners = transforms.RandomPerspective.get_params(size, size, 0.5)
        top, left, height, width = transforms.RandomResizedCrop.get_params(blank, [0.8, 1.0], [0.9, 1.1])
        drawn.append(
            {f"rotation {d}": transforms.RandomRotation.get_params([-d, d]) for d in (10, 45, 90)}
            | {"affine angle": angle, "affine scale": scale, "affine shift x": shift[0], "affine shift y": shift[1]}
            | {"brightness": transforms.ColorJitter.get_params((0.9, 1.1), None, None, None)[1]}
            | {f"corner {k} {axis}": corners[k][j] for k in range(4) for j, axis in enumerate("xy")}
            | {f"hole {k} {axis}": rng.integers(size) for k in range(2) for axis in "xy"}
            | {f"applied {k}": rng.integers(2) for k in range(4)}
            | {"crop 00": left, "crop 01": top, "crop 10": width, "crop 11": height}
        )
    return {name: np.array([row[name] for row in drawn], dtype=float) for name in drawn[0]}


@pytest.mark.parametrize("size", [28, 33])
def test_draws_are_distributed_as_torchvisions(size):
    torch.manual_seed(0)
    ours, theirs = draws(2000, size), torchvision_draws(2000, size)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert ks_2samp(ours[name], theirs[name], method="asymp").pvalue > 1e-3, name
        gap = 0.02 * np.ptp(theirs[name]) if len(np.unique(theirs[name])) > 100 else 0  # integers reach both ends
        assert abs(ours[name].min() - theirs[name].min()) <= gap, name
        assert abs(ours[name].max() - theirs[name].max()) <= gap, name


def test_draws_are_independent_of_each_other():
    scalars = {name: values for name, values in draws(2000, 32).items() if "crop" not in name}
    correlation = np.corrcoef(np.stack(list(scalars.values())))
    assert np.abs(correlation - np.eye(len(scalars))).max() < 0.1


def test_the_first_crop_that_fits_is_taken_and_else_the_whole_image():
    area = torch.ones(3, 10, dtype=torch.float64)
    ratio = torch.ones(3, 10, dtype=torch.float64)  # the full area at a ratio of 1.1: too wide for the image
    area[1, 3], ratio[1, 3:5] = 0.0, np.log(1 / 0.9) / np.log(1.1 / 0.9)  # ratio 1: four fifths of the area, then all
    ratio[2, 9] = ratio[1, 4]
    crops = views._crop(area, ratio, torch.full((3, 2), 0.999, dtype=torch.float64), 32)
    assert crops.tolist() == [[[0, 0], [32, 32]], [[3, 3], [29, 29]], [[0, 0], [32, 32]]]


@pytest.mark.parametrize("applied", [0.0, 1.0])
def test_a_pixel_on_the_horizon_of_a_perspective_is_black(applied):
    images = noise(1) + 1
    # x, y and depth of the map; where x and depth vanish together, at half a pixel from the centre, x is 0 / 0.
    homography = torch.tensor([[[1.0, 0.0, -0.5], [0.0, 0.0, 1.0], [0.0, 1.0, -0.5]]])
    parameters = dataclasses.replace(drawn(1), homography=homography, applied=torch.full((1, 4), applied))
    result = view("perspective", views.apply(images, parameters))
    if applied:
        assert result.isfinite().all() and not result[0, :, 16, 16].any()
    else:
        assert torch.equal(result, images)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    n=st.integers(0, 5),
    channels=st.sampled_from([1, 3]),
    size=st.integers(25, 48),
    levels=st.sampled_from([1, 2, 256]),
)
def test_views_of_images_in_the_unit_range_stay_in_it(seed, n, channels, size, levels):
    images = 1 - (noise(n, channels, size, seed) * levels).floor() / max(levels - 1, 1)
    before = images.clone()
    result = views.apply(images, drawn(n, size, seed), FILL[:channels])
    assert result.shape == (12, n, channels, size, size)
    assert ((result >= 0) & (result <= 1 + 1e-6)).all()  # a NaN fails both
    assert torch.equal(images, before)


@pytest.mark.parametrize("size", [28, 32])
def test_an_images_views_do_not_depend_on_its_neighbours(size):
    images, parameters = noise(20, size=size), drawn(20, size)
    together = views.apply(images, parameters, FILL)
    for chunk in (slice(0, 1), slice(1, 8), slice(8, 20)):
        assert torch.equal(views.apply(images[chunk], parameters[chunk], FILL), together[:, chunk])
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    assert torch.equal(views.apply(images[order], parameters[order], FILL), together[:, order])


def test_views_that_are_not_applied_equal_each_other():
    parameters = drawn(50)
    views_KF = views.apply(noise(50), parameters).flatten(0, 1).flatten(1)
    first_PN = views.first_equal(parameters, 50)
    assert torch.equal(views_KF[first_PN.flatten()], views_KF)
    n_plain = (~parameters.applied.bool()).sum(1)
    assert len(first_PN.unique()) == 12 * 50 - int((n_plain - 1).clamp_min(0).sum())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_flattened_views_are_a_channels_last_batch_without_a_copy(layout, channels):
    images = noise(channels=channels)
    result = views.apply(images.contiguous(memory_format=layout), drawn())
    batch = result.flatten(0, 1)
    assert batch.is_contiguous(memory_format=torch.channels_last)
    assert batch.data_ptr() == result.data_ptr()
    assert torch.equal(result, views.apply(images, drawn()))


def test_a_cutout_fills_with_mid_grey_by_default():
    images, parameters = noise(), drawn()
    assert torch.equal(views.apply(images, parameters), views.apply(images, parameters, [0.5, 0.5, 0.5]))
    assert torch.equal(views.apply(images, parameters, FILL), views.apply(images, parameters, torch.tensor(FILL)))


def test_images_of_another_shape_or_type_are_refused():
    for images in (noise()[0], noise()[..., :20], noise(channels=2), noise().double(), (noise() * 255).byte()):
        with refused("images"):
            views.perturb(images, torch.Generator())


def splitmix64(state):
    """Reference implementation in Python integers: the 64-bit output for a state."""
    mask = 2**64 - 1
    z = state & mask
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return z ^ (z >> 31)


@pytest.mark.parametrize("seed", [0, 7, 2**62 - 1])
def test_fixed_draws_are_those_of_splitmix64(seed, monkeypatch):
    given = []
    monkeypatch.setattr(views, "_parameters", lambda uniforms, size: given.append(uniforms))
    views.draw_fixed(torch.tensor([0, 3, 49_999]), 32, seed)
    views.draw_fixed(torch.tensor([3]), 32, seed, turn=2)
    n = given[0].shape[1]
    for uniforms, turn, names in zip(given, (0, 2), ((0, 3, 49_999), (3,)), strict=True):
        indices = [[(turn << 40) + name * n + 1 + i for i in range(n)] for name in names]
        expected = [[(splitmix64(seed + 0x9E3779B97F4A7C15 * p) >> 11) / 2**53 for p in row] for row in indices]
        assert uniforms.tolist() == expected
