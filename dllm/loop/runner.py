"""Parts put together with a model: what offline decoding and the server run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from dllm.common.errors import Refusal, Set, TooLarge, TooLargeForRanks, UserError, name_of
from dllm.compose.fitted import Parts
from dllm.compose.validate import check_ranks
from dllm.constraints.decoding.requests import Constraints
from dllm.contract import Turn
from dllm.contract.canvas import Canvas, Request
from dllm.contract.shared_values import shared_by
from dllm.loop.denoise import TakeTurn, refuse, start_rows, turns
from dllm.loop.forward import Forward
from dllm.loop.prefill import PREFILL_CHUNK, computed_prefixes
from dllm.loop.probing import sized, sizing
from dllm.loop.recorded import build_runtime
from dllm.loop.rows import Rows, first_places
from dllm.loop.runtime.out_of_memory import LacksRoom, refuse_unheld, too_large
from dllm.loop.runtime.runtime import COMPILED, RECORDED, Runtime
from dllm.models.bundle import Model
from dllm.models.weights.quantize import check_runtime
from dllm.parts.cache.base import Session
from dllm.parts.cache.pages import Beginning, KnownPrefix, PageStore
from dllm.parts.eos.thinking_budget import refuse_budget
from dllm.parts.samplers.base import Sampler

LOG_PROBABILITIES = ("own", "drawn")  # of ``Scores.statistics``


@dataclass(frozen=True)
class Runner:
    """One setting, checked and resolved, on one model."""

    model: Model  # the model
    parts: Parts  # fitted to it
    runtime: Runtime  # that of these parts
    forward: Forward  # the forward that serves them
    take: TakeTurn  # takes a turn
    constraints: Constraints  # what constraints of requests mean for the model
    chunk: int = PREFILL_CHUNK  # columns of longer prompts that one forward of ``stream`` computes, if ``in_chunks``

    @staticmethod
    def of(model: Model, parts: Parts, runtime: Runtime) -> Runner:
        """Raises UserError if the runtime cannot run these parts, this model or this device."""
        network = model.transformer
        check_ranks(model.ranks.size, parts.cache, runtime.name)
        check_runtime(model.quantize, runtime.name, network.device, model.activations)
        fitted_runtime = runtime.resolved(parts, model.config, network.device)
        runs, take = build_runtime(fitted_runtime, network, parts)
        forward = Forward.of(network, model.ids, parts, runs)
        forbid_eos, least = parts.sampling.forbid_eos, parts.sampling.min_tokens
        constraints = Constraints(model.tokenizer, model.config.vocab, model.ids, forbid_eos, model.name, least)
        return Runner(model, parts, fitted_runtime, forward, take, constraints)

    def with_sampler(self, sampler: Sampler) -> Runner:
        """The same with another rule of the same needs."""
        shared = shared_by(sampler, self.model.transformer.device)
        return replace(self, parts=replace(self.parts, sampler=sampler), forward=replace(self.forward, shared=shared))

    def traced(self) -> Runner:
        """The same with what a trace tells of every commit, and the sampler may not ask for."""
        return self._with("entropy", *LOG_PROBABILITIES)

    def scoring(self) -> Runner:
        """The same with the log-probabilities of every proposal."""
        return self._with(*LOG_PROBABILITIES)

    def _with(self, *statistics: str) -> Runner:
        proposer = self.forward.proposer
        proposer = replace(proposer, statistics=proposer.statistics | {*statistics})
        return replace(self, forward=replace(self.forward, proposer=proposer))

    def offering(self) -> Runner:
        """The same with logits that may be read until the next turn."""
        return replace(self, forward=replace(self.forward, offers=True))

    @property
    def shares_prompts(self) -> bool:
        """Whether what a row computes of its prompt is what every other row would. Guidance runs each row twice."""
        return self.parts.cache.traits.shares and not self.parts.sampling.guidance

    @property
    def leads(self) -> bool:
        """Whether rows may share a first forward, as samples of one prompt do. A part that writes to rows before it
        may tell them apart, and compiled layers are for the rows of a batch."""
        return not self.parts.eos.traits.writes and self.runtime.name not in COMPILED

    def first_forward(self, request: Request) -> tuple[Hashable, ...]:
        """Equal for requests whose first forwards are the same: of parameters, those of blocks alone reach it."""
        blocks = self.parts.blocks
        reach = any(not isinstance(getattr(blocks, name), (int, float, type(None))) for name in blocks.per_request)
        place = request.param_index if reach else None
        return *request.tokens, *request.masked, request.answer_start, place

    @property
    def in_chunks(self) -> bool:
        """Whether long prompts are computed in chunks. Rotations that turn by a row's length would need the whole row,
        and ranks go through their turns together."""
        return self.shares_prompts and not self.model.config.rotates_by_length and self.model.ranks.size == 1

    @torch.inference_mode()
    def start(
        self,
        requests: Sequence[Request],
        names: Sequence[int] | None = None,
        step: int = 1,
        parts: Parts | None = None,
        prefixes: Sequence[KnownPrefix | None] = (),
    ) -> Rows:
        """The requests as rows of these names before their first turn, as ``Canvas.of`` lays them out. parts: a
        request's own, with other ``per_request`` parameters. prefixes: of each request the first columns that were
        computed before (None: none; empty: of no request). Raises UserError for a request that draws where everything
        is the argmax, and for one whose constraint leaves it no text; LacksRoom on all ranks together."""
        hot = next((request.temperature for request in requests if request.temperature), None)
        if hot and self.parts.sampling.plain:
            raise Refusal(
                f"a request names temperature={hot}, but {{sampling.temperature=0}} takes the argmax for all. Set "
                "{sampling.temperature:name}, too; requests may then name others, 0 included."
            )
        if any(request.constraint is not None for request in requests):
            refuse_budget(self.parts.sampling.thinking_budget)
        if self.parts.length.traits.changes:
            refuse_filled(self.parts, requests)
        at_zero, device = self.model.config.attention.grid_at_zero, self.model.transformer.device
        canvas = Canvas.of(requests, self._pad, device, at_zero, self.parts.sampling.temperature, names, step)
        constraints = self.constraints.batch(requests)

        def prepare(session: Session) -> None:
            if session.traits.shares and prefixes:
                session.kept.take_over(prefixes)

        rows = start_rows(canvas, self.forward, parts or self.parts, self.runtime.reads, constraints, prepare)
        pairs = zip(names or range(len(requests)), prefixes, strict=False)
        costs = {name: prefix.spent for name, prefix in pairs if prefix is not None}
        if any(map(any, costs.values())):
            rows = charge(rows, costs)
        if self.leads and self.forward.leads(rows.session) and len(rows) == len(requests):
            columns = (0 if prefix is None else prefix.columns for prefix in prefixes or [None] * len(requests))
            rows = rows.led_by(first_places(zip(map(self.first_forward, requests), columns, strict=True)))
        network = self.model.transformer
        if network.ranks.size > 1 and self.runtime.name not in RECORDED:  # whose buffers a decode before may have left
            refuse_unheld(rows.session.kept.missing_buffers(), network.dtype, device, network.ranks)
        return rows

    @torch.inference_mode()
    def sized(self, requests: Sequence[Request], most: int) -> list[Request]:
        """The requests with a size for every gap that had none. most: rows of a forward. Raises UserError for gaps
        whose size cannot be found."""
        return sized(requests, self.forward, self.parts, self._pad, most)

    @torch.inference_mode()
    def sizing(self, requests: Sequence[Request], most: int) -> Iterator[list[Request]]:
        """The same after every forward that tries sizes; nothing where no gap lacks one."""
        yield from sizing(requests, self.forward, self.parts, self._pad, most)

    @property
    def _pad(self) -> int:
        return self.model.ids.eos if self.model.config.pad_id is None else self.model.config.pad_id

    def stream(
        self, requests: Sequence[Request], most: int, on_join: Callable[[int, Request], None] | None = None
    ) -> Iterator[Turn]:
        """Decode requests in their order, at most this many rows at once: as one ends, the next joins. ``on_join``
        is called then, with the request's place. Raises TooLarge, which names a batch or length that fits, where memory
        runs out."""
        try:
            yield from self._stream(requests, most, on_join)
            return
        except torch.OutOfMemoryError as error:
            on_all_ranks = isinstance(error, LacksRoom)
        # The handler's traceback held the tensors of the turn: what fits is tried after it.
        raise self._too_large(requests[:most], on_all_ranks)

    def _too_large(self, requests: Sequence[Request], on_all_ranks: bool) -> TooLarge:
        """on_all_ranks: all ranks refuse the requests together."""
        network = self.model.transformer
        if on_all_ranks:
            return TooLargeForRanks(str(too_large(requests, self.start, network.device, network.dtype)))
        if (ranks := network.ranks).size > 1:  # the others hang in the turn that failed, so none can be tried
            place = f"the memory of rank {ranks.rank} of {ranks.size}"
            return TooLarge(
                f"a batch of {len(requests)} does not fit into {place}. Use a smaller batch_size, or more ranks."
            )
        attempt = lambda fewer: next(self._stream(fewer, len(fewer)))  # noqa: E731
        return too_large(requests, attempt, network.device, network.dtype)

    @torch.inference_mode()
    def _stream(
        self, requests: Sequence[Request], most: int, on_join: Callable[[int, Request], None] | None = None
    ) -> Iterator[Turn]:
        waiting, network = deque(enumerate(requests)), self.model.transformer

        def refill(rows: Rows | None) -> Rows:
            while rows is None or (waiting and len(rows) < most):
                batch = [waiting.popleft() for _ in range(min(len(waiting), most - (0 if rows is None else len(rows))))]
                for place, request in batch:
                    if on_join is not None:
                        on_join(place, request)
                these = [request for _, request in batch]
                prefixes = computed_prefixes(network, these, self.chunk) if self.in_chunks else []
                new = self.start(these, [place for place, _ in batch], prefixes=prefixes)
                rows = rows.join(new) if rows else new
            return rows

        yield from self.turns(refill(None), refill)

    @torch.inference_mode()
    def turns(
        self,
        rows: Rows,
        between: Callable[[Rows], Rows] | None = None,
        stuck: Callable[[int, UserError], None] = refuse,
        observe: Callable[[Rows, Turn], None] | None = None,
    ) -> Iterator[Turn]:
        """Denoise the rows to the end; others may join, and some leave, ``between`` turns. stuck, observe: as in
        ``turns`` of the loop. Raises UserError if the model's weights are damaged."""
        running = turns(rows, self.forward, self.parts, self.take, between, stuck, observe)
        yield from checked_finite(running, self.model.name)


def beginning_of(request: Request, tenant: str = "") -> Beginning:
    """What decides the keys of a request's first columns. tenant: whose pages it may use."""
    return Beginning(request.tokens, request.first_mask, request.answer_start, tenant)


@torch.inference_mode()
def keep_pages(pages: PageStore, rows: Rows, numbers: Iterable[int], tenants: Iterable[str]) -> None:
    """Keep what is final of the rows ``numbers`` after a turn, for the ``tenants`` whose they are: prompts, and answers
    as far as a forward has computed them when they were decided. Does nothing for caches that do not share."""
    if not rows.session.traits.shares or not rows.owner.is_single:
        return
    tokens, final = rows.session.final(rows.cache_state)
    if rows.plan is not None:  # planned, but not computed yet
        final = final & ~rows.plan.columns
    counts = final.long().cumprod(1).sum(1)
    for row, tenant in zip(numbers, tenants, strict=True):
        count, start = int(counts[row]), int(rows.candidates.start[row])
        pages.add(Beginning(tokens[row, :count].tolist(), count, start, tenant), row, rows.session.stores)


def requests_per_batch(batch_size: int) -> int:
    """How many requests make a batch; ``batch_size`` of them are decoded at once. A run that was stopped decodes its
    last batch again, and engines hand out whole batches, so it is no more: with four times the rows, about four fifths
    of the turns have all rows at work."""
    return batch_size if batch_size == 1 else 4 * batch_size


def charge(rows: Rows, costs: Mapping[int, Sequence[int]]) -> Rows:
    """Rows before their first turn, charged with the ``costs`` of their first columns by the rows' names."""
    ledger, names = rows.ledger, rows.candidates.row_id.tolist()
    more = ledger.spent.new_tensor([costs.get(name, [0] * ledger.spent.shape[1]) for name in names])
    return replace(rows, ledger=replace(ledger, spent=ledger.spent + more[:, :, None]))


def refuse_filled(parts: Parts, requests: Sequence[Request]) -> None:
    """Raise UserError for requests whose text cannot follow columns that move."""
    for request in requests:
        text = "a constraint" if request.constraint is not None else "text after its first gap"
        if request.constraint is not None or request.infill_prefix is not None or request.infill:
            raise Refusal(
                f"a request has {text}, which does not follow the columns that {{length}} moves.",
                [name_of(parts.length)],
                (Set("length", "fixed"),),
            )


def checked_finite(running: Iterator[Turn], name: str) -> Iterator[Turn]:
    """The turns. Raises UserError if a confidence of the first forward is not finite; that takes one copy from the
    device."""
    for number, turn in enumerate(running):
        if number == 0 and not bool(turn.view.scores.confidence.isfinite().all()):
            raise Refusal(
                "{model} answers with numbers that are not finite: its weights are damaged, or {model.dtype:name} is "
                "too narrow for them. Run task=check, fetch the checkpoint again, or set {model.dtype=float32}.",
                [name],
            )
        yield turn
