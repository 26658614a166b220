"""Versions: which images and which code a result is of, and whether these are the ones that are here.

Three things identify a result: its experiment (`Config.experiment`), the fingerprint of its images
(`ImageDataset.fingerprint`) and, for a score of the user's own, a hash of its source. A stored result stands for a run
only where all three agree; results of other versions are kept beside it, and never averaged with it.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ucl import own
from ucl.config import Config
from ucl.errors import InputError
from ucl.records.record import Record, Version
from ucl.streams import datasets

_fingerprints: dict[tuple[str, int | None], str] = {}  # by stamp and image size, for the life of the process


class Found(NamedTuple):
    """What a store holds of an experiment.

    Attributes:
        path: of the record's file, or where a new record would be.
        record: the record that stands for a run here; None without one.
        other: where `record` is None, the last record of other images or of another version of a score.
        error: why the file at `path` can't be read as this record; "" where it can.
        remark: what a user should know, in one line: records of other images or of another version of a score are there
            and do not count, or a comparison was not possible.
    """

    path: Path
    record: Record | None = None
    other: Record | None = None
    error: str = ""
    remark: str = ""

    @property
    def there(self) -> bool:
        """Whether the place is taken, by the record or by a damaged file that only the user may delete."""
        return self.record is not None or bool(self.error)


def here(config: Config, root: str | Path | None = None) -> tuple[Version, str]:
    """The version that a run on this machine would have, and why its images are not known, where they are not.

    A data set is read once per process, and again only when its files change. Nothing is downloaded.

    Args:
        config: the experiment.
        root: folder of the data sets, see `ucl.datasets.load`.
    """
    images, why = "", ""
    try:
        stamp = datasets.stamp(config.dataset, root, config.image_size)
        known = stamp, config.image_size
        if stamp and known not in _fingerprints:
            _fingerprints[known] = datasets.load(config.dataset, root, config.image_size).fingerprint
        images, why = (_fingerprints[known], "") if stamp else ("", "its images are not on this machine")
    except (InputError, OSError) as error:
        why = f"its images can't be read ({error})"
    return Version(images, own_source(config)), why


def choose(path: Path, config: Config, stored: list[tuple[Path, Record]], here: Version, why_unknown: str) -> Found:
    """Which record of an experiment stands for a run here.

    Where the images are not here, a record counts that names its data set alike; where the version of a score is not
    known, here or in a record of an older package, any does. Of several records the last one counts.

    Args:
        path: where a record of the experiment is first looked for.
        config: the experiment.
        stored: its records of any version, with their files; at least one.
        here, why_unknown: see `here`.
    """

    def is_of_this_name(record: Record) -> bool:
        spelled = {record.config.dataset, config.dataset}
        return len(spelled) == 1 or len({os.path.abspath(name) for name in spelled}) == 1

    def counts(record: Record) -> bool:
        images = record.version.images == here.images if here.images else is_of_this_name(record)
        return images and (not here.score or record.version.score in (here.score, ""))

    def last(some: list[tuple[Path, Record]]) -> tuple[Path, Record]:
        return max(some, key=lambda pair: (pair[1].version.score == here.score, pair[1].date))

    counting = [pair for pair in stored if counts(pair[1])]
    if counting:
        path, record = last(counting)
        remarks = [f"{config.dataset}: {why_unknown}; its records count without a comparison"] if why_unknown else []
        if record.version.score != here.score:
            remarks.append(f"{config.score}: the version of its source is not known; its records count without it")
        return Found(path, record, remark="; ".join(remarks))
    others = [pair for pair in stored if is_of_this_name(pair[1])]
    if not others:
        return Found(path)
    other = last(others)[1]
    there = other.version
    if here.images not in ("", there.images):
        what = (
            f"{config.dataset}: the stored records are of other images (fingerprint {there.images}) than the ones here"
        )
        ours = here.images
    else:
        what = (
            f"{config.score}: the stored records are of another source of this score ({there.score}) than the one here"
        )
        ours = here.score
    return Found(path, other=other, remark=f"{what} ({ours}); a run measures the one here, and both are kept apart")


def tell(found: Iterable[Found]) -> None:
    """Warn of what was found that a user should know, each remark once."""
    for remark in dict.fromkeys(one.remark for one in found if one.remark):
        warnings.warn(remark, stacklevel=1)  # from here, so that Python shows equal remarks of any caller once


def own_source(config: Config) -> str:
    """The hash of the source of a run's own score; "" for a score of the package, and where there is no source.

    It covers the file of the module that the dotted path names, and nothing that this module imports: after a change
    of an imported module, delete the records or rename the score. The module is not executed.
    """
    module = config.score.partition(":")[0] if config.uses_scores and ":" in config.score else "ucl"
    if module.split(".")[0] == "ucl":
        return ""
    file = own.source_file(module)
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file else ""
    except OSError:
        return ""
