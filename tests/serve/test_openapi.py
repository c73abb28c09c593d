"""``/openapi.json`` says what is taken: JSON Schema judges bodies as the server does. ``/docs`` shows it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.serve.conftest import ASK, Place
from tests.serve.test_mutations import FORMS, SERVED
from tests.serve.test_passing import SENT
from tests.serve.test_refusal_table import PATHS, ROWS, unpacked

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install 'dllm[constraints]'")


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
    silent = [(name, field) for name, held in document["components"]["schemas"].items()
              for field, one in held.get("properties", {}).items()
              if name != "Failure" and not one.get("description") and "$ref" not in one]  # fmt: skip
    assert silent == []
