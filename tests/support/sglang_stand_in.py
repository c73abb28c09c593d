"""What our plug-in meets of sglang 0.5.23: the registry of algorithms, their base class with its two loops, and a
scheduler that hands it the open blocks of requests. Written from the description of that contract, for machines without
its CUDA libraries."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dllm.parts import Transformer


class DllmAlgorithm:
    """The base class of algorithms."""

    supported_architectures: tuple[str, ...] = ()

    def __init__(self, config: Any) -> None:
        self.block_size, self.mask_id, self.fdfo = config.block_size, config.mask_id, config.first_done_first_out_mode

    def init_step_state(self, forward_batch: Any) -> list[Any]:
        return [None] * forward_batch.batch_size

    def max_steps(self, block_size: int) -> int:
        return block_size + 1

    def step(self, forward_batch: Any, full_logits: Tensor, states: list[Any]) -> list[bool]:
        raise NotImplementedError

    @classmethod
    def validate_request(cls, req: Any) -> str | None:
        return None

    def _prompt_mask(self, forward_batch: Any) -> Tensor:
        if forward_batch.dllm_prompt_mask is not None:
            return forward_batch.dllm_prompt_mask  # type: ignore[no-any-return]
        return forward_batch.input_ids.view(forward_batch.batch_size, -1) != self.mask_id  # type: ignore[no-any-return]

    def run(self, runner: Any, forward_batch: Any, states: list[Any]) -> tuple[list[Any], list[bool]]:
        """A round: one step, or steps until all blocks are done. Returns the states to carry, and who is done."""
        if not self.fdfo:
            return self._until_done(runner, forward_batch)
        fresh: list[Any] | None = None
        for row, carried in enumerate(states):
            if carried is None:
                fresh = fresh or self.init_step_state(forward_batch)
                states = [*states[:row], fresh[row], *states[row + 1 :]]
        done = self.step(forward_batch, runner(forward_batch), states)
        return [None if ended else state for ended, state in zip(done, states, strict=True)], done

    def _until_done(self, runner: Any, forward_batch: Any) -> tuple[list[Any], list[bool]]:
        text, states = self._prompt_mask(forward_batch), self.init_step_state(forward_batch)
        logits = runner(forward_batch)
        if not bool(text.all()):
            for _ in range(self.max_steps(self.block_size)):
                if all(self.step(forward_batch, logits, states)):
                    break
                logits = runner(forward_batch)
        return [None] * len(states), [True] * len(states)


def install(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """sglang's modules, as far as the plug-in imports them. Returns the registry."""
    names = ["sglang", "sglang.srt", "sglang.srt.dllm", "sglang.srt.dllm.algorithm", "sglang.srt.dllm.algorithm.base"]
    modules: dict[str, Any] = {name: ModuleType(name) for name in names}
    modules[names[-2]].algo_name_to_cls = registry = dict[str, Any]()
    modules[names[-1]].DllmAlgorithm = DllmAlgorithm
    for name, module in modules.items():
        patch.setitem(sys.modules, name, module)
    return registry


@dataclass
class Req:
    """A request in the scheduler."""

    prompt: list[int]
    blocks: int  # blocks of its answer, the one that the prompt has begun among them
    custom: dict[str, Any] | None = None
    temperature: float = 1.0
    text: list[int] = field(default_factory=list)  # what is committed
    block: list[int] = field(default_factory=list)  # the open block; empty: it is to be opened
    state: Any = None
    written: list[list[dict[int, int]]] = field(default_factory=list)  # by block and step: the tokens, by column
    forwards: list[int] = field(default_factory=list)  # by block

    def ended(self, length: int) -> bool:
        return len(self.text) >= (len(self.prompt) // length + self.blocks) * length


class Scheduler:
    """Runs requests in rounds, as many at a time as there are, by one of the two loops of an algorithm."""

    def __init__(self, network: Transformer, algorithm: DllmAlgorithm) -> None:
        self.network, self.algorithm, self.length = network, algorithm, algorithm.block_size

    def run(self, joining: Sequence[Sequence[Req]]) -> None:
        """joining: the requests that come before each round; the last ones are followed until nobody is left."""
        waiting, running = [list(some) for some in joining], list[Req]()
        while waiting or running:
            running += waiting.pop(0) if waiting else []
            self.round(running)
            running = [req for req in running if not req.ended(self.length)]

    def round(self, running: Sequence[Req]) -> None:
        for req in running:
            if not req.block:
                begin = len(req.text)
                text = req.prompt[begin : begin + self.length]
                req.block = text + [self.algorithm.mask_id] * (self.length - len(text))
                if len(text) < self.length:
                    req.written.append([])
                    req.forwards.append(0)
        ids = torch.tensor([token for req in running for token in req.block])
        batch = self.batch(running, ids)
        address = ids.data_ptr()
        states, done = self.algorithm.run(lambda one: self.forward(running, one), batch, [req.state for req in running])
        assert batch.input_ids is ids and ids.data_ptr() == address
        self.note(running, ids)
        for req, block, state, ended in zip(running, ids.view(len(running), -1).tolist(), states, done, strict=True):
            req.block, req.state = block, state
            if ended:
                req.text, req.block = req.text + block, []

    def batch(self, running: Sequence[Req], ids: Tensor) -> Any:
        spot = [range(len(req.text), len(req.text) + self.length) for req in running]
        text = torch.tensor(
            [[column < len(req.prompt) for column in row] for row, req in zip(spot, running, strict=True)]
        )
        literal = any(self.algorithm.mask_id in req.prompt for req in running)
        warmth = torch.tensor([[req.temperature or 1.0] for req in running])  # greedy is top_k 1 there
        greedy = torch.tensor([1 if req.temperature == 0 else 1 << 30 for req in running])
        info = SimpleNamespace(
            temperatures=warmth,
            top_ks=greedy,
            top_ps=torch.ones(len(running)),
            custom_params=[req.custom for req in running],
        )
        return SimpleNamespace(
            batch_size=len(running),
            input_ids=ids,
            dllm_prompt_mask=text if literal else None,
            sampling_info=info,
            positions=torch.tensor([column for row in spot for column in row], dtype=torch.int32),
        )

    def forward(self, running: Sequence[Req], batch: Any) -> Tensor:
        """The logits [B k, V] of the blocks as they are now, in float32 as there."""
        self.note(running, batch.input_ids)
        out = []
        for row, req in enumerate(running):
            block = batch.input_ids[row * self.length : (row + 1) * self.length].tolist()
            with torch.inference_mode():
                hidden = self.network.encode(torch.tensor([req.text + block]))
                out.append(self.network.logits(hidden)[0, -self.length :].float().clone())
            if len(req.text) + self.length > len(req.prompt):
                req.forwards[-1] += 1
        return torch.cat(out)

    def note(self, running: Sequence[Req], ids: Tensor) -> None:
        """What the last step has written of each block."""
        for row, req in enumerate(running):
            now = ids[row * self.length : (row + 1) * self.length].tolist()
            changed = {
                column: token for column, (token, was) in enumerate(zip(now, req.block, strict=True)) if token != was
            }
            if changed:
                req.written[-1].append(changed)
            req.block = now
