"""Versions: the images and the code that a result was measured with, compared with those on this machine.

Three things identify a result: its experiment (`Config.experiment`), the fingerprint of its images
(`ImageDataset.fingerprint`) and, for objects of the user's own such as a score, a hash of their source. A stored result
counts for a run only if all three are equal. Results of other versions are kept too, but never averaged with it.
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
from ucl.records.record import Record, Version, hash_of
from ucl.streams import datasets

_fingerprints: dict[tuple[str, int | None], str] = {}  # by stamp and image size, until the process ends


class Found(NamedTuple):
    """The records of an experiment in a store, compared with the versions on this machine.

    Attributes:
        path: file of the record, or of a new record of the version on this machine.
        record: the record that counts for a run on this machine, or None.
        other: if `record` is None, the latest record of other images or of another version of own objects, or None.
        error: why a file with the name of this record can't be read as one, or "".
        remark: a warning for the user in one line, or "": there are records of other images or of another version of
            own objects that do not count, or a comparison was not possible.
    """

    path: Path
    record: Record | None = None
    other: Record | None = None
    error: str = ""
    remark: str = ""

    @property
    def there(self) -> bool:
        """Whether there is a record, or a damaged file that only the user may delete."""
        return self.record is not None or bool(self.error)


def here(config: Config, root: str | Path | None = None) -> tuple[Version, str]:
    """The version of a run on this machine, and the reason why its images are unknown ("" if they are known).

    Args:
        config: the experiment.
        root: folder of the data sets, see `ucl.datasets.load`.
    """
    images, why = "", ""
    try:
        images = fingerprint(config.dataset, root, config.image_size)
        why = "" if images else "its images are not on this machine"
    except (InputError, OSError) as error:
        why = f"its images can't be read ({error})"
    return Version(images, hash_of(own_sources(config))), why


def fingerprint(name: str, root: str | Path | None = None, image_size: int | None = None) -> str:
    """The fingerprint of a data set's images; "" if the data set is not on this machine.

    A data set is read once per process, and again only if its files change: of a function of the user's own, the file
    that it is in, and not the images that it reads. Nothing is downloaded.

    Args:
        name, root, image_size: see `ucl.datasets.load`.

    Raises:
        InputError, OSError: the images can't be read.
    """
    stamp = datasets.stamp(name, root, image_size)
    if stamp and (stamp, image_size) not in _fingerprints:
        _fingerprints[stamp, image_size] = datasets.load(name, root, image_size).fingerprint
    return _fingerprints.get((stamp, image_size), "")


def choose(path: Path, config: Config, stored: list[tuple[Path, Record]], here: Version, why_unknown: str) -> Found:
    """Choose the record of an experiment that counts for a run on this machine.

    If the images are not on this machine, the name of the data set is compared instead. If the version of the own
    objects is unknown, here or in a record of an older package, it is not compared. Of several records the one with the
    most kinds of further tests (`ucl.config.FURTHER_TESTS`) counts, of equal ones the latest; a record without such a
    version counts only if there is no other.

    Args:
        path: file of a new record of this version.
        config: the experiment.
        stored: its records of all versions, at least one, with their files.
        here, why_unknown: what the function `here` returned.
    """

    def is_of_this_name(record: Record) -> bool:
        spelled = {record.config.dataset, config.dataset}
        return len(spelled) == 1 or len({os.path.abspath(name) for name in spelled}) == 1

    def counts(record: Record) -> bool:
        images = record.version.images == here.images if here.images else is_of_this_name(record)
        return images and (not here.source or record.version.source in (here.source, ""))

    def last(some: list[tuple[Path, Record]]) -> tuple[Path, Record]:
        """The latest one of the source here, if there are some, with the most kinds of further tests."""

        def rank(pair: tuple[Path, Record]) -> tuple:
            record = pair[1]
            return record.version.source == here.source, len(record.config.further_tests), record.date

        return max(some, key=rank)

    counting = [pair for pair in stored if counts(pair[1])]
    if counting:
        path, record = last(counting)
        remarks = [f"{config.dataset}: {why_unknown}; its records are used without a comparison"] if why_unknown else []
        if record.version.source != here.source:
            unknown = "the version of its source is unknown; its records are used without a comparison"
            remarks.append(f"{', '.join(config.own.values())}: {unknown}")
        return Found(path, record, remark="; ".join(remarks))
    others = [pair for pair in stored if is_of_this_name(pair[1])]
    if not others:
        return Found(path)
    other = last(others)[1]
    there = other.version
    if here.images not in ("", there.images):
        what = f"{config.dataset}: the stored records are of other images (fingerprint {there.images})"
        current = f"the current ones ({here.images})"
    else:
        whose = "this " + "".join(config.own) if len(config.own) == 1 else "these"
        what = f"{', '.join(config.own.values())}: the stored records are of another version of {whose}"
        what, current = f"{what} (source {there.source})", f"the current one ({here.source})"
    return Found(path, other=other, remark=f"{what}; a run measures {current}, and the stored records are kept")


def report(found: Iterable[Found]) -> None:
    """Issue the remarks of lookups as warnings, each remark once."""
    for remark in dict.fromkeys(one.remark for one in found if one.remark):
        # The warning's origin is this line, so that Python shows equal remarks of different callers only once.
        warnings.warn(remark, stacklevel=1)


def own_sources(config: Config) -> dict[str, str]:
    """The hash of the source of each of the user's own objects in a run, by its field of `Config`.

    See `ucl.user_objects.source_hash`. Objects of this package and of installed packages, and those that cannot be
    imported, are absent.
    """
    found = {field: user_objects.source_hash([path]) for field, path in config.own.items()}
    return {field: source for field, source in found.items() if source}
