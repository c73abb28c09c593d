"""A body becomes jobs: OpenAI's fields, seeds, prompts and canvases."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from typing import Any

from dllm.parts import Defaults, parse_request
from tests.serve.bodies import chat


def test_choices_differ_by_their_seeds(mini: Defaults) -> None:
    found = chat(mini, n=3, seed=7, temperature=0.5)
    assert [job.request.seed for job in found.jobs] == [7, 8, 9]
    assert {job.request.temperature for job in found.jobs} == {0.5} and found.jobs[0].deadline == inf
    drawn = {chat(mini, temperature=0.5).jobs[0].request.seed for _ in range(4)}
    assert len(drawn) > 1 and all(0 <= seed < 2**31 for seed in drawn)
    assert chat(mini).jobs[0].request.seed == mini.seed and not chat(mini).jobs[0].follow


def test_the_plain_fields_arrive(mini: Defaults) -> None:
    found = chat(
        mini, stream=True, stream_options={"include_usage": True}, logprobs=True, stop=["x", "y"], user="me",
        metadata={"a": "b"}, response_format={"type": "text"}, presence_penalty=0.0, echo=False, best_of=1, suffix=None,
        diffusion={"snapshots": True, "trace": True}, max_completion_tokens=9, max_tokens=9, top_k=5,
    )  # fmt: skip
    asked = found.request
    assert asked.is_chat and asked.stream and asked.include_usage and asked.logprobs
    assert found.stop == ("x", "y") and found.jobs[0].snapshots and found.jobs[0].trace
    assert (
        found.prompt_tokens == len(found.jobs[0].request.tokens) - 9 and found.jobs[0].setting.parts.sampling.top_k == 5
    )
    plain = parse_request({"prompt": "a", "logprobs": 0, "stop": "x"}, False, mini)
    assert plain.request.logprobs and plain.jobs[0].follow and plain.stop == ("x",)
    assert not (plain.request.is_chat or plain.request.stream or plain.request.include_usage)


def test_what_asks_for_nothing_passes(mini: Defaults) -> None:
    """Neutral values of OpenAI's, vLLM's and llama.cpp's fields change nothing."""
    neutral: dict[str, Any] = {
        "tools": [], "tool_choice": "none", "parallel_tool_calls": True, "logit_bias": {}, "service_tier": "auto",
        "modalities": ["text"], "reasoning_effort": "none", "store": False, "safety_identifier": "x",
        "prompt_cache_key": "y", "verbosity": "medium", "repetition_penalty": 1.0, "min_p": 0.0, "top_logprobs": 0,
        "functions": [], "function_call": "none", "chat_template_kwargs": {},
    }  # fmt: skip
    plain = chat(mini)
    assert replace(chat(mini, **neutral), request=plain.request) == plain
    options = {"include_obfuscation": False, "include_usage": False}
    assert chat(mini, stream=True, stream_options=options).request == chat(mini, stream=True).request


def test_forms_have_the_spellings_of_other_servers(mini: Defaults) -> None:
    schema = {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}
    form = {"type": "json_schema", "json_schema": {"name": "f", "schema": schema}}

    def constraint(**fields: Any) -> Any:
        return chat(mini, max_tokens=32, **fields).jobs[0].request.constraint

    wanted = constraint(response_format=form)
    assert wanted == constraint(guided_json=schema) == constraint(guided_json=json.dumps(schema))
    assert (
        wanted
        == constraint(json_schema=schema)
        == constraint(response_format={"type": "json_object", "schema": schema})
    )
    assert constraint(guided_regex="[ab]+") == constraint(response_format={"type": "regex", "pattern": "[ab]+"})
    assert constraint(guided_choice=["a"]) == constraint(response_format={"type": "choice", "options": ["a"]})
    assert constraint(guided_choice=["a"], response_format={"type": "text"}) == constraint(guided_choice=["a"])
    for kind, value in (("choice", ["a"]), ("regex", "a+"), ("json", {"enum": ["a"]}), ("grammar", 'start: "a"')):
        assert constraint(structured_outputs={kind: value}) == constraint(**{f"guided_{kind}": value})


def test_null_is_not_set_wherever_it_stands(mini: Defaults) -> None:
    """As ``model_dump`` of OpenAI's client writes what is not set; lm-eval up to 0.4.9 gives each message a type."""
    unset = {"refusal": None, "annotations": None, "audio": None, "function_call": None, "tool_calls": None}
    parts = [{"type": "text", "text": "b", "cache_control": None, "image_url": None}]
    bare = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "b"}]
    full = [{"type": "text", "name": None, **bare[0]}, {**bare[1], **unset}, {"role": "user", "content": parts}]
    schema = {"enum": [None, "a"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    nested = {"json_schema": {**form["json_schema"], "strict": None, "description": None}}  # type: ignore[dict-item]
    once = chat(mini, messages=bare, response_format=form, diffusion={"sampler": {"name": "credit", "inner": "factor"}})
    again = chat(
        mini, messages=full, tools=None, response_format={**form, **nested, "grammar": None}, metadata={"a": None},
        stream=None, stream_options={"include_usage": None, "include_obfuscation": None}, stop=None, unheard_of=None,
        diffusion={"sampler": {"name": "credit", "beta": None, "inner": {"name": "factor", "factor": None, "x": None}},
                   "cache": None, "canvas": None, "constraint": {"depth": None, "words": None}, "y": None},
    )  # fmt: skip
    assert replace(again, request=once.request) == once
    endless = {"name": "dpad", "suffix_window": None, "suffix_drop": "none"}
    found = chat(mini, diffusion={"cache": endless}).jobs[0].setting
    assert found.config["cache"]["suffix_window"] is None, "null is a value of this option"


def test_messages_go_through_the_template_and_prompts_do_not(mini: Defaults) -> None:
    prompts = mini.prompts
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    expected = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a\nb"}]
    found = parse_request({"messages": body}, True, mini)
    assert list(found.jobs[0].request.tokens[: found.prompt_tokens]) == prompts.encode(expected)
    for prompt in ("a <|eot_id|>", ["a <|eot_id|>"]):
        found = parse_request({"prompt": prompt}, False, mini)
        ids = list(found.jobs[0].request.tokens[: found.prompt_tokens])
        assert prompts.text(ids) == "a <|eot_id|>" and not {*prompts.ids.stops, prompts.ids.mask} & set(ids)
    for given in ([5, 4, 9], [[5, 4, 9]]):
        assert list(parse_request({"prompt": given}, False, mini).jobs[0].request.tokens[:3]) == [5, 4, 9]


def test_several_prompts_are_as_many_requests(mini: Defaults) -> None:
    """Choices of a prompt stand next to each other, and each is as it would be alone."""
    for prompts in (["a b", "c", "a b"], [[5, 4, 9], [7], [8, 8]]):
        body = {"n": 2, "temperature": 0.5, "seed": 7, "max_tokens": 5, "stop": "x"}
        found = parse_request({"prompt": prompts, **body}, False, mini)
        alone = [parse_request({"prompt": prompt, **body}, False, mini) for prompt in prompts]
        assert found.jobs == tuple(job for one in alone for job in one.jobs)
        assert found.prompt_tokens == sum(one.prompt_tokens for one in alone)
    drawn = parse_request({"prompt": ["a", "a"], "temperature": 1}, False, mini).jobs
    assert drawn[0].request.seed != drawn[1].request.seed, "two answers of one prompt differ"
    gaps = parse_request({"prompt": ["a", "b c"], "diffusion": {"canvas": ["x", 2, "y", 1]}}, False, mini).jobs
    assert all(job.request.infill and list(job.request.masked).count(True) == 3 for job in gaps)


def test_a_canvas_is_the_answer_with_holes(mini: Defaults) -> None:
    pieces = ['["Kai", "', 2, '", "Hugo"]', 3]
    alone = parse_request({"diffusion": {"canvas": pieces}}, False, mini)
    assert alone.jobs[0].request == replace(mini.prompts.infill(pieces), temperature=0.0)
    assert alone.prompt_tokens == sum(not masked for masked in alone.jobs[0].request.masked)
    behind = chat(mini, diffusion={"canvas": pieces}).jobs[0].request
    asked = mini.prompts.infill(pieces, [{"role": "user", "content": "a b"}])
    served = chat(mini, messages=[{"role": "user", "content": "a b"}], diffusion={"canvas": pieces}).jobs[0].request
    assert replace(served, temperature=asked.temperature) == asked
    begin = chat(mini).jobs[0].request.answer_start
    assert behind.start == begin and list(behind.tokens[begin:]) == list(alone.jobs[0].request.tokens)
    assert not any(behind.masked[:begin])
