"""A request's body to jobs. What its model cannot know is checked here: whether parts, lengths and prompts fit the
server and each other."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from dllm.common.coerce import is_whole
from dllm.compose.fitted import end_of_thought
from dllm.constraints.kinds import Constraint, FunctionCall, JsonSchema
from dllm.contract.canvas import Request
from dllm.contract.setting import Sampling
from dllm.errors import TooLong
from dllm.loop.probing import refuse_gap
from dllm.prompts import ChatPrompt, Message, Prompts
from dllm.rl.whole_blocks import refuse_replay
from dllm.serve.api_errors import ApiError, as_refusal, as_sent
from dllm.serve.fields import Answered, ChatBody, CompletionBody, FittingChat
from dllm.serve.jobs import Job
from dllm.serve.messages import WRITTEN_OUT, conversation, prompts_in, validated_prompts
from dllm.serve.request_parts import SHORT, Defaults
from dllm.serve.response_formats import form_of, parse_constraint
from dllm.serve.thinking import Thinking
from dllm.serve.tools import BEGIN, NOT_SEEN, ToolUse, parse_tools
from dllm.serve.typed import note_of, read_body

FOR_THE_PROMPT = 64  # tokens of the model's limit that no answer may take
LENGTHS = ("max_completion_tokens", "max_tokens")
STOP_UNUSED = "stop had no effect: a text that must be JSON ends where its form says."
FORM_UNUSED = "binds the text of an answer, and a call is forced: the call follows its function alone."
NO_SIZE = "a hole without a number (null) has no size on this server. Give it a number of masks."
DRAWN = 2**31  # seeds that are drawn are below
NO_THOUGHT = "thinking_token_budget had no effect: no thought comes before this answer."


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
    token_ids: bool  # ids of prompt and answer are asked for, with the forward of each
    replay: bool  # the ids of whole blocks and their forwards are asked for
    stop: tuple[str, ...]  # strings that end an answer
    min_tokens: int  # that many first tokens in which none of these counts
    prompt_tokens: int  # what was given, each prompt once
    names: Mapping[str, str]  # as the request calls fields that have several names
    tools: ToolUse | None = None  # that an answer must or may call
    thinking: Thinking | None = None  # how an answer may begin with a thought; None: all of it is the answer
    notes: tuple[str, ...] = ()  # sentences for the reader of the reply
    repeated: Mapping[str, Any] = field(default_factory=dict)  # fields that the reply repeats, as they were sent
    unknown: tuple[str, ...] = ()  # fields that no one here knows, and that were passed over

    @property
    def diffusion_notes(self) -> dict[str, list[str]]:
        """``notes`` as a choice has them under ``diffusion``: nothing where there are none."""
        notes = [*self.notes, *([note_of(self.unknown)] if self.unknown else [])]
        return {"notes": notes} if notes else {}


def parse_request(
    body: Mapping[str, Any], chat: bool, defaults: Defaults, kind: type[Answered] | None = None
) -> ParsedRequest:
    """What ``body`` asks for; chat: of the chat route, else of completions. kind: the model that judges it, if another
    form made it. Raises ApiError for whatever cannot be served."""
    fields, unknown = read_body(kind or (ChatBody if chat else CompletionBody), body, defaults.refuses_unknown)
    return replace(_parsed(fields, body, defaults), unknown=unknown)


def _parsed(body: Answered, raw: Mapping[str, Any], defaults: Defaults) -> ParsedRequest:
    """raw: as it was sent, which the chat template reads of tools."""
    model = defaults.name if body.model is None else body.model
    check_model(model, defaults)
    tokenizer, is_chat = defaults.model.tokenizer, isinstance(body, ChatBody)
    reads = tokenizer is not None and "tools" in tokenizer.template_names
    marked = reads and tokenizer is not None and BEGIN in tokenizer.template_of_tools
    use = parse_tools(body, reads, marked) if isinstance(body, ChatBody) else None
    form = form_of(body, use)
    names = {**_names(body), **form.names}
    with as_sent(names):
        constraint = parse_constraint(form.form, body.diffusion.constraint.model_dump(exclude_unset=True), use)
        jobs, thinking, thinks = _jobs(body, raw, constraint, defaults)
    whole = bool(body.stop) and isinstance(constraint, JsonSchema | FunctionCall)  # cut short, it would be no JSON
    notes = [
        NOT_SEEN * (use is not None and not reads), f"{form.unused} {FORM_UNUSED}" * bool(form.unused),
        WRITTEN_OUT * (_tells_calls(body) and not reads), STOP_UNUSED * whole,
        NO_THOUGHT * (asked_budget(body, defaults) is not None and not thinks),
    ]  # fmt: skip
    first = jobs[:: body.n]
    return ParsedRequest(
        jobs=jobs, model=model, chat=is_chat, stream=body.stream,
        include_usage=body.stream_options.include_usage and body.stream,
        usage_so_far=body.stream_options.continuous_usage_stats and body.stream,
        logprobs=_likeliest(body)[0], snapshots=body.diffusion.snapshots, trace=body.diffusion.trace,
        token_ids=body.return_token_ids, replay=body.diffusion.replay,
        stop=() if whole else tuple(body.stop), min_tokens=body.min_tokens,
        prompt_tokens=sum(list(job.request.masked).count(False) for job in first),
        names=names, tools=use, thinking=thinking, notes=tuple(filter(None, notes)),
    )  # fmt: skip


def _jobs(
    body: Answered, raw: Mapping[str, Any], constraint: Constraint | None, defaults: Defaults
) -> tuple[tuple[Job, ...], Thinking | None, bool]:
    """The rows to decode, how they may begin with a thought, and whether they do. Raises ApiError."""
    within_bounds("n", body.n, 1, defaults.max_choices)
    logprobs, likeliest = _likeliest(body)
    diffusion = body.diffusion
    if diffusion.snapshots and not body.stream:
        raise ApiError(400, "diffusion.snapshots goes with stream=true. Drop it, or stream.", "diffusion.snapshots")
    if constraint is not None and defaults.model.ids.mask is None:
        constraint = replace(constraint, joint=True)  # a model of noise decides whole blocks
    asked = {name: value for name in diffusion.model_fields_set if (value := getattr(diffusion, name)) is not None}
    grows = _grows(body, constraint, defaults)
    length = _length(body, defaults, grows)
    limit = length if grows else None
    sampling = replace(_sampling(body, defaults.sampling), **_ends_held(body, length))
    defaults.parts.chosen(asked, sampling, length, limit)  # refuses, before any prompt is read
    made = _requests(body, raw, length, defaults)
    thinking = _thinking(made[0], defaults) if isinstance(body, ChatBody) and constraint is None else None
    thinks = thinking is not None if isinstance(body, ChatBody) else constraint is None
    sampling = _bounded(body, sampling, thinks, defaults)
    chosen = defaults.parts.chosen(asked, sampling, length, limit)
    follow = body.stream or (bool(body.stop) and not isinstance(constraint, JsonSchema | FunctionCall))
    temperature: Any = defaults.sampling.temperature if body.temperature is None else body.temperature
    jobs = []
    for request in made:
        seed = _seed(body, temperature > 0, defaults.seed)
        request = replace(request, temperature=temperature, constraint=constraint, seed=seed)
        with as_refusal("diffusion.sampler"):
            chosen.parts.sampler.prepare(request)  # refuses here what it could not write into the request later
        answer = len(request.tokens) - request.answer_start
        parts = chosen
        if length not in (None, answer):
            parts = defaults.parts.chosen(asked, sampling, answer, answer if grows else None)
        room = len(request.tokens) if grows else 0
        if grows:
            request = begun(request, defaults.begin or answer)
        if request.gap is not None:
            if not parts.parts.length.traits.probes:
                raise ApiError(400, NO_SIZE, "diffusion.canvas")
            with as_refusal("diffusion.canvas"):
                refuse_gap(request, defaults.model.config, parts.parts)
            room = len(request.tokens) + int(defaults.length["limit"])
        # without ``follow`` only the end is told, which spares a copy in every turn
        if diffusion.replay:
            with as_refusal():
                refuse_replay(request, parts.parts, defaults.model.config, body.stop)
        told = diffusion.snapshots, diffusion.trace, likeliest, logprobs
        job = Job(request, parts, inf, follow, *told, tenant=body.cache_salt or "", grows_to=room)
        jobs += [replace(job, request=replace(request, seed=seed + number)) for number in range(body.n)]
    return tuple(jobs), thinking, thinks


def count_prompt(body: Mapping[str, Any], kind: type[ChatBody], defaults: Defaults) -> int:
    """The tokens of a conversation in the chat template, tools included. Raises ApiError."""
    fields, _ = read_body(kind, body, defaults.refuses_unknown)
    check_model(defaults.name if fields.model is None else fields.model, defaults)
    with as_refusal("messages"):
        return len(defaults.prompts.encode(_chat(fields, body, defaults.prompts)))


def _tells_calls(body: Answered) -> bool:
    """Whether calls of tools or their results are in the conversation."""
    return isinstance(body, ChatBody) and any(one.role == "tool" or one.tool_calls for one in body.messages)


def _names(body: Answered) -> dict[str, str]:
    """What the request calls fields that have another usual name."""
    diffusion = body.diffusion
    names = {f"diffusion.{group}.{key}": f"diffusion.{key}" for key, group in SHORT.items() if diffusion.has(key)}
    sent = [name for name in LENGTHS if body.has(name)]
    length = sent[-1] if sent else "diffusion.canvas" if diffusion.canvas else "max_tokens"
    return {**names, "max_tokens": length}


def _likeliest(body: Answered) -> tuple[bool, int]:
    """Whether log-probabilities are asked for, and of how many of the likeliest tokens: in chat by true and
    ``top_logprobs``, in completions by that number. Raises ApiError."""
    asked = body.logprobs is not False
    count = body.top_logprobs if isinstance(body.logprobs, bool) else body.logprobs
    if count and not asked:
        raise ApiError(400, f"top_logprobs={count} goes with logprobs=true. Add it.", "top_logprobs")
    return asked, count


def check_model(name: str, defaults: Defaults) -> None:
    """Raise ApiError for a model that is not served."""
    if name not in defaults.names:
        known = f"{defaults.listed_names} {'are' if defaults.aliases else 'is'}"
        raise ApiError(404, f"model={name!r} is not served here; {known}.", "model", "model_not_found")


def within_bounds(name: str, value: int, low: int, high: int, why: str = "") -> int:
    """The value, which is within bounds of the server's own. Raises ApiError."""
    if not low <= value <= high:
        raise ApiError(400, f"{name}={value} must lie in [{low}, {high}]{why}.", name)
    return value


def _sampling(body: Answered, ours: Sampling) -> Sampling:
    """The server's sampling with the request's. A top_p of 1 leaves everything in, and so is none."""
    given: dict[str, Any] = {name: getattr(body, name) for name in ("temperature", "top_p", "top_k") if body.has(name)}
    if given.get("top_p") == 1:
        given["top_p"] = None
    chosen = {name: getattr(body.diffusion, name) for name in ("guidance", "guidance_against", "guidance_ratio")}
    given |= {name: value for name, value in chosen.items() if value is not None}
    with as_refusal():
        return replace(ours, **given, thinking_budget=None)


def _thinking(request: Request, defaults: Defaults) -> Thinking | None:
    """How the answer of a conversation may begin with a thought; an infilling has none."""
    prompt = request.tokens[: request.answer_start]
    return None if request.infill else Thinking.behind(prompt, defaults.model.tokenizer)


def _bounded(body: Answered, sampling: Sampling, thinks: bool, defaults: Defaults) -> Sampling:
    """The sampling with the budget of a thought, the request's or else the server's; none where no thought comes.
    Raises ApiError."""
    asked = asked_budget(body, defaults)
    budget = defaults.sampling.thinking_budget if asked is None else asked
    if budget in (None, -1) or not thinks:  # vLLM's -1: without a limit
        return sampling
    with as_refusal("thinking_token_budget"):
        end_of_thought(sampling.end_of_thought, defaults.model)
        return replace(sampling, thinking_budget=budget)


def _grows(body: Answered, constraint: Constraint | None, defaults: Defaults) -> bool:
    """Whether an answer changes its length: not one that is given in part, has a form or a least length, is replayed by
    a trainer, or begins with a thought of bounded length."""
    given = constraint is not None or body.diffusion.canvas is not None or body.diffusion.replay
    bounded = body.ignore_eos or body.min_tokens > 0 or asked_budget(body, defaults) not in (None, -1)
    return defaults.begin is not None and not given and not bounded


def begun(request: Request, begin: int) -> Request:
    """The request with the first ``begin`` masks of its answer at most."""
    end = request.answer_start + begin
    return replace(request, tokens=request.tokens[:end], masked=request.masked[:end])


def _length(body: Answered, defaults: Defaults, grows: bool) -> int | None:
    """Masks after the prompt, of an answer that grows at most; None: the canvas says it."""
    names = [name for name in LENGTHS if body.has(name)]
    if len({getattr(body, name) for name in names}) > 1:
        raise ApiError(400, f"{names[0]} and {names[1]} say the same thing differently. Drop one.", names[0])
    if body.diffusion.canvas is not None:
        if body.stop:
            sentence = "stop ends an answer, and diffusion.canvas has given parts after it. Drop one."
            raise ApiError(400, sentence, "stop")
        for name in (*names, *["min_tokens"] * (body.min_tokens != 0)):
            raise ApiError(400, f"{name} and diffusion.canvas both say how long the answer is. Drop one.", name)
        return None
    limit = defaults.model.config.max_length
    most = max(limit - FOR_THE_PROMPT, 1)
    why = f": the model's limit is {limit} tokens, and {FOR_THE_PROMPT} of them are left to the prompt"
    if not names:
        usual = min(most, defaults.length["limit"]) if grows else defaults.gen_length
        return max(usual, within_bounds("min_tokens", body.min_tokens, 0, most, why))
    asked: int = getattr(body, names[0])
    return within_bounds(names[0], min(asked, defaults.max_tokens or most, most) if body.fits else asked, 1, most, why)


def _ends_held(body: Answered, length: int | None) -> dict[str, Any]:
    """What of the sampling keeps an answer from ending: nowhere (``ignore_eos``), or not in its first ``min_tokens``
    tokens. Raises ApiError for more of them than the answer has."""
    least = body.min_tokens
    if length is not None:
        why = ", the tokens of the answer. Raise max_tokens, or lower it"
        within_bounds("min_tokens", least, 0, length, why)
    if body.ignore_eos or (least and least == length):
        return {"forbid_eos": True}
    return {"min_tokens": least}


def _seed(body: Answered, heated: bool, ours: int) -> int:
    """The seed of the first choice: as asked, else drawn where the answer depends on it."""
    if body.seed is not None:
        return body.seed
    return secrets.randbelow(DRAWN) if heated else ours


def _requests(body: Answered, raw: Mapping[str, Any], length: int | None, defaults: Defaults) -> list[Request]:
    """A row for each prompt: the prompt, and masks or the given canvas after it. length: of the answer; None: the
    canvas says it. Where the request says none, the answer has what its prompt leaves of it. Raises ApiError."""
    canvas, prompts = body.diffusion.canvas, defaults.prompts
    unsaid = body.fits or (defaults.fits and not any(map(body.has, LENGTHS)))
    free = max(1, body.min_tokens) if unsaid else 0
    answer = Request.answer([], length or 0, prompts.ids.placeholder) if canvas is None else _canvas(canvas, prompts)
    asked_for: list[tuple[str, Any]]
    if isinstance(body, ChatBody):
        name, asked_for = "messages", [("messages", _chat(body, raw, prompts))]
    else:
        name, given = "prompt", getattr(body, "prompt", None)
        if given is None and canvas is None:
            raise ApiError(400, "prompt is missing: what is to be answered?", name, "missing_field")
        if given is None:
            _check_length(0, len(answer.tokens), name, prompts)
            return [answer]
        _check_count(given, body, defaults)
        asked_for = validated_prompts(given)
    rows = []
    for place, prompt in asked_for:
        try:
            rows.append(_after(place, prompt, replace(answer, infill=canvas is not None), prompts, free))
        except ApiError as refused:
            message = refused.message if place == name else f"{place}: {refused.message}"
            raise ApiError(refused.status, message, place, refused.code) from None
    return rows


def _check_count(given: Any, body: Answered, defaults: Defaults) -> None:
    """Raise ApiError for more prompts than one request may have."""
    count, most = len(prompts_in(given)), max(1, defaults.max_answers // body.n)
    if count > most:
        beside = f" of n={body.n} answers each" if body.has("n") else ""
        sentence = f"prompt holds {count} prompts, more than the {most}{beside} that are served in one request"
        raise ApiError(400, f"{sentence}. Send fewer.", "prompt")


def _chat(body: ChatBody, raw: Mapping[str, Any], prompts: Prompts) -> list[Message] | ChatPrompt:
    """The conversation of a chat, and what else its template is to read. Raises ApiError."""
    names = frozenset() if prompts.tokenizer is None else prompts.tokenizer.template_names
    messages, variables = conversation(body.messages, "tools" in names), body.chat_template_kwargs
    if unread := [name for name in variables if name not in names]:
        sentence = f"chat_template_kwargs.{unread[0]} is nothing that the model's chat template reads. Drop it."
        raise ApiError(400, sentence, "chat_template_kwargs")
    tools = raw.get("tools") if body.tool_choice != "none" else None
    begin = body.begin if isinstance(body, FittingChat) else ""
    beside = {**variables, **({"tools": tools} if tools or variables else {})}
    return ChatPrompt(messages, beside, begin) if beside or begin else messages


def _after(
    name: str, prompt: str | list[int] | list[Message] | ChatPrompt, answer: Request, prompts: Prompts, free: int
) -> Request:
    """The answer's row after a prompt. name: of the prompt's field. free: the fewest tokens that the answer may have
    where its prompt leaves less than ``length``; 0: it must have all. Raises ApiError."""
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
    gap = None if answer.gap is None else answer.gap + len(tokens)
    return Request([*tokens, *answer.tokens], masked, start=len(tokens), infill=answer.infill, gap=gap)


def _check_length(prompt: int, answer: int, name: str, prompts: Prompts) -> None:
    if prompt + answer > (limit := prompts.config.max_length):
        raise ApiError(
            400, f"the prompt takes {prompt} tokens and its answer {answer}, together more than the model's limit of "
            f"{limit}. Shorten the prompt, or the answer (max_tokens).", name, "context_length_exceeded",
        )  # fmt: skip


def _canvas(pieces: list[str | int | None], prompts: Prompts) -> Request:
    """The answer's given parts and holes. Raises ApiError."""
    with as_refusal("diffusion.canvas"):
        return prompts.infill(pieces)


SHARES = {"none": 0.0, "minimal": 0.1, "low": 0.2, "medium": 0.5, "high": 0.8, "xhigh": 0.95}  # of the answer's tokens


def asked_budget(body: Answered, defaults: Defaults) -> int | None:
    """The tokens that a request gives to a thought, by whichever field says so; None: none does. Shares of an answer's
    tokens as OpenRouter has them (openrouter.ai, reasoning tokens). As with vLLM, an effort is allowed where a model
    has no thoughts: clients send it to every model."""
    if body.thinking_token_budget is not None:
        return body.thinking_token_budget
    told = body.reasoning
    effort = "none" if told.enabled is False else told.effort or body.reasoning_effort
    budget = told.max_tokens
    if budget is None and effort is not None:
        budget = round(SHARES[effort] * (body.max_completion_tokens or body.max_tokens or defaults.gen_length))
    known = defaults.model.tokenizer is not None and defaults.model.tokenizer.thought_marks is not None
    return budget if known or budget != 0 else None  # nothing to end, where no thought can come
