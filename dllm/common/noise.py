"""Random numbers that are a function of a row's seed, the position and the turn, and of nothing else.

With a generator a row's noise would depend on its neighbours and on how many rows were computed; with a counter-based
hash it does not. The mixer is SplitMix64 (Steele, Lea, Flood 2014) on wrapping int64.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _wrapped(value: int) -> int:
    """``value`` as int64 arithmetic wraps it."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


GOLDEN, MIX1, MIX2 = map(_wrapped, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _shift_right(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * MIX1
    x = (x ^ _shift_right(x, 27)) * MIX2
    return x ^ _shift_right(x, 31)


def mixed(*keys: Tensor | int, after: Tensor | None = None) -> Tensor:
    """The hash int64 of each combination of the broadcast integer keys. after: the hash of earlier keys, to go on from.

    It is made on the device of the keys that are tensors, which must share one. Keys that are numbers never become
    tensors, so that noise copies nothing from the host.
    """
    devices = {key.device for key in (*keys, after) if isinstance(key, Tensor)}
    assert len(devices) < 2, f"keys of noise lie on several devices: {', '.join(map(str, devices))}"
    state = torch.zeros((), dtype=torch.int64, device=next(iter(devices), None)) if after is None else after
    for key in keys:
        state = _mix(state + ((key.long() + 1) * GOLDEN if isinstance(key, Tensor) else _wrapped((key + 1) * GOLDEN)))
    return state


def seed_of(*keys: int) -> int:
    """A seed, of 62 bits, for each combination of the keys."""
    return int(mixed(*keys)) & ((1 << 62) - 1)


def shifted(state: Tensor, begin: int) -> Tensor:
    """The state after which key j hashes as key ``begin`` + j does after ``state``."""
    return state + _wrapped(begin * GOLDEN)


def uniform(*keys: Tensor | int) -> Tensor:
    """Uniform float64 in (0, 1), one for each combination of the broadcast integer keys (see ``mixed``)."""
    return uniform_of(mixed(*keys))


def uniform_of(hashed: Tensor) -> Tensor:
    """Uniform float64 in (0, 1) from hashes."""
    # 53 random bits, centred in their cell: neither 0 nor 1 occurs, so both logarithms of Gumbel noise are finite.
    return (_shift_right(hashed, 11).double() + 0.5) * 2.0**-53


def gumbel(*keys: Tensor | int) -> Tensor:
    """Standard Gumbel noise, float64. Lower precision cuts the tail, which acts like a lower temperature
    (arXiv 2409.02908)."""
    return gumbel_of(mixed(*keys))


def gumbel_of(hashed: Tensor) -> Tensor:
    """Standard Gumbel noise, float64, from hashes."""
    return -torch.log(-torch.log(uniform_of(hashed)))
