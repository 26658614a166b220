"""The memory policies in Avalanche: a storage policy for its `ReplayPlugin`, with any of its strategies.

    config = ucl.Config(memory_size=50, score="BI", selection="bottom")
    replay = ReplayPlugin(config.memory_size, storage_policy=ucl.avalanche.StoragePolicy(config))
    strategy = Naive(model=model, optimizer=optimizer, train_mb_size=10, plugins=[replay])
    strategy.train(split_online_stream(benchmark.train_stream, experience_size=10))

It needs avalanche-lib, which the extra `avalanche` of this package installs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from ucl import user_objects
from ucl.assembly import build_memory, check_dropout
from ucl.buffers import Buffer
from ucl.config import Config
from ucl.errors import InputError
from ucl.models import Network, OwnNetwork, to_unit
from ucl.models.network import channels_first
from ucl.streams import Batch, ClassIncrementalStream, LazyImages, Task

try:
    from avalanche.benchmarks import benchmark_from_datasets, with_classes_timeline
    from avalanche.benchmarks.scenarios.online import OnlineCLExperience
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.training.storage_policy import ExemplarsBuffer
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "avalanche":
        raise
    raise ImportError("ucl.avalanche needs avalanche-lib: python -m pip install 'avalanche-lib>=0.6'") from None


class StoragePolicy(ExemplarsBuffer):
    """A memory policy of this package for Avalanche's `ReplayPlugin`; the memory is the one of `ucl.run`.

    After each experience the memory is updated once: the batch is all samples of the experience, the network is the
    strategy's model. For an update after each mini-batch, as in `ucl.run`, train on `split_online_stream`. The policies
    "homogeneous", "icarl" and "rainbow" act at the end of a task, so they need experiences that are whole tasks.

    The number of classes is not known before the stream ends. A policy that gives each class a quota needs a slot per
    class; with fewer, it never stores a sample of the last classes, and "class-balanced" loses earlier ones.

    The plugin draws from the whole memory, as with ``replay="all"``. It does not report what it has replayed,
    and the stream has no task numbers: with "loss-aware" the loss of a stored sample is never updated, and with
    "coreset" all stored samples count as samples of earlier tasks.

    The policy sees the samples with the evaluation transformations, which must give float images; ``image * std +
    mean`` must be pixels in [0, 1]. These are rounded to 8 bits, perturbed by the views (holes have the colour `mean`)
    and normalised again for the model. A network of `ucl.models` normalises its input itself: `mean` and `std` keep
    their defaults. Scoring changes running statistics only with ``scoring_batchnorm="train"``.

    Args:
        config: its `memory_size`, `population`, the fields of the population, `seed` and `precision` are used.
        mean, std: what the images were normalised with: one number per channel, or one for all.

    Attributes:
        memory: the memory, see `ucl.buffers.Buffer`; None before the first experience. Its `positions` are the numbers
            of the samples in the order in which they came, from 0.
        buffer: Avalanche's dataset of the stored samples, in the order of the memory's slots; a reference, no copy.

    Raises:
        InputError: the method of the configuration is not "er", or `mean` or `std` is out of range. During training:
            the memory policy cannot use the images, the model or the experiences.
    """

    buffer: Any  # a property of the base class, whose types are not known here

    def __init__(self, config: Config, mean: float | Sequence[float] = 0.0, std: float | Sequence[float] = 1.0) -> None:
        if config.method != "er":
            raise InputError("method", config.method, "Avalanche's strategy decides how a batch is learnt; give er")
        super().__init__(config.memory_size)
        self.config, self.mean, self.std = config, np.atleast_1d(mean).tolist(), np.atleast_1d(std).tolist()
        self.memory: Buffer | None = None
        self._n_samples = 0  # A user's policy may not count `n_seen`.
        for name, values, low in (("mean", self.mean, -np.inf), ("std", self.std, 0.0)):
            if len(values) not in (1, 3) or not all(low < value < np.inf for value in values):
                raise InputError(name, values, "give a number per channel, or one for all; those of std above 0")

    def update(self, strategy: Any, **_: Any) -> None:
        """Update the memory after the strategy's experience; `ReplayPlugin` calls it."""
        self.post_adapt(strategy, strategy.experience)

    def post_adapt(self, agent_state: Any, exp: Any) -> None:
        """Update the memory after an experience, which the model of the strategy `agent_state` has learnt."""
        if not len(exp.dataset):
            return
        model = self._network(agent_state.model)
        device = model.mean.device
        unaugmented = exp.dataset.eval()
        samples = [unaugmented[i] for i in range(len(unaugmented))]
        images = self._pixels([sample[0] for sample in samples]).to(device)
        labels = np.array([int(sample[1]) for sample in samples], dtype=np.int64)
        if self.memory is None:
            self.memory = build_memory(self.config, self.max_size, images.shape[1:], device)
        memory = self.memory
        if images.shape[1:] != memory.images.shape[1:]:
            raise InputError("images", tuple(images.shape[1:]), f"those of before are {tuple(memory.images.shape[1:])}")
        before = memory.positions[: memory.n_stored].tolist()
        new = range(self._n_samples, self._n_samples + len(labels))
        self._n_samples += len(labels)
        batch = Batch(images, torch.from_numpy(labels).to(device), labels, torch.tensor(new, device=device), None)
        with user_objects.attribute_errors_to("population", self.config.user_objects.get("population", "")):
            memory.update(model, batch)
            if type(memory).end_of_task is not Buffer.end_of_task:
                self._end_task(memory, model, batch, exp)
        row = {position: i for i, position in enumerate([*before, *new])}
        candidates = self.buffer.concat(exp.dataset) if before else exp.dataset
        self.buffer = candidates.subset([row[position] for position in memory.positions[: memory.n_stored].tolist()])

    def resize(self, strategy: Any, new_size: int) -> None:
        """InputError if the new size differs from the current one: the memory cannot be resized."""
        if new_size != self.max_size:
            raise InputError("memory_size", new_size, f"a memory keeps its size; give {self.max_size}")

    def _end_task(self, memory: Buffer, model: Network, batch: Batch, exp: Any) -> None:
        """Let a policy that acts at the end of a task act."""
        if isinstance(exp, OnlineCLExperience):
            reason = "acts at the end of a task; train on whole tasks, without split_online_stream"
            raise InputError("population", self.config.population, reason)
        classes = tuple(np.unique(batch.host_labels).tolist())
        data = batch.images, batch.labels, batch.host_labels, batch.positions
        no_tests = batch.images[:0], batch.labels[:0], batch.host_labels[:0]
        memory.end_of_task(model, Task(-1, classes, *data, *no_tests, batch_size=len(batch)))

    def _network(self, model: nn.Module) -> Network:
        """The strategy's model as memory policies use it."""
        network = model if isinstance(model, Network) else _StrategyModel(model, self.mean, self.std)
        if network is model and (self.mean, self.std) != ([0], [1]):
            reason = "the network normalises its input itself; give it pixels in [0, 1], without mean and std here"
            raise InputError("mean", self.mean, reason)
        check_dropout(self.config, network, type(model).__name__)
        return network

    def _pixels(self, images: list[Any]) -> Tensor:
        """The pixels (N, C, H, W), uint8, of normalised images (C, H, W)."""
        first = images[0]
        shape = tuple(first.shape) if isinstance(first, Tensor) and first.is_floating_point() else ()
        if len(shape) != 3 or shape[0] not in (1, 3) or shape[1] != shape[2]:
            got = f"{first.dtype} {tuple(first.shape)}" if isinstance(first, Tensor) else type(first).__name__
            reason = "give float images (C, H, W), square, of one size, with 1 or 3 channels"
            raise InputError("images", got.replace("torch.", ""), reason)
        normalised = torch.stack(images).cpu()
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        pixels = normalised * std + mean
        if pixels.shape != normalised.shape:
            raise InputError("mean", self.mean, "the images have 1 channel; give one number each for mean and std")
        levels = (pixels * 255).round()
        if not ((levels >= 0) & (levels <= 255)).all():
            reason = f"with it, pixels are from {pixels.min():.3g} to {pixels.max():.3g} instead of in [0, 1]; "
            raise InputError("mean", self.mean, reason + "give the mean and std that the images were normalised with")
        return levels.to(torch.uint8)


class _StrategyModel(OwnNetwork):
    """A model of Avalanche or torch that takes normalised images; its number of classes may grow."""

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        Network.__init__(self, mean, std)
        self.network, self._path = model, type(model).__name__
        self.to(next(model.parameters()).device)

    def logits(self, x_NCHW: Tensor) -> Tensor:
        return self.network(channels_first(x_NCHW))


class _Images(Dataset):
    def __init__(self, images: Tensor | LazyImages, labels: Tensor) -> None:
        self.images, self.targets = images, labels.tolist()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return to_unit(self.images[i : i + 1])[0], self.targets[i]


def benchmark_of(stream: ClassIncrementalStream) -> Any:
    """A stream of this package as a `CLScenario` of Avalanche: one experience per task; images (C, H, W) in [0, 1].

    ``split_online_stream(benchmark.train_stream, batch_size, shuffle=False, drop_last=True)`` gives the same batches as
    the stream. The experiences of the benchmark have Avalanche's class timeline, which models with a growing head need;
    those of an online stream have it after Avalanche's `with_classes_timeline`.
    """
    train = [as_classification_dataset(_Images(task.images, task.labels)) for task in stream]
    test = [as_classification_dataset(_Images(task.test_images, task.test_labels)) for task in stream]
    return with_classes_timeline(benchmark_from_datasets(train=train, test=test))
