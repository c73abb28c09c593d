"""A constraint compiled for a model's vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from dllm.constraints.sets import ClassSet, TokenLanguage

Place = tuple[torch.device, int]
CLASSES: WeakKeyDictionary[TokenLanguage, dict[Place, Tensor]] = WeakKeyDictionary()  # sent once, not by each request


@dataclass(frozen=True, eq=False)
class CompiledConstraint:
    """A constraint compiled for a tokenizer."""

    language: TokenLanguage  # what all its rows share
    kind: str  # the constraint's name
    renormalised: bool  # confidences are over what fits, not over all ids
    joint: bool  # proposals go together
    whole: bool  # rows are decided block by block, each with its best filling

    def classes(self, device: torch.device, vocab: int) -> Tensor:
        """The class of each id [V] on a device; ids that the vocabulary lacks fit nowhere."""
        known_places, key = CLASSES.setdefault(self.language, {}), (device, vocab)
        if key not in known_places:
            table = torch.zeros(vocab, dtype=torch.int64)
            own = torch.from_numpy(self.language.classes)[:vocab]
            table[: len(own)] = own
            known_places[key] = table.to(device)
        return known_places[key]

    def ids(self, sets: list[ClassSet], device: torch.device, vocab: int) -> Tensor:
        """Which ids are in each set: bool [k, V]."""
        bits = torch.stack([torch.from_numpy(each.bits) for each in sets]).to(device)
        return bits[:, self.classes(device, vocab)]
