"""OpenAI's fields of a request, checked one by one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dllm.common.kinds import coerce, is_list_of, is_text, is_whole
from dllm.errors import nearest
from dllm.prompts import Message
from dllm.serve.refused import Refused, as_refusal
from dllm.words.meaning import meaning

# Kinds of the plain fields.
KINDS = {
    "model": "str", "max_tokens": "int", "max_completion_tokens": "int", "temperature": "float", "top_p": "float",
    "top_k": "int", "n": "int", "seed": "int", "stream": "bool", "user": "str",
}  # fmt: skip
# Fields without effect here, and the value that asks for none.
NEUTRAL: dict[str, Any] = {
    "presence_penalty": 0, "frequency_penalty": 0, "top_logprobs": 0, "echo": False, "suffix": "", "best_of": 1,
    "store": False,
}  # fmt: skip
# Why another value is not served, where that is not plain.
REASONS = {
    "echo": "a masked diffusion model has no log-probabilities of a prompt from left to right. lm-eval measures "
            "likelihoods with --model dllm",
}  # fmt: skip
OTHERS = ("stop", "stream_options", "logprobs", "metadata", "response_format", "diffusion")
DIFFUSION = (
    "sampler", "blocks", "cache", "eos", "threshold", "steps", "block_length", "guidance", "canvas", "constraint",
    "snapshots", "trace",
)  # fmt: skip
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
ASKED = {"messages": '"messages": [{"role": "user", "content": TEXT}]', "prompt": '"prompt": TEXT'}
MAX_STOPS, MAX_STOP = 16, 256  # how many, and characters of each
MAX_METADATA = 16


def sound_fields(body: Mapping[str, Any], chat: bool) -> dict[str, Any]:
    """The fields of a body that are set, without those that have no effect; what is null is not set. Raises Refused for
    an unknown field, a wrong kind, and what is not served."""
    known = [*KINDS, *OTHERS, *NEUTRAL, "messages" if chat else "prompt"]
    given = {name: value for name, value in body.items() if value is not None}
    for name in given:
        if name not in known:
            sentence = f"{name!r} is no field of this request{_instead(name, given[name], known)}"
            raise Refused(400, sentence, name, "unknown_field")
    for name, neutral in NEUTRAL.items():
        value = given.pop(name, neutral)
        if value != neutral or isinstance(value, bool) != isinstance(neutral, bool):
            reason = REASONS.get(name, "nothing else is served")
            rule = f"must be {str(neutral).lower() if neutral != '' else 'empty'}: {reason}"
            raise Refused(400, f"{name}={value!r} {rule}. Drop it.", name)
    for name, kind in KINDS.items():
        if name in given:
            with as_refusal(name):
                given[name] = coerce(name, given[name], kind)
    _check_metadata(given.pop("metadata", {}))
    given.pop("user", None)
    return given


def _instead(name: str, value: Any, known: Sequence[str]) -> str:
    """The end of a sentence about an unknown field: what says it here, or the nearest field."""
    meant = meaning(name, value, lambda _: False)
    if name in ASKED or (meant is not None and meant.settings and meant.settings[0][0] == "prompt"):
        return f": write {next(text for field, text in ASKED.items() if field in known)}."
    if meant is not None:
        return f": {meant.request()}."
    if name in DIFFUSION and name not in known:
        return f": write {json.dumps({'diffusion': {name: value}}, default=str)[1:-1]}."
    return f".{nearest(name, known)}"


def _check_metadata(value: Any) -> None:
    given = [entry for entry in value.values() if entry is not None] if isinstance(value, Mapping) else [value]
    if not isinstance(value, Mapping) or not all(map(is_text, given)) or len(given) > MAX_METADATA:
        raise Refused(400, f"metadata must be an object of at most {MAX_METADATA} texts.", "metadata")


def object_of(name: str, value: Any, known: tuple[str, ...]) -> dict[str, Any]:
    """The entries of an object that are set, whose keys must be among ``known``; what is null is not set, whatever its
    key. Raises Refused."""
    if not isinstance(value, Mapping):
        raise Refused(400, f"{name}={value!r} must be an object with any of {', '.join(known)}.", name)
    given = {key: entry for key, entry in value.items() if entry is not None}
    for key in given:
        if key not in known:
            hint = _instead(key, value[key], known) if name == "diffusion" else f".{nearest(key, known)}"
            sentence = f"{name} has no field {key!r}; it has {', '.join(known)}{hint}"
            raise Refused(400, sentence, f"{name}.{key}", "unknown_field")
    return given


def flag(name: str, fields: Mapping[str, Any], key: str) -> bool:
    """The field ``key``, false where it is not set. Raises Refused for another kind."""
    with as_refusal(name):
        return bool(coerce(name, fields.get(key, False), "bool"))


def wants_logprobs(fields: Mapping[str, Any], chat: bool) -> bool:
    """Whether log-probabilities are asked for: by true in chat, by 0 (those of no other tokens) in completions."""
    value = fields.get("logprobs", False)
    if isinstance(value, bool):
        return value
    if chat or not is_whole(value) or value:
        rule = "true or false" if chat else "0, true or false: those of other tokens are not served"
        raise Refused(400, f"logprobs={value!r} must be {rule}.", "logprobs")
    return True


def stop_strings(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The strings that end an answer. Raises Refused."""
    value = fields.get("stop", [])
    stops = [value] if isinstance(value, str) else value
    if not is_list_of(is_text)(stops):
        raise Refused(400, f"stop={value!r} must be a text or a list of texts.", "stop")
    if len(stops) > MAX_STOPS or not all(0 < len(text) <= MAX_STOP for text in stops):
        rule = f"at most {MAX_STOPS} texts of 1 to {MAX_STOP} characters"
        wrong = [f"one of {len(text)} characters" for text in stops if not 0 < len(text) <= MAX_STOP][:1]
        raise Refused(400, f"stop has {(wrong or [f'{len(stops)} texts'])[0]}, and takes {rule}.", "stop")
    return tuple(stops)


def sound_messages(value: Any) -> list[Message]:
    """The messages of a conversation, with plain texts. Raises Refused."""
    if not isinstance(value, list) or not value:
        raise Refused(400, 'messages must be a list of {"role": ..., "content": ...}, and not empty.', "messages")
    return [_message(f"messages[{number}]", entry) for number, entry in enumerate(value)]


def _message(name: str, value: Any) -> Message:
    message = object_of(name, value, ("role", "content", "name", "type"))
    if message.get("type", "text") != "text":  # lm-eval up to 0.4.9 sends it
        raise Refused(400, f"{name}.type={message['type']!r} must be text. Drop it.", f"{name}.type")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        hint = nearest(str(role), ROLES)
        raise Refused(400, f"{name}.role={role!r} must be one of {', '.join(ROLES)}.{hint}", f"{name}.role")
    found = {"role": ROLES[role], "content": _content(f"{name}.content", message.get("content"))}
    if "name" in message:
        with as_refusal(f"{name}.name"):
            found["name"] = coerce(f"{name}.name", message["name"], "str")
    return found


def _content(name: str, value: Any) -> str:
    """A text, or the texts of its parts, line by line."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise Refused(400, f'{name} must be a text, or a list of {{"type": "text", "text": ...}}.', name)
    texts = []
    for number, part in enumerate(value):
        place = f"{name}[{number}]"
        fields = object_of(place, part, ("type", "text"))
        if fields.get("type") != "text" or not isinstance(fields.get("text"), str):
            raise Refused(400, f"{place} of type {fields.get('type')!r} must be of type text, with a text.", place)
        texts.append(fields["text"])
    return "\n".join(texts)


def sound_prompts(value: Any) -> list[tuple[str, str | list[int]]]:
    """The prompts, each a text or token ids, by the names of their places. Raises Refused."""
    several = isinstance(value, list) and value and isinstance(value[0], str | list)
    prompts, found = value if several else [value], list[tuple[str, str | list[int]]]()
    for number, prompt in enumerate(prompts):
        name = f"prompt[{number}]" if len(prompts) > 1 else "prompt"
        if not isinstance(prompt, str) and not (prompt and is_list_of(is_whole)(prompt)):
            raise Refused(400, f"{name} must be a text, or a list of token ids.", name)
        found.append((name, prompt))
    return found
