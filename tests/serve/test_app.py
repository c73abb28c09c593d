"""The server's replies: in OpenAI's form, the same in one piece and in many."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from harness import full

from dllm import Decoder
from dllm.parts import SERVED_LENGTH, Limits, Model, Sampling, answer_length, parse_request, served_names
from tests.serve.bodies import plan_of
from tests.serve.conftest import CHAT, HOT, Place, defaults_of, error_of, events, streamed_text
from tests.serve.live import live


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {}),
        (CHAT, {**HOT, "n": 3}),
        ("/v1/completions", HOT),
        ("/v1/completions", {**HOT, "diffusion": {"sampler": "static"}}),
    ],
    ids=str,
)
def test_the_pieces_of_a_stream_make_up_the_reply(place: Place, path: str, body: dict[str, Any]) -> None:
    whole = place.ask(path, **body).json()
    stream = place.ask(path, stream=True, stream_options={"include_usage": True}, **body)
    found = events(stream)
    assert found[-1] == (None, "[DONE]")
    chunks = [data for _, data in found[:-1]]
    assert len({(chunk["id"], chunk["object"], chunk["model"]) for chunk in chunks}) == 1
    for choice in whole["choices"]:
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert streamed_text(stream, choice["index"]) == text
        own = [one for chunk in chunks for one in chunk["choices"] if one["index"] == choice["index"]]
        (last,) = [one for one in own if one["finish_reason"]]
        assert last["finish_reason"] == choice["finish_reason"] in ("stop", "length")
        assert last["diffusion"]["nfe"] == choice["diffusion"]["nfe"] > 0
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert whole["usage"]["total_tokens"] == whole["usage"]["prompt_tokens"] + whole["usage"]["completion_tokens"]
    assert len(whole["choices"]) == body.get("n", 1)


def test_several_prompts_get_what_each_gets_alone(place: Place) -> None:
    body = {**HOT, "n": 2, "max_tokens": 8}
    prompts = ["w5 w7", [3, 4], "w9 w8 w1"]
    whole = place.ask("/v1/completions", prompt=prompts, **body).json()
    alone = [place.ask("/v1/completions", prompt=prompt, **body).json() for prompt in prompts]
    assert [choice["index"] for choice in whole["choices"]] == list(range(6))
    told = [choice["text"] for one in alone for choice in one["choices"]]
    assert [choice["text"] for choice in whole["choices"]] == told and len(set(told)) > 3
    assert whole["usage"] == {name: sum(one["usage"][name] for one in alone) for name in whole["usage"]}
    stream = place.ask("/v1/completions", prompt=prompts, stream=True, stream_options={"include_usage": True}, **body)
    assert [streamed_text(stream, number) for number in range(6)] == told
    assert events(stream)[-2][1]["usage"] == whole["usage"]


def test_a_chat_names_who_speaks_first(place: Place) -> None:
    first = events(place.ask(stream=True, n=2))[:2]
    deltas = [(data["choices"][0]["index"], data["choices"][0]["delta"]) for _, data in first]
    assert deltas == [(0, {"role": "assistant", "content": ""}), (1, {"role": "assistant", "content": ""})]


def test_snapshots_are_chunks_without_choices(place: Place) -> None:
    diffusion = {"snapshots": True, "sampler": "static"}
    plain = events(place.ask(stream=True, diffusion={"sampler": "static"}, **HOT))
    found = events(place.ask(stream=True, diffusion=diffusion, **HOT))
    shots = [data for name, data in found if name == "diffusion.snapshot"]
    assert shots and {data["object"] for data in shots} == {"chat.completion.chunk"}
    assert all(data["choices"] == [] for data in shots) and not any(name for name, _ in plain)
    last = shots[-1]["diffusion"]
    assert None not in last["words"] and len(last["words"]) == 16 and last["guesses"] == {}
    turns = [data["diffusion"]["turn"] for data in shots]
    assert turns == sorted(set(turns)), "a late reader skips"
    early = shots[0]["diffusion"]
    hidden = [at for at, word in enumerate(early["words"]) if word is None]
    assert hidden and {int(at) for at in early["guesses"]} <= set(hidden)


def stop_word(place: Place) -> str:
    words = place.ask("/v1/completions", **HOT).json()["choices"][0]["text"]
    return str(words[len(words) // 2 :][:3])


@pytest.mark.parametrize("more", [{}, {"logprobs": True}, {"diffusion": {"trace": True}}], ids=str)
def test_a_stop_string_ends_the_reply_before_it(place: Place, more: dict[str, Any]) -> None:
    word = stop_word(place)
    free = place.ask("/v1/completions", **HOT, **more).json()["choices"][0]
    whole = place.ask("/v1/completions", stop=[word], **HOT, **more).json()
    (choice,) = whole["choices"]
    assert choice["text"] == free["text"].partition(word)[0] and choice["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] < 16
    assert streamed_text(place.ask("/v1/completions", stream=True, stop=[word], **HOT, **more)) == choice["text"]
    assert not place.scheduler.busy or place.scheduler.running  # an aborted row leaves


def test_logprobs_belong_to_the_tokens_of_the_text(place: Place) -> None:
    (chat,) = place.ask(logprobs=True).json()["choices"]
    entries = chat["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == chat["message"]["content"]
    assert entries[0]["logprob"] == -0.5 and {entry["logprob"] for entry in entries[1:]} <= {-9999.0}
    (text,) = place.ask("/v1/completions", logprobs=0).json()["choices"]
    found = text["logprobs"]
    assert "".join(found["tokens"]) == text["text"] and found["text_offset"][0] == 0
    assert [text["text"][at:] != "" for at in found["text_offset"]] == [True] * len(found["tokens"])
    last = [data for _, data in events(place.ask(logprobs=True, stream=True)) if data != "[DONE]"][-1]
    assert last["choices"][0]["logprobs"]["content"] == entries


def test_an_infilling_streams_its_text(place: Place) -> None:
    canvas = {"canvas": ["w5 w6", 4, "w7", 2, "w8"]}
    for prompt in ("w5 w7", None):
        whole = place.ask("/v1/completions", diffusion=canvas, prompt=prompt).json()
        text = whole["choices"][0]["text"]
        assert text.startswith("w5w6") and text.endswith("w8") and whole["usage"]["completion_tokens"] == 6
        assert streamed_text(place.ask("/v1/completions", diffusion=canvas, prompt=prompt, stream=True)) == text


@pytest.mark.parametrize("prompt", [None, "w5 w7"])
def test_an_end_of_text_in_a_gap_does_not_end_what_is_given_behind_it(served: Model, prompt: str | None) -> None:
    """The reply is the offline answer, and its text is the whole canvas without the ends of text."""
    free = Place(served, defaults=replace(defaults_of(served), sampling=Sampling()))
    body = {"diffusion": {"canvas": ["w5 w6", 4, "w7", 2, "w8"]}, "prompt": prompt, "temperature": 3}
    (job,) = parse_request(body, False, free.service.defaults).jobs
    offline = Decoder(served, temperature=3.0, batch_size=60)([job.request] * 60)
    end, head = served.ids.eos, [] if prompt else [5, 6]
    seeds = [result.seed for result in offline if end in result.canvas][:3]
    assert len(seeds) == 3, "an end of text stands in a gap"
    for seed in seeds:
        (choice,) = free.ask("/v1/completions", **body, seed=seed).json()["choices"]
        whole = [token for token in [*head, *offline[seed].canvas] if token != end]
        assert choice["text"] == served.tokenizer.decode(whole) == offline[seed].text  # type: ignore[union-attr]
        assert choice["text"].startswith("w5w6") and choice["text"].endswith("w8")
        assert streamed_text(free.ask("/v1/completions", stream=True, **body, seed=seed)) == choice["text"]
    free.close()


def test_models_parts_and_health(place: Place) -> None:
    (model,) = place.call("GET", "/v1/models").json()["data"]
    assert (model["id"], model["object"]) == ("tiny", "model")
    assert model["max_model_len"] == place.service.defaults.model.config.max_length
    assert place.call("GET", "/v1/models/tiny").json() == model
    assert "sampler" in place.call("GET", "/v1/parts").json()
    assert place.call("GET", "/health").json() == {"status": "ready"}


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
    openai = pytest.importorskip("openai", reason="openai is not installed: pip install -e '.[dev]'")
    body: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "w5 w7"}], "max_tokens": 8}
    count = 150 if full() else 50
    with (
        live(served, limits=Limits(max_waiting=64 if full() else 14)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
        ThreadPoolExecutor(count) as crowd,
    ):
        replies = list(crowd.map(lambda _: client.chat.completions.create(**body), range(count)))
    assert len({reply.choices[0].message.content for reply in replies}) == 1


@pytest.mark.parametrize("stop", [[], ["w1"]], ids=str)
def test_a_reply_tells_nothing_of_what_its_rows_shared(place: Place, stop: list[str]) -> None:
    """Whether two rows share a forward depends on what else is decoded; these numbers do not, but for the times."""
    for choice in place.ask(n=2, stop=stop).json()["choices"]:
        assert set(choice["diffusion"]) == {"nfe", "tpf", "seed", "waited", "seconds", "turns"}
