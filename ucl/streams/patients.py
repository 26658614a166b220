"""Splits that keep all images of a patient together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from ucl.errors import InputError, first_of
from ucl.streams.held_out import evenly_spaced, n_in_share

Patients = frozenset[str]
_TRIES_PER_CLASS = 100  # A search without an end is worse than a refusal. Usually two per class are enough.


def held_out_patients(source: str, of_class: Mapping[str, Patients]) -> Patients:
    """The test patients: about a fifth of the patients of each class, at least one; nothing is drawn at random.

    Each class has a patient who is left for training. A patient may be in several classes.

    Args:
        source: where the patients are from; error messages name it.
        of_class: the patients of each class, by its name.

    Raises:
        InputError: a class has a single patient, or no split gives each class training and test images.
    """
    if alone := [name for name, patients in of_class.items() if len(patients) == 1]:
        reason = f"only one patient of {first_of(alone)}; give 2 or more, for training and for testing"
        raise InputError("dataset", source, reason)
    test, train = _one_of_each(source, of_class)
    for patients in sorted(of_class.values(), key=len):
        free = sorted(patients - test - train)
        n_more = min(len(free), round(len(patients) / 5) - len(patients & test))
        test |= {free[i] for i in evenly_spaced(len(free), max(0, n_more))}
    return test


def _one_of_each(source: str, of_class: Mapping[str, Patients]) -> tuple[Patients, Patients]:
    """A few test patients and a few training patients, so that each class has one of both. Raises as the caller does.

    All possibilities are tried, up to a limit: first those of the class with the fewest, among classes that have one of
    both already, if there are such.
    """
    n_classes = Counter(patient for patients in of_class.values() for patient in patients)
    untried: list[tuple[Patients, Patients]] = [(frozenset(), frozenset())]
    stuck, n_tried = "", 0
    while untried and n_tried < _TRIES_PER_CLASS * len(of_class):
        test, train = untried.pop()
        n_tried += 1
        begun = {name: of for name, of in of_class.items() if bool(of & test) != bool(of & train)}
        new = {name: of for name, of in of_class.items() if not of & (test | train)}
        if not begun and not new:
            return test, train
        choices = {name: patients - test - train for name, patients in (begun or new).items()}
        name = min(choices, key=lambda name: len(choices[name]))
        stuck = stuck if choices[name] else name
        for_training = bool(of_class[name] & test)
        for patient in sorted(choices[name], key=lambda patient: (-n_classes[patient], patient), reverse=True):
            untried.append((test, train | {patient}) if for_training else (test | {patient}, train))
    reason = f"found no split with training and test images of {stuck} and of the classes that share its patients"
    advice = "give more patients, and rename folders of different patients that have the same name"
    raise InputError("dataset", source, f"{reason}; {advice}")


def whole_patients(
    patients: np.ndarray, of_class: Sequence[np.ndarray], share: float, draw: np.random.Generator
) -> np.ndarray:
    """(N,), True for all images of some patients: those who fit, in random order, into the share of each class.

    Args:
        patients: (N,), the number of the patient of each image.
        of_class: for each class the indices of its images.
        share: at most this share of the images of each class is chosen.
        draw: draws the order of the patients.
    """
    numbers, patients = np.unique(patients, return_inverse=True)
    n_images = np.stack([np.bincount(patients[indices], minlength=len(numbers)) for indices in of_class], axis=1)
    room = np.array([n_in_share(share, len(indices)) for indices in of_class])
    chosen = np.zeros(len(numbers), bool)
    for patient in draw.permutation(len(numbers)):
        if (n_images[patient] <= room).all():
            chosen[patient] = True
            room -= n_images[patient]
    return chosen[patients]
