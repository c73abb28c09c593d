"""POST /v1/decisions: OpenAI's form, vLLM's fields, refusals, and reads beside decodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dllm import Decoder
from dllm.parts import Defaults, Limits, Model
from dllm.scoring.decisions import Choice
from tests.serve.live import Live, live

STATE = 'Sort the list:\n["Kai", "Emma", "Hugo"]'
NAMES = [{"value": name} for name in ("Kai", "Emma", "Hugo")]
MERGING = [{"value": "mma"}, {"value": "x"}]  # behind an E
FIRST = {"type": "choice", "name": "first", "choices": NAMES}
TEMPLATE = {"template": '["{slot}", "'}
ROW = "Rows as JSON:\nBush, 72, Cairo\nIvan, 92, Lima"


@pytest.fixture(scope="module")
def server(mini_model: Model, mini: Defaults) -> Iterator[Live]:
    with live(mini_model, defaults=mini) as made:
        yield made


def ask(server: Live, **body: Any) -> httpx.Response:
    with server.client() as client:
        return client.post("/v1/decisions", json={"input": STATE, "questions": [FIRST], "diffusion": TEMPLATE, **body})


def test_the_answer_is_pythons_in_openais_form(server: Live, mini_model: Model) -> None:
    told = ask(server).json()
    truth = Decoder(mini_model).decide(STATE, first=Choice(["Kai", "Emma", "Hugo"], template='["{slot}", "'))
    (answer,) = told["answers"]
    assert answer["type"] == "choice" and answer["name"] == "first" and answer["choice"] == "Emma"
    found = {one["value"]: one["probability"] for one in answer["probabilities"]}
    assert found == pytest.approx(truth["first"].probabilities, abs=1e-9)
    assert answer["confidence"] == pytest.approx(truth["first"].confidence)
    assert told["usage"]["output_tokens"] == 1 and told["usage"]["input_tokens"] == truth.input_tokens
    assert told["diffusion"]["forwards"] == 1 and told["model"] == "mini"
    assert not answer["diffusion"]["calibrated"] and "refusal" not in answer


PACKAGE = "The package arrived with a broken screen."
ABOUT_IT = [
    {"type": "predicate", "name": "damaged", "instructions": "Does the customer report a damaged item?"},
    {
        "type": "choice",
        "name": "department",
        "instructions": "Which department should handle this complaint?",
        "choices": [{"value": "returns"}, {"value": "billing"}],
    },
    {
        "type": "score",
        "instructions": "How severe is the damage?",
        "levels": [{"label": "cosmetic"}, {"label": "broken"}],
    },
]


def test_openais_client_reads_the_answers(server: Live) -> None:
    """By its own method and by its post, with the example of vLLM's documentation. The strict form of the reply is that
    of OpenAI's schema, in which a question without a name has null."""
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    if not hasattr(client, "decisions"):
        pytest.skip("OpenAI's client before 3.26 has no decisions: pip install -U openai")
    from openai.types.decision import Decision

    found = client.decisions.create(model="mini", input=PACKAGE, questions=ABOUT_IT)
    damaged, department, severity = found.answers
    assert (damaged.name, department.name, severity.name) == ("damaged", "department", None)
    assert 0 < damaged.probability < 1 and department.choice in ("returns", "billing")
    assert [one.value for one in severity.probabilities] == [0, 1]
    assert severity.score == pytest.approx(severity.probabilities[1].probability)
    Decision.model_validate(found.model_dump(), strict=True)
    parts = [{"role": "user", "content": [{"type": "input_text", "text": PACKAGE}], "type": "message"}]
    body = {"model": "mini", "input": parts, "questions": ABOUT_IT}
    told = client.post("/decisions", body=body, cast_to=object)
    assert told["answers"] == found.model_dump()["answers"]
    with pytest.raises(openai.BadRequestError, match="1 to 400 questions"):
        client.decisions.create(model="mini", input=PACKAGE, questions=[])


@pytest.mark.parametrize(
    "body",
    [
        {"input": [{"role": "developer", "content": "Be strict."}, {"role": "user", "content": "Hello."}]},
        {
            "input": [
                {"role": "user", "content": "Hello."},
                {
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "No."}, {"type": "refusal", "refusal": "Not you."}],
                    "phase": "final_answer",
                },
            ]
        },
        {"input": [{"role": "user", "content": [{"type": "input_json", "data": {"city": "K\u00f6ln"}}]}]},
        {"questions": [{"type": "predicate", "instructions": [{"type": "input_text", "text": "Is it a list?"}]}]},
        {"prompt_cache_key": "a", "prompt_cache_options": {"mode": "implicit"}, "safety_identifier": "b"},
        {"questions": [{"type": "predicate", "name": "q2"}, {"type": "predicate", "instructions": "Is it?"}]},
        {"questions": [{"type": "choice", "instructions": "Is it?", "choices": [{"value": True}, {"value": False}]}]},
    ],
)
def test_openais_other_forms_are_taken(server: Live, body: dict[str, Any]) -> None:
    told = ask(server, diffusion={}, **body)
    assert told.status_code == 200, told.text
    details = told.json()["usage"]["input_tokens_details"], told.json()["usage"]["output_tokens_details"]
    assert details == ({"cached_tokens": 0, "cache_write_tokens": 0}, {"reasoning_tokens": 0})


def test_vllms_fields_are_taken(server: Live) -> None:
    passing = {"joint": False, "cache_salt": "x", "safety_identifier": "y"}
    assert len(ask(server, **passing).json()["answers"]) == 1
    refused = ask(server, joint=True)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "joint"
    letters = ask(server, diffusion={"labels": "letters"}).json()
    assert letters["diffusion"]["rows"] == 1 and {one["value"] for one in letters["answers"][0]["probabilities"]} == {
        "Kai",
        "Emma",
        "Hugo",
    }


def test_too_many_canvases_are_refused(mini_model: Model, mini: Defaults) -> None:
    with live(mini_model, defaults=mini, limits=Limits(max_rows=1)) as small:
        letters = "abcdefghijklmnopqrstuvwxyz"
        spelt = [{"value": f"{a}{b}{a}{b}{a}"} for a in letters for b in "xyz"][:60]
        reply = ask(small, questions=[{**FIRST, "choices": spelt}])
        assert reply.status_code == 413 and "canvases" in reply.json()["error"]["message"]


@pytest.mark.parametrize("exact", [False, True])
def test_an_answer_under_load_is_the_answer_alone(mini_model: Model, mini: Defaults, exact: bool) -> None:
    """Six clients ask among running decodes; in exact mode every number is the same to the last bit."""
    spelt = {"type": "choice", "name": "spelt", "choices": [{"value": v} for v in ("Kai", "Emma", "Wilhelmina")]}
    bodies = [
        {"questions": [FIRST, spelt][: 1 + number % 2], "input": STATE + " " * (number % 3)} for number in range(6)
    ]
    with live(mini_model, defaults=mini, limits=Limits(exact=exact)) as busy:
        alone = [ask(busy, **body).json()["answers"] for body in bodies]
        decodes = [threading.Thread(target=decode, args=(busy,)) for _ in range(3)]
        found: list[Any] = [None] * len(bodies)

        def client(number: int) -> None:
            found[number] = ask(busy, **bodies[number]).json()["answers"]

        clients = [threading.Thread(target=client, args=(number,)) for number in range(len(bodies))]
        for thread in [*decodes, *clients]:
            thread.start()
        for thread in [*decodes, *clients]:
            thread.join(60)
        if exact:
            assert found == alone
        for one, other in zip(found, alone, strict=True):
            for answer, truth in zip(one, other, strict=True):
                assert answer["diffusion"]["logprobs"] == pytest.approx(truth["diffusion"]["logprobs"], abs=1e-4)
        page = httpx.get(f"{busy.url}/metrics").text
        assert "dllm_reads_total 12.0" in page and 'route="decisions"' in page


def decode(server: Live) -> None:
    with server.client() as client:
        ask = [{"role": "user", "content": "Latin square:\nA,B,C,D"}]
        reply = client.post("/v1/chat/completions", json={"messages": ask, "max_tokens": 64})
        assert reply.status_code == 200


def test_a_read_whose_time_is_up_says_so(mini_model: Model, mini: Defaults) -> None:
    with live(mini_model, defaults=mini, timeout=0.3, limits=Limits(max_prefill_tokens=64)) as slow:
        turn = slow.scheduler.reads.turn

        def later() -> Any:
            time.sleep(0.5)
            return turn()

        slow.scheduler.reads.turn = later
        many = [{**FIRST, "name": str(n), "choices": [{"value": f"Wilhelmina{n}{v}"} for v in "ab"]} for n in range(12)]
        reply = ask(slow, questions=many)
        assert reply.status_code == 504 and reply.json()["error"]["code"] == "timeout"
