"""Answers that find their length, and holes without a number, in the server: a reply under load is the one alone, and
nothing that was sent is taken back."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from dllm.parts import Defaults, Draw, Model, part_config
from dllm.tasks.mini import tasks
from tests.serve.bodies import chat, mini_defaults, refusal
from tests.serve.live import Live, alone_and_under_load, live

RULES: dict[str, dict[str, Any]] = {
    "daedal": {"limit": 40, "factor": 4, "checked": 4},
    "rho_eos": {"limit": 64, "checked": 8, "low": 0.1, "high": 0.9},
}
KINDS: list[dict[str, Any]] = [
    {}, {}, {"temperature": 0.7}, {"max_tokens": 6}, {"stop": ['", "']}, {"n": 2, "temperature": 0.5},
    {"logprobs": True, "top_logprobs": 2}, {"diffusion": {"canvas": ['["', 6, '"]']}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "names", "schema": {
        "type": "array", "items": {"enum": ["Kai", "Emma"]}, "maxItems": 3}}}},
    {"max_tokens": 20, "ignore_eos": True}, {"diffusion": {"sampler": "eb"}}, {"diffusion": {"block_length": 8}},
]  # fmt: skip


def growing(model: Model, rule: str, begin: int = 5) -> Defaults:
    """A server of answers that grow from ``begin`` masks."""
    length = part_config("length", rule, RULES[rule])
    return mini_defaults(model, "eos=none", length=length, begin=begin, fits=True)


@pytest.fixture(scope="module", params=["daedal", pytest.param("rho_eos", marks=pytest.mark.program)])
def server(request: pytest.FixtureRequest, mini_model: Model) -> Iterator[Live]:
    with live(mini_model, defaults=growing(mini_model, request.param), timeout=600.0) as started:
        yield started


def drawn(dice: random.Random) -> dict[str, Any]:
    task = dice.choice(tasks.SHORT_ANSWERS)
    return {"messages": tasks.draw(task, Draw(dice)).messages, "seed": dice.randint(0, 9), **dice.choice(KINDS)}


def told(choice: dict[str, Any], text: str) -> Any:
    scores = [(one["token"], round(one["logprob"], 3)) for one in (choice.get("logprobs") or {}).get("content") or ()]
    return text, choice["finish_reason"], choice["diffusion"]["nfe"], scores


def reply_of(client: httpx.Client, body: dict[str, Any], stream: bool) -> list[Any]:
    """Each choice of a reply; of a stream its pieces put together, which must be the text of a plain reply."""
    if not stream:
        reply = client.post("/v1/chat/completions", json=body).json()
        return [told(one, one["message"]["content"]) for one in reply["choices"]]
    texts: dict[int, str] = {}
    ends: dict[int, Any] = {}
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as lines:
        chunks = [json.loads(line[6:]) for line in lines.iter_lines() if line.startswith("data: {")]
    for choice in (one for chunk in chunks for one in chunk["choices"]):
        at = choice["index"]
        texts[at] = texts.get(at, "") + (choice["delta"].get("content") or "")
        if choice["finish_reason"]:
            ends[at] = choice
    return [told(ends[at], texts[at]) for at in sorted(ends)]


@pytest.mark.parametrize("count", [4, pytest.param(100, marks=pytest.mark.program)])
def test_mixed_requests_are_alike_alone_and_under_load(server: Live, count: int) -> None:
    dice = random.Random(7)
    alone = alone_and_under_load(server, [drawn(dice) for _ in range(count)], reply_of)
    assert len({text for reply in alone for text, *_ in reply}) >= count // 4


def test_an_answer_grows_to_the_requests_limit(server: Live) -> None:
    """It begins with 5 masks, and is as long as its text, or as max_tokens."""
    ask = {"messages": [{"role": "user", "content": 'Copy the list:\n["Kai", "Emma", "Hugo", "Ada", "Zoe"]'}]}
    with server.client() as client:
        whole = client.post("/v1/chat/completions", json=ask).json()
        cut = client.post("/v1/chat/completions", json={**ask, "max_tokens": 7}).json()
    (reply,) = whole["choices"]
    assert reply["message"]["content"] == '["Kai", "Emma", "Hugo", "Ada", "Zoe"]' and reply["finish_reason"] == "stop"
    assert cut["choices"][0]["finish_reason"] == "length" and cut["usage"]["completion_tokens"] <= 7


def test_snapshots_show_a_canvas_that_grows(server: Live) -> None:
    body = {
        "messages": [{"role": "user", "content": 'Copy the list:\n["Kai", "Emma", "Hugo", "Ada"]'}],
        "stream": True,
        "diffusion": {"snapshots": True},
    }
    with server.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as lines:
        chunks = [json.loads(line[6:]) for line in lines.iter_lines() if line.startswith("data: {")]
    shots = [chunk["diffusion"] for chunk in chunks if "words" in chunk.get("diffusion", {})]
    sizes = [len(one["words"]) for one in shots]
    assert len(sizes) > 1 and sizes[-1] > 5 and all(len(one["turns"]) == len(one["words"]) for one in shots)


def test_what_cannot_grow_has_the_length_asked_for(mini_model: Model) -> None:
    defaults = growing(mini_model, "daedal")
    grown, fixed = chat(defaults, max_tokens=20).jobs[0], chat(defaults, max_tokens=20, ignore_eos=True).jobs[0]
    start = grown.request.answer_start
    assert (len(grown.request.tokens) - start, grown.columns - start) == (5, 20)
    assert len(fixed.request.tokens) - start == fixed.columns - start == 20
    assert grown.setting.parts.length.traits.changes and not fixed.setting.parts.length.traits.changes
    assert grown.setting.key == chat(defaults, max_tokens=9).jobs[0].setting.key != fixed.setting.key
    assert "length=daedal changes the length of rows" in refusal(defaults, diffusion={"guidance": 2.0}).message


def test_a_hole_without_a_number_is_sized(mini_model: Model) -> None:
    """Sizes are tried between the turns of other rows; the reply is the one that a hole of the size found has."""
    length = part_config("length", "cal", {"bias": False, "begin": 4, "limit": 6})
    defaults = mini_defaults(mini_model, length=length)
    ask = {"messages": [{"role": "user", "content": 'Copy the list:\n["Kai", "Emma", "Hugo"]'}]}
    bodies = [{**ask, "diffusion": {"canvas": ['["', size, '", "Hugo"]'], "trace": True}} for size in (None, 3)]
    with live(mini_model, defaults=defaults) as server, server.client() as client, ThreadPoolExecutor(2) as crowd:
        replies = list(crowd.map(lambda body: client.post("/v1/chat/completions", json=body).json(), bodies))
    found, given = (reply["choices"][0] for reply in replies)
    assert found["message"]["content"] == given["message"]["content"] == '["Kai", "Emma", "Hugo"]'
    trace, known = (one["diffusion"]["trace"] for one in (found, given))
    assert trace["config"]["gen_length"] == 3 and trace["trace"]["prompt"] == known["trace"]["prompt"]
    assert [size for size, _ in trace["trace"]["probes"]] == [4, 5, 6, 3, 2, 1]
    assert found["diffusion"]["nfe"] == given["diffusion"]["nfe"] + 6
    refused = refusal(mini_defaults(mini_model), diffusion={"canvas": ["a", None]})
    assert refused.param == "diffusion.canvas" and "Give it a number of masks" in refused.message
