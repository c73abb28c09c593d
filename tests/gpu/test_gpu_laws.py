"""A seeded sample of the laws of ``tests/laws/test_laws.py``, with every tensor on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import harness
import pytest
import test_laws
import torch
from harness import Combination
from law import LAWS, Law
from place import GPU
from under import model

COUNT = 24 if GPU else 1


@dataclass(frozen=True)
class Held:
    """A law for one combination."""

    law: Law
    combination: Combination

    def __str__(self) -> str:
        return f"{self.law.name.replace(' ', '_')}-{self.combination}"


def sample() -> Iterator[Held]:
    """The laws of a combination side by side: they share its decode."""
    shared = [one for one in LAWS if one.check.__module__ == test_laws.__name__]
    for case in zip(*(one.sample()[:COUNT] for one in shared), strict=True):
        yield from map(Held, shared, case)


@pytest.mark.parametrize("held", list(sample()), ids=str)
def test_a_law_holds_on_the_device(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "model", lambda name: model(name, torch.float64))
    held.law.check(held.combination)
