"""Decode as many columns as are asked for: every row keeps its length."""

from __future__ import annotations

from dllm.contract.traits import LengthTraits
from dllm.parts.lengths.base import Length


class FixedLength(Length):
    """Rows stay as long as they are."""

    traits = LengthTraits(changes=False)
