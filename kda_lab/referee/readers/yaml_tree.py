"""YAML with the line of every value: plain trees alone, no aliases, no key twice, nothing executed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from kda_lab.errors import Reason
from kda_lab.referee.readers.text import YAML_BYTES, complaint, read_text, refuse

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
# YAML reads 1_000 as 1000, 010 as 8 and 0x10 as 16: a table means none of these.
_DECIMAL = re.compile(
    r"[+-]?(?:0|[1-9]\d*|(?:0|[1-9]\d*)?\.\d*(?:[eE][+-]?\d+)?|(?:0|[1-9]\d*)\.?\d*[eE][+-]?\d+|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)"
)
_SCALARS = {f"tag:yaml.org,2002:{t}" for t in ("null", "bool", "int", "float", "str")}
Place = tuple[str | int, ...]


@dataclass
class Tree:
    """A value of a YAML file, and where its parts stand."""

    path: Path
    value: Any
    lines: dict[Place, int] = field(default_factory=dict)
    """Keys and indices from the root to the line."""

    def line(self, place: Sequence[str | int]) -> int:
        """Line of a part, or of the nearest part around it that the file has."""
        for end in range(len(place), -1, -1):
            if tuple(place[:end]) in self.lines:
                return self.lines[tuple(place[:end])]
        return 1


def complaints(tree: Tree, error: ValidationError, levels: Callable[[Place], Place] = tuple) -> list[Reason]:
    """What a model has against the content of a plan, each with file, line and dotted place.

    Args:
        levels: the place in the file of a place in the model, where the two differ.
    """
    reasons = []
    for item in error.errors(include_url=False):
        located, given, allowed = complaint(item)
        place = levels(located)
        field = ".".join(map(str, place)) or "plan"
        reasons.append(Reason(f"{tree.path}:{tree.line(place)}: {field}", given, allowed))
    return reasons


def read_tree(path: Path) -> Tree:
    """Content of a YAML file.

    Raises:
        RefereeError: unreadable, malformed, cut off, an alias, a key twice, a key that is no text, or another type
            than mapping, list, text, number, truth value and null.
    """
    text = read_text(path, YAML_BYTES)
    try:
        for event in yaml.parse(text, Loader=_Loader):
            if isinstance(event, yaml.AliasEvent):
                refuse(path, event.start_mark.line + 1, "alias", f"'*{event.anchor}'", "values written out")
        loader = _Loader(text)
        node = loader.get_single_node()
        tree = Tree(path, None)
        tree.value = _value(tree, loader, node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        refuse(path, mark.line + 1 if mark else 1, "YAML", f"{error.problem}", "one well-formed YAML document")
    except yaml.YAMLError as error:
        refuse(path, 1, "YAML", str(error).splitlines()[0], "printable text")
    except RecursionError:
        refuse(path, 1, "YAML", "nested too deeply", "one well-formed YAML document")
    return tree


def _value(tree: Tree, loader: Any, node: Any, place: Place) -> Any:
    line = node.start_mark.line + 1 if node is not None else 1
    tree.lines[place] = line
    if isinstance(node, yaml.MappingNode):
        made: dict[str, Any] = {}
        for key, child in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            if not name or name in made or key.tag == "tag:yaml.org,2002:merge":
                refuse(tree.path, key.start_mark.line + 1, "key", repr(name), "a text, each once in a mapping")
            made[name] = _value(tree, loader, child, (*place, name))
        return made
    if isinstance(node, yaml.SequenceNode):
        return [_value(tree, loader, child, (*place, index)) for index, child in enumerate(node.value)]
    return _scalar(tree, loader, node, line)


def _scalar(tree: Tree, loader: Any, node: Any, line: int) -> Any:
    if node is None:
        return None
    # Colons make a number in base 60, a date becomes an object: neither is meant in a table.
    if node.tag == "tag:yaml.org,2002:timestamp" or (":" in node.value and node.tag in _SCALARS):
        return node.value
    if node.tag not in _SCALARS:
        refuse(tree.path, line, "tag", repr(node.tag), "plain values")
    if node.tag in _NUMBERS and not _DECIMAL.fullmatch(node.value):
        remedy = "Put it in quotes where it is a text, such as a commit."
        refuse(
            tree.path, line, "value", repr(node.value), "decimal digits without underscores or leading zeros", remedy
        )
    try:
        return loader.construct_object(node)
    except ValueError:
        refuse(tree.path, line, "value", repr(node.value), "a plain value")
