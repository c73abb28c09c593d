"""OpenAI's fields of a request, checked one by one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dllm.common.coerce import coerce, is_list_of, is_text, is_whole
from dllm.errors import nearest
from dllm.serve.api_errors import ApiError, as_refusal
from dllm.words.meaning import meaning

# Kinds of the plain fields.
KINDS = {
    "model": "str", "max_tokens": "int", "max_completion_tokens": "int", "temperature": "float", "top_p": "float",
    "top_k": "int", "n": "int", "seed": "int", "stream": "bool", "user": "str", "parallel_tool_calls": "bool",
    "top_logprobs": "int", "thinking_token_budget": "int",
}  # fmt: skip
# Fields of OpenAI's, vLLM's and llama.cpp's without effect here, and the values that ask for none.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,), "frequency_penalty": (0,), "echo": (False,), "suffix": ("",),
    "best_of": (1,), "store": (False,), "logit_bias": ({},), "service_tier": ("auto", "default"),
    "modalities": (["text"],), "reasoning_effort": ("none",), "verbosity": ("medium",), "prediction": ({},),
    "audio": ({},), "web_search_options": ({},), "functions": ([],), "function_call": ("none",),
    "repetition_penalty": (1,), "min_tokens": (0,), "min_p": (0,), "ignore_eos": (False,),
    "skip_special_tokens": (True,),
}  # fmt: skip
# Why another value is not served, where that is not plain.
REASONS = {
    "echo": "a masked diffusion model has no log-probabilities of a prompt from left to right. lm-eval measures "
            "likelihoods with --model dllm",
    "suffix": 'diffusion.canvas holds text behind an answer: "diffusion": {"canvas": [40, " and so on."]}',
    "logit_bias": "no token is made likelier. response_format forces the form of an answer",
    "modalities": "there is only text", "audio": "there is only text",
    "reasoning_effort": "the model does not think before its answer. chat_template_kwargs sets what its template reads",
    "verbosity": "max_tokens says how long an answer may be",
    "prediction": "diffusion.canvas gives parts of an answer", "web_search_options": "nothing is looked up",
    "functions": "tools took its place", "function_call": "tool_choice took its place",
    "ignore_eos": 'diffusion.eos "none" decodes the whole answer', "service_tier": "all requests are served alike",
    "min_tokens": "an answer ends where the model ends it",
}  # fmt: skip
WITHOUT_EFFECT = ("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
OTHERS = ("stop", "stream_options", "logprobs", "metadata", "response_format", "diffusion")
# vLLM's and llama.cpp's words for a form, which response_format says here.
FORMS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "json_schema", "structured_outputs")
CHAT_ONLY = ("tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs")
DIFFUSION = (
    "sampler", "blocks", "cache", "eos", "threshold", "steps", "block_length", "guidance", "canvas", "constraint",
    "snapshots", "trace",
)  # fmt: skip
ASKED = {"messages": '"messages": [{"role": "user", "content": TEXT}]', "prompt": '"prompt": TEXT'}
MAX_LIKELIEST = 20  # tokens that log-probabilities tell of a position
MAX_STOPS, MAX_STOP = 16, 256  # how many, and characters of each
MAX_METADATA = 16


def validated_fields(body: Mapping[str, Any], chat: bool) -> dict[str, Any]:
    """The fields of a body that are set, without those that have no effect; what is null is not set. Raises ApiError
    for an unknown field, a wrong kind, and what is not served."""
    known = [*KINDS, *OTHERS, *NEUTRAL, *WITHOUT_EFFECT, *FORMS, *(("messages", *CHAT_ONLY) if chat else ("prompt",))]
    given = {name: value for name, value in body.items() if value is not None}
    for name in given:
        if name not in known:
            sentence = f"{name!r} is no field of this request{_instead(name, given[name], known)}"
            raise ApiError(400, sentence, name, "unknown_field")
    for name, neutral in NEUTRAL.items():
        if name in given and not _is_neutral(value := given.pop(name), neutral):
            usual = json.dumps(neutral[0]) if neutral[0] not in ("", [], {}) else "empty"
            sentence = f"{name}={value!r} must be {usual}: {REASONS.get(name, 'nothing else is served')}. Drop it."
            raise ApiError(400, sentence, name)
    for name, kind in KINDS.items():
        if name in given:
            with as_refusal(name):
                given[name] = coerce(name, given[name], kind)
    _check_metadata(given.pop("metadata", {}))
    for name in WITHOUT_EFFECT:
        given.pop(name, None)
    return given


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral)


def _instead(name: str, value: Any, known: Sequence[str]) -> str:
    """The end of a sentence about an unknown field: what says it here, or the nearest field."""
    meant = meaning(name, value, lambda _: False)
    if name in ASKED or (meant is not None and meant.settings and meant.settings[0][0] == "prompt"):
        return f": write {next(text for field, text in ASKED.items() if field in known)}."
    if meant is not None:
        return f": {meant.request()}."
    if name in CHAT_ONLY and name not in known:
        return ": it goes with /v1/chat/completions."
    if name in DIFFUSION and name not in known:
        return f": write {json.dumps({'diffusion': {name: value}}, default=str)[1:-1]}."
    return f".{nearest(name, known)}"


def _check_metadata(value: Any) -> None:
    given = [entry for entry in value.values() if entry is not None] if isinstance(value, Mapping) else [value]
    if not isinstance(value, Mapping) or not all(map(is_text, given)) or len(given) > MAX_METADATA:
        raise ApiError(400, f"metadata must be an object of at most {MAX_METADATA} texts.", "metadata")


def object_of(name: str, value: Any, known: tuple[str, ...]) -> dict[str, Any]:
    """The entries of an object that are set, whose keys must be among ``known``; what is null is not set, whatever its
    key. Raises ApiError."""
    if not isinstance(value, Mapping):
        raise ApiError(400, f"{name}={value!r} must be an object with any of {', '.join(known)}.", name)
    given = {key: entry for key, entry in value.items() if entry is not None}
    for key in given:
        if key not in known:
            hint = _instead(key, value[key], known) if name == "diffusion" else f".{nearest(key, known)}"
            sentence = f"{name} has no field {key!r}; it has {', '.join(known)}{hint}"
            raise ApiError(400, sentence, f"{name}.{key}", "unknown_field")
    return given


def flag(name: str, fields: Mapping[str, Any], key: str) -> bool:
    """The field ``key``, false where it is not set. Raises ApiError for another kind."""
    with as_refusal(name):
        return bool(coerce(name, fields.get(key, False), "bool"))


def wants_logprobs(fields: Mapping[str, Any], chat: bool) -> tuple[bool, int]:
    """Whether log-probabilities are asked for, and of how many of the likeliest tokens: in chat by true and
    ``top_logprobs``, in completions by that number. Raises ApiError."""
    value, name = fields.get("logprobs", False), "top_logprobs" if chat else "logprobs"
    if not isinstance(value, bool) and (chat or not is_whole(value)):
        rule = "true or false" if chat else f"a number up to {MAX_LIKELIEST}, true or false"
        raise ApiError(400, f"logprobs={value!r} must be {rule}.", "logprobs")
    asked = value if isinstance(value, bool) else True
    count = fields.get("top_logprobs", 0) if chat or isinstance(value, bool) else value
    if not 0 <= count <= MAX_LIKELIEST:
        raise ApiError(400, f"{name}={count} must lie in [0, {MAX_LIKELIEST}].", name)
    if count and not asked:
        raise ApiError(400, f"top_logprobs={count} goes with logprobs=true. Add it.", "top_logprobs")
    return asked, count


def stop_strings(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The strings that end an answer. Raises ApiError."""
    value = fields.get("stop", [])
    stops = [value] if isinstance(value, str) else value
    if not is_list_of(is_text)(stops):
        raise ApiError(400, f"stop={value!r} must be a text or a list of texts.", "stop")
    if len(stops) > MAX_STOPS or not all(0 < len(text) <= MAX_STOP for text in stops):
        rule = f"at most {MAX_STOPS} texts of 1 to {MAX_STOP} characters"
        wrong = [f"one of {len(text)} characters" for text in stops if not 0 < len(text) <= MAX_STOP][:1]
        raise ApiError(400, f"stop has {(wrong or [f'{len(stops)} texts'])[0]}, and takes {rule}.", "stop")
    return tuple(stops)
