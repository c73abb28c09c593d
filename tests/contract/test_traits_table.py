"""What our parts say of themselves is what is written: ``python -m tests.contract.test_traits_table`` writes it anew.

A trait that one turns over is a line of the difference to look at, as a changed reply of the server is.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import yaml

from dllm.parts import PART_GROUPS, all_parts

TABLE = Path(__file__).parents[1] / "data" / "traits.yaml"


def declared_traits() -> dict[str, dict[str, dict[str, Any]]]:
    """By group and choice, at its defaults: the traits that have no default, and those that differ from it."""
    return {
        group: {name: _stated(part.traits) for name, part in sorted(parts.items())}
        for group, parts in zip(PART_GROUPS, all_parts(), strict=True)
    }


def _stated(traits: Any) -> dict[str, Any]:
    return {
        field.name: _plain(value)
        for field in fields(traits)
        if (value := getattr(traits, field.name)) != field.default or field.default is MISSING
    }


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    return value if isinstance(value, bool | int | str) else str(value)


def test_parts_say_of_themselves_what_is_written() -> None:
    assert declared_traits() == yaml.safe_load(TABLE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    TABLE.write_text(yaml.safe_dump(declared_traits(), sort_keys=False, width=120), encoding="utf-8")
