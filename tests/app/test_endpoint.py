"""``model=endpoint`` against a server of the test: rows, limits, faults, keys, what is refused, kill -9."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from threading import Event

import pytest

from dllm.app.runs.bounded_reply import LONGEST_REPLY
from tests.app.conftest import ROOT, Outcome, Run, rows_of
from tests.support.stub_endpoint import Body, Endless, Reply, Stub, answer, stub_endpoint

A = Path("runs/a")
KEY = "sk-Zq81thisIsTheKey"
COPY = ["task=parallelbench", "task.suite=r1", "task.tasks=copy"]


def asked(stub: Stub | str, *more: str, count: int = 4) -> list[str]:
    """The command line that asks a stub, or an address, ``count`` questions."""
    url = stub if isinstance(stub, str) else stub.url
    return ["model=endpoint", f"model.url={url}", "model.name=stub", *COPY, f"task.count={count}", *more]


def copied(body: Body, before: int = 0) -> Reply:
    """The right answer: the list of the question, as it is to be written."""
    text = body["messages"][-1]["content"]
    entries = json.loads(text[text.index("[") : text.index("]") + 1])
    return answer(f"[{', '.join(json.dumps(one) for one in entries)}]")


def everything_in(folder: Path) -> str:
    return "\n".join(file.read_text(errors="replace") for file in folder.glob("**/*") if file.is_file())


def test_answers_are_scored_and_what_no_endpoint_tells_is_empty(run: Run) -> None:
    with stub_endpoint(copied) as stub:
        outcome = run(*asked(stub, "name=a", "samples=2", "sampling.temperature=0.5"), bare=True)
        rows = rows_of(A)
        assert outcome.code == 0, outcome.err
        assert len(rows) == len(stub.bodies) == 8
        assert {body["model"] for body in stub.bodies} == {"stub"}
        assert {(body["max_tokens"], body["temperature"]) for body in stub.bodies} == {(32, 0.5)}
        assert len({(*q, body["seed"]) for q, body in zip(stub.questions, stub.bodies, strict=True)}) == 8
    for row in rows:
        assert (row["scores"]["score"], row["useful_tokens"], row["answered_by"]) == (1.0, 7, "stub-1")
        assert (row["nfe"], row["tokens"], row["turns"], row["device"]) == (0, [], [], "endpoint")
        assert 0 < row["seconds"] < 5
    line = next(line.split() for line in outcome.out.splitlines() if line.startswith(" copy"))
    assert line[:3] == ["copy", "8", "100.0"] and len(line) == 7  # TPF and NFE are empty
    assert "Empty: an endpoint tells no forwards." in outcome.out
    again = run("again=runs/a", bare=True)
    assert again.code == 2 and "again=runs/a has no meaning beside model=endpoint" in again.err


def test_requests_are_under_way_together_and_never_more_than_asked_for(run: Run) -> None:
    three = Event()

    def reply(body: Body, before: int) -> Reply:
        three.wait(20)  # nobody is answered before three are here
        return copied(body)

    with stub_endpoint(reply) as stub:

        def release() -> None:
            while stub.under_way < 3:
                time.sleep(0.01)
            time.sleep(0.2)  # in which a fourth would come
            three.set()

        import threading

        threading.Thread(target=release, daemon=True).start()
        assert run(*asked(stub, "name=a", "model.at_once=3", count=7), bare=True).code == 0
        assert stub.most == 3
        assert len(rows_of(A)) == 7


def test_a_busy_endpoint_is_asked_again_when_it_says(run: Run) -> None:
    def reply(body: Body, before: int) -> Reply:
        return copied(body) if before else Reply({"error": {"message": "slow down"}}, 429, {"Retry-After": "1"})

    with stub_endpoint(reply) as stub:
        began = time.monotonic()
        outcome = run(*asked(stub, "name=a", count=2), bare=True)
        assert outcome.code == 0, outcome.err
        assert time.monotonic() - began > 2.0
        assert Counter(Counter(stub.questions).values()) == {2: 2}
    assert all(row["seconds"] < 0.9 for row in rows_of(A)), "the wait is no time of the answer"


NOT_JSON, EMPTY = Reply("<html>It works!</html>"), Reply({"choices": [], "usage": None})
BAD = {
    "slow": (Reply({}, after=2.0), "nothing came in 0.3 s, in 1 try. Raise model.timeout.", 1),
    "busy": (
        Reply({"error": {"message": "quota"}}, 429, {"Retry-After": "7"}),
        "takes no more requests for now (429), and asks to wait 7 s. Lower model.at_once",
        1,
    ),
    "not JSON": (NOT_JSON, "question waiting_line/copy/0 got no text: <html>It works!</html>.", 10),
    "no choices": (EMPTY, 'question waiting_line/copy/0 got no text: {"choices": [], "usage": null}.', 10),
    "another model": (
        Reply({"error": {"message": "The model `stub` does not exist"}}, 404),
        "no model.name=stub is there (404)",
        1,
    ),
    "no right": (Reply({"error": {"message": "who are you"}}, 401), "the right key (401)", 1),
    "too long": (Reply({"error": {"message": "context is 8 tokens"}}, 400), "is refused (400)", 10),
    "half a pair": (answer("\ud800"), "question waiting_line/copy/0 got no text: {", 10),
    "nested": (Reply("[" * 100_000), "question waiting_line/copy/0 got no text: [[[[", 10),
    "packed": (
        Reply("", headers={"Content-Encoding": "gzip"}),
        "the reply to question waiting_line/copy/0 is packed (gzip) although the request asks for plain text.",
        10,
    ),
    "broken": (Reply({"error": {"message": "boom"}}, 500), "it failed (500), in 1 try", 1),
}


@pytest.mark.parametrize("name", BAD)
def test_a_fault_is_told_in_a_sentence_and_mended_by_the_same_command(name: str, run: Run) -> None:
    bad, sentence, most = BAD[name]
    state = {"bad": True}

    def reply(body: Body, before: int) -> Reply:
        return bad if state["bad"] else copied(body)

    with stub_endpoint(reply) as stub:
        words = asked(stub, "name=a", "model.retries=0", "model.timeout=0.3", count=12)
        outcome = run(*words, bare=True)
        assert outcome.code == 3
        assert sentence in outcome.err and "Traceback" not in outcome.err
        assert len(outcome.err) < 900
        assert (len(stub.bodies), rows_of(A)) == (most, [])
        state["bad"] = False
        stub.bodies.clear()
        assert run(*words[:-2], "model.timeout=20", bare=True).code == 0  # such settings are of no run's identity
        assert len(rows_of(A)) == len(stub.bodies) == 12


def test_numbers_and_names_that_no_table_can_hold_are_not_kept(run: Run) -> None:
    def reply(body: Body, before: int) -> Reply:
        found = answer("[]", model={"a": "\ud800"} if len(stub.bodies) == 1 else "m" * 999)
        assert isinstance(found.body, dict)
        found.body["usage"]["completion_tokens"] = 10**400
        found.body["choices"][0]["finish_reason"] = "\ud800"
        return found

    with stub_endpoint(reply) as stub:
        outcome = run(*asked(stub, "name=a", count=2), bare=True)
    assert outcome.code == 0, outcome.err
    assert [(row["useful_tokens"], row["answered_by"]) for row in rows_of(A)] == [(0, None), (0, "m" * 200)]


@pytest.mark.parametrize(
    ("status", "headers"),
    [(200, {}), (500, {}), (307, {"Location": "/v1/elsewhere"})],
    ids=["answer", "fault", "redirect"],
)
def test_a_reply_without_end_is_read_to_a_bound(status: int, headers: dict[str, str], run: Run) -> None:
    """Of an answer, of a fault and of a redirection; nobody asks a second time."""
    endless = Endless(b" " * 65536)
    with stub_endpoint(lambda body, before: Reply(endless, status, headers)) as stub:
        outcome = run(*asked(stub, "name=a", count=1), bare=True)
        assert (outcome.code, len(stub.bodies)) == (3, 1)
    assert "copy/0 has more than 8 MiB. Lower gen_length or mend the server." in outcome.err
    assert LONGEST_REPLY < endless.sent < 2 * LONGEST_REPLY, "what buffers of the system hold is sent, too"


def test_a_reply_that_drips_is_read_for_a_limited_time(run: Run) -> None:
    """Every byte comes before the timeout of a read."""
    with stub_endpoint(lambda body, before: Reply(Endless(b" ", pause=0.05))) as stub:
        began = time.monotonic()
        outcome = run(*asked(stub, "name=a", "model.timeout=0.5", count=1), bare=True)
        assert (outcome.code, len(stub.bodies)) == (3, 1) and time.monotonic() - began < 10
    assert "copy/0 did not end in 0.5 s. Raise model.timeout." in outcome.err


def test_an_endpoint_that_is_down_is_named(run: Run) -> None:
    with stub_endpoint(copied) as stub:
        pass
    outcome = run(*asked(stub, "name=a", "model.retries=1"), bare=True)
    assert (outcome.code, rows_of(A)) == (3, [])
    assert f"{stub.url}: it cannot be reached (" in outcome.err and "in 2 tries. Start it." in outcome.err
    assert "tokens/s" not in outcome.out, "there is no row, and so no table"


def test_one_question_that_is_refused_leaves_the_others(run: Run) -> None:
    def reply(body: Body, before: int) -> Reply:
        return EMPTY if len(stub.bodies) == 2 else copied(body)

    with stub_endpoint(reply) as stub:
        outcome = run(*asked(stub, "name=a"), bare=True)
        assert (outcome.code, len(rows_of(A)), len(stub.bodies)) == (3, 3, 4)
        assert run(*asked(stub, "name=a"), bare=True).code == 0
        assert len(stub.bodies) == 5


def test_a_key_is_sent_and_nowhere_kept_or_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    echo = Reply({"error": {"message": f"Incorrect API key provided: {KEY}"}}, 400)
    with stub_endpoint(lambda body, before: echo if len(stub.bodies) < 3 else copied(body)) as stub:
        outcomes = [run(*asked(stub, "name=a", "model.key_env=OPENAI_API_KEY", count=3), bare=True) for _ in range(2)]
        assert [one.code for one in outcomes] == [3, 0]
        assert "key provided: ***" in outcomes[0].err
        assert {one["authorization"] for one in stub.headers} == {f"Bearer {KEY}"}
        stub.headers.clear()
        assert run(*asked(stub, "name=b", count=1), bare=True).code == 0
        assert KEY not in str(stub.headers), "the variable was not named"
    assert KEY not in everything_in(Path("runs")) + "".join(one.out + one.err for one in outcomes)


@pytest.mark.parametrize("sweep", [[], ["-m", "name=a"]], ids=["run", "sweep"])
@pytest.mark.parametrize(
    "word",
    [
        f"model.key_env={KEY}",
        f"model.api_key={KEY}",
        f"model.url=http://me:{KEY}@localhost/v1",
        f"model.url=http://localhost/v1?key={KEY}",
    ],
    ids=["variable", "setting", "user", "query"],
)
def test_a_key_as_a_setting_is_refused_and_not_kept(word: str, sweep: list[str], run: Run) -> None:
    outcome = run(*asked("http://localhost/v1", word, *sweep), bare=True)
    assert outcome.code == 2
    assert "model.key_env=OPENAI_API_KEY" in outcome.err
    assert KEY not in outcome.err + outcome.out
    assert not Path("runs").exists()


REFUSED = {
    "sampler=eb": "sampler=eb has no meaning beside model=endpoint",
    "cache=dual": "cache=dual has no meaning",
    "blocks.block_length=8": "blocks.block_length=8 has no meaning",
    "runtime=compile": "runtime=compile has no meaning",
    "trace=true": "trace=true has no meaning",
    "constraint=json": "constraint=json has no meaning",
    "batch_size=4": "For several requests at a time set model.at_once=8.",
    "sampling.top_k=3": "sampling.top_k=3 has no meaning",
    "engine=ray": "engine=ray has no meaning",
    "gen_length=auto": "gen_length=auto has no meaning",
    "model.quantize=int8": "model.quantize=int8 is unknown",
    "model.at_once=0": "model.at_once=0 must",
    "model.url=localhost:8000": "is no address. Write one such as http://127.0.0.1:8000/v1.",
    "model.url=http://h/v1/chat/completions": "write what is before /chat/completions.",
    "model.url=null": "model=endpoint needs model.url=http://127.0.0.1:8000/v1.",
    "model.name=null": "model=endpoint needs model.name=NAME.",
    "model.key_env=NOT_THERE": "model.key_env=NOT_THERE is not set here.",
    "task=prompt": "Ask it the questions of a task",
    "task=serve": "task=serve needs the network itself",
    "task=decide": "task=decide needs the network itself",
    "tune": "dllm tune and dllm train are for networks",
    "task=mmlu task.shots=0 task.path=mmlu.jsonl": "tells no likelihood. Choose a task whose answers are written",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_no_endpoint_does_is_refused_before_it_is_asked(words: str, run: Run) -> None:
    Path("mmlu.jsonl").write_text(
        json.dumps({"question": "1+1?", "choices": ["1", "2", "3", "4"], "answer": 1, "subject": "anatomy"}) + "\n"
    )
    with stub_endpoint(copied) as stub:
        given = words.split()
        own = [word for word in asked(stub) if not (given[0].startswith("task=") and word.startswith("task"))]
        outcome: Outcome = run(*(given + own if given == ["tune"] else own + given), bare=True)
        assert (outcome.code, stub.bodies) == (2, [])
    assert REFUSED[words] in outcome.err
    assert not Path("runs").exists()


@pytest.mark.program
def test_killed_twice_no_question_is_asked_twice_but_those_under_way(run: Run) -> None:
    def reply(body: Body, before: int) -> Reply:
        found = copied(body)
        found.after = 0.05
        return found

    with stub_endpoint(reply) as stub:
        words = asked(stub, "name=a", "model.at_once=2", count=60)
        for moment in (11, 29):
            process = subprocess.Popen(
                [sys.executable, str(ROOT / "run.py"), *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            while len(stub.bodies) < moment:  # far from the end
                assert process.poll() is None, "it ended by itself"
                time.sleep(0.001)
            process.kill()
            process.wait()
        assert run(*words, bare=True).code == 0
        twice = [question for question, times in Counter(stub.questions).items() if times > 1]
        assert len(twice) <= 2 * 2 and len(stub.bodies) <= 60 + 2 * 2
    assert len({row["id"] for row in rows_of(A)}) == len(rows_of(A)) == 60


def test_a_sweep_puts_endpoint_and_network_into_one_table(run: Run) -> None:
    with stub_endpoint(lambda body, before: answer("[]")) as stub:
        served = f"{{model: endpoint, model.url: '{stub.url}', model.name: mini-llada}}"
        grids = f"grids=[{{model: mini-llada, sampler: [confidence, eb]}}, {served}]"
        outcome = run("-m", *COPY, "task.suite=mini", "task.count=2", "name=a", grids, bare=True)
        assert outcome.code == 0, outcome.err
    assert "mini-llada(url=http://127.0.0.1:" in outcome.out
    report = run("report", "runs/a", "--columns", "score", "tpf", "nfe", "seconds", bare=True)
    assert report.code == 0, report.err
    lines = [line.split(" | ") for line in report.out.splitlines() if line.startswith("| mini-llada")]
    assert len(lines) == 3
    (served,) = [cells for cells in lines if "behind an address" in cells[0]]
    assert "None" not in report.out and served[1][:2] == "0 " and served[2:4] == ["", ""] and float(served[4][:-2]) > 0
    assert all(cells[2] and cells[3] for cells in lines if cells is not served)
