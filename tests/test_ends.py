"""Ends and interruptions of runs, sweeps and notebooks: the reason is printed, and nothing is lost or left behind."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import nbformat
import psutil
import pytest
from conftest import run

import ucl
from ucl import RecordStore, SweepError
from ucl.cli.main import main
from ucl.sweeps.sweep import sweep

pytestmark = pytest.mark.usefixtures("small_networks")


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return value


def is_alive(pid):
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def write_score(tiny, here):
    """Write the module `users_score` with a function `score` of the given body; `run.json` uses it."""

    def write(before="", body="return logits.mean((0, 2))"):
        (here / "users_score.py").write_text(f"import os, sys\n{before}\ndef score(logits):\n    {body}\n")
        config = tiny.replace(population="uncertainty", score="users_score:score")
        (here / "run.json").write_text(config.to_json())

    return write


@pytest.mark.parametrize(("place", "line"), [("before", "line 2"), ("body", "line 4")])
def test_a_module_that_ends_the_program_is_a_failed_run(write_score, cli, place, line):
    write_score(**{place: "sys.exit(0)"})
    for verb in ("sweep", "run"):
        code, out, err = cli(verb, "--config", "run.json", "--device", "cpu", "--threads", "1")
        assert code in (1, 2) and out == "" and f"users_score.py, {line}" in err and "SystemExit" in err
    assert not list(Path("runs").glob("*.json"))


@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_a_result_that_cannot_be_stored_is_reported_in_one_line(tiny, here, monkeypatch, cli, verb):
    """The disk becomes full during the run, after the store was found writable."""

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("ucl.records.store.write_whole", fail)
    (here / "run.json").write_text(tiny.to_json())
    code, out, err = cli(verb, "--config", "run.json", "--device", "cpu", "--threads", "1")
    assert (code, out) == (1, "") and "No space left on device" in err.splitlines()[-1]
    assert [path.suffix for path in (here / "runs").iterdir()] == [".pt"]  # the checkpoint of the last task


@pytest.mark.parametrize("arguments", [["data", "list"], ["data", "list", "--help"], ["--version"]], ids=" ".join)
def test_an_output_that_cannot_be_written_is_answered_before_python_ends(monkeypatch, capsys, arguments):
    reader, writer = os.pipe()
    os.close(reader)
    for output, answer in ("/dev/full", (1, True)), (writer, (0, False)):
        with open(output, "w") as stdout:  # Closing writes the rest again, as the end of Python does.
            monkeypatch.setattr(sys, "stdout", stdout)
            code, err = main(arguments), capsys.readouterr().err
        assert (code, "No space left on device\n" in err) == answer and err.count("\n") == answer[1]


@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_that_is_dead_is_named_in_bounded_time(tiny, tmp_path):
    distributed = pytest.importorskip("distributed")
    file = tmp_path / "scheduler.json"
    code = "from distributed.cli.dask_scheduler import main; main()"
    options = ["--port", "0", "--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(file)]

    def announced():
        with suppress(OSError, ValueError):  # The file is not there yet, or not complete.
            return json.loads(file.read_text())["address"]

    with subprocess.Popen([sys.executable, "-c", code, *options], stderr=subprocess.DEVNULL) as scheduler:
        try:
            address = wait_for(announced)
            with distributed.Client(address, set_as_default=False) as client:
                RecordStore(tmp_path / "runs").save(run(tiny))
                scheduler.kill()
                begin, seeds = time.monotonic(), [tiny, tiny.replace(seed=1)]
                with pytest.raises(SweepError, match="scheduler") as raised:
                    sweep(seeds, tmp_path / "runs", client.get_executor(), progress=False)
                assert time.monotonic() - begin < 60
            assert [r.config for r in raised.value.records] == seeds[:1] and len(raised.value.failures) == 1
        finally:
            scheduler.kill()


def test_notebooks_end_with_their_command(tmp_path):
    """The notebook is one long call that no thread of the kernel can interrupt."""
    code = "import os, pathlib\npathlib.Path('pid').write_text(str(os.getpid()))\nsum(range(10**13))"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)], metadata={"kernelspec": kernel})
    pid, pages = tmp_path / "notebooks" / "pid", tmp_path / "pages"
    pid.parent.mkdir()
    pages.mkdir()
    nbformat.write(notebook, pid.parent / "endless.ipynb")
    (pages / "endless.ipynb").write_text("of an earlier day")
    (tmp_path / "random.py").write_text("raise RuntimeError('imported in place of the module of Python')")
    command = [sys.executable, "-m", "ucl", "reproduce", "notebooks/endless.ipynb", "--output", "pages"]
    how = dict(stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    env = {**os.environ, "PYTHONPATH": str(Path(ucl.__file__).parents[1])}
    with subprocess.Popen(command, env=env, **how) as process:
        begun = set()
        try:
            kernel = int(wait_for(lambda: pid.exists() and pid.read_text(), 300))
            begun = {child.pid for child in psutil.Process(process.pid).children(recursive=True)}
            assert kernel in begun and len(begun) >= 2
            process.terminate()
            process.wait(60)
            wait_for(lambda: not any(map(is_alive, begun)), 60)
        finally:
            process.kill()
            for child in filter(is_alive, begun):
                os.kill(child, signal.SIGKILL)
        errors = process.stderr.read()
    assert (pages / "endless.ipynb").read_text() == "of an earlier day" and not list(pages.glob("*.html"))
    assert process.returncode == 143 and "SIGTERM" in errors and errors.count("\n") == 1


@pytest.fixture
def usual_signals():
    """Those of a command in the foreground; afterwards, no process of another test inherits that they are ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("verb", ["run", "sweep"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_ends_on_a_signal_with_a_line(write_score, cli, verb, number):
    write_score(body=f"os.kill(os.getpid(), {int(number)})")
    code, _, err = cli(verb, "--config", "run.json", "--device", "cpu", "--threads", "1")
    last = err.splitlines()[-1]
    assert code == 128 + number and last.startswith("ucl ") and ("SIGTERM" in last) == (number == signal.SIGTERM)
    assert not list(Path("runs").iterdir())


@pytest.mark.usefixtures("usual_signals")
def test_a_command_that_is_interrupted_while_it_reads_its_flags_ends_with_a_line(monkeypatch, capsys):
    monkeypatch.setattr("ucl.cli.main.parser", lambda: os.kill(os.getpid(), signal.SIGINT))
    assert main(["run"]) == 130
    assert capsys.readouterr().err.count("\n") == 1
