"""Readings: one network, tested several times, mostly under several sets of BatchNorm statistics.

BatchNorm's running statistics enter no training step and no training-mode score; only tests read them. So the same
weights can be read several times, and the difference between two readings has no training noise. After each task:

    S           the running statistics that the training steps alone leave
    training    S
    displaced   S, then for each class c of the task, the smaller candidate sets first:
                    candidates = memory samples of c + samples of c in the task's last batches
                    for each of the 12 views: one training-mode pass over that view of all candidates
                (the scoring passes of the reference implementation, independent of what the run itself does)
    memory      mean over 25 batches of the statistics of 20 samples drawn from the memory
    memory+stream   the same, each batch half from the memory and half from the task's last batches
    views       as memory, each sample seen in one of its 12 views
    balanced    as memory, drawn from the training images of all classes so far, each class equally likely: an upper
                bound, since a stream does not keep these images

Two more readings leave the statistics alone and test in another way, as the reference implementation does:

    published test  networks with dropout. For each task, its test images mixed, in batches of ten:
                        20 training-mode passes over the batch, each normalised by the batch itself
                        answer = argmax of the mean of the 20 logits
    thinned         long-tailed streams with a whole test set. The run's own answers, of each test class only the first
                    n_c images, with n_c of the same long tail as the training classes

In a training-mode pass each BatchNorm normalises by the batch and moves its running statistics to
(1 - m) * running + m * batch with m = 0.1. The weights, the memory and the run's own statistics stay as they are.

The passes of `displaced` are computed in the arithmetic of the run's own scoring (`Record.arithmetic`), and in float32
for a run that scores nothing. Older versions computed them in float32 always: a record's environment names the commit.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from ucl.buffers import Buffer
from ucl.choices import STATISTICS
from ucl.config import Config
from ucl.evaluation import Evaluation, mc_test_as_published, thinned_tests
from ucl.machine.checkpoints import State
from ucl.machine.determinism import own_draws, seed_for
from ucl.models import Network, to_unit
from ucl.models.network import norms_of
from ucl.records import Reading
from ucl.scorers import Scorer, bregman_information, views
from ucl.streams import ClassIncrementalStream, Task

BATCHES = 25  # of a new estimate
BATCH_SIZE = 20  # as a training step of ten images and ten replayed ones
LAST_BATCHES = 10  # of a task: what a method may hold back for an estimate

Statistics = list[tuple[Tensor, Tensor]]  # of each BatchNorm, in the network's order: running mean and variance


def under(
    name: str,
    model: Network,
    trained: Statistics,
    seen: Sequence[Task],
    buffer: Buffer | None,
    seed: int,
    dtype: torch.dtype = torch.float32,
) -> Network | None:
    """A copy of the network with the statistics of a reading.

    Args:
        name: a name in `ucl.choices.STATISTICS`.
        model: the network at the end of a task; it stays as it is.
        trained: the statistics that training steps alone left, see `statistics_of` and `TrainingStatistics`.
        seen: the tasks so far, the one just learnt last.
        buffer: the memory.
        seed: of the run; draws batches and views.
        dtype: arithmetic of the scoring passes of `displaced`.

    Returns:
        The copy; None where the reading needs a memory, and there is none or nothing is in it.
    """
    if (buffer is None or not buffer.n_stored) and name in ("memory", "memory+stream", "views"):
        return None
    probe = copy.deepcopy(model)
    probe._forward_pre_hooks.clear()  # a `TrainingStatistics` stays with the original
    task, draw = seen[-1], np.random.default_rng(seed_for(seed, f"reading {name} after task {len(seen) - 1}"))
    with torch.no_grad(), own_draws(int(draw.integers(2**62)), model.mean.device):
        _load(probe, trained)
        if name == "displaced":
            _displace(probe, task, buffer, draw, dtype)
        elif name != "training":
            _estimate(probe, _batches(name, model, seen, buffer, draw))
    return probe


def statistics_of(model: nn.Module) -> Statistics:
    """Copies of the running statistics of a network's BatchNorm layers; [] for a network without any."""
    return [(_tensor(norm.running_mean).clone(), _tensor(norm.running_var).clone()) for norm in norms_of(model)]


def shift(statistics: Statistics, reference: Statistics) -> float:
    """How far the running means are from the reference's: the mean over all channels, in its standard deviations."""
    moved = [
        ((mean - reference_mean) / reference_var.add(1e-5).sqrt()).abs()
        for (mean, _), (reference_mean, reference_var) in zip(statistics, reference, strict=True)
    ]
    return torch.cat(moved).mean().item() if moved else 0.0


class TrainingStatistics:
    """The running statistics that training steps alone leave, where scoring in training mode moves the network's own.

    Within the block each forward pass of the network that takes part in a gradient is done a second time, on these
    statistics; the network's own, and all that is computed, stay bit for bit as without it.

    Args:
        model: the network; scoring passes run under `torch.no_grad`, as `Scorer`'s do.
    """

    def __init__(self, model: Network) -> None:
        self._model = model
        self._statistics = statistics_of(model)

    def __enter__(self) -> TrainingStatistics:
        self._hook = self._model.register_forward_pre_hook(self._follow)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def __call__(self) -> Statistics:
        return self._statistics

    def state(self) -> State:
        layers = enumerate(self._statistics)
        return {str(layer): {"mean": mean.cpu().numpy(), "var": var.cpu().numpy()} for layer, (mean, var) in layers}

    def restore(self, state: State) -> None:
        for layer, own in enumerate(self._statistics):
            for values, name in zip(own, ("mean", "var"), strict=True):
                values.copy_(torch.from_numpy(state[str(layer)][name]))

    def _follow(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if not (model.training and torch.is_grad_enabled()):
            return
        own = statistics_of(model)
        with torch.no_grad(), own_draws(0, self._model.mean.device):
            _load(model, self._statistics)
            self._model.logits(self._model.normalize(*inputs))
            self._statistics = statistics_of(model)
            _load(model, own)


class Tests:
    """What a run tests after each task: its network, and with `Config.readings` all readings of it.

    Use it as a context around the training loop: within it, the statistics of training alone are kept where scoring
    moves the network's own.

    Args:
        config: the run.
        model: its network.
        stream: its tasks.
        dtype: arithmetic of its scoring passes.

    Attributes:
        evaluation: of the statistics that count, `Config.test_batchnorm`.
    """

    def __init__(
        self,
        config: Config,
        model: Network,
        stream: ClassIncrementalStream,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._config, self._model, self._stream = config, model, stream
        self._dtype = dtype if config.uses_scores else torch.float32
        self.evaluation = Evaluation(stream, config.seed)
        self._evaluations = {}
        if config.readings and norms_of(model):
            self._evaluations = {name: Evaluation(stream, config.seed) for name in STATISTICS}
            if model.dropout_rate:
                self._evaluations["published test"] = Evaluation(stream, config.seed)
            if config.imbalance < 1 and not config.long_tailed_test:
                kept = thinned_tests(stream, config.imbalance)
                self._evaluations["thinned"] = Evaluation(stream, config.seed, kept)
        self._shifts = {name: np.full(len(stream), np.nan) for name in self._evaluations}
        self._answers: list[np.ndarray] = []
        asked = config.readings or config.test_batchnorm != "running"
        moved = config.uses_scores and config.scoring_batchnorm == "train"
        self._trained = TrainingStatistics(model) if asked and moved else None

    def __enter__(self) -> Tests:
        if self._trained is not None:
            self._trained.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._trained is not None:
            self._trained.__exit__()

    def add(self, task: Task, buffer: Buffer | None) -> None:
        """Test the network after a task, under the statistics that count."""
        name = self._config.test_batchnorm
        tested = self._model if name == "running" else self._under(name, task, buffer)
        self._answers = self.evaluation.add(tested or self._model, task.number)

    def add_readings(self, task: Task, buffer: Buffer | None) -> None:
        """Test the network after a task under each reading; `add` comes first."""
        unmoved = self._trained is None and self._config.test_batchnorm == "running"  # `add` has tested "training" then
        for name, evaluation in self._evaluations.items():
            if name == "published test":
                evaluation.count(partial(mc_test_as_published, self._model, seed=self._config.seed), task.number)
            elif name == "thinned":
                evaluation.count(lambda earlier: self._answers[earlier.number], task.number)
            elif name == "training" and unmoved:
                evaluation.count(lambda earlier: self._answers[earlier.number], task.number)
                self._shifts[name][task.number] = 0.0
            elif (probe := self._under(name, task, buffer)) is not None:
                evaluation.add(probe, task.number)
                self._shifts[name][task.number] = shift(statistics_of(probe), self._statistics())

    def state(self) -> State:
        readings = {name: {**of.state(), "shift": self._shifts[name]} for name, of in self._evaluations.items()}
        trained = {} if self._trained is None else self._trained.state()
        return {"evaluation": self.evaluation.state(), "readings": readings, "trained": trained}

    def restore(self, state: State) -> None:
        self.evaluation.restore(state["evaluation"])
        for name, evaluation in self._evaluations.items():
            evaluation.restore(state["readings"][name])
            self._shifts[name][:] = state["readings"][name]["shift"]
        if self._trained is not None:
            self._trained.restore(state["trained"])

    @property
    def readings(self) -> dict[str, Reading]:
        """By name, those that this run could be given."""
        return {
            name: Reading(found.accuracy, found.class_recall, found.answer_shares, self._shifts[name])
            for name, found in self._evaluations.items()
            if not np.isnan(found.correct_TC).all()
        }

    def _under(self, name: str, task: Task, buffer: Buffer | None) -> Network | None:
        seen = self._stream.tasks[: task.number + 1]
        return under(name, self._model, self._statistics(), seen, buffer, self._config.seed, self._dtype)

    def _statistics(self) -> Statistics:
        return statistics_of(self._model) if self._trained is None else self._trained()


def _load(model: nn.Module, statistics: Statistics) -> None:
    for norm, (mean, var) in zip(norms_of(model), statistics, strict=True):
        _tensor(norm.running_mean).copy_(mean)
        _tensor(norm.running_var).copy_(var)


def _tensor(statistic: Tensor | None) -> Tensor:
    assert statistic is not None  # a BatchNorm of this package keeps running statistics
    return statistic


def _estimate(model: Network, batches: Iterator[Tensor]) -> None:
    """Set the running statistics to the mean of those of the batches, layer after layer in each pass."""
    model.train()
    for number, images_NCHW in enumerate(batches):
        for norm in norms_of(model):
            norm.momentum = 1 / (number + 1)
        model(images_NCHW)


def _displace(model: Network, task: Task, buffer: Buffer | None, draw: np.random.Generator, dtype: torch.dtype) -> None:
    recent, labels = _last_batches(task)
    sources = [(recent, labels)]
    if buffer is not None:
        sources.insert(0, (buffer.images[: buffer.n_stored], buffer.labels[: buffer.n_stored]))
    candidates = [
        torch.cat([images[_places(np.flatnonzero(of == c), images)] for images, of in sources]) for c in task.classes
    ]
    generator = torch.Generator().manual_seed(int(draw.integers(2**62)))
    published = Scorer(
        bregman_information, generator, batchnorm="train", view_draws="batch", view_space="normalized", dtype=dtype
    )
    published.logits(model, sorted((images for images in candidates if len(images)), key=len))


def _batches(
    name: str, model: Network, seen: Sequence[Task], buffer: Buffer | None, draw: np.random.Generator
) -> Iterator[Tensor]:
    """The batches of an estimate: images (B, C, H, W), uint8, or float in [0, 1] where they are views."""
    if name == "balanced":
        of_class = [(task, np.flatnonzero(task.host_labels == c)) for task in seen for c in task.classes]
        of_class = [(task, indices) for task, indices in of_class if len(indices)]  # a blurry class may lack its own
        for _ in range(BATCHES):
            chosen = [of_class[i] for i in draw.integers(len(of_class), size=BATCH_SIZE)]
            yield torch.stack([task.images[int(draw.choice(indices))] for task, indices in chosen])
        return
    assert buffer is not None
    stored = buffer.images[: buffer.n_stored]
    recent, _ = _last_batches(seen[-1])
    shares = [(stored, BATCH_SIZE)]
    if name == "memory+stream":
        shares = [(stored, BATCH_SIZE // 2), (recent, BATCH_SIZE // 2)]
    generator = torch.Generator().manual_seed(int(draw.integers(2**62)))
    for _ in range(BATCHES):
        drawn = [
            images[_places(draw.choice(len(images), min(n, len(images)), replace=False), images)]
            for images, n in shares
        ]
        images_NCHW = torch.cat(drawn)
        if name == "views":
            views_PNCHW = views.perturb(to_unit(images_NCHW), generator, model.mean.flatten())
            of_image = _places(draw.integers(len(views_PNCHW), size=len(images_NCHW)), images_NCHW)
            images_NCHW = views_PNCHW[of_image, torch.arange(len(images_NCHW), device=images_NCHW.device)]
        yield images_NCHW


def _last_batches(task: Task) -> tuple[Tensor, np.ndarray]:
    end = len(task) * task.batch_size
    last = slice(max(0, end - LAST_BATCHES * task.batch_size), end)
    return task.images[last], task.host_labels[last]


def _places(indices: np.ndarray, images: Tensor) -> Tensor:
    return torch.from_numpy(np.asarray(indices, dtype=np.int64)).to(images.device)
