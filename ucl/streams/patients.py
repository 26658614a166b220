"""Splits that keep all images of a patient together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from ucl.errors import InputError, first_of
from ucl.streams.own_images import evenly_spaced

Patients = frozenset[str]


def one_of_each(classes: Sequence[Patients]) -> tuple[Patients, Patients] | None:
    """A few test patients and a few training patients, so that each class has one of both.

    Args:
        classes: the patients of each class.

    Returns:
        The two sets, which have no patient in common; None if there are none. All possibilities are tried, those of the
        class with the fewest first.
    """
    n_classes = Counter(patient for patients in classes for patient in patients)
    untried: list[tuple[Patients, Patients]] = [(frozenset(), frozenset())]
    while untried:
        test, train = untried.pop()
        needs = [(patients - train, True) for patients in classes if not patients & test]
        needs += [(patients - test, False) for patients in classes if not patients & train]
        if not needs:
            return test, train
        choices, for_test = min(needs, key=lambda need: len(need[0]))
        for patient in sorted(choices, key=lambda patient: (-n_classes[patient], patient), reverse=True):
            untried.append((test | {patient}, train) if for_test else (test, train | {patient}))
    return None


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
    test: Patients = frozenset()
    train: Patients = frozenset()
    for names in _linked(of_class):
        found = one_of_each([of_class[name] for name in names])
        if found is None:
            reason = f"no split of the patients of {first_of(names)} gives each class training and test images"
            advice = "give more patients, and rename folders of different patients that have the same name"
            raise InputError("dataset", source, f"{reason}; {advice}")
        test, train = test | found[0], train | found[1]
    for patients in sorted(of_class.values(), key=len):
        free = sorted(patients - test - train)
        n_more = min(len(free), round(len(patients) / 5) - len(patients & test))
        test |= {free[i] for i in evenly_spaced(len(free), max(0, n_more))}
    return test


def _linked(of_class: Mapping[str, Patients]) -> list[list[str]]:
    """The names of the classes in groups that have no patient in common."""
    groups: list[tuple[list[str], Patients]] = []
    for name, patients in of_class.items():
        linked = [group for group in groups if group[1] & patients]
        names = [other for group in linked for other in group[0]]
        groups = [group for group in groups if group not in linked]
        groups.append(([*names, name], patients.union(*(group[1] for group in linked))))
    return [names for names, _ in groups]


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
    room = np.array([int(share * len(indices)) for indices in of_class])
    chosen = np.zeros(len(numbers), bool)
    for patient in draw.permutation(len(numbers)):
        if (n_images[patient] <= room).all():
            chosen[patient] = True
            room -= n_images[patient]
    return chosen[patients]
