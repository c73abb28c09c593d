"""Every refusal that is recorded (``tests/data/refusals.json``): the same status, field, code and sentence.

A better sentence is written into the table, so that a change shows which ones it touched.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from dllm import load
from dllm.parts import Model
from tests.serve.conftest import Place, error_of, writing
from tests.serve.test_tools import TEMPLATE
from tests.support.tiny import make_written

FILE = Path(__file__).parents[1] / "data/refusals.json"
ROWS: list[dict[str, Any]] = json.loads(FILE.read_text())
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "decisions": "/v1/decisions",
    "messages": "/v1/messages",
    **{f"api/{name}": f"/api/{name}" for name in ("chat", "generate", "show", "pull", "embed")},
}
SERVERS = ("mini", "tiny", "written", "calling")  # the demo model; tiny ones without bytes, with bytes, with tools


def unpacked(value: Any) -> Any:
    """A body in which ``{"repeat": [VALUE, TIMES]}`` stands for a long text or list."""
    if isinstance(value, list):
        return [unpacked(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"repeat"}:
        unit, times = value["repeat"]
        return unpacked(unit) * times
    return {name: unpacked(entry) for name, entry in value.items()}


@pytest.fixture(scope="module")
def servers(mini_place: Place, place: Place, writer: Place, tmp_path_factory: Any) -> Iterator[dict[str, Place]]:
    folder = make_written(tmp_path_factory.mktemp("models") / "calling")
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": TEMPLATE}))
    model: Model = load(folder)
    calling = Place(model, defaults=replace(writing(model), gen_length=96))
    yield dict(zip(SERVERS, (mini_place, place, writer, calling), strict=True))
    calling.close()


def told_by(reply: httpx.Response, path: str) -> dict[str, Any]:
    """The error in OpenAI's words. Anthropic's form has a type, which stands for the code, and Ollama's a text."""
    error = reply.json()["error"]
    if path == "/v1/messages":
        assert reply.json().keys() == {"type", "error", "request_id"} and reply.json()["type"] == "error"
        assert reply.json()["request_id"] == reply.headers["request-id"]
        return {"code": error["type"], "message": error["message"]}
    if path.startswith("/api/"):
        assert reply.json().keys() == {"error"}
        return {"message": error}
    return error_of(reply)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("route", PATHS)
def test_what_cannot_be_served_is_refused_as_recorded(servers: dict[str, Place], server: str, route: str) -> None:
    """Sentences are written anew by ``DLLM_WRITE=1 pytest`` on this file; status, field and code never."""
    rows = [row for row in ROWS if (row["server"], row["route"]) == (server, route)]
    wrong, figures = [], servers[server].scheduler.figures
    turns = figures().turns
    for row in rows:
        reply = servers[server].call("POST", PATHS[route], json=unpacked(row["body"]))
        error = {} if reply.status_code == 200 else told_by(reply, PATHS[route])
        found = {"status": reply.status_code, **{name: error.get(name) for name in ("param", "code", "message")}}
        same = all(found[name] == row[name] for name in ("status", "param", "code"))
        if same and os.environ.get("DLLM_WRITE"):
            row["message"] = found["message"]
            FILE.write_text("[\n" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in ROWS) + "\n]\n")
        if found != {name: row[name] for name in found}:
            wrong.append((row["body"], found))
    assert wrong == [] and figures().turns == turns, "nothing was decoded"


def test_each_sentence_names_its_field_and_ends_as_one() -> None:
    for row in ROWS:
        assert row["message"].endswith((".", "?", "...")), row
        assert row["status"] in (400, 403, 404, 413), row
        assert (row["param"] is None) == (row["route"] == "messages" or row["route"].startswith("api/")), row
