"""Whatever a request says, it is served or refused: never a fault."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from dllm.serve.api_errors import ApiError
from dllm.serve.body import parsed
from dllm.serve.request_parts import Defaults
from dllm.serve.wire import parse_request
from tests.serve.bodies import MESSAGES

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**63 - 1, -(2**63 - 1), 0.5, -0.0, 1e308, 5e-324, "", "x", "\0", "${oc.env:HOME}",
    "../../x", "null", [], [1], ["x"], [[]], [[1], "x"], {}, {"name": "eb"}, {"name": ["eb"]}, {"_target_": "os.mkdir"},
    {"": {}}, "x" * 5000, [0.5] * 100, {"name": "credit", "inner": {"name": "credit"}}, {"type": "text"}, "confidence",
    "<|mdm_mask|>", 10**12, [2**62],
]  # fmt: skip


def anything(rng: random.Random, depth: int = 0) -> Any:
    """A random value of JSON."""
    if depth > 2 or rng.random() < 0.6:
        return deepcopy(rng.choice(ODD))
    if rng.random() < 0.5:
        return [anything(rng, depth + 1) for _ in range(rng.randrange(4))]
    keys = ("name", "inner", "threshold", "steps", "role", "content", "text", "type", "_target_", "canvas", "é")
    return {rng.choice(keys): anything(rng, depth + 1) for _ in range(rng.randrange(4))}


def broken(rng: random.Random) -> dict[str, Any]:
    """A body with a mistake for certain, and others perhaps."""
    mistakes: list[Callable[[dict[str, Any]], Any]] = [
        lambda body: body.update({f"max_toke{rng.randrange(99)}": anything(rng) or 1}),
        lambda body: body.update(messages=rng.choice([5, "x", [5], [{}], {"a": 1}, [[]], [{"role": "user"}]])),
        lambda body: body.update(max_tokens=rng.choice([-3, 0, 10**9, 0.5, "x", [], {}, True])),
        lambda body: body.update(temperature=rng.choice([-0.1, 1e308, "x", [0.5], {}, True])),
        lambda body: body.update(stop=rng.choice([0, {}, [None], ["x", 5], [""], ["x"] * 40])),
        lambda body: body.update(seed=rng.choice([-5, 2**63 - 1, 0.5, "x", [1]])),
        lambda body: body.update(diffusion=rng.choice([5, "x", [1], {"_target_": "os.mkdir"}, {"": 1}])),
        lambda body: body["diffusion"].update(sampler=rng.choice([5, [], {}, "oracle", {"name": 5}, {"name": "x"}])),
        lambda body: body["diffusion"].update(cache={"name": "dual", rng.choice(["_target_", "x", ""]): anything(rng)}),
        lambda body: body["diffusion"].update(canvas=rng.choice([5, {}, [0], [-1], [0.5], [None], ["x"], [[1]]])),
        lambda body: body["diffusion"].update(steps=rng.choice(["x", -1, 10**9, [4], {}, 0.5])),
    ]  # fmt: skip
    body: dict[str, Any] = {"messages": deepcopy(MESSAGES), "diffusion": {"sampler": "static"}}
    rng.choice(mistakes[:7] if rng.random() < 0.5 else mistakes[7:])(body)
    return body


def test_sixty_bodies_with_a_mistake_are_refused(mini: Defaults) -> None:
    rng = random.Random(18)
    for _ in range(60):
        body = broken(rng)
        with pytest.raises(ApiError) as refused:
            parse_request(parsed(json.dumps(body).encode()), True, mini)
        assert refused.value.status in (400, 404) and refused.value.message.endswith((".", "?", "...")), body


def test_whatever_a_body_says_it_is_served_or_refused(mini: Defaults) -> None:
    """Any value in any field, in both routes: never an error of another kind."""
    rng, served = random.Random(81), 0
    fields = (
        "messages", "prompt", "max_tokens", "temperature", "top_p", "top_k", "n", "seed", "stop", "stream", "logprobs",
        "stream_options", "metadata", "response_format", "diffusion", "suffix", "best_of", "store", "user", "model",
    )  # fmt: skip
    inside = ("sampler", "blocks", "cache", "eos", "threshold", "steps", "block_length", "guidance", "canvas", "trace")
    for _ in range(300):
        is_chat = rng.random() < 0.5
        body: dict[str, Any] = {"messages": MESSAGES} if is_chat else {"prompt": "a"}
        body["diffusion"] = {rng.choice(inside): anything(rng) for _ in range(rng.randrange(3))}
        if rng.random() < 0.5:
            body[rng.choice(fields)] = anything(rng)
        try:
            parse_request(parsed(json.dumps(body).encode()), is_chat, mini)
            served += 1
        except ApiError as refused:
            assert refused.status in (400, 404) and refused.message
    assert 20 < served < 200
