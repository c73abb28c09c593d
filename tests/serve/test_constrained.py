"""Answers of a form that a request asks for, through OpenAI's client: valid, alone as under load, refused in time."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from dllm.parts import Limits, Model
from tests.serve.conftest import Place, error_of, events, streamed_text, writing
from tests.serve.live import Live, live
from tests.support.harness import full

openai = pytest.importorskip("openai", reason="openai is not installed: pip install -e '.[dev]'")
jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install -e '.[constraints]'")
pytest.importorskip("lark", reason="lark is not installed: pip install -e '.[constraints]'")

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"type": "boolean"}},
    "required": ["n"],
    "additionalProperties": False,
}
GRAMMAR = 'start: item ("," item)*\nitem: WORD ":" INT\n%import common.INT\nWORD: /[a-c]+/'
SLOW = r"(?:[ab]{0,40}[bc]{0,40}){0,40}(?:a|b)*a(?:a|b){18}"  # 500,000 states before it is merged


@dataclass(frozen=True)
class Form:
    """What a request asks for, and whether a text is it, by means that share nothing with the server."""

    format: dict[str, Any]
    holds: Callable[[str], object]


def _is_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


def _validates(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


def matches(pattern: str) -> Callable[[str], object]:
    return lambda text: re.fullmatch(pattern, text)


FORMS = [
    Form({"type": "json_object"}, _is_object),
    Form({"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}, _validates),
    Form({"type": "regex", "pattern": r"[a-c]{2,5}-\d{2}( ok)?"}, matches(r"[a-c]{2,5}-\d{2}( ok)?")),
    Form({"type": "choice", "options": ["yes", "no", "perhaps"]}, matches("yes|no|perhaps")),
    Form({"type": "grammar", "grammar": GRAMMAR}, matches(r"[abc]+:[0-9]+(,[abc]+:[0-9]+)*")),
]
HOLES = Form({"type": "regex", "pattern": r"a\d*b\d+c"}, matches(r"a\d*b\d+c"))
SAMPLERS: list[Any] = [
    {"name": "static", "steps": 4},
    {"name": "klass", "since": "block"},
    "wino",
    *({"name": "confidence", "threshold": t} for t in (0.04, 0.1)),
]


@pytest.fixture(scope="module")
def server(written_model: Model) -> Iterator[Live]:
    with live(written_model, defaults=writing(written_model), timeout=60.0, compile_seconds=0.6) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Live) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_pydantic_reads_what_its_own_patterns_ask_for(client: Any) -> None:
    """Its engine has the digits of ASCII alone: as ECMA-262, and not Python's ``re``."""
    from pydantic import BaseModel, Field

    class Place(BaseModel):
        zip: str = Field(pattern=r"^\d{5}$")
        code: str = Field(pattern=r"^[\w-]{4}$", max_length=2083)

    for seed in range(8):
        reply = client.chat.completions.parse(
            model="tiny",
            messages=[{"role": "user", "content": "Where?"}],
            response_format=Place,
            seed=seed,
            max_tokens=60,
            temperature=1.5,
        )
        place = reply.choices[0].message.parsed
        assert re.fullmatch("[0-9]{5}", place.zip) and re.fullmatch("[A-Za-z0-9_-]{4}", place.code)


def drawn(dice: random.Random) -> tuple[dict[str, Any], Form | None]:
    """A request, half of them under a constraint."""
    form = dice.choice(FORMS) if dice.random() < 0.6 else None
    asked: dict[str, Any] = {"model": "tiny", "seed": dice.randint(0, 9), "temperature": dice.choice([0, 0, 0.8])}
    words = " ".join(dice.choices(["ab", "no", "{}", "12"], k=dice.randint(1, 5)))
    asked |= {"messages": [{"role": "user", "content": words}]} if dice.random() < 0.7 else {"prompt": words}
    more = {"sampler": dice.choice(SAMPLERS), "cache": dice.choice(["none", "dual"]), "block_length": 8}
    if dice.random() < 0.15:
        form, more["canvas"] = HOLES, ["a", 3, "b", 4, "c"]
    else:
        asked["max_tokens"] = dice.choice([8, 16])
    if form:
        more["constraint"] = {"confidence": dice.choice(["model", "admissible"])}
        asked["response_format"] = form.format
    if dice.random() < 0.15:
        asked["n"] = 2
    return {**asked, "extra_body": {"diffusion": more}}, form


def reply_of(client: Any, asked: dict[str, Any], stream: bool) -> list[tuple[str, str, int]]:
    """Text, reason and forwards of every choice, from the reply or from its chunks."""
    asked = dict(asked)
    if "prompt" in asked and "response_format" in asked:  # no field of completions in OpenAI's own form
        asked["extra_body"] = {**asked["extra_body"], "response_format": asked.pop("response_format")}
    create = (client.chat.completions if "messages" in asked else client.completions).create
    texts: dict[int, str] = {}
    ends: dict[int, tuple[str, int]] = {}
    for part in create(**asked, stream=True) if stream else [create(**asked)]:
        for choice in part.choices:
            said = choice.text if "prompt" in asked else (choice.delta if stream else choice.message).content
            texts[choice.index] = texts.get(choice.index, "") + (said or "")
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason, choice.diffusion["nfe"]
    return [(texts[at], *ends[at]) for at in sorted(ends)]


def test_fifty_mixed_requests_at_once_are_answered_as_alone(client: Any) -> None:
    dice = random.Random(19)
    asked = [drawn(dice) for _ in range(500 if full() else 50)]
    alone = [reply_of(client, body, False) for body, _ in asked]
    with ThreadPoolExecutor(16) as crowd:
        found = list(crowd.map(lambda at: reply_of(client, asked[at][0], at % 2 == 0), range(len(asked))))
    assert [at for at in range(len(asked)) if found[at] != alone[at]] == []
    for replies, (_, form) in zip(alone, asked, strict=True):
        assert form is None or all(form.holds(text) and reason == "stop" for text, reason, _ in replies), replies
    assert sum(form is None for _, form in asked) > 10 and len({form.format["type"] for _, form in asked if form}) == 5


def test_a_reply_tells_what_the_constraint_did(client: Any) -> None:
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "ab"}], "response_format": FORMS[3].format}
    told = client.chat.completions.create(**asked).choices[0].diffusion["constraint"]
    assert (told["kind"], told["fewest"]) == ("choice", 2) and told["corrected"] > 0 and told["compile_seconds"] > 0
    free = client.chat.completions.create(model="tiny", messages=asked["messages"])
    assert "constraint" not in free.choices[0].diffusion


def test_a_text_that_fills_its_masks_is_not_cut(client: Any) -> None:
    form = {"response_format": {"type": "regex", "pattern": "[ab]{8}"}}
    (choice,) = client.completions.create(model="tiny", prompt="ab", max_tokens=8, extra_body=form).choices
    assert re.fullmatch("[ab]{8}", choice.text) and choice.finish_reason == "stop"


def test_constrained_and_free_rows_share_a_lane(server: Live, written_model: Model) -> None:
    bodies = [
        {
            "prompt": "ab",
            "max_tokens": 24,
            "diffusion": {"sampler": "static"},
            **({"response_format": FORMS[at % 5].format} if at % 2 else {}),
        }
        for at in range(6)
    ]
    with server.client() as http, ThreadPoolExecutor(6) as crowd:
        running = [crowd.submit(http.post, "/v1/completions", json=body) for body in bodies]
        most = lanes = 0
        while not all(one.done() for one in running):
            figures = server.scheduler.figures()
            most, lanes = max(most, figures.rows), max(lanes, figures.lanes)
            time.sleep(0.001)
    assert all(one.result().status_code == 200 for one in running) and most > 1 and lanes == 1


def slow_body(number: int = 0) -> dict[str, Any]:
    return {"prompt": "ab", "response_format": {"type": "regex", "pattern": f"{number}{SLOW}"}}


def test_a_pattern_made_to_explode_is_refused_while_another_request_streams_on(server: Live) -> None:
    long = {"prompt": "ab", "max_tokens": 48, "stream": True, "diffusion": {"sampler": "static", "snapshots": True}}
    came: list[float] = []
    with server.client() as http, ThreadPoolExecutor(2) as crowd:

        def stream() -> None:
            while not refused.done():
                with http.stream("POST", "/v1/completions", json=long) as reply:
                    came.extend(time.monotonic() for line in reply.iter_lines() if line.startswith("data: "))

        began = time.monotonic()
        refused = crowd.submit(http.post, "/v1/completions", json=slow_body())
        streaming = crowd.submit(stream)
        quick = http.post("/v1/completions", json={"prompt": "ab", "response_format": FORMS[2].format})
        assert quick.status_code == 200 and not refused.done(), "a small pattern does not wait for a large one"
        assert http.get("/health").status_code == 200
        reply = refused.result()
        ended = time.monotonic()
        streaming.result()
    assert reply.status_code == 400, reply.text
    assert "took more than 0.6 s to compile" in error_of(reply)["message"] and ended - began < 20
    meanwhile = [at for at in came if at < ended]
    assert len(meanwhile) > 10
    assert max(after - before for before, after in zip(meanwhile, meanwhile[1:], strict=False)) < (ended - began) / 2


def test_the_queues_are_bounded_and_what_is_known_passes_them_by(written_model: Model) -> None:
    defaults, limits = writing(written_model), Limits(max_waiting=2)
    with live(written_model, defaults=defaults, timeout=1.5, limits=limits) as busy, busy.client() as http:
        known = {"prompt": "ab", "response_format": FORMS[2].format}
        assert http.post("/v1/completions", json=known).status_code == 200
        with ThreadPoolExecutor(6) as crowd:
            replies = list(crowd.map(lambda at: http.post("/v1/completions", json=slow_body(at)), range(6)))
        assert sorted({reply.status_code for reply in replies}) == [429, 504]
        full_ = next(reply for reply in replies if reply.status_code == 429)
        assert "requests are waiting" in error_of(full_)["message"] and full_.headers["retry-after"]
        assert http.post("/v1/completions", json=known).status_code == 200


def test_a_constrained_stream_sends_only_final_text(writer: Place) -> None:
    wino, holes = {"sampler": "wino"}, {"canvas": ["a", 3, "b", 4, "c"]}
    for form, diffusion in ((FORMS[1], {}), (FORMS[4], wino), (HOLES, holes)):
        asked = {"response_format": form.format, "diffusion": diffusion, "temperature": 1, "seed": 3}
        (choice,) = writer.ask(**asked).json()["choices"]
        stream = writer.ask(**asked, stream=True)
        assert streamed_text(stream) == choice["message"]["content"] and choice["finish_reason"] == "stop"
        assert [data["choices"][0]["finish_reason"] for _, data in events(stream)[:-1]][-1] == "stop"
