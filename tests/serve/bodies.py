"""Bodies of requests to the shipped model, and what they are compared with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from dllm.parts import (
    ApiError,
    ChatBody,
    Defaults,
    Message,
    Model,
    ParsedRequest,
    RunPlan,
    composed,
    conversation,
    parse_request,
    read_body,
)

GROUPS = ("sampler", "blocks", "cache", "eos")
MESSAGES = [{"role": "user", "content": 'Copy the list:\n["Kai", "Emma"]'}]


def mini_defaults(model: Model, *overrides: str, **settings: Any) -> Defaults:
    """The settings of a server whose command line says ``overrides``."""
    config: Any = OmegaConf.to_container(composed(list(overrides)), resolve=True)
    return Defaults(model, "mini", *(config[group] for group in GROUPS), **{"gen_length": 32, **settings})


def plan_of(*overrides: str) -> RunPlan:
    """The run that the command line makes of ``overrides``."""
    config: Any = OmegaConf.to_container(composed(["gen_length=32", *overrides]), resolve=True)
    return RunPlan.of(config)


def chat(server: Defaults, **fields: Any) -> ParsedRequest:
    return parse_request({"model": "mini", "messages": MESSAGES, **fields}, True, server)


def refusal(server: Defaults, is_chat: bool = True, **fields: Any) -> ApiError:
    body: dict[str, Any] = {"messages": MESSAGES} if is_chat else {"prompt": "a"}
    with pytest.raises(ApiError) as refused:
        parse_request({**body, **fields}, is_chat, server)
    return refused.value


def alike(one: Any, other: Any) -> bool:
    """Whether two parts are of one class and hold the same."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if type(one).__module__.startswith("dllm."):
        return type(one) is type(other) and alike(vars(one), vars(other))
    return bool(one == other)


# What the field ``diffusion`` says, and the same on the command line.
SAME: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"sampler": "static", "steps": 8, "block_length": 16, "cache": "elastic", "eos": "stop_at_eos", "blocks": "fixed"},
     ["sampler=static", "sampler.steps=8", "blocks=fixed", "blocks.block_length=16", "cache=elastic",
      "eos=stop_at_eos"]),
    ({"cache": {"name": "elastic", "gamma": 0.8}, "threshold": 0.7},
     ["cache=elastic", "cache.gamma=0.8", "sampler.threshold=0.7"]),
    ({"sampler": {"name": "credit", "beta": 0.5, "inner": {"name": "localleap", "radius": 2}}},
     ["sampler=credit", "sampler.beta=0.5", "sampler/inner=localleap", "sampler.inner.radius=2"]),
    ({"sampler": {"name": "prophet", "inner": {"name": "credit", "inner": "localleap"}}},
     ["sampler=prophet", "sampler/inner=credit", "sampler/inner@sampler.inner.inner=localleap"]),
    ({"sampler": {"name": "learn2pd", "threshold": 1}, "block_length": 32},
     ["sampler=learn2pd", "sampler.threshold=1"]),
    ({"sampler": "order", "cache": "dkv_greedy", "blocks": {"name": "lengths", "lengths": [4, 12]}},
     ["sampler=order", "cache=dkv_greedy", "blocks=lengths", "blocks.lengths=[4,12]"]),
    ({"sampler": {"name": "prophet", "region": "anchor", "anchor_text": "so", "anchor_position": 2}, "guidance": 0.5},
     ["sampler=prophet", "sampler.region=anchor", "sampler.anchor_text=so", "sampler.anchor_position=2",
      "sampling.guidance=0.5"]),
    ({"blocks": "adablock", "cache": "dual", "eos": {"name": "eotp", "scope": "block"}},
     ["blocks=adablock", "cache=dual", "eos=eotp", "eos.scope=block"]),
]  # fmt: skip


def as_messages(sent: list[dict[str, Any]]) -> list[Message]:
    """A conversation as the chat template of a model without tools takes it."""
    found = read_body(ChatBody, {"messages": sent}, False)[0].messages
    return conversation([one.as_message("") for one in found])
