"""Available memory: that of the machine, or that of the control group that a cluster or container sets up."""

from pathlib import Path

import pytest

from ucl.machine.available import available_bytes, in_gib


def system(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    800 kB\n"


def test_the_machine_tells_what_is_available(tmp_path):
    assert available_bytes(system(tmp_path, proc__meminfo=MEMINFO)) == 800 * 1024


def test_where_nothing_tells_it_is_unknown(tmp_path):
    assert available_bytes(tmp_path) is None


@pytest.mark.parametrize("limited", ["job", "user", "nowhere"])
def test_the_narrowest_group_decides_and_its_cache_gives_way(tmp_path, limited):
    """Control groups of version 2, as systemd makes them: a job in a user's group."""
    system(tmp_path, proc__meminfo=MEMINFO)
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/cgroup").write_text("0::/user/job\n")
    group = tmp_path / "sys/fs/cgroup"
    for name in ("user", "user/job"):
        (group / name).mkdir(parents=True, exist_ok=True)
        (group / name / "memory.max").write_text("300000\n" if Path(name).name == limited else "max\n")
        (group / name / "memory.current").write_text("250000\n")
        (group / name / "memory.stat").write_text("anon 1\nactive_file 7\ninactive_file 40000\nfile 9\n")
    assert available_bytes(tmp_path) == (800 * 1024 if limited == "nowhere" else 300000 - 250000 + 40007)


def test_groups_of_version_1_are_read(tmp_path):
    system(tmp_path, proc__meminfo=MEMINFO)
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/cgroup").write_text("7:cpu,cpuacct:/slurm\n4:memory:/slurm/job_1\n0::/\n")
    for name, most in {"": 2**63 - 4096, "slurm": 2**63 - 4096, "slurm/job_1": 5000}.items():
        folder = tmp_path / "sys/fs/cgroup/memory" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.limit_in_bytes").write_text(f"{most}\n")
        (folder / "memory.usage_in_bytes").write_text("9000\n")
    assert available_bytes(tmp_path) == 0


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="needs Linux")
def test_this_machine_has_less_than_it_was_built_with():
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert 0 < available_bytes() < total


def test_bytes_are_written_in_gib_with_two_digits_or_thousands():
    assert [in_gib(n) for n in (2**29, 3 * 2**29, 2**40)] == ["0.50 GiB", "1.5 GiB", "1,024.0 GiB"]
