"""The images that a memory keeps: how easy, typical, clean and recent they are.

`traits` describes every training image of a stream by networks that have not learnt it, without any memory:

    the training images are split into two halves at random, class by class
    a network is trained on each half, all classes mixed, and tested on the other half
    loss        cross-entropy of an image under the network that did not learn it: low is easy
    typicality  cosine of its features with the mean of the features of the tested images of its class, each scaled to
                length 1: high is typical
    agrees      whether that network predicts its label: a label that is not predicted may be wrong

`kept_traits` ranks loss and typicality within each class, averages ranks and agreement over the images in the final
memory of each record, and adds how many of these images are recent: among the last tenth of their task.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from ucl import naming
from ucl.assembly import build_model, build_stream
from ucl.config import Config
from ucl.evidence.effects import NUMBERS, differences, effects_by
from ucl.machine.determinism import repeatable, seed_for, seeded_draws
from ucl.machine.hardware import resolve_device
from ucl.machine.terminal import progress_bar
from ucl.methods import Finetune
from ucl.models import Network
from ucl.models.passes import in_evaluation_mode
from ucl.records import Record
from ucl.records.runs import latest, without_failures
from ucl.streams import Batch, Task, datasets
from ucl.streams.image_dataset import ImageDataset
from ucl.studies.memory_swap import pool

TRAITS = ("easy", "typical", "agrees", "recent")
_CHUNK = 500  # images per pass
_REMEDY = r"((?:view_draws=fixed|smoothing=|n_draws=)[^,]*)(?:, )?"  # of a score that does not repeat, in settings


def traits(config: Config, epochs: int = 3, device: str = "auto", progress: bool | None = None) -> pd.DataFrame:
    """Describe each training image of a data set by a network that has not learnt it; see the docstring of the module.

    Args:
        config: a run with the data set, network, dropout, learning rate, batch size and seed. All training images are
            described, including those that the run holds out or that a long tail leaves out.
        epochs: passes over each half.
        device, progress: see `ucl.run`.

    Returns:
        One row per training image: position, label, loss (nats), typicality (in [-1, 1]) and agrees.
    """
    config = config.replace(validation=0.0, imbalance=1.0, evaluate_on="test", evaluate_every=0)
    chosen = resolve_device(device)
    data = datasets.load(config.dataset, image_size=config.image_size)
    tables = []
    with repeatable(config.seed, chosen):
        everything = pool(build_stream(config, data, chosen).tasks)
        halves = _halves(everything.host_labels, config.seed)
        size = 2 * config.batch_size  # as in a training step of a run, with its replayed images
        with progress_bar(epochs * sum(len(half) // size for half in halves), "reference networks", progress) as bar:
            for learnt, tested in (halves, halves[::-1]):
                model = build_model(config, data, chosen)
                method = Finetune(model, config.lr)
                for batch in _mixed(everything, learnt, size, epochs, config.seed):
                    method.learn(model, batch)
                    bar.update()
                tables.append(_described(model, everything, tested))
    return pd.concat(tables).sort_values("position", ignore_index=True)


def _halves(labels_N: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of two halves of each class; if the number of its images is odd, the first half gets one more."""
    draw = np.random.default_rng(seed_for(seed, "halves of the reference networks"))
    by_class = [draw.permutation(np.flatnonzero(labels_N == label)) for label in np.unique(labels_N)]
    return tuple(np.concatenate([indices[part::2] for indices in by_class]) for part in (0, 1))  # type: ignore[return-value]


def _mixed(images: Task, learnt: np.ndarray, size: int, epochs: int, seed: int) -> Iterator[Batch]:
    draw = np.random.default_rng(seed_for(seed, "batches of the reference networks"))
    for _ in range(epochs):
        order = draw.permutation(learnt)
        for start in range(0, len(order) - size + 1, size):
            yield images.part(order[start : start + size])


def _described(model: Network, images: Task, tested: np.ndarray) -> pd.DataFrame:
    part = images.part(tested)
    with seeded_draws(0, part.images.device):
        network = in_evaluation_mode(model)
        outputs = [network.features_and_logits(model.normalize(chunk)) for chunk in part.images.split(_CHUNK)]
        features_ND, logits_NC = (torch.cat(parts) for parts in zip(*outputs, strict=True))
        features_ND = F.normalize(features_ND, dim=1)
    labels_N = part.labels
    typicality_N = torch.empty(len(labels_N), device=labels_N.device)
    for label in np.unique(part.host_labels).tolist():
        rows = labels_N == label
        typicality_N[rows] = F.cosine_similarity(features_ND[rows], features_ND[rows].mean(0, keepdim=True))
    return pd.DataFrame(
        {
            "position": part.positions.cpu().numpy(),
            "label": part.host_labels,
            "loss": F.cross_entropy(logits_NC, labels_N, reduction="none").cpu().numpy(),
            "typicality": typicality_N.cpu().numpy(),
            "agrees": (logits_NC.argmax(1) == labels_N).cpu().numpy(),
        }
    )


def ranked(traits: pd.DataFrame) -> pd.DataFrame:
    """The images of `traits` with ranks within their class, in [0, 1] with mean 0.5: easy (1: lowest loss) and typical.

    Returns:
        Columns position, label, agrees, easy and typical.
    """
    by_class = traits.groupby("label")
    size = by_class["loss"].transform("size")
    ranks = {"easy": by_class["loss"].rank(ascending=False), "typical": by_class["typicality"].rank()}
    return traits[["position", "label", "agrees"]].assign(**{name: (rank - 0.5) / size for name, rank in ranks.items()})


def kept_traits(records: pd.DataFrame, traits: pd.DataFrame, data: ImageDataset) -> pd.DataFrame:
    """How easy, typical, clean and recent the images in the memories at the end of runs are.

    Args:
        records: see `ucl.load_records`; of streams of one data set.
        traits, data: of that data set; runs on another version of its images are left out.

    Returns:
        One row per run, without runs that hold the same images as ER at the same seed (A-GEM, ER-ACE, DER++ and MIR
        fill the same reservoir): dataset, memory_size, method (the label), settings (what differs from the defaults),
        seed, n (images in memory), the means over the classes of easy, typical and agrees, and recent: the share of the
        images that are among the last tenth of their task. For a random memory one expects 0.5, 0.5, the mean over the
        classes of the share of images that agree, and 0.1.
    """
    images = ranked(traits).set_index("position")
    sound = latest(without_failures(records))["record"]
    with_memory = [r for r in sound if r.memory and r.data["fingerprint"] == data.fingerprint]
    reservoirs = {_stream_and_images(record) for record in with_memory if record.config.label == "ER"}

    @functools.cache
    def arrivals(stream: Config) -> pd.Series:
        """When each training image, by its position, comes within its task, from 0 (first) to nearly 1."""
        orders = [task.positions.numpy() for task in build_stream(stream, data)]
        return pd.concat([pd.Series(np.arange(len(order)) / len(order), order) for order in orders])

    rows = []
    for record in with_memory:
        config = record.config
        if config.label != "ER" and _stream_and_images(record) in reservoirs:
            continue
        held = images.loc[record.memory["position"]]
        fields = {"batch_size", "seed", *naming.STREAM} - {"memory_size"}
        stream = Config(**{name: getattr(config, name) for name in fields})
        recent = (arrivals(stream).loc[held.index] >= 0.9).mean()
        row = (config.dataset_name, config.memory_size, config.label, naming.settings(config), config.seed, len(held))
        rows.append((*row, *held.groupby("label")[["easy", "typical", "agrees"]].mean().mean(), recent))
    names = ["dataset", "memory_size", "method", "settings", "seed", "n", *TRAITS]
    return pd.DataFrame(rows, columns=names)


def _stream_and_images(record: Record) -> tuple:
    config = record.config
    return config.dataset_name, config.memory_size, config.seed, tuple(sorted(record.memory["position"]))


def with_remedies(kept: pd.DataFrame) -> pd.DataFrame:
    """What changes in `kept_traits` if a score repeats better: with a remedy minus without it, paired by seed.

    The remedies are those of `notebooks/readings_and_repeatability.ipynb`: fixed views, a running mean of scores,
    several draws.

    Returns:
        One row per stream, method, settings (what else differs from the defaults), remedy and trait that has pairs:
        without (the mean over the paired runs without the remedy) and `ucl.evidence.effects.NUMBERS`, fractions of 1.
    """
    cell = ["dataset", "memory_size", "method", "settings"]
    texts = kept["settings"].fillna("")
    settings = texts.str.replace(_REMEDY, "", n=1, regex=True).str.removesuffix(", ")
    named = kept.assign(settings=settings, remedy=texts.str.extract(_REMEDY)[0].fillna(""))
    means = named.groupby([*cell, "remedy", "seed"], sort=False)[list(TRAITS)].mean().reset_index()
    plain = means[means["remedy"] == ""].drop(columns="remedy")
    pairs = differences(means[means["remedy"] != ""], plain, TRAITS, [*cell, "remedy", "seed"])
    partners = pairs.drop(columns=[*TRAITS]).merge(plain, on=[*cell, "seed"])
    without = partners.groupby([*cell, "remedy"])[list(TRAITS)].mean().rename_axis(columns="measure").stack()
    effects = effects_by(pairs, [*cell, "remedy"], TRAITS, "measure")
    names = [*cell, "remedy", "measure"]
    return effects.join(without.rename("without"), on=names)[[*names, "without", *NUMBERS]]
