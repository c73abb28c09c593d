"""Whatever a request says, it is served or refused: never a fault."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from dllm.parts import MAX_DEPTH, OFFERED_GROUPS, ApiError, Defaults, check_type, object_in, offers, parse_request
from tests.serve.bodies import MESSAGES
from tests.serve.conftest import ASK, CHAT, Place, error_of

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**63 - 1, -(2**63 - 1), 0.5, -0.0, 1e308, 5e-324, "", "x", "\0", "${oc.env:HOME}",
    "../../x", "null", [], [1], ["x"], [[]], [[1], "x"], {}, {"name": "eb"}, {"name": ["eb"]}, {"_target_": "os.mkdir"},
    {"": {}}, "x" * 5000, [0.5] * 100, {"name": "credit", "inner": {"name": "credit"}}, {"type": "text"}, "confidence",
    "<|mdm_mask|>", 10**12, [2**62],
]  # fmt: skip


def anything(rng: random.Random, depth: int = 0) -> Any:
    """A random value of JSON."""
    if depth > 2 or rng.random() < 0.6:
        return deepcopy(rng.choice(ODD))
    if rng.random() < 0.5:
        return [anything(rng, depth + 1) for _ in range(rng.randrange(4))]
    keys = ("name", "inner", "threshold", "steps", "role", "content", "text", "type", "_target_", "canvas", "é")
    return {rng.choice(keys): anything(rng, depth + 1) for _ in range(rng.randrange(4))}


def broken(rng: random.Random) -> dict[str, Any]:
    """A body with a mistake for certain, and others perhaps."""
    mistakes: list[Callable[[dict[str, Any]], Any]] = [
        lambda body: body.update({f"max_toke{rng.randrange(99)}": anything(rng) or 1}),
        lambda body: body.update(messages=rng.choice([5, "x", [5], [{}], {"a": 1}, [[]], [{"role": "user"}]])),
        lambda body: body.update(max_tokens=rng.choice([-3, 0, 10**9, 0.5, "x", [], {}, True])),
        lambda body: body.update(temperature=rng.choice([-0.1, 1e308, "x", [0.5], {}, True])),
        lambda body: body.update(stop=rng.choice([0, {}, [None], ["x", 5], [""], ["x"] * 40])),
        lambda body: body.update(seed=rng.choice([-5, 2**63 - 1, 0.5, "x", [1]])),
        lambda body: body.update(diffusion=rng.choice([5, "x", [1], {"_target_": "os.mkdir"}, {"": 1}])),
        lambda body: body["diffusion"].update(sampler=rng.choice([5, [], {}, "oracle", {"name": 5}, {"name": "x"}])),
        lambda body: body["diffusion"].update(cache={"name": "dual", rng.choice(["_target_", "x", ""]): anything(rng)}),
        lambda body: body["diffusion"].update(canvas=rng.choice([5, {}, [0], [-1], [0.5], [None], ["x"], [[1]]])),
        lambda body: body["diffusion"].update(steps=rng.choice(["x", -1, 10**9, [4], {}, 0.5])),
    ]
    body: dict[str, Any] = {"messages": deepcopy(MESSAGES), "diffusion": {"sampler": "static"}}
    rng.choice(mistakes[:7] if rng.random() < 0.5 else mistakes[7:])(body)
    return body


def test_sixty_bodies_with_a_mistake_are_refused(mini: Defaults) -> None:
    rng = random.Random(18)
    for _ in range(60):
        body = broken(rng)
        with pytest.raises(ApiError) as refused:
            parse_request(object_in(json.dumps(body).encode()), True, mini)
        assert refused.value.status in (400, 404) and refused.value.message.endswith((".", "?", "...")), body


def test_whatever_a_body_says_it_is_served_or_refused(mini: Defaults) -> None:
    """Any value in any field, in both routes: never an error of another kind."""
    rng, served = random.Random(81), 0
    fields = (
        "messages", "prompt", "max_tokens", "temperature", "top_p", "top_k", "n", "seed", "stop", "stream", "logprobs",
        "stream_options", "metadata", "response_format", "diffusion", "suffix", "best_of", "store", "user", "model",
    )  # fmt: skip
    inside = ("sampler", "blocks", "cache", "eos", "threshold", "steps", "block_length", "guidance", "canvas", "trace")
    for _ in range(300):
        is_chat = rng.random() < 0.5
        body: dict[str, Any] = {"messages": MESSAGES} if is_chat else {"prompt": "a"}
        body["diffusion"] = {rng.choice(inside): anything(rng) for _ in range(rng.randrange(3))}
        if rng.random() < 0.5:
            body[rng.choice(fields)] = anything(rng)
        try:
            parse_request(object_in(json.dumps(body).encode()), is_chat, mini)
            served += 1
        except ApiError as refused:
            assert refused.status in (400, 404) and refused.message
    assert 20 < served < 200


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"", "it is not JSON"),
        (b"{", "it is not JSON"),
        (b"\xff{}", "it is not UTF-8 (byte 0)"),
        (b"[]", "it is not an object"),
        (b"null", "it is not an object"),
        (b'"a"', "it is not an object"),
        (b'{"temperature": NaN}', "NaN is not a number of JSON"),
        (b'{"n": Infinity}', "Infinity is not a number"),
        (b'{"n": -Infinity}', "-Infinity is not a number"),
        (b'{"n": 1e999}', "inf is not a number of JSON"),
        (b'{"n": ' + b"9" * 30 + b"}", "more than 64 bits"),
        (b'{"n": ' + b"9" * 5000 + b"}", "it is not JSON"),
        (b'{"messages": "\\ud800"}', "half of a surrogate pair"),
        (b'{"\\udfff": 1}', "half of a surrogate"),
        (b'{"n": 1, "n": 2}', "'n' is in one object twice"),
        (b'{"a": ' + b"[" * 80 + b"]" * 80 + b"}", f"nested deeper than {MAX_DEPTH}"),
        (b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", f"nested deeper than {MAX_DEPTH}"),
    ],
    ids=range(17),
)
def test_a_body_that_is_no_plain_object_is_refused(raw: bytes, sentence: str) -> None:
    with pytest.raises(ApiError) as refused:
        object_in(raw)
    assert refused.value.status == 400 and sentence in refused.value.message
    assert json.dumps(refused.value.to_json()).encode()


def test_a_body_of_another_type_is_refused() -> None:
    for content_type in (None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        with pytest.raises(ApiError, match=r"must be application/json") as refused:
            check_type(content_type)
        assert refused.value.status == 415
    check_type("Application/JSON; charset=utf-8")
    assert object_in('{"a": "é\\ud83d\\ude00"}'.encode()) == {"a": "é\U0001f600"}


SECRET = "a-secret-of-the-environment"


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which nothing must appear, beside a file and a variable that nobody must be shown."""
    monkeypatch.setenv("DLLM_SECRET", SECRET)
    (tmp_path / "secret").write_text(SECRET)
    folder = tmp_path / "made"
    folder.mkdir()
    yield folder
    assert list(folder.iterdir()) == []


def injections(folder: Path) -> list[Any]:
    """What stands where a number, a word or a part is expected."""
    makes, file = {"_target_": "os.mkdir", "path": f"{folder}/a"}, f"{folder.parent}/secret"
    touches = {"_target_": "pathlib.Path.touch", "self": f"{folder}/b"}
    return [
        makes,
        touches,
        [makes],
        {"name": "confidence", **makes},
        {"name": "confidence", "threshold": makes},
        {"name": "credit", "inner": makes},
        {"name": "credit", "inner": {"name": "static", **makes}},
        "${oc.env:DLLM_SECRET}",
        {"name": "static", "score": "${oc.env:DLLM_SECRET}"},
        {"name": "prophet", "region": "anchor", "anchor_text": "${oc.env:DLLM_SECRET}"},
        {"name": "learn2pd", "filter": file},
        {"name": "pc", "frequencies": file},
        {"name": "oracle", "reference": file},
        file,
        "../../secret",
        "{{ 7 * 7 }}",
        "__import__('os')",
        "dllm.parts.samplers.static.Static",
        "tests.serve.own.Mine",
        {"name": "confidence", "_convert_": "all"},
        {"name": "confidence", "_partial_": True},
        {"name": "static", "__class__": "x"},
    ]


FIELDS = ["sampler", "blocks", "cache", "eos", "threshold", "steps", "block_length", "guidance"]


@pytest.mark.parametrize("field", FIELDS)
def test_no_field_of_diffusion_runs_or_reads_what_it_names(place: Place, marks: Path, field: str) -> None:
    for injection in injections(marks):
        reply = place.ask(max_tokens=4, diffusion={field: injection})
        assert reply.status_code == 400, injection
        error = error_of(reply)
        assert SECRET not in reply.text and error["param"].startswith("diffusion"), error


def test_no_other_field_does_either(place: Place, marks: Path) -> None:
    fields = ("model", "messages", "max_tokens", "temperature", "top_k", "n", "seed", "logprobs", "chat_template",
              "response_format", "stream_options", "tools", "suffix")  # fmt: skip
    for field in fields:
        for injection in injections(marks)[:8]:
            reply = place.ask(**{field: injection})
            if field == "stream_options" and reply.status_code == 200:  # a name that nobody knows is passed over
                assert "passed over" in reply.text
            else:
                assert reply.status_code in (400, 404) and error_of(reply)["param"], (field, injection)
            assert SECRET not in reply.text.replace(json.dumps(injection), "")


def test_a_prompt_is_no_template_no_setting_and_no_token(place: Place, marks: Path) -> None:
    """Its words go to the model as they are: as many tokens as the same words without a meaning."""
    for text in ("${oc.env:DLLM_SECRET}", "{{ messages.__class__ }}", "{% raw %}", "<|mdm_mask|>", "<|endoftext|>"):
        said = [{**ASK["messages"][0], "content": f"w5 {text.replace(' ', '')}"}]
        reply = place.ask(messages=said, max_tokens=4)
        assert reply.status_code == 200 and SECRET not in reply.text
        tokens = place.service.defaults.prompts.encode(said)  # type: ignore[arg-type]
        ids = place.service.defaults.model.ids
        assert ids.mask not in tokens and ids.eos not in tokens
        assert reply.json()["usage"]["prompt_tokens"] == len(tokens)


def test_the_chat_template_is_the_checkpoints(place: Place, marks: Path) -> None:
    reply = place.call("POST", CHAT, json={**ASK, "chat_template": "{{ raise_exception('x') }}"})
    assert reply.status_code == 400 and error_of(reply)["code"] == "unknown_field"


SORT = [{"role": "user", "content": 'Sort the list:\n["Kai", "Emma", "Hugo"]'}]  # an answer of seven tokens
PARTS = [(group, name) for group in OFFERED_GROUPS for name in offers(group)]
LENGTH, LEAST = 24, 12
HELD: list[dict[str, Any]] = [
    {"ignore_eos": True},
    {"min_tokens": LENGTH},
    {"min_tokens": LEAST},
    {"min_tokens": LEAST, "temperature": 0.7},
]


@pytest.mark.daily(2)
@pytest.mark.parametrize(("group", "name"), PARTS, ids=[f"{group}-{name}" for group, name in PARTS])
def test_under_every_part_no_answer_ends_early(mini_place: Place, group: str, name: str) -> None:
    """A part is served so, or refused in a sentence for what it is, with or without these fields."""
    for held in HELD:
        body = {"messages": SORT, "max_tokens": LENGTH, "diffusion": {group: name}, **held}
        reply = mini_place.call("POST", CHAT, json=body)
        if reply.status_code == 400:
            assert reply.json()["error"]["param"].startswith(("diffusion", "temperature")), reply.text
            continue
        (choice,), written = reply.json()["choices"], reply.json()["usage"]["completion_tokens"]
        least = held.get("min_tokens", LENGTH)
        assert written >= least and (choice["finish_reason"] == "length") == (written == LENGTH), (held, reply.text)


def test_without_them_the_same_answer_ends_early(mini_place: Place) -> None:
    reply = mini_place.call("POST", CHAT, json={"messages": SORT, "max_tokens": LENGTH}).json()
    assert reply["usage"]["completion_tokens"] == 7 and reply["choices"][0]["finish_reason"] == "stop"


def test_a_form_has_as_many_tokens_or_is_refused(mini_place: Place) -> None:
    form = {"response_format": {"type": "json_object"}, "max_tokens": LENGTH}
    for held, least in (({"min_tokens": LEAST}, LEAST), ({"ignore_eos": True}, LENGTH)):
        reply = mini_place.call("POST", CHAT, json={"messages": SORT, **form, **held}).json()
        assert reply["usage"]["completion_tokens"] >= least
        assert isinstance(json.loads(reply["choices"][0]["message"]["content"]), dict)
    short = {"guided_choice": ["yes", "no"], "max_tokens": LENGTH, "min_tokens": LEAST}
    refused = mini_place.call("POST", CHAT, json={"messages": SORT, **short})
    assert "takes 12 to 24 tokens, and min_tokens=12 lets none end before" in refused.json()["error"]["message"]


def test_a_stop_string_counts_behind_the_least(mini_place: Place) -> None:
    body = {"messages": SORT, "max_tokens": LENGTH, "stop": ["Hugo", "Kai"]}
    assert mini_place.call("POST", CHAT, json=body).json()["usage"]["completion_tokens"] == 3
    for stream in (False, True):
        reply = mini_place.call("POST", CHAT, json={**body, "min_tokens": 4, "stream": stream})
        text = (
            reply.json()["choices"][0]["message"]["content"]
            if not stream
            else "".join(
                json.loads(line[6:])["choices"][0]["delta"].get("content", "")
                for line in reply.text.splitlines()
                if line.startswith("data: {")
            )
        )
        assert text == '["Emma", "Hugo", "'


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_each_chunk_tells_the_usage_so_far(mini_place: Place, path: str) -> None:
    asked: dict[str, Any] = {"messages": SORT} if "chat" in path else {"prompt": "Sort the list"}
    body = {
        **asked,
        "max_tokens": LENGTH,
        "ignore_eos": True,
        "stream": True,
        "n": 2,
        "seed": 3,
        "temperature": 0.5,
        "diffusion": {"sampler": "static"},
    }
    for options in ({"include_usage": True, "continuous_usage_stats": True}, {"continuous_usage_stats": True}, {}):
        reply = mini_place.call("POST", path, json={**body, "stream_options": options})
        chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        told = [chunk.get("usage") for chunk in chunks]
        if not options:
            assert told == [None] * len(told)
            continue
        counts = [usage["completion_tokens"] for usage in told]
        assert counts == sorted(counts) and counts[-1] == 2 * LENGTH and len(set(counts)) > 4
        assert (chunks[-1]["choices"] == []) == ("include_usage" in options)
