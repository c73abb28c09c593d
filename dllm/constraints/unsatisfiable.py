"""Why a row cannot be begun: no ids for its masks make a text of its language."""

from __future__ import annotations

from dllm.constraints.edges import NEVER
from dllm.constraints.row_sets import RowSets
from dllm.constraints.sets import MASK
from dllm.errors import UserError


def check(row: RowSets, kind: str) -> None:
    """Refuse a row that has no filling. kind: of its constraint. Raises UserError."""
    state, masks = row.language.tokens.begun(row.prefix), int((row.cells == MASK).sum())
    if state is None:
        raise UserError(
            f"constraint={kind}: the answer's beginning {row.prefix.decode(errors='replace')!r} begins no text of it. "
            "Change the beginning."
        )
    if row.feasible():
        return
    if masks < len(row.cells):
        raise UserError(
            f"constraint={kind}: the given tokens leave no way to complete a text in {masks} masks. Give more masks, "
            "or change the given text."
        )
    raise UserError(f"constraint={kind}: {_too_short(int(row.language.tokens.left[state]), masks, row)}")


def _too_short(least: int, masks: int, row: RowSets) -> str:
    if least == NEVER:
        begun = row.prefix.decode(errors="replace")
        return f"the answer's beginning {begun!r} cannot be completed by this tokenizer. Change the beginning."
    if least > masks:
        shortest = f"its shortest text takes {least} tokens and the answer has {masks}"
        return f"{shortest}. Raise gen_length to {least} or more."
    if row.language.ends:
        span = f"{row.least} to {masks} tokens, and sampling.min_tokens={row.least} lets none end before"
        return f"no text of it takes {span}. Lower it."
    way_out = "Drop forbid_eos, or change gen_length."
    return f"no text of it takes exactly {masks} tokens, and none may end before. {way_out}"
