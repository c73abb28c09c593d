"""How small the contract is, counted: what may be absent from the types, and who asks how shapes are known."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "dllm"
# Fields that may be None (44 in all before the redesign). Two are for rows under constraints only, two for rules that
# read attention, one each for rules that replace tokens and for rules of noise, two for plans that force nothing;
# others do not pay.
CONTRACT = {"Need.span", "Need.ratio", "Step.accepted",
            "Schedule.fixed_length", "Scores.repropose", "Step.edit",
            "Scores.drafts", "ForwardPlan.beside", "ForwardPlan.forced", "View.forced",
            "Step.shown", "Step.mixture", "Mixture.rejected"}  # fmt: skip
CALLS = 9  # of ``Call`` and ``CandidateBuffers``: what a call does without
FOLDERS = ("contract", "loop", "samplers", "blocks", "cache", "eos", "runtime")
LINES = 400  # of the contract, which is to be read in a sitting


def optional(file: str) -> set[str]:
    """Annotated fields of a module's classes that may be None."""
    return {
        f"{kind.name}.{field.target.id}"
        for kind in ast.parse((PACKAGE / file).read_text(encoding="utf-8")).body if isinstance(kind, ast.ClassDef)
        for field in kind.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        and "None" in ast.unparse(field.annotation)
    }  # fmt: skip


def core() -> list[Path]:
    return [file for name in FOLDERS for file in sorted((PACKAGE / name).glob("*.py")) if file.name != "shapes.py"]


def test_few_fields_of_the_contract_may_be_absent() -> None:
    assert optional("contract/types.py") | optional("contract/needs.py") | optional("contract/step.py") <= CONTRACT
    assert optional("loop/rows.py") == {"Rows.plan"}, "exact shapes plan when the forward begins"
    assert optional("contract/shapes.py") == {"Bounded.order"}
    assert optional("contract/turn.py") == {"Turn.reshape"}, "a turn in which no row changes its length gathers nothing"
    assert len(optional("cache/passes.py")) <= CALLS


def test_nobody_but_the_loop_asks_which_shapes_there_are() -> None:
    """Parts ask the shapes; that they are exact or bounded is decided once (21 conditions before the redesign)."""
    asks = re.compile(r"isinstance\([^)]*\b(Exact|Bounded)|\bif bounded\b|(lag|shapes) is (not )?None")
    lines = [(file.name, line.strip()) for file in core() for line in file.read_text().splitlines()]
    assert [name for name, line in lines if asks.search(line)] == ["runtime.py"]


def test_the_contract_can_be_read_in_a_sitting() -> None:
    assert len((PACKAGE / "contract" / "types.py").read_text().splitlines()) <= LINES
    assert len((PACKAGE / "loop" / "denoise.py").read_text().splitlines()) <= 120


def test_no_base_imports_another() -> None:
    for base in ("samplers", "blocks", "cache", "eos"):
        text = (PACKAGE / base / "base.py").read_text()
        assert not re.search(rf"from dllm\.(?!{base})(samplers|blocks|cache|eos)\b", text)
        assert "TYPE_CHECKING" not in text
