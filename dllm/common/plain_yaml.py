"""YAML of somebody else: read as plain data within bounds, or refused in a sentence that names the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from dllm.common.errors import UserError, first_line, in_words

LONGEST_YAML = 10_000_000  # bytes of a file; a run's own settings take a few kB
MOST_REPEATED = 1000  # entries that aliases (*name) stand for, beside those that are written
_PLAIN = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "seq", "map", "merge"))


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """A date is a text."""

    yaml_implicit_resolvers = {  # noqa: RUF012  as PyYAML has it
        first: [(tag, pattern) for tag, pattern in rules if tag != "tag:yaml.org,2002:timestamp"]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def plain_yaml(file: Path, most: int | None = None) -> Any:
    """What a file holds: mappings whose keys are texts or numbers, lists, texts, numbers, true, false, null.

    most: entries at most (None: as many as ``LONGEST_YAML`` bytes hold). Raises UserError for anything else, and
    OSError where there is no file.
    """
    if file.exists() and not file.is_file():
        raise UserError(f"{file} is no file. Put one there.")
    data = file.read_bytes()
    if len(data) > LONGEST_YAML:
        raise UserError(f"{file} has {len(data)} bytes, and settings have at most {LONGEST_YAML}. Make it shorter.")
    try:
        loader = _Loader(data.decode())
        node = loader.get_single_node()
        if node is None:
            return None
        nodes = set[int]()
        entries = _entries(node, {}, nodes, file)
        if entries - len(nodes) > MOST_REPEATED or entries > (most or entries):
            limit = f"{most} entries" if most and len(nodes) > most else f"{MOST_REPEATED} entries by aliases (*name)"
            raise UserError(f"{file} holds more than {limit}. Write what a run needs.")
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        place = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{file}{place} is no YAML: {error.problem}. Mend that line.") from None
    except RecursionError:
        raise UserError(f"{file} is nested too deeply. Write what a run needs.") from None
    except (ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{file} is no YAML: {in_words(error) or first_line(error)}. Mend it.") from None


def _entries(node: yaml.Node, counts: dict[int, int | None], nodes: set[int], file: Path) -> int:
    """How many entries a node stands for, aliases written out. known: of nodes seen before; None: around this one."""
    if id(node) in counts:
        if (count := counts[id(node)]) is None:
            raise UserError(f"{file}, line {node.start_mark.line + 1} holds itself by an alias. Write it out.")
        return count
    if node.tag not in _PLAIN:
        raise UserError(
            f"{file}, line {node.start_mark.line + 1} has the tag {node.tag!r}, and settings are plain. Drop it."
        )
    counts[id(node)], count = None, 1
    nodes.add(id(node))
    if not isinstance(node, yaml.ScalarNode):
        pairs = isinstance(node, yaml.MappingNode)
        if any(not isinstance(key, yaml.ScalarNode) for key, _ in (node.value if pairs else ())):
            raise UserError(f"{file}, line {node.start_mark.line + 1} has a list for a name below it. Write a name.")
        keys = [key.value for key, _ in node.value] if pairs else []
        if len(set(keys)) < len(keys):
            twice = next(key for at, key in enumerate(keys) if key in keys[:at])
            raise UserError(f"{file}, line {node.start_mark.line + 1} holds {twice} twice below it. Drop one.")
        for child in [each for pair in node.value for each in pair] if pairs else node.value:
            count += _entries(child, counts, nodes, file)
    counts[id(node)] = count
    return count
