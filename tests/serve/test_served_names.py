"""What the model is called, how long an answer is, and a crowd that comes back when it is told to."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from harness import full

from dllm.app.runs.service import SERVED_LENGTH, answer_length, served_names
from dllm.models.bundle import Model
from dllm.serve.jobs import Limits
from tests.serve.bodies import plan_of
from tests.serve.conftest import Place, defaults_of, error_of
from tests.serve.live import live


def test_the_served_name_is_the_word_that_was_typed() -> None:
    config = {"model": {"name": "llada-8b-instruct", "path": "/mnt/weights"}}
    assert served_names(config, ["model", "model.path"], []) == ("llada-8b-instruct",)
    assert served_names(config, ["model.path"], []) == ("weights",)
    assert served_names(config, [], []) == ("llada-8b-instruct",)
    assert served_names(config, ["model"], ["mine", "gpt-4"]) == ("mine", "gpt-4")


def test_aliases_are_the_same_model(served: Model) -> None:
    place = Place(served, defaults=replace(defaults_of(served), name="mine", aliases=("gpt-4",)))
    cards = place.call("GET", "/v1/models").json()["data"]
    assert [card["id"] for card in cards] == ["mine", "gpt-4"]
    replies = [place.ask(model=name).json() for name in ("mine", "gpt-4")]
    assert [reply["model"] for reply in replies] == ["mine", "gpt-4"]
    assert replies[0]["choices"][0]["message"] == replies[1]["choices"][0]["message"]
    assert place.call("GET", "/v1/models/gpt-4").status_code == 200
    missing = place.ask(model="tiny")
    assert missing.status_code == 404 and "'mine' and 'gpt-4' are" in error_of(missing)["message"]
    place.close()


def test_an_answer_takes_what_its_prompt_leaves(served: Model) -> None:
    """Only where nobody said how long it is: a length that was asked for is refused if it does not fit."""
    limit = served.config.max_length
    place = Place(served, defaults=replace(defaults_of(served), gen_length=limit - 4, fits=True))
    prompts = ["w5 " * 9, "w5 w7"]
    for prompt, tokens in zip(prompts, (9, 2), strict=True):
        usage = place.ask(
            "/v1/completions", prompt=prompt, diffusion={"sampler": "confidence", "threshold": 0.0}
        ).json()
        assert usage["usage"]["prompt_tokens"] == tokens
        assert usage["usage"]["completion_tokens"] == min(limit - 4, limit - tokens)
    asked = place.ask("/v1/completions", prompt=prompts[0], max_tokens=limit - 64)
    assert asked.status_code == 200
    full = place.ask("/v1/completions", prompt="w5 " * limit)
    assert full.status_code == 400 and error_of(full)["code"] == "context_length_exceeded"
    place.close()


def test_the_mini_models_answer_in_as_many_tokens_as_they_were_trained_on() -> None:
    plan = plan_of()
    assert answer_length({"gen_length": None}, plan) == 32
    assert answer_length({"gen_length": 32}, plan) == 32
    foreign = replace(plan, prompts=replace(plan.prompts, name="/weights"))
    assert answer_length({"gen_length": None}, foreign) == SERVED_LENGTH == 256
    short = replace(foreign.prompts, config=replace(plan.prompts.config, max_length=128))
    assert answer_length({"gen_length": None}, replace(plan, prompts=short)) == 64


def test_a_crowd_with_the_usual_two_retries_is_answered(served: Model) -> None:
    """150 at once before 8 rows and 64 places, by OpenAI's client as it is; daily 50 before 22."""
    openai = pytest.importorskip("openai", reason="openai is not installed: pip install 'dllm[dev]'")
    body: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "w5 w7"}], "max_tokens": 8}
    count = 150 if full() else 50
    with (
        live(served, limits=Limits(max_waiting=64 if full() else 14)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
        ThreadPoolExecutor(count) as crowd,
    ):
        replies = list(crowd.map(lambda _: client.chat.completions.create(**body), range(count)))
    assert len({reply.choices[0].message.content for reply in replies}) == 1
