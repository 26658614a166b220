"""The catalogue: one row per score, selection, memory policy, method, network and data set.

A row has all that the package knows about a thing by name. Help, checks, assembly, tables, figures, the benchmark and
the tests read the rows, in their order here, so a new row needs no other list. This module does not import torch: a row
names its function or class by a dotted path, and `Row.resolve` imports it.
"""

from __future__ import annotations

import os
import pkgutil
import re
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, TypeVar


@dataclass(frozen=True)
class Row:
    """The columns of every row.

    Attributes:
        name: the value of the field of `Config`.
        help: one line for help texts.
        path: ``module:name`` of the function or class; "" if there is none.
    """

    name: str
    help: str
    path: str = ""

    def resolve(self) -> Any:
        """The function or class."""
        return pkgutil.resolve_name(self.path)


@dataclass(frozen=True)
class Shown(Row):
    """A row of tables and figures.

    Attributes:
        label: its name there; "" if its memory policy or score names it.
        colour: RGB colour in figures; "" for a colour of user objects.
        dash: line in figures, in matplotlib's notation; the line of a score depends on the selection instead.
        in_paper: whether the paper's tables and figures have it; Finetune counts as well.
    """

    _: KW_ONLY
    label: str = ""
    colour: str = ""
    dash: Any = "-."
    in_paper: bool = False
    field: ClassVar[str]

    @property
    def fields(self) -> dict[str, Any]:
        """The field of `Config` that chooses it, with its name."""
        return {self.field: self.name}


@dataclass(frozen=True)
class Score(Shown):
    """A function from logits (P, N, C) to the uncertainty (N,).

    Attributes:
        of_probabilities: whether it needs one pass only, so that it can be taken of the mean probabilities.
        unit: its unit in figures.
        dropout_passes: whether P are dropout passes of the unchanged image instead of its views.
    """

    field: ClassVar[str] = "score"
    of_probabilities: bool = False
    unit: str = "1"
    dropout_passes: bool = False

    @property
    def ignores(self) -> tuple[str, ...]:
        """The scoring fields of `Config` that do not change the score."""
        views = ("view_draws", "view_space", "n_draws") if self.dropout_passes else ()
        return views if self.of_probabilities else (*views, "averaging")


@dataclass(frozen=True)
class Policy(Shown):
    """A memory policy: a class whose arguments are size, image_shape, device and seed.

    Attributes:
        has_quotas: whether each class has a share of the memory, so that it needs a slot per class.
        uses: fields of `Config` that change what it keeps, and that other policies do not have.
        uses_task: whether it reads the number of a batch's task.
    """

    field: ClassVar[str] = "population"
    has_quotas: bool = True
    uses: tuple[str, ...] = ()
    uses_task: bool = False


@dataclass(frozen=True)
class Method(Shown):
    """How a batch is learnt: a class whose arguments are model, lr, replay_seed, updates and graphs.

    Attributes:
        population: its memory policy by default.
        has_memory: whether it replays samples of a memory.
        replays_all: whether it replays samples of all tasks, also where others replay those of earlier tasks only.
        uses: fields of `Config` that it reads although the memory policy may not.
    """

    field: ClassVar[str] = "method"
    population: str = "reservoir"
    has_memory: bool = True
    replays_all: bool = False
    uses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Network(Row):
    """A network: a function of n_classes, channels, image_size, mean, std and dropout.

    Attributes:
        ignores: fields of `Config` that do not change what it computes.
        smallest_batch: images per training step, at least.
    """

    ignores: tuple[str, ...] = ()
    smallest_batch: int = 1


@dataclass(frozen=True)
class Dataset(Row):
    """The stream that a data set gives by default, as in the paper or in its reference implementation.

    Attributes:
        n_tasks, memory_size, class_order, balanced_accuracy: see `Config`.
        long_tailed_memory: the memory size of its long-tailed version; None for the same.
        has_validation: whether it comes with a validation set.
    """

    n_tasks: int = 5
    memory_size: int = 200
    long_tailed_memory: int | None = None
    class_order: str = "seed"
    balanced_accuracy: bool = False
    has_validation: bool = True


@dataclass(frozen=True)
class Boundaries(Row):
    """How one task turns into the next, with the defaults of `Config.blur` and `Config.replay`."""

    blur: float = 0.0
    replay: str = "all"  # unless boundaries are clear, a batch does not belong to a single task


@dataclass(frozen=True)
class Statistics(Row):
    """BatchNorm statistics with which a network is tested; `needs_memory` if they are estimated on stored images."""

    needs_memory: bool = False


AnyRow = TypeVar("AnyRow", bound=Row)


def _named(*rows: AnyRow) -> dict[str, AnyRow]:
    return {row.name: row for row in rows}


# The colour-blind safe palette of seaborn, in an order that gives the paper's method its green.
_BLUE, _ORANGE, _GREEN, _RED, _PURPLE = "#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc"
_BROWN, _PINK, _GREY, _YELLOW, _SKY = "#ca9161", "#fbafe4", "#949494", "#ece133", "#56b4e9"

MEMORY_FIELDS = ("memory_size", "population", "replay")
"""The fields of `Config` that only a method with a memory has."""

# fmt: off
SCORES = _named(
    Score("LC", "least confidence (eq. 2)",
          "ucl.scorers.scores:least_confidence", label="least confidence", unit="probability",
          colour=_YELLOW, in_paper=True, of_probabilities=True),
    Score("MS", "margin between the two most probable classes (eq. 3)",
          "ucl.scorers.scores:margin", label="margin", unit="probability",
          colour=_ORANGE, in_paper=True, of_probabilities=True),
    Score("RC", "ratio of the two highest probabilities (eq. 4)",
          "ucl.scorers.scores:confidence_ratio", label="ratio of confidence",
          colour=_BROWN, in_paper=True, of_probabilities=True),
    Score("EN", "entropy (eq. 5)", "ucl.scorers.scores:entropy", label="entropy", unit="nats",
          colour=_RED, in_paper=True, of_probabilities=True),
    Score("RM", "disagreement of the views, as in Rainbow Memory (eq. 1)",
          "ucl.scorers.scores:disagreement", label="disagreement of the views", unit="share of the views",
          colour=_PINK, in_paper=True),
    Score("MC", "variance over Monte-Carlo dropout passes (Gal & Ghahramani, 2016)",
          "ucl.scorers.scores:dropout_variance", label="Monte-Carlo dropout",
          colour="#404040", in_paper=True, dropout_passes=True),
    Score("BI", "Bregman Information of the logits, a generalised variance (paper, eq. 6)",
          "ucl.scorers.scores:bregman_information", label="Bregman Information", unit="nats",
          colour=_GREEN, in_paper=True),
)
UNIFORM = "ucl.scorers:uniform"
"""The random control: the score is a random number. Its name in labels is "uniform"."""

SELECTIONS = _named(
    Row("bottom", "the least uncertain", "ucl.buffers.selection:bottom_k"),
    Row("step", "evenly spaced from the least to the most uncertain", "ucl.buffers.selection:step_sized"),
    Row("top", "the most uncertain", "ucl.buffers.selection:top_k"),
)

# Colours of rivals and baselines are far apart, also for colour-blind readers. A rival and a score can have similar
# colours; the dash of the rival's line distinguishes them.
POLICIES = _named(
    Policy("reservoir", "reservoir sampling: every sample of the stream equally likely (Vitter, 1985)",
           "ucl.buffers.reservoir:ReservoirBuffer", label="ER",
           colour=_BLUE, dash="-", in_paper=True, has_quotas=False, uses=("reservoir_index",)),
    Policy("class-balanced", "CBR: class-balancing reservoir sampling (Chrysakis & Moens, 2020)",
           "ucl.buffers.reservoir:ClassBalancedBuffer", label="CBR",
           colour=_SKY, dash="-", in_paper=True, uses=("class_balancing",)),
    Policy("loss-aware", "LARS: a reservoir in which samples with a low loss leave first (Buzzega et al., 2021)",
           "ucl.buffers.loss_aware:LossAwareBuffer", label="LARS", colour="#91db4a", has_quotas=False),
    Policy("closest-to-mean",
           "MoF: each class keeps the samples closest to the mean of its features (Chaudhry et al., 2019)",
           "ucl.buffers.herding:closest_to_mean_buffer", label="MoF", colour="#00006e"),
    Policy("herding", "herding again at every batch: mostly recent samples; not iCaRL",
           "ucl.buffers.herding:herding_buffer", label="online herding", colour="#4a004a"),
    Policy("icarl", "iCaRL's exemplars: at a task's end, among all its images, those whose mean features are closest "
           "to those of the class (Rebuffi et al., 2017); not online",
           "ucl.buffers.herding:ICaRLBuffer", label="iCaRL herding", colour="#3838a8"),
    Policy("gss", "GSS-greedy: samples with gradients unlike the others' (Aljundi et al., 2019)",
           "ucl.buffers.gss:GSSGreedyBuffer", label="GSS", colour="#b50080", has_quotas=False),
    Policy("homogeneous", "MOE: at a task's end, among all its images, those whose neighbours have their label "
           "(Hurtado et al., 2023); not online",
           "ucl.buffers.homogeneous:HomogeneousBuffer", label="MOE", colour="#db6e4a"),
    Policy("rainbow", "Rainbow Memory: at a task's end, among all its images, every n-th from the least uncertain on "
           "(Bang et al., 2021); not online",
           "ucl.buffers.rainbow:RainbowBuffer", label="Rainbow", colour="#b56eff"),
    Policy("coreset", "OCS: typical gradients, unlike each other, that agree with the memory (Yoon et al., 2022)",
           "ucl.buffers.coreset:CoresetBuffer", label="OCS", colour="#dbb591", uses_task=True),
    Policy("uncertainty", "class-balanced, each class keeps samples by an uncertainty score (the paper's Algorithm 1)",
           "ucl.buffers.uncertainty:UncertaintyBuffer",
           uses=("score", "selection", "refresh", "smoothing", "n_draws", "scoring_batchnorm", "averaging",
                 "view_draws", "view_space", "precision")),
)
POLICY_FIELDS = tuple(dict.fromkeys(name for row in POLICIES.values() for name in row.uses))
"""The fields of `Config` that only some memory policies have."""

METHODS = _named(
    Method("agem", "A-GEM: the batch gradient, projected so that it never opposes a memory gradient "
           "(Chaudhry et al., 2019)", "ucl.methods.replay:AGEM", label="A-GEM", colour=_PURPLE, dash="-", in_paper=True,
           uses=("reference_batch", "projected")),
    Method("finetune", "plain SGD on the stream, no memory",
           "ucl.methods.replay:Finetune", label="Finetune", colour=_GREY, in_paper=True, has_memory=False,
           dash=(0, (2, 3))),  # wide gaps: A-GEM's line is often just below it
    Method("joint", "the images of all tasks mixed, each seen once, no memory: a reference without forgetting",
           "ucl.methods.replay:Finetune",  # joint training differs in its stream only
           label="Joint", colour="#000000", has_memory=False),
    Method("er-ace", "ER-ACE: batch samples compete with the classes of their batch only (Caccia et al., 2022)",
           "ucl.methods.er_ace:ERACE", label="ER-ACE", colour="#ff4a00", replays_all=True),
    Method("derpp", "DER++: memory samples keep the logits that they had when they came (Buzzega et al., 2020)",
           "ucl.methods.derpp:DERPP", label="DER++", colour="#6e00db", replays_all=True),
    Method("mir", "MIR: replay of the samples whose loss the batch would raise most (Aljundi et al., 2019)",
           "ucl.methods.mir:MIR", label="MIR", colour="#6e2400", uses=("scoring_batchnorm",)),
    Method("er", "experience replay: the batch and as many memory samples in one update (Chaudhry et al., 2019)",
           "ucl.methods.replay:ExperienceReplay", population="uncertainty"),
)
METHOD_FIELDS = tuple(name for row in METHODS.values() for name in row.uses if name not in POLICY_FIELDS)
"""The fields of `Config` that only some methods have."""

NETWORKS = _named(
    Network("slim_resnet18", "ResNet-18 with 20 filters at the start (Lopez-Paz & Ranzato, 2017)",
            "ucl.models.slim_resnet:SlimResNet18", smallest_batch=2),
    Network("slim_resnet18_groupnorm",
            "the same with GroupNorm, 4 groups, in place of BatchNorm (Wu & He, 2018): no running statistics",
            "ucl.models.slim_resnet:slim_resnet18_groupnorm",
            ignores=("scoring_batchnorm", "test_batchnorm", "readings")),
)
SMALLEST_IMAGE, LARGEST_IMAGE = 25, 512  # pixels per side; a user's network may take fewer

MEDMNIST = (
    *("pathmnist", "chestmnist", "dermamnist", "octmnist", "pneumoniamnist", "retinamnist", "breastmnist"),
    *("bloodmnist", "tissuemnist", "organamnist", "organcmnist", "organsmnist"),
)
"""MedMNIST's names of its 2-D sets."""
DATASETS = _named(
    Dataset("digits", "handwritten digits of scikit-learn", memory_size=50, has_validation=False),
    Dataset("cifar10", "CIFAR-10", memory_size=500, long_tailed_memory=200, has_validation=False),
    Dataset("cifar100", "CIFAR-100", memory_size=1000, long_tailed_memory=500, has_validation=False),
    Dataset("bloodcell", "BloodCell, MedMNIST's bloodmnist",
            n_tasks=4, memory_size=40, class_order="size", balanced_accuracy=True),
    *(Dataset(name, "a set of MedMNIST", balanced_accuracy=True) for name in MEDMNIST),
)
"""The data sets with their defaults; a name that ends in "-lt" is a long-tailed version."""

BOUNDARIES = _named(
    Boundaries("clear", "a class comes in one task only, as in the paper", replay="earlier"),
    Boundaries("gradual", "the share of each task falls linearly while that of the next rises", blur=1.0),
    Boundaries("blurry",
               "i-Blurry: some classes come in one task, the others also in small parts in all tasks "
               "(Koh et al., 2022)", blur=0.1),
)

STATISTICS = _named(
    Statistics("training", "those after the training steps alone, without scoring passes"),
    Statistics("displaced",
               "after training-mode scoring passes, like the reference implementation's, over the task's classes"),
    Statistics("memory", "re-estimated on batches of the memory", needs_memory=True),
    Statistics("memory+stream", "re-estimated on batches that are half memory, half the task's last images",
               needs_memory=True),
    Statistics("views", "re-estimated on views of the memory", needs_memory=True),
    Statistics("balanced",
               "re-estimated on training images of all classes so far, which a stream does not keep: for comparison"),
)
READINGS = STATISTICS | _named(
    Statistics("published test", "in training mode, by the mean of the logits, as the reference implementation "
               "tests MC; networks with dropout only"),
    Statistics("thinned", "the run's own answers to a long-tailed test set, as in the reference implementation; "
               "long-tailed streams only"),
)

PICTURES = _named(
    Row("accuracy", "accuracy after each task: on all tasks seen so far, and on the first task",
        "ucl.plots.accuracy:accuracy_over_stream"),
    Row("forgetting", "last accuracy A and last forgetting F, one dot per seed, and the accuracies behind F",
        "ucl.plots.accuracy:accuracy_and_forgetting"),
    Row("tasks", "accuracy on each task after each task, one matrix per method",
        "ucl.plots.accuracy:accuracy_matrices"),
    Row("classes", "recall of each class at the end and at its best before: what happens to rare classes",
        "ucl.plots.accuracy:class_recall"),
    Row("confusion", "true and predicted classes of one method after the tasks; needs runs with --predictions",
        "ucl.plots.confusion:class_confusion"),
    Row("memory", "what the final memory holds: confidence and Bregman Information of its images",
        "ucl.plots.memory:score_distributions"),
    Row("differences", "each method minus one other in A and F: mean and 95 % interval of paired differences"),
)
"""The pictures of `ucl plot`, and what they show."""
# fmt: on


def method_row(name: str) -> Method:
    """The row of a method; for a user's method, what is assumed of it."""
    return METHODS.get(name, Method(name, "", label=name))


def policy_row(name: str) -> Policy:
    """The row of a memory policy; for a user's memory policy, what is assumed of it."""
    return POLICIES.get(name, Policy(name, "", label=name, has_quotas=False, uses_task=True))


def score_row(name: str) -> Score:
    """The row of a score; for a user's score, what is assumed of it."""
    return SCORES.get(name, Score(name, ""))


def network_row(name: str) -> Network:
    """The row of a network; for a user's network, what is assumed of it."""
    return NETWORKS.get(name, Network(name, "", ignores=("dropout",)))


def dataset_row(name: str) -> Dataset:
    """The row of a data set, without the suffix of its long-tailed version; the defaults of any other data set."""
    plain = plain_name(name)
    return DATASETS.get(plain, Dataset(plain, ""))


def helps(rows: Mapping[str, Row]) -> dict[str, str]:
    """The help text of each row, by its name."""
    return {name: row.help for name, row in rows.items()}


def resolved(rows: Mapping[str, Row]) -> dict[str, Any]:
    """The function or class of each row, by its name."""
    return {name: row.resolve() for name, row in rows.items()}


_BASELINES = [row for row in (*POLICIES.values(), *METHODS.values()) if row.in_paper]
_RIVALS = [row for row in (*METHODS.values(), *POLICIES.values()) if row.label and not row.in_paper]
WITHOUT_SCORE: dict[str, Shown] = {row.label: row for row in (*_BASELINES, *_RIVALS)}
"""The memory policies and methods of tables and figures in their order, by label."""
SHOWN: dict[str, Shown] = {**WITHOUT_SCORE, **SCORES}
"""The rows of tables and figures in their order (baselines, rivals, scores), by their label or the score's name."""
PAPER = tuple(name for name, row in SHOWN.items() if row.in_paper)
"""The methods of the paper and Finetune: baselines, then scores."""
PAPER_SCORES = tuple(name for name in PAPER if name in SCORES)
"""The scores of the paper; the one that it introduces is last."""


def method_and_selection(label: str) -> tuple[str, str]:
    """The method and the selection in a label, such as "BI" and "top"; the selection is "" where the label has none.

    Words about settings are left out: "BI bottom, published settings" gives BI, "CBR redraw" gives CBR.
    """
    match = re.fullmatch(rf"(.+?) ({'|'.join(SELECTIONS)})(, .*)?", label)
    if match:
        return match[1], match[2]
    first = label.partition(" ")[0]
    return (first, "") if first in SHOWN else (label, "")


def method_order(labels: Iterable[str]) -> list[str]:
    """Method labels without repeats: baselines, then rivals, then scores; each score in the order bottom, step, top."""
    names = list(SHOWN)

    def rank(label: str) -> tuple[int, str, int, str]:
        name, selection = method_and_selection(label)
        position = names.index(name) if name in names else len(names)
        return position, name, list(SELECTIONS).index(selection) if selection else 0, label

    return sorted(dict.fromkeys(labels), key=rank)


def plain_name(dataset: str) -> str:
    """The name of a data set without the suffix of its long-tailed version."""
    return dataset.removesuffix("-lt")


def has_separator(path: str) -> bool:
    """Whether a text has a separator of folders: "/" everywhere, "\\" as well on Windows."""
    return "/" in path or os.sep in path


def is_user_object(value: object) -> bool:
    """Whether a value names a user object, see `ucl.user_objects`, and not the path of a file."""
    if not isinstance(value, str):
        return False
    path = value.partition("(")[0]  # The arguments in package.module:name(file="a/b") are not part of the path.
    return ":" in path and not (has_separator(path) or path.endswith(".npz"))
