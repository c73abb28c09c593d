"""What each mini model learns from: a file for each objective. A model's is chosen by its name."""

from __future__ import annotations

from typing import Any

from experiments.mini.objectives.base import Objective
from experiments.mini.objectives.masked import Masked
from experiments.mini.objectives.next_block import NextBlock
from experiments.mini.objectives.next_token import NextToken
from experiments.mini.objectives.streams import KnownFirst

OBJECTIVES: dict[str, Objective[Any]] = {
    "mini-llada": Masked(),
    "mini-dream": Masked(),
    "mini-ar": NextToken(),
    "mini-wedlm": KnownFirst(),
    "mini-nbdiff": NextBlock(),
}
