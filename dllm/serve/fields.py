"""OpenAI's fields of a request, checked one by one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dllm.common.coerce import coerce, is_list_of, is_text, is_whole
from dllm.common.hints import meaning
from dllm.serve.api_errors import ApiError, as_refusal
from dllm.serve.neutral import NEUTRAL, WITHOUT_EFFECT, is_set, not_served
from dllm.serve.unknown import pass_or_refuse, slip_of

# Kinds of the plain fields.
KINDS = {
    "model": "str", "max_tokens": "int", "max_completion_tokens": "int", "temperature": "float", "top_p": "float",
    "top_k": "int", "n": "int", "seed": "int", "stream": "bool", "user": "str", "parallel_tool_calls": "bool",
    "top_logprobs": "int", "thinking_token_budget": "int", "ignore_eos": "bool", "min_tokens": "int",
}  # fmt: skip
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
STRICT = ("diffusion", "response_format", "structured_outputs")  # where what is passed over changes the answer
NO_REASONS: Mapping[str, str] = {}


def validated_fields(body: Mapping[str, Any], chat: bool) -> dict[str, Any]:
    """The fields of a body that are set and known, without those that have no effect; what is null is not set. Raises
    ApiError for a wrong kind, what is not served, and an unknown field that is not passed over."""
    given = {name: value for name, value in body.items() if is_set(name, value)}
    known = known_fields(chat)
    names = frozenset(known)
    for name in [name for name in given if name not in names]:
        pass_or_refuse(name, name, f"{name!r} is no field of this request", _instead(name, given.pop(name), known))
    for name in [name for name in given if name in NEUTRAL]:
        if (sentence := not_served(name, given.pop(name), chat)) is not None:
            raise ApiError(400, sentence, name)
    for name, kind in KINDS.items():
        if name in given:
            with as_refusal(name):
                given[name] = coerce(name, given[name], kind)
    _check_metadata(given.pop("metadata", {}))
    for name in WITHOUT_EFFECT:
        given.pop(name, None)
    return given


def known_fields(chat: bool) -> tuple[str, ...]:
    """The fields of a request of chat, or of completions."""
    route = ("messages", *CHAT_ONLY) if chat else ("prompt",)
    return (*KINDS, *OTHERS, *NEUTRAL, *WITHOUT_EFFECT, *FORMS, *route)


def _instead(name: str, value: Any, known: tuple[str, ...]) -> str:
    """The end of a sentence about an unknown field: what says it here, or the nearest field; empty: nobody knows."""
    meant = meaning(name, value, lambda _: False)
    if name in ASKED or (meant is not None and meant.settings and meant.settings[0][0] == "prompt"):
        return f": write {next(text for field, text in ASKED.items() if field in known)}."
    if meant is not None:
        return f": {meant.request()}."
    if name in CHAT_ONLY and name not in known:
        return ": it goes with /v1/chat/completions."
    if name in DIFFUSION and name not in known:
        return f": write {json.dumps({'diffusion': {name: value}}, default=str)[1:-1]}."
    slip = slip_of(name, known)
    return f".{slip}" if slip else ""


def _check_metadata(value: Any) -> None:
    given = [entry for entry in value.values() if entry is not None] if isinstance(value, Mapping) else [value]
    if not isinstance(value, Mapping) or not all(map(is_text, given)) or len(given) > MAX_METADATA:
        raise ApiError(400, f"metadata must be an object of at most {MAX_METADATA} texts.", "metadata")


def object_of(name: str, value: Any, known: tuple[str, ...], reasons: Mapping[str, str] = NO_REASONS) -> dict[str, Any]:
    """The entries of an object that are set and ``known``; what is null is not set, whatever its key. Others are passed
    over or refused (``dllm.serve.unknown``); in objects of ``STRICT`` they are refused. reasons: why a key that other
    servers know is not served. Raises ApiError."""
    if not isinstance(value, Mapping):
        raise ApiError(400, f"{name}={value!r} must be an object with any of {', '.join(known)}.", name)
    given = {key: entry for key, entry in value.items() if entry is not None}
    for key in [key for key in given if key not in known]:
        entry = given.pop(key)
        if key in reasons:
            raise ApiError(400, f"{name}.{key} is not served: {reasons[key]}.", f"{name}.{key}")
        hint, ours = "", name.partition(".")[0] in STRICT
        if name == "diffusion":
            hint = _instead(key, entry, known)
        elif slip := slip_of(key, known):
            hint = f".{slip}"
        sentence = f"{name} has no field {key!r}; it has {', '.join(known)}"
        pass_or_refuse(key, f"{name}.{key}", sentence, hint or "." * ours)
    return given


def flag(name: str, fields: Mapping[str, Any], key: str) -> bool:
    """The field ``key``, false where it is not set. Raises ApiError for another kind."""
    with as_refusal(name):
        return bool(coerce(name, fields.get(key, False), "bool"))


def stream_usage(name: str, fields: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether a stream ends with its usage, and whether each of its chunks tells the usage so far (vLLM's). Without a
    stream neither means anything. Raises ApiError."""
    options = object_of(name, fields.get(name, {}), ("include_usage", "include_obfuscation", "continuous_usage_stats"))
    flag(f"{name}.include_obfuscation", options, "include_obfuscation")  # nothing is padded in either case
    each = flag(f"{name}.continuous_usage_stats", options, "continuous_usage_stats")
    return flag(f"{name}.include_usage", options, "include_usage"), each


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
