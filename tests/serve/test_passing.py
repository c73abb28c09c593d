"""What other programs send as a matter of course is served: fields that change nothing, and unknown ones."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from dllm.parts import (
    NOTHING_TO_INCLUDE,
    STOP_UNUSED,
    ApiError,
    Defaults,
    ParsedRequest,
    ServeSettings,
    UserError,
    all_models,
    names_of,
    note_of,
    parse_messages,
    parse_ollama,
    parse_request,
    parse_response,
    tenant_of,
)
from tests.serve.bodies import MESSAGES, chat
from tests.serve.conftest import Place

TALK = [{"role": "user", "content": "w5 w7"}]
SALTED: dict[str, dict[str, Any]] = {  # a short request of every route that decodes
    "/v1/chat/completions": {"messages": TALK},
    "/v1/completions": {"prompt": "w5"},
    "/v1/responses": {"input": "w5"},
    "/v1/messages": {"messages": TALK},
    "/api/chat": {"messages": TALK, "stream": False},
    "/api/generate": {"prompt": "w5", "stream": False},
}
# As the sources of the programs list them, with the values that switch them off; not read from the code under test.
SENT: dict[str, list[dict[str, Any]]] = {
    "vllm": [{"repetition_penalty": 1.0}, {"length_penalty": 1.0}, {"use_beam_search": False}, {"stop_token_ids": []},
             {"include_stop_str_in_output": False}, {"spaces_between_special_tokens": True}, {"bad_words": []},
             {"add_generation_prompt": True}, {"continue_final_message": False}, {"add_special_tokens": False},
             {"guided_decoding_backend": "xgrammar"}, {"priority": 0}, {"request_id": "a"},
             {"return_token_ids": False}, {"include_reasoning": True}, {"prompt_logprobs": 0}, {"top_k": -1},
             {"min_tokens": 0, "ignore_eos": False}, {"documents": []}, {"mm_processor_kwargs": {}}],
    "sglang": [{"no_stop_trim": False}, {"separate_reasoning": True}, {"stream_reasoning": True}, {"rid": "r"},
               {"return_hidden_states": False}, {"ebnf": ""}, {"regex": None}, {"custom_params": {}}],
    "llama.cpp": [{"cache_prompt": True}, {"repeat_penalty": 1.0}, {"typical_p": 1.0}, {"mirostat": 0}, {"n_keep": 0},
                  {"mirostat_tau": 5.0, "mirostat_eta": 0.1}, {"xtc_probability": 0.0, "xtc_threshold": 0.1},
                  {"dry_multiplier": 0, "dry_base": 1.75, "dry_sequence_breakers": ["\n"]}, {"top_n_sigma": -1},
                  {"samplers": []}, {"n_predict": -1}, {"n_predict": -2}, {"max_tokens": -1}, {"seed": -1},
                  {"top_k": 0}, {"id_slot": -1}, {"timings_per_token": False}, {"logit_bias": []}, {"grammar": ""}],
    "ollama": [{"keep_alive": "5m"}, {"options": {}}, {"format": ""}, {"think": False}, {"num_keep": 0},
               {"num_predict": -1}, {"tfs_z": 1.0}],
    "openai": [{"prompt_cache_options": {}}, {"stream_options": {"include_usage": True}}, {"verbosity": "medium"}],
}  # fmt: skip


def test_a_salt_changes_who_shares_a_prompt_alone(mini: Defaults) -> None:
    jobs = chat(mini, cache_salt="b").jobs
    assert [job.tenant for job in jobs] == ["b"] and [replace(job, tenant="") for job in jobs] == [*chat(mini).jobs]


@pytest.mark.parametrize("salt", [0, False, ["a"], {}, ""], ids=repr)
@pytest.mark.parametrize("path", SALTED)
def test_a_salt_is_a_text_that_is_not_empty(place: Place, path: str, salt: Any) -> None:
    for asked, status in ((salt, 400), (None, 200), ("a", 200)):
        reply = place.call("POST", path, json={**SALTED[path], "cache_salt": asked})
        assert reply.status_code == status, reply.text
        assert status == 200 or "cache_salt must be a text that is not empty." in reply.text


def test_every_interface_hands_its_salt_on(mini: Defaults) -> None:
    for read, path in (
        (partial(parse_request, chat=True, defaults=mini), "/v1/chat/completions"),
        (partial(parse_request, chat=False, defaults=mini), "/v1/completions"),
        (partial(parse_response, defaults=mini), "/v1/responses"),
        (partial(parse_messages, defaults=mini), "/v1/messages"),
        (partial(parse_ollama, is_chat=True, defaults=mini), "/api/chat"),
        (partial(parse_ollama, is_chat=False, defaults=mini), "/api/generate"),
    ):
        found = read({**SALTED[path], "cache_salt": "x"})
        assert {job.tenant for job in found.jobs} == {"x"} and not found.request.unknown


def test_who_shares_is_told_by_key_and_salt() -> None:
    def same(sharing: str, one: tuple[str, str], other: tuple[str, str]) -> bool:
        return tenant_of(sharing, *one) == tenant_of(sharing, *other)

    for sharing, bare, keys in (("key", True, False), ("all", True, True), ("request", False, False)):
        assert same(sharing, ("k", ""), ("k", "")) == bare
        assert same(sharing, ("k", "s"), ("k", "s"))
        assert same(sharing, ("k", "s"), ("l", "s")) == keys
        assert not same(sharing, ("k", "s"), ("k", "t")) and not same(sharing, ("k", ""), ("k", "s"))
    with pytest.raises(UserError, match=r"task\.prefix_sharing"):
        replace(ServeSettings(), prefix_sharing="some").check()


@pytest.mark.parametrize("program", SENT)
def test_fields_that_switch_nothing_on_pass_silently(mini: Defaults, program: str) -> None:
    plain = chat(mini)
    for fields in SENT[program]:
        assert same(chat(mini, **fields), plain), fields
        body = {"model": "mini", "input": MESSAGES, **fields}
        if not {"max_tokens", "n_predict", "num_predict"} & set(fields):
            assert same(parse_response(body, mini), parse_response({"model": "mini", "input": MESSAGES}, mini)), fields


@pytest.mark.parametrize("length", [-1, -2])
def test_ollama_says_by_a_negative_length_that_there_is_no_bound(mini: Defaults, length: int) -> None:
    body = {"model": "mini", "messages": MESSAGES, "options": {"num_predict": length}}
    left = mini.model.config.max_length - 64  # which prompts keep
    found, most = parse_ollama(body, True, mini), chat(mini, max_tokens=left)
    assert len(found.jobs[0].request.tokens) == len(most.jobs[0].request.tokens) > left


@pytest.mark.parametrize("form", [{"type": "text"}, {"type": "json_object"}])
def test_forms_without_a_schema_are_those_of_chat(mini: Defaults, form: dict[str, str]) -> None:
    found = parse_response({"model": "mini", "input": MESSAGES, "text": {"format": form}}, mini)
    assert same(found, chat(mini, response_format=form))


def same(found: ParsedRequest, plain: ParsedRequest) -> bool:
    """Whether two requests ask for the same, and are told the same."""
    return found.jobs == plain.jobs and (found.diffusion_notes, found.stop) == (plain.diffusion_notes, plain.stop)


def test_the_table_says_each_thing_once() -> None:
    for kind in all_models():
        for name, row in kind.others.items():
            json.dumps(row.neutral, allow_nan=False)
            own, empty = name in names_of(kind), row.neutral is not None and not row.why
            assert not own or empty, f"{kind.__name__}.{name} is a field, and its other values are read"
            assert row.neutral is not None or not own


def test_a_field_that_nobody_knows_passes_with_a_note(mini: Defaults) -> None:
    fields: dict[str, Any] = {"provider": {"order": ["a"]}, "zzz": 1, "messages": [{**MESSAGES[0], "timestamp": 5}] * 3}
    found = chat(mini, **fields)
    assert found.request.unknown == ("provider", "zzz", "messages[0].timestamp")
    (note,) = found.diffusion_notes["notes"]
    assert note == "Not known here, and passed over: provider, zzz, messages[0].timestamp."
    assert same(replace(found, request=replace(found.request, unknown=())), chat(mini, messages=MESSAGES * 3))
    body = {"model": "mini", "input": [{**MESSAGES[0], "timestamp": 5}], "zzz": 1, "reasoning": {"mode": 1}}
    assert parse_response(body, mini).request.unknown == ("zzz", "reasoning.mode", "input[0].timestamp")
    assert note_of(["a" * 64, "b" * 65]) == f"Not known here, and passed over: {'a' * 64}, {'b' * 64}...."
    strict = replace(mini, refuses_unknown=True)
    for route in (True, False):
        with pytest.raises(ApiError, match="'zzz' is not a field of this request."):
            parse_request({"model": "mini", "messages" if route else "prompt": MESSAGES, "zzz": 1}, route, strict)
    with pytest.raises(ApiError, match="'zzz' is not a field of this request."):
        parse_response({"model": "mini", "input": "a", "zzz": 1}, strict)


def test_what_agents_send_with_every_response_passes(mini: Defaults) -> None:
    plain = parse_response({"model": "mini", "input": MESSAGES}, mini)
    think = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    sent: list[dict[str, Any]] = [
        {"include": list(NOTHING_TO_INCLUDE)},
        {"include": []},
        {"truncation": "auto"},
        {"truncation": "disabled"},
        {"client_metadata": {"session_id": "x"}},
        {"reasoning": {"summary": "auto"}},
        {"store": True},
        {"reasoning": {"effort": None, "summary": None}},
        {"reasoning": {"effort": "none", "summary": "concise"}},
        {"stream_options": {"include_usage": True}},
        {"input": [think, *MESSAGES, think]},
        {"tools": []},
        {"parallel_tool_calls": True, "tool_choice": "auto"},
    ]
    for fields in sent:
        assert same(parse_response({"model": "mini", "input": MESSAGES, **fields}, mini), plain), fields


def test_what_a_server_sent_of_a_message_comes_back(mini: Defaults) -> None:
    said = {"role": "assistant", "content": "a", "reasoning_content": "hm", "cache_control": {"type": "ephemeral"}}
    parts = [{"type": "text", "text": MESSAGES[0]["content"], "cache_control": {"type": "ephemeral"}}]
    found = chat(mini, messages=[*MESSAGES, said, {"role": "user", "content": parts}])
    bare = chat(mini, messages=[*MESSAGES, {"role": "assistant", "content": "a"}, *MESSAGES])
    assert same(found, bare)


FORMS: list[tuple[dict[str, Any], bool]] = [
    ({"response_format": {"type": "json_object"}}, True),
    ({"guided_json": {"type": "integer"}}, True),
    ({"tools": [{"type": "function", "function": {"name": "a"}}], "tool_choice": "required"}, True),
    ({"guided_regex": "[0-9]+"}, False),
    ({"guided_choice": ["a", "b"]}, False),
    ({}, False),
]


@pytest.mark.parametrize(("form", "whole"), FORMS, ids=range(len(FORMS)))
def test_a_stop_string_is_passed_over_where_a_cut_text_would_be_no_json(
    mini: Defaults, form: dict[str, Any], whole: bool
) -> None:
    found = chat(mini, stop=["Observation:"], **form)
    assert (found.stop == ()) == whole == (STOP_UNUSED in found.notes)
