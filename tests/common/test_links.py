"""Links between ranks: values of rank 0, signs of life, refusals, strangers."""

from __future__ import annotations

import pickle
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue

import pytest

from dllm.common import links as module
from dllm.parts import DIED, HEAD, LONGEST_MESSAGE, TOKEN_BYTES, Link, Links, UserError, links_over, open_links

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of threads that end


class Store:
    """A store of torch.distributed, as far as links use it."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.there = threading.Condition()

    def set(self, key: str, value: str, /) -> None:
        with self.there:
            self.values[key] = value
            self.there.notify_all()

    def get(self, key: str, /) -> bytes:
        with self.there:
            self.there.wait_for(lambda: key in self.values, timeout=5)
            return self.values[key].encode()


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleQueue[int]]:
    """Exit codes with which ranks would have ended their processes. It outlives the threads of all ranks: one that came
    to its end later would end the process of the tests."""
    codes: SimpleQueue[int] = SimpleQueue()
    earlier = set(threading.enumerate())

    def leave(code: int) -> None:
        codes.put(code)
        raise SystemExit(code)  # ends the thread alone

    monkeypatch.setattr(module.os, "_exit", leave)
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    yield codes
    for thread in set(threading.enumerate()) - earlier:
        thread.join(5)
        assert not thread.is_alive()


def opened(size: int, timeout: float, store: Store | None = None) -> list[Links]:
    store = store or Store()
    with ThreadPoolExecutor(size) as pool:
        made = [pool.submit(open_links, rank, size, timeout, store, True, 5.0) for rank in range(size)]
        return [one.result() for one in made]


@pytest.fixture
def three(ended: SimpleQueue[int]) -> Iterator[list[Links]]:
    ranks = opened(3, 0.4)
    yield ranks
    for one in reversed(ranks):
        one.close()


def test_every_rank_has_the_values_of_rank_0_in_their_order(three: list[Links]) -> None:
    for number in range(5):
        assert three[0].shared(lambda number=number: ["turn", number]) == ["turn", number]
    for follower in three[1:]:
        assert [follower.shared(lambda: pytest.fail("a follower decides")) for _ in range(5)] == [
            ["turn", number] for number in range(5)
        ]


def test_rank_0_knows_who_tells_it_something(three: list[Links]) -> None:
    three[2].tell("raised", 4)
    three[1].tell("raised", 5)
    assert sorted(three[0].hear() for _ in range(2)) == [(1, "raised", 5), (2, "raised", 4)]


def test_a_closed_connection_is_a_death_and_ends_all(
    three: list[Links], ended: SimpleQueue[int], capsys: pytest.CaptureFixture[str]
) -> None:
    lost: SimpleQueue[str] = SimpleQueue()
    three[0].on_loss = lambda sentence: lost.put(sentence) or 0.0
    three[1].links[0].connection.shutdown(socket.SHUT_RDWR)
    assert lost.get(timeout=5).startswith("rank 1 of 3 has died, so all ranks end.")
    assert {ended.get(timeout=5) for _ in range(3)} == {DIED}
    assert "Error: rank 1 of 3 has died" in capsys.readouterr().err


def test_a_silent_rank_is_late_and_then_ends_all(ended: SimpleQueue[int], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = opened(2, 0.8)
    second.closing = True  # its thread of beats stops, and nothing else
    began = time.monotonic()
    while not first.late:
        assert time.monotonic() - began < 5
        time.sleep(0.01)
    assert first.late == [1]
    assert [ended.get(timeout=5) for _ in range(2)] == [DIED, DIED]
    assert 0.4 < time.monotonic() - began < 4
    assert "rank 1 of 2 has not answered for 0.8 s" in first.verdict
    for one in (second, first):
        one.close()


def test_a_refusal_of_one_rank_is_said_by_rank_0_alone(
    three: list[Links], ended: SimpleQueue[int], capsys: pytest.CaptureFixture[str]
) -> None:
    three[2].fail(UserError("heads=3 do not divide."))
    assert {ended.get(timeout=5) for _ in range(3)} == {2}
    assert capsys.readouterr().err.count("heads=3 do not divide.") == 1


def test_rank_0_ends_its_followers_with_its_own_code(three: list[Links], ended: SimpleQueue[int]) -> None:
    three[0].fail(SystemExit(143))
    assert [ended.get(timeout=5) for _ in range(2)] == [143, 143]


def test_a_stranger_is_turned_away(ended: SimpleQueue[int]) -> None:
    store = Store()

    def intrude() -> bytes:
        address, port, _ = store.get("links").decode().split()
        with socket.create_connection((address, int(port)), 5) as stranger:
            stranger.sendall(bytes(TOKEN_BYTES) + HEAD.pack(1))
            return stranger.recv(1)

    with ThreadPoolExecutor(2) as pool:
        leading, intruder = pool.submit(open_links, 0, 2, 1.0, store, True, 5.0), pool.submit(intrude)
        assert intruder.result() == b""
        follower = open_links(1, 2, 1.0, store, True, 5.0)
        first = leading.result()
    first.tell("hello")
    assert follower.hear() == ("hello",)
    for one in (follower, first):
        one.close()


@pytest.mark.parametrize(
    "words",
    [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(TOKEN_BYTES), bytes(1 << 20)],
    ids=["silent", "http", "half", "long"],
)
def test_strangers_cost_a_follower_nothing(words: bytes, ended: SimpleQueue[int]) -> None:
    store = Store()
    with ThreadPoolExecutor(1) as pool:
        leading = pool.submit(open_links, 0, 2, 1.0, store, True, 10.0)
        address, port, _ = store.get("links").decode().split()
        assert address == "127.0.0.1"
        strangers = [socket.create_connection((address, int(port)), 5) for _ in range(5)]
        for stranger in strangers:
            with suppress(OSError):  # it was sent away before it had said all
                stranger.sendall(words)
        began = time.monotonic()
        follower, first = open_links(1, 2, 1.0, store, True, 5.0), leading.result()
        assert time.monotonic() - began < 1
    for one in (follower, first, *strangers):
        one.close()


def test_a_silent_stranger_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELLO", 0.1)
    store = Store()
    with ThreadPoolExecutor(1) as pool:
        leading = pool.submit(open_links, 0, 2, 1.0, store, True, 2.0)
        address, port, _ = store.get("links").decode().split()
        with socket.create_connection((address, int(port)), 5) as stranger:
            assert stranger.recv(1) == b""
        assert "the other ranks did not come" in str(leading.exception())


@pytest.mark.parametrize(
    "data",
    [pickle.dumps(("alive",)), b"null", b"{}", b"[]", b"\xff", b"[" * 100_000, b"[1", HEAD.pack(LONGEST_MESSAGE + 1)],
    ids=["pickle", "null", "mapping", "empty", "utf8", "deep", "cut", "size"],
)
def test_what_is_no_message_ends_the_connection(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data if len(data) == HEAD.size else HEAD.pack(len(data)) + data)
        with pytest.raises(OSError, match="no message"):
            Link(1, ours).receive()


def test_a_message_is_plain_data() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Link(1, ours).send("rows", {"text": "\ud800 ä", "seed": 2**62 - 1, "none": None}, [0.1, (1,)], float("nan"))
        *plain, nan = Link(0, theirs).receive()
        assert plain == ["rows", {"text": "\ud800 ä", "seed": 2**62 - 1, "none": None}, [0.1, [1]]]
        assert nan != nan
        with pytest.raises(TypeError):
            Link(1, ours).send(object())


def test_ranks_that_were_started_need_no_port(ended: SimpleQueue[int]) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    with ThreadPoolExecutor(3) as pool:
        leading = pool.submit(links_over, [ours for ours, _ in pairs], 0, 3, 1.0, 5.0)
        ranks = [pool.submit(links_over, [theirs], at, 3, 1.0, 5.0) for at, (_, theirs) in enumerate(pairs, 1)]
        first, *followers = [leading.result(), *(rank.result() for rank in ranks)]
    first.tell("hello")
    assert [one.hear() for one in followers] == [("hello",), ("hello",)]
    followers[1].tell("raised", 7)
    assert first.hear() == (2, "raised", 7)
    for one in (*followers, first):
        one.close()


def test_a_started_rank_that_ends_early_is_noticed_at_once() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with pytest.raises(UserError, match=r"tp=2: the other ranks did not come"):
        links_over([ours], 0, 2, 1.0, 60.0)


def test_ranks_that_do_not_come_are_named() -> None:
    with pytest.raises(UserError, match=r"tp=2: the other ranks did not come within 0.1 s"):
        open_links(0, 2, 1.0, Store(), True, 0.1)
