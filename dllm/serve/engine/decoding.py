"""One request under way: its rows handed to the scheduler, and what comes of them turn by turn."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, replace
from math import inf, isfinite, nan
from typing import Any

from dllm.prompts import Prompts
from dllm.record.results import Result
from dllm.record.trace import Trace, origin_of
from dllm.scoring.rl.whole_blocks import block_of, replay_of
from dllm.serve.dialects.reply_events import CanvasSnapshot, ChoiceEnd, ReplyEvent, TextPiece, ThoughtPiece, TokenScore
from dllm.serve.dialects.stream import AnswerText, Ending
from dllm.serve.dialects.thinking import ThoughtSplitter
from dllm.serve.dialects.tool_stream import CallSplitter
from dllm.serve.dialects.wire import ParsedRequest
from dllm.serve.engine.jobs import Job, JobFailure, JobResult, Mailbox, Progress, Update
from dllm.serve.engine.scheduler import Scheduler
from dllm.serve.http.api_errors import ApiError

UNKNOWN = -9999.0  # OpenAI's word for a log-probability that is not known
OVERDUE = 2.0  # seconds after the deadline in which the scheduler may say so itself
STATUS = {"timeout": 504, "closing": 503}


class Decoding:
    """The rows of one request: ``submit`` them, read ``news``, and ``abort`` in the end, whatever happened. ident: the
    request's name. timeout: seconds from now. config: of the model, for a trace."""

    def __init__(
        self,
        parsed: ParsedRequest,
        scheduler: Scheduler,
        prompts: Prompts,
        ident: str,
        timeout: float,
        config: dict[str, Any],
    ) -> None:
        self.parsed, self.scheduler, self.prompts, self.ident, self.config = parsed, scheduler, prompts, ident, config
        self.timeout, self.began = timeout, time.monotonic()
        self.ends = frozenset((prompts.ids.eos, *prompts.ids.stops))
        has_marks = parsed.thinking is not None
        text, least = prompts.marked_text if has_marks else prompts.text, parsed.request.min_tokens
        self.texts = [AnswerText.of(job.request, text, self.ends, parsed.stop, least, has_marks) for job in parsed.jobs]
        self.splitters = [ThoughtSplitter(parsed.thinking) for _ in parsed.jobs] if parsed.thinking is not None else []
        self.calls = [CallSplitter(parsed.tools, row) for row in range(len(parsed.jobs))] if parsed.tools else []
        self.box, self.numbers = Mailbox(len(parsed.jobs)), dict[int, int]()
        self.first_text: float | None = None  # seconds until the first final text
        self.language: object = None  # of its constraint: compiled, and kept at hand while its rows decode

    def submit(self) -> None:
        """Queue every row, or none. Raises Full, Closing or UserError as the scheduler does."""
        try:
            with self.scheduler.condition:  # rows that are queued together join together, and share their first forward
                for row, job in enumerate(self.parsed.jobs):
                    job = replace(job, deadline=self.began + self.timeout, ident=self.ident)
                    self.numbers[row] = self.scheduler.submit(job, self.box.slot(row))
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Take the rows that are not finished out of the batch."""
        for row in list(self.numbers):
            self.scheduler.abort(self.numbers.pop(row))

    async def first_turn(self) -> None:
        """Wait for the first turn of a row that is followed. Raises ApiError if one fails before."""
        try:
            await self.box.some(self._seconds)
        except TimeoutError:
            raise too_late(self.timeout) from None
        for failure in self.box.failures():
            raise self._error_of(failure)

    async def news(self, seconds: float = inf) -> Iterator[ReplyEvent] | None:
        """What comes next, until every choice is finished (``numbers`` is empty); None: nothing within ``seconds``.
        Raises ApiError at the deadline; so does the iterator where a choice fails."""
        seconds_left = self._seconds
        try:
            mails = await self.box.take(min(seconds_left, seconds))
        except TimeoutError:
            if seconds_left > seconds:
                return None
            raise too_late(self.timeout) from None
        return (event for row, mail in mails if row in self.numbers for event in self._events_of(row, mail))

    @property
    def _seconds(self) -> float:
        """In which the scheduler tells something, be it that the time is up."""
        return self.began + self.timeout + OVERDUE - time.monotonic()

    def _events_of(self, row: int, mail: Update) -> Iterator[ReplyEvent]:
        """What the mail of a row says. Raises ApiError if the row has failed."""
        if mail.latest is not None:
            yield from self._follow(row, mail.latest, mail.growth)
        if row not in self.numbers:  # a stop string has ended it
            return
        if isinstance(mail.end, JobFailure):
            raise self._error_of(mail.end)
        if mail.end is not None:
            del self.numbers[row]
            yield from self._finish(row, mail.end, mail.latest)

    def _follow(self, row: int, now: Progress, growth: list[tuple[int, int]]) -> Iterator[ReplyEvent]:
        """What a row's newest state adds to its text, and its end if a stop string is there."""
        job, text = self.parsed.jobs[row], self.texts[row]
        if job.snapshots:
            yield CanvasSnapshot(row, now)
        # A stop string counts from the turn in which it was there, not from the one in which we looked.
        for turn, final in growth if text.stop else growth[-1:]:
            new, ending = text.follow(now.tokens, final)
            yield from self._pieces(row, new, self._so_far(row, now.tokens, final))
            request = self.parsed.request
            needs_whole = request.logprobs or request.return_token_ids or job.trace  # they come with the whole answer
            if ending is not None and not needs_whole:
                self.scheduler.abort(self.numbers.pop(row))
                count = decoded_count(job, text, ending)
                yield from self._pieces(row, "", count, final=True)
                yield self._end(row, ending, count, self._cost(count, turn, job.request.seed), now.cached_tokens)
                return

    def _finish(self, row: int, done: JobResult, before: Progress | None) -> Iterator[ReplyEvent]:
        """The rest of a row's text, and its end. before: what has come with it."""
        job, text = self.parsed.jobs[row], self.texts[row]
        if job.snapshots:
            yield CanvasSnapshot(row, self._last(job, done, before))
        new, ending = text.finish(done.result)
        count = decoded_count(job, text, ending)
        yield from self._pieces(row, new, count, final=True)
        end = self._end(row, ending, count, self._cost_of(row, done, count), done.cached_tokens)
        if self.parsed.request.logprobs:
            end = replace(end, tokens=tuple(self._token_scores(text, ending, done)))
        if self.parsed.request.return_token_ids:
            end = self._with_ids(end, job, text, len(ending.tokens), done.result)
        yield replace(end, replay=self._replay(job, done)) if self.parsed.request.diffusion.replay else end

    def _pieces(self, row: int, new: str, token_count: int | None, final: bool = False) -> Iterator[ReplyEvent]:
        """New text of a row: its thought, its answer, and calls from both. token_count: of the row up to its end."""
        pieces = self.splitters[row].feed(new, final) if self.splitters else [(new, False)] * bool(new)
        if self.first_text is None and pieces:
            self.first_text = time.monotonic() - self.began
        for text, is_thought in pieces:
            if is_thought:
                yield ThoughtPiece(row, text, token_count)
            elif self.calls:
                yield from self.calls[row].feed(text, token_count)
            else:
                yield TextPiece(row, text, token_count)
        if final and self.calls:
            yield from self.calls[row].finish(token_count)

    def _end(self, row: int, ending: Ending, count: int, cost: dict[str, Any], cached_tokens: int | None) -> ChoiceEnd:
        thinking, thought_tokens = self.parsed.thinking, 0
        if thinking is not None:
            thought_tokens = min(thinking.tokens(ending.tokens, self.texts[row].text), count)
        return ChoiceEnd(row, ending.reason, count, cost, ending.stop, (), thought_tokens, cached_tokens)

    def _so_far(self, row: int, tokens: list[int], final: int) -> int | None:
        """The tokens of what has been told of a row's text, if each chunk tells its usage."""
        if not self.parsed.request.usage_so_far:
            return None
        return decoded_count(self.parsed.jobs[row], self.texts[row], self.texts[row].ending_so_far(tokens, final))

    def _error_of(self, failure: JobFailure) -> ApiError:
        if failure.kind == "timeout":
            return too_late(self.timeout)
        message = failure.message if failure.error is None else failure.error.text(self.parsed.request.words)
        message = message if failure.id in message else f"{message} The log has it as {failure.id}."
        return ApiError(STATUS.get(failure.kind, 500), message, code=failure.kind)

    def _last(self, job: Job, done: JobResult, before: Progress | None) -> Progress:
        """The row after its last turn, told by its end alone. before: what has come with it."""
        canvas, mask = done.result.canvas, self.prompts.ids.mask
        block = 0 if before is None else before.block
        masked = [token == mask for token in canvas]
        if mask is None:  # noise is told from text by the turn that decided it
            request_masked = job.request.masked[job.request.answer_start :]
            masked = [is_masked and not turn for is_masked, turn in zip(request_masked, done.result.turns, strict=True)]
        return Progress(done.result.nfe, block, canvas, masked, len(canvas), done.result.turns)

    def _cost(
        self, tokens: int, nfe: int, seed: int, waited: float | None = None, turns: int | None = None
    ) -> dict[str, Any]:
        """What an answer took. waited, turns: null where a stop string ended it: a finished row alone has them."""
        return {
            "nfe": nfe,
            "tpf": tokens / nfe if nfe else 0.0,
            "seed": seed,
            "waited": waited,
            "seconds": time.monotonic() - self.began,
            "turns": turns,
        }

    def _cost_of(self, row: int, done: JobResult, tokens: int) -> dict[str, Any]:
        """What a finished row took, with its constraint's report and its trace."""
        result = done.result
        cost = self._cost(tokens, result.nfe, result.seed, done.wait_seconds, done.turns)
        if result.constraint is not None:
            cost["constraint"] = asdict(result.constraint)
        if result.trace is None:
            return cost
        job = self.parsed.jobs[row]
        job = replace(job, request=done.request or job.request)
        return {**cost, "trace": trace_file(f"{self.ident}-{row}", job, result.trace, self.config)}

    def _replay(self, job: Job, done: JobResult) -> dict[str, Any]:
        """The ids of a row's answer, its end included, and what replays it."""
        canvas, prompt, parts = done.result.canvas, job.request.answer_start, job.setting.parts
        stop = next((at + 1 for at, token in enumerate(canvas) if token in self.ends), len(canvas))
        block = block_of(parts, self.prompts.config)
        replay = replay_of(prompt, canvas, done.result.turns, stop, block)
        return {"token_ids": replay.tokens[:stop], "meta_info": replay.meta_info()}

    def _with_ids(self, end: ChoiceEnd, job: Job, text: AnswerText, count: int, result: Result) -> ChoiceEnd:
        """The choice with the ids of its prompt and of its answer, the end of a text included, and with the forward
        that left each of them; 0: none did. count: tokens of the answer's text."""
        canvas = result.canvas
        if text.head is not None:
            count = len(canvas)
        elif end.stop is None and count < len(canvas) and canvas[count] in self.ends:
            count += 1
        prompt = list(job.request.tokens[: job.request.answer_start])
        ids = {"prompt_token_ids": prompt, "token_ids": list(canvas[:count])}
        return replace(end, ids=ids, cost={**end.cost, "forwards": list(result.turns[:count])})

    def _token_scores(self, text: AnswerText, ending: Ending, done: JobResult) -> list[TokenScore]:
        """The reply's tokens, whose pieces make up its text: of an infilling with its head, without its ends of text;
        before a stop string that begins inside a token, with the part of that token."""
        result: Result = done.result
        likeliest = done.likeliest or [[]] * len(result.canvas)
        entries = list(zip(result.canvas, done.logprobs, likeliest, strict=True))
        if text.head is not None:
            head: list[Any] = [(token, (nan, nan), []) for token in text.head]
            entries = head + [entry for entry in entries if entry[0] not in self.ends]
        else:
            entries = entries[: len(result.tokens)]
        tokens, bytes_left = [token for token, _, _ in entries], len(ending.text.encode())
        out: list[TokenScore] = []
        for (token, (p, drawn_p), pairs), piece in zip(entries, self.prompts.pieces(tokens), strict=True):
            if bytes_left <= 0 and len(out) >= len(ending.tokens):
                break
            name = "" if self.prompts.tokenizer else self.prompts.words([token])[0]
            beside = tuple(self._alone(*pair) for pair in pairs)
            numbers = p if isfinite(p) else UNKNOWN, beside, drawn_p if isfinite(drawn_p) else None
            out.append(TokenScore(piece[: max(bytes_left, 0)], name, *numbers))
            bytes_left -= len(piece)
        return out

    def _alone(self, token: int, p: float) -> TokenScore:
        """A token that might have been in a place, by itself: special ones by name."""
        piece = self.prompts.token_bytes(token)
        return TokenScore(piece, "" if piece else self.prompts.words([token])[0], p if isfinite(p) else UNKNOWN)


def too_late(seconds: float) -> ApiError:
    return ApiError(504, f"the request took more than {seconds:g} seconds.", code="timeout")


def decoded_count(job: Job, text: AnswerText, ending: Ending) -> int:
    """The tokens of an answer that were decoded, not given."""
    start, count = job.request.answer_start, len(ending.tokens)
    masked = job.request.masked[start:] if text.head is not None else job.request.masked[start : start + count]
    return max(0, count - list(masked).count(False))


def trace_file(name: str, job: Job, trace: Trace, config: Mapping[str, Any]) -> dict[str, Any]:
    """The file's content. config: the settings of the server's model."""
    setting, masked = job.setting, job.request.masked
    sampling = {part.name: getattr(setting.parts.sampling, part.name) for part in fields(setting.parts.sampling)}
    settings = {**config, **setting.config, "gen_length": list(masked).count(True), "sampling": sampling}
    return replace(trace, origin=origin_of(job.request, (name, 0), [(name, 0)], settings)).content()
