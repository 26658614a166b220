"""The verbs `ucl data list`, `get` and `check`: functions from parsed options to an exit code."""

from __future__ import annotations

import argparse
from typing import Any

import ucl
from ucl.cli.arguments import as_typed, refuse
from ucl.errors import InputError, UserExit, exits_are_failures
from ucl.records.words import AT_ENDS, MOST_CLASSES


def data_list(options: argparse.Namespace) -> int:
    """Print the data sets known by name, with their files."""
    print(f"data folder: {ucl.datasets.data_folder(options.data)}")
    print(f"{'name':16} {'classes':>7} {'pixels':>7}  {'source':16} here")
    for row in ucl.datasets.available(options.data):
        here = row.where or f"no: ucl data get {row.name}"
        print(f"{row.name:16} {row.classes:7} {row.image_size:7}  {row.source:16} {here}")
    print("A name with -lt at the end is the long-tailed version. Instead of a name you can give a path to an .npz in")
    print("MedMNIST's layout or to a folder of class folders, or your own function as package.module:function.")
    return 0


def data_check(options: argparse.Namespace) -> int:
    """Print the contents of data sets, which are downloaded first if they are not here.

    All data sets are read, also after one that cannot be used; returns 2 if there was such a one.
    """
    code = 0
    for name in options.dataset:
        try:
            with exits_are_failures():
                facts = ucl.datasets.check(name, options.data, options.image_size)
        except InputError as error:
            of = "" if error.name == "dataset" else f"{name}: "
            what = as_typed(error, options.verb) if error.value != "" else "'': "
            code = refuse(options.verb.prog, f"{of}{what}{error.reason}")
        except UserExit as error:
            code = refuse(options.verb.prog, f"{name}: {error}")
        except OSError as error:
            code = refuse(options.verb.prog, f"{name}: can't be read ({error})")
        else:
            print("\n".join([*_contents(facts), *(f"  {remark}" for remark in facts["remarks"])]))
    return code


def _contents(facts: dict[str, Any]) -> list[str]:
    """The facts about a data set in one line, those of its classes in a line each, and what is equal in two places."""
    found = {key: value for key, value in facts.items() if not isinstance(value, list) and value != 0}
    repeated = {key: found.pop(key) for key in ucl.datasets.REPEATED if key in found}
    lines = [", ".join(f"{key} {value}" for key, value in found.items())]
    for split, prefix in {"training": "", "test": "test ", "validation": "val "}.items():
        for what, key in {"images": f"{prefix}class sizes", "patients": f"{prefix}class patients"}.items():
            if facts.get(key):
                lines.append(f"  {split} {what} per class{_sizes_in_words(facts[key])}")
    lines += [f"  warning: {what}: {n}" for what, n in repeated.items()]
    return lines


def _sizes_in_words(sizes: list[tuple[str, int]]) -> str:
    """All class sizes; of many classes one size if all are equal, otherwise the smallest and the largest."""
    if len(sizes) <= MOST_CLASSES:
        return f": {_in_words(sizes)}"
    by_size = sorted(sizes, key=lambda size: size[1])
    if by_size[0][1] == by_size[-1][1]:
        return f": {by_size[0][1]}"
    smallest, largest = _in_words(by_size[:AT_ENDS]), _in_words(by_size[: -AT_ENDS - 1 : -1])
    return f", smallest first: {smallest}; largest first: {largest}"


def _in_words(sizes: list[tuple[str, int]]) -> str:
    return ", ".join(f"{name}: {size}" for name, size in sizes)
