"""``/openapi.json`` says what is taken: JSON Schema judges bodies as the server does. ``/docs`` shows it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dllm import load
from dllm.parts import ServeSettings
from experiments.pages.site_hooks import completed
from tests.repo.test_docs import code
from tests.serve.conftest import ASK, Place
from tests.serve.live import Live, live
from tests.serve.test_mutations import FORMS, SERVED
from tests.serve.test_passing import SENT
from tests.serve.test_refusal_table import PATHS, ROWS, unpacked

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install -e '.[constraints]'")


@pytest.fixture(scope="module")
def document(place: Place) -> dict[str, Any]:
    return dict(place.call("GET", "/openapi.json").json())


def set_fields(value: Any) -> Any:
    """A body without what is null, which is not set."""
    if isinstance(value, list):
        return [set_fields(entry) for entry in value]
    return {k: set_fields(v) for k, v in value.items() if v is not None} if isinstance(value, dict) else value


def is_valid(document: dict[str, Any], path: str, body: Any) -> bool:
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    whole = {**schema, "components": document["components"]}
    jsonschema.Draft202012Validator.check_schema(whole)
    return bool(jsonschema.Draft202012Validator(whole).is_valid(set_fields(body)))


def test_every_route_that_takes_a_body_needs_one(document: dict[str, Any], place: Place) -> None:
    """What the document says, and what the server does with an empty body."""
    posts = {path: methods["post"] for path, methods in document["paths"].items() if "post" in methods}
    bodies = {path: post["requestBody"] for path, post in posts.items() if "requestBody" in post}
    assert bodies and all(body["required"] for body in bodies.values())
    empty = {"content": b"", "headers": {"content-type": "application/json"}}
    assert {place.call("POST", path, **empty).status_code for path in bodies} == {400}


def test_what_the_server_takes_is_valid(document: dict[str, Any]) -> None:
    chat = "/v1/chat/completions"
    taken = [*SERVED, *((chat if "messages" in body else "/v1/completions", body) for body in FORMS)]
    taken += [(chat, {**ASK, **fields}) for many in SENT.values() for fields in many]
    assert [body for path, body in taken if not is_valid(document, path, body)] == []


def test_kinds_and_ranges_are_those_of_the_document(document: dict[str, Any]) -> None:
    """What the schema finds wrong, the server refuses; it says most refusals that need neither model nor template."""
    kinds = [row for row in ROWS if re.search(r"must (be (text|a whole|a number|true or)|lie in)", row["message"])]
    found = [is_valid(document, PATHS[row["route"]], unpacked(row["body"])) for row in kinds]
    assert found.count(False) > 0.7 * len(kinds) > 25


def test_the_page_needs_nothing_from_elsewhere(place: Place, document: dict[str, Any]) -> None:
    reply = place.call("GET", "/docs")
    assert reply.status_code == 200 and "script-src 'none'" in reply.headers["content-security-policy"]
    assert not re.search(r"<script|<link|<img|https?://", reply.text)
    for name, held in document["components"]["schemas"].items():
        assert f'<h2 id="{name}">' in reply.text
        assert all(f"<code>{field}</code>" in reply.text for field in held.get("properties", ()))
    targets = re.findall(r'href="#(\w+)"', reply.text)
    assert set(targets) <= set(document["components"]["schemas"]) and targets


def test_every_field_says_what_it_means(document: dict[str, Any]) -> None:
    silent = [
        (name, field)
        for name, held in document["components"]["schemas"].items()
        for field, one in held.get("properties", {}).items()
        if name != "Failure" and not one.get("description") and "$ref" not in one
    ]
    assert silent == []


DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "serving.md"
TEXT = "".join(
    completed((DOCS / f"{page}.md").read_text(encoding="utf-8"), DOCS)
    for page in ("serving", "serving_fields", "serving_operate")
)
HERE = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    from dllm.serve.dialects import request_parts
    from tests.serve import conftest

    model = load("mini-llada")
    plain = conftest.defaults_of(model)
    own = request_parts.Defaults(
        model, "mini-llada", plain.sampler, plain.blocks, plain.cache, plain.eos, gen_length=32
    )
    with live(model, defaults=own) as started:
        yield started


def test_the_python_of_the_page_runs(server: Live, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openai", reason="openai is not installed: pip install -e '.[dev]'")
    pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install -e '.[constraints]'")
    for block in code(PAGE, "python"):
        exec(compile(block.replace(HERE, server.url), PAGE.name, "exec"), {})
    said = capsys.readouterr().out
    assert said.startswith('["Hugo", "Emma", "Kai"]\n["Hugo", "Emma", "Kai"]')
    assert said.count('["Kai", "Emma", "Hugo"] 1\n') == 2
    assert re.search(r"\nEmma\n(Kai|Emma|Hugo) choice\nseat \['names'\]\n\[\"Emma\", \"Hugo\", \"Kai\"\]\n$", said)


def test_curl_gets_what_the_page_shows(server: Live) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    asked = [block for block in code(PAGE, "bash") if block.startswith("curl")]
    said = []
    for block in asked:
        command = ["bash", "-c", block.replace(HERE, server.url)]
        said.append(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
    (shown,) = code(PAGE, "json")
    pattern = re.escape(shown.strip()).replace("…", r"[\w.e-]+")
    assert re.fullmatch(pattern, said[0]), said[0]
    lines = [line for line in said[1].splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas).count("\n") == 3


def test_the_tables_of_the_page_are_complete(server: Live) -> None:
    from dllm.parts import (
        MOST_BYTES,
        OFFERS,
        ChatBody,
        CompletionBody,
        ConstraintOptions,
        Diffusion,
        composed,
        names_near,
    )

    models = (ChatBody, CompletionBody, Diffusion, ConstraintOptions)
    for name in (name for model in models for name in names_near(model)):
        assert f"`{name}`" in TEXT, f"the field {name} is missing"
    with server.client() as client:
        page = client.get("/metrics").text
    assert all(f'{{"type": "{kind}"' in TEXT for kind in OFFERS) and max(MOST_BYTES.values()) == 64 << 10
    found = re.findall(r"^(dllm_\w+)", page, re.MULTILINE)
    made = {re.sub(r"_(created|bucket|count|sum)$", "", name) for name in found}
    assert sorted(name for name in made if f"`{name}" not in TEXT) == []
    for name in (
        "max_tokens_in_flight",
        "max_prefill_tokens",
        "max_lanes",
        "max_waiting",
        "timeout",
        "max_connections",
        "compile_seconds",
    ):
        assert f"| `task.{name}` |" in TEXT
        assert f"{int(composed(['task=serve']).task[name]):,}" in TEXT.split(f"| `task.{name}` |")[1].splitlines()[0]
    assert ServeSettings().read_timeout == 30
