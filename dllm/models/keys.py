"""Rules for the keys of a checkpoint's JSON files: type and range, checked before anything is built from them."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from dllm.common.coerce import is_whole
from dllm.errors import UserError

REQUIRED: Any = object()  # the default of a key without default
AS_ABSENT: Any = object()  # what null means unless a rule says otherwise
MAX_SIZE = 2**24  # rows or columns of a matrix, and positions; up to here float32 counts exactly
MAX_LAYERS, MAX_EXPERTS = 10_000, 100_000
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlevel = 2


@dataclass(frozen=True, slots=True)
class KeyRule:
    """The rule of one key of config.json."""

    rule: str  # continues "must be" in an error
    fits: Callable[[Any], bool]  # whether a value is allowed
    default: Any = None  # what absence means
    size: bool = False  # the key counts rows or columns of stored tensors, so their headers bound it
    null: Any = AS_ABSENT  # what null means

    def given(self, content: Mapping[str, Any], key: str) -> Any:
        """The value of ``key`` in ``content``, which may be REQUIRED: it lacks one."""
        value = content.get(key)
        if value is not None:
            return value
        return self.null if key in content and self.null is not AS_ABSENT else self.default


KeyRules = Mapping[str, KeyRule]  # the rule of each key of a file


def shown(value: Any) -> str:
    """A value of a file, as an error message prints it: quoted, control characters escaped, cut where long."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return _SHORT.repr(value)


def printed(name: str) -> str:
    """A name as a file gives it, shortened and escaped where it is long or holds control characters."""
    return name if name.isprintable() and len(name) <= 120 else shown(name)


def integer(low: int, high: int, default: Any = None, size: bool = False, null: Any = AS_ABSENT) -> KeyRule:
    """An integer in [low, high]. Floats, strings and booleans are refused."""
    rule = f"an integer from {low} to {high}"
    return KeyRule(rule, lambda value: is_whole(value) and low <= value <= high, default, size, null)


def real(low: float, high: float, default: Any = None) -> KeyRule:
    """A finite number in [low, high]."""

    def fits(value: Any) -> bool:
        number = is_whole(value) or (isinstance(value, float) and isfinite(value))
        return number and low <= value <= high

    return KeyRule(f"a number from {low:g} to {high:g}", fits, default)


def boolean(default: Any = False) -> KeyRule:
    """true or false. Python, and so the published classes, take null for false."""
    null = False if isinstance(default, bool) else AS_ABSENT
    return KeyRule("true or false", lambda value: isinstance(value, bool), default, null=null)


def allowed(*values: Any, default: Any = None) -> KeyRule:
    """One of the values that published checkpoints of the family use. Without values: null alone. default: REQUIRED
    where the published class takes another value for a key that the file lacks."""
    rule = " or ".join(map(shown, values)) or "null"
    return KeyRule(f"{rule}, as in every published checkpoint of this family",
                   lambda value: any(type(value) is type(one) and value == one for one in values), default)  # fmt: skip


def token_ids(high: int) -> KeyRule:
    """A token id in [0, high], or a list of them."""

    def fits(value: Any) -> bool:
        return all(is_whole(one) and 0 <= one <= high for one in (value if isinstance(value, list) else [value]))

    return KeyRule(f"a token id from 0 to {high} or a list of them", fits)


# The bounds of sizes are loose: they keep small what is derived from the sizes. The headers of the weights bound the
# sizes tightly (``fit.check_sizes``), before a module is built.
def size(default: Any = REQUIRED, null: Any = AS_ABSENT) -> KeyRule:
    """A number of rows or columns of stored tensors."""
    return integer(1, MAX_SIZE, default, size=True, null=null)


def experts(default: Any = REQUIRED) -> KeyRule:
    """A number of experts."""
    return integer(1, MAX_EXPERTS, default)


def epsilon(default: float) -> KeyRule:
    """The eps of RMSNorm. At 1e-12 a row of zeros is scaled by 1e6 only. Above 0.1 it would dominate small rows."""
    return real(1e-12, 0.1, default)


def list_of(rule: str, fits: Callable[[Any], bool], default: Any = None) -> KeyRule:
    """A list whose every entry ``fits``."""
    return KeyRule(rule, lambda value: isinstance(value, list) and all(map(fits, value)), default)


LAYERS = integer(1, MAX_LAYERS, REQUIRED)
AN_OBJECT = KeyRule("an object", lambda value: isinstance(value, dict))


def wrong_value(file: str, given: str) -> UserError:
    """The error for a JSON file whose content cannot be right. given: its keys, values and the rule they break."""
    return UserError(f"{file} has {given}. Copy the checkpoint's own {file.partition(':')[0]} again.")


def read_keys(table: KeyRules, content: Mapping[str, Any], file: str) -> dict[str, Any]:
    """The keys of ``table`` with their values in ``content``, or their defaults.

    Raises UserError that names file, key, value and rule.
    """
    values = {key: rule.given(content, key) for key, rule in table.items()}
    if missing := [key for key, value in values.items() if value is REQUIRED]:
        raise UserError(f"{file} lacks {', '.join(missing)}, which this architecture needs to be built.")
    for key, rule in table.items():
        value = content.get(key)
        if value is not None and not rule.fits(value):
            raise wrong_value(file, f"{key}={shown(value)}, which must be {rule.rule}")
    return values
