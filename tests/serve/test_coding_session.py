"""A session of a coding client (Claude Code 2.1: probe, models, title, count, tools, results), replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dllm.parts import Model
from tests.serve.conftest import events
from tests.serve.folds import of_message
from tests.serve.test_tools import WrittenAnswers

pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install -e '.[constraints]'")
RECORDED = json.loads((Path(__file__).parents[1] / "data" / "coding_session.json").read_text())


def body_of(step: dict[str, Any], model: str) -> dict[str, Any] | None:
    """The body of a request to a ``model``; the tools, which most requests bring, are recorded once."""
    body = step.get("body")
    return body and {**body, "model": model, **({"tools": RECORDED["tools"]} if body.get("tools") else {})}


def test_a_session_of_a_coding_client_runs_to_its_end(mini_model: Model, tmp_path: Path) -> None:
    written = WrittenAnswers(mini_model, tmp_path / "tools", 64)
    place, found = written.place, dict[str, Any]()
    name = place.service.defaults.name
    for step in RECORDED["session"]:
        written.text = step["says"] or '{"title": "Names"}'
        reply = place.call(step["method"], step["path"], json=body_of(step, name), headers=RECORDED["headers"])
        assert reply.status_code == 200, (step["what"], reply.text)
        if step["says"] is None:
            found[step["what"]] = reply.json() if reply.content else None
            continue
        message = of_message(events(reply))
        assert [block["type"] for block in message["content"]] == step["blocks"], step["what"]
        assert (message["stop_reason"], message["model"], message["role"]) == (step["ends"], name, "assistant")
        found[step["what"]] = message
    (model,) = found["models"]["data"]
    assert model["id"] == found["models"]["first_id"] == name and model["type"] == "model"
    assert json.loads(found["title"]["content"][0]["text"]) == {"title": "Names"}
    assert found["ask"]["content"][1]["input"] == {"file_path": "a.txt"}
    assert found["ask"]["usage"]["input_tokens"] == found["count"]["input_tokens"]
    # what changes with every request is no part of the prompt, and a result makes it longer
    assert found["again"]["usage"] == found["result"]["usage"]
    assert found["result"]["usage"]["input_tokens"] > found["count"]["input_tokens"]
    place.close()
