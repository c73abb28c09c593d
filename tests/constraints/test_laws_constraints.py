"""Laws of decoding under constraints, over every combination of parts, on tiny models whose proposals fit nothing: what
an answer says is the constraint's doing. Judges share no code with it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import islice, product

from harness import (
    Combination,
    Decoded,
    Shown,
    allowed,
    combinations,
    decode,
    full,
    model,
    parts_of,
    requests,
    results,
    unasked,
)
from law import law
from recording import FakeGraph
from test_law_runtimes import Case, static_cases

from dllm.parts import (
    MASK,
    CompiledConstraint,
    ConstrainedBatch,
    ConstrainedRow,
    RecordedTurns,
    Regex,
    Request,
    Result,
    RowSets,
    Sampling,
    TokenLanguage,
    Vocabulary,
    automaton_of,
    token_automaton,
)

PATTERNS = (r"(ab|c)*d?e", r"[a-m]{3,9}z?", r"x(y|zz|é)*", r"(no|yes)( (no|yes)){0,2}", r"\{(a+:[0-9]{2};){1,3}\}")
TAKE_BACK = ("saber", "remdm", "rcr", "wino", "joint_threshold")
READS_LOGITS = ("credit", "klass", "ete", "tacg")  # of all tokens, over several turns
EVERYTHING = r"(?s).*"
of_decodes = partial(law, combinations, least=5000)


@cache
def writes(name: str, ends: bool) -> tuple[str | None, ...]:
    """What each id of a model writes: letters, digits and marks, then pairs. ends: its end of text ends a text, else it
    writes one."""
    config = model(name).config
    marks = [*"abcdefghijklmnopqrstuvwxyz0123456789 {}:;é", "no", "yes", "zz", "ab", "a:", "e;", ": ", "12"]
    texts = [marks[at] if at < len(marks) else marks[at % 26] + marks[at % 7] for at in range(config.vocab)]
    silent = {config.mask_id} | ({config.eos_id, config.pad_id} if ends else set())
    return tuple(None if at in silent else text for at, text in enumerate(texts))


@cache
def language(name: str, pattern: str, ends: bool = True, joint: bool = False) -> CompiledConstraint:
    vocabulary = Vocabulary(tuple(None if text is None else text.encode() for text in writes(name, ends)))
    end = (model(name).config.eos_id or 0,) if ends else ()
    tokens = token_automaton(automaton_of(Regex(pattern)), vocabulary)
    return CompiledConstraint(TokenLanguage(tokens, end), "regex", False, joint, False)


def constraints(
    name: str, rows: Sequence[Request], patterns: Sequence[str | None], ends: bool = True, joint: bool = False
) -> ConstrainedBatch:
    """The constraints of rows, in which every answer begins behind its prompt."""
    found: list[ConstrainedRow | None] = []
    for row, pattern in zip(rows, patterns, strict=True):
        cells = [MASK if hole else token for token, hole in zip(row.tokens, row.masked, strict=True)]
        begin = 0 if row.infill_prefix is not None else row.answer_start
        gaps = 0 if row.infill_prefix is None else max(at for at, cell in enumerate(cells) if cell != MASK)
        compiled = language(name, pattern, ends, joint) if pattern else None
        found.append(
            ConstrainedRow(compiled, begin, [RowSets(compiled.language, cells[begin:], gaps)]) if compiled else None
        )
    return ConstrainedBatch(tuple(found))


def patterns_of(combination: Combination) -> list[str | None]:
    """Two constraints and a free row between them, drawn by the combination's name."""
    first, last = random.Random(str(combination)).sample(PATTERNS, 2)
    return [first, None, last]


@lru_cache(maxsize=2)
def together(combination: Combination) -> list[Decoded]:
    """Three rows as one batch: the middle one is free."""
    rows = requests()
    return decode(combination, rows, None, constraints(combination.model, rows, patterns_of(combination)))


def text_of(combination: Combination, tokens: Sequence[int]) -> str:
    texts = writes(combination.model, True)
    return "".join(texts[token] or "" for token in tokens)


@of_decodes(daily=30)
def test_every_answer_is_a_text_of_its_language(combination: Combination) -> None:
    for one, pattern in zip(together(combination), patterns_of(combination), strict=True):
        assert one.result is not None
        if pattern:
            assert re.fullmatch(pattern, text_of(combination, one.result.tokens))
            assert one.result.trace is not None and one.result.trace.mask_id not in one.result.tokens


@of_decodes(daily=12)
def test_every_acting_turn_commits_and_no_more_forwards_than_masks(combination: Combination) -> None:
    free = decode(combination, requests())
    for one, other, pattern in zip(together(combination), free, patterns_of(combination), strict=True):
        assert one.result is not None and other.result is not None and one.result.trace is not None
        counted = combination.sampler in ("static", "order", "dus") and combination.blocks != "tccf"  # rolls back
        if counted and combination.eos == "none":
            assert one.result.nfe == other.result.nfe
        start = one.result.trace.start
        for record, undecided in zip(one.result.trace.turns, one.undecided, strict=True) if pattern else ():
            lost, (_, begin, end) = [sum(map(len, record.remasked)), sum(map(len, record.rolled))], record.block
            full = not any(undecided[start + begin : start + end])  # only edits can be refused there
            commits = any(commits.positions for commits in record.candidates)
            assert full or not any(record.refused) or commits or any(lost)


@of_decodes(daily=12)
def test_a_constrained_row_decodes_the_same_alone_and_in_a_batch(combination: Combination) -> None:
    rows, patterns = requests(), patterns_of(combination)
    batches = [[0], [1], [2], [2, 0, 1]]
    for numbers in batches if full() else random.Random(str(combination)).sample(batches, 1):
        chosen = [rows[number] for number in numbers]
        constrained = constraints(combination.model, chosen, [patterns[number] for number in numbers])
        for one, number in zip(decode(combination, chosen, None, constrained), numbers, strict=True):
            assert one.canvases == together(combination)[number].canvases


@of_decodes(daily=12)
def test_a_row_without_a_constraint_decodes_as_without_the_engine(combination: Combination) -> None:
    alone = decode(combination, requests()[1:2])
    assert alone[0].canvases == together(combination)[1].canvases


@of_decodes(daily=8)
def test_the_language_of_all_texts_changes_no_canvas(combination: Combination) -> None:
    rows = requests()
    constrained = constraints(combination.model, rows, [EVERYTHING] * len(rows), ends=False)
    for one, free in zip(decode(combination, rows, None, constrained), decode(combination, rows), strict=True):
        assert one.canvases == free.canvases


@law(combinations, daily=16, least=5000)
def test_what_is_infilled_is_a_text_with_what_was_given(combination: Combination) -> None:
    texts = writes(combination.model, True)
    tokens = [60, 60, texts.index("a"), 60, 60, 60, texts.index("b"), 60, 60]
    row = Request(tokens, [token == 60 for token in tokens])
    pattern = r"[a-e]+( [a-e]+)?"
    one = decode(combination, [row], None, constraints(combination.model, [row], [pattern]))[0]
    assert one.result is not None
    written = text_of(combination, one.result.tokens)
    assert re.fullmatch(pattern, written) and "a" in written and "b" in written


def plain() -> Iterator[Combination]:
    """Combinations that take nothing back and cut no text at a number of tokens, and whose sampler judges a position by
    what this forward says of it."""
    others = {*TAKE_BACK, *READS_LOGITS}
    others |= {"freedave", "scout", "flash_verify", "linear_spec"}  # drafts are others, or fewer
    others |= {"oracle"}  # which writes its own tokens
    others |= {"lopa", "tccf", "stop_front"}  # lopa chooses by how sure the model is of all masks
    others |= {"groups"}  # which ranks positions forwards before it commits them
    others |= {"d2cache"}  # which computes the masks of which the model is surest
    yield from (one for one in combinations() if not {one.sampler, one.blocks, one.cache, one.eos} & others)


@law(plain, daily=8, least=3000)
def test_where_the_free_text_fits_nothing_changes(combination: Combination) -> None:
    """Confidences of corrected cells are the model's own, and low: they wait until their neighbours settle them."""
    free = decode(combination, requests())
    words = [text_of(combination, one.result.tokens) if one.result else "" for one in free]
    constrained = constraints(combination.model, requests(), [re.escape(word) for word in words])
    for one, other in zip(decode(combination, requests(), None, constrained), free, strict=True):
        assert one.result is not None and other.result is not None
        if stands(other.result):
            assert (one.result.tokens, one.result.turns) == (other.result.tokens, other.result.turns)


def stands(found: Result) -> bool:
    """Whether all that was committed is in the text: what lay behind an end of text that came later is not."""
    assert found.trace is not None
    if not set(found.canvas[len(found.tokens) :]) <= {found.trace.eos_id}:
        return False
    turns = found.trace.turns
    kept = [record.kept for record in turns[1:]] + [0]
    made = [record.candidates[number] for record, number in zip(turns, kept, strict=True) if record.candidates]
    return all(found.canvas[at] == token for one in made for at, token in zip(one.positions, one.tokens, strict=True))


def drafted() -> Iterator[Combination]:
    return filter(allowed, (one for one in unasked() if one.sampler == "freedave"))


@law(drafted, daily=2, least=100)
def test_drafts_over_a_schedule_give_its_text_in_no_more_forwards(combination: Combination) -> None:
    """Under the language of one text, all that is drafted is right."""
    static = replace(combination, sampler="static")
    words = [text_of(static, one.result.tokens) if one.result else "" for one in decode(static, requests())]
    constrained = partial(constraints, combination.model, requests(), [re.escape(word) for word in words])
    found, expected = (decode(one, requests(), None, constrained()) for one in (combination, static))
    for one, other in zip(found, expected, strict=True):
        assert one.result is not None and other.result is not None
        assert one.result.tokens == other.result.tokens and one.result.nfe <= other.result.nfe


@law(static_cases, daily=6, least=5000)
def test_hot_or_late_every_answer_is_a_text_of_its_language(case: Case) -> None:
    """Draws from what fits, and a host that reads late: as in eager turns. Recorded turns give way to plain ones."""
    combination, parts = case.combination, parts_of(case.combination)
    patterns, rows = patterns_of(combination), requests()
    sampling = Sampling(temperature=case.heat, tempered=parts.sampler.traits.tempered)
    constrained, take = partial(constraints, combination.model, rows, patterns), None
    if replace(case, runtime="cudagraph").accepted() and not (parts.sampler.traits.syncs or parts.eos.traits.syncs):
        take = RecordedTurns(model(combination.model), lambda: FakeGraph([]))
    decoded = partial(results, model(combination.model), parts, rows, sampling)
    found, eager = decoded(lag=case.lag, take=take, constraints=constrained()), decoded(constraints=constrained())
    assert [one.canvas for one in found] == [one.canvas for one in eager]
    for one, pattern in zip(found, patterns, strict=True):
        assert pattern is None or re.fullmatch(pattern, text_of(combination, one.tokens))


def of_own_proposals() -> Iterator[Combination]:
    """Combinations whose sampler commits what this forward proposes, and takes nothing back."""
    others = (*TAKE_BACK, "ete", "freedave", "scout", "oracle")
    yield from (one for one in combinations() if one.sampler not in others)


@law(of_own_proposals, daily=8, least=3000)
def test_joint_proposals_are_never_refused(combination: Combination) -> None:
    """Any part of what goes together goes together."""
    rows, patterns = requests(), patterns_of(combination)
    constrained = constraints(combination.model, rows, patterns, joint=True)
    for one, pattern in zip(decode(combination, rows, None, constrained), patterns, strict=True):
        assert one.result is not None and one.result.trace is not None
        assert pattern is None or re.fullmatch(pattern, text_of(combination, one.result.tokens))
        assert not any(any(turn.refused) or any(turn.replaced) for turn in one.result.trace.turns)


@dataclass(frozen=True)
class Hot(Shown):
    """One combination that draws, of all ids or of the likeliest, with guidance or without, jointly or not."""

    combination: Combination
    heat: float
    top_p: float | None
    top_k: int | None
    guidance: float
    joint: bool

    def sampling(self) -> Sampling:
        tempered = parts_of(self.combination).sampler.traits.tempered
        return Sampling(self.heat, self.top_p, self.top_k, self.guidance, tempered=tempered)

    def accepted(self) -> bool:
        """Whether the parts take the sampling."""
        return allowed(self.combination, self.sampling())


def hot() -> Iterator[Hot]:
    """One combination in twenty, each with one way to draw that it accepts."""
    ways = list(product((0.7, 1.0, 1.5), (None, 0.5, 0.9), (None, 3), (0.0, 1.5), (False, True)))
    for combination in filter(allowed, islice(unasked(), 0, None, 20)):
        drawn = random.Random(str(combination)).sample(ways, len(ways))
        yield from islice((one for way in drawn if (one := Hot(combination, *way)).accepted()), 1)


@law(hot, daily=10, least=300)
def test_hot_rows_are_texts_of_their_languages_and_decode_alone_as_in_a_batch(case: Hot) -> None:
    combination, rows = case.combination, requests()
    patterns, sampling = patterns_of(combination), case.sampling()
    decoded = decode(combination, rows, sampling, constraints(combination.model, rows, patterns, joint=case.joint))
    for one, pattern in zip(decoded, patterns, strict=True):
        assert one.result is not None
        assert pattern is None or re.fullmatch(pattern, text_of(combination, one.result.tokens))
    number = random.Random(str(case)).choice([0, 2])
    constrained = constraints(combination.model, rows[number:][:1], patterns[number:][:1], joint=case.joint)
    alone = decode(combination, rows[number:][:1], sampling, constrained)[0]
    assert alone.canvases == decoded[number].canvases


def test_what_replaces_a_token_fits_too() -> None:
    """Edits are made where the row stays a beginning of a text, and refused elsewhere; a refused one holds no block."""
    made = refused = 0
    for pattern in (*PATTERNS, "[a-z]+"):
        combination, rows = Combination("joint_threshold", "fixed"), requests()
        for one in decode(combination, rows, None, constraints(combination.model, rows, [pattern] * len(rows))):
            assert one.result is not None and one.result.trace is not None
            assert re.fullmatch(pattern, text_of(combination, one.result.tokens))
            for record in one.result.trace.turns:
                made += len(record.edited[0].positions)
                refused += len(record.refused[0])
    assert made and refused
