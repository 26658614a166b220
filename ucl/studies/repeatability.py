"""Repeatability of scores: whether a network that scores the same images twice ranks them equally.

A score is computed from random views. Two scorings of an image by the same network differ only by these draws. The
contents of a memory cannot be more repeatable than the score.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ucl import scorers
from ucl.assembly import assemble
from ucl.catalogue import SCORES
from ucl.config import Config
from ucl.evaluation.accuracy import DROPOUT_PASSES
from ucl.machine.determinism import repeatable, seed_for
from ucl.models import Network
from ucl.scorers import Score, ScoringPasses
from ucl.streams import datasets

SETTINGS: dict[str, dict[str, float]] = {
    "1 draw": dict(),
    "2 draws": dict(n_draws=2),
    "4 draws": dict(n_draws=4),
    "smoothing 0.2": dict(smoothing=0.2, rescorings=10),
}


@torch.no_grad()
def draws(model: Network, images: Tensor, n: int, generator: torch.Generator, dropout_passes: int = 0) -> Tensor:
    """The logits (D, P, N, C) of n = D draws of the views of the same images, BatchNorm in evaluation mode.

    Args:
        model: the network.
        images: (N, C, H, W), uint8.
        n, generator: the number of draws, and what draws the views.
        dropout_passes: 0 for the 12 views, otherwise the number of dropout passes, as for the score MC.
    """
    passes = ScoringPasses(generator, dropout_passes)
    logits_PMC = passes.logits(model, images.repeat(n, 1, 1, 1))  # Each draw gets a copy of each image.
    return logits_PMC.unflatten(1, (n, len(images))).transpose(0, 1)


def scorings(
    logits_DPNC: Tensor, score: Score, n_draws: int = 1, smoothing: float = 1.0, rescorings: int = 1
) -> Tensor:
    """Independent scorings of the same images, as many as the draws allow.

    Args:
        logits_DPNC: see `draws`.
        score: function of logits (P, N, C).
        n_draws, smoothing: see `ucl.Config`.
        rescorings: number of scores of an image in one running mean.

    Returns:
        (R, N) scores, R = D // (n_draws * rescorings).
    """
    n_per_scoring = n_draws * rescorings
    results = []
    for part in logits_DPNC[: len(logits_DPNC) // n_per_scoring * n_per_scoring].split(n_per_scoring):
        fresh = [score(draws_DPNC.flatten(0, 1)) for draws_DPNC in part.split(n_draws)]
        mean_N = fresh[0]
        for new_N in fresh[1:]:
            mean_N = torch.lerp(mean_N, new_N, smoothing)
        results.append(mean_N)
    return torch.stack(results)


def agreement(scores_RN: Tensor, kept: int) -> tuple[float, float]:
    """Agreement of scorings of the same images, averaged over their pairs.

    Args:
        scores_RN: R scorings, two or more, of N images.
        kept: number of images that a memory would keep, 1 to N.

    Returns:
        Spearman's rank correlation, NaN if a scoring gives all images the same score; and the share of the `kept` least
        uncertain images of one scoring that are also among those of the other.
    """
    scores_NR = pd.DataFrame(scores_RN.cpu().double().T.numpy())
    pairs = np.triu_indices(len(scores_RN), 1)
    chosen = (scores_NR.rank(method="first") <= kept).to_numpy(dtype=float)
    overlaps = chosen.T @ chosen / kept
    return float(scores_NR.corr("spearman").to_numpy()[pairs].mean()), float(overlaps[pairs].mean())


def repeatability(model: Network, images: Tensor, kept: int, seed: int = 0) -> pd.DataFrame:
    """Repeatability of scores under `SETTINGS`: of MC if the network has dropout, otherwise of the scores of views.

    Args:
        model: the network.
        images: (N, C, H, W), uint8, of one class: the candidates of a memory.
        kept: number of images that the memory would keep.
        seed: of the views, which all scores share.

    Returns:
        One row per score and setting: score, setting, spearman and overlap, see `agreement`.
    """
    # Enough draws for two scorings under the setting that needs the most of them.
    n = 2 * int(max(options.get("n_draws", 1) * options.get("rescorings", 1) for options in SETTINGS.values()))
    passes = DROPOUT_PASSES if model.dropout_rate else 0
    logits_DPNC = draws(model, images, n, torch.Generator().manual_seed(seed), passes)
    rows = []
    for name in [name for name, row in SCORES.items() if (row.dropout_passes > 0) == (passes > 0)]:
        for setting, options in SETTINGS.items():
            repeated = scorings(logits_DPNC, scorers.SCORES[name], **options)  # type: ignore[arg-type]
            spearman, overlap = agreement(repeated, kept)
            rows.append({"score": name, "setting": setting, "spearman": spearman, "overlap": overlap})
    return pd.DataFrame(rows)


def over_run(config: Config, n_images: int = 40) -> pd.DataFrame:
    """`repeatability` at each task end of a run on the CPU, on the last training images of each class of the task.

    Args:
        config: the run.
        n_images: images per class, or all if a class has fewer; a memory would keep half of them.

    Returns:
        One row per task, score and setting: dataset, seed, task (from 1), score, setting, spearman and overlap, means
        over the task's classes.
    """
    data = datasets.load(config.dataset, image_size=config.image_size)
    tables = []
    with repeatable(config.seed, torch.device("cpu")):
        parts = assemble(config, data)
        for task in parts.stream:
            for _ in parts.steps(task):
                pass
            for class_label in task.classes:
                images = task.images[torch.from_numpy(np.flatnonzero(task.host_labels == class_label)[-n_images:])]
                seed = seed_for(config.seed, f"retest of class {class_label}")
                table = repeatability(parts.model, images, max(1, len(images) // 2), seed)
                tables.append(table.assign(task=task.number + 1))
    means = pd.concat(tables).groupby(["task", "score", "setting"], sort=False).mean().reset_index()
    means = means.assign(dataset=config.dataset, seed=config.seed)
    return means[["dataset", "seed", "task", "score", "setting", "spearman", "overlap"]]
