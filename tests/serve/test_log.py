"""The log: a line for every request, with one name in header, error and line. docs/serving_operate.md says so."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dllm.parts import LONGEST_WAIT, AccessLine, JobFailure, Model, RetryTimes, Stats, UserError, formatter, request_id
from tests.serve.conftest import CHAT, Place, error_of
from tests.serve.stand_in import OneByOne

KEY = {"authorization": "Bearer a-key-of-the-tests"}
PAGE = Path(__file__).parents[2] / "docs" / "serving_operate.md"


def lines_of(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.fields for record in caplog.records if hasattr(record, "fields")]


def test_every_request_leaves_a_line(placed: Callable[..., Place], caplog: pytest.LogCaptureFixture) -> None:
    """What was asked for and refused, too: for a wrong key, a foreign name, an unknown address, a sound answer."""
    place = placed(api_key="a-key-of-the-tests", hosts=("dllm.example",))
    calls: list[tuple[str, str, int, dict[str, Any]]] = [
        ("GET", "/health", 200, {}),
        ("GET", "/v1/models", 401, {}),
        ("GET", "/nothing", 404, {"headers": KEY}),
        ("GET", "/v1/models", 421, {"headers": {**KEY, "host": "evil.example"}}),
        ("GET", CHAT, 405, {"headers": KEY}),
        ("POST", CHAT, 415, {"headers": KEY, "content": "x"}),
        ("POST", CHAT, 400, {"headers": KEY, "json": {"messages": []}}),
        ("POST", "/v1/completions", 200, {"headers": KEY, "json": {"prompt": "w5 w7", "max_tokens": 4}}),
        ("POST", "/v1/completions", 200, {"headers": KEY, "json": {"prompt": "w5", "max_tokens": 4, "stream": True}}),
    ]
    with caplog.at_level(logging.INFO):
        for method, path, status, options in calls:
            reply = place.call(method, path, **options)
            assert reply.status_code == status, (path, reply.text)
            told = lines_of(caplog)[-1]
            assert (told["method"], told["path"], told["status"]) == (method, path, status)
            assert told["id"] == reply.headers["x-request-id"] and told["client"] == "127.0.0.1"
            assert told["seconds"] >= 0
    assert len(lines_of(caplog)) == len(calls)
    tokens = [(one["prompt_tokens"], one["completion_tokens"]) for one in lines_of(caplog)]
    assert tokens == [(None, None)] * 7 + [(2, 4), (1, 4)]
    assert "w5" not in caplog.text.replace("httpx", "")
    assert "one line for each request, refused ones too" in " ".join(PAGE.read_text().split())


def test_a_sound_name_of_a_proxy_is_taken_over(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    for sent in ("my-id-1", "0af7651916cd43dd8448eb211c80319c", "a.b_c"):
        reply = place.call("GET", "/health", headers={"x-request-id": sent})
        assert reply.headers["x-request-id"] == sent
    for sent in ("", "has space", "../../etc/passwd", "x" * 65, "\x1b[2J", "-begins", "é"):
        reply = place.call("GET", "/health", headers={"x-request-id": sent.encode()})  # type: ignore[dict-item]
        assert re.fullmatch("[0-9a-f]{16}", reply.headers["x-request-id"])
    whole = place.call("POST", "/v1/completions", json={"prompt": "w5"}, headers={"x-request-id": "my-id-2"})
    assert whole.json()["id"] == "cmpl-my-id-2"
    assert request_id("ok") == "ok"


def test_after_a_proxy_replies_do_not_say_the_name_again(served: Model) -> None:
    place = Place(served)
    place.app = place.service.app(proxied=True)
    reply = place.call("GET", "/v1/nothing", headers={"x-request-id": "my-id-3"})
    assert reply.status_code == 404 and "x-request-id" not in reply.headers
    place.close()


def test_a_failed_answer_has_one_name(
    placed: Callable[..., Place], served: Any, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = OneByOne(served)
    scheduler.script = lambda job, deliver: deliver(JobFailure("error", "decoding failed (ValueError).", job.ident))
    place = placed(scheduler)
    with caplog.at_level(logging.INFO):
        reply = place.ask()
    ident = reply.headers["x-request-id"]
    assert reply.status_code == 500 and ident in error_of(reply)["message"]
    assert lines_of(caplog)[-1]["id"] == ident and lines_of(caplog)[-1]["end"] == "error"


def test_lines_are_text_or_json() -> None:
    line = AccessLine("an-id", "POST", '/a b"\x1b', "::1", 200, 0.25, 3, 4, "slow_reader")
    record = logging.LogRecord("dllm.serve", logging.INFO, "", 0, "%s", (line.text(),), None)
    text = formatter("text").format(record)
    assert text.endswith(r' INFO an-id POST "/a b\"\u001b" 200 ::1 3+4 tokens 0.250 s (slow_reader)')
    record.fields = {"event": "request", **vars(line)}
    told = json.loads(formatter("json").format(record))
    assert told["level"] == "INFO" and told["path"] == '/a b"\x1b' and told["completion_tokens"] == 4
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", told["time"])
    plain = logging.LogRecord("dllm.serve", logging.WARNING, "", 0, "two\nlines", None, None)
    assert json.loads(formatter("json").format(plain))["message"] == "two\nlines"


CANARY = "kanarienvogel"
TOLD: list[tuple[dict[str, Any], str | None, str]] = [
    ({"stop": [CANARY * 30]}, "stop", "stop has one of 390 characters"),
    ({"stop": {"a": CANARY}}, "stop", "stop=… must be a text or a list of texts."),
    ({"temperature": CANARY}, "temperature", "temperature=… must be a number"),
    ({"temprature": CANARY}, "temprature", "… is not a field of this request. Did you mean …?"),
    ({"messages": [{"role": CANARY, "content": CANARY}]}, "messages[0].role", "messages[0].role=… must be one of"),
    ({"messages": [{"role": "user", "content": [{"type": CANARY}]}]}, "messages[0].content[0].type", "must be text"),
    ({"diffusion": {"canvas": [CANARY]}}, "diffusion.canvas", "diffusion.canvas=… has nothing to fill in"),
    ({"bad_words": [[CANARY]]}, "bad_words", "bad_words=… must be empty"),
    ({"prediction": {"content": {"a": CANARY}}}, "prediction", "prediction=… must be empty"),
    ({"n_predict": CANARY}, "n_predict", "… is not a field of this request: write …"),
    ({"response_format": {"type": "grammar", "grammar": f"start: {CANARY}("}}, "response_format", ""),
    ({"response_format": {"type": "regex", "pattern": f"{CANARY}("}}, "response_format", ""),
    ({"guided_json": f'"{CANARY}'}, "guided_json", "guided_json is not JSON"),
    ({"max_tokens": 0}, "max_tokens", "max_tokens=0 must lie in"),
]


@pytest.mark.parametrize(("fields", "param", "cause"), TOLD, ids=range(len(TOLD)))
def test_the_log_says_why_and_not_what(
    place: Place, caplog: pytest.LogCaptureFixture, fields: dict[str, Any], param: str | None, cause: str
) -> None:
    with caplog.at_level(logging.INFO):
        reply = place.ask(**fields)
    (record,) = [record for record in caplog.records if hasattr(record, "fields")]
    told: dict[str, Any] = record.fields
    assert reply.status_code == 400 and record.levelname == "WARNING" and told["end"] == "refused"
    assert cause in told["cause"] and told["cause"] and told["param"] == param == error_of(reply)["param"]
    assert told["code"] == error_of(reply)["code"] and told["cause"] in record.getMessage()
    assert CANARY not in json.dumps({**told, "param": ""}) and CANARY not in record.getMessage()


def test_the_log_names_fields_that_were_passed_over(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        reply = place.ask(provider={"order": [CANARY]})
    unknown, own = lines_of(caplog)
    assert (unknown["event"], unknown["unknown"]) == ("unknown_fields", ["provider"]) and own["end"] == "done"
    assert unknown["id"] == own["id"] == reply.headers["x-request-id"] and CANARY not in caplog.text


def test_a_line_without_an_answer_tells_no_tokens() -> None:
    assert AccessLine("i", "GET", "/health", "::1", 200, 0.001).text() == "i GET /health 200 ::1 0.001 s"
    line = AccessLine("i", "POST", "/v1/completions", "::1", 504, 1.0, 3, 0, "timeout", "it took more than 1 seconds.")
    assert line.text().endswith("3+0 tokens 1.000 s (timeout: it took more than 1 seconds.)")


def test_a_crowd_is_told_to_come_back_one_after_the_other() -> None:
    """Each refused client has a time behind all that wait and all that were told before."""
    figures = Stats(waiting=64, rows=8, turn_seconds=19.9)
    figures.endings["done"] = 99  # 0.2 s an answer
    retry = RetryTimes()
    times = [retry.next(figures) for _ in range(78)]
    assert times == sorted(times) and (times[0], times[-1]) == (18, 38), "72 and 149 answers of 0.2 s, and a quarter"
    assert RetryTimes().next(Stats()) == 1
    assert RetryTimes().next(Stats(waiting=64, turn_seconds=1000.0)) == LONGEST_WAIT == 60


def test_the_form_of_the_log_is_checked() -> None:
    from dllm.parts import ServeSettings

    with pytest.raises(UserError, match="task.log='xml' must be one of text, json"):
        ServeSettings(log="xml").check()
