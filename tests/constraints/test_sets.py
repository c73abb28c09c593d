"""What fits a row, against every filling of tiny rows (law 4), and sets renewed in part against fresh ones (law 7)."""

from __future__ import annotations

import random

import numpy as np
import pytest
from constraints_decodes import best_filling_of
from harness import full
from small_languages import Case, Ids, random_case

from dllm.constraints import sets
from dllm.parts import MASK, ByteAutomaton, ClassSet, RowSets, TokenLanguage

SEEDS = range(3000 if full() else 150)


def ids_of(language: TokenLanguage, allowed: ClassSet) -> set[int]:
    return set(np.flatnonzero(allowed.bits[language.classes]).tolist())


def test_of_random_rows_all_kinds_are_seen() -> None:
    cases = [random_case(random.Random(seed)) for seed in range(150)]
    assert {bool(case.ends) for case in cases} == {True, False}
    assert sum(any(case.fillings()) for case in cases) > 40
    assert sum(case.gaps > 0 and bool(case.ends) and any(case.fillings()) for case in cases) > 3
    assert sum(bool(case.begun) and any(case.fillings()) for case in cases) > 10


@pytest.mark.parametrize("seed", SEEDS)
def test_sets_equal_what_all_fillings_show(seed: int) -> None:
    draw = random.Random(seed)
    case = random_case(draw)
    row, fillings = case.row(), set(case.fillings())
    assert row.feasible() == bool(fillings)
    for at, allowed in zip(case.masks, row.allowed(case.masks), strict=True):
        assert ids_of(row.language, allowed) == {ids[at] for ids in fillings}


@pytest.mark.parametrize("seed", SEEDS)
def test_what_goes_together_and_what_is_admitted_is_what_some_filling_has(seed: int) -> None:
    draw = random.Random(seed)
    case = random_case(draw)
    row = case.row()
    positions = draw.sample(case.masks, draw.randint(0, len(case.masks)))
    ids = [draw.randrange(-2, len(case.texts) + 2) for _ in positions]
    ids = [number if number != MASK else 0 for number in ids]
    known = [number for number in ids if 0 <= number < len(case.texts)]
    together = len(known) == len(ids) and any(case.fillings(dict(zip(positions, ids, strict=True))))
    copy = row.copy()
    copy.write(positions, ids)
    assert copy.feasible() == together
    kept: dict[int, int] = {}
    expected = []
    for at, number in zip(positions, ids, strict=True):
        fits = 0 <= number < len(case.texts) and any(case.fillings({**kept, at: number}))
        kept |= {at: number} if fits else {}
        expected.append(fits)
    assert row.admit(positions, ids) == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_the_best_filling_is_the_best_of_all(seed: int) -> None:
    draw = random.Random(seed)
    case = random_case(draw)
    positions = sorted(draw.sample(case.masks, draw.randint(0, len(case.masks))))
    scores = np.random.default_rng(seed).normal(size=(len(positions), len(case.texts)))

    def total(ids: Ids) -> float:
        return sum(float(scores[number, ids[at]]) for number, at in enumerate(positions))

    best = max(case.fillings(), key=total, default=None)
    found = best_filling_of(case.row(), positions, scores.tolist())
    if best is None:
        assert found is None
    else:
        assert found is not None and found.score == pytest.approx(total(best), abs=1e-12)
        assert found.ids == tuple(best[at] for at in positions)


def letters(accepting: list[bool]) -> ByteAutomaton:
    """State 0, a to state 1, b to state 2; nothing goes on."""
    moves = np.full((3, 256), -1, np.int32)
    moves[0, ord("a")], moves[0, ord("b")] = 1, 2
    return ByteAutomaton(moves, np.array(accepting))


def test_equal_scores_go_to_the_lowest_id() -> None:
    case = Case(letters([False, True, True]), (b"b", b"a", b"a", None), (3,), 0, b"", (MASK, MASK))
    best = best_filling_of(case.row(), [0, 1], [[1.0, 1.0, 1.0, 5.0], [0.0] * 4])
    assert best is not None and best.ids == (1, 3)  # into state 1, the lower one, by the lower id
    only_b = Case(letters([False, False, True]), (b"b", b"a", b"b", None), (3,), 0, b"", (MASK,)).row()
    best = best_filling_of(only_b, [0], [[0.0] * 4])
    assert best is not None and best.ids == (0,)


def bits_of(row: RowSets) -> list[list[bool]]:
    return [allowed.bits.tolist() for allowed in row.allowed(np.flatnonzero(row.cells == MASK).tolist())]


@pytest.mark.parametrize("seed", range(1000 if full() else 60))
def test_sets_renewed_after_commits_and_remasks_equal_fresh_ones(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the memo is cleared again and again, and in copies that go their own way."""
    monkeypatch.setattr(sets, "REMEMBERED", seed % 3 * 40)
    draw = random.Random(seed)
    case = random_case(draw, 9)
    row = case.row()
    others: list[tuple[RowSets, Ids]] = []
    for _ in range(12):
        at = draw.randrange(len(row.cells))
        number = MASK if draw.random() < 0.4 else draw.randrange(len(case.texts))
        if draw.random() < 0.2:
            others.append((row, tuple(row.cells.tolist())))
            row = row.copy()
        if draw.random() < 0.5:
            row.write([at], [number])
        else:
            changed = row.cells.copy()
            changed[at] = number
            row.set_cells(changed[: draw.choice([len(changed), max(at + 1, len(changed) - 1, case.gaps + 1)])])
        if draw.random() < 0.7:
            fresh = RowSets(case.language(), row.cells, case.gaps, case.begun, case.least)
            assert draw.random() < 0.5 or row.feasible() == fresh.feasible()  # asked or not, before what fits
            assert bits_of(row) == bits_of(fresh)
    for other, cells in others:
        assert tuple(other.cells.tolist()) == cells
        assert bits_of(other) == bits_of(RowSets(case.language(), cells, case.gaps, case.begun, case.least))


@pytest.mark.parametrize("seed", range(1000 if full() else 60))
def test_sets_shrink_with_commits_and_grow_with_remasks(seed: int) -> None:
    """And a row that commits one fitting id after the other ends as a text of the language."""
    draw = random.Random(seed)
    case = random_case(draw, 7)
    row = case.row()
    if not row.feasible():
        return
    for _ in range(20):
        open_cells = np.flatnonzero(row.cells == MASK).tolist()
        committed = [at for at in case.masks if at not in open_cells]
        if not open_cells:
            break
        at = draw.choice(open_cells)
        before = dict(zip(open_cells, row.allowed(open_cells), strict=True))
        number = draw.choice(sorted(ids_of(row.language, before[at])))
        row.write([at], [number])
        rest = [other for other in open_cells if other != at]
        assert all((now.bits <= before[cell].bits).all() for cell, now in zip(rest, row.allowed(rest), strict=True))
        assert row.feasible()
        if committed and draw.random() < 0.3:
            narrow = row.allowed(rest)
            row.write([committed[0]], [MASK])
            assert all((a.bits <= b.bits).all() for a, b in zip(narrow, row.allowed(rest), strict=True))
    if not (row.cells == MASK).any():
        assert tuple(row.cells.tolist()) in set(case.fillings(dict(enumerate(row.cells.tolist()))))


def test_the_only_filling_is_never_forbidden() -> None:
    case = Case(letters([False, True, False]), (b"c", b"a", None, None), (2,), 0, b"", (MASK, MASK, MASK))
    row = case.row()
    assert [ids_of(row.language, allowed) for allowed in row.allowed([0, 1, 2])] == [{1}, {2}, {2}]
    # Before a given cell an end writes nothing.
    row = Case(case.automaton, case.texts, (2,), 2, b"", (MASK, MASK, 2)).row()
    assert [ids_of(row.language, allowed) for allowed in row.allowed([0, 1])] == [{1, 2}, {1, 2}]
    assert row.admit([0, 1], [1, 1]) == [True, False] and row.admit([1, 0], [2, 2]) == [True, False]


def test_equal_sets_are_one_and_a_cleared_memo_numbers_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(letters([False, True, True]), (b"a", b"b", None), (2,), 0, b"", (MASK, MASK, MASK))
    language = case.language()
    first, second = (RowSets(language, case.cells).allowed([1])[0] for _ in range(2))
    assert first is second
    monkeypatch.setattr(sets, "REMEMBERED", 3)
    third = RowSets(language, case.cells).allowed([1])[0]
    assert language.epoch == 1 and third.number > first.number and (third.bits == first.bits).all()
