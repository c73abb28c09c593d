"""Token automata against reading each token byte by byte, and what is kept of them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from small_languages import random_automaton

from dllm.constraints import effects, store
from dllm.constraints.edges import NEVER
from dllm.constraints.languages.limits import Limits, within
from dllm.constraints.languages.trees import ByteAutomaton
from dllm.constraints.store import Store, cache_folder, read
from dllm.constraints.tokens import TokenAutomaton, token_automaton
from dllm.constraints.vocabulary import Vocabulary
from dllm.errors import UserError

LETTERS = b"abcd"


def random_vocabulary(draw: random.Random) -> Vocabulary:
    texts = [bytes(draw.choices(LETTERS, k=draw.choice([1, 1, 2, 2, 3, 5]))) for _ in range(60)]
    return Vocabulary((*texts, None, b"", *texts[:5], None))


def target(automaton: ByteAutomaton, state: int, text: bytes | None) -> int:
    for byte in text or b"":
        state = int(automaton.moves[state, byte]) if state >= 0 else -1
    return -1 if text is None else state


@pytest.mark.parametrize("seed", range(40))
def test_tokens_do_what_their_bytes_do(seed: int) -> None:
    draw = random.Random(seed)
    automaton = random_automaton(draw, draw.randint(1, 9), LETTERS[: draw.randint(1, 4)])
    table = random_vocabulary(draw)
    tokens = token_automaton(automaton, table)
    states = range(len(automaton.accepting))
    rows = [tuple(target(automaton, state, text) for state in states) for text in table.texts]
    assert [tuple(row) for row in tokens.delta.T[tokens.classes].tolist()] == rows
    # One class for each row that differs, and class 0 for those that fit nowhere.
    assert len(set(tokens.classes.tolist()) | {0}) == len({*rows, (-1,) * len(states)}) == tokens.delta.shape[1]
    assert (tokens.delta[:, 0] == -1).all()


@pytest.mark.parametrize("seed", range(40))
def test_edges_hold_the_classes_and_left_counts_the_fewest_tokens(seed: int) -> None:
    draw = random.Random(seed)
    tokens = token_automaton(random_automaton(draw, draw.randint(1, 9), LETTERS), random_vocabulary(draw))
    edges, (states, classes) = tokens.edges, tokens.delta.shape
    taken = {
        (source, int(tokens.delta[source, number]), number)
        for source in range(states) for number in range(classes) if tokens.delta[source, number] >= 0
    }  # fmt: skip
    bits = np.unpackbits(edges.bits.view(np.uint8), axis=1, bitorder="little")
    pairs = list(zip(edges.source.tolist(), edges.target.tolist(), strict=True))
    rows = zip(pairs, bits[edges.label], strict=True)
    assert {(*pair, number) for pair, row in rows for number in np.flatnonzero(row)} == taken
    assert set(zip(*(part.tolist() for part in edges.moves), strict=True)) == {(a, c, b) for a, b, c in taken}
    left = np.where(tokens.accepting, 0, NEVER)
    for _ in range(states):
        for source, after in pairs:
            left[source] = min(left[source], left[after] + 1)
    assert tokens.left.tolist() == left.tolist()


def test_many_classes_take_several_words() -> None:
    """A state for each of 200 bytes: every token is a class of its own."""
    moves = np.full((201, 256), -1, np.int32)
    moves[0, :200] = np.arange(1, 201)
    automaton = ByteAutomaton(moves, np.arange(201) > 0)
    tokens = token_automaton(automaton, Vocabulary(tuple(bytes([byte]) for byte in range(256))))
    assert tokens.delta.shape == (201, 201) and tokens.edges.bits.shape == (200, 4)
    bits = np.unpackbits(tokens.edges.bits.view(np.uint8), axis=1, bitorder="little")
    assert (tokens.edges.bits != 0).sum(1).tolist() == [1] * 200 and (bits[:, 1:201].sum(0) == 1).all()


def test_work_in_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    automaton, table = random_automaton(random.Random(3), 9, LETTERS), random_vocabulary(random.Random(3))
    whole = token_automaton(automaton, table)
    monkeypatch.setattr(effects, "CHUNK", 1)
    pieces = token_automaton(automaton, table)
    assert len(whole.delta.T) > 5 and sorted(map(tuple, pieces.delta.T)) == sorted(map(tuple, whole.delta.T))
    assert (pieces.delta.T[pieces.classes] == whole.delta.T[whole.classes]).all()


def test_too_much_time_or_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    automaton, table = random_automaton(random.Random(3), 9, LETTERS), random_vocabulary(random.Random(3))
    with within(Limits(seconds=0)), pytest.raises(UserError, match=r"took more than 0 s to compile \(9 states\)"):
        token_automaton(automaton, table)
    monkeypatch.setattr(effects, "LARGEST", 20)
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
        for a, b in ((one.delta, other.delta), (one.classes, other.classes), (one.accepting, other.accepting))
    ) and np.array_equal(one.automaton.moves, other.automaton.moves)  # fmt: skip


def test_automata_are_kept_in_memory_and_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    table, make, kept = random_vocabulary(random.Random(1)), Maker(), Store()
    first = kept.get("a*", table, make)
    assert kept.get("a*", table, make) is first and make.made == 1
    assert equal(Store().get("a*", table, make), first) and make.made == 1
    assert [file.suffix for file in cache_folder().iterdir()] == [".npz"] and cache_folder().parents[1] == tmp_path
    kept.get("a*", random_vocabulary(random.Random(2)), make)
    kept.get("b*", table, make)
    monkeypatch.setattr(store, "FORMAT", 2)
    Store().get("a*", table, make)
    assert make.made == 4


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other", "range"])
def test_a_broken_file_is_made_anew(tmp_path: Path, damage: str) -> None:
    table, make = random_vocabulary(random.Random(1)), Maker()
    first = Store(tmp_path).get("a*", table, make)
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    if damage == "range":
        arrays = dict(np.load(file))
        np.savez_compressed(file, **{**arrays, "delta": arrays["delta"] + 9})
    else:
        middle = len(data) // 2
        flipped = data[:middle] + bytes(byte ^ 255 for byte in data[middle : middle + 9]) + data[middle + 9 :]
        file.write_bytes({"cut": data[:middle], "flipped": flipped, "empty": b"", "other": b"no archive"}[damage])
    make.made = 0
    assert read(file, len(table)) is None
    assert equal(Store(tmp_path).get("a*", table, make), first) and make.made == 1
    assert equal(Store(tmp_path).get("a*", table, make), first) and make.made == 1


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
