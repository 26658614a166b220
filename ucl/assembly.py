"""From a configuration to the parts of a run: stream, network, memory, method and scorer."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ucl import scorers
from ucl.buffers import Buffer, ClassBalancedBuffer, ReservoirBuffer, UncertaintyBuffer
from ucl.buffers.selection import SELECTIONS, bottom_k
from ucl.config import SMALLEST_IMAGE, Config
from ucl.errors import InputError
from ucl.evaluation import DROPOUT_PASSES
from ucl.machine.determinism import own_draws, seed_for
from ucl.methods import METHODS, Method
from ucl.models import MODELS, SlimResNet18
from ucl.scorers import RandomScores, Scorer
from ucl.streams import ClassIncrementalStream, datasets


class Parts(NamedTuple):
    """What learns in a run: stream, network, memory (None for finetuning) and method."""

    stream: ClassIncrementalStream
    model: SlimResNet18
    buffer: Buffer | None
    method: Method


def assemble(
    config: Config,
    dataset: datasets.ImageDataset,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    graphs: bool = False,
) -> Parts:
    """The parts of a run, as they are before the first batch.

    Args:
        config: the experiment.
        dataset: its images.
        device: where images, network and memory live.
        dtype: arithmetic of the scoring passes.
        graphs: see `run`.

    Raises:
        InputError: the images are too small for the network, or the stream is not possible with them.
    """
    model = build_model(config, dataset, device)
    return Parts(
        build_stream(config, dataset, device),
        model,
        build_buffer(config, dataset, device, dtype),
        build_method(config, model, graphs),
    )


def build_stream(
    config: Config, dataset: datasets.ImageDataset, device: torch.device | str = "cpu"
) -> ClassIncrementalStream:
    """The stream of a configuration."""
    return ClassIncrementalStream(
        dataset,
        n_tasks=config.n_tasks,
        class_order=config.class_order,
        imbalance=config.imbalance,
        validation=config.validation,
        batch_size=config.batch_size,
        seed=config.seed,
        long_tailed_test=config.long_tailed_test,
        evaluate_on=config.evaluate_on,
        device=device,
        boundaries=config.boundaries,
        blur=config.blur,
        disjoint=config.disjoint,
        numbered=config.replay == "earlier",
    )


def build_model(config: Config, dataset: datasets.ImageDataset, device: torch.device | str = "cpu") -> SlimResNet18:
    """The network of a configuration, its initial weights drawn by the seed, the same on every device.

    Raises:
        InputError: the images are too small for it.
    """
    if dataset.image_size < SMALLEST_IMAGE:
        reason = (
            f"its images have {dataset.image_size} pixels a side, and the network's last pooling needs "
            f"{SMALLEST_IMAGE} at least; enlarge them, or give a folder of images and an image_size"
        )
        raise InputError("dataset", config.dataset, reason)
    with own_draws(seed_for(config.seed, "weights"), device):
        model = MODELS[config.model](
            dataset.n_classes, dataset.channels, dataset.image_size, dataset.mean, dataset.std, config.dropout
        )
    return model.to(device)


def build_method(config: Config, model: SlimResNet18, graphs: bool = False) -> Method:
    """How a configuration's batches are learnt, the replay drawn by the seed."""
    return METHODS[config.method](model, config.lr, seed_for(config.seed, "replay"), config.updates, graphs)


def build_buffer(
    config: Config,
    dataset: datasets.ImageDataset,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Buffer | None:
    """The memory of a configuration, empty; None for finetuning."""
    if config.method == "finetune":
        return None
    shape = (dataset.channels, dataset.image_size, dataset.image_size)
    size = min(config.memory_size, len(dataset.train_labels))  # more would stay empty
    seed = seed_for(config.seed, "memory")
    if config.population == "reservoir":
        return ReservoirBuffer(size, shape, device, seed, config.reservoir_index == "inclusive")
    if config.population == "uncertainty":
        scorer = build_scorer(config, dtype)
        rule = SELECTIONS[config.selection]
        return UncertaintyBuffer(size, shape, device, scorer, rule, config.refresh, config.smoothing)
    if config.class_balancing == "redraw":
        return UncertaintyBuffer(size, shape, device, RandomScores(seed), bottom_k)
    return ClassBalancedBuffer(size, shape, device, seed)


def build_scorer(config: Config, dtype: torch.dtype = torch.float32) -> Scorer:
    """The scorer of a configuration, its views drawn by the seed."""
    return Scorer(
        score=scorers.resolve(config.score),
        generator=torch.Generator().manual_seed(seed_for(config.seed, "views")),
        dropout_passes=DROPOUT_PASSES if config.score == "MC" else 0,
        averaging=config.averaging if config.score in ("LC", "MS", "RC", "EN") else "scores",
        batchnorm=config.scoring_batchnorm,
        view_draws=config.view_draws,
        n_draws=config.n_draws,
        view_space=config.view_space,
        dtype=dtype,
        own=config.score if ":" in config.score else "",
    )
