"""The operations around the network through ``torch.compile``: what a recorded turn has besides layers and head.

A turn has some 140 operations on small tensors around the network, and on a GPU each is a launch of 2 us that computes
for a tenth of that. Compiled they are a third as many. A stage is compiled in one graph or not at all: where
torch.compile cannot follow a part, the stage runs as it is, and that is said once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dllm.common.rowwise import T
from dllm.common.terminal import complain_folded
from dllm.loop.runtime.compiled_layers import copy_of

STAGE_VARIANTS = 8  # of a stage: what torch.compile makes variables of serves all later shapes; each takes seconds
# As eager operations round: one launch may hold a product and a sum, which a GPU would otherwise round once.
AS_EAGER: dict[str, Any] = {"emulate_precision_casts": True, "eager_numerics.division_rounding": True}


class CompiledStages:
    """Runs stages compiled, with variants of its own: torch.compile counts them by code object, and a process may have
    many decoders. backend: that of torch.compile; tests use cheaper ones."""

    def __init__(self, backend: str = "inductor") -> None:
        self.backend = backend
        self.compiled: dict[Callable[..., Any], Callable[..., Any]] = {}  # by stage
        self.failures: dict[Callable[..., Any], str] = {}  # the stages that run as they are, and why
        self.full = set[Callable[..., Any]]()  # the stages that have all their variants, and were asked for another

    def __call__(self, stage: Callable[..., T], *args: Any) -> T:
        if stage in self.failures:
            return stage(*args)
        if stage not in self.compiled:
            options = AS_EAGER if self.backend == "inductor" else None
            self.compiled[stage] = torch.compile(copy_of(stage), fullgraph=True, backend=self.backend, options=options)
        try:
            with torch._dynamo.config.patch(recompile_limit=STAGE_VARIANTS):
                return self.compiled[stage](*args)  # type: ignore[no-any-return]
        except Exception as problem:  # of torch.compile: what the stage itself raises it raises again below
            if isinstance(problem, torch._dynamo.exc.FailOnRecompileLimitHit):  # imported by now: it takes a second
                self._say_full(stage)
            else:
                self.failures[stage] = reason = str(problem).strip().partition("\n")[0]
                complain_folded(f"A part of each turn runs without torch.compile, which cannot follow it: {reason}")
        return stage(*args)

    def _say_full(self, stage: Callable[..., Any]) -> None:
        """Say once that a stage has all its variants; turns of the shapes that there are stay compiled."""
        if stage not in self.full:
            complain_folded(f"Some turns run partly without torch.compile: {STAGE_VARIANTS} variants are the most.")
        self.full.add(stage)
