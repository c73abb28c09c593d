"""Decodes recorded turn by turn, which laws read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakValueDictionary

import torch

from dllm.common.errors import first_line, name_of
from dllm.compose.fitted import Parts
from dllm.compose.importing import place_of_error
from dllm.constraints.decoding.batch import ConstrainedBatch
from dllm.contract import Turn
from dllm.contract.canvas import Canvas, Request
from dllm.contract.setting import Sampling
from dllm.loop.denoise import TakeTurn, denoise, start_rows, take_turn, turns
from dllm.loop.forward import Forward
from dllm.loop.rows import Rows
from dllm.loop.runner import beginning_of, keep_pages
from dllm.loop.runtime.runtime import Network
from dllm.models.config import ModelConfig
from dllm.models.network.transformer import Transformer
from dllm.models.text.ids import Ids
from dllm.parts.blocks.base import Blocks
from dllm.parts.cache.base import Cache, Session
from dllm.parts.cache.pages import PageStore
from dllm.parts.eos.base import EndOfText
from dllm.parts.lengths.base import Length
from dllm.parts.samplers.base import Sampler
from dllm.record.collector import Collector
from dllm.record.results import Result
from dllm.record.trace import Trace

ENDLESS = 2000  # turns of one decode; canvases of laws have at most 40 columns
PART_BASES = (Sampler, Blocks, Cache, EndOfText, Length)
SEALED: WeakValueDictionary[int, Any] = WeakValueDictionary()  # the parts that others use, by ``id``
LawAnswer = tuple[list[int], int]  # tokens, forwards


class Broken(AssertionError):
    """A law does not hold; the message says where."""


def crash(error: Exception) -> str:
    """What somebody's part raised, and where."""
    where = f" ({place})" if (place := place_of_error(error)) else ""
    return f"{type(error).__name__}: {first_line(error)}{where}"


@dataclass
class Decoded:
    canvases: list[list[int]] = field(default_factory=list)  # that every forward saw: no padding, -1 for a mask
    undecided: list[list[bool]] = field(default_factory=list)  # of each canvas, the columns left to decide
    # mixtures that every forward was given instead of tokens, by column: tokens and weights
    mixed: list[dict[int, tuple[list[int], list[float]]]] = field(default_factory=list)
    result: Result | None = None  # with its trace; None while it decodes

    @property
    def final(self) -> Result:
        assert self.result is not None
        return self.result

    @property
    def trace(self) -> Trace:
        """That of a decode that has ended."""
        return self.final.traced()


def _unless_sealed(write: Callable[..., None]) -> Callable[..., None]:
    """``__setattr__`` or ``__delattr__`` of a class, refused on its sealed objects."""

    def change(self: Any, name: str, *value: Any) -> None:
        if SEALED.get(id(self)) is self:
            raise Broken(
                f"{name_of(self)}.{name} was written on a part that others use: write on a copy, as "
                f"dllm.contract.replaced(self, {name}=VALUE) makes it"
            )
        write(self, name, *value)

    return change


def sealed(part: Any) -> Any:
    """The part itself, from now on refusing to be written on, and so the parts within it. Copies of it, and what its
    class makes, may be written on: no other part has them yet."""
    if SEALED.get(id(part)) is part:
        return part
    kind = type(part)

    if not hasattr(kind, "seals"):
        names = {
            "__setattr__": _unless_sealed(kind.__setattr__),
            "__delattr__": _unless_sealed(kind.__delattr__),
            "__module__": kind.__module__,
            "seals": True,
        }
        object.__setattr__(part, "__class__", type(kind.__name__, (kind,), names))
    SEALED[id(part)] = part
    for inner in vars(part).values():
        if isinstance(inner, PART_BASES):
            sealed(inner)
    return part


def ids_of(config: ModelConfig) -> Ids:
    return Ids(None if config.process == "uniform" else config.mask_id or 0, config.eos_id or 0, ())


def with_mask(request: Request, mask_id: int) -> Request:
    """The request with the model's own mask id."""
    tokens = [mask_id if hole else token for token, hole in zip(request.tokens, request.masked, strict=True)]
    return replace(request, tokens=tokens)


def forward_of(network: Transformer, parts: Parts, sampling: Sampling) -> Forward:
    return Forward.of(network, ids_of(network.config), replace(parts, sampling=sampling))


def turns_of_rows(
    network: Transformer,
    parts: Parts,
    batch: Sequence[Request],
    sampling: Sampling | None = None,
    lag: int | None = None,
    constraints: ConstrainedBatch | None = None,
    take: TakeTurn | None = None,
    runs: Network | None = None,
) -> Iterator[Turn]:
    """Every turn of a batch. lag, take: as in ``denoise``; runs: the network as a runtime runs it."""
    config, sampling = network.config, sampling or Sampling().under(parts.sampler)
    batch = [with_mask(request, ids_of(config).placeholder) for request in batch]
    forward = forward_of(network, parts, sampling)
    forward = forward if runs is None else replace(forward, network=runs)
    at_zero = config.attention.grid_at_zero
    canvas = Canvas.of(batch, config.pad_id or 0, network.device, at_zero, sampling.temperature)
    with torch.inference_mode():
        yield from ending(denoise(canvas, forward, parts, lag, take, constraints))


def recorded(
    network: Transformer,
    parts: Parts,
    batch: Sequence[Request],
    sampling: Sampling | None = None,
    lag: int | None = None,
    constraints: ConstrainedBatch | None = None,
) -> list[Decoded]:
    """Decode a batch and record every request's turns separately."""
    out, ids = [Decoded() for _ in batch], ids_of(network.config)
    batch = [with_mask(request, ids.placeholder) for request in batch]
    collector = Collector(batch, ids, str, (), trace=True)

    def take(rows: Rows, forward: Forward, parts: Parts) -> tuple[Rows, Turn]:
        for name, mixtures in mixtures_before_forward(rows).items():
            out[name].mixed.append(mixtures)
        return take_turn(rows, forward, parts)

    for turn in turns_of_rows(network, parts, batch, sampling, lag, constraints, take):
        collector.observe(turn)
        canvas = turn.canvas
        for row, name in enumerate(canvas.row_id.tolist()):
            real = slice(int(canvas.initial_end[row]))
            masked = canvas.masked[row, real]
            out[name].canvases.append(canvas.tokens[row, real].masked_fill(masked, -1).tolist())
            out[name].undecided.append(canvas.undecided[row, real].tolist())
    for decoded, result in zip(out, collector.results(), strict=True):
        decoded.result = result
    return out


def mixtures_before_forward(rows: Rows) -> dict[int, dict[int, tuple[list[int], list[float]]]]:
    """Of every row that takes part, by its name: the mixtures that its coming forward is given, by column."""
    out = dict[int, dict[int, tuple[list[int], list[float]]]]()
    if "where" not in rows.carried:
        return out
    for row, name in enumerate(rows.candidates.row_id.tolist()):  # a rule that mixes has one candidate
        if not bool(rows.blocks.active[row]):
            continue
        begin, mixtures = int(rows.blocks.begin[row]), out.setdefault(name, {})
        for place in rows.carried["where"][row].nonzero()[:, 0].tolist():
            tokens, weights = (rows.carried[part][row, place] for part in ("tokens", "weights"))
            has_weight = weights > 0
            mixtures[begin + place] = tokens[has_weight].tolist(), weights[has_weight].tolist()
    return out


def results(
    network: Transformer,
    parts: Parts,
    batch: Sequence[Request],
    sampling: Sampling | None = None,
    lag: int | None = None,
    runs: Network | None = None,
    take: TakeTurn | None = None,
    constraints: ConstrainedBatch | None = None,
) -> list[Result]:
    """A batch's results without traces. The last four as in ``turns_of_rows``."""
    ids = ids_of(network.config)
    collector = Collector([with_mask(request, ids.placeholder) for request in batch], ids, str, (), trace=False)
    for turn in turns_of_rows(network, parts, batch, sampling, lag, constraints, take, runs):
        collector.observe(turn)
    return collector.results()


def ending(running: Iterator[Turn]) -> Iterator[Turn]:
    """The turns of a decode. Raises Broken for one that does not end, as where masks are left and none is open."""
    for number, turn in enumerate(running):
        if number >= ENDLESS:
            raise Broken(f"{ENDLESS} turns, masks left: {turn.candidates.undecided.sum(1).tolist()}")
        yield turn


def decode_joining(
    network: Transformer, parts: Parts, arrivals: Mapping[int, Sequence[Request]], sampling: Sampling
) -> dict[int, LawAnswer]:
    """Every request's answer by its seed. arrivals: the requests by how many turns pass before they join."""
    forward, config = forward_of(network, parts, sampling), network.config
    rows: Rows | None = None
    out: dict[int, LawAnswer] = {}
    waiting, turn = dict(arrivals), 0
    while waiting or rows:
        if turn > ENDLESS:
            raise Broken(f"{ENDLESS} turns, and rows are left")
        if turn in waiting:
            batch = [with_mask(request, ids_of(config).placeholder) for request in waiting.pop(turn)]
            canvas = Canvas.of(
                batch, config.pad_id or 0, network.device, config.attention.grid_at_zero, sampling.temperature
            )
            fresh = start_rows(canvas, forward, parts, None)
            rows = rows.join(fresh) if rows else fresh
        turn += 1
        if not rows:
            continue
        rows, taken_turn = take_turn(rows, forward, parts)
        for row in taken_turn.finished:
            canvas = rows.owner.per_row(taken_turn.candidates)
            answer = canvas.tokens[row, int(canvas.start[row]) : int(canvas.initial_end[row])].tolist()
            out[int(canvas.seed[row])] = answer, int(taken_turn.view.blocks.turn[row])
        rows = rows.without(taken_turn.finished)
    return out


@torch.inference_mode()
def decode_sharing(
    network: Transformer,
    parts: Parts,
    batch: Sequence[Request],
    sampling: Sampling,
    pages: PageStore,
    lag: int | None = None,
) -> tuple[list[LawAnswer], int]:
    """Every request's answer, and how many columns were known. Their rows take over what ``pages`` hold, and leave
    there what is final after their first turn and after their last."""
    forward, config = forward_of(network, parts, sampling), network.config
    batch = [with_mask(request, ids_of(config).placeholder) for request in batch]
    prefixes = [pages.find(beginning_of(request)) for request in batch]
    out = dict[int, LawAnswer]()

    def prepare(session: Session) -> None:
        if session.traits.shares:
            session.kept.take_over(prefixes)

    def observe(rows: Rows, turn: Turn) -> None:
        numbers = turn.canvas.row_id.tolist()
        row_numbers = [row for row in range(len(rows)) if row in turn.finished or int(turn.view.blocks.turn[row]) == 1]
        keep_pages(pages, rows, row_numbers, [""] * len(row_numbers))
        for row in turn.finished:
            canvas = rows.owner.per_row(turn.candidates)
            answer = canvas.tokens[row, int(canvas.start[row]) : int(canvas.initial_end[row])].tolist()
            out[numbers[row]] = answer, int(turn.view.blocks.turn[row])

    at_zero = config.attention.grid_at_zero
    canvas = Canvas.of(batch, config.pad_id or 0, network.device, at_zero, sampling.temperature)
    rows = start_rows(canvas, forward, parts, lag, prepare=prepare)
    for _ in ending(turns(rows, forward, parts, observe=observe)):
        pass
    return [out[row] for row in range(len(batch))], sum(request.columns for request in prefixes if request is not None)
