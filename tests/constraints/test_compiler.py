"""Constraints compiled for a vocabulary, shared where they are equal, and refused rows."""

from __future__ import annotations

import re
import weakref
from pathlib import Path

import numpy as np
import pytest

from dllm.parts import (
    MASK,
    Choice,
    Compiler,
    Constraint,
    Json,
    JsonSchema,
    Regex,
    RowSets,
    Store,
    UserError,
    Vocabulary,
    check,
    language_key,
)

TABLE = Vocabulary((b"a", b"b", b"ab", b"ba", None))
END = 4


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return Compiler(TABLE, [END], Store(tmp_path))


def test_equal_constraints_share_a_language_whatever_their_other_options(compiler: Compiler, tmp_path: Path) -> None:
    language = compiler.language(Regex("(ab)+"))
    assert compiler.language(Regex("(ab)+", confidence="admissible", joint=True, seconds=3.0)) is language
    assert compiler.language(Regex("(ab)*")) is not language
    other = Compiler(TABLE, (), compiler.store).language(Regex("(ab)+"))
    assert other is not language and other.tokens is language.tokens
    assert len(list(tmp_path.iterdir())) == 2


def test_the_key_of_a_constraint_tells_all_that_decides_its_language() -> None:
    schema, turned = {"properties": {"a": {}, "b": {}}}, {"properties": {"b": {}, "a": {}}}
    constraints: list[Constraint] = [
        Choice(["a", "b"]),
        Choice(["a"]),
        Choice(["b", "a"]),
        Regex("a"),
        Json(),
        Json(2),
        Json(whitespace="one"),
        JsonSchema(schema),
        JsonSchema(turned),
        JsonSchema(schema, depth=2),
        JsonSchema(schema, additional=True),
        JsonSchema(schema, strict=False),
        JsonSchema(schema, whitespace="none"),
    ]
    assert len({language_key(constraint) for constraint in constraints}) == len(constraints)
    assert language_key(JsonSchema(dict(schema), limit=5)) == language_key(JsonSchema(schema))


def test_the_languages_asked_for_last_are_kept(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dllm.constraints.store.IN_MEMORY", 2)
    first, second = (compiler.language(Regex(pattern)) for pattern in ("a", "b"))
    assert compiler.language(Regex("a")) is first
    compiler.language(Regex("ab"))
    assert compiler.language(Regex("a")) is first
    assert compiler.language(Regex("b")) is second, "somebody holds it"
    left = weakref.ref(second)
    del second
    for pattern in ("a", "ab"):
        compiler.language(Regex(pattern))
    assert left() is None and not compiler.knows(Regex("b")) and compiler.knows(Regex("ab"))


def test_kept_languages_and_automata_are_bounded_by_bytes(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [compiler.language(Regex(f"[a-z]{{{length}}}")).nbytes for length in (40, 41, 42)]
    assert kept[0] > 40 * 256
    monkeypatch.setattr("dllm.constraints.store.BYTES_IN_MEMORY", sum(kept))
    compiler.language(Regex("[a-z]{43}"))
    for held in (compiler._languages.values(), compiler.store._kept.values()):
        assert 1 <= len(held) <= 3 and sum(one.nbytes for one in held) <= sum(kept)


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (Choice([]), "the constraint allows no text at all."),
        (Choice(["c"]), "constraint=choice allows no text that this tokenizer can write."),
        (Regex("a{50}", limit=20), "the constraint needs more than 20 states"),
    ],
)
def test_what_cannot_be_written_is_refused(compiler: Compiler, constraint: Constraint, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        compiler.language(constraint)


def test_a_lower_limit_refuses_what_a_higher_one_has_compiled(compiler: Compiler) -> None:
    compiler.language(Regex("a{50}"))
    with pytest.raises(UserError, match="needs more than 20 states"):
        compiler.language(Regex("a{50}", limit=20))


@pytest.mark.parametrize(
    ("cells", "gaps", "begun", "words"),
    [
        ([MASK] * 2, 0, b"", "its shortest text takes 3 tokens and the answer has 2. Raise gen_length to 3 or more."),
        ([MASK] * 1, 0, b"ab", "its shortest text takes 2 tokens and the answer has 1. Raise gen_length to 2 or more."),
        ([1, MASK, MASK, MASK], 0, b"", "the given tokens leave no way to complete a text in 3 masks. Give more"),
        ([MASK] * 9, 0, b"Sure", "the answer's beginning 'Sure' begins no text of it. Change the beginning."),
    ],
)
def test_rows_without_a_filling_are_refused(
    compiler: Compiler, cells: list[int], gaps: int, begun: bytes, words: str
) -> None:
    language = compiler.language(Regex("ababab"))
    with pytest.raises(UserError, match=re.escape(f"constraint=regex: {words}")):
        check(RowSets(language, cells, gaps, begun), "regex")
    check(RowSets(language, [MASK] * 3), "regex")


def test_without_ends_a_text_must_fill_the_row(tmp_path: Path) -> None:
    language = Compiler(TABLE, (), Store(tmp_path)).language(Choice(["ab"]))
    check(RowSets(language, [MASK, MASK]), "choice")
    with pytest.raises(UserError, match="no text of it takes exactly 3 tokens, and none may end before. Drop"):
        check(RowSets(language, [MASK] * 3), "choice")


def test_a_beginning_that_no_token_completes_is_refused(tmp_path: Path) -> None:
    language = Compiler(Vocabulary((b"ab", b"c", None)), [2], Store(tmp_path)).language(Regex("ab|c"))
    with pytest.raises(UserError, match="beginning 'a' cannot be completed by this tokenizer"):
        check(RowSets(language, np.array([MASK, MASK]), begun=b"a"), "regex")
