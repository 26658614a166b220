"""The memory that is available to a process on this machine."""

from __future__ import annotations

from pathlib import Path


def available_bytes(root: str | Path = "/") -> int | None:
    """Available memory in bytes: the smaller of the machine's and that of the process's control groups (version 2).

    Args:
        root: folder that contains ``proc`` and ``sys``.

    Returns:
        None if the system does not report it (it is not Linux).
    """
    lines = _lines(Path(root) / "proc/meminfo")
    limits = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    top = Path(root) / "sys/fs/cgroup"
    for line in _lines(Path(root) / "proc/self/cgroup"):
        group = top / line.rpartition(":")[2].lstrip("/")
        for folder in [group, *group.parents][: len(group.relative_to(top).parts) + 1]:  # a parent may have the limit
            most, taken = _lines(folder / "memory.max"), _lines(folder / "memory.current")
            if most and taken and most[0].isdecimal():
                cache = (row.split() for row in _lines(folder / "memory.stat"))
                spare = sum(int(n) for name, n in cache if name in ("active_file", "inactive_file"))
                limits.append(max(0, int(most[0]) - int(taken[0]) + spare))
    return min(limits, default=None)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
