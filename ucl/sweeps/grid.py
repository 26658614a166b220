"""Grids of runs: fields of `Config`, some of them with several values, in Python, JSON or YAML."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ucl.config import Config, unique
from ucl.errors import InputError, one_line
from ucl.fields import known_fields


def grid(source: str | Path | Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> list[Config]:
    """The runs of a grid: all combinations of the values of its fields.

    ``grid({"dataset": "digits", "score": ["BI", "EN"], "seed": [0, 1, 2]})`` gives six runs.

    Args:
        source: fields of `Config`, each with a value or several (a list, tuple, range or array); or several such
            mappings, whose runs follow each other; or the path of a JSON or YAML file with one or several mappings, or
            of a record.

    Returns:
        The runs, each experiment once (two scores under reservoir sampling are one experiment). Within a mapping the
        seed changes last, so that a sweep that is stopped early leaves complete grids with fewer seeds.

    Raises:
        InputError: a file cannot be read, or a field or a value cannot be used; the message names them.
    """
    if not isinstance(source, (str, Path)):
        mappings = [source] if isinstance(source, Mapping) else source
        return unique(config for fields in mappings for config in _combinations(fields))
    try:
        return grid(_read(source))
    except (OSError, ValueError) as error:
        reason = str(error) if isinstance(error, InputError) else f"can't be read as JSON or YAML ({error})"
        raise InputError("config", str(source), reason) from None


def _read(file: str | Path) -> list[dict[str, Any]]:
    """The mappings in a file; of a record, the fields of its configuration that are not at their defaults."""
    text = Path(file).read_text(encoding="utf-8")
    with suppress(ValueError):  # JSON is YAML, but a record is long, and the reader of YAML slow.
        content = json.loads(text)
        if isinstance(content, dict) and {"config", "accuracy"} <= content.keys():
            return [Config.from_json(json.dumps(content["config"])).explicit]
    content = from_yaml(text)
    content = content if isinstance(content, list) else [content]
    if not content or not all(isinstance(fields, dict) for fields in content):
        raise InputError("", None, "give a mapping of Config fields, a list of them, or a record")
    return content


def from_yaml(text: str, name: str = "") -> Any:
    """The value of a text in YAML 1.2; what is quoted there remains text.

    Raises:
        InputError: the text, reported as the value of `name`, is not valid YAML, or a mapping has a key twice.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        why = f"line {error.problem_mark.line + 1}: {error.problem}"
    except YAMLError as error:
        why = one_line(error)
    raise InputError(name, text, f"not valid YAML ({why}); a text may need quotes")


def _combinations(fields: Mapping[str, Any]) -> Iterable[Config]:
    """The runs of one mapping; the seed changes last, because `itertools.product` changes its first factor last."""
    names = sorted(known_fields(dict(fields)), key=lambda name: name != "seed")
    values = [_values(name, fields[name]) for name in names]
    return (Config(**dict(zip(names, run, strict=True))) for run in itertools.product(*values))


def _values(name: str, given: Any) -> list[Any]:
    given = given.tolist() if hasattr(given, "tolist") else given  # an array or a number of numpy
    values = list(given) if isinstance(given, (list, tuple, range)) else [given]
    if not values or any(isinstance(value, (list, tuple, Mapping)) for value in values):
        raise InputError(name, given, "give a value, or a list of one or several values")
    return values


def shard(configs: Iterable[Config], i: int, n: int) -> list[Config]:
    """The i-th of n parts of a grid, i from 1 to n; each experiment is in exactly one part."""
    return unique(configs)[i - 1 :: n]
