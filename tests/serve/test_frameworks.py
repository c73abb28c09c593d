"""Frameworks that speak OpenAI's interface, against a server of the shipped model: LangChain, instructor, LiteLLM.

They come with ``pip install -e '.[frameworks]'``; openai alone is in the usual tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest

from dllm.parts import Model
from tests.serve.bodies import mini_defaults
from tests.serve.live import Live, live

pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed: pip install -e '.[dev]'")
pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install -e '.[constraints]'")
ASK = 'Sort the list:\n["Kai", "Emma", "Hugo"]'
SORTED = '["Emma", "Hugo", "Kai"]'


class Seats(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    """Who sits where."""

    names: list[Literal["Kai", "Emma", "Hugo"]] = pydantic.Field(min_length=3, max_length=3)
    round: bool


def seat(names: list[Literal["Kai", "Emma", "Hugo"]]) -> str:
    """Seat people at a table."""
    return " ".join(names)


@pytest.fixture(scope="module")
def server(mini_model: Model) -> Iterator[Live]:
    with live(mini_model, defaults=mini_defaults(mini_model, gen_length=64)) as started:
        yield started


@pytest.fixture(scope="module")
def openai_client(server: Live) -> Any:
    openai = pytest.importorskip("openai", reason="openai is not installed: pip install -e '.[dev]'")
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")


def test_openai_parses_forms_and_calls(openai_client: Any) -> None:
    from openai import pydantic_function_tool

    asked: dict[str, Any] = {"model": "mini", "messages": [{"role": "user", "content": ASK}]}
    reply = openai_client.chat.completions.parse(response_format=Seats, **asked)
    assert len(reply.choices[0].message.parsed.names) == 3
    named = {"type": "function", "function": {"name": "Seats"}}
    called = openai_client.chat.completions.parse(tools=[pydantic_function_tool(Seats)], tool_choice=named, **asked)
    (call,) = called.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Seats)
    with openai_client.chat.completions.stream(
        tools=[pydantic_function_tool(Seats)], tool_choice="required", **asked
    ) as stream:
        for _ in stream:
            pass
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.parsed_arguments == call.function.parsed_arguments
    with openai_client.chat.completions.stream(response_format=Seats, **asked) as stream:
        parsed = stream.until_done().get_final_completion().choices[0].message.parsed
    assert parsed == reply.choices[0].message.parsed


def test_langchain_invokes_streams_binds_and_structures(server: Live) -> None:
    chat = pytest.importorskip("langchain_openai", reason="pip install -e '.[frameworks]'")
    model = chat.ChatOpenAI(model="mini", base_url=f"{server.url}/v1", api_key="none", temperature=0)
    assert model.invoke(ASK).content == SORTED
    assert "".join(str(chunk.content) for chunk in model.stream(ASK)) == SORTED
    for method in ("json_schema", "function_calling"):
        found = model.with_structured_output(Seats, method=method).invoke(ASK)
        assert isinstance(found, Seats) and len(found.names) == 3, method
    (call,) = model.bind_tools([seat], tool_choice="seat").invoke(ASK).tool_calls
    assert call["name"] == "seat" and set(call["args"]["names"]) <= {"Kai", "Emma", "Hugo"}
    (forced,) = model.bind_tools([seat, Seats], tool_choice="any").invoke(ASK).tool_calls
    assert forced["name"] in ("seat", "Seats")
    with pytest.raises(Exception, match="chat template has no place for tools"):
        model.bind_tools([seat]).invoke(ASK)


def test_instructor_gets_objects_in_both_modes(openai_client: Any) -> None:
    instructor = pytest.importorskip("instructor", reason="pip install -e '.[frameworks]'")
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(openai_client, mode=mode)
        asked = [{"role": "user", "content": ASK}]
        found = client.chat.completions.create(model="mini", messages=asked, response_model=Seats)
        assert len(found.names) == 3, mode


def test_litellm_answers_and_streams(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it asks the network when it is imported
    litellm = pytest.importorskip("litellm", reason="pip install -e '.[frameworks]'")
    asked: dict[str, Any] = {
        "model": "openai/mini",
        "api_base": f"{server.url}/v1",
        "api_key": "none",
        "messages": [{"role": "user", "content": ASK}],
    }
    assert litellm.completion(**asked).choices[0].message.content == SORTED
    chunks = litellm.completion(**asked, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SORTED
    tools = [{"type": "function", "function": {"name": "seat", "parameters": Seats.model_json_schema()}}]
    reply = litellm.completion(**asked, tools=tools, tool_choice="required")
    Seats.model_validate_json(reply.choices[0].message.tool_calls[0].function.arguments)
    for model in ("ollama/mini", "ollama_chat/mini"):  # which send no Content-Type
        asked = {"model": model, "api_base": server.url, "messages": asked["messages"]}
        assert litellm.completion(**asked).choices[0].message.content == SORTED
        chunks = litellm.completion(**asked, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SORTED
