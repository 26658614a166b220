"""The hostile inputs of `soak.py`: each is accepted, or refused in one line.

No input may make the program hang, write a file or run code.
"""

import contextlib
import dataclasses
import io
import json
import math
import os
import random
import resource
import signal
import string
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ucl import Config, InputError, RecordStore, datasets
from ucl.cli.main import main
from ucl.records import Record

SECONDS = 30  # The limit for a case on a busy machine; a case usually takes milliseconds.
MEMORY = 4 * 2**30  # In bytes. A case that asks for more fails, instead of exhausting this machine.
WORDS = [
    *(
        "",
        " ",
        "a\nb",
        "ünï",
        "日本",
        "\ud800",
        "\x07",
        "nan",
        "-1",
        "1e999",
        "9" * 400,
        "a" * 5000,
        "None",
        "[1, 2]",
        "{}",
    ),
    *("../..", "~", "/dev/null", "/dev/zero", "--", "-", ":", "a:", ":b", "0x1f", "1_000", "²"),
    *("sys:exit", "math:sqrt", "nosuch:thing", "ucl:run"),
]
NUMBERS = [
    *(0, -1, 1, 2**31, 2**63, 10**400, -(10**400), True, False),
    *(0.1, 3.5, -0.0, 1e-320, 1e308, math.inf, -math.inf, math.nan),
]


class Hung(BaseException):
    """A case took longer than `SECONDS`; not an Exception, which the code under test might catch."""


def word(draw: random.Random) -> str:
    if draw.random() < 0.7:
        return draw.choice(WORDS)
    return "".join(draw.choices(string.printable + "äß€😀\u202e\u0000", k=draw.randint(1, 30)))


def value(draw: random.Random, depth: int = 0) -> object:
    """Return any value that JSON can express, or a numpy number."""
    kinds: list[Callable[[], object]] = [lambda: draw.choice(NUMBERS), lambda: word(draw), lambda: None]
    if depth < 3:
        kinds += [lambda: [value(draw, depth + 1) for _ in range(draw.randint(0, 3))]]
        kinds += [lambda: {word(draw): value(draw, depth + 1) for _ in range(draw.randint(0, 3))}]
    return draw.choice(kinds)()


def damaged(draw: random.Random, content: bytes) -> bytes:
    """Flip bits, cut the content short, leave out or repeat a part, or insert something."""
    at = draw.randrange(len(content))
    to = min(len(content), at + draw.choice([1, 2, 10, 1000]))
    kind = draw.randrange(6)
    if kind < 2:
        return content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]
    if kind == 2:
        return content[:at]
    if kind == 3:
        return content[:at] + content[to:]
    if kind == 4:
        return content[:to] + content[at:]
    between = draw.choice([b"\0", b"\xff", b"\xed\xa0\x80", b"9" * 400, b"[" * 100_000, b"NaN"])
    return content[:at] + between + content[at:]


def special(draw: random.Random, path: Path) -> None:
    """Put something that is not a readable file at a path: a pipe, a folder, a device, a broken link or nothing."""
    path.unlink(missing_ok=True)
    kind = draw.choice(["pipe", "folder", "device", "loop", "nothing", "dangling"])
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind in ("device", "loop", "dangling"):
        path.symlink_to({"device": "/dev/zero", "loop": path, "dangling": path.with_name("nowhere")}[kind])


def refused(action: Callable[[], object]) -> tuple[object, list[str]]:
    """Return the result of an action, or None if it was refused, and what is wrong with the refusal."""
    try:
        return action(), []
    except InputError as error:
        text = str(error)
        return None, [] if text and "\n" not in text else [f"refused in other than one line: {text[:300]!r}"]
    except Hung:
        return None, [f"hangs: {SECONDS} s"]
    except BaseException as error:
        where = "".join(traceback.format_tb(error.__traceback__)[-2:])
        return None, [f"{type(error).__name__}: {str(error)[:200]!r}\n{where}"]


# The kinds


def config(draw: random.Random, folder: Path, work: Path) -> list[str]:
    names = [f.name for f in dataclasses.fields(Config)]
    choices = {f.name: list(f.metadata["choices"] or []) for f in dataclasses.fields(Config)}
    fields: dict[str, object] = {}
    for _ in range(draw.randint(1, 4)):
        name = word(draw) if draw.random() < 0.05 else draw.choice(names)
        good = draw.random() < 0.3 and choices.get(name)
        fields[name] = draw.choice(choices[name]) if good else value(draw)
    text = json.dumps(fields)
    if draw.random() < 0.2:
        text = damaged(draw, text.encode()).decode(errors="replace")
    how = draw.randrange(3)
    if how == 0:
        made, wrong = refused(lambda: Config.from_json(text))
    elif how == 1:
        made, wrong = refused(lambda: Config(**{k: v for k, v in fields.items() if k in names}))
    else:
        made, wrong = refused(lambda: Config().replace(**fields))
    if isinstance(made, Config):
        again, lost = refused(lambda: Config.from_json(made.to_json()))
        wrong += lost
        if again is not None and (again != made or again.key != made.key):
            wrong += [f"not the same after to_json and from_json: {made}"]
        name = os.fsencode(RecordStore(folder).path(made).name)
        if len(name) > 255 or b"/" in name:
            wrong += [f"its record can't have the name {name[:300]!r}"]
    return [f"{what} (of {fields})"[:900] for what in wrong]


def record(draw: random.Random, folder: Path, work: Path) -> list[str]:
    good, other = sorted((work / "undisturbed").glob("*.json"))[:2]
    store = RecordStore(folder / "runs")
    store.folder.mkdir()
    path = store.folder / good.name
    original, beside = (Record.from_json(file.read_text()) for file in (good, other))
    (store.folder / other.name).write_bytes(other.read_bytes())
    content = good.read_bytes()
    kind = draw.randrange(10)
    if kind < 5:
        path.write_bytes(damaged(draw, content))
    elif kind < 8:  # Put another value anywhere inside.
        raw = json.loads(content)
        at: object = raw
        while True:
            key = draw.choice(list(at)) if isinstance(at, dict) else draw.randrange(len(at))
            if isinstance(at[key], (dict, list)) and at[key] and draw.random() < 0.8:
                at = at[key]
                continue
            if draw.random() < 0.1:
                del at[key]
            else:
                at[key] = value(draw)
            break
        path.write_text(json.dumps(raw))
    elif kind == 8:
        path.write_bytes(other.read_bytes())  # This is the record of another experiment.
    else:
        special(draw, path)

    def same(found: Record) -> bool:
        text, wrong_text = refused(found.to_json)
        return not wrong_text and text == original.to_json()

    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        everything, wrong = refused(lambda: list(store))
        one, wrong_alone = refused(lambda: store.load(original.config))
    wrong += wrong_alone
    if one is not None and not same(one):
        wrong += ["load: another record than was written"]
    for found in everything or []:
        if found.config.key != beside.config.key and not same(found):
            wrong += ["read with the others: another record than was written"]
    if everything is not None and beside.config.key not in {r.config.key for r in everything}:
        wrong += ["the other record was not read"]
    if draw.random() < 0.05:
        wrong += _command(["status", "--config", str(work / "methods.json"), "--store", str(store.folder)], folder)
    kept = path.is_file() and path.read_bytes()
    return [f"{what} (kind {kind}, {_difference(content, kept)})" for what in wrong]


def _difference(a: bytes, b: bytes | bool) -> str:
    if isinstance(b, bool):
        return "no file"
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return f"from byte {at}: {a[max(0, at - 30) : at + 30]!r} was written, {b[max(0, at - 30) : at + 30]!r} is read"


class _Touch:
    """An object that writes a file when it is unpickled, which must never happen."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable, tuple]:
        return os.mkdir, (str(self.path),)


def archive(draw: random.Random, folder: Path, work: Path) -> list[str]:
    path = folder / "some.npz"
    arrays = dict(np.load(work / "some.npz"))
    kind = draw.randrange(8)
    if kind < 3:
        path.write_bytes(damaged(draw, (work / "some.npz").read_bytes()))
    elif kind < 6:  # Replace one array by another.
        key = draw.choice([*arrays, "val_images", "val_labels", "classes", "more"])
        n, side = draw.choice([0, 1, 6, 24]), draw.choice([0, 1, 24, 25, 28])
        image_shape = draw.choice([(side, side), (side, side, 3), (side, side + 1), (side, side, 4)])
        shape = draw.choice([(), (n,), (n, 1), (n, 2), (n, *image_shape)])
        dtypes = ["u1", "i1", "i8", "u8", ">i4", "f4", "f8", "?", "U3", "S3", "c16", "M8[s]", "O", [("a", "u1")]]
        dtype = draw.choice(dtypes)
        array = np.zeros(shape, dtype)
        if dtype == "O":
            array = np.array([_Touch(folder / "unpickled")], dtype=object)
        elif draw.random() < 0.5 and array.size and np.dtype(dtype).kind in "iuf":
            array.flat[draw.randrange(array.size)] = 127 if array.dtype.kind == "u" else -3
        if draw.random() < 0.2:
            arrays.pop(key, None)
        else:
            arrays[key] = array
        draw.choice([np.savez, np.savez_compressed])(path, **arrays)
    elif kind == 6:  # The header does not match the content, or declares far too much.
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
            for key, array in arrays.items():
                header = {"descr": draw.choice(["|u1", "<i8", "|O"]), "fortran_order": False, "shape": array.shape}
                if key == "train_images":
                    header["shape"] = (draw.choice([10**6, 10**9, 10**18, -1]), 25, 25)
                with file.open(f"{key}.npy", "w") as member:
                    np.lib.format.write_array_header_1_0(member, header)
                    member.write(array.tobytes())
                    for _ in range(draw.choice([0, 600]) if key == "train_images" else 0):  # up to 600 MB of zeros
                        member.write(bytes(2**20))
    else:
        special(draw, path)
    data, wrong = refused(lambda: datasets.load(str(path)))
    if (folder / "unpickled").exists():
        wrong += ["a pickle was loaded"]
    if kind < 3 and data is not None and data.fingerprint != datasets.load(str(work / "some.npz")).fingerprint:
        wrong += ["other images than were written"]
    return [f"{what} (kind {kind}, {path.stat().st_size if path.is_file() else 'no'} bytes)" for what in wrong]


def image(draw: random.Random, folder: Path, work: Path) -> list[str]:
    root = folder / "images"
    pixels = np.random.default_rng(draw.randrange(2**32)).integers(0, 256, (10, 12, 3), dtype=np.uint8)
    for label in ("cat", "dog"):
        (root / label).mkdir(parents=True)
        for i in range(2):
            Image.fromarray(pixels).save(root / label / f"{i}.png")
    suffix = draw.choice([".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".eps", ".txt", ".PNG"])
    path = root / draw.choice(["cat", "dog"]) / f"x{suffix}"
    kind, file = draw.randrange(8), io.BytesIO()
    mode = draw.choice(["RGB", "L", "P", "1", "CMYK", "RGBA", "I", "F", "I;16", "LAB", "YCbCr"])
    format_ = draw.choice(["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "EPS", "PPM", "PDF", "ICO"])
    with contextlib.suppress(Exception):  # not every format has every mode
        given = Image.fromarray(pixels)
        given = Image.new(mode, (12, 10)) if mode in ("I", "F", "I;16", "LAB") else given.convert(mode)
        given.save(file, format_)
    content = file.getvalue() or b"no image"
    if kind < 3:
        path.write_bytes(content)
    elif kind < 5:
        path.write_bytes(damaged(draw, content))
    elif kind == 5:  # Ghostscript would run this code.
        path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n%%EOF\n")
    elif kind == 6:  # A header declares sizes that no memory can hold, and almost no data follow.
        size = draw.choice([(50_000, 50_000), (2**31 - 1, 1), (1, 2**31 - 1), (0, 0), (13_000, 13_000)])
        png = io.BytesIO()
        Image.fromarray(pixels).save(png, "PNG")
        ihdr = b"IHDR" + size[0].to_bytes(4, "big") + size[1].to_bytes(4, "big") + b"\x08\x02\0\0\0"
        crc = zlib.crc32(ihdr).to_bytes(4, "big")
        path.write_bytes(png.getvalue()[:12] + ihdr + crc + png.getvalue()[33:])
    else:
        special(draw, path)
    data, wrong = refused(lambda: datasets.load(str(root)))
    if (work / "ghostscript-ran").exists():
        (work / "ghostscript-ran").unlink()
        wrong += ["Ghostscript was run"]
    if data is not None and (data.n_classes, data.image_size) != (2, 32):
        wrong += [f"{data.n_classes} classes of {data.image_size} pixels"]
    return [f"{what} (kind {kind}, {mode} as {format_} in {path.name})" for what in wrong]


def command(draw: random.Random, folder: Path, work: Path) -> list[str]:
    data, here = str(work / "some.npz"), folder / "in" / "here"
    here.mkdir(parents=True)
    os.mkfifo(folder / "pipe")
    run = ["run", "--dataset", data, "--method", "finetune", "--n-tasks", "1", "--batch-size", "24"]
    lines = [
        [*run, "--seed", "3", "--store", "mine"],
        [*run, "--config", str(work / "0.json"), "--device", "cpu", "--threads", "1", "--lr", "0.1"],
        ["sweep", "--config", str(work / "0.json"), "--set", "method", "finetune", "--jobs", "1", "--store", "mine"],
        ["status", "table1", "bloodcell", "--seeds", "0", "1", "--shard", "1/3", "--store", "mine"],
        ["status", "--config", str(work / "methods.json"), "--store", str(work / "undisturbed"), "--device", "cpu"],
        ["reproduce", "nosuch", "--jobs", "2", "-p", "nosuch", "1", "--output", "pages"],
        ["benchmark", "--methods", "nosuch", "--memory-sizes", "6", "--repeats", "1", "--dataset", data],
        ["data", "check", data],
        ["--version"],
    ]
    line = draw.choice(lines)
    for _ in range(draw.choice([1, 1, 1, 2])):
        at = draw.randrange(len(line))
        kind = draw.randrange(6)
        if kind == 0 and line[at]:  # A typing error.
            i = draw.randrange(len(line[at]))
            line[at] = line[at][:i] + draw.choice(["", "x", line[at][i] * 2]) + line[at][i + 1 :]
        elif kind == 1:
            del line[at]
        elif kind == 2:
            line.insert(at, line[at])
        elif kind == 3:
            line.insert(at, word(draw))
        elif kind == 4:
            line[at] = str(draw.choice([value(draw), str(folder / "pipe"), str(folder), *NUMBERS]))
        else:
            line[at] = word(draw)
        if not line:
            break
    line = [word_.replace("\0", "") for word_ in line]  # A command line cannot hold NUL.
    with contextlib.chdir(here) if hasattr(contextlib, "chdir") else _inside(here):
        return [f"{what} (ucl {line})"[:900] for what in _command(line, folder)]


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _command(line: list[str], folder: Path) -> list[str]:
    """Return what is wrong with the response of `ucl` to a command line.

    Allowed are exit code 0, exit code 2 with one line and nothing written, and exit code 1 with a few lines.
    """
    before = sorted(folder.rglob("*"))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(line)
        except SystemExit as end:
            code = end.code
        except Hung:
            return [f"hangs: {SECONDS} s"]
        except BaseException as error:
            where = "".join(traceback.format_tb(error.__traceback__)[-2:])
            return [f"{type(error).__name__}: {str(error)[:200]!r}\n{where}"]
    said, wrong = err.getvalue(), []
    if code not in (0, 1, 2):
        wrong += [f"exit code {code}: {said[:300]!r}"]
    if code == 2 and (said.count("\n") != 1 or not said.startswith("ucl")):
        wrong += [f"refused in {said.count(chr(10))} lines: {said[:400]!r}"]
    if code == 2 and sorted(folder.rglob("*")) != before:
        wrong += [f"refused, and yet there is {sorted({*folder.rglob('*')} - {*before})[:3]}"]
    if code == 1 and not said and not out.getvalue():
        wrong += ["failed without a word"]
    if "Traceback" in said + out.getvalue():
        wrong += [f"a traceback: {said[-600:]!r}"]
    return wrong


def _case(kind: Callable[[random.Random, Path, Path], list[str]]) -> Callable:
    def case(draw: random.Random, folder: Path, work: Path) -> tuple[int, list[str]]:
        def hung(*_: object) -> None:
            raise Hung

        if "FAKE_GS" not in os.environ:  # Do this once per lane.
            _beware(work)
        signal.signal(signal.SIGALRM, hung)
        signal.setitimer(signal.ITIMER_REAL, SECONDS, SECONDS)  # It repeats, because a case tries several things.
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return 1, kind(draw, folder, work)
        except Hung:
            return 1, [f"hangs: {SECONDS} s"]
        except BaseException:
            return 1, [f"the case itself failed:\n{traceback.format_exc()[-900:]}"]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    return case


def _beware(work: Path) -> None:
    """Limit the memory, hide data elsewhere, and install a fake `gs` that shows whether Ghostscript is run."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    (work / "bin").mkdir(exist_ok=True)
    (work / "bin" / "gs").write_text(f"#!/bin/sh\ntouch {work}/ghostscript-ran\n")
    (work / "bin" / "gs").chmod(0o755)
    os.environ["PATH"] = f"{work}/bin:{os.environ['PATH']}"
    os.environ.update(FAKE_GS="1", UCL_DATA=str(work / "no-data"), HOME=str(work / "home"))
    os.environ.update({name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy")})


CASES = {kind.__name__: _case(kind) for kind in (config, record, archive, image, command)}
