"""The parts of a run, made from a configuration: stream, network, memory, method and scorer."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from ucl import scorers, user_objects
from ucl.buffers import Buffer, ReservoirBuffer, UncertaintyBuffer
from ucl.buffers.selection import SELECTIONS, bottom_k
from ucl.catalogue import SMALLEST_IMAGE, is_user_object, method_row, policy_row, score_row
from ucl.config import Config
from ucl.errors import InputError
from ucl.evaluation.accuracy import DROPOUT_PASSES
from ucl.machine.determinism import default_modes, seed_for, seeded_draws
from ucl.machine.hardware import scoring_dtype
from ucl.methods import METHODS, Method
from ucl.models import Network
from ucl.models.saved import new_network
from ucl.scorers import RandomScores, Scorer, ScoringPasses
from ucl.streams import Batch, ClassIncrementalStream, Task, datasets
from ucl.streams.augmentation import RandAugment


class Parts(NamedTuple):
    """The parts of a run: stream, network, memory (None for a method without one) and method."""

    stream: ClassIncrementalStream
    model: Network
    buffer: Buffer | None
    method: Method

    def steps(self, task: Task) -> Iterator[Batch]:
        """Learn a task of the stream as `ucl.run` does: bit for bit within `ucl.machine.determinism.repeatable`.

        Yields:
            Each batch, after the network has learnt it and the memory was updated with it; the last batch after the
            memory's update at the end of the task.
        """
        for number, batch in enumerate(task, 1):
            self.method.learn(self.model, batch, self.buffer)
            if self.buffer is not None:
                self.buffer.update(self.model, batch)
                if number == len(task):
                    self.buffer.end_of_task(self.model, task)
            yield batch


@default_modes()
def assemble(
    config: Config, dataset: datasets.ImageDataset, device: torch.device | str = "cpu", graphs: bool | None = None
) -> Parts:
    """The parts of a run before the first batch.

    A loop over them repeats `ucl.run` bit for bit within `ucl.machine.determinism.repeatable`. Outside, only the parts
    are independent of the caller's modes, such as an autocast, and of its global generators; the loop is not. Images,
    network and memory are on the device. For `graphs`, see `ucl.run`.

    Raises:
        InputError: the images are too small for the network, the stream cannot be made from them, the memory has fewer
            slots than classes, or a user object cannot be used.
    """
    model = build_model(config, dataset, device)
    stream, buffer = build_stream(config, dataset, device), build_buffer(config, dataset, device, graphs)
    return Parts(stream, model, buffer, build_method(config, model, graphs))


def build_stream(
    config: Config, dataset: datasets.ImageDataset, device: torch.device | str = "cpu"
) -> ClassIncrementalStream:
    """The stream of a configuration.

    Raises:
        InputError: the images have another size than `Config.image_size`, or the stream cannot be made from them.
    """
    if config.image_size not in (None, dataset.image_size):
        reason = f"the images have {dataset.image_size} pixels per side; give image_size to ucl.datasets.load, too"
        raise InputError("image_size", config.image_size, reason)
    return ClassIncrementalStream(config, dataset, device)


def build_model(config: Config, dataset: datasets.ImageDataset, device: torch.device | str = "cpu") -> Network:
    """The network of a configuration. The seed determines its initial weights, which are the same on every device.

    Raises:
        InputError: the images are too small for it, or the user's network does not fit the configuration.
    """
    is_own = "model" in config.user_objects
    if dataset.image_size < SMALLEST_IMAGE and not is_own:
        reason = f"its images have {dataset.image_size} pixels per side; the network needs at least {SMALLEST_IMAGE}"
        advice = "enlarge them, or give a folder of images and an image_size"
        raise InputError("dataset", config.dataset, f"{reason}; {advice}")
    shape = dataset.n_classes, dataset.channels, dataset.image_size
    with seeded_draws(seed_for(config.seed, "weights"), device):
        model = new_network(config.model, shape, dataset.mean, dataset.std, config.dropout)
    if is_own and not model.has_running_statistics:
        reason = f"{config.model} has no running statistics"
        if config.test_batchnorm != "running":
            raise InputError("test_batchnorm", config.test_batchnorm, f"{reason}; give running")
        for name in ("readings", "scoring_batchnorm"):
            if name in config.relevant and name in config.explicit:
                warnings.warn(f"{name}={config.explicit[name]} has no effect: {reason}", stacklevel=3)
    check_dropout(config, model, config.model)
    return model.to(device)


def check_dropout(config: Config, model: Network, name: str) -> None:
    """Check that the network, reported by this name, has dropout if the score of the configuration needs it.

    Raises:
        InputError: it has none.
    """
    if config.uses_scores and score_row(config.score).dropout_passes and not model.dropout_rate:
        reason = f"needs a network with dropout, and {name} has no dropout layer; add one"
        raise InputError("score", config.score, reason)


def build_method(config: Config, model: Network, graphs: bool | None = None) -> Method:
    """The method of a configuration; the seed determines what it replays. For `graphs`, see `ucl.run`."""
    path = config.user_objects.get("method", "")
    create: Callable[..., Method] = user_objects.find("method", path) if path else METHODS[config.method]
    fields = {name: getattr(config, name) for name in method_row(config.method).uses}
    with user_objects.attribute_errors_to("method", path):
        method = create(
            model, config.lr, seed_for(config.seed, "replay"), config.updates, _uses_graphs(config, graphs), **fields
        )
    if config.augmentation == "randaugment":
        # Memory samples have their own draws, so that the batches do not depend on what a method replays.
        for source, purpose in {"batch": "augmentation", "memory": "augmentation of memory samples"}.items():
            method.augmentations[source] = RandAugment(seed_for(config.seed, purpose))
    return method


def _uses_graphs(config: Config, graphs: bool | None) -> bool:
    """Whether a run with this option uses graphs; by default, unless its network or method is a user's."""
    return config.user_objects.keys().isdisjoint(("method", "model")) if graphs is None else graphs


def build_buffer(
    config: Config, dataset: datasets.ImageDataset, device: torch.device | str = "cpu", graphs: bool | None = None
) -> Buffer | None:
    """The empty memory of a configuration; None if its method has none. For `graphs`, see `ucl.run`.

    Raises:
        InputError: the policy gives each class a quota, and the memory has fewer slots than there are classes.
    """
    if not config.uses_memory:
        return None
    if policy_row(config.population).has_quotas and config.memory_size < dataset.n_classes:
        reason = f"{config.dataset} has {dataset.n_classes} classes and the memory keeps at least one of each"
        advice = f"give {dataset.n_classes} or more, or the population 'reservoir'"
        raise InputError("memory_size", config.memory_size, f"{reason}; {advice}")
    shape = (dataset.channels, dataset.image_size, dataset.image_size)
    size = min(config.memory_size, len(dataset.train_labels))  # further slots would stay empty
    return build_memory(config, size, shape, device, _uses_graphs(config, graphs))


def build_memory(
    config: Config, size: int, shape: Sequence[int], device: torch.device | str = "cpu", graphs: bool = False
) -> Buffer:
    """An empty memory with the policy of a configuration.

    The number of classes is not known here. With fewer slots than classes, a balanced policy has no sample of some
    classes; `build_buffer` refuses such a memory. Of the configuration, only the seed and the fields of the memory
    policy and the scores are used; `size` is the number of slots, `shape` (C, H, W) that of an image, and with `graphs`
    a GPU repeats scoring passes from CUDA graphs.
    """
    seed = seed_for(config.seed, "memory")
    arguments = size, shape, device, seed
    if path := config.user_objects.get("population"):
        return user_objects.call("population", path, user_objects.find("population", path), *arguments)
    if config.population == "reservoir":
        return ReservoirBuffer(*arguments, inclusive=config.reservoir_index == "inclusive")
    if config.population == "uncertainty":
        scorer, rule = build_scorer(config, device, graphs), SELECTIONS[config.selection]
        options = {"refresh": config.refresh, "smoothing": config.smoothing}
        return UncertaintyBuffer(*arguments, scorer=scorer, selection=rule, **options)
    if config.population == "class-balanced" and config.class_balancing == "redraw":
        return UncertaintyBuffer(*arguments, scorer=RandomScores(seed), selection=bottom_k)
    return policy_row(config.population).resolve()(*arguments)


def build_scorer(config: Config, device: torch.device | str = "cpu", graphs: bool = False) -> Scorer:
    """The scorer of a configuration; the seed determines its views, and the device what precision "auto" is."""
    passes = ScoringPasses(
        generator=torch.Generator().manual_seed(seed_for(config.seed, "views")),
        dropout_passes=DROPOUT_PASSES if score_row(config.score).dropout_passes else 0,
        batchnorm=config.scoring_batchnorm,
        view_draws=config.view_draws,
        view_space=config.view_space,
        n_draws=config.n_draws,
        dtype=scoring_dtype(config, torch.device(device)),
        graphs=graphs,
    )
    path = config.score if is_user_object(config.score) else ""
    # An object with state would otherwise go on with that of an earlier run.
    score = user_objects.call("score", path, copy.deepcopy, scorers.resolve(config.score))
    averaging = config.averaging if score_row(config.score).of_probabilities else "scores"
    return Scorer(score, passes, averaging, path=path)
