"""A trace whose rows changed their lengths, on all columns that it ever had: what a page with fixed places draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from dllm.record.trace import Trace
from dllm.record.turns import Commits, LengthRecord, RecordedGuesses, ShownMixtures, ShownTokens, TurnRecord

RecordPart = TypeVar("RecordPart", Commits, RecordedGuesses, ShownTokens, ShownMixtures)


def on_final_columns(trace: Trace) -> Trace:
    """The trace, in which every column keeps one place: those that come later are masks until then, and those that are
    cut off are masks again. A trace of one length is as it was."""
    if not any(record.length for record in trace.turns):
        return trace
    answer = len(trace.prompt) - trace.start
    columns, order = list(range(answer)), list(range(answer))  # numbers of those there now, and of all in their order
    orders = list[list[int]]()
    for record in trace.turns:
        orders.append(list(columns))
        if record.length is not None:
            columns = after_change(record.length, columns, order)
    place = {number: at for at, number in enumerate(order)}
    after = [*orders[1:], columns]
    turns = [
        by_place(record, [place[n] for n in now], [place[n] for n in then])
        for record, now, then in zip(trace.turns, orders, after, strict=True)
    ]
    assert trace.mask_id is not None, "rows of noise keep their lengths"
    tokens = [trace.prompt[trace.start + n] if n < answer else trace.mask_id for n in order]
    is_given = [trace.given[trace.start + n] if n < answer else 0 for n in order]
    return replace(
        trace, prompt=trace.prompt[: trace.start] + tokens, given=trace.given[: trace.start] + is_given, turns=turns
    )


def after_change(length: LengthRecord, columns: list[int], order: list[int]) -> list[int]:
    """The numbers of the columns after a change. New ones come into ``order``, too, where they belong."""
    new = list(range(len(order), len(order) + length.inserted))
    if new:
        at = order.index(columns[length.at]) + 1
        order[at:at] = new
        columns = columns[: length.at + 1] + new + columns[length.at + 1 :]
    last = order.index(columns[-1]) + 1 if columns else 0
    more = length.appended + length.filled
    order += range(len(order), len(order) + max(0, more - len(order[last:])))  # those that were cut off come again
    columns = columns + order[last : last + more]
    return columns[: len(columns) - length.cut]


def by_place(record: TurnRecord, now: Sequence[int], then: Sequence[int]) -> TurnRecord:
    """A turn by places. now: of the columns of its forward; then: of those after it."""

    def at(positions: Sequence[int]) -> list[int]:
        return [now[position] for position in positions]

    def each(lists: Sequence[Sequence[int]]) -> list[list[int]]:
        return [at(positions) for positions in lists]

    cut = sorted({*now} - {*then})
    ends = [] if record.length is None else list(then[len(then) - record.length.filled :]) * bool(record.length.filled)
    number, begin, end = record.block
    bounds = (now[begin] if begin < len(now) else len(now), now[end - 1] + 1 if 0 < end <= len(now) else end)
    return replace(
        record,
        candidates=[with_positions(commits, at) for commits in record.candidates],
        edited=[with_positions(commits, at) for commits in record.edited],
        shown=[with_positions(tokens, at) for tokens in record.shown],
        guesses=with_positions(record.guesses, at),
        remasked=each(record.remasked),
        refused=each(record.refused),
        replaced=each(record.replaced),
        corrected=at(record.corrected),
        doubted=at(record.doubted),
        block=(number, *bounds),
        length=None,
        mixtures=record.mixtures and with_positions(record.mixtures, at),
        filled=[[*places, *ends] for places in each(record.filled)],
        rolled=[[*places, *cut] for places in each(record.rolled)],
    )


def with_positions(part: RecordPart, at: Callable[[Sequence[int]], list[int]]) -> RecordPart:
    return replace(part, positions=at(part.positions))
