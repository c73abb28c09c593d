"""A request's body to jobs: every field is checked, and what cannot be served is refused in OpenAI's form."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from dllm.canvas import Request
from dllm.common.kinds import is_whole, of_kind
from dllm.prompts import Prompts
from dllm.serve.body import check_values
from dllm.serve.choose import Defaults
from dllm.serve.fields import (
    DIFFUSION,
    flag,
    object_of,
    sound_fields,
    sound_messages,
    sound_prompt,
    stop_strings,
    wants_logprobs,
)
from dllm.serve.formats import asked_constraint
from dllm.serve.jobs import Job
from dllm.serve.refused import Refused, as_refusal
from dllm.setting import Sampling

FOR_THE_PROMPT = 64  # tokens of the model's limit that no answer may take
DRAWN = 2**31  # seeds that are drawn lie below
MAX_TEMPERATURE = 100
MAX_PIECES = 1024  # texts and holes of a canvas


@dataclass(frozen=True)
class Asked:
    """What a request asks for. jobs: one for each choice; their deadlines are the caller's to set. prompt_tokens: what
    was given. seed: of the first choice; the next ones follow."""

    jobs: tuple[Job, ...]
    chat: bool
    stream: bool
    include_usage: bool
    logprobs: bool
    snapshots: bool
    trace: bool
    stop: tuple[str, ...]
    prompt_tokens: int
    seed: int


def asked(body: Mapping[str, Any], chat: bool, defaults: Defaults) -> Asked:
    """What ``body`` asks for; chat: of the chat route, else of completions. Raises Refused for whatever cannot be
    served."""
    check_values(body)
    fields = sound_fields(body, chat)
    _check_model(fields.get("model", defaults.name), defaults.name)
    diffusion = object_of("diffusion", fields.get("diffusion", {}), DIFFUSION)
    count, stream = _in_range("n", fields.get("n", 1), 1, defaults.max_choices), flag("stream", fields, "stream")
    include_usage = _usage(fields, stream)
    logprobs, stop = wants_logprobs(fields, chat), stop_strings(fields)
    constraint = asked_constraint(fields, diffusion, stop)
    snapshots, trace = (flag(f"diffusion.{name}", diffusion, name) for name in ("snapshots", "trace"))
    temperature = _in_range("temperature", fields.get("temperature", defaults.sampling.temperature), 0, MAX_TEMPERATURE)
    sampling = _sampling(fields, diffusion, replace(defaults.sampling, temperature=temperature))
    length = _length(fields, diffusion, defaults)
    chosen = defaults.parts.chosen(diffusion, sampling, length)
    request = _request(fields, diffusion.get("canvas"), chat, length, defaults.prompts)
    request = replace(request, temperature=temperature, constraint=constraint)
    seed = _seed(fields, temperature, count, defaults.seed)
    with as_refusal("diffusion.sampler"):
        chosen.sampler.prepare(request)  # refuses here what it could not write into the request later
    requests = [replace(request, seed=seed + number) for number in range(count)]
    follow = stream or snapshots or bool(stop)  # else only the end is told, which spares a copy in every turn
    return Asked(
        jobs=tuple(Job(one, chosen, inf, follow, snapshots=snapshots, trace=trace) for one in requests), chat=chat,
        stream=stream, include_usage=include_usage, logprobs=logprobs, snapshots=snapshots, trace=trace, stop=stop,
        prompt_tokens=sum(not masked for masked in request.masked), seed=seed,
    )  # fmt: skip


def _check_model(name: str, served: str) -> None:
    if name != served:
        raise Refused(404, f"model={name!r} is not served here; {served!r} is.", "model", "model_not_found")


def _in_range(name: str, value: Any, low: int, high: int, why: str = "") -> Any:
    if not low <= value <= high:
        raise Refused(400, f"{name}={value} must lie in [{low}, {high}]{why}.", name)
    return value


def _usage(fields: Mapping[str, Any], stream: bool) -> bool:
    options = object_of("stream_options", fields.get("stream_options", {}), ("include_usage",))
    if options and not stream:
        raise Refused(400, "stream_options goes with stream=true. Drop it, or stream.", "stream_options")
    return flag("stream_options.include_usage", options, "include_usage")


def _sampling(fields: Mapping[str, Any], diffusion: Mapping[str, Any], ours: Sampling) -> Sampling:
    """The server's sampling with the request's. A top_p of 1 leaves everything in, and so is none."""
    given = {name: fields[name] for name in ("top_p", "top_k") if name in fields}
    if given.get("top_p") == 1:
        given["top_p"] = None
    if "guidance" in diffusion:
        with as_refusal("diffusion.guidance"):
            given["guidance"] = of_kind("diffusion.guidance", diffusion["guidance"], "float")
    with as_refusal():
        return replace(ours, **given)


def _length(fields: Mapping[str, Any], diffusion: Mapping[str, Any], defaults: Defaults) -> int | None:
    """Masks behind the prompt; None: the canvas says it."""
    names = [name for name in ("max_completion_tokens", "max_tokens") if name in fields]
    if len({fields[name] for name in names}) > 1:
        raise Refused(400, f"{names[0]} and {names[1]} say the same thing differently. Drop one.", names[0])
    if "canvas" in diffusion:
        if fields.get("stop"):
            raise Refused(400, "stop ends an answer, and diffusion.canvas has given parts behind it. Drop one.", "stop")
        if names:
            raise Refused(400, f"{names[0]} and diffusion.canvas both say how long the answer is. Drop one.", names[0])
        return None
    if not names:
        return defaults.gen_length
    limit = defaults.model.config.max_length
    most = max(limit - FOR_THE_PROMPT, 1)
    why = f": the model's limit is {limit} tokens, of which {FOR_THE_PROMPT} are left to the prompt"
    return int(_in_range(names[0], fields[names[0]], 1, most, why))


def _seed(fields: Mapping[str, Any], temperature: float, count: int, ours: int) -> int:
    """The seed of the first choice: as asked, else drawn where the answer depends on it."""
    if "seed" in fields:
        return int(_in_range("seed", fields["seed"], 0, 2**62 - count))
    return secrets.randbelow(DRAWN) if temperature else ours


def _request(fields: Mapping[str, Any], canvas: Any, chat: bool, length: int | None, prompts: Prompts) -> Request:
    """The row to decode: the prompt, and masks or the given canvas behind it."""
    name = "messages" if chat else "prompt"
    answer = None if canvas is None else _canvas(canvas, prompts)
    given = fields.get(name)
    if given is None and not (answer and not chat):
        raise Refused(400, f"{name} is missing: what is to be answered?", name, "missing_field")
    tokens = []
    if given is not None:
        asked_for = sound_messages(given) if chat else sound_prompt(given)
        with as_refusal(name):
            tokens = prompts.encode(asked_for)  # type: ignore[arg-type]
    if answer is None:
        answer = Request.answer([], length or 0, prompts.ids.mask)
    _check_length(len(tokens), len(answer.tokens), name, prompts)
    if not tokens:
        return answer
    masked = [False] * len(tokens) + [*answer.masked]
    return Request([*tokens, *answer.tokens], masked, start=len(tokens), infill=canvas is not None)


def _check_length(prompt: int, answer: int, name: str, prompts: Prompts) -> None:
    if prompt + answer > (limit := prompts.config.max_length):
        raise Refused(
            400, f"the prompt takes {prompt} tokens and its answer {answer}, together more than the model's limit of "
            f"{limit}. Shorten the prompt or lower max_tokens.", name, "context_length_exceeded",
        )  # fmt: skip


def _canvas(value: Any, prompts: Prompts) -> Request:
    """The answer's given parts and holes. Raises Refused."""
    name, sound = "diffusion.canvas", isinstance(value, list) and 0 < len(value) <= MAX_PIECES
    if not sound or not all(isinstance(piece, str) or (is_whole(piece) and piece > 0) for piece in value):
        rule = f"a list of at most {MAX_PIECES} texts and numbers of masks, such as ['The ', 4, ' sat.']"
        raise Refused(400, f"{name} must be {rule}.", name)
    with as_refusal(name):
        return prompts.infill(value)


