"""Which images are held out: for tests of data sets without test images, and for validation.

With patients, all images of a patient are held out or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np

from ucl.errors import first_of

Patients = frozenset[str]


def held_out(labels: np.ndarray, patients: np.ndarray | None, names: Mapping[int, str]) -> np.ndarray:
    """(N,), True for the images held out for tests; nothing is drawn at random.

    Without the names of the images' patients these are an evenly spaced fifth of each class, at least one image;
    otherwise all images of the patients that `held_out_patients` chooses. `names` are those of numbered classes.

    Raises:
        ValueError: a class has a single image, or the patients cannot be split.
    """
    indices_of = {names.get(label, str(label)): np.flatnonzero(labels == label) for label in np.unique(labels).tolist()}
    if single := [name for name, indices in indices_of.items() if len(indices) == 1]:
        raise ValueError(f"only one image of class {first_of(single)}; give 2 or more")
    if patients is not None:
        patients_of = {name: frozenset(patients[indices].tolist()) for name, indices in indices_of.items()}
        return np.isin(patients, list(held_out_patients(patients_of)))
    test = np.zeros(len(labels), bool)
    for indices in indices_of.values():
        test[indices[_evenly_spaced(len(indices), max(1, round(len(indices) / 5)))]] = True
    return test


def numbers_of_patients(patients: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """A number for each patient, in the order of their names; empty if no image has a patient.

    `patients` has the name of the patient of each image of each split; "" for an image without one.

    Raises:
        ValueError: a patient is in two splits, or some images have a patient and some have none.
    """
    members = {split: set(names) for split, names in patients.items()}
    names = sorted(set().union(*members.values()))
    if names == [""]:
        return {}
    if "" in names:
        reason = "some images have a patient, and some have none"
        raise ValueError(f"{reason}; give all their patients (a folder: <class>/<patient>/<image> for all), or none")
    for split, other in combinations(members, 2):
        if shared := sorted(members[split] & members[other]):
            advice = "put all images of a patient into one of them, or rename different patients"
            raise ValueError(f"patients in {split} and {other}: {first_of(shared)}; {advice}")
    return {name: number for number, name in enumerate(names)}


def n_in_share(share: float, n: int) -> int:
    """How many of n images a share in [0, 1] is, rounded down: 29 for 0.29 of 100."""
    return int(share * n + 1e-9)  # The product may be slightly below a whole number, as 0.29 * 100 is.


def held_out_patients(patients_of: Mapping[str, Patients]) -> Patients:
    """The test patients: about a fifth of the patients of each class, at least one; nothing is drawn at random.

    Each class has a patient who is left for training. A patient may be in several classes.

    Raises:
        ValueError: a class has a single patient, or no split is found that gives each class training and test images.
    """
    if single := [name for name, patients in patients_of.items() if len(patients) == 1]:
        reason = f"only one patient of class {first_of(single)}; give 2 or more, each as <class>/<patient>"
        raise ValueError(reason)
    test, train = _one_of_each(patients_of)
    for patients in sorted(patients_of.values(), key=len):
        free = sorted(patients - test - train)
        n_more = min(len(free), round(len(patients) / 5) - len(patients & test))
        test |= {free[i] for i in _evenly_spaced(len(free), max(0, n_more))}
    return test


def _one_of_each(patients_of: Mapping[str, Patients]) -> tuple[Patients, Patients]:
    """A few test patients and a few training patients, so that each class has one of both.

    The next class is the one with the fewest choices, among classes that have one of both already, if there are such.
    It gets the patient with images of the most classes.
    """
    n_classes = Counter(patient for patients in patients_of.values() for patient in patients)
    test, train = Patients(), Patients()
    while True:
        begun = [patients for patients in patients_of.values() if bool(patients & test) != bool(patients & train)]
        waiting = begun or [patients for patients in patients_of.values() if not patients & (test | train)]
        if not waiting:
            return test, train
        patients = min(waiting, key=lambda patients: len(patients - test - train))
        choices = sorted(patients - test - train)
        if not choices:
            advice = "give more patients, and rename different patients that have the same name"
            raise ValueError(f"found no split of the patients with all classes in both parts; {advice}")
        chosen = Patients({max(choices, key=lambda patient: n_classes[patient])})
        test, train = (test, train | chosen) if patients & test else (test | chosen, train)


def whole_patients(
    patients: np.ndarray, classes: Sequence[np.ndarray], share: float, draw: np.random.Generator
) -> np.ndarray:
    """(N,), True for all images of some patients: those who fit, in random order, into the share of each class.

    `patients` (N,) are the numbers of the images' patients, and `classes` the indices of the images of each class.
    """
    numbers, patients = np.unique(patients, return_inverse=True)
    n_images = np.stack([np.bincount(patients[indices], minlength=len(numbers)) for indices in classes], axis=1)
    room = np.array([n_in_share(share, len(indices)) for indices in classes])
    chosen = np.zeros(len(numbers), bool)
    for patient in draw.permutation(len(numbers)):
        if (n_images[patient] <= room).all():
            chosen[patient] = True
            room -= n_images[patient]
    return chosen[patients]


def _evenly_spaced(n: int, k: int) -> np.ndarray:
    """(k,): k of the indices below n, each in the middle of one of k equal parts."""
    return (2 * np.arange(k) + 1) * n // (2 * max(k, 1))
