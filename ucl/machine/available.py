"""The memory that is available to a process on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def available_bytes(root: str | Path = "/") -> int | None:
    """Available memory in bytes: the smaller of the machine's and that of the process's control groups.

    Args:
        root: folder that contains ``proc`` and ``sys``.

    Returns:
        None if the system does not report it (it is not Linux).
    """
    found = [*_of_the_machine(Path(root)), *_of_control_groups(Path(root))]
    return min(found, default=None)


def in_gib(n: int) -> str:
    """A number of bytes as text: "1.5 GiB"."""
    return f"{n / 2**30:,.2f} GiB" if n < 2**30 else f"{n / 2**30:,.1f} GiB"


def _of_the_machine(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _of_control_groups(root: Path) -> Iterator[int]:
    """Available bytes of this process's control group and of its parents; page cache counts as available."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        limit, usage = ("limit_in_bytes", "usage_in_bytes") if controllers else ("max", "current")
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            most, taken = _lines(folder / f"memory.{limit}"), _lines(folder / f"memory.{usage}")
            if most and taken and most[0].isdecimal():
                cache = (row.split() for row in _lines(folder / "memory.stat"))
                spare = sum(int(n) for name, n in cache if name in ("active_file", "inactive_file"))
                yield max(0, int(most[0]) - int(taken[0]) + spare)
            if folder == top:
                break


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
