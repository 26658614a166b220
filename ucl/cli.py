"""The command `ucl`: runs, data sets. Its flags are made from `Config`, so that they never differ from it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import ucl
from ucl.config import Config, InputError
from ucl.records import Record, RecordStore

_RUN = """Learn a stream of images once, task after task, and measure what is remembered.

A record of the run (accuracy matrix, memory contents, timings, versions, data fingerprint) is written to the store; a
run that is there already is not run again."""

_EXAMPLES = """examples:
  ucl run                                              the paper's method on digits, in half a minute
  ucl run --dataset bloodcell --memory-size 160        BloodCell, Bregman Information, bottom-k
  ucl run --dataset cifar10 --population reservoir     experience replay (ER)
  ucl run --dataset cifar10 --population class-balanced  class-balancing reservoir sampling (CBR)
  ucl run --dataset path/to/folder --score mine:score  your images, your score
  ucl run --config runs/some-record.json --seed 7      the run of a record, with another seed"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SystemExit(_refuse(self.prog, message))


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=110)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    parser = _parser()
    options = parser.parse_args(arguments)
    warnings.showwarning = lambda message, *_, **__: print(f"ucl: {message}", file=sys.stderr)
    try:
        return options.command(options)
    except InputError as error:
        name = f"--{error.name.replace('_', '-')} {error.value}: " if error.name else ""
        return _refuse(f"ucl {options.verb}", name + error.reason)
    except KeyboardInterrupt:
        print(f"ucl {options.verb}: interrupted; what was finished is kept", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"ucl {options.verb}: {error}", file=sys.stderr)
        return 1


def _refuse(who: str, message: str) -> int:
    print(f"{who}: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="ucl", description=ucl.__doc__, formatter_class=_Help)
    parser.add_argument("--version", action="version", version=f"ucl {ucl.__version__}")
    verbs = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    run = verbs.add_parser(
        "run", help="one run, one record", description=_RUN, epilog=_EXAMPLES, formatter_class=_Help, allow_abbrev=False
    )
    run.set_defaults(command=_run, verb="run")
    _add_config_flags(run.add_argument_group("the experiment"))
    where = run.add_argument_group("where and how")
    where.add_argument("--config", metavar="FILE", help="start from a JSON file of fields, or from a record's run")
    where.add_argument("--published-code", action="store_true", help="all choices of the published implementation")
    where.add_argument("--store", default="runs", metavar="DIR", help="folder of the records (default: %(default)s)")
    _add_machine_flags(where)

    data = verbs.add_parser("data", help="the data sets", description="The data sets.", formatter_class=_Help)
    actions = data.add_subparsers(required=True, metavar="ACTION", parser_class=_Parser)
    for name, command, text in (
        ("list", _data_list, "the data sets known by name, and which are here"),
        ("get", _data_check, "download what is not here, checksummed, and tell what is in it"),
        ("check", _data_check, "read data sets whole and tell what is in them"),
    ):
        action = actions.add_parser(name, help=text, description=text.capitalize() + ".", formatter_class=_Help)
        action.set_defaults(command=command, verb=f"data {name}")
        if name != "list":
            action.add_argument("dataset", nargs="+", help="a name, or a path to an .npz or a folder of class folders")
        _add_data_flag(action)
    return parser


def _add_data_flag(parser: Any) -> None:
    parser.add_argument("--data", metavar="DIR", help="folder of the data sets (default: $UCL_DATA, else ~/.cache/ucl)")


def _add_machine_flags(parser: Any) -> None:
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, …; auto takes a GPU where there is one")
    parser.add_argument("--threads", type=_threads, metavar="N", help="processor threads (default: all cores)")
    _add_data_flag(parser)


def _threads(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text}: give a whole number from 1 to 1024")
    return int(text)


def _add_config_flags(group: Any) -> None:
    for field in dataclasses.fields(Config):
        flag = f"--{field.name.replace('_', '-')}"
        text = field.metadata["help"]
        if field.metadata["choices"]:
            text += ". " + "; ".join(f"{k}: {v}" if v else k for k, v in field.metadata["choices"].items())
        if field.default is not None:
            text += f" (default: {field.default})"
        text = text.replace("%", "%%")
        kind = str(field.type).removesuffix(" | None")
        if kind == "bool":
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            metavar = {"int": "N", "float": "X", "str": "NAME"}[kind]
            group.add_argument(
                flag, type={"int": _integer, "float": _number, "str": str}[kind], metavar=metavar, help=text
            )


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None


def _config(options: argparse.Namespace) -> Config:
    given = {f.name: getattr(options, f.name) for f in dataclasses.fields(Config)}
    given = {name: value for name, value in given.items() if value is not None}
    base: dict[str, Any] = {}
    if options.config:
        try:
            base = json.loads(Path(options.config).read_text(encoding="utf-8"))
            base = base.get("config", base)
        except (OSError, ValueError, AttributeError) as error:
            raise InputError("config", options.config, f"no JSON file of Config fields or record ({error})") from None
    if options.published_code:
        base = {**base, **ucl.paper.PUBLISHED_CODE}
    return Config.from_json(json.dumps({**base, **given}))


def _run(options: argparse.Namespace) -> int:
    import torch

    config = _config(options)
    sys.path.insert(0, "")  # a score of the user's own lies in the working folder
    store = RecordStore(options.store)
    if config in store:
        record = store.load(config)
        print(f"measured already on {record.date[:10]}; delete the record to measure anew")
    else:
        store.check_writable()
        if options.threads:
            torch.set_num_threads(options.threads)
        record = ucl.run(config, device=options.device, root=options.data)
        store.save(record)
    print(summary(record))
    print(store.path(config))
    return 0


def summary(record: Record) -> str:
    """A run's result in a few lines, for a terminal."""
    config = record.config
    memory = "" if config.method == "finetune" else f", memory {config.memory_size}"
    lines = [
        f"{config.dataset}, {config.n_tasks} tasks{memory}, {config.label}, seed {config.seed}",
        "accuracy in per cent on each task (columns) after each task (rows):",
        *(" ".join("     ." if a != a else f"{100 * a:6.1f}" for a in row) for row in record.accuracy),
        f"last accuracy {100 * record.last_accuracy:.1f} %"
        + (" (balanced)" if config.balanced_accuracy else "")
        + f", last forgetting {100 * record.last_forgetting:.1f} %",
        f"{record.timing['total']:.1f} s, {1000 * record.seconds_per_batch:.1f} ms a batch, "
        f"peak memory {record.environment['peak_memory_mib']} MiB",
    ]
    return "\n".join(lines)


def _data_list(options: argparse.Namespace) -> int:
    print(f"data folder: {ucl.datasets.data_folder(options.data)}")
    print(f"{'name':16} {'classes':>7} {'pixels':>7}  {'source':16} here")
    for row in ucl.datasets.available(options.data):
        here = row.where or f"no: ucl data get {row.name}"
        print(f"{row.name:16} {row.classes:7} {row.image_size:7}  {row.source:16} {here}")
    print(
        "-lt after a name makes it long-tailed; a path to an .npz in MedMNIST's layout or to a folder of class folders"
    )
    print("works wherever a name does.")
    return 0


def _data_check(options: argparse.Namespace) -> int:
    for name in options.dataset:
        facts = ucl.datasets.check(name, options.data)
        print(", ".join(f"{key} {value}" for key, value in facts.items() if value != 0))
    return 0
