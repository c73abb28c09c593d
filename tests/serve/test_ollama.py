"""``/api``: each reply is what chat or completions answer to the same, whole and in lines; what clients ask when they
connect, and errors in Ollama's form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from dllm.parts import NOT_SERVED, Model, OllamaChatBody, load, read_body
from dllm.serve.dialects.ollama_request import _messages
from tests.serve.bodies import mini_defaults
from tests.serve.conftest import CHAT, Place
from tests.serve.folds import both
from tests.serve.test_anthropic import ASK, FUNCTION, NAMES, SORT
from tests.serve.test_tools import WrittenAnswers

COMPLETIONS = "/v1/completions"
TOOLS = [{"type": "function", "function": FUNCTION}]
HOT = {"temperature": 1.0, "seed": 3, "top_k": 4}


@pytest.fixture(scope="module")
def mini_place(mini_model: Model) -> Iterator[Place]:
    place = Place(mini_model, defaults=replace(mini_defaults(mini_model), name="mini-llada"))
    yield place
    place.close()


def lines(reply: httpx.Response) -> list[dict[str, Any]]:
    assert reply.headers["content-type"] == "application/x-ndjson" and reply.text.endswith("\n")
    return [json.loads(line) for line in reply.text.splitlines()]


def said(place: Place, path: str, **body: Any) -> dict[str, Any]:
    """The reply in one object, whose text and calls its lines make up, too."""
    whole, stream = both(place, path, body)
    assert whole == stream and whole["done"]
    return dict(whole)


def answer(place: Place, path: str, **body: Any) -> tuple[Any, int, int]:
    """Text, and tokens of prompt and answer, over OpenAI's address."""
    reply = place.call("POST", path, json=body).json()
    (choice,), usage = reply["choices"], reply["usage"]
    text = choice["message"]["content"] if path == CHAT else choice["text"]
    return text, usage["prompt_tokens"], usage["completion_tokens"]


@pytest.mark.daily(2)
@pytest.mark.parametrize(("path", "body", "other", "same"), [
    ("/api/chat", {"messages": ASK}, CHAT, {"messages": ASK}),
    ("/api/chat", {"messages": ASK, "options": {**HOT, "num_predict": 9, "repeat_penalty": 1.1, "num_ctx": 4096}},
     CHAT, {"messages": ASK, **HOT, "max_tokens": 9}),
    ("/api/chat", {"messages": ASK, "options": {"stop": ["Hugo"]}, "images": [], "think": False},
     CHAT, {"messages": ASK, "stop": ["Hugo"]}),
    ("/api/generate", {"prompt": SORT, "system": "Be brief.", "context": [], "template": ""},
     CHAT, {"messages": [{"role": "system", "content": "Be brief."}, *ASK]}),
    ("/api/generate", {"prompt": '["Kai", ', "raw": True, "options": {"num_predict": 6}},
     COMPLETIONS, {"prompt": '["Kai", ', "max_tokens": 6}),
    ("/api/chat", {"messages": ASK, "options": {"diffusion": {"sampler": "static"}}},
     CHAT, {"messages": ASK, "diffusion": {"sampler": "static"}}),
], ids=["chat", "options", "stop", "generate", "raw", "diffusion"])  # fmt: skip
def test_a_reply_is_the_answer_of_openais_address(
    mini_place: Place, path: str, body: dict[str, Any], other: str, same: dict[str, Any]
) -> None:
    reply = said(mini_place, path, model="mini-llada:latest", **body)
    text = reply["response"] if path == "/api/generate" else reply["message"]["content"]
    assert (text, reply["prompt_eval_count"], reply["eval_count"]) == answer(mini_place, other, **same)
    assert reply["model"] == "mini-llada:latest" and reply["done_reason"] in ("stop", "length")


def test_times_are_told_in_nanoseconds(mini_place: Place) -> None:
    whole = mini_place.call("POST", "/api/chat", json={"messages": ASK, "stream": False}).json()
    seconds, waited = whole["diffusion"]["seconds"], whole["diffusion"]["waited"] or 0.0
    times = [whole["total_duration"], whole["eval_duration"], whole["prompt_eval_duration"]]
    assert all(type(time) is int for time in times)
    assert times == pytest.approx([seconds * 1e9, (seconds - waited) * 1e9, 0], abs=1e6)
    assert datetime.fromisoformat(whole["created_at"]).tzinfo is not None


def test_a_gap_is_filled_without_what_follows(mini_place: Place) -> None:
    body = {"prompt": '["Kai", ', "suffix": ', "Hugo"]', "options": {"num_predict": 4}}
    canvas = {"prompt": '["Kai", ', "diffusion": {"canvas": [4, ', "Hugo"]']}}
    text = answer(mini_place, COMPLETIONS, **canvas)[0]
    assert text.endswith(', "Hugo"]')
    assert said(mini_place, "/api/generate", **body)["response"] == text.removesuffix(', "Hugo"]') != ""


def test_forms_are_kept_and_calls_come_whole(mini_place: Place, mini_model: Model, tmp_path: Path) -> None:
    pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install -e '.[constraints]'")
    asked = {"messages": ASK, "stream": False, "format": NAMES}
    found = mini_place.call("POST", "/api/chat", json=asked).json()["message"]["content"]
    assert sorted(json.loads(found)) == ["Emma", "Hugo", "Kai"]
    written = WrittenAnswers(mini_model, tmp_path / "tools", 96)
    written.text = 'Well. <tool_call>{"name": "seat", "arguments": {"names": ["Kai"]}}</tool_call>'
    message = said(written.place, "/api/chat", messages=ASK, tools=TOOLS)["message"]
    call = {"function": {"index": 0, "name": "seat", "arguments": {"names": ["Kai"]}}}
    assert message == {"role": "assistant", "content": "Well.", "tool_calls": [call]}
    assert "tools" in written.place.call("POST", "/api/show", json={}).json()["capabilities"]
    written.place.close()


def test_results_find_their_calls() -> None:
    call = lambda name, **more: {"function": {"name": name, "arguments": {}}, **more}  # noqa: E731
    sent = [
        {"role": "assistant", "tool_calls": [call("a"), call("b"), call("a", id="x")]},
        {"role": "tool", "content": "1", "tool_name": "b"},
        {"role": "tool", "content": "2", "tool_call_id": "x"},
        {"role": "tool", "content": "3"},
    ]
    made = _messages(read_body(OllamaChatBody, {"messages": sent}, True)[0].messages)
    assert [one.result_of for one in made] == [None, "call_0_1", "x", "call_0_0"]


def test_what_clients_ask_when_they_connect(mini_place: Place) -> None:
    """As Open WebUI, editors and Ollama's own client do."""
    get = lambda path, **headers: mini_place.call("GET", path, headers=headers)  # noqa: E731
    assert get("/", accept="").text == get("/", accept="*/*").text == "Ollama is running"
    assert "<html" in get("/", accept="text/html,*/*;q=0.8").text
    assert mini_place.call("HEAD", "/").status_code == 200
    assert tuple(map(int, get("/api/version").json()["version"].partition("-")[0].split("."))) >= (0, 6, 4)
    (tag,), (running,) = get("/api/tags").json()["models"], get("/api/ps").json()["models"]
    assert tag["name"] == tag["model"] == running["name"] == "mini-llada" and tag["digest"] == running["digest"]
    assert datetime.fromisoformat(running["expires_at"]).year == 9999 and running["context_length"] == 768
    shown = mini_place.call("POST", "/api/show", json={"model": "mini-llada:latest"}).json()
    assert shown["model_info"]["llada.context_length"] == 768 and shown["capabilities"] == ["completion", "insert"]
    plain = load("mini-llada", trainable=True).transformer  # all of whose weights are parameters
    count = sum(one.numel() for one in plain.parameters())
    assert shown["model_info"]["general.parameter_count"] == count and tag["details"]["parameter_size"] == "2.3M"
    assert tag["size"] == 4 * count
    for path, body, reason in (
        ("/api/chat", {"messages": []}, "load"),
        ("/api/generate", {"prompt": "", "keep_alive": 0}, "unload"),
        ("/api/generate", {"system": "Be brief."}, "load"),
        ("/api/chat", {"messages": [{"role": "system", "content": "Be brief."}]}, "load"),
    ):
        told = mini_place.call("POST", path, json=body).json()
        assert told["done"] is True and told["done_reason"] == reason and told["model"] == "mini-llada"


@pytest.mark.parametrize(("path", "name"), [("/api/chat", "suffix"), ("/api/chat", "raw"), ("/api/chat", "system")])
def test_a_field_of_another_route_is_passed_over(mini_place: Place, path: str, name: str) -> None:
    told = said(mini_place, path, messages=ASK, **{name: 98})
    assert told["message"] == said(mini_place, path, messages=ASK)["message"] and name in told["diffusion"]["notes"][0]


TYPES = [None, "", "text/plain", "application/x-www-form-urlencoded", "application/json"]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_body_is_read_as_json_whatever_type_it_has(mini_place: Place, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    for path, body, status in (
        ("/api/generate", {"prompt": ASK[0]["content"], "stream": False}, 200),
        ("/api/show", {}, 200),
        ("/api/chat", {"messages": ASK, "stream": False}, 200),
        ("/api/chat", [], 400),
    ):
        reply = mini_place.call("POST", path, content=json.dumps(body), headers=headers)
        assert reply.status_code == status, (path, reply.text)
    if kind != "application/json":
        assert mini_place.call("POST", CHAT, content=json.dumps({"messages": ASK}), headers=headers).status_code == 415


def test_what_is_not_served_is_no_fault_of_the_server(mini_place: Place, caplog: pytest.LogCaptureFixture) -> None:
    for name in NOT_SERVED:
        path = f"/api/{name.replace('{digest:path}', 'sha256:00')}"
        assert 400 <= mini_place.call("POST", path, json={"model": "x"}).status_code < 500, path
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_what_fails_on_its_way_is_a_line(mini_model: Model) -> None:
    place = Place(mini_model, defaults=mini_defaults(mini_model), timeout=2.0)
    place.scheduler.pause = 0.2
    *_, last = lines(place.call("POST", "/api/chat", json={"messages": ASK, "diffusion": {"sampler": "static"}}))
    assert last == {"error": "the request took more than 2 seconds."}
    place.close()
