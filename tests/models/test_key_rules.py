"""What is taken for each key of a checkpoint's JSON files is what is written:
``python -m tests.models.test_key_rules`` writes it anew.

A bound or a default that changes is another checkpoint that loads, or the same one as another network: a line of the
difference to look at. Defaults are held by the published classes in test_config_tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import yaml

import dllm.models
from dllm.models.keys import AS_ABSENT, REQUIRED, KeyRule
from dllm.parts import FAMILIES

TABLE = Path(__file__).parents[1] / "data" / "key_rules.yaml"


def written() -> dict[str, dict[str, Any]]:
    """By family its keys and what else its row says in plain values; by name the tables of other files."""
    families = {name: {**_plain(family), **_rules(family.keys)} for name, family in sorted(FAMILIES.items())}
    return {**families, **dict(sorted(_other_tables()))}


def _plain(family: Any) -> dict[str, Any]:
    """Fields of a family that are no default and hold words and numbers alone."""
    values = {field.name: (getattr(family, field.name), field.default) for field in fields(family)}
    plain = {name: value for name, (value, default) in values.items() if value != default}
    return {f"({name})": repr(value) for name, value in plain.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, bool | int | str)


def _rules(rules: Mapping[str, KeyRule]) -> dict[str, str]:
    """By key: the rule, the default, what null means, and whether the key counts rows of tensors."""
    return {key: _sentence(rule) for key, rule in sorted(rules.items())}


def _sentence(rule: KeyRule) -> str:
    default, null = ("required" if value is REQUIRED else repr(value) for value in (rule.default, rule.null))
    null_words = "" if rule.null is AS_ABSENT else f"; null {null}"
    return f"{rule.rule}; default {default}{null_words}{'; size' * rule.size}"


def _other_tables() -> Iterator[tuple[str, dict[str, str]]]:
    for module in walk_packages(dllm.models.__path__, "dllm.models."):
        names = vars(import_module(module.name)) if "famil" not in module.name else {}
        for name, value in names.items():
            if _is_table(value):
                yield name, _rules(value)
            elif isinstance(value, dict) and value and all(map(_is_table, value.values())):
                yield from ((f"{name}[{kind}]", _rules(rules)) for kind, rules in value.items())


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(rule, KeyRule) for rule in value.values())


def test_what_is_taken_is_what_is_written() -> None:
    assert written() == yaml.safe_load(TABLE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    TABLE.write_text(yaml.safe_dump(written(), sort_keys=False, width=120), encoding="utf-8")
