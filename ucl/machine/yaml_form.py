"""Values that are written in YAML, with the numbers and truth values of YAML 1.2."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar

from ucl.errors import one_line

# The core schema of YAML 1.2. PyYAML reads YAML 1.1: 010 is eight, 1:30 is ninety, 1e-3 is a text, and no is false.
_PLAIN = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?\d+|0o[0-7]+|0x[\da-fA-F]+",
    "float": r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    "merge": "<<",
}


def from_yaml(text: str) -> Any:
    """The value of a text in YAML; what is quoted there remains text.

    Raises:
        ValueError: the text is not valid YAML, a mapping has a key twice, or a value that aliases repeat has aliases
            itself; the message is one line.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {}
        is_anchored = False

        def compose_node(self, parent: Any, index: Any) -> Any:
            event, before = self.peek_event(), self.is_anchored
            if before and isinstance(event, yaml.AliasEvent):  # A short text could become a huge value.
                raise yaml.MarkedYAMLError(problem="an alias in a value with an anchor", problem_mark=event.start_mark)
            self.is_anchored = before or event.anchor is not None
            node = super().compose_node(parent, index)
            self.is_anchored = before
            return node

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            check_unique_keys(k.value for k, _ in node.value if isinstance(k, yaml.ScalarNode) and k.value != "<<")
            return node

        def construct_yaml_int(self, node: Any) -> int:
            text = self.construct_scalar(node)
            return int(text, 0 if text[:2] in ("0o", "0x") else 10)

    for name, pattern in _PLAIN.items():
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(f"({pattern})$", re.ASCII), None)
    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
    try:
        return yaml.load(text, Loader)
    except KeyError as error:
        raise ValueError(f"{error} is not a value of its tag") from None
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
