"""From prompts to results: batches requests, runs the loop, and collects its turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import count
from pathlib import Path
from typing import Any, Never, Unpack

from dllm.common.errors import Refusal, UserError, name_of
from dllm.common.hints import refuse_unknown
from dllm.compose.auto_length import AUTO, auto_length, double_length
from dllm.compose.config_choices import options_of_choices
from dllm.compose.fitted import Parts
from dllm.compose.parts import build_part, configuration_of, part
from dllm.constraints.kinds import Constraint, refuse_stop
from dllm.contract import Turn
from dllm.contract.canvas import Request
from dllm.contract.setting import Sampling, SamplingOptions
from dllm.loop.runner import Runner, requests_per_batch
from dllm.loop.runtime.runtime import Runtime
from dllm.models.bundle import Model
from dllm.parts.blocks.base import Blocks
from dllm.parts.cache.base import Cache
from dllm.parts.eos.base import EndOfText
from dllm.parts.lengths.base import Length
from dllm.parts.samplers.base import Sampler
from dllm.prompts import AskedPrompt, Message, Prompt, Prompts, as_list
from dllm.record.collector import Collector
from dllm.record.cost import CostModel
from dllm.record.decode_config import decode_settings, of_request
from dllm.record.final_commits import LogProbs
from dllm.record.live_answer import Snapshot, snapshots
from dllm.record.results import Result, Results
from dllm.record.stopwatch import Stopwatch
from dllm.record.trace import origin_of
from dllm.scoring.decisions.answered import drive, options_of, refuse_unread_questions
from dllm.scoring.decisions.canvases import DecisionState
from dllm.scoring.decisions.logprobs import rescored_logprobs
from dllm.scoring.decisions.protocol import DecisionOptions, deciding
from dllm.scoring.decisions.questions import Question
from dllm.scoring.decisions.results import Decisions
from dllm.scoring.rl.rollouts import Rollouts
from dllm.scoring.rl.sampled import RolloutRequest, rollouts_of

Observer = Callable[[Turn], None]


class Decoder:
    """A model with its decoding parts: prompts in, results out.

    Call it for a list of results, ``iterate`` to get each as soon as it is ready, ``stream`` or ``turns`` to follow one
    prompt, ``run`` with requests of your own.

    Args:
        model: what ``load`` returns.
        sampler, blocks, cache, eos, length: the parts, each by its name in the configuration, by ``part``, or as an
            object. Lengths that change need ``eos="none"``.
        gen_length: masks after the prompt, at the start where ``length`` changes. ``auto``: as many as an answer
            needs, by the rule that is measured best for the model; ``length`` and ``eos`` are then chosen, too.
        batch_size: rows decoded at once.
        sampling: how tokens are proposed; or give its fields as keywords (``temperature=0.7``).
        stop: strings that end an answer.
        chat: apply the model's chat template to text prompts (None: if it has one).
        runtime: how forwards run, a name or a ``Runtime``.
        constraint: what every text must be (``dllm.constraints``; None: anything).
        chat_template_kwargs: switches of the chat template, such as ``{"enable_thinking": False}``.

    Raises:
        UserError: the parts do not fit each other or the model; when decoding, a prompt is empty, too long, or holds
            unknown tokens.

    >>> from dllm import Decoder, load
    >>> decoder = Decoder(load("mini-llada"), sampler="confidence", gen_length=32)
    >>> print(decoder('Copy the list:\\n["Kai", "Emma", "Hugo"]')[0].text)
    ["Kai", "Emma", "Hugo"]
    """

    def __init__(
        self, model: Model, sampler: Sampler | str = "confidence", blocks: Blocks | str = "fixed",
        cache: Cache | str = "none", eos: EndOfText | str = "fill_after_block", *,
        length: Length | str = "fixed", gen_length: int | str = 128,
        batch_size: int = 1, sampling: Sampling | None = None, stop: Sequence[str] = (), chat: bool | None = None,
        runtime: Runtime | str = "auto", constraint: Constraint | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None, **options: Unpack[SamplingOptions],
    ) -> None:  # fmt: skip
        if gen_length == AUTO:
            if length != "fixed":
                raise double_length(length if isinstance(length, str) else name_of(length))
            gen_length, chosen_length = auto_length(model.name)
            length, eos = build_part("length", chosen_length), "none"
        if not isinstance(gen_length, int):
            raise Refusal("{gen_length:quoted} must be a whole number, or auto.", [gen_length])
        self.model, self.gen_length, self.batch_size, self.stop = model, gen_length, batch_size, tuple(stop)
        self.constraint = constraint
        if batch_size < 1:
            raise Refusal("{batch_size} must be at least 1.", [batch_size])
        self.prompts = Prompts(
            model.config, model.tokenizer, model.ids, model.name, gen_length, chat, chat_template_kwargs or {}
        )
        named = {"sampler": sampler, "blocks": blocks, "cache": cache, "eos": eos, "length": length}
        names = {group: one if isinstance(one, str) else name_of(one) for group, one in named.items()}
        built: dict[str, Any] = {group: part(group, one) for group, one in named.items()}
        made = {group: configuration_of(group, one) for group, one in built.items() if one is not None}
        chosen = Parts.from_groups(built, sampling or sampling_from(options, names))
        self.parts = chosen.fitted(model, gen_length, stop)
        how = runtime if isinstance(runtime, Runtime) else Runtime(runtime)
        self.cost = CostModel(model.config, model.transformer.dtype.itemsize)
        self.runner = Runner.of(model, self.parts, how)
        runtime, own = self.runner.runtime, self.parts.sampling
        self.settings = decode_settings(model, made, own, gen_length, batch_size, stop, chat, runtime)
        if constraint is not None:
            refuse_stop(self.stop)
            self.runner.constraints.compiled(constraint)

    @property
    def sampler(self) -> Sampler:
        """The sampler, resolved for the model."""
        return self.runner.parts.sampler

    def __call__(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        samples: int = 1,
        seed: int = 0,
        trace: bool = False,
        observe: Observer | None = None,
        constraints: Sequence[Constraint | None] | None = None,
        **unknown: Never,
    ) -> list[Result]:
        """Decode one prompt or several.

        Args:
            prompts: a text, a list of messages, token ids or a ``Request``; or a list of several of them.
            samples: answers per prompt, with the seeds ``seed``, ``seed + 1``, ...
            seed: of the first answer.
            trace: keep every turn (``Result.trace``).
            observe: called with every ``Turn`` of the batch.
            constraints: one for each prompt (None: that of the decoder for all).

        Returns:
            ``len(prompts) * samples`` results, in the order of the prompts.

        Raises:
            UserError: a prompt or a constraint cannot be decoded. Nothing is decoded then.

        >>> from dllm import Decoder, load
        >>> decoder = Decoder(load("mini-llada"), gen_length=32, batch_size=2)
        >>> found = decoder(['Sort the list:\\n["Kai", "Ada"]', 'Reverse the list:\\n["Kai", "Ada"]'])
        >>> [result.text for result in found]
        ['["Ada", "Kai"]', '["Ada", "Kai"]']
        """
        refuse_unknown("the call of a decoder", Decoder.__call__, unknown)
        return Results(
            self.iterate(prompts, samples=samples, seed=seed, trace=trace, observe=observe, constraints=constraints)
        )

    def iterate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        samples: int = 1,
        seed: int = 0,
        trace: bool = False,
        observe: Observer | None = None,
        constraints: Sequence[Constraint | None] | None = None,
    ) -> Iterator[Result]:
        """Like a call, but yields each result as soon as it and all before it are ready."""
        asked = as_list(prompts)
        requests = self._requests(asked, constraints, count(seed), samples)
        done: dict[int, Result] = {}
        at = 0
        for number, result in self.run(requests, trace, observe):
            done[number] = result
            while at in done:
                prompt = asked[at // samples]
                text = prompt if isinstance(prompt, str) else ""
                yield replace(done.pop(at), prompt=text)
                at += 1

    def run(
        self,
        requests: Sequence[Request],
        trace: bool = False,
        observe: Observer | None = None,
        watch: Stopwatch | None = None,
    ) -> Iterator[tuple[int, Result]]:
        """Decode requests; yields (index, result) in the order in which rows finish. ``requests_per_batch`` requests
        make a batch: ``batch_size`` of them at once, and as a row ends, the next one joins.

        ``Result.seconds`` leaves out the time spent in ``observe`` and by the caller between results. watch: started
        with every batch; pass one (``Stopwatch.on`` the model's device) to read the time of the batch under way.
        """
        watch = watch or Stopwatch.on(self.model.transformer.device)
        requests = [
            self.sampler.prepare(replace(request, param_index=number)) for number, request in enumerate(requests)
        ]
        requests = self.runner.sized(requests, self.batch_size)
        self.runner.constraints.batch(requests)  # a request that cannot be served fails before the first forward
        size, runner = requests_per_batch(self.batch_size), self.runner.traced() if trace else self.runner
        for at in range(0, len(requests), size):
            batch = requests[at : at + size]
            text, words = self.prompts.text, self.prompts.words
            collector = Collector((), self.model.ids, text, self.stop, trace, words, self.cost, watch)
            for turn in runner.stream(batch, self.batch_size, collector.join):
                finished = collector.observe(turn)
                if observe is None and not finished:
                    continue
                with watch.pause():
                    if observe is not None:
                        observe(turn)
                    yield from ((at + row, self._result(collector, row, batch)) for row in finished)
            # A request without a single mask never enters the loop.
            yield from ((at + row, self._result(collector, row, batch)) for row in collector.without_turns())

    def _result(self, collector: Collector, row: int, batch: Sequence[Request]) -> Result:
        """The result of a row. Its trace, if it has one, knows what it takes to decode it again."""
        result, request = replace(collector.result(row), runtime=self.runner.runtime.name), batch[row]
        if result.trace is not None:
            key = str(1 + (row if request.param_index is None else request.param_index)), 0
            result.trace.origin = origin_of(request, key, [key], of_request(self.settings, request))
        return result

    def rollouts(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        n: int = 1,
        seed: int = 0,
        step: int | None = None,
        draws: bool = False,
        constraints: Sequence[Constraint | None] | None = None,
        observe: Observer | None = None,
        rescore: bool = False,
    ) -> Rollouts:
        """Decode prompts into what a trainer needs: trajectories as tensors.

        Args:
            prompts: as in a call.
            n: rollouts of each prompt; row p * n + j is number j of prompt p.
            seed: of the first row; the others have ``seed + 1``, ... as the samples of a call.
            step: number of the update, mixed into the seeds, so that no two updates share noise (None: not).
            draws: keep everything that was proposed, and every canvas.
            constraints: one for each prompt (None: that of the decoder for all).
            observe: called with every ``Turn``.
            rescore: compute both log-probabilities again without a cache, instead of noting those of the decode.

        Returns:
            ``len(prompts) * n`` rows of tensors on the model's device.

        Raises:
            UserError: no single forward draws the tokens of these parts, the rows of a group would all be the same, or
                a prompt cannot be decoded. Nothing is decoded then.

        >>> from dllm import Decoder, load
        >>> decoder = Decoder(load("mini-llada"), gen_length=32, batch_size=4, temperature=1.0)
        >>> rollouts = decoder.rollouts('Shuffle the list:\\n["Kai", "Ada"]', n=4)
        >>> rollouts.completion_ids.shape, rollouts.advantages([1, 0, 0, 1]).tolist()[0] > 0
        (torch.Size([4, 32]), True)
        """
        asked, listed = RolloutRequest(n, seed, step, draws, rescore), as_list(prompts)
        requests = self._requests(listed, constraints, asked.row_seeds(len(listed)), n)
        return rollouts_of(self.runner, requests, asked, self.prompts.text, self.stop, observe, self.batch_size)

    def decide(
        self,
        state: DecisionState,
        questions: Mapping[str, Question] | None = None,
        *,
        estimator: str = "local",
        slot: str = "auto",
        free: int = 0,
        temperature: float | None = None,
        calibration: Mapping[str, float] | str | Path | None = None,
        **named: Question,
    ) -> Decisions:
        """Answer questions about a state by probabilities, in one forward; nothing is decoded.

        Args:
            state: text, messages or token ids.
            questions: ``Choice``, ``Predicate`` or ``Score`` by name; or give them as keywords.
            estimator, slot, free, temperature: as in ``DecisionOptions``.
            calibration: fitted temperatures by type of question, or the file that holds them.
            named: further questions, by name.

        Returns:
            The answers by name, with what they cost.

        Raises:
            UserError: a question cannot be laid on a canvas of this model.

        >>> from dllm import Decoder, load
        >>> from dllm.scoring.decisions import Choice
        >>> town = Choice(["Cairo", "Lima"], template='[{"name": "Bush", "age": 72, "town": "{slot}"}]')
        >>> found = Decoder(load("mini-llada")).decide("Rows as JSON:\\nBush, 72, Cairo", town=town)
        >>> found["town"].choice
        'Cairo'
        """
        if not isinstance(questions or {}, Mapping):
            raise UserError(f"questions={questions!r} must be a mapping from names, such as {{'q': Choice(...)}}.")
        if twice := sorted({*(questions or {})} & {*named}):
            raise UserError(f"two questions are called {twice[0]!r}. Give each its own name.")
        given: dict[str, Any] = {"estimator": estimator, "slot": slot, "free": free, "temperature": temperature}
        return self.decide_many([state], {**(questions or {}), **named}, **given, calibration=calibration)[0]

    def decide_many(
        self,
        states: Sequence[DecisionState],
        questions: Mapping[str, Question],
        *,
        options: DecisionOptions | None = None,
        **fields: Any,
    ) -> list[Decisions]:
        """The same of several states, whose canvases share forwards. options: or its fields as keywords. The costs of
        a forward count for the first state in it."""
        refuse_unread_questions(questions)
        if isinstance(states, str) or not all(isinstance(state, str | list) for state in states):
            raise UserError("states must be a list of texts, of messages or of token ids; decide takes one of them.")
        chosen = options_of(fields, self.model.name) if options is None else options
        work = [deciding(self.prompts, self.model.ids, state, questions, chosen) for state in states]
        return drive(self.model, work)

    def rescored(self, result: Result) -> LogProbs:
        """Log-probabilities of an answer's tokens, scored one at a time in the order of the decode.

        Args:
            result: of this decoder's model, decoded with ``trace=True``.

        Returns:
            For each position of the answer, in nats, or None if it was given or filled after the end of the text. It
            takes one forward per token.

        Raises:
            UserError: the result has no trace.

        >>> from dllm import Decoder, load
        >>> decoder = Decoder(load("mini-llada"), gen_length=32)
        >>> result = decoder('Copy the list:\\n["Kai", "Ada"]', trace=True)[0]
        >>> sum(value for value in decoder.rescored(result) if value is not None) > -0.1
        True
        """
        return rescored_logprobs(self.model, result.traced(), self.parts.sampling)

    def request(self, prompt: Prompt, seed: int = 0) -> Request:
        """The canvas row of a prompt: text, chat messages, token ids, or a ready-made Request (infilling)."""
        request = self.prompts.request(prompt, seed)
        return request if request.constraint is not None else replace(request, constraint=self.constraint)

    def min_tokens(self, constraint: Constraint) -> int:
        """Tokens of the shortest text that a constraint allows. Raises UserError if it cannot be compiled."""
        fewest = self.runner.constraints.compiled(constraint).language.min_tokens
        assert fewest is not None, "compiling refuses a language that cannot be written"
        return fewest

    def _requests(
        self,
        prompts: Sequence[Prompt],
        constraints: Sequence[Constraint | None] | None,
        seeds: Iterable[int],
        copies: int,
    ) -> list[Request]:
        """``copies`` requests of each prompt in turn, with these seeds."""
        if constraints is None:
            constraints = [self.constraint] * len(prompts)
        if any(constraints):
            refuse_stop(self.stop)
        return self.prompts.requests(prompts, constraints, seeds, copies)

    def encode(self, prompt: str | list[Message] | list[int]) -> list[int]:
        """Token ids of a prompt. Raises UserError if it has none, or if the model has no tokenizer."""
        return self.prompts.encode(prompt)

    def infill(self, parts: Sequence[str | int | None], prompt: AskedPrompt | None = None) -> Request:
        """A request with masks anywhere.

        Args:
            parts: strings are text, a number is that many masks, in order. None is a hole whose size ``length="cal"``
                finds.
            prompt: what they answer, in the chat template as in a call (None: the parts are the whole canvas).

        Returns:
            What a call takes as a prompt.

        Raises:
            UserError: another kind of part or prompt, or no mask at all.

        >>> from dllm import Decoder, load
        >>> decoder = Decoder(load("mini-llada"))
        >>> asked = 'Shuffle the list:\\n["Kai", "Emma", "Hugo"]'
        >>> request = decoder.infill(['["Emma", "', 1, '", "Hugo"]'], prompt=asked)
        >>> print(decoder(request)[0].text)
        ["Emma", "Kai", "Hugo"]
        """
        return self.prompts.infill(parts, prompt)

    def stream(self, prompt: Prompt, seed: int = 0) -> Iterator[Snapshot]:
        """The answer to one prompt after every turn.

        Args:
            prompt: as in a call.
            seed: of the answer.

        Returns:
            One snapshot a turn: what is committed, and the model's proposals for the rest.

        Raises:
            UserError: the prompt cannot be decoded.

        >>> from dllm import Decoder, load
        >>> decoder = Decoder(load("mini-llada"), gen_length=32)
        >>> [snapshot.text for snapshot in decoder.stream('Sort the list:\\n["Kai", "Ada"]')][-1]
        '["Ada", "Kai"]'
        """
        ids = self.model.ids
        return snapshots(self.turns(prompt, seed), self.prompts.words, (ids.eos, *ids.stops))

    def turns(self, prompt: Prompt, seed: int = 0) -> Iterator[Turn]:
        """The turns of one prompt as they happen, with all that the loop yields."""
        requests = self.runner.sized([self.sampler.prepare(self.request(prompt, seed))], 1)
        return self.runner.stream(requests, self.batch_size)


def sampling_from(options: SamplingOptions, chosen: Mapping[str, str]) -> Sampling:
    """Sampling from keyword arguments. chosen: the names of the parts. Raises UserError for an argument that Decoder
    does not have."""
    known = [entry.name for entry in fields(Sampling)]
    unknown = {name: value for name, value in options.items() if name not in known}
    refuse_unknown("Decoder", Decoder, unknown, known, chosen, options_of_choices)
    return Sampling(**options)


__all__ = ["Decoder", "Prompt"]
