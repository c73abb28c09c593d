"""Random requests and what becomes of them, for the law that a reply is the same alone and under load."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from dllm.parts import Draw
from dllm.tasks.mini import tasks
from tests.serve.conftest import CHAT

SAMPLERS: list[Any] = [
    "confidence",
    "confidence",
    "static",
    "eb",
    "wino",
    "klass",
    "localleap",
    "saber",
    "freedave",
    {"name": "confidence", "threshold": 0.6},
    {"name": "credit", "inner": "confidence"},
    {"name": "prophet", "inner": "static"},
]
COLD = ("freedave", "credit", "prophet")  # samplers that want the argmax
CACHES = ["none", "none", "prefix", "dual", "window", "elastic"]
Reply = list[tuple[str, str, int]]  # text, reason and forwards of every choice; of a refusal its sentence


@dataclass(frozen=True)
class Talk:
    """What one model is asked. ask: the fields that hold a prompt. word: a text that an answer may hold."""

    ask: Callable[[random.Random], dict[str, Any]]
    word: Callable[[random.Random], str]


TINY = Talk(
    lambda dice: {"prompt": " ".join(f"w{dice.randint(1, 59)}" for _ in range(dice.randint(1, 12)))},
    lambda dice: f"w{dice.randint(1, 59)}",
)
MINI = Talk(
    lambda dice: {"messages": tasks.draw(dice.choice(tasks.SHORT_ANSWERS), Draw(dice)).messages},
    lambda dice: dice.choice(['", "', ",", "a", "Em", "\n", '"]', "B"]),
)


def drawn(dice: random.Random, talk: Talk = TINY) -> dict[str, Any]:
    """A request of some kind."""
    sampler, cache = dice.choice(SAMPLERS), dice.choice(CACHES)
    cold = (sampler["name"] if isinstance(sampler, dict) else sampler) in COLD
    body: dict[str, Any] = {**talk.ask(dice), "max_tokens": dice.choice([8, 16, 24]), "seed": dice.randint(0, 9)}
    body["temperature"] = 0 if cold else dice.choice([0, 0, 0.7])
    body["diffusion"] = {"sampler": sampler, "cache": cache}
    if cache not in ("elastic", "window"):  # these bring blocks of their own
        body["diffusion"]["block_length"] = 8
    if dice.random() < 0.2:
        body["n"] = 2
    if dice.random() < 0.2:
        del body["max_tokens"]
        body["diffusion"]["canvas"] = [talk.word(dice), 5, talk.word(dice), 3]
    elif dice.random() < 0.35:
        body["stop"] = [talk.word(dice)]
    return body


def reply_of(client: httpx.Client, body: dict[str, Any], stream: bool) -> Reply:
    """The reply; of a stream, from its chunks."""
    path = CHAT if "messages" in body else "/v1/completions"
    if not stream:
        reply = client.post(path, json=body)
        if reply.status_code == 400:
            return [(reply.json()["error"]["message"], "refused", 0)]
        return [(_text(c), c["finish_reason"], c["diffusion"]["nfe"]) for c in reply.json()["choices"]]
    texts: dict[int, str] = {}
    ends: dict[int, tuple[str, int]] = {}
    with client.stream("POST", path, json={**body, "stream": True}) as reply:
        if reply.status_code == 400:
            return [(json.loads(reply.read())["error"]["message"], "refused", 0)]
        lines = [line[6:] for line in reply.iter_lines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    for choice in (one for line in lines for one in json.loads(line)["choices"]):
        at = choice["index"]
        texts[at] = texts.get(at, "") + _text(choice)
        if choice["finish_reason"]:
            ends[at] = (choice["finish_reason"], choice["diffusion"]["nfe"])
    return [(texts.get(at, ""), *ends[at]) for at in sorted(ends)]


def _text(choice: dict[str, Any]) -> str:
    return str(choice["text"] if "text" in choice else choice.get("message", choice.get("delta")).get("content", ""))
