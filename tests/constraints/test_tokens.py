"""Token automata against reading each token byte by byte, and what is kept of them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from small_languages import random_automaton

from dllm.constraints import store, tokens
from dllm.parts import (
    NEVER,
    ByteAutomaton,
    CompileLimits,
    Store,
    TokenAutomaton,
    UserError,
    Vocabulary,
    cache_folder,
    load_tokens,
    token_automaton,
    within_limits,
)

LETTERS = b"abcd"


def random_vocabulary(draw: random.Random) -> Vocabulary:
    texts = [bytes(draw.choices(LETTERS, k=draw.choice([1, 1, 2, 2, 3, 5]))) for _ in range(60)]
    return Vocabulary((*texts, None, b"", *texts[:5], None))


def target(automaton: ByteAutomaton, state: int, text: bytes | None) -> int:
    for byte in text or b"":
        state = int(automaton.moves[state, byte]) if state >= 0 else -1
    return -1 if text is None else state


def dense(tokens: TokenAutomaton) -> NDArray[np.int32]:
    """Where each class leads from each state [C, Q], -1: nowhere."""
    table = np.full((tokens.size, tokens.states), -1, np.int32)
    table[tokens.symbol, tokens.source] = tokens.target
    return table


@pytest.mark.parametrize("seed", range(40))
def test_tokens_do_what_their_bytes_do(seed: int) -> None:
    draw = random.Random(seed)
    automaton = random_automaton(draw, draw.randint(1, 9), LETTERS[: draw.randint(1, 4)])
    table = random_vocabulary(draw)
    tokens = token_automaton(automaton, table)
    states = range(len(automaton.accepting))
    rows = [tuple(target(automaton, state, text) for state in states) for text in table.texts]
    table_of = dense(tokens)
    assert [tuple(row) for row in table_of[tokens.classes].tolist()] == rows
    # One class for each row that differs, and class 0 for those that fit nowhere.
    assert len(set(tokens.classes.tolist()) | {0}) == len({*rows, (-1,) * len(states)}) == tokens.size
    assert (table_of[0] == -1).all()
    moves = list(zip(tokens.symbol, tokens.source, strict=True))
    assert moves == sorted(moves)


@pytest.mark.parametrize("seed", range(40))
def test_edges_hold_the_classes_and_left_counts_the_fewest_tokens(seed: int) -> None:
    draw = random.Random(seed)
    tokens = token_automaton(random_automaton(draw, draw.randint(1, 9), LETTERS), random_vocabulary(draw))
    edges, table, states = tokens.edges, dense(tokens), range(tokens.states)
    taken: dict[tuple[int, int], set[int]] = {}
    for number, source in np.argwhere(table >= 0).tolist():
        taken.setdefault((source, int(table[number, source])), set()).add(number)
    pairs = list(zip(edges.source.tolist(), edges.target.tolist(), strict=True))
    label, symbol = edges.pairs
    told = [set(symbol[label == each].tolist()) for each in range(len(pairs))]
    assert pairs == sorted(taken) and [told[each] for each in edges.label] == [taken[pair] for pair in pairs]
    assert len(set(map(frozenset, told[: label.max() + 1]))) == label.max() + 1 == len(set(edges.label.tolist()))
    left = np.where(tokens.accepting, 0, NEVER)
    for _ in states:
        for source, after in pairs:
            left[source] = min(left[source], left[after] + 1)
    assert tokens.left.tolist() == left.tolist()


def test_every_token_may_be_a_class_of_its_own() -> None:
    moves = np.full((201, 256), -1, np.int32)
    moves[0, :200] = np.arange(1, 201)
    automaton = ByteAutomaton(moves, np.arange(201) > 0)
    tokens = token_automaton(automaton, Vocabulary(tuple(bytes([byte]) for byte in range(256))))
    assert tokens.size == 201 and tokens.left[0] == 1 and sorted(tokens.edges.target) == list(range(1, 201))
    assert sorted(tokens.edges.pairs[0]) == list(range(200)) and sorted(tokens.edges.pairs[1]) == list(range(1, 201))


@pytest.mark.parametrize("limit", ["MOVED_AT_ONCE", "FOUND_AT_ONCE"])
def test_work_in_chunks_changes_nothing(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    automaton, table = random_automaton(random.Random(3), 9, LETTERS), random_vocabulary(random.Random(3))
    whole = token_automaton(automaton, table)
    monkeypatch.setattr(tokens, limit, 1)
    pieces = token_automaton(automaton, table)
    assert whole.size > 5 and pieces.size == whole.size
    assert (dense(pieces)[pieces.classes] == dense(whole)[whole.classes]).all()


def test_too_much_time_or_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    automaton, table = random_automaton(random.Random(3), 9, LETTERS), random_vocabulary(random.Random(3))
    said = r"took more than 0 s to compile \(9 states\)"
    with within_limits(CompileLimits(seconds=0)), pytest.raises(UserError, match=said):
        token_automaton(automaton, table)
    monkeypatch.setattr(tokens, "LARGEST", 20)
    with pytest.raises(UserError, match=r"too much memory for this vocabulary \(9 states\)"):
        token_automaton(automaton, table)


def test_begun_texts_lead_to_a_state_or_to_nothing() -> None:
    moves = np.full((2, 256), -1, np.int32)
    moves[0, ord("a")] = 1
    tokens = token_automaton(ByteAutomaton(moves, np.array([False, True])), Vocabulary((b"a",)))
    assert [tokens.begun(text) for text in (b"", b"a", b"b", b"aa", b"ba")] == [0, 1, None, None, None]


class Maker:
    """Counts how often it is asked for an automaton."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> ByteAutomaton:
        self.made += 1
        return random_automaton(random.Random(self.made), 5, LETTERS)


def equal(one: TokenAutomaton, other: TokenAutomaton) -> bool:
    return all(
        np.array_equal(a, b)
        for a, b in (
            (one.classes, other.classes),
            (one.accepting, other.accepting),
            (dense(one), dense(other)),
            (one.automaton.moves, other.automaton.moves),
        )
    )


def test_automata_are_kept_in_memory_and_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    table, make, kept = random_vocabulary(random.Random(1)), Maker(), Store()
    first = kept.get("a*", table, make)
    assert kept.get("a*", table, make) is first and make.made == 1
    assert equal(Store().get("a*", table, make), first) and make.made == 1
    assert [file.suffix for file in (cache_folder() / "constraints").iterdir()] == [".npz"]
    assert cache_folder().parent == tmp_path
    kept.get("a*", random_vocabulary(random.Random(2)), make)
    kept.get("b*", table, make)
    monkeypatch.setattr(store, "FORMAT", 2)
    Store().get("a*", table, make)
    assert make.made == 4


@pytest.mark.parametrize("damage", ["cut", "empty", "other", "range"])
def test_a_broken_file_is_made_anew(tmp_path: Path, damage: str) -> None:
    table, make = random_vocabulary(random.Random(1)), Maker()
    first = Store(tmp_path).get("a*", table, make)
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    if damage == "range":
        arrays = dict(np.load(file))
        np.savez_compressed(file, **{**arrays, "target": arrays["target"] + 9})
    else:
        file.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "other": b"no archive"}[damage])
    make.made = 0
    assert load_tokens(file) is None
    assert equal(Store(tmp_path).get("a*", table, make), first) and make.made == 1
    assert equal(Store(tmp_path).get("a*", table, make), first) and make.made == 1


def test_a_flipped_byte_is_found_or_means_nothing(tmp_path: Path) -> None:
    table = random_vocabulary(random.Random(1))
    first = Store(tmp_path).get("a*", table, Maker())
    (file,) = tmp_path.iterdir()
    data, outcome = file.read_bytes(), []
    for at in range(0, len(data), 29):
        file.write_bytes(data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :])
        outcome.append(load_tokens(file))
    assert all(equal(found, first) for found in outcome if found) and outcome.count(None) > len(outcome) / 2


def test_few_are_kept_and_the_oldest_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "IN_MEMORY", 2)
    monkeypatch.setattr(store, "ON_DISK", 3)
    table, make, kept = random_vocabulary(random.Random(1)), Maker(), Store(tmp_path)
    first = kept.get("0", table, make)
    for name in "1", "0", "2", "0":
        assert (kept.get(name, table, make) is first) == (name == "0")
    assert make.made == 3
    kept.get("1", table, make)  # from its file
    assert make.made == 3
    kept.get("3", table, make)
    assert make.made == 4 and len(list(tmp_path.iterdir())) == 3


def test_a_folder_that_takes_no_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    Store(tmp_path / "file").get("a", random_vocabulary(random.Random(1)), Maker())
