"""What replicas tell the board: sums over replicas, those that are gone included, states, and lines of logs."""

from __future__ import annotations

import asyncio

import httpx

from dllm.app.engines import replica_board
from dllm.parts import MOST_PAGES, SILENT, Board, Metrics, ReplicaApp, Stats, sum_of_pages

READY = {"status": "ready"}


def page(replies: int, rows: int = 0, seconds: float = 0.3) -> bytes:
    """Of a server with so many replies, each after so many seconds, and so many answers that are decoded."""
    metrics = Metrics(lambda: Stats(rows=rows), lambda: "ready", "mini")
    for _ in range(replies):
        metrics.count_reply("/v1/chat/completions", 200, seconds)
    return metrics.page()


def figures(text: bytes) -> dict[str, float]:
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    return {head: float(value) for head, _, value in (line.rpartition(" ") for line in lines)}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_sum_of_pages_is_the_page_of_a_server_that_did_it_all() -> None:
    whole = figures(page(5, 3))
    births = {name for name in whole if name.partition("{")[0].endswith("_created")}
    states = {'dllm_state{state="ready"}': 2.0, "dllm_ranks": 2.0}  # count servers and their processes
    assert figures(sum_of_pages([page(2, 1), page(3, 2)])) == {
        name: states.get(name, value) for name, value in whole.items() if name not in births
    }
    quick = figures(sum_of_pages([page(1), page(1, seconds=0.02)]))
    assert quick['dllm_request_seconds_bucket{le="0.05",route="chat"}'] == 1
    assert quick['dllm_request_seconds_bucket{le="0.5",route="chat"}'] == 2


def test_families_stay_together_where_a_page_lacks_labels() -> None:
    names = [
        line.split("{")[0].split(" ")[0]
        for line in sum_of_pages([page(0), page(1)]).decode().splitlines()
        if not line.startswith("#")
    ]
    firsts = [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]
    assert len(firsts) == len(set(firsts))


def test_counters_of_replicas_that_are_gone_still_count() -> None:
    clock, replies = Clock(), 'dllm_http_requests_total{route="chat",status="200"}'
    board = Board(clock)
    board.tell("old", READY, page(4, rows=2), [])
    clock.now = SILENT + 1
    board.tell("new", READY, page(1, rows=1), [])
    found = figures(board.page("new", page(2, rows=1)))
    assert (found[replies], found["dllm_rows"], found['dllm_state{state="ready"}']) == (6, 1, 1)
    one = page(1)
    for number in range(MOST_PAGES + 9):
        board.tell(f"more-{number}", READY, one, [])
    assert len(board.words) == MOST_PAGES
    assert figures(board.page("none", page(0)))[replies] == 4 + 1 + MOST_PAGES + 9


def test_the_board_knows_who_serves_and_hands_lines_out_once() -> None:
    clock = Clock()
    board = Board(clock)
    board.tell("a", {"status": "loading", "share": 0.5, "part": "x"}, b"", ["one"])
    assert not board.serves()
    board.tell("b", READY, page(0), ["two", "three"])
    assert board.serves() and [state["status"] for state in board.states()] == ["loading", "ready"]
    assert (board.take_lines(), board.take_lines()) == (["one", "two", "three"], [])
    clock.now = SILENT
    assert not board.serves()
    board.lines.extend(map(str, range(2 * replica_board.MOST_LINES)))
    assert len(board.take_lines()) == replica_board.MOST_LINES


def test_an_application_without_its_model_says_how_far_it_is() -> None:
    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(ReplicaApp(lambda: None, lambda: None))
        async with httpx.AsyncClient(transport=transport, base_url="http://dllm") as client:
            return [await client.get("/health"), await client.post("/v1/chat/completions", json={})]

    health, chat = asyncio.run(ask())
    assert (health.status_code, health.json()["status"]) == (503, "loading")
    assert (chat.status_code, chat.headers["retry-after"], chat.json()["error"]["code"]) == (503, "5", "loading")
