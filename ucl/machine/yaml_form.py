"""Values that are written in YAML, with the numbers and truth values of YAML 1.2."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar

from ucl.errors import one_line

# PyYAML reads YAML 1.1: 010 is eight, 1:30 is ninety, 1e-3 is a text, and no is false.
_PLAIN = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?\d+",
    "float": r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    "merge": "<<",
}


def from_yaml(text: str) -> Any:
    """The value of a text in YAML; what is quoted there remains text.

    Raises:
        ValueError: the text is not valid YAML, or a mapping has a key twice; the message is one line.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {}

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            check_unique_keys(k.value for k, _ in node.value if isinstance(k, yaml.ScalarNode) and k.value != "<<")
            return node

    for name, pattern in _PLAIN.items():
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(f"({pattern})$", re.ASCII), None)
    Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(loader.construct_scalar(node)))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(one_line(error, most=None).replace(' in "<unicode string>",', " in")) from None


def check_unique_keys(keys: Iterable[str]) -> None:
    """Check that no key of a mapping is there twice: YAML and JSON readers would drop all its values but the last.

    Raises:
        ValueError: a key is; the message names it.
    """
    for key, times in Counter(keys).items():
        if times > 1:
            raise ValueError(f"{key} is there {times} times; give it once, with a list of its values")
