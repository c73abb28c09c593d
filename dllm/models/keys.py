"""What the keys of a checkpoint's JSON files may hold: type and range, checked before anything is built from them."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from dllm.common.kinds import is_whole
from dllm.errors import UserError

NEEDED: Any = object()  # the default of a key that has none
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlevel = 2


@dataclass(frozen=True, slots=True)
class Key:
    """One key. ``rule`` continues "must be"; null and absence both mean ``default``.

    size: the key counts rows or columns of stored tensors, so that their headers bound it.
    """

    rule: str
    fits: Callable[[Any], bool]
    default: Any = None
    size: bool = False


def shown(value: Any) -> str:
    """A value out of a file as it may stand in a sentence: quoted, control characters escaped, cut where long."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return _SHORT.repr(value)


def whole(low: int, high: int, default: Any = None, size: bool = False) -> Key:
    """An integer in [low, high]; a float, a string or a truth value is none."""
    rule = f"an integer from {low} to {high}"
    return Key(rule, lambda value: is_whole(value) and low <= value <= high, default, size)


def real(low: float, high: float, default: float | None = None) -> Key:
    """A finite number in [low, high]."""

    def fits(value: Any) -> bool:
        number = is_whole(value) or (isinstance(value, float) and isfinite(value))
        return number and low <= value <= high

    return Key(f"a number from {low:g} to {high:g}", fits, default)


def flag(default: bool | None = False) -> Key:
    return Key("true or false", lambda value: isinstance(value, bool), default)


def only(*allowed: Any) -> Key:
    """One of the values that published checkpoints of the family use; none given: null alone."""
    rule = " or ".join(map(shown, allowed)) or "null"
    return Key(f"{rule}, as in every published checkpoint of this family",
               lambda value: any(type(value) is type(one) and value == one for one in allowed))  # fmt: skip


def ids(high: int) -> Key:
    """A token id in [0, high], or a list of such."""

    def fits(value: Any) -> bool:
        return all(is_whole(one) and 0 <= one <= high for one in (value if isinstance(value, list) else [value]))

    return Key(f"a token id from 0 to {high} or a list of them", fits)


def read_keys(table: Mapping[str, Key], content: Mapping[str, Any], file: str) -> dict[str, Any]:
    """The table's keys with their values or defaults. Raises UserError naming file, key, value and rule."""
    given = {key: content.get(key) for key in table}
    missing = [key for key, one in table.items() if given[key] is None and one.default is NEEDED]
    if missing:
        raise UserError(f"{file} lacks {', '.join(missing)}, which this architecture needs to be built.")
    for key, value in given.items():
        if value is not None and not table[key].fits(value):
            raise UserError(
                f"{file} has {key}={shown(value)}, which must be {table[key].rule}. Copy the checkpoint's own {file} "
                "again."
            )
    return {key: table[key].default if value is None else value for key, value in given.items()}
