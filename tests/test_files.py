"""Only regular files are read: a pipe would block for ever, and a device may have no end."""

import contextlib
import os
import shutil
import signal

import pytest

import ucl
from ucl import InputError, RecordStore, load_records
from ucl.cli.main import main
from ucl.machine import files
from ucl.machine.files import read_text, regular_file
from ucl.reproduction import batch as reproduce

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")


@contextlib.contextmanager
def within(seconds):
    """Fail if the block takes longer, even while it waits for a file."""

    def stop(*_):
        pytest.fail(f"took over {seconds} seconds")  # The tested code would catch an OSError.

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def pipe(path):
    os.mkfifo(path)
    return path


def test_a_regular_file_is_read_through_a_link_too(tmp_path):
    (tmp_path / "file").write_text("text: ä", encoding="utf-8")
    (tmp_path / "link").symlink_to("file")
    assert regular_file(tmp_path / "link") == tmp_path / "link"
    assert read_text(tmp_path / "link") == "text: ä"


@pytest.mark.parametrize(
    ("kind", "reported"), [("pipe", "a named pipe"), ("folder", "a directory"), ("device", "a device")]
)
def test_anything_else_is_refused_by_its_kind(tmp_path, kind, reported):
    path = tmp_path / kind
    {"pipe": pipe, "folder": os.mkdir, "device": lambda path: path.symlink_to("/dev/zero")}[kind](path)
    for read in (regular_file, read_text):
        with within(5), pytest.raises(OSError, match=f"{kind} is {reported}, not a regular file"):
            read(path)


def test_a_text_beyond_the_bound_is_refused_unread(tmp_path):
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(files.MOST_TEXT + 1)
    with pytest.raises(OSError, match=r"huge has 67,108,865 bytes; at most 67,108,864 are allowed"):
        read_text(tmp_path / "huge")


@pytest.mark.parametrize("given", ["pipe.npz", "/dev/zero"])
def test_a_data_set_that_is_no_regular_file_is_refused(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    pipe(tmp_path / "pipe.npz")
    with (
        within(5),
        pytest.raises(InputError, match=r"can't be read \(.* is a (named pipe|device), not a regular file\)"),
    ):
        ucl.datasets.load(given)


def test_an_image_that_is_no_regular_file_is_named(tmp_path):
    from PIL import Image

    for label in "ab":
        (tmp_path / label).mkdir()
        for i in range(2):
            Image.new("L", (32, 32)).save(tmp_path / label / f"{i}.png")
    pipe(tmp_path / "a" / "9.png")
    with within(5), pytest.raises(InputError, match=r"9\.png is a named pipe"):
        ucl.datasets.load(str(tmp_path))


@pytest.mark.parametrize("given", ["pipe.json", "/dev/zero"])
@pytest.mark.parametrize("verb", ["run", "sweep", "status"])
def test_a_configuration_that_is_no_regular_file_is_refused(tmp_path, monkeypatch, capsys, verb, given):
    monkeypatch.chdir(tmp_path)
    pipe(tmp_path / "pipe.json")
    with within(5):
        assert main([verb, "--config", given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ucl {verb}: --config {given}: can't be read as JSON ({given} is a ")


def test_what_is_no_regular_file_in_a_store_is_named_and_the_others_are_read(tmp_path, tiny):
    store = RecordStore(tmp_path / "runs")
    record = ucl.run(tiny, device="cpu", progress=False)
    whole = store.save(record)
    pipe(store.folder / "a.json")
    (store.folder / "b.json").symlink_to("/dev/zero")
    with within(5), pytest.warns(UserWarning, match="is a (named pipe|device)") as reported:
        assert load_records(store.folder)["key"].tolist() == [tiny.key]
    assert {name for name in ("a.json", "b.json") for line in reported if name in str(line.message)} == {
        "a.json",
        "b.json",
    }
    whole.unlink()
    pipe(whole)
    with within(5), pytest.raises(InputError, match="is a named pipe"):
        store.load(tiny)


def test_a_notebook_that_is_no_regular_file_is_not_one(tmp_path, monkeypatch):
    shutil.copytree(reproduce.notebooks_folder(), tmp_path / "notebooks")
    monkeypatch.setattr(reproduce, "notebooks_folder", lambda: tmp_path / "notebooks")
    pipe(tmp_path / "notebooks" / "pipe.ipynb")
    with within(5):
        assert "pipe" not in [path.stem for path in reproduce.find_notebooks()]
        with pytest.raises(InputError, match="unknown notebook"):
            reproduce.find_notebooks([str(tmp_path / "notebooks" / "pipe.ipynb")])
