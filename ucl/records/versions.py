"""Versions: the images and the user's code that a result was measured with, compared with the current ones.

Three things identify a result (`Record.identity`): its experiment, the fingerprint of its images and the hash of the
sources of the user's objects. A stored result counts for a run only if all three are equal. Results of other versions
stay in the store, but are never averaged with it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ucl import user_objects
from ucl.config import Config
from ucl.errors import InputError
from ucl.records.record import Record, Version
from ucl.streams import datasets

_fingerprints: dict[tuple[str, int | None], str] = {}  # by stamp and image size, until the process ends


class Found(NamedTuple):
    """What a store has of an experiment: a result, an outdated one, or none.

    Attributes:
        path: file of the record, or of a new record of the current version.
        record: the record that counts, or None.
        outdated: without a `record`, the one of another version that ranks highest (`Record.rank`), or None.
        note: one line for the user: why a record is outdated, or that it could not be compared; "" otherwise.
        error: why a file with the name of this record can't be read as one, or "".
    """

    path: Path
    record: Record | None = None
    outdated: Record | None = None
    note: str = ""
    error: str = ""

    @property
    def exists(self) -> bool:
        """Whether there is a record, or a damaged file that only the user may delete."""
        return self.record is not None or bool(self.error)


def current_version(config: Config, root: str | Path | None = None) -> tuple[Version, str]:
    """The version of a run on this machine, and the reason why its images are unknown ("" if they are known).

    Args:
        config: the experiment.
        root: folder of the data sets, see `ucl.datasets.load`.

    Raises:
        InputError: the source of one of the user's objects is not known.
    """
    images, why = "", ""
    try:
        images = fingerprint(config.dataset, root, config.image_size)
        why = "" if images else "its images are not on this machine"
    except (InputError, OSError) as error:
        why = f"its images can't be read ({error})"
    return Version(images, user_objects.source_hash(config.own.values())), why


def fingerprint(name: str, root: str | Path | None = None, image_size: int | None = None) -> str:
    """The fingerprint of a data set's images; "" if the data set is not on this machine.

    A data set is read once per process, and again only if its files change: of a function of the user, its sources, and
    not the images that it reads. Nothing is downloaded.

    Args:
        name, root, image_size: see `ucl.datasets.load`.

    Raises:
        InputError, OSError: the images can't be read.
    """
    stamp = datasets.stamp(name, root, image_size)
    if stamp and (stamp, image_size) not in _fingerprints:
        _fingerprints[stamp, image_size] = datasets.load(name, root, image_size).fingerprint
    return _fingerprints.get((stamp, image_size), "")


def choose(path: Path, config: Config, stored: list[tuple[Path, Record]], current: Version, why_unknown: str) -> Found:
    """Choose the record of an experiment that counts, or else the one that is outdated.

    If the images are not on this machine, the names of the data sets are compared instead. If the user's objects cannot
    be imported, their sources are not compared.

    Args:
        path: file of a new record of the current version.
        config: the experiment.
        stored: its records of all versions, with their files.
        current, why_unknown: what `current_version` returned.
    """
    named = [(file, record) for file, record in stored if _is_same_name(record.config.dataset, config.dataset)]
    counting = [
        (file, record)
        for file, record in (stored if current.images else named)
        if current.images in ("", record.version.images) and current.source in ("", record.version.source)
    ]
    if counting:
        file, record = max(counting, key=lambda pair: pair[1].rank)
        note = f"{config.dataset}: {why_unknown}; its records are used without a comparison" if why_unknown else ""
        return Found(file, record, note=note)
    if not named:
        return Found(path)
    outdated = max((record for _, record in named), key=lambda record: record.rank)
    stored_version = outdated.version
    if current.images not in ("", stored_version.images):
        whose, of, then, now = config.dataset, "other images", stored_version.images, current.images
    else:
        whose, of = ", ".join(config.own.values()), "other sources"
        then, now = stored_version.source, current.source
    note = f"{whose}: the stored record is of {of} ({then or 'unknown'}); a run measures the current ones ({now})"
    return Found(path, outdated=outdated, note=note)


def _is_same_name(one: str, other: str) -> bool:
    return one == other or os.path.abspath(one) == os.path.abspath(other)


def report(found: Iterable[Found]) -> None:
    """Issue the notes of lookups as warnings, each once."""
    for note in dict.fromkeys(one.note for one in found if one.note):
        # The warning's origin is this line, so that Python shows equal notes of different callers only once.
        warnings.warn(note, stacklevel=1)
