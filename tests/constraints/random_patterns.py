"""Random regular expressions, from the atoms and repetitions of a dialect."""

from __future__ import annotations

import random
from collections.abc import Sequence


def random_pattern(draw: random.Random, atoms: Sequence[str], repeats: Sequence[str], depth: int = 3) -> str:
    kind = draw.choice(["atom", "cat", "alt", "repeat"]) if depth else "atom"
    if kind == "atom":
        return draw.choice(atoms)
    if kind == "repeat":
        return f"{draw.choice(['(', '(?:'])}{random_pattern(draw, atoms, repeats, depth - 1)}){draw.choice(repeats)}"
    parts = [random_pattern(draw, atoms, repeats, depth - 1) for _ in range(draw.randint(1, 3))]
    return f"({'|'.join(parts)})" if kind == "alt" else "".join(parts)
