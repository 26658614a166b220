"""The verbs of the command `ucl`: flags and help. The flags of a run are generated from the fields of `Config`."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import Any

import ucl
from ucl.cli import texts
from ucl.cli.arguments import OnceOnOrOff, Parameter, Parser, count, integer, number, seed, shard


def parser(asked: str) -> argparse.ArgumentParser:
    """The parser of the command. Only the verb `asked` gets its flags, so that imports for other verbs are avoided."""
    main = Parser(prog="ucl", description=ucl.__doc__)
    main.add_argument("--version", action="version", version=f"ucl {ucl.__version__}")
    verbs = main.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    for name, (text, add) in _VERBS.items():
        if name == asked:
            add(lambda text=text, name=name, **how: verbs.add_parser(name, help=text, **how))
        else:
            verbs.add_parser(name, help=text)
    return main


def _verb(parser: argparse.ArgumentParser, command: str, module: str = "ucl.cli.commands") -> None:
    """Make a function of a module the command of a parser; the module is imported when it is called."""

    def answer(options: argparse.Namespace) -> int:
        return getattr(importlib.import_module(module), command)(options)

    parser.set_defaults(command=answer, verb=parser)


def _add_run(add_parser: Callable) -> None:
    run = add_parser(description=texts.RUN, epilog=texts.RUN_EXAMPLES)
    _verb(run, "run")
    _add_config_flags(run.add_argument_group("the experiment"))
    where = run.add_argument_group("where and how")
    where.add_argument("--config", metavar="FILE", help="start from the fields in a JSON or YAML file, or a record")
    where.add_argument("--published-code", action="store_true", help="all choices of the reference implementation")
    where.add_argument("--store", default="runs", metavar="DIR", help="folder of the records (default: %(default)s)")
    _add_machine_flags(where, "all cores")


def _add_sweep(add_parser: Callable) -> None:
    sweep = _add_grid_verb(add_parser, "sweep_grid", texts.SWEEP, texts.SWEEP_EXAMPLES)
    sweep.add_argument("--jobs", type=count, default=1, metavar="N", help="runs at a time (default: %(default)s)")
    sweep.add_argument("--scheduler", metavar="ADDRESS", help="use the workers of a dask scheduler: tcp://host:port")
    _add_machine_flags(sweep, "all cores divided by --jobs; with --scheduler those of its workers")


def _add_status(add_parser: Callable) -> None:
    status = _add_grid_verb(add_parser, "status_of_grid", texts.STATUS, texts.STATUS_EXAMPLES)
    status.add_argument("--device", default="auto", help="device of the time estimates (default: %(default)s)")
    _add_data_flag(status)


def _add_reproduce(add_parser: Callable) -> None:
    reproduce = add_parser(description=texts.REPRODUCE, epilog=texts.REPRODUCE_EXAMPLES)
    _verb(reproduce, "reproduce_notebooks")
    reproduce.add_argument("notebook", nargs="*", help="names or paths of notebooks (default: all)")
    reproduce.add_argument(
        "-p",
        "--parameter",
        nargs=2,
        action=Parameter,
        default=[],
        metavar=("NAME", "VALUE"),
        help="a value for the notebooks' parameter cell, in YAML: -p seeds '[0, 1]' -p compute true",
    )
    reproduce.add_argument("--jobs", type=count, default=1, metavar="N", help="notebooks at a time (default: 1)")
    reproduce.add_argument(
        "--output", default="reproduced", metavar="DIR", help="folder of the pages (default: %(default)s)"
    )


def _add_data(add_parser: Callable) -> None:
    actions = add_parser(description="The data sets.").add_subparsers(
        required=True, metavar="ACTION", parser_class=Parser
    )
    for name, command, text, more in (
        ("list", "data_list", "list the data sets known by name, and their files", ""),
        ("get", "data_check", "download data sets that are not here yet, checksummed, and show their contents", ""),
        ("check", "data_check", "read data sets completely and show their contents", f"\n\n{texts.SPLIT}"),
    ):
        action = actions.add_parser(name, help=text, description=f"{text.capitalize()}.{more}")
        _verb(action, command, "ucl.cli.data")
        if name != "list":
            action.add_argument(
                "dataset",
                nargs="+",
                help="a name, a path to an .npz or a folder of class folders, or package.module:function",
            )
            text = "pixels per side, see ucl run --help (default: the data set's own, 32 for a folder)"
            action.add_argument("--image-size", type=integer, metavar="N", help=text)
        _add_data_flag(action)


def _later(module: str, name: str) -> Callable[[Callable], None]:
    """A function that calls a function of a module, which is imported only then."""
    return lambda add_parser: getattr(importlib.import_module(module), name)(add_parser)


_VERBS: dict[str, tuple[str, Callable[[Callable], None]]] = {
    "run": ("measure one run", _add_run),
    "sweep": ("measure many runs: a table of the paper, or your own", _add_sweep),
    "status": ("show the progress of a sweep", _add_status),
    "results": ("show the records of a store as a table", _later("ucl.cli.results", "add_results")),
    "compare": ("compare two methods by paired differences", _later("ucl.cli.results", "add_compare")),
    "plot": ("draw a picture of the records of a store", _later("ucl.cli.results", "add_plot")),
    "reproduce": ("execute notebooks and write HTML pages", _add_reproduce),
    "benchmark": ("measure the time per batch, by part", _later("ucl.cli.benchmark", "add_benchmark")),
    "data": ("list, download and check data sets", _add_data),
}


def _add_grid_verb(add_parser: Callable, command: str, description: str, epilog: str) -> Any:
    from ucl.evidence.paper import GRIDS

    tables = "\n".join(f"  {table:12} {what}" for table, what in GRIDS.items())
    parser = add_parser(description=description.replace("{tables}", tables), epilog=epilog)
    _verb(parser, command)
    parser.add_argument("table", nargs="*", help=f"any of {', '.join(GRIDS)}")
    parser.add_argument(
        "--config",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="your own runs: YAML or JSON with Config fields, each with a value or a list of values, or a record",
    )
    parser.add_argument(
        "--seeds",
        nargs="+",
        action="extend",
        type=seed,
        metavar="N",
        help="seeds of each run (default: 0 1 2; with --config those of the files)",
    )
    parser.add_argument(
        "--set",
        nargs=2,
        action=Parameter,
        default=[],
        metavar=("NAME", "VALUE"),
        help="a field of Config for all runs: --set refresh 2 rescores two stored images per class instead of all",
    )
    parser.add_argument(
        "--shard", type=shard, default=(1, 1), metavar="I/N", help="only the I-th of N equal parts, I from 1 to N"
    )
    parser.add_argument("--store", default="runs", metavar="DIR", help="folder of the records (default: %(default)s)")
    return parser


def _add_data_flag(parser: Any) -> None:
    parser.add_argument("--data", metavar="DIR", help="folder of the data sets (default: $UCL_DATA or ~/.cache/ucl)")


def _add_machine_flags(parser: Any, threads: str) -> None:
    """Add the flags of a machine; `threads` says in words how many threads a run gets by default."""
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, …; auto uses a GPU if there is one")
    parser.add_argument("--threads", type=count, metavar="N", help=f"CPU threads per run (default: {threads})")
    text = "on a GPU, repeat training steps from CUDA graphs; each graph is checked against an ordinary step"
    parser.add_argument("--graphs", action="store_true", help=text)
    text = "folder for one CSV file per run: accuracy and forgetting, one row per task, written during the run"
    parser.add_argument("--curves", metavar="DIR", help=text)
    _add_data_flag(parser)


def _add_config_flags(group: Any) -> None:
    import dataclasses

    from ucl.config import Config

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
            group.add_argument(flag, action=OnceOnOrOff, default=None, help=text)
        else:
            metavar = {"int": "N", "float": "X", "str": "NAME"}[kind]
            group.add_argument(
                flag, type={"int": integer, "float": number, "str": str}[kind], metavar=metavar, help=text
            )
