"""The constraints of a model's requests: compiled, and checked against each canvas before anything is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dllm.common.errors import Refusal, verbatim
from dllm.constraints.compiler import Compiler
from dllm.constraints.decoding.batch import ConstrainedBatch
from dllm.constraints.decoding.compiled import CompiledConstraint
from dllm.constraints.decoding.row import ConstrainedRow
from dllm.constraints.edges import NEVER
from dllm.constraints.kinds import Constraint
from dllm.constraints.row_sets import RowSets
from dllm.constraints.sets import MASK
from dllm.constraints.vocabulary import Vocabulary
from dllm.contract.canvas import Request

if TYPE_CHECKING:
    from dllm.models.text.ids import Ids
    from dllm.models.text.tokenizer import Tokenizer


Silent = tuple[int, ...]
COMPILERS: WeakKeyDictionary[Tokenizer, dict[tuple[int, Silent, Silent], Compiler]] = WeakKeyDictionary()
LOCK = Lock()


class Constraints:
    """What constraints mean for one model, for several threads. size: columns of its logits. forbid_eos: no end of text
    is ever proposed, so that a text fills its canvas. min_tokens: nor in that many first cells. name: the model's."""

    def __init__(
        self, tokenizer: Tokenizer | None, size: int, ids: Ids, forbid_eos: bool, name: str = "", min_tokens: int = 0
    ) -> None:
        self.min_tokens = min_tokens
        self.tokenizer, self.size, self.name = tokenizer, size, name
        self.silent = (*ids.mask_tokens, *ids.ends)
        self.ends: Silent = () if forbid_eos else ids.ends
        self.masks = ids.mask is not None
        self._compiler: Compiler | None = None

    def compiled(self, constraint: Constraint) -> CompiledConstraint:
        """A constraint for this model. Raises UserError for what cannot be compiled within its limits, allows no text,
        or cannot be written by the tokenizer."""
        language = self._shared(constraint).language(constraint)
        renormalised = constraint.confidence == "admissible"
        return CompiledConstraint(language, constraint.kind, renormalised, constraint.joint, not self.masks)

    def knows(self, constraint: Constraint) -> bool:
        """Whether it is compiled, and at hand. Raises UserError as ``compiled`` for a model that takes none."""
        return self._shared(constraint).knows(constraint)

    def batch(self, requests: Sequence[Request]) -> ConstrainedBatch:
        """The constraints of these rows. Raises UserError as ``compiled``."""
        return ConstrainedBatch(tuple(self.row(request) for request in requests))

    def row(self, request: Request) -> ConstrainedRow | None:
        """A request's row before its first turn; None: it is free. Raises UserError where no text fits its canvas."""
        constraint = request.constraint
        if constraint is None:
            return None
        assert isinstance(constraint, Constraint), "a request's constraint is one of dllm.constraints"
        compiled, begin = self.compiled(constraint), self._first(request)
        pairs = list(zip(request.tokens, request.masked, strict=True))[begin:]
        cells = [MASK if masked else token for token, masked in pairs]
        tokens = [at for at, cell in enumerate(cells) if cell != MASK]
        gaps = tokens[-1] if tokens and request.infill_prefix is not None else 0
        sets = RowSets(compiled.language, cells, gaps, request.answer_prefix.encode(), self.min_tokens)
        check(sets, constraint.kind)
        return ConstrainedRow(compiled, begin, [sets])

    def _first(self, request: Request) -> int:
        """The first column of a row's text: that of its answer, or in infilling the row's, after special tokens."""
        if not request.infill_prefix or self._compiler is None:
            return request.answer_start
        texts = self._compiler.vocabulary.texts
        columns = enumerate(zip(request.tokens, request.masked, strict=True))
        return next(at for at, (token, masked) in columns if masked or texts[token] is not None)

    def _shared(self, constraint: Constraint) -> Compiler:
        """The compiler of all that decodes with this tokenizer, made once, with what each id writes."""
        if not self.masks and not constraint.joint:
            raise Refusal(
                f"{{constraint}}: a position of model {verbatim(self.name)} is decided together with its whole block, "
                "not by itself. Set {constraint.joint=true}, which finds the best filling of a block, or drop the "
                "constraint.",
                [constraint.kind],
            )
        if self._compiler is not None:
            return self._compiler
        if self.tokenizer is None:
            raise Refusal(
                f"{{constraint}}: model {verbatim(self.name)} has no tokenizer, so nothing says what its tokens write. "
                "Give a model with a tokenizer, or drop the constraint.",
                [constraint.kind],
            )
        with LOCK:
            compilers, alike = COMPILERS.setdefault(self.tokenizer, {}), (self.size, self.silent)
            if (*alike, self.ends) not in compilers:
                tables = [compiler.vocabulary for key, compiler in compilers.items() if key[:2] == alike]
                vocabulary = tables[0] if tables else Vocabulary.of(self.tokenizer, *alike)
                compilers[*alike, self.ends] = Compiler(vocabulary, self.ends)
            self._compiler = compilers[*alike, self.ends]
        return self._compiler


def check(row: RowSets, kind: str) -> None:
    """Refuse a row that has no filling. kind: of its constraint. Raises UserError."""
    state, masks = row.language.tokens.begun(row.prefix), int((row.cells == MASK).sum())
    begun = verbatim(repr(row.prefix.decode(errors="replace")))
    if state is None:
        raise Refusal(
            f"{{constraint}}: the answer's beginning {begun} begins no text of it. Change the beginning.", [kind]
        )
    if row.feasible():
        return
    if masks < len(row.cells):
        raise Refusal(
            f"{{constraint}}: the given tokens leave no way to complete a text in {masks} masks. Give more masks, or "
            "change the given text.",
            [kind],
        )
    raise Refusal(f"{{constraint}}: {_too_short(int(row.language.tokens.left[state]), masks, row)}", [kind])


def _too_short(least: int, masks: int, row: RowSets) -> str:
    if least == NEVER:
        begun = verbatim(repr(row.prefix.decode(errors="replace")))
        return f"the answer's beginning {begun} cannot be completed by this tokenizer. Change the beginning."
    if least > masks:
        shortest = f"its shortest text takes {least} tokens and the answer has {masks}"
        return f"{shortest}. Raise {{gen_length:name}} to {least} or more."
    if row.language.ends:
        span = f"{row.least} to {masks} tokens, and {{sampling.min_tokens={row.least}}} lets none end before"
        return f"no text of it takes {span}. Lower it."
    way_out = "Drop {sampling.forbid_eos:name}, or change {gen_length:name}."
    return f"no text of it takes exactly {masks} tokens, and none may end before. {way_out}"
