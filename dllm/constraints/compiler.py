"""Constraints compiled for one model, and rows checked against them before anything is decoded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import fields
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dllm.canvas import Request
from dllm.constraints.automata import automaton_of
from dllm.constraints.compiled import Compiled
from dllm.constraints.kinds import Constraint
from dllm.constraints.languages.limits import Limits, within
from dllm.constraints.rows import RowSets
from dllm.constraints.sets import MASK, TokenLanguage
from dllm.constraints.steered import Steered
from dllm.constraints.steering import Steering
from dllm.constraints.store import Store
from dllm.constraints.vocabulary import Vocabulary
from dllm.errors import UserError

if TYPE_CHECKING:
    from dllm.models.ids import Ids
    from dllm.models.tokenizer import Tokenizer

IN_MEMORY = 32  # languages whose steps are remembered
STORE, LOCK = Store(), Lock()
VOCABULARIES: WeakKeyDictionary[Tokenizer, dict[tuple[int, tuple[int, ...]], Vocabulary]] = WeakKeyDictionary()


class Compiler:
    """Compiles constraints for the vocabulary of one model; it may be asked from several threads.

    vocab: columns of the model's logits. forbid_eos: no end of text is ever proposed, so that a text fills its canvas.
    """

    def __init__(self, tokenizer: Tokenizer | None, vocab: int, ids: Ids, forbid_eos: bool, name: str = "") -> None:
        self.tokenizer, self.vocab, self.ids, self.name = tokenizer, vocab, ids, name
        self.ends = () if forbid_eos else tuple(dict.fromkeys((ids.eos, *ids.stops)))
        self._languages: OrderedDict[str, TokenLanguage] = OrderedDict()
        self._lock = Lock()

    def compiled(self, constraint: Constraint) -> Compiled:
        """The constraint for this vocabulary. Raises UserError for what is no constraint, allows no text, is too large,
        or cannot be written by the tokenizer."""
        began, key = perf_counter(), key_of(constraint)
        with self._lock:
            language = self._languages.get(key)
        if language is None:
            with within(Limits(constraint.limit, constraint.seconds, getattr(constraint, "depth", None))):
                tokens = STORE.get(key, self._vocabulary(constraint), lambda: automaton_of(constraint))
            language = TokenLanguage(tokens, self.ends)
            with self._lock:
                language = self._languages.setdefault(key, language)
                while len(self._languages) > IN_MEMORY:
                    self._languages.popitem(last=False)
        if language.fewest is None:
            raise UserError(f"constraint={constraint.kind} allows no text that this tokenizer can write.")
        return Compiled(
            language, constraint.kind, perf_counter() - began, constraint.confidence == "admissible", constraint.joint)

    def steering(self, requests: Sequence[Request]) -> Steering:
        """What steers these rows. Raises UserError as ``steered``."""
        return Steering(tuple(self.steered(request) for request in requests))

    def steered(self, request: Request) -> Steered | None:
        """A request's row before its first turn; None: it is free. Raises UserError where no text fits its canvas."""
        constraint = request.constraint
        if constraint is None:
            return None
        assert isinstance(constraint, Constraint), "a request's constraint is one of dllm.constraints"
        compiled = self.compiled(constraint)
        cells = [MASK if masked else token for token, masked in zip(request.tokens, request.masked, strict=True)]
        infill = request.infills
        begin = 0 if infill else request.answer_start
        cells = cells[begin:]
        gaps = max((at for at, cell in enumerate(cells) if cell != MASK), default=0) if infill else 0
        sets = RowSets(compiled.language, cells, gaps, request.begun.encode())
        if not sets.feasible():
            raise unfit(constraint, compiled, sets, request)
        return Steered(compiled, begin, [sets])

    def _vocabulary(self, constraint: Constraint) -> Vocabulary:
        if self.tokenizer is None:
            raise UserError(
                f"constraint={constraint.kind}: model {self.name} has no tokenizer, so nothing says what its tokens "
                "write. Give a model with a tokenizer, or drop the constraint."
            )
        silent = tuple(dict.fromkeys((self.ids.mask, self.ids.eos, *self.ids.stops)))
        with LOCK:
            known = VOCABULARIES.setdefault(self.tokenizer, {})
            if (self.vocab, silent) not in known:
                known[self.vocab, silent] = Vocabulary.of(self.tokenizer, self.vocab, silent)
            return known[self.vocab, silent]


def key_of(constraint: Constraint) -> str:
    """A text that is the same for constraints of the same language, in every process."""
    common = {entry.name for entry in fields(Constraint)}
    own = [(one.name, getattr(constraint, one.name)) for one in fields(constraint)
           if one.compare and one.name not in common]  # fmt: skip
    return repr((constraint.kind, own))


def unfit(constraint: Constraint, compiled: Compiled, sets: RowSets, request: Request) -> UserError:
    """Why a row has no text of the language."""
    masks, fewest = int((sets.cells == MASK).sum()), compiled.language.fewest
    name = f"constraint={constraint.kind}"
    if request.begun and not compiled.language.start(request.begun.encode()).members.any():
        return UserError(
            f"{name}: the answer's beginning {request.begun!r} begins no text of it. Change the beginning."
        )
    if masks == len(sets.cells) and fewest is not None and compiled.language.ends and not request.begun:
        return UserError(
            f"{name}: its shortest text takes {fewest} tokens and the answer has {masks}. "
            f"Raise gen_length to {fewest} or more."
        )
    if masks == len(sets.cells):
        return UserError(f"{name}: no text of it takes {masks} tokens behind what is given. Change gen_length.")
    return UserError(
        f"{name}: the given tokens leave no way to complete a text in {masks} masks. Give more masks, or change the "
        "given text."
    )
