"""Forwards before the first turn, which find the size of gaps: of every request one canvas at a time, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dllm.common.errors import Refusal, UserError, name_of
from dllm.compose.fitted import Parts
from dllm.contract import Need
from dllm.contract.canvas import Canvas, Request
from dllm.contract.readouts import Statistic
from dllm.loop.denoise import start_rows
from dllm.loop.forward import Forward
from dllm.models.config import ModelConfig
from dllm.parts.cache.none import NoCache

NEED = Need("answer", reads=Statistic.of("first"))


def sized(requests: Sequence[Request], forward: Forward, parts: Parts, pad_id: int, most: int) -> list[Request]:
    """The requests with a size for every gap that had none, as ``sizing`` finds it."""
    return [list(requests), *sizing(requests, forward, parts, pad_id, most)][-1]


def sizing(
    requests: Sequence[Request], forward: Forward, parts: Parts, pad_id: int, most: int
) -> Iterator[list[Request]]:
    """The requests after every forward, in the end each gap of unknown size with as many masks as the part ``length``
    finds. most: rows of a forward. Raises UserError for gaps whose size no part can find."""
    out, searches, lengths = list(requests), {}, dict[int, int]()
    for number, request in enumerate(requests):
        if request.gap is not None:
            refuse_gap(request, forward.model.config, parts)
            room = forward.model.config.max_length - len(request.tokens) + 1
            searches[number] = parts.length.search(room)
            lengths[number] = next(searches[number])
    while lengths:
        batch = dict(list(lengths.items())[:most])
        for number, sure in sureness(out, batch, forward, parts, pad_id).items():
            probes = (*out[number].probes, (batch[number], sure))
            out[number] = replace(out[number], probes=probes)
            try:
                lengths[number] = searches[number].send(sure)
            except StopIteration as end:
                del lengths[number]
                out[number] = replace(with_gap(out[number], end.value, forward.ids.placeholder), gap=None)
        yield list(out)


def sureness(
    requests: Sequence[Request], lengths: Mapping[int, int], forward: Forward, parts: Parts, pad_id: int
) -> dict[int, float]:
    """Mean probability of the likeliest token in the gap of each request, by its number, with a gap of that length."""
    rows = [with_gap(requests[number], length, forward.ids.placeholder) for number, length in lengths.items()]
    canvas = Canvas.of(rows, pad_id, forward.model.device, temperature=parts.sampling.temperature)
    proposer = replace(forward.proposer, statistics=frozenset({"first"}))
    alone = replace(forward, cache=NoCache(), needs=(NEED,), proposer=proposer, network=forward.model)
    trial = start_rows(canvas, alone, replace(parts, cache=NoCache()), None)
    scores = alone.finish(alone(trial)).scores
    first: Tensor = scores.statistic("first")
    with torch.inference_mode():
        probabilities = [first[row, canvas.undecided[row]].tolist() for row in range(len(rows))]
    return {number: sum(each) / len(each) for number, each in zip(lengths, probabilities, strict=True)}


def with_gap(request: Request, length: int, mask_id: int) -> Request:
    """The request with ``length`` masks in its gap of unknown size, which is one mask as long as it is unknown."""
    at = request.gap
    assert at is not None
    tokens = [*request.tokens[:at], *[mask_id] * length, *request.tokens[at + 1 :]]
    masked = [*request.masked[:at], *[True] * length, *request.masked[at + 1 :]]
    return replace(request, tokens=tokens, masked=masked)


def refuse_gap(request: Request, config: ModelConfig, parts: Parts) -> None:
    """Raise UserError for a gap whose size cannot be found."""
    if not parts.length.traits.probes:
        raise Refusal(
            "a hole without a number has no size under {length}. Give it a number of masks, or use {length=cal}.",
            [name_of(parts.length)],
        )
    if sum(request.masked) > 1:
        raise UserError("a hole without a number may have no other beside it. Give each a number.")
    if request.constraint is not None:
        raise UserError("a hole without a number is sized before any text, and a constraint is not. Give it a number.")
    if request.gap == 0 and config.prediction_shift:
        raise UserError("this model predicts a token from the one before it: a hole needs text before it. Give some.")
