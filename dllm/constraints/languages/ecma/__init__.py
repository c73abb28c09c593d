"""Regular expressions of ECMA-262 under its ``u`` flag, as JSON Schema means them."""

from __future__ import annotations

from dllm.constraints.languages.ecma.trees import search_tree

__all__ = ["search_tree"]
