"""Test results of streams put together by the user, counted again in plain Python."""

import dataclasses

import numpy as np
import pytest
import torch
from test_streams import dataset, stream_of

from ucl.evaluation import Evaluation


def counted(evaluation, predicted):
    """Fill an evaluation with these predictions [after task][on task]."""
    for after, labels in enumerate(predicted):
        evaluation.count(lambda task, labels=labels: labels[task.number], after)
    return evaluation


def domain_incremental(n_tasks=3, seed=0):
    """A stream whose tasks all have four classes, with different numbers of test images per class."""
    stream = stream_of(dataset([40] * 4), n_tasks=1)
    draw, (task,) = np.random.default_rng(seed), stream.tasks
    stream.tasks = []
    for number in range(n_tasks):
        labels = np.repeat(range(4), draw.integers(1, 9, 4)) if number else np.repeat([0, 1, 2], [3, 1, 4])
        images = torch.zeros(len(labels), 3, 2, 2, dtype=torch.uint8)
        new = dict(number=number, classes=tuple(np.unique(labels).tolist()))
        new |= dict(test_images=images, test_labels=torch.from_numpy(labels))
        stream.tasks.append(dataclasses.replace(task, **new))
    return stream


def test_tasks_that_share_classes_have_separate_accuracies():
    stream, draw = domain_incremental(), np.random.default_rng(1)
    predicted = [[draw.integers(0, 4, len(task.test_labels)) for task in stream] for _ in stream]
    evaluation = counted(Evaluation(stream, 0), predicted)
    truth = [task.test_labels.numpy() for task in stream]
    for t, row in enumerate(predicted):
        expected = [np.mean(row[i] == truth[i]) if i <= t else np.nan for i in range(3)]
        assert evaluation.accuracy[t] == pytest.approx(expected, nan_ok=True)
        all_predicted, all_truth = (np.concatenate(labels[: t + 1]) for labels in (row, truth))
        for c in range(4):
            is_class = all_truth == c
            recall = np.mean(all_predicted[is_class] == c) if is_class.any() else np.nan
            assert evaluation.class_recall[t, c] == pytest.approx(recall, nan_ok=True)
    assert np.isnan(evaluation.class_recall[0, 3]) and not np.isnan(evaluation.class_recall[1:]).any()
