"""A request to jobs. What the model of its body cannot know is checked here: whether parts, lengths and prompts fit the
server and each other."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from dllm.common.coerce import is_whole
from dllm.compose.fitted import end_of_thought
from dllm.constraints.kinds import Constraint, FunctionCall, JsonSchema
from dllm.contract.canvas import Request
from dllm.contract.setting import Sampling
from dllm.loop.probing import refuse_gap
from dllm.prompts import ChatPrompt, Message, Prompts
from dllm.scoring.rl.whole_blocks import refuse_replay
from dllm.serve.dialects.answer_request import AnswerRequest
from dllm.serve.dialects.messages import WRITTEN_OUT, conversation, prompts_in, validated_prompts
from dllm.serve.dialects.request_parts import Defaults
from dllm.serve.dialects.response_formats import parse_constraint
from dllm.serve.dialects.thinking import Thinking
from dllm.serve.dialects.tools import BEGIN, NOT_SEEN, ToolUse, tool_use
from dllm.serve.engine.jobs import Job
from dllm.serve.http.api_errors import SHORT, ApiError, as_refusal
from dllm.serve.http.typed import note_of

FOR_THE_PROMPT = 64  # tokens of the model's limit that no answer may take
STOP_UNUSED = "stop had no effect: a text that must be JSON ends where its form says."
NO_SIZE = "a hole without a number (null) has no size on this server. Give it a number of masks."
SEED_RANGE = 2**31  # seeds that are drawn are below
NO_THOUGHT = "thinking_token_budget had no effect: no thought comes before this answer."
SHARES = {"none": 0.0, "minimal": 0.1, "low": 0.2, "medium": 0.5, "high": 0.8, "xhigh": 0.95}  # of the answer's tokens


@dataclass(frozen=True)
class ParsedRequest:
    """A request with the rows that answer it."""

    request: AnswerRequest  # as it was read
    # one for each choice, those of a prompt next to each other; their deadlines are the caller's to set
    jobs: tuple[Job, ...]
    model: str  # the name that it was asked by
    stop: tuple[str, ...] = ()  # strings that end an answer
    prompt_tokens: int = 0  # what was given, each prompt once
    tools: ToolUse | None = None  # that an answer must or may call
    thinking: Thinking | None = None  # how an answer may begin with a thought; None: all of it is the answer
    notes: tuple[str, ...] = ()  # sentences for the reader of the reply

    @property
    def answer_room(self) -> int:
        """The most tokens that the first answer can have."""
        return self.jobs[0].columns - self.jobs[0].request.answer_start

    @property
    def diffusion_notes(self) -> dict[str, list[str]]:
        """``notes`` as a choice has them under ``diffusion``: nothing where there are none."""
        unknown = self.request.unknown
        notes = [*self.notes, *([note_of(unknown)] if unknown else [])]
        return {"notes": notes} if notes else {}


def parsed_request(request: AnswerRequest, defaults: Defaults) -> ParsedRequest:
    """The rows that answer a request. Raises ApiError for whatever cannot be served."""
    model = defaults.name if request.model is None else request.model
    check_model(model, defaults)
    tokenizer, use = defaults.model.tokenizer, None
    reads = tokenizer is not None and "tools" in tokenizer.template_names
    if request.is_chat:
        shows_calls = reads and tokenizer is not None and BEGIN in tokenizer.template_of_tools
        use = tool_use(request.tools, reads, shows_calls)
    request = _with_names(request, use)
    options = request.diffusion.constraint.model_dump(exclude_unset=True)
    constraint = parse_constraint(request.form, options, use, request.words)
    jobs, thinking, thinks = _jobs(request, constraint, defaults)
    whole = bool(request.stop) and isinstance(constraint, JsonSchema | FunctionCall)  # cut short, it would be no JSON
    calls = any(message.role == "tool" or message.calls for message in request.messages or ())
    notes = [
        NOT_SEEN * (use is not None and not reads),
        *request.notes,
        WRITTEN_OUT * (calls and not reads),
        STOP_UNUSED * whole,
        NO_THOUGHT * (asked_budget(request, defaults) is not None and not thinks),
    ]
    prompt_tokens = sum(list(job.request.masked).count(False) for job in jobs[:: request.n or 1])
    stop = () if whole else request.stop
    return ParsedRequest(request, jobs, model, stop, prompt_tokens, use, thinking, tuple(filter(None, notes)))


def _with_names(request: AnswerRequest, use: ToolUse | None) -> AnswerRequest:
    """The request with what it calls fields that may have several names."""
    short = {
        f"diffusion.{group}.{key}": request.words.name(f"diffusion.{key}")
        for key, group in SHORT.items()
        if request.diffusion.has(key)
    }
    if request.diffusion.canvas is not None and request.length is None:
        short["max_tokens"] = request.words.name("diffusion.canvas")
    if use is not None and use.must_call:
        places = {f"response_format.functions[{at}]": tool.place for at, tool in enumerate(use.tools)}
        places |= {f"response_format.functions[{at}].parameters": tool.schema for at, tool in enumerate(use.tools)}
        field = use.tools[0].schema if len(use.tools) == 1 else "tools"
        return request.calling({**short, **places, "response_format": field}, {f"{field}=call": "tools"})
    if request.form is not None:
        names = {"response_format": request.form.field, **dict.fromkeys(_FORM_PLACES, request.form.place)}
        return request.calling({**short, **names})
    return request.calling(short) if short else request


# What a form holds, as sentences about it call it.
_FORM_PLACES = (
    "response_format.json_schema.schema",
    "response_format.pattern",
    "response_format.grammar",
    "response_format.options",
)


def _jobs(
    request: AnswerRequest, constraint: Constraint | None, defaults: Defaults
) -> tuple[tuple[Job, ...], Thinking | None, bool]:
    """The rows to decode, how they may begin with a thought, and whether they do. Raises ApiError."""
    words, diffusion, count = request.words, request.diffusion, 1 if request.n is None else request.n
    within_bounds("n", count, 1, defaults.max_choices)
    if diffusion.snapshots and not request.stream:
        raise ApiError(400, "diffusion.snapshots goes with stream=true. Drop it, or stream.", "diffusion.snapshots")
    if constraint is not None and defaults.model.ids.mask is None:
        constraint = replace(constraint, joint=True)  # a model of noise decides whole blocks
    settings = {name: value for name in diffusion.model_fields_set if (value := getattr(diffusion, name)) is not None}
    grows = _grows(request, constraint, defaults)
    length = _length(request, defaults, grows)
    limit = length if grows else None
    sampling = replace(_sampling(request, defaults.sampling), **_end_rules(request, length))
    defaults.parts.choose(settings, sampling, length, limit, words)  # refuses, before any prompt is read
    rows = _requests(request, length, defaults)
    thinking = _thinking(rows[0], defaults) if request.is_chat and constraint is None else None
    thinks = thinking is not None if request.is_chat else constraint is None
    sampling = _with_thought_budget(request, sampling, thinks, defaults)
    usual_parts = defaults.parts.choose(settings, sampling, length, limit, words)
    follow = request.stream or (bool(request.stop) and not isinstance(constraint, JsonSchema | FunctionCall))
    temperature: Any = defaults.sampling.temperature if request.temperature is None else request.temperature
    jobs = []
    for row in rows:
        seed = _seed(request, temperature > 0, defaults.seed)
        row = replace(row, temperature=temperature, constraint=constraint, seed=seed)
        with as_refusal("diffusion.sampler", words):
            usual_parts.parts.sampler.prepare(row)  # refuses here what it could not write into the request later
        answer = len(row.tokens) - row.answer_start
        parts = usual_parts
        if length not in (None, answer):
            parts = defaults.parts.choose(settings, sampling, answer, answer if grows else None, words)
        room = len(row.tokens) if grows else 0
        if grows:
            row = first_columns(row, defaults.begin or answer)
        if row.gap is not None:
            if not parts.parts.length.traits.probes:
                raise ApiError(400, NO_SIZE, words.name("diffusion.canvas"))
            with as_refusal("diffusion.canvas", words):
                refuse_gap(row, defaults.model.config, parts.parts)
            room = len(row.tokens) + int(defaults.length["limit"])
        if diffusion.replay:
            with as_refusal(words=words):
                refuse_replay(row, parts.parts, defaults.model.config, request.stop)
        # without ``follow`` only the end is reported, which saves a copy in every turn
        reports = diffusion.snapshots, diffusion.trace, request.likeliest, request.logprobs
        job = Job(row, parts, inf, follow, *reports, tenant=request.cache_salt or "", grows_to=room)
        jobs += [replace(job, request=replace(row, seed=seed + number)) for number in range(count)]
    return tuple(jobs), thinking, thinks


def count_prompt(request: AnswerRequest, defaults: Defaults) -> int:
    """The tokens of a conversation in the chat template, tools included. Raises ApiError."""
    check_model(defaults.name if request.model is None else request.model, defaults)
    with as_refusal("messages", request.words):
        return len(defaults.prompts.encode(_chat(request, defaults.prompts)))


def check_model(name: str, defaults: Defaults) -> None:
    """Raise ApiError for a model that is not served."""
    if name not in defaults.names:
        names = f"{defaults.listed_names} {'are' if defaults.aliases else 'is'}"
        raise ApiError(404, f"model={name!r} is not served here; {names}.", "model", "model_not_found")


def within_bounds(name: str, value: int, low: int, high: int, why: str = "") -> int:
    """The value, which is within bounds of the server's own. Raises ApiError."""
    if not low <= value <= high:
        raise ApiError(400, f"{name}={value} must lie in [{low}, {high}]{why}.", name)
    return value


def _sampling(request: AnswerRequest, ours: Sampling) -> Sampling:
    """The server's sampling with the request's. A top_p of 1 leaves everything in, and so is none."""
    settings: dict[str, Any] = {name: getattr(request, name) for name in ("temperature", "top_p", "top_k")}
    settings |= {
        name: getattr(request.diffusion, name)
        for name in ("guidance", "guidance_against", "guidance_ratio", "eos_last")
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    if settings.get("top_p") == 1:
        settings["top_p"] = None
    with as_refusal(words=request.words):
        return replace(ours, **settings, thinking_budget=None)


def _thinking(row: Request, defaults: Defaults) -> Thinking | None:
    """How the answer of a conversation may begin with a thought; an infilling has none."""
    prompt = row.tokens[: row.answer_start]
    return None if row.infill else Thinking.behind(prompt, defaults.model.tokenizer)


def _with_thought_budget(request: AnswerRequest, sampling: Sampling, thinks: bool, defaults: Defaults) -> Sampling:
    """The sampling with a thought's budget, the request's or the server's, where a thought comes. Raises ApiError."""
    request_budget = asked_budget(request, defaults)
    budget = defaults.sampling.thinking_budget if request_budget is None else request_budget
    if budget in (None, -1) or not thinks:  # vLLM's -1: without a limit
        return sampling
    with as_refusal("thinking_token_budget", request.words):
        end_of_thought(sampling.end_of_thought, defaults.model)
        return replace(sampling, thinking_budget=budget)


def _grows(request: AnswerRequest, constraint: Constraint | None, defaults: Defaults) -> bool:
    """Whether an answer changes its length: not one that is given in part, has a form or a least length, is replayed by
    a trainer, or begins with a thought of bounded length."""
    is_fixed = constraint is not None or request.diffusion.canvas is not None or request.diffusion.replay
    has_bounds = request.ignore_eos or request.min_tokens > 0 or asked_budget(request, defaults) not in (None, -1)
    return defaults.begin is not None and not is_fixed and not has_bounds


def first_columns(row: Request, begin: int) -> Request:
    """The request with the first ``begin`` masks of its answer at most."""
    end = row.answer_start + begin
    return replace(row, tokens=row.tokens[:end], masked=row.masked[:end])


def _length(request: AnswerRequest, defaults: Defaults, grows: bool) -> int | None:
    """Masks after the prompt, of an answer that grows at most; None: the canvas says it."""
    requested_length, words = request.length, request.words
    if request.diffusion.canvas is not None:
        canvas, length = words.name("diffusion.canvas"), words.name("max_tokens")
        if request.stop:
            stop = words.name("stop")
            raise ApiError(400, f"{stop} ends an answer, and {canvas} has given parts after it. Drop one.", stop)
        for name in (*[length] * (requested_length is not None), *["min_tokens"] * (request.min_tokens != 0)):
            raise ApiError(400, f"{name} and {canvas} both say how long the answer is. Drop one.", name)
        return None
    limit = defaults.model.config.max_length
    most = max(limit - FOR_THE_PROMPT, 1)
    why = f": the model's limit is {limit} tokens, and {FOR_THE_PROMPT} of them are left to the prompt"
    if requested_length is None:
        usual = min(most, defaults.length["limit"]) if grows else defaults.gen_length
        return max(usual, within_bounds("min_tokens", request.min_tokens, 0, most, why))
    requested_length = min(requested_length, defaults.max_tokens or most, most) if request.fits else requested_length
    return within_bounds(words.name("max_tokens"), requested_length, 1, most, why)


def _end_rules(request: AnswerRequest, length: int | None) -> dict[str, Any]:
    """What of the sampling keeps an answer from ending: nowhere (``ignore_eos``), or not in its first ``min_tokens``
    tokens. Raises ApiError for more of them than the answer has."""
    least = request.min_tokens
    if length is not None:
        why = f", the tokens of the answer. Raise {request.words.name('max_tokens')}, or lower it"
        within_bounds("min_tokens", least, 0, length, why)
    if request.ignore_eos or (least and least == length):
        return {"forbid_eos": True}
    return {"min_tokens": least}


def _seed(request: AnswerRequest, is_random: bool, ours: int) -> int:
    """The seed of the first choice: as asked, else drawn where the answer depends on it."""
    if request.seed is not None:
        return request.seed
    return secrets.randbelow(SEED_RANGE) if is_random else ours


def _requests(request: AnswerRequest, length: int | None, defaults: Defaults) -> list[Request]:
    """A row for each prompt: the prompt, and masks or the given canvas after it. length: of the answer; None: the
    canvas says it. Where the request says none, the answer has what its prompt leaves of it. Raises ApiError."""
    canvas, prompts, words = request.diffusion.canvas, defaults.prompts, request.words
    free = max(1, request.min_tokens) if request.fits or (defaults.fits and request.length is None) else 0
    answer = Request.answer([], length or 0, prompts.ids.placeholder)
    if canvas is not None:
        with as_refusal("diffusion.canvas", words):
            answer = prompts.infill(canvas)
    after = replace(answer, infill=canvas is not None)
    if request.is_chat:
        return [_after(words.name("messages"), "", _chat(request, prompts), after, request, prompts, free)]
    if request.prompt is None and canvas is None:
        raise ApiError(400, "prompt is missing: what is to be answered?", "prompt", "missing_field")
    if request.prompt is None:
        _check_length(0, len(answer.tokens), "prompt", "", request, prompts)
        return [answer]
    _check_count(request, defaults)
    return [
        _after(place, f"{place}: " * (place != "prompt"), prompt, after, request, prompts, free)
        for place, prompt in validated_prompts(request.prompt)
    ]


def _check_count(request: AnswerRequest, defaults: Defaults) -> None:
    """Raise ApiError for more prompts than one request may have."""
    count, most = len(prompts_in(request.prompt)), max(1, defaults.max_answers // (request.n or 1))
    if count > most:
        beside = "" if request.n is None else f" of n={request.n} answers each"
        sentence = f"prompt holds {count} prompts, more than the {most}{beside} that are served in one request"
        raise ApiError(400, f"{sentence}. Send fewer.", "prompt")


def _chat(request: AnswerRequest, prompts: Prompts) -> list[Message] | ChatPrompt:
    """The conversation of a chat, and what else its template is to read. Raises ApiError."""
    names = frozenset() if prompts.tokenizer is None else prompts.tokenizer.template_names
    messages, variables = conversation(request.messages or (), "tools" in names), request.chat_template_kwargs
    if unread := [name for name in variables if name not in names]:
        sentence = f"chat_template_kwargs.{unread[0]} is nothing that the model's chat template reads. Drop it."
        raise ApiError(400, sentence, "chat_template_kwargs")
    tools = list(request.tools.template_tools) if request.tools.mode != "none" else []
    beside = {**variables, **({"tools": tools or None} if tools or variables else {})}
    return ChatPrompt(messages, beside, request.begin) if beside or request.begin else messages


def _after(
    name: str,
    prefix: str,
    prompt: str | list[int] | list[Message] | ChatPrompt,
    answer: Request,
    request: AnswerRequest,
    prompts: Prompts,
    free: int,
) -> Request:
    """The answer's row after a prompt. name: of the prompt's field. prefix: with what a sentence about one of several
    prompts begins. free: the fewest tokens that the answer may have where its prompt leaves less than ``length``; 0: it
    must have all. Raises ApiError."""
    if isinstance(prompt, list) and is_whole(prompt[0]) and len(prompt) > prompts.config.max_length:
        # before any of the ids is read
        _check_length(len(prompt), len(answer.tokens), name, prefix, request, prompts)
    try:
        with as_refusal(name, request.words):
            tokens = prompts.encode(prompt)
    except ApiError as error:
        raise ApiError(400, f"{prefix}{error.message}", name, error.code) from None
    left = prompts.config.max_length - len(tokens)
    if free and not answer.infill and free <= left < len(answer.tokens):
        answer = Request.answer([], left, prompts.ids.placeholder)
    _check_length(len(tokens), len(answer.tokens), name, prefix, request, prompts)
    masked = [False] * len(tokens) + [*answer.masked]
    gap = None if answer.gap is None else answer.gap + len(tokens)
    return Request([*tokens, *answer.tokens], masked, start=len(tokens), infill=answer.infill, gap=gap)


def _check_length(prompt: int, answer: int, name: str, prefix: str, request: AnswerRequest, prompts: Prompts) -> None:
    if prompt + answer > (limit := prompts.config.max_length):
        field = request.words.name("max_tokens")
        raise ApiError(
            400,
            f"{prefix}the prompt takes {prompt} tokens and its answer {answer}, together more than the model's "
            f"limit of {limit}. Shorten the prompt, or the answer ({field}).",
            name,
            "context_length_exceeded",
            tokens=prompt,
        )


def asked_budget(request: AnswerRequest, defaults: Defaults) -> int | None:
    """The tokens that a request gives to a thought; None: none. Shares of an answer's tokens as OpenRouter has them
    (openrouter.ai, reasoning tokens). As with vLLM, an effort is allowed where a model has no thoughts: clients send it
    to every model."""
    budget = request.thought_tokens
    if budget is None and request.effort is not None:
        budget = round(SHARES[request.effort] * (request.length or defaults.gen_length))
    has_thoughts = defaults.model.tokenizer is not None and defaults.model.tokenizer.thought_marks is not None
    # nothing to end, where no thought can come
    return budget if has_thoughts or budget != 0 or request.effort is None else None
