"""Random numbers for numbers, by which sets are told apart by their sums."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def mixed(values: NDArray[np.integer]) -> NDArray[np.uint64]:
    """A random 64-bit number for each of ``values`` (splitmix64). Equal sets have equal sums of them, modulo 2**64; of
    10,000 different sets two have the same sum with a probability of 3e-12."""
    bits = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
