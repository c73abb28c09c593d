"""Calls over both routes, of random tools: valid under the tool's own schema, streamed as whole, and accepted back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import full

pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install -e '.[constraints]'")

from jsonschema.validators import Draft202012Validator, validator_for
from tool_schemas import ToolSchemas

from tests.serve.conftest import Place
from tests.serve.test_response_calls import respond, streamed
from tests.serve.test_tools import caller, calling, deltas  # noqa: F401

NAMES = ("default", "const", "enum", "examples", "type", "properties", "a")  # that the model's signs can write
QUICK = {"threshold": 0.001}  # many tokens a turn
LOOSE = (
    {},
    {"title": "t"},
    None,
    {"type": ["object", "null"]},
    {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}},
)


def tool(name: str, schema: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema}}


@pytest.mark.parametrize("seed", range(40 if full() else 1))
def test_calls_of_random_tools(caller: Place, seed: int) -> None:  # noqa: F811
    schemas = {"mine": ToolSchemas(seed, NAMES, depth=0).schema(), "other": LOOSE[seed % len(LOOSE)]}
    tools = [tool(name, schema) for name, schema in schemas.items()]
    ways = (tools, "required"), (tools[:1], "required"), (tools, tool("mine", None))
    for given, choice in ways if full() else ways[:1]:
        chosen = {"type": "function", "function": {"name": "mine"}} if isinstance(choice, dict) else choice
        body = {
            "tools": given,
            "tool_choice": chosen,
            "temperature": 1.5,
            "seed": seed,
            "max_tokens": 120,
            "diffusion": QUICK,
        }
        reply = caller.ask(**body)
        assert reply.status_code == 200, reply.text
        (said,) = reply.json()["choices"]
        (call,) = said["message"]["tool_calls"]
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        schema = schemas[name] or {}
        judge = validator_for(schema, Draft202012Validator)(schema)
        assert isinstance(json.loads(arguments), dict) and judge.is_valid(json.loads(arguments)), (schema, arguments)
        _, (same,), _ = deltas(caller.ask(**body, stream=True))
        assert (same["name"], same["arguments"]) == (name, arguments)

        flat = [{"type": "function", **one["function"]} for one in given]
        chosen = {"type": "function", "name": "mine"} if isinstance(choice, dict) else choice
        asked = {
            "input": "w5 w7 w9",
            "tools": flat,
            "tool_choice": chosen,
            "max_output_tokens": 120,
            "diffusion": QUICK,
        }
        asked |= {"temperature": 1.5, "seed": seed}
        (item,) = respond(caller, **asked).json()["output"]
        assert (item["name"], item["arguments"]) == (name, arguments)
        _, (grown,), _ = streamed(caller, **asked)
        assert (grown["name"], grown["arguments"]) == (name, arguments)

        result = {"role": "tool", "tool_call_id": call["id"], "content": "a"}
        talk = [{"role": "user", "content": "a"}, said["message"], result]
        assert caller.ask(messages=talk, tools=given, tool_choice="none", max_tokens=1).status_code == 200
        output = {"type": "function_call_output", "call_id": item["call_id"], "output": "a"}
        assert respond(caller, input=[item, output], max_output_tokens=1).status_code == 200
