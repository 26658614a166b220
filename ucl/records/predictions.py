"""The predicted class of each test image after each task, in one `.npz` file per run, and the confusion of classes.

`ucl.run` with `predictions` writes the file, `numpy.load` reads it. With T tasks, N test images and C classes:

- predictions (T, N): the label that the network predicts after each task; -1 for images of tasks not tested.
- labels (N,): the true labels; the name of label c is `classes[c]`.
- tasks (N,): the task of each image, from 0.
- positions (N,): the index of each image in the data set's test images (`Task.test_positions`); of a folder,
  ``[dataset.test_files[p] for p in positions]`` are the files.
- classes (C,): the names of the classes.
- key: identifies the run, see `ucl.Config.key`.

The images have the order of the stream: class after class in the order of `Record.class_order`, and within a class the
order of the data set's test images (of those that remain, with `Config.long_tailed_test`).
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from ucl.errors import InputError, one_line_with_type
from ucl.records.record import Record


def as_bytes(**arrays: Any) -> bytes:
    """The content of a file with these arrays, texts and lists by their names above."""
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def confusion(record: Record) -> np.ndarray:
    """Confusion matrices (T, C, C): [t, c, k] test images of class c are predicted as class k after task t.

    Classes that are not seen yet, or not tested (`Config.evaluate_tasks`), have no images. The diagonal, divided by the
    sums of the rows, is `Record.class_recall`.

    Raises:
        InputError: the run was measured without `predictions`, or the file can't be read or is of another run.
    """
    if "predictions" not in record.files:
        reason = "was measured without predictions; give a folder: predictions= in Python, or --predictions"
        raise InputError("records", record.name, reason)
    path, n_classes = record.files["predictions"], len(record.classes)
    try:
        with np.load(path) as file:
            predictions_TN, labels_N, key = (file[name] for name in ("predictions", "labels", "key"))
    except Exception as error:  # A damaged file can raise any error.
        raise InputError("predictions", path, f"can't be read ({one_line_with_type(error)})") from None
    counts = np.zeros((len(predictions_TN), n_classes, n_classes), int)
    for count, row in zip(counts, predictions_TN):
        np.add.at(count, (labels_N[row >= 0], row[row >= 0]), 1)
    with np.errstate(invalid="ignore"):
        recall = np.diagonal(counts, axis1=1, axis2=2) / counts.sum(2)
    same = np.array_equal(recall, record.class_recall, equal_nan=True)
    if key != record.config.without_further_tests.key or not same:
        raise InputError("predictions", path, "is of another run than the record")
    return counts
