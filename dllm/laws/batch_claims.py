"""Laws of rows in company: the others, when a row joins, and how late the host reads change nothing of what it gets."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from dllm.common.errors import UserError
from dllm.contract.canvas import Request
from dllm.contract.setting import replaced
from dllm.laws.claims import Trial, holds, infilling_keeps_what_is_given
from dllm.laws.decodes import Decoded, LawAnswer, decode_joining, decode_sharing, forward_of, results, with_mask
from dllm.loop.probing import sized
from dllm.loop.runtime.runtime import FIXED, Runtime
from dllm.parts.cache.buffer import Buffered
from dllm.parts.cache.candidates import CandidateCalls
from dllm.parts.cache.pages import PageStore


def batches(count: int) -> list[list[int]]:
    """Every row alone, and a crowd: all of them three times, in another order."""
    return [*([row] for row in range(count)), 3 * [count - 1, *range(count - 1)]]


def a_row_is_alone(trial: Trial, batches_tried: Sequence[Sequence[int]] | None = None) -> None:
    """A row decodes the same alone and in any batch. batches_tried: the batches to compare with all rows together."""
    for numbers in batches(len(trial.requests)) if batches_tried is None else batches_tried:
        beside = "alone" if len(numbers) == 1 else f"in the order {list(numbers)}"
        for decoded, number in zip(trial.decode(numbers), numbers, strict=True):
            same_row(decoded, trial.together[number], f"row {number} {beside}, and among {len(trial.requests)} rows")


def the_same_again(trial: Trial) -> None:
    """The same batch decodes the same once more: nothing is kept between decodes, or drawn from elsewhere."""
    for number, decoded in enumerate(trial.decode(range(len(trial.requests)))):
        same_row(decoded, trial.together[number], f"row {number} of the second decode, and of the first")


def same_row(row: Decoded, other: Decoded, which: str) -> None:
    """Whether two decodes of a request agree, turn by turn."""
    for turn, (mine, theirs) in enumerate(zip(row.canvases, other.canvases, strict=False), 1):
        holds(len(mine) == len(theirs), f"{which}: {len(mine)} and {len(theirs)} columns before forward {turn}")
        apart = [at for at, (left, right) in enumerate(zip(mine, theirs, strict=True)) if left != right]
        holds(not apart, f"{which}: before forward {turn} they differ in columns {apart}")
    counts = f"{len(row.canvases)} and {len(other.canvases)} forwards"
    holds(len(row.canvases) == len(other.canvases), f"{which}: {counts}")
    holds(row.final.canvas == other.final.canvas, f"{which}: the answers are {row.final.canvas}, {other.final.canvas}")
    holds(row.final.turns == other.final.turns, f"{which}: committed in turns {row.final.turns}, {other.final.turns}")


def candidates_may_lie_side_by_side(trial: Trial) -> None:
    """Candidates side by side in one row, over what the cache keeps, decode as candidates that are rows of their own
    with a copy of it."""
    cache = trial.parts.cache
    if not trial.parts.sampler.traits.branches or not isinstance(cache, Buffered):
        return
    rows = replace(trial.parts, cache=replaced(cache, shared_call=CandidateCalls.in_rows))
    for number, decoded in enumerate(replace(trial, parts=rows).together):
        same_row(decoded, trial.together[number], f"row {number} with its candidates in rows, and side by side")


def a_row_may_join(trial: Trial) -> None:
    """A row that joins a running batch decodes as it does alone, and so do the rows that it joins."""
    first, *later = trial.requests
    if not later:
        return
    arrivals: dict[int, list[Request]] = {0: [first]}
    for turn, request in enumerate(later, 1):
        arrivals.setdefault(2 * turn - 1, []).append(request)
    together = answers(trial, arrivals)
    for row, request in enumerate(trial.requests):
        (alone,) = answers(trial, {0: [request]}).values()
        tokens, forwards = together[request.seed]
        holds(tokens == alone[0], f"row {row}: its answer is {alone[0]} alone, and {tokens} where rows join")
        holds(forwards == alone[1], f"row {row}: {alone[1]} forwards alone, and {forwards} where rows join")


def answers(trial: Trial, arrivals: dict[int, list[Request]]) -> dict[int, LawAnswer]:
    return decode_joining(trial.network, trial.parts, arrivals, trial.sampling)


def a_known_prompt_changes_nothing(trial: Trial) -> None:
    """What another request has computed changes neither tokens nor forwards: cold, warm, in the next turn of a chat,
    with half of a page in common, where memory is short, and for a host that plans ahead."""
    attention = trial.network.config.attention
    pages, scarce = (PageStore(attention, b"", most) for most in (10_000, 24))

    def decode(batch: Sequence[Request], pages: PageStore, lag: int | None = None) -> list[LawAnswer]:
        return decode_sharing(trial.network, trial.parts, batch, trial.sampling, pages, lag)[0]

    cold = decode(trial.requests, PageStore(attention, b"", 0))
    tokens = [
        [*text.tokens[: text.answer_start], *answer] for text, (answer, _) in zip(trial.requests, cold, strict=True)
    ]
    # the next turn of a chat, and an odd number of the same tokens before others
    texts = [[*(token for token in text if token != trial.mask), 3, 7] for text in tokens]
    after = [Request.answer(text, 9, trial.mask, 5) for text in texts]
    after += [Request.answer([*text[:-7], *text[:4]], 7, trial.mask, 6) for text in texts]
    plain = decode(after, PageStore(attention, b"", 0))
    late = 0 if trial.parts.cache.traits.bounded_shapes and not trial.parts.length.traits.changes else None
    for batch, want in ((trial.requests, cold), (trial.requests, cold), (after, plain), (after, plain)):
        for store, lag in ((pages, None), (scarce, late)):
            answers_shared = decode(batch, store, lag)
            holds(answers_shared == want, f"with known pages: {answers_shared}, without: {want}")


def a_late_host_changes_nothing(trial: Trial) -> None:
    """Fixed shapes, whose contents the host learns a turn late if the cache lets it, give the same tokens. Parts that
    do not take ``runtime=static`` are left out; rows that change their length must be among them."""
    lag = int(trial.parts.cache.traits.bounds_late)
    if trial.parts.length.traits.changes:
        for name in (*FIXED, "static"):
            holds(refuses(Runtime(name), trial), f"runtime={name} takes rows that change their length")
    with suppress(UserError):
        Runtime("static", lag).check(trial.parts, trial.network.config, torch.device("cpu"))
        late = results(trial.network, trial.parts, trial.requests, trial.sampling, lag)
        for row, (late_result, other) in enumerate(zip(late, trial.together, strict=True)):
            eager, mine = other.final, (late_result.canvas, late_result.nfe, late_result.turns)
            theirs = (eager.canvas, eager.nfe, eager.turns)
            holds(mine == theirs, f"row {row} under runtime=static: {mine}; eager: {theirs} (canvas, forwards, turns)")


def refuses(runtime: Runtime, trial: Trial) -> bool:
    """Whether a runtime refuses the parts of a trial, on a GPU."""
    try:
        runtime.check(trial.parts, trial.network.config, torch.device("cuda"))
    except UserError:
        return True
    return False


def a_gap_is_sized_alone(trial: Trial, unsized: Sequence[Request]) -> None:
    """A gap without a number gets the same size, by the same tries, alone and in any batch, whatever decodes it, and
    what is around it stays."""
    if not trial.parts.length.traits.probes:
        return
    forward, pad = forward_of(trial.network, trial.parts, trial.sampling), trial.network.config.pad_id or 0
    requests = [with_mask(request, trial.mask) for request in unsized]
    together = sized(requests, forward, trial.parts, pad, 2)
    for number, (request, beside) in enumerate(zip(requests, together, strict=True)):
        (alone,) = sized([request], forward, trial.parts, pad, 1)
        tries = f"gap {number}: tries {alone.probes} alone, and {beside.probes} beside others"
        holds([size for size, _ in alone.probes] == [size for size, _ in beside.probes], tries)
        holds(alone.tokens == beside.tokens, f"gap {number}: {sum(alone.masked)} masks alone, and {sum(beside.masked)}")
        text = [token for token, hole in zip(request.tokens, request.masked, strict=True) if not hole]
        text_after = [token for token, hole in zip(beside.tokens, beside.masked, strict=True) if not hole]
        holds(text_after == text, f"gap {number}: the text around it is {text_after}, and was {text}")
        holds(bool(beside.probes) == (request.gap is not None), f"gap {number}: {len(beside.probes)} tries")
    infilling_keeps_what_is_given(trial, together[0], together[1])
