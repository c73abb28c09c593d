"""A request's body to jobs: every field is checked, and what cannot be served is refused in OpenAI's form."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from dllm.common.coerce import coerce, is_whole
from dllm.compose.fitted import end_of_thought
from dllm.constraints.kinds import FunctionCall, JsonSchema
from dllm.contract.canvas import Request
from dllm.contract.setting import Sampling
from dllm.errors import TooLong
from dllm.models.chat_template import TEMPLATES_OWN
from dllm.prompts import ChatPrompt, Message, Prompts
from dllm.serve.api_errors import ApiError, as_refusal, as_sent
from dllm.serve.body import check_values
from dllm.serve.efforts import with_budget
from dllm.serve.fields import (
    DIFFUSION,
    flag,
    object_of,
    stop_strings,
    stream_usage,
    validated_fields,
    wants_logprobs,
)
from dllm.serve.jobs import Job, RequestParts
from dllm.serve.messages import WRITTEN_OUT, prompts_in, validated_messages, validated_prompts
from dllm.serve.request_parts import SHORT, Defaults
from dllm.serve.response_formats import parse_constraint, unused_form, with_form
from dllm.serve.thinking import Thinking
from dllm.serve.tools import BEGIN, NOT_SEEN, ToolUse, parse_tools
from dllm.serve.unknown import note_of, passing

FOR_THE_PROMPT = 64  # tokens of the model's limit that no answer may take
LENGTHS = ("max_completion_tokens", "max_tokens")
STOP_UNUSED = "stop had no effect: a text that must be JSON ends where its form says."
DRAWN = 2**31  # seeds that are drawn lie below
MAX_TEMPERATURE = 100
MAX_BUDGET = 2**31 - 1  # tokens of a thought
NO_THOUGHT = "thinking_token_budget had no effect: no thought comes before this answer."
MAX_PIECES = 1024  # texts and holes of a canvas


@dataclass(frozen=True)
class ParsedRequest:
    """What a request asks for."""

    # one for each choice, those of a prompt next to each other; their deadlines are the caller's to set
    jobs: tuple[Job, ...]
    model: str  # the name that it was asked by
    chat: bool  # of /v1/chat/completions
    stream: bool  # the reply comes piece by piece
    include_usage: bool  # the stream ends with its usage
    usage_so_far: bool  # each chunk of the stream tells the usage so far
    logprobs: bool  # log-probabilities are asked for; a job says of how many tokens
    snapshots: bool  # the canvas after each turn is asked for
    trace: bool  # a trace file is asked for
    stop: tuple[str, ...]  # strings that end an answer
    min_tokens: int  # so many first tokens in which none of these counts
    prompt_tokens: int  # what was given, each prompt once
    names: Mapping[str, str]  # as the request calls fields that have several names
    tools: ToolUse | None = None  # that an answer must or may call
    thinking: Thinking | None = None  # how an answer may begin with a thought; None: all of it is the answer
    notes: tuple[str, ...] = ()  # sentences for whoever reads the reply
    repeated: Mapping[str, Any] = field(default_factory=dict)  # fields that the reply repeats, as they were sent
    unknown: tuple[str, ...] = ()  # fields that nobody here knows, and that were passed over

    @property
    def diffusion_notes(self) -> dict[str, list[str]]:
        """``notes`` as a choice has them under ``diffusion``: nothing where there are none."""
        notes = [*self.notes, *([note_of(self.unknown)] if self.unknown else [])]
        return {"notes": notes} if notes else {}


def parse_request(body: Mapping[str, Any], chat: bool, defaults: Defaults) -> ParsedRequest:
    """What ``body`` asks for; chat: of the chat route, else of completions. Raises ApiError for whatever cannot be
    served."""
    check_values(body)
    with passing(not defaults.refuses_unknown) as unknown:
        found = _parsed_body(with_budget(body, defaults), chat, defaults)
    return replace(found, unknown=tuple(unknown.values()))


def _parsed_body(body: Mapping[str, Any], chat: bool, defaults: Defaults) -> ParsedRequest:
    fields = validated_fields(body, chat)
    _check_model(fields.get("model", defaults.name), defaults)
    diffusion = object_of("diffusion", fields.get("diffusion", {}), DIFFUSION)
    tokenizer = defaults.model.tokenizer
    reads = tokenizer is not None and "tools" in tokenizer.template_names
    use = parse_tools(fields, reads, reads and tokenizer is not None and BEGIN in tokenizer.template_of_tools)
    notes = [*unused_form(fields, use), *_as_text(fields, reads)]
    fields, of_form = with_form(fields, use)
    names = {**_names(fields, diffusion), **of_form}
    with as_sent(names):
        found = _parsed(fields, diffusion, chat, defaults, names, use)
    unread = [NOT_SEEN] if use is not None and not reads else []
    return replace(found, tools=use, notes=(*unread, *notes, *found.notes))


def _as_text(fields: Mapping[str, Any], reads: bool) -> list[str]:
    """A sentence where calls and their results stand in the conversation as text."""
    messages = fields.get("messages")
    told = isinstance(messages, list) and any(
        isinstance(one, Mapping) and (one.get("role") == "tool" or one.get("tool_calls")) for one in messages
    )
    return [WRITTEN_OUT] if told and not reads else []


def _names(fields: Mapping[str, Any], diffusion: Mapping[str, Any]) -> dict[str, str]:
    """What the request calls fields that have another usual name."""
    names = {f"diffusion.{group}.{key}": f"diffusion.{key}" for key, group in SHORT.items() if key in diffusion}
    sent = [name for name in LENGTHS if name in fields]
    length = "diffusion.canvas" if "canvas" in diffusion and not sent else sent[-1] if sent else "max_tokens"
    return {**names, "max_tokens": length}


def _parsed(
    fields: Mapping[str, Any], diffusion: Mapping[str, Any], chat: bool, defaults: Defaults, names: Mapping[str, str],
    use: ToolUse | None,
) -> ParsedRequest:  # fmt: skip
    count, stream = _in_range("n", fields.get("n", 1), 1, defaults.max_choices), flag("stream", fields, "stream")
    include_usage, usage_so_far = stream_usage("stream_options", fields)
    (logprobs, likeliest), stop = wants_logprobs(fields, chat), stop_strings(fields)
    constraint = parse_constraint(fields, diffusion, use)
    whole = bool(stop) and isinstance(constraint, JsonSchema | FunctionCall)  # cut short, it would be no JSON
    stop = () if whole else stop
    if constraint is not None and defaults.model.ids.mask is None:
        constraint = replace(constraint, joint=True)  # a model of noise decides whole blocks
    snapshots, trace = (flag(f"diffusion.{name}", diffusion, name) for name in ("snapshots", "trace"))
    if snapshots and not stream:
        raise ApiError(400, "diffusion.snapshots goes with stream=true. Drop it, or stream.", "diffusion.snapshots")
    temperature = _in_range("temperature", fields.get("temperature", defaults.sampling.temperature), 0, MAX_TEMPERATURE)
    unbounded = replace(defaults.sampling, temperature=temperature, thinking_budget=None)
    sampling = _sampling(fields, diffusion, unbounded)
    length = _length(fields, diffusion, defaults)
    sampling = replace(sampling, **_ends_held(fields, length))
    defaults.parts.chosen(diffusion, sampling, length)  # refuses, before any prompt is read
    most = max(1, defaults.max_answers // count)
    unsaid = defaults.fits and not any(name in fields for name in LENGTHS)  # nobody said how long the answer is
    free = max(1, fields.get("min_tokens", 0)) if unsaid else 0
    made = _requests(fields, diffusion.get("canvas"), chat, length, defaults.prompts, most, free)
    thinking = _thinking(made[0], defaults) if chat and constraint is None else None
    thinks = thinking is not None if chat else constraint is None
    sampling = _bounded(fields, sampling, thinks, defaults)
    chosen = defaults.parts.chosen(diffusion, sampling, length)
    requests = [
        replace(request, temperature=temperature, constraint=constraint, seed=first + number)
        for request in made for first in (_seed(fields, temperature, count, defaults.seed),) for number in range(count)
    ]  # fmt: skip
    with as_refusal("diffusion.sampler"):
        for request in requests[::count]:
            chosen.parts.sampler.prepare(request)  # refuses here what it could not write into the request later

    def parts_of(request: Request) -> RequestParts:
        answer = len(request.tokens) - request.answer_start
        return chosen if length in (None, answer) else defaults.parts.chosen(diffusion, sampling, answer)

    follow = stream or bool(stop)  # else only the end is told, which spares a copy in every turn
    return ParsedRequest(
        jobs=tuple(Job(one, parts_of(one), inf, follow, snapshots, trace, likeliest, logprobs) for one in requests),
        model=fields.get("model", defaults.name), chat=chat,
        stream=stream, include_usage=include_usage and stream, usage_so_far=usage_so_far and stream,
        logprobs=logprobs, snapshots=snapshots, trace=trace, stop=stop,
        prompt_tokens=sum(list(request.masked).count(False) for request in made), names=names, thinking=thinking,
        notes=(*[STOP_UNUSED] * whole, *[NO_THOUGHT] * ("thinking_token_budget" in fields and not thinks)),
        min_tokens=fields.get("min_tokens", 0),
    )  # fmt: skip


def _check_model(name: str, defaults: Defaults) -> None:
    if name not in defaults.names:
        known = f"{defaults.listed_names} {'are' if defaults.aliases else 'is'}"
        raise ApiError(404, f"model={name!r} is not served here; {known}.", "model", "model_not_found")


def _in_range(name: str, value: Any, low: int, high: int, why: str = "") -> Any:
    if not low <= value <= high:
        raise ApiError(400, f"{name}={value} must lie in [{low}, {high}]{why}.", name)
    return value


def _sampling(fields: Mapping[str, Any], diffusion: Mapping[str, Any], ours: Sampling) -> Sampling:
    """The server's sampling with the request's. A top_p of 1 leaves everything in, and so is none."""
    given = {name: fields[name] for name in ("top_p", "top_k") if name in fields}
    if given.get("top_p") == 1:
        given["top_p"] = None
    if "guidance" in diffusion:
        with as_refusal("diffusion.guidance"):
            given["guidance"] = coerce("diffusion.guidance", diffusion["guidance"], "float")
    with as_refusal():
        return replace(ours, **given)


def _thinking(request: Request, defaults: Defaults) -> Thinking | None:
    """How the answer of a conversation may begin with a thought; an infilling has none."""
    prompt = request.tokens[: request.answer_start]
    return None if request.infill else Thinking.behind(prompt, defaults.model.tokenizer)


def _bounded(fields: Mapping[str, Any], sampling: Sampling, thinks: bool, defaults: Defaults) -> Sampling:
    """The sampling with the budget of a thought, the request's or else the server's; none where no thought comes.
    Raises ApiError."""
    name = "thinking_token_budget"
    budget = _in_range(name, fields[name], -1, MAX_BUDGET) if name in fields else defaults.sampling.thinking_budget
    if budget in (None, -1) or not thinks:  # vLLM's -1: without a limit
        return sampling
    with as_refusal(name):
        end_of_thought(sampling.end_of_thought, defaults.model)
        return replace(sampling, thinking_budget=budget)


def _length(fields: Mapping[str, Any], diffusion: Mapping[str, Any], defaults: Defaults) -> int | None:
    """Masks behind the prompt; None: the canvas says it."""
    names = [name for name in LENGTHS if name in fields]
    if len({fields[name] for name in names}) > 1:
        raise ApiError(400, f"{names[0]} and {names[1]} say the same thing differently. Drop one.", names[0])
    if "canvas" in diffusion:
        if fields.get("stop"):
            raise ApiError(
                400, "stop ends an answer, and diffusion.canvas has given parts behind it. Drop one.", "stop"
            )
        if names:
            raise ApiError(400, f"{names[0]} and diffusion.canvas both say how long the answer is. Drop one.", names[0])
        return None
    limit = defaults.model.config.max_length
    most = max(limit - FOR_THE_PROMPT, 1)
    why = f": the model's limit is {limit} tokens, of which {FOR_THE_PROMPT} are left to the prompt"
    if not names:
        return max(defaults.gen_length, _in_range("min_tokens", fields.get("min_tokens", 0), 0, most, why))
    return int(_in_range(names[0], fields[names[0]], 1, most, why))


def _ends_held(fields: Mapping[str, Any], length: int | None) -> dict[str, Any]:
    """What of the sampling keeps an answer from ending: nowhere (``ignore_eos``), or not in its first ``min_tokens``
    tokens. Raises ApiError for more of them than the answer has."""
    least = fields.get("min_tokens", 0)
    if length is None and least:
        raise ApiError(400, "min_tokens and diffusion.canvas both say how long the answer is. Drop one.", "min_tokens")
    if length is not None and not 0 <= least <= length:
        rule = f"must lie in [0, {length}], the tokens of the answer. Raise max_tokens, or lower it"
        raise ApiError(400, f"min_tokens={least} {rule}.", "min_tokens")
    if fields.get("ignore_eos") or (least and least == length):
        return {"forbid_eos": True}
    return {"min_tokens": least}


def _seed(fields: Mapping[str, Any], temperature: float, count: int, ours: int) -> int:
    """The seed of the first choice: as asked, else drawn where the answer depends on it."""
    if "seed" in fields:
        return int(_in_range("seed", fields["seed"], 0, 2**62 - count))
    return secrets.randbelow(DRAWN) if temperature else ours


def _requests(
    fields: Mapping[str, Any], canvas: Any, chat: bool, length: int | None, prompts: Prompts, most: int, free: int
) -> list[Request]:
    """A row for each prompt: the prompt, and masks or the given canvas behind it. most: how many prompts. free: an
    answer may have so few tokens where its prompt leaves less than ``length``; 0: it must have all."""
    name = "messages" if chat else "prompt"
    answer = Request.answer([], length or 0, prompts.ids.placeholder) if canvas is None else _canvas(canvas, prompts)
    given = fields.get(name)
    if given is None:
        if chat or canvas is None:
            raise ApiError(400, f"{name} is missing: what is to be answered?", name, "missing_field")
        _check_length(0, len(answer.tokens), name, prompts)
        return [answer]
    if not chat and (count := len(prompts_in(given))) > most:
        beside = f" of n={fields['n']} answers each" if "n" in fields else ""
        sentence = f"prompt holds {count} prompts, more than the {most}{beside} that are served in one request"
        raise ApiError(400, f"{sentence}. Send fewer.", name)
    asked_for: list[tuple[str, Any]] = [(name, _chat(fields, prompts))] if chat else validated_prompts(given)
    rows = []
    for place, prompt in asked_for:
        try:
            rows.append(_behind(place, prompt, replace(answer, infill=canvas is not None), prompts, free))
        except ApiError as refused:
            message = refused.message if place == name else f"{place}: {refused.message}"
            raise ApiError(refused.status, message, place, refused.code) from None
    return rows


def _chat(fields: Mapping[str, Any], prompts: Prompts) -> list[Message] | ChatPrompt:
    """The conversation of a chat, and what else its template is to read. Raises ApiError."""
    names = frozenset() if prompts.tokenizer is None else prompts.tokenizer.template_names
    messages, variables = (
        validated_messages(fields["messages"], "tools" in names),
        fields.get("chat_template_kwargs", {}),
    )
    if not isinstance(variables, Mapping) or not set(variables).isdisjoint(TEMPLATES_OWN):
        rule = f"must be an object of what the chat template reads, and none of {', '.join(TEMPLATES_OWN)}"
        raise ApiError(400, f"chat_template_kwargs={variables!r} {rule}.", "chat_template_kwargs")
    if unread := [name for name in variables if name not in names]:
        sentence = f"chat_template_kwargs.{unread[0]} is nothing that the model's chat template reads. Drop it."
        raise ApiError(400, sentence, "chat_template_kwargs")
    tools = fields.get("tools") if fields.get("tool_choice") != "none" else None
    return ChatPrompt(messages, {**variables, "tools": tools}) if tools or variables else messages


def _behind(
    name: str, prompt: str | list[int] | list[Message] | ChatPrompt, answer: Request, prompts: Prompts, free: int
) -> Request:
    """The answer's row behind a prompt. name: of the prompt's field. free: as in ``_requests``. Raises ApiError."""
    if isinstance(prompt, list) and is_whole(prompt[0]) and len(prompt) > prompts.config.max_length:
        _check_length(len(prompt), len(answer.tokens), name, prompts)  # before any of the ids is looked at
    try:
        with as_refusal(name):
            tokens = prompts.encode(prompt)
    except TooLong as error:
        raise ApiError(400, f"{str(error)}", name, "context_length_exceeded") from None
    left = prompts.config.max_length - len(tokens)
    if free and not answer.infill and free <= left < len(answer.tokens):
        answer = Request.answer([], left, prompts.ids.placeholder)
    _check_length(len(tokens), len(answer.tokens), name, prompts)
    masked = [False] * len(tokens) + [*answer.masked]
    return Request([*tokens, *answer.tokens], masked, start=len(tokens), infill=answer.infill)


def _check_length(prompt: int, answer: int, name: str, prompts: Prompts) -> None:
    if prompt + answer > (limit := prompts.config.max_length):
        raise ApiError(
            400, f"the prompt takes {prompt} tokens and its answer {answer}, together more than the model's limit of "
            f"{limit}. Shorten the prompt, or the answer (max_tokens).", name, "context_length_exceeded",
        )  # fmt: skip


def _canvas(value: Any, prompts: Prompts) -> Request:
    """The answer's given parts and holes. Raises ApiError."""
    name, sound = "diffusion.canvas", isinstance(value, list) and 0 < len(value) <= MAX_PIECES
    if not sound or not all(isinstance(piece, str) or (is_whole(piece) and piece > 0) for piece in value):
        rule = f"a list of at most {MAX_PIECES} texts and numbers of masks, such as ['The ', 4, ' sat.']"
        raise ApiError(400, f"{name} must be {rule}.", name)
    with as_refusal(name):
        return prompts.infill(value)
