"""Grids of your own runs: fields of `Config`, some of them with several values, in Python, JSON or YAML."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ucl.config import Config, unique
from ucl.errors import InputError
from ucl.fields import fields as config_fields
from ucl.fields import known_fields
from ucl.machine.files import read_text
from ucl.machine.yaml_form import from_yaml, once
from ucl.records import checks

MOST_RUNS = 100_000
N_FIELDS_OF_A_RECORD = 20  # `Config` has had more since the first record; nobody types so many


def grid(source: str | Path | Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> list[Config]:
    """The runs of a grid: all combinations of the values of its fields.

    ``grid({"dataset": "digits", "score": ["BI", "EN"], "seed": [0, 1, 2]})`` gives six runs.

    Args:
        source: fields of `Config`, each with a value or several (a list, tuple, range or array); or several such
            mappings, whose runs follow each other; or the path of a JSON or YAML file (.yaml, .yml) with one or several
            mappings, or of a record.

    Returns:
        The runs, each experiment once (two scores under reservoir sampling are one experiment). Within a mapping the
        seed changes last, so that a sweep that is stopped early leaves complete grids with fewer seeds.

    Raises:
        InputError: a file cannot be read, or a field or a value cannot be used; the message names them.
    """
    if isinstance(source, (str, Path)):
        try:
            return _runs(_read(str(source)))
        except InputError as error:
            reason = error.reason if error.name == "config" else str(error)
            raise InputError("config", str(source), reason) from None
    return _runs([source] if isinstance(source, Mapping) else list(source))


def _runs(grids: Iterable[Mapping[str, Any]]) -> list[Config]:
    return unique(itertools.chain.from_iterable(map(_combinations, grids)))


def _combinations(fields: Mapping[str, Any]) -> list[Config]:
    """The runs of one mapping; the seed changes last (`itertools.product` changes its first factor last)."""
    seed_first = sorted(known_fields(dict(fields)).items(), key=lambda field: field[0] != "seed")
    names = [name for name, _ in seed_first]
    given = [value.tolist() if hasattr(value, "tolist") else value for _, value in seed_first]  # of an array
    values = [list(value) if isinstance(value, (list, tuple, range)) else [value] for value in given]
    for name, value, of_field in zip(names, given, values, strict=True):
        if not of_field or any(isinstance(one, (list, tuple, Mapping)) for one in of_field):
            raise InputError(name, value, "give a value, or a list of one or several values")
    n_runs = math.prod(map(len, values))
    if n_runs > MOST_RUNS:
        raise InputError("config", "", f"has {n_runs:,} combinations; at most {MOST_RUNS:,} are allowed")
    return [_run(dict(zip(names, run, strict=True))) for run in itertools.product(*values)]


def _run(fields: dict[str, Any]) -> Config:
    """The run of some fields, whose values may be numpy's.

    A record has all fields, whether they were set or not: those at their default do not count as set explicitly.
    """
    text = json.dumps(fields, default=_plain)
    try:
        return Config.from_json(text) if len(fields) >= N_FIELDS_OF_A_RECORD else Config(**json.loads(text))
    except InputError as error:
        # Without brackets, YAML reads several values as one text.
        if isinstance(error.value, str) and re.fullmatch(r"[\w.+-]+(, *[\w.+-]+)+", error.value):
            raise InputError(error.name, error.value, f"give several values as a list: [{error.value}]") from None
        raise


def _read(file: str) -> list[dict[str, Any]]:
    """The mappings in a JSON or YAML file that contains one mapping, a list of mappings, or a record.

    Raises:
        InputError: the file cannot be read, or contains something else.
    """
    kind = "YAML" if Path(file).suffix in (".yaml", ".yml") else "JSON"
    try:
        text = read_text(file)
        found = from_yaml(text) if kind == "YAML" else json.loads(text, object_pairs_hook=_object)
    except FileNotFoundError:
        reason = "no such file; give a JSON or YAML file of Config fields, or a record"
        raise InputError("config", file, reason) from None
    except (OSError, ValueError, RecursionError) as error:
        named = Path(file).suffix in (".json", ".yaml", ".yml") or isinstance(error, OSError)
        other = "" if named else "; the name of a YAML file ends in .yaml"
        raise InputError("config", file, f"can't be read as {kind} ({error}){other}") from None
    found = found if isinstance(found, list) else [found]
    found = [_config_of(fields) if isinstance(fields, dict) else fields for fields in found]
    if not found or not all(isinstance(fields, dict) for fields in found):
        what = "a YAML mapping" if kind == "YAML" else "a JSON object"
        raise InputError("config", file, f"give {what} of Config fields, a list of them, or a record")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object from its keys and values, each key once."""
    once(key for key, _ in pairs)
    return dict(pairs)


def _config_of(found: dict[str, Any]) -> Any:
    """The mapping itself, or the configuration in a record.

    Raises:
        InputError: fields of `Config` are beside `config`, where they would have no effect.
    """
    if "config" not in found:
        return found
    # Two results of a record have the names of fields.
    results = {*checks.ATTRIBUTES, *checks.OPTIONAL} if "format" in found else set()
    if beside := [field.name for field in config_fields() if field.name in found.keys() - results]:
        reason = "beside config, where they have no effect; put them into config, or give ucl sweep --set"
        raise InputError("config", "", f"has {', '.join(beside)} {reason}")
    return found["config"]


def _plain(value: Any) -> Any:
    """A value that JSON can represent: a Python number for a numpy scalar, otherwise the text of the value."""
    return value.item() if hasattr(value, "item") else str(value)


def as_configs(configs: Iterable[Config]) -> list[Config]:
    """The configurations as a list.

    Raises:
        InputError: the argument is something else.
    """
    found = list(configs) if isinstance(configs, Iterable) else [None]
    if not all(isinstance(config, Config) for config in found):
        raise InputError("configs", configs, "give a list of ucl.Config")
    return found


def shard(configs: Iterable[Config], i: int, n: int) -> list[Config]:
    """The i-th of n parts of a grid, i from 1 to n; each experiment is in exactly one part."""
    return unique(configs)[i - 1 :: n]
