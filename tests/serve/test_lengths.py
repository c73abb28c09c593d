"""No answer ends before it may: ``ignore_eos`` and ``min_tokens``, under every part that a request may choose."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dllm.serve.offered import OFFERED_GROUPS, offers
from tests.serve.conftest import CHAT, Place

SORT = [{"role": "user", "content": 'Sort the list:\n["Kai", "Emma", "Hugo"]'}]  # an answer of seven tokens
PARTS = [(group, name) for group in OFFERED_GROUPS for name in offers(group)]
LENGTH, LEAST = 24, 12
HELD: list[dict[str, Any]] = [
    {"ignore_eos": True}, {"min_tokens": LENGTH}, {"min_tokens": LEAST}, {"min_tokens": LEAST, "temperature": 0.7},
]  # fmt: skip


@pytest.mark.daily(2)
@pytest.mark.parametrize(("group", "name"), PARTS, ids=[f"{group}-{name}" for group, name in PARTS])
def test_under_every_part_no_answer_ends_early(mini_place: Place, group: str, name: str) -> None:
    """A part is served so, or refused in a sentence for what it is, with or without these fields."""
    for held in HELD:
        body = {"messages": SORT, "max_tokens": LENGTH, "diffusion": {group: name}, **held}
        reply = mini_place.call("POST", CHAT, json=body)
        if reply.status_code == 400:
            assert reply.json()["error"]["param"].startswith(("diffusion", "temperature")), reply.text
            continue
        (choice,), written = reply.json()["choices"], reply.json()["usage"]["completion_tokens"]
        least = held.get("min_tokens", LENGTH)
        assert written >= least and (choice["finish_reason"] == "length") == (written == LENGTH), (held, reply.text)


def test_without_them_the_same_answer_ends_early(mini_place: Place) -> None:
    reply = mini_place.call("POST", CHAT, json={"messages": SORT, "max_tokens": LENGTH}).json()
    assert reply["usage"]["completion_tokens"] == 7 and reply["choices"][0]["finish_reason"] == "stop"


def test_a_form_has_as_many_tokens_or_is_refused(mini_place: Place) -> None:
    form = {"response_format": {"type": "json_object"}, "max_tokens": LENGTH}
    for held, least in (({"min_tokens": LEAST}, LEAST), ({"ignore_eos": True}, LENGTH)):
        reply = mini_place.call("POST", CHAT, json={"messages": SORT, **form, **held}).json()
        assert reply["usage"]["completion_tokens"] >= least
        assert isinstance(json.loads(reply["choices"][0]["message"]["content"]), dict)
    short = {"guided_choice": ["yes", "no"], "max_tokens": LENGTH, "min_tokens": LEAST}
    refused = mini_place.call("POST", CHAT, json={"messages": SORT, **short})
    assert "takes 12 to 24 tokens, and min_tokens=12 lets none end before" in refused.json()["error"]["message"]


def test_a_stop_string_counts_behind_the_least(mini_place: Place) -> None:
    body = {"messages": SORT, "max_tokens": LENGTH, "stop": ["Hugo", "Kai"]}
    assert mini_place.call("POST", CHAT, json=body).json()["usage"]["completion_tokens"] == 3
    for stream in (False, True):
        reply = mini_place.call("POST", CHAT, json={**body, "min_tokens": 4, "stream": stream})
        text = reply.json()["choices"][0]["message"]["content"] if not stream else "".join(
            json.loads(line[6:])["choices"][0]["delta"].get("content", "")
            for line in reply.text.splitlines() if line.startswith("data: {"))  # fmt: skip
        assert text == '["Emma", "Hugo", "'


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_each_chunk_tells_the_usage_so_far(mini_place: Place, path: str) -> None:
    asked: dict[str, Any] = {"messages": SORT} if "chat" in path else {"prompt": "Sort the list"}
    body = {**asked, "max_tokens": LENGTH, "ignore_eos": True, "stream": True, "n": 2, "seed": 3, "temperature": 0.5,
            "diffusion": {"sampler": "static"}}  # fmt: skip
    for options in ({"include_usage": True, "continuous_usage_stats": True}, {"continuous_usage_stats": True}, {}):
        reply = mini_place.call("POST", path, json={**body, "stream_options": options})
        chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        told = [chunk.get("usage") for chunk in chunks]
        if not options:
            assert told == [None] * len(told)
            continue
        counts = [usage["completion_tokens"] for usage in told]
        assert counts == sorted(counts) and counts[-1] == 2 * LENGTH and len(set(counts)) > 4
        assert (chunks[-1]["choices"] == []) == ("include_usage" in options)
