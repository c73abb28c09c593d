"""What is streamed: the pieces make up the reply's text, in any order of commits and with any stop strings."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from dllm.parts import (
    AnswerText,
    Ending,
    JobFailure,
    JobResult,
    Mailbox,
    Model,
    Progress,
    Request,
    Scheduler,
    Trace,
    first_stop,
    open_tail,
)
from tests.serve.conftest import Place, events

END, MASK = 256, 257
SIGNS = "aab \né€😀\N{REPLACEMENT CHARACTER}"


def decoded(tokens: Sequence[int]) -> str:
    """Byte-level text: a token is a byte, as in the published models."""
    return bytes(token for token in tokens if token < END).decode("utf-8", "replace")


@dataclass
class Finished:
    """What ``finish`` reads of a result."""

    text: str
    tokens: list[int]
    stop_reason: str
    constraint: None = None


def drawn(dice: random.Random) -> tuple[list[int], tuple[str, ...]]:
    """An answer, and stop strings of which some occur in it."""
    text = "".join(dice.choices(SIGNS, k=dice.randint(0, 12)))
    tokens = list(text.encode())
    for _ in range(dice.choice([0, 0, 0, 2])):  # bytes that are no text
        tokens.insert(dice.randint(0, len(tokens)), dice.randint(128, 255))
    if dice.random() < 0.5:
        tokens[dice.randint(0, len(tokens)) :] += [END, *dice.choices([*b"ab", END], k=dice.randint(0, 4))]
    stops = [text[at : at + dice.randint(1, 4)] for at in dice.choices(range(len(text)), k=2)] if text else []
    stops += ["".join(dice.choices(SIGNS, k=dice.randint(1, 3)))]
    return tokens, tuple(dice.sample(stops, dice.randint(0, len(stops))))


def truth(tokens: list[int], stops: tuple[str, ...]) -> tuple[str, str]:
    """The reply's text and why it ends, from the finished answer."""
    text = decoded(tokens[: tokens.index(END)] if END in tokens else tokens)
    cuts = [text.index(stop) for stop in stops if stop in text]
    return text[: min(cuts, default=len(text))], "stop" if cuts or END in tokens else "length"


@pytest.mark.parametrize("seed", range(8))
def test_the_pieces_make_up_the_text(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(200):
        tokens, stops = drawn(dice)
        expected, reason = truth(tokens, stops)
        follower = AnswerText.of(Request.answer([1], len(tokens) or 1, MASK), decoded, {END}, stops)
        order, masked, pieces, ending = dice.sample(range(len(tokens)), len(tokens)), [True] * len(tokens), "", None
        while order and ending is None:
            for _ in range(dice.randint(1, 3)):
                if order:
                    masked[order.pop()] = False
            seen = [MASK if hidden else token for token, hidden in zip(tokens, masked, strict=True)]
            if dice.random() < 0.7:  # a slow reader misses some turns
                new, ending = follower.follow(seen, masked.index(True) if True in masked else len(tokens))
                pieces += new
                assert expected.startswith(pieces)
        if ending is None:
            kept = tokens[: tokens.index(END)] if END in tokens else tokens
            done = Finished(decoded(kept), kept, "eos" if END in tokens else "length")
            new, ending = follower.finish(done)  # type: ignore[arg-type]
            pieces += new
        assert pieces == ending.text == expected and ending.reason == reason, (tokens, stops)
        assert expected.startswith(decoded(ending.tokens).rstrip("\N{REPLACEMENT CHARACTER}"))


def test_text_is_sent_as_soon_as_nothing_can_change_it() -> None:
    follower = AnswerText(decoded, {END}, ("stop", "xy"))
    euro = list("€".encode())
    assert follower.follow([*b"ab", euro[0], MASK], 3) == ("ab", None)
    assert follower.follow([*b"ab", *euro, MASK], 5) == ("€", None)
    assert follower.follow([*b"ab", *euro, *b"sto"], 8) == ("", None)  # may become "stop"
    assert follower.follow([*b"ab", *euro, *b"stone x"], 12)[0] == "stone "
    new, ending = follower.follow([*b"ab", *euro, *b"stone xyz"], 14)
    assert new == "" and ending is not None
    assert ending.text == "ab€stone " and bytes(ending.tokens) == "ab€stone ".encode()


def test_a_stop_string_waits_for_a_longer_one_that_began_before_it() -> None:
    follower = AnswerText(decoded, {END}, ("bc", "abcd"))
    assert follower.follow(list(b"xabc"), 4) == ("x", None)
    new, ending = follower.follow(list(b"xabcd"), 5)
    assert new == "" and ending is not None and ending.text == "x"


def test_an_end_of_text_lets_everything_go() -> None:
    follower = AnswerText(decoded, {END}, ("stop",))
    assert follower.follow([*b"sto", 0xE2, END, *b"later"], 8) == ("sto\N{REPLACEMENT CHARACTER}", None)


def test_what_was_sent_is_as_many_tokens_as_write_it() -> None:
    follower = AnswerText(decoded, {END})
    follower.follow([*b"ab", 0xE2], 3)
    assert follower.ending_so_far([*b"ab", 0xE2], 3) == Ending("ab", [*b"ab"], "length", None)


def test_an_infilling_keeps_what_stands_behind_an_end() -> None:
    request = Request([*b"A ", MASK, MASK, *b" B"], [False, False, True, True, False, False])
    follower = AnswerText.of(request, decoded, {END}, ("B",))
    assert follower.follow([*b"x", MASK, *b" B"], 1) == ("A x", None)
    assert follower.follow([*b"x", END, *b" B"], 4) == (" B", None)


@pytest.mark.parametrize("seed", range(4))
def test_the_pieces_of_an_infilling_make_up_its_text(seed: int) -> None:
    """Characters of up to four bytes, decided one byte a turn in any order, with ends of text between them."""
    dice = random.Random(seed)
    for _ in range(100):
        head, tokens = list("A €".encode()), list("".join(dice.choices(SIGNS[:-1], k=dice.randint(1, 8))).encode())
        for _ in range(dice.choice([0, 0, 1, 2])):
            tokens.insert(dice.randint(0, len(tokens)), END)
        masked, tokens = [True, *(dice.random() < 0.7 for _ in tokens[1:]), False], [*tokens, *b"B"]
        canvas = [*head, *(MASK if hidden else token for token, hidden in zip(tokens, masked, strict=True))]
        follower = AnswerText.of(Request(canvas, [token == MASK for token in canvas]), decoded, {END}, ("A",))
        pieces = ""
        while any(masked):
            masked[dice.choice([at for at, hidden in enumerate(masked) if hidden])] = False
            seen = [MASK if hidden else token for token, hidden in zip(tokens, masked, strict=True)]
            new, ending = follower.follow(seen, masked.index(True) if True in masked else len(tokens))
            pieces += new
            assert ending is None and "\N{REPLACEMENT CHARACTER}" not in pieces
        text = decoded([*head, *(token for token in tokens if token != END)])
        new, ending = follower.finish(Finished(text, tokens, "length"))  # type: ignore[arg-type]
        assert pieces + new == ending.text == text


def test_where_stop_strings_begin() -> None:
    assert first_stop("abcabc", ("c", "bc")) == 1 and first_stop("abc", ("d",)) is None
    assert open_tail("aab", ("abc", "bd")) == 1 and open_tail("abx", ("abc",)) == 3 and open_tail("", ()) == 0


def test_a_text_that_changes_is_a_fault() -> None:
    follower = AnswerText(decoded, {END})
    follower.follow(list(b"ab"), 2)
    with pytest.raises(AssertionError, match="has changed"):
        follower.follow(list(b"xb"), 2)


def progress(turn: int, final: int) -> Progress:
    return Progress(turn, 0, list(range(turn)), [False] * turn, final)


def test_a_slot_holds_the_newest_state_and_where_the_text_grew() -> None:
    async def act() -> None:
        box = Mailbox(2)
        for turn, final in ((1, 0), (2, 0), (3, 2), (4, 2), (5, 3)):
            box.slot(1)(progress(turn, final))
        ((row, mail),) = await box.take(1)
        assert (row, mail.latest, mail.growth, mail.end) == (1, progress(5, 3), [(1, 0), (3, 2), (5, 3)], None)
        with pytest.raises(TimeoutError):
            await box.take(0.01)
        box.slot(0)(JobFailure("error", "no.", "id"))
        box.slot(1)(progress(6, 3))
        found = dict(await box.take(1))
        assert isinstance(found[0].end, JobFailure) and found[1].growth == [] and found[1].latest == progress(6, 3)

    asyncio.run(act())


def test_delivering_never_waits_and_outlives_the_reader() -> None:
    async def act() -> Any:
        return Mailbox(1).slot(0)

    deliver = asyncio.run(act())  # its event loop is closed by now
    began = time.perf_counter()
    for turn in range(1, 1000):
        deliver(progress(turn, 0))
    assert time.perf_counter() - began < 1


def scope_of(path: str) -> dict[str, Any]:
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
        "scheme": "http",
        "root_path": "",
        "server": ("localhost", 80),
        "client": ("127.0.0.1", 1),
    }


@pytest.mark.parametrize("leaves", [False, True], ids=["takes nothing", "leaves at once"])
def test_a_stream_that_nobody_reads_frees_its_row(served: Model, leaves: bool) -> None:
    """``send`` of a full connection does not return. Meanwhile another request is answered as ever."""
    scheduler = Scheduler(served, "eager")
    place = Place(served, scheduler, send_timeout=0.3)  # type: ignore[arg-type]
    body = {"prompt": "w1 w2", "max_tokens": 120, "stream": True, "diffusion": {"sampler": "static", "snapshots": True}}
    parts = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    full, sent = asyncio.Event(), 0

    async def receive() -> dict[str, Any]:
        if parts:
            return parts.pop()
        if not leaves:
            await asyncio.sleep(600)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal sent
        sent += 1
        if sent > 3:
            full.set()
            await asyncio.sleep(600)

    async def act() -> int:
        slow = asyncio.create_task(place.app(scope_of("/v1/completions"), receive, send))
        if not leaves:
            await full.wait()
        async with place.client() as client:
            reply = await client.post("/v1/completions", json={"prompt": "w3", "max_tokens": 8})
        await asyncio.wait_for(slow, 20)
        return reply.status_code

    assert asyncio.run(act()) == 200
    until = time.monotonic() + 5
    while (found := scheduler.figures()).rows and time.monotonic() < until:
        time.sleep(0.01)
    assert (found.rows, found.waiting, found.endings["aborted"], found.endings["done"]) == (0, 0, 1, 1)
    page = place.call("GET", "/metrics").text
    reason = "left" if leaves else "slow_reader"
    assert f'dllm_requests_cut_total{{reason="{reason}"}} 1.0' in page
    place.close()


def test_a_done_row_needs_no_progress() -> None:
    """A row that is not followed tells its end alone."""

    async def act() -> None:
        box = Mailbox(1)
        box.slot(0)(JobResult(None, [], 0.0, 1))  # type: ignore[arg-type]
        ((_, mail),) = await box.take(1)
        assert mail.latest is None and isinstance(mail.end, JobResult)

    asyncio.run(act())


def kept_at(trace: dict[str, Any], turn: int) -> dict[int, int]:
    """When each decided position kept its token, from 1, after the first ``turn`` forwards of a trace; of several
    candidates of the last one in the first."""
    found: dict[int, int] = {}
    path = Trace.from_json(trace).path()[:turn]
    for number, (turned, at) in enumerate([*path[:-1], (path[-1][0], 0)], 1):
        for position in (*turned.remasked[at], *turned.rolled[at]):
            found.pop(position, None)
        changed = [position for commits in turned.written(at) for position in commits.positions]
        found |= dict.fromkeys([*changed, *turned.filled[at]], number)
    return found


@pytest.mark.parametrize(
    "diffusion",
    [
        {"sampler": "wino", "threshold": 0.2},
        {"sampler": "remdm"},
        {"sampler": "joint_threshold"},
        {"sampler": "lopa"},
        {"sampler": {"name": "prophet", "region": "anchor", "anchor_text": "w5", "anchor_position": 7}},
    ],
    ids=str,
)
def test_every_snapshot_says_when_each_token_was_decided(served: Model, diffusion: dict[str, Any]) -> None:
    """By itself, so that a reader who misses the ones before shows the same; against the trace."""
    place = Place(served, Scheduler(served, "eager"))  # type: ignore[arg-type]
    told = events(place.ask(stream=True, temperature=0, diffusion={"snapshots": True, "trace": True, **diffusion}))
    (trace,) = [
        choice["diffusion"]["trace"]["trace"]
        for _, data in told
        if data != "[DONE]"
        for choice in data["choices"]
        if choice["finish_reason"]
    ]
    shots = [data["diffusion"] for name, data in told if name]
    assert shots
    for shot in shots:
        decided = {at: turn for at, turn in enumerate(shot["turns"]) if turn}
        assert decided == kept_at(trace, shot["turn"]), shot["turn"]
        assert all(shot["words"][at] is not None for at in decided)
    place.close()
