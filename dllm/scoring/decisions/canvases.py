"""From questions and a prompt to slots on a canvas: tokens of every part, and the boundaries between them checked.

Alternatives are scored as the tokenizer writes them between the texts beside them. So those texts must keep the same
tokens for every value: a value that merges with them is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from dllm.common.errors import UserError
from dllm.prompts import Message, PrefilledPrompt, Prompts, is_ids
from dllm.scoring.decisions.estimators import Cells, Plan, Slot, TokenIds, by_length, canvases, plan_by, slots_by_length
from dllm.scoring.decisions.questions import Question

DecisionState = str | list[Message] | list[int]
Encode = Callable[[str], list[int]]
SLOT_MODES = ("auto", "open", "closed")


@dataclass(frozen=True)
class Laid:
    """One question on a canvas."""

    head: Cells  # cells before the slot
    alternatives: tuple[TokenIds, ...]  # the tokens of each
    tail: Cells  # cells after the slot
    start: int  # where the prompt ends

    @property
    def width(self) -> int:
        return max(map(len, self.alternatives))


def with_questions(state: DecisionState, questions: Sequence[Question]) -> DecisionState:
    """The state followed by its questions. Raises UserError where these cannot follow token ids."""
    instructions = "\n\n".join(text for question in questions if (text := question.asked()))
    if not instructions:
        return state
    if isinstance(state, str):
        return f"{state}\n\n{instructions}"
    if is_ids(state):
        raise UserError("instructions are text, and the state is given as token ids. Write them into the state.")
    *before, last = cast("list[Message]", state)
    if last["role"] != "user":
        return [*before, last, {"role": "user", "content": instructions}]
    return [*before, {**last, "content": f"{last['content']}\n\n{instructions}"}]


def encoder(prompts: Prompts, state: DecisionState, before: str) -> tuple[list[int], Encode]:
    """The ids of a prompt and of the text that begins its answer, and what encodes that text with more after it, in
    this place. Where the text has tokens of its own after the prompt, it is encoded alone, which is faster."""
    whole: Encode
    if isinstance(state, list) and is_ids(state):
        ids = prompts.encode(state)
        whole = lambda text: [*ids, *prompts.ids_of(text)]  # noqa: E731
    else:
        whole = lambda text: prompts.encode(PrefilledPrompt(cast("str | list[Message]", state), text))  # noqa: E731
    head = whole(before)
    alone = prompts.ids_of(before) if before.strip() else []
    if alone and head[-len(alone) :] == alone:
        return head, lambda text: [*head[: -len(alone)], *prompts.ids_of(text)]
    return head, whole


def cut(encode: Encode, before: str, texts: Sequence[str], behind: str) -> tuple[list[int], list[TokenIds], TokenIds]:
    """Ids before the slot, of each text in it, and after it. A space before the slot goes into it where the tokenizer
    joins it to what follows. Raises UserError for a text that merges with what is beside it."""
    try:
        return _cut(encode, before, texts, behind)
    except UserError:
        if not before.endswith(" "):
            raise
        return _cut(encode, before[:-1], [f" {text}" for text in texts], behind)


def _cut(encode: Encode, before: str, texts: Sequence[str], behind: str) -> tuple[list[int], list[TokenIds], TokenIds]:
    head = encode(before)
    parts, tails = list[TokenIds](), list[TokenIds]()
    for text in texts:
        bare, whole = encode(before + text), encode(before + text + behind)
        if bare[: len(head)] != head or len(bare) == len(head):
            raise UserError(f"{text!r} merges with the text before it. Put a space or a quote between.")
        if whole[: len(bare)] != bare or (tails and tuple(whole[len(bare) :]) != tails[0]):
            raise UserError(f"{text!r} merges with the text after it. Put a space or a quote between.")
        parts.append(tuple(bare[len(head) :]))
        tails.append(tuple(whole[len(bare) :]))
    if len(set(parts)) < len(parts):
        same = next(text for text, ids in zip(texts, parts, strict=True) if parts.count(ids) > 1)
        raise UserError(f"{same!r} has the same tokens as another value. Make them distinct.")
    return head, parts, tails[0]


def laid_alone(prompts: Prompts, state: DecisionState, question: Question) -> Laid:
    """A question on a canvas of its own."""
    prompt, (before, behind) = with_questions(state, [question]), question.around
    start = len(prompts.encode(prompt))
    _, encode = encoder(prompts, prompt, before)
    head, alternatives, tail = cut(encode, before, question.texts, behind)
    return Laid(tuple(head), tuple(alternatives), tail, min(start, len(head)))


@dataclass(frozen=True)
class Layout:
    """The slots of a laid question, before any canvas is made."""

    estimator: str  # that reads them
    open: Slot  # nothing is after it
    closed: Slot | None  # the text after it is given; None: the question is read of the open one

    @property
    def slots(self) -> list[Slot]:
        """Those that are read."""
        return [self.open] if self.closed is None else slots_by_length(self.closed, self.open, self.estimator)

    @property
    def columns(self) -> int:
        """The columns of the longest canvas."""
        return max(slot.columns for slot in self.slots)

    @property
    def canvases(self) -> int:
        """How many there are."""
        return sum(canvases(slot, self.estimator) for slot in self.slots)

    def plan(self) -> Plan:
        """What to read."""
        if self.closed is None:
            return plan_by(self.open, self.estimator)
        return by_length(self.closed, self.open, self.estimator)


def layout_of(laid: Laid, mask: int, end: int, estimator: str, mode: str, free: int, sees_behind: bool) -> Layout:
    """The slots of a laid question. mode: ``open``: alternatives of different lengths compete through the token that
    ends them, and nothing is after; ``closed``: the text after is given, every length has its own canvas; auto:
    open where lengths differ, and where the model does not see all text after a mask (``sees_behind``). end: the token
    that ends a text which nothing follows. free: masks after the template."""
    lengths = {len(ids) for ids in laid.alternatives}
    is_open = mode == "open" or (mode == "auto" and (len(lengths) > 1 or not sees_behind))
    ender = next((cell for cell in laid.tail if cell is not None), end)
    ends = (ender,) if len(lengths) > 1 else ()
    alternatives = tuple(ids + ends for ids in laid.alternatives)
    masks: Cells = (None,) * free
    open_slot = Slot(laid.head, alternatives, masks, laid.start, mask, max(map(len, alternatives)))
    if is_open:
        return Layout(estimator, open_slot, None)
    closed = replace(open_slot, alternatives=laid.alternatives, tail=(*laid.tail, *masks), width=laid.width)
    return Layout(estimator, open_slot, closed)


class TooManyCanvases(UserError):
    """Questions that take more canvases than may be read at once. most: how many those are."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the questions take more than {most} canvases. Ask fewer, or with estimator=marginal.")
        self.most = most


class Unanswerable(UserError):
    """A question that cannot be laid on a canvas. name: its own; sentence: why."""

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(f"question {name!r}: {sentence}")
        self.name, self.sentence = name, sentence
