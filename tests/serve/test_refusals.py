"""What cannot be served is refused in OpenAI's form, with a sentence that names the field."""

from __future__ import annotations

from typing import Any

import pytest

from dllm.serve.request_parts import Defaults
from tests.serve.bodies import MESSAGES, refusal

CHAT: list[tuple[dict[str, Any], int, str | None, str]] = [
    ({"model": "gpt-5"}, 404, "model", "model='gpt-5' is not served here; 'mini' is."),
    ({"temprature": 1}, 400, "temprature", "'temprature' is no field of this request. Did you mean 'temperature'?"),
    ({"prompt": "a"}, 400, "prompt", "'prompt' is no field of this request: write \"messages\": [{"),
    ({"reasoning_effort": "high"}, 400, "reasoning_effort", "the model does not think before its answer"),
    ({"logit_bias": {"5": 1}}, 400, "logit_bias", "must be empty: no token is made likelier"),
    ({"service_tier": "flex"}, 400, "service_tier", 'must be "auto": all requests are served alike'),
    ({"modalities": ["text", "audio"]}, 400, "modalities", 'must be ["text"]: there is only text'),
    ({"functions": [{"name": "a"}]}, 400, "functions", "tools took its place"),
    ({"parallel_tool_calls": 1}, 400, "parallel_tool_calls", "must be true or false"),
    ({"guided_json": "{"}, 400, "guided_json", "guided_json is no JSON"),
    ({"guided_json": {"type": "x"}, "guided_regex": "a"}, 400, "guided_json", "both say what an answer must be"),
    ({"guided_regex": 5}, 400, "guided_regex", "guided_regex=5 must be a text"),
    ({"guided_choice": 5}, 400, "guided_choice", "guided_choice=5 must be a list"),
    ({"structured_outputs": {}}, 400, "structured_outputs", "must hold one of json, regex, choice, grammar"),
    ({"structured_outputs": {"choice": 5}}, 400, "structured_outputs.choice", "structured_outputs.choice=5 must be"),
    ({"guided_json": 5}, 400, "guided_json", "guided_json=5 must be a schema"),
    ({"messages": None}, 400, "messages", "messages is missing"),
    ({"messages": []}, 400, "messages", "not empty"),
    ({"messages": "hi"}, 400, "messages", "must be a list of"),
    ({"messages": ["hi"]}, 400, "messages[0]", "must be an object"),
    ({"messages": [{"role": "tools", "content": "a"}]}, 400, "messages[0].role", "Did you mean 'tool'?"),
    ({"messages": [{"role": "user", "content": " "}]}, 400, "messages[0].content", "is empty: what is to be answered?"),
    ({"messages": [{"role": ["user"], "content": "a"}]}, 400, "messages[0].role", "must be one of"),
    ({"messages": [{"role": "user"}]}, 400, "messages[0].content", "must be a text, or a list of"),
    ({"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content", "must be a text"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "text": "x"}]}]}, 400, "messages[0].content[0]",
     "of type 'image_url' must be of type text"),
    ({"messages": [{"role": "user", "content": "a", "tools": [1]}]}, 400, "messages[0].tools", "has no field"),
    ({"messages": [{"role": "user", "content": "a", "type": "image"}]}, 400, "messages[0].type", "must be text"),
    ({"messages": [{"role": "assistant", "content": "a", "refusal": "no"}]}, 400, "messages[0].refusal", "no field"),
    ({"messages": [{"role": "assistant", "content": None}]}, 400, "messages[0].content", "must be a text"),
    ({"messages": [None]}, 400, "messages[0]", "must be an object"),
    ({"messages": [{"role": "user", "content": "word " * 900}]}, 400, "messages", "more than the model's limit of 768"),
    ({"max_tokens": 0}, 400, "max_tokens", "max_tokens=0 must lie in [1, 704]: the model's limit is 768 tokens"),
    ({"max_tokens": 705}, 400, "max_tokens", "must lie in [1, 704]"),
    ({"max_tokens": "5"}, 400, "max_tokens", "max_tokens='5' must be a whole number"),
    ({"max_tokens": 5.0}, 400, "max_tokens", "must be a whole number"),
    ({"max_tokens": True}, 400, "max_tokens", "must be a whole number"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, 400, "max_completion_tokens", "say the same thing differently"),
    ({"temperature": -1}, 400, "temperature", "must lie in [0, 100]"),
    ({"temperature": "hot"}, 400, "temperature", "temperature='hot' must be a number"),
    ({"top_p": 0}, 400, "top_p", "top_p=0.0 must lie in [1e-09, 1]"),
    ({"top_k": 0}, 400, "top_k", "top_k=0 must be at least 1"),
    ({"n": 0}, 400, "n", "n=0 must lie in [1, 8]"),
    ({"n": 9}, 400, "n", "n=9 must lie in [1, 8]"),
    ({"seed": -1}, 400, "seed", "seed=-1 must lie in"),
    ({"seed": 2**62}, 400, "seed", "must lie in"),
    ({"stop": 5}, 400, "stop", "must be a text or a list of texts"),
    ({"stop": [""]}, 400, "stop", "at most 16 texts of 1 to 256 characters"),
    ({"stop": ["x"] * 17}, 400, "stop", "at most 16"),
    ({"stop": ["x" * 257]}, 400, "stop", "at most 16"),
    ({"stream": "yes"}, 400, "stream", "stream='yes' must be true or false"),
    ({"stream_options": {"include_usage": True}}, 400, "stream_options", "goes with stream=true"),
    ({"stream": True, "stream_options": {"usage": True}}, 400, "stream_options.usage", "has no field 'usage'"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, 400, "stream_options.include_usage", "true or false"),
    ({"stream": True, "stream_options": [1]}, 400, "stream_options", "must be an object"),
    ({"logprobs": 3}, 400, "logprobs", "logprobs=3 must be true or false"),
    ({"top_logprobs": 2}, 400, "top_logprobs", "top_logprobs=2 goes with logprobs=true. Add it."),
    ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", r"top_logprobs=21 must lie in [0, 20]."),
    ({"logprobs": True, "top_logprobs": -1}, 400, "top_logprobs", r"must lie in [0, 20]."),
    ({"presence_penalty": 0.5}, 400, "presence_penalty", "must be 0"),
    ({"frequency_penalty": False}, 400, "frequency_penalty", "must be 0"),
    ({"store": True}, 400, "store", "store=True must be false"),
    ({"metadata": {"a": 1}}, 400, "metadata", "at most 16 texts"),
    ({"user": [1]}, 400, "user", "user=[1] must be text"),
    ({"response_format": "text"}, 400, "response_format", "must be an object whose type is one of text, json_object"),
    ({"diffusion": "fast"}, 400, "diffusion", "must be an object with any of sampler"),
    ({"diffusion": {"samper": "eb"}}, 400, "diffusion.samper", "Did you mean 'sampler'?"),
    ({"diffusion": {"sampler": "confidance"}}, 400, "diffusion.sampler", "Did you mean 'confidence'?"),
    ({"diffusion": {"sampler": "oracle"}}, 400, "diffusion.sampler", "sampler='oracle' is not offered"),
    ({"diffusion": {"sampler": 5}}, 400, "diffusion.sampler", "must be NAME or"),
    ({"diffusion": {"sampler": {"threshold": 0.5}}}, 400, "diffusion.sampler", "must be NAME or"),
    ({"diffusion": {"sampler": {"name": "eb", "gama": 1}}}, 400, "diffusion.sampler", "Did you mean 'gamma'?"),
    ({"diffusion": {"sampler": {"name": "pc", "frequencies": "/etc/passwd"}}}, 400, "diffusion.sampler", "not offered"),
    ({"diffusion": {"sampler": {"name": "freedave", "draft_steps": 9}}}, 400, "diffusion.sampler", "is more than 8"),
    ({"diffusion": {"threshold": 2}}, 400, "diffusion.threshold", "diffusion.threshold=2.0 must lie in [0, 1]"),
    ({"diffusion": {"sampler": {"name": "confidence", "threshold": 2}}}, 400, "diffusion.sampler",
     "diffusion.sampler.threshold=2.0 must lie in [0, 1]"),
    ({"diffusion": {"threshold": "high"}}, 400, "diffusion.threshold", "must be a number, such as 0.9"),
    ({"diffusion": {"steps": 4}}, 400, "diffusion.steps", "diffusion.steps does not exist; diffusion.sampler=confi"),
    ({"diffusion": {"sampler": {"name": "static", "steps": 4}, "steps": 4}}, 400, "diffusion.sampler", "thing twice"),
    ({"diffusion": {"block_length": 0}}, 400, "diffusion.block_length", "diffusion.block_length=0 must be at least 1"),
    ({"diffusion": {"block_length": 8, "cache": "elastic"}}, 400, "diffusion.block_length", "blocks=whole offers min"),
    ({"diffusion": {"guidance": -1}}, 400, "diffusion.guidance", "diffusion.guidance=-1.0 must be at least 0"),
    ({"diffusion": {"guidance": "much"}}, 400, "diffusion.guidance", "must be a number"),
    ({"diffusion": {"snapshots": 1}}, 400, "diffusion.snapshots", "must be true or false"),
    ({"diffusion": {"trace": "yes"}}, 400, "diffusion.trace", "must be true or false"),
    ({"diffusion": {"canvas": "text"}}, 400, "diffusion.canvas", "must be a list of at most 1024 texts"),
    ({"diffusion": {"canvas": []}}, 400, "diffusion.canvas", "must be a list"),
    ({"diffusion": {"canvas": ["a", 0]}}, 400, "diffusion.canvas", "must be a list"),
    ({"diffusion": {"canvas": ["a", True]}}, 400, "diffusion.canvas", "must be a list"),
    ({"diffusion": {"canvas": ["a"]}}, 400, "diffusion.canvas", "diffusion.canvas=['a'] has nothing to fill in"),
    ({"diffusion": {"snapshots": True}}, 400, "diffusion.snapshots", "goes with stream=true. Drop it, or stream."),
    ({"diffusion": {"canvas": [10**9]}}, 400, "diffusion.canvas", "canvas has 1000000000 masks, and the model"),
    ({"diffusion": {"canvas": ["a", 762]}}, 400, "messages", "together more than the model's limit of 768"),
    ({"diffusion": {"canvas": ["a", 2]}, "stop": ["x"]}, 400, "stop", "has given parts behind it. Drop one."),
    ({"diffusion": {"canvas": ["a", 2]}, "max_tokens": 5}, 400, "max_tokens", "both say how long the answer is"),
    ({"diffusion": {"cache": "dkv_greedy"}}, 400, "diffusion.cache", "The nearest that works is diffusion.cache="),
    ({"diffusion": {"sampler": "credit"}, "temperature": 1}, 400, "diffusion.sampler", "; temperature=1.0"),
    ({"diffusion": {"sampler": {
        "name": "prophet", "region": "anchor", "anchor_text": "x", "anchor_position": 31}}}, 400, "diffusion.sampler",
     "leaves no room"),
    ({"diffusion": {"sampler": "static", "steps": 8}, "max_completion_tokens": 40}, 400, "max_completion_tokens",
     "max_completion_tokens=40 must be a multiple of diffusion.blocks.block_length=32"),
    ({"diffusion": {"sampler": "static", "steps": 8}, "max_tokens": 40}, 400, "max_tokens",
     "max_tokens=40 must be a multiple of diffusion.blocks.block_length=32"),
]  # fmt: skip
COMPLETIONS: list[tuple[dict[str, Any], int, str | None, str]] = [
    ({"prompt": None}, 400, "prompt", "prompt is missing"),
    ({"prompt": ""}, 400, "prompt", "the prompt is empty"),
    ({"prompt": []}, 400, "prompt", "must be a text, or a list of token ids"),
    ({"prompt": ["a"] * 65}, 400, "prompt", "prompt holds 65 prompts, more than the 64 that are served in"),
    ({"prompt": ["a"] * 9, "n": 8}, 400, "prompt", "more than the 8 of n=8 answers each that are served"),
    ({"prompt": ["a", ""]}, 400, "prompt[1]", "prompt[1]: the prompt is empty"),
    ({"prompt": ["a", 5]}, 400, "prompt[1]", "prompt[1] must be a text, or a list of token ids"),
    ({"prompt": [[5], [5, 2]]}, 400, "prompt[1]", "prompt[1]: token id 2 is the mask"),
    ({"prompt": [[5], [5] * 900]}, 400, "prompt[1]", "prompt[1]: the prompt takes 900 tokens and its answer 32"),
    ({"prompt": [5, 2]}, 400, "prompt", "or ask for holes by diffusion.canvas=[TEXT, NUMBER, ...]"),
    ({"prompt": [1, "a"]}, 400, "prompt", "a text, or a list of token ids"),
    ({"prompt": [1, True]}, 400, "prompt", "a text, or a list of token ids"),
    ({"prompt": [10**6]}, 400, "prompt", "token id 1000000 is not in the model's vocabulary"),
    ({"prompt": [5, 2]}, 400, "prompt", "token id 2 is the mask"),
    ({"prompt": [5] * 900}, 400, "prompt", "the prompt takes 900 tokens and its answer 32"),
    ({"messages": MESSAGES}, 400, "messages", "no field of this request"),
    ({"tools": []}, 400, "tools", "no field of this request: it goes with /v1/chat/completions."),
    ({"logprobs": 21}, 400, "logprobs", "logprobs=21 must lie in [0, 20]."),
    ({"logprobs": "5"}, 400, "logprobs", "must be a number up to 20, true or false"),
    ({"echo": True}, 400, "echo", "echo=True must be false: a masked diffusion model has no"),
    ({"suffix": "x"}, 400, "suffix", "suffix='x' must be empty"),
    ({"best_of": 2}, 400, "best_of", "best_of=2 must be 1"),
]  # fmt: skip
CASES = [(True, *case) for case in CHAT] + [(False, *case) for case in COMPLETIONS]


@pytest.mark.parametrize(("is_chat", "fields", "status", "param", "sentence"), CASES, ids=range(len(CASES)))
def test_what_cannot_be_served_is_refused_in_a_sentence(
    is_chat: bool, fields: dict[str, Any], status: int, param: str | None, sentence: str, mini: Defaults
) -> None:
    refused = refusal(mini, is_chat, **fields)
    assert sentence in refused.message and (refused.status, refused.param) == (status, param)
    assert refused.to_json() == {"error": {
        "message": refused.message, "type": "invalid_request_error", "param": param, "code": refused.code}}  # fmt: skip


def test_codes_are_openais_where_it_has_one(mini: Defaults) -> None:
    assert refusal(mini, model="x").code == "model_not_found"
    assert refusal(mini, messages=[{"role": "user", "content": "word " * 900}]).code == "context_length_exceeded"
    assert len(refusal(mini, model="x" * 10**5).message) < 1100
