"""Texts that go on where another ends: a tokenizer that puts a space before every text puts none before these.

Llama 2's kind does so by its normalizer, others by the pre-tokenizer. CodeLlama's own code encodes what is inside after
an anchor, which it cuts off; here the tokenizer's description says what adds the space.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer as Backend

_CHANGED: Mapping[str, Mapping[str, Any]] = {
    "Metaspace": {"prepend_scheme": "never"},
    "ByteLevel": {"add_prefix_space": False},
    "Strip": {"strip_left": False},
}


def without_prefix(backend: Backend) -> Backend:
    """The same tokenizer, which adds nothing before a text and drops no blanks there: itself, where it is one."""
    parts = {name: part and json.loads(part.__getstate__()) for name, part in _parts(backend).items()}
    changed = {name: _unprefixed(part) for name, part in parts.items()}
    if changed == parts:
        return backend
    return Backend.from_str(json.dumps({**json.loads(backend.to_str()), **changed}))


def _parts(backend: Backend) -> dict[str, Any]:
    return {"normalizer": backend.normalizer, "pre_tokenizer": backend.pre_tokenizer}


def _unprefixed(part: dict[str, Any] | None) -> dict[str, Any] | None:
    """A normalizer or pre-tokenizer without what it does to the beginning of a text; None: that is all it does."""
    if part is None or part["type"] == "Prepend" or str(part.get("pattern", {}).get("Regex", "")).startswith("^"):
        return None
    for key in ("normalizers", "pretokenizers"):
        if key in part:
            return {**part, key: [inner for inner in map(_unprefixed, part[key]) if inner is not None]}
    changes = _CHANGED.get(part["type"], {})
    return {**part, **{key: value for key, value in changes.items() if key in part}}
