"""Law: a plain reply is the fold of its stream, in all six addresses, whatever the answer holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dllm.parts import Model
from tests.serve.bodies import mini_defaults
from tests.serve.conftest import CHAT, Place
from tests.serve.folds import COMPLETIONS, GENERATE, MESSAGES, OLLAMA, RESPONSES, both
from tests.serve.test_thinking import thinker  # noqa: F401  fixture
from tests.serve.test_tools import SAY, TOOLS, WrittenAnswers, caller, calling  # noqa: F401  fixtures


def asked(path: str, text: str, tokens: int, **more: Any) -> dict[str, Any]:
    """A request for ``tokens`` tokens at most, in the form of an address. more: fields that all forms have."""
    messages, options = [{"role": "user", "content": text}], {"num_predict": tokens, **more}
    return {
        CHAT: {"messages": messages, "max_tokens": tokens, **more},
        COMPLETIONS: {"prompt": text, "max_tokens": tokens, **more},
        RESPONSES: {"input": text, "max_output_tokens": tokens, **more},
        MESSAGES: {"messages": messages, "max_tokens": tokens, **more},
        OLLAMA: {"messages": messages, "options": options},
        GENERATE: {"prompt": text, "options": options},
    }[path]


def tooled(path: str, choice: str) -> dict[str, Any]:
    """The same functions in the form of an address. choice: in chat's words."""
    flat = [{"type": "function", **tool["function"]} for tool in TOOLS]  # type: ignore[dict-item]
    named = [{"name": one["name"], "input_schema": one["parameters"]} for one in flat]
    words = {"required": "any", "auto": "auto"}
    if path == MESSAGES:
        return {"tools": named, "tool_choice": {"type": words[choice]}}
    return {"tools": flat if path == RESPONSES else TOOLS, "tool_choice": choice}


@pytest.fixture(scope="module")
def small(mini_model: Model) -> Iterator[Place]:
    place = Place(mini_model, defaults=mini_defaults(mini_model))
    yield place
    place.close()


PATHS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, OLLAMA, GENERATE)
CALLS = (CHAT, RESPONSES, MESSAGES, OLLAMA)
SORTING = 'Sort the list:\n["Kai", "Emma", "Hugo"]'


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("tokens", [32, 3])
def test_of_text_that_ends_or_is_cut(small: Place, path: str, tokens: int) -> None:
    whole, stream = both(small, path, asked(path, SORTING, tokens))
    assert whole == stream


@pytest.mark.parametrize("path", PATHS)
def test_of_a_thought_and_an_answer(thinker: Place, path: str) -> None:  # noqa: F811
    for seed in range(4):
        whole, stream = both(thinker, path, asked(path, "a", 24, temperature=1.5, seed=seed))
        assert whole == stream, seed


@pytest.mark.parametrize("path", CALLS)
def test_of_a_forced_call(caller: Place, path: str) -> None:  # noqa: F811
    for tools in ({}, {"tools": tooled(path, "required")["tools"][1:]}):
        whole, stream = both(
            caller, path, {**asked(path, "a", 96, temperature=1.5, seed=3), **tooled(path, "required"), **tools}
        )
        assert whole == stream


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize(
    "text",
    [
        'So: <tool_call>{"name": "say", "arguments": {"w": "bc"}}</tool_call>\n<tool_call>{"name": "sort"}</tool_call>',
        '<tool_call>{"name": "say", "arguments": {"w": "bc"}}</tool_call> so',
        "no call < here  ",
        "",
        "<tool_call>{",
    ],
    ids=["text and two", "call and text", "text", "nothing", "broken"],
)
def test_of_calls_that_a_model_wrote(mini_model: Model, tmp_path: Path, path: str, text: str) -> None:
    written = WrittenAnswers(mini_model, tmp_path / "tools", 96)
    written.text = text
    whole, stream = both(written.place, path, {**asked(path, "a", 96), **tooled(path, "auto")})
    assert whole == stream and (json.dumps(whole).count('"name": "sort"') > 0) == ("sort" in text or path == RESPONSES)
    written.place.close()


def test_of_several_choices_and_their_log_probabilities(small: Place) -> None:
    more = {"n": 2, "temperature": 1.0, "seed": 3, "logprobs": True, "return_token_ids": True}
    for path in (CHAT, COMPLETIONS):
        whole, stream = both(small, path, asked(path, SORTING, 9, **more))
        assert whole == stream


def test_of_a_gap(small: Place) -> None:
    body = {"prompt": '["Kai", ', "suffix": ', "Hugo"]', "options": {"num_predict": 4}}
    whole, stream = both(small, GENERATE, body)
    assert whole == stream and not whole["response"].endswith('"Hugo"]')
