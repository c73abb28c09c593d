"""What the server takes, from the models of its bodies: ``/openapi.json`` for programs, ``/docs`` for people."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from pydantic.json_schema import models_json_schema

from dllm.common.versions import version_of
from dllm.serve.dialects.anthropic_fields import MessagesBody
from dllm.serve.dialects.decision_fields import DecisionBody
from dllm.serve.dialects.fields import ChatBody, CompletionBody
from dllm.serve.dialects.ollama_fields import OllamaChatBody, OllamaGenerateBody
from dllm.serve.dialects.responses import ResponseBody
from dllm.serve.http.playground import between, page_headers, source_hash
from dllm.serve.http.typed import BodyObject, all_models

PLACE = "#/components/schemas/"
BODIES: dict[str, tuple[type[BodyObject], str]] = {
    "/v1/chat/completions": (ChatBody, "Answer a conversation."),
    "/v1/completions": (CompletionBody, "Continue a prompt."),
    "/v1/responses": (ResponseBody, "Answer in the form of OpenAI's Responses."),
    "/v1/messages": (MessagesBody, "Answer in the form of Anthropic's Messages."),
    "/api/chat": (OllamaChatBody, "Answer in the form of Ollama's chat."),
    "/api/generate": (OllamaGenerateBody, "Answer, continue or fill in, in the form of Ollama's generate."),
    "/v1/decisions": (DecisionBody, "Answer questions by probabilities."),
}
WITHOUT_BODY = {
    "/v1/models": "The model that is served, by each of its names.",
    "/v1/parts": "What a request may choose.",
    "/health": "Whether requests are taken; needs no key.",
    "/metrics": "Figures for Prometheus.",
}
ABOUT = (
    "A field that is null is not set. A field that nothing here is like is passed over, with a note in the reply "
    "(task.unknown_fields=refuse refuses it); one that looks like a known one is refused with the nearest name."
)
FAILURE = {
    "type": "object", "required": ["error"], "description": "A refusal or a failure.",
    "properties": {"error": {"type": "object", "required": ["message", "type", "param", "code"], "properties": {
        "message": {"type": "string", "description": "one sentence: the field, its value, the rule, the way out"},
        "type": {"type": "string"}, "param": {"type": ["string", "null"], "description": "the field at fault"},
        "code": {"type": ["string", "null"], "description": "the reason in a word"}}}},
}  # fmt: skip
DOCS_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td,th{border-top:1px solid #8885;padding:.3rem .6rem;text-align:left;"
    "vertical-align:top}code{font-family:ui-monospace,monospace}:root{color-scheme:light dark}"
)


def openapi_document(server: str) -> dict[str, Any]:
    """The document of OpenAPI 3.1. server: the model's name."""
    kinds: list[Any] = [(kind, "validation") for kind, _ in BODIES.values()]
    _, document = models_json_schema(kinds, ref_template=PLACE + "{model}")
    schemas: dict[str, Any] = document["$defs"]
    for name in schemas.keys() & (models := {kind.__name__: kind for kind in all_models()}).keys():
        _add_foreign_fields(schemas[name].setdefault("properties", {}), models[name])
    posts = {path: {"post": _post(kind.__name__, about)} for path, (kind, about) in BODIES.items()}
    gets = {
        path: {"get": {"summary": about, "responses": {"200": {"description": "as it says"}}}}
        for path, about in WITHOUT_BODY.items()
    }
    info = {"title": f"dllm serve: {server}", "version": version_of("dllm") or "0", "description": ABOUT}
    key = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": info,
        "paths": {**posts, **gets},
        "security": [{}, {"key": []}],
        "components": {"schemas": {**schemas, "Failure": FAILURE}, "securitySchemes": key},
    }


def _add_foreign_fields(properties: dict[str, Any], kind: type[BodyObject]) -> None:
    """Add the fields that other servers have, with the values that pass."""
    for name, row in kind.others.items():
        passing = {} if row.neutral is None else {"enum": [*row.neutral, None]}
        if name in properties:  # other values are read
            schema = properties[name]
            properties[name] = {"anyOf": [schema, passing], "description": schema["description"]}
        elif row.why:
            properties[name] = {**passing, "description": "without effect" if row.neutral is None else row.why}


def _post(body: str, about: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {"schema": {"type": "string"}}}
    failure = {
        "description": "why not, in a sentence",
        "content": {"application/json": {"schema": {"$ref": f"{PLACE}Failure"}}},
    }
    return {
        "summary": about,
        "requestBody": {"required": True, "content": {"application/json": {"schema": {"$ref": PLACE + body}}}},
        "responses": {"200": {"description": "the answer; a stream's events", "content": content}, "default": failure},
    }


def docs_page(document: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The document as a page without scripts, and its headers."""
    title = escape(document["info"]["title"])
    rows = "".join(
        f"<tr><td>{method.upper()} <code>{escape(path)}</code></td><td>{escape(operation['summary'])}</td>"
        f"<td>{_body(operation)}</td></tr>"
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    models = "".join(_model(name, schema) for name, schema in document["components"]["schemas"].items())
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{DOCS_STYLE}</style>'
        f'<h1>{title}</h1><p>{escape(document["info"]["description"])} <a href="openapi.json">openapi.json</a> says '
        f'the same to programs, and <a href="./">the playground</a> asks.</p><table>{rows}</table>{models}</html>'
    )
    return page, page_headers(script="none", style=source_hash(between(page, "style")))


def _body(operation: Mapping[str, Any]) -> str:
    body = operation.get("requestBody")
    return "" if body is None else _kind(body["content"]["application/json"]["schema"])


def _model(name: str, schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code>{' (needed)' if field in required else ''}</td><td>{_kind(entry)}</td>"
        f"<td>{escape(entry.get('description', ''))}</td></tr>"
        for field, entry in schema.get("properties", {}).items()
    )
    about = escape(schema.get("description", ""))
    return f'<h2 id="{escape(name)}">{escape(name)}</h2><p>{about}</p><table>{rows}</table>'


def _kind(schema: Mapping[str, Any]) -> str:
    """What a value may be, with its bounds and its default."""
    if "$ref" in schema:
        name = escape(schema["$ref"].removeprefix(PLACE))
        return f'<a href="#{name}">{name}</a>'
    if several := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(_kind(choice) for choice in several if choice.get("type") != "null") + _default(schema)
    if "enum" in schema or "const" in schema:
        return ", ".join(f"<code>{escape(repr(choice))}</code>" for choice in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    bounds = [
        f"{words} {schema[key]}"
        for key, words in (("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "to"))
        if key in schema
    ]
    return " ".join([escape(str(schema.get("type", "anything"))), *bounds]) + _default(schema)


def _default(schema: Mapping[str, Any]) -> str:
    return (
        f", default <code>{escape(repr(schema['default']))}</code>"
        if schema.get("default") not in (None, {}, [])
        else ""
    )
