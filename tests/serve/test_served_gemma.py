"""A model of noise with a tokenizer and a chat template of Gemma's form, behind the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dllm import Decoder, load, part
from dllm.parts import Model
from tests.serve.conftest import Place
from tests.serve.live import Live, live_noise
from tests.support.family_folders import FAMILIES, FULL, make_family
from tests.support.harness import full
from tests.support.tiny import BEGIN_TURN, GEMMA_ENDS, make_gemma
from tests.view.browser import chromium

ASKED = [{"role": "system", "content": "be good"}, {"role": "user", "content": " a sum, please "}]
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(make_gemma(tmp_path_factory.mktemp("gemma") / "dg_dev"), dtype="float32")


@pytest.fixture(scope="module")
def server(gemma: Model) -> Iterator[Live]:
    with live_noise(gemma, 4, 24) as started:
        yield started


def choice_of(server: Live, **body: Any) -> dict[str, Any]:
    with server.client() as client:
        reply = client.post("/v1/chat/completions", json={"messages": ASKED, **body})
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()["choices"][0]
    return found


def test_turns_are_special_tokens_and_the_answer_ends_with_the_first_end_of_any_kind(
    gemma: Model, server: Live
) -> None:
    tokenizer = gemma.tokenizer
    assert tokenizer is not None and gemma.ids.ends == GEMMA_ENDS
    prompt, ended = tokenizer.encode_chat(ASKED), set[int]()
    assert prompt[:2] == [2, BEGIN_TURN]
    assert prompt.count(BEGIN_TURN) == 3 and prompt.count(GEMMA_ENDS[1]) == 2
    whole = Decoder(
        gemma,
        part("sampler", "renoise", steps=4),
        part("blocks", "fixed", block_length=8),
        "finished",
        "none",
        gen_length=24,
    )
    for seed in range(12 if full() else 3):
        *_, canvas = whole(prompt, seed=seed, trace=True)[0].traced().canvases()
        answer = list(canvas[len(prompt) :])
        first = next((at for at, token in enumerate(answer) if token in GEMMA_ENDS), None)
        ended |= set(answer[first : first + 1] if first is not None else [])
        choice = choice_of(server, seed=seed)
        assert choice["message"]["content"] == tokenizer.decode(answer[:first])
        assert choice["finish_reason"] == ("length" if first is None else "stop")
    assert len(ended) > 1


def test_a_schema_and_a_forced_call_work_by_themselves(server: Live) -> None:
    """A canvas is decided at once: what is asked of an answer is asked of its best filling."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    for seed in range(3 if full() else 1):
        content = choice_of(server, response_format=form, seed=seed)["message"]["content"]
        assert json.loads(content)["a"] in (True, False)
    choice = choice_of(server, tools=[TOOL], tool_choice="required", max_tokens=64)
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls" and isinstance(json.loads(call["function"]["arguments"])["a"], int)
    picked = choice_of(server, structured_outputs={"choice": ["yes", "no"]})
    assert picked["message"]["content"] in ("yes", "no")


@pytest.mark.skipif(not full(), reason="5 seconds: under DLLM_LAWS=all")
def test_the_playground_shows_noise_in_boxes_of_the_final_text(server: Live) -> None:
    with chromium() as browser:
        page, problems = browser.new_page(viewport={"width": 1200, "height": 900}), list[str]()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(server.url)
        page.wait_for_selector("select[name=sampler]")
        page.click("#run")
        page.wait_for_function("() => document.querySelector('.status')?.textContent.startsWith('done')")
        assert page.locator(".t.noise").count() == 1 and "undecided: noise" in page.inner_text(".legend")
        assert (
            page.inner_text(".reply")
            == choice_of(server, messages=[{"role": "user", "content": page.input_value("#prompt")}])["message"][
                "content"
            ]
        )
        page.focus("#step")
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        noise = page.locator(".text .noise")
        assert noise.count() == 24 and page.locator(".text .mask, .text .guess").count() == 0
        assert any("likeliest" in (box.get_attribute("title") or "") for box in noise.all())
        clipped = "boxes => boxes.every(box => getComputedStyle(box).overflowX === 'clip')"
        assert noise.evaluate_all(clipped), "a long word of noise lies over its neighbours"
        assert problems == []


SERVED = FAMILIES if full() else ("a2d", "fastdllm_v2", "nemotron")


@pytest.mark.parametrize("name", SERVED)
def test_a_family_is_served(name: str, tmp_path: Path) -> None:
    place = Place(load(make_family(name, tmp_path / name)))
    try:
        for sampler in ("confidence", "static", "eb"):
            answers = []
            for cache in ("none", "dual" if name in FULL else "finished"):
                chosen = {"sampler": sampler, "cache": cache, "block_length": 8}
                reply = place.ask(diffusion=chosen, max_tokens=16)
                assert reply.status_code == 200, reply.text
                answers.append(reply.json()["choices"][0]["message"]["content"])
            assert name in FULL or answers[0] == answers[1]
    finally:
        place.close()


def test_linear_speculation_is_served(tmp_path: Path) -> None:
    """Asked for by a request, it gives one text whatever cuts its windows, and refuses chance."""
    place = Place(load(make_family("nemotron", tmp_path / "nemotron")))
    try:
        chosen = {"sampler": "linear_spec", "cache": "linear_spec", "blocks": "sliding"}
        reply = place.ask(diffusion=chosen, max_tokens=12)
        assert reply.status_code == 200, reply.text
        again = place.ask(diffusion={**chosen, "blocks": "fixed", "block_length": 4}, max_tokens=12)
        assert again.json()["choices"][0]["message"] == reply.json()["choices"][0]["message"]
        hot = place.ask(diffusion=chosen, max_tokens=12, temperature=0.7)
        assert hot.status_code == 400 and "must not be random" in hot.text
    finally:
        place.close()
