"""What a request says is data: it runs nothing, reads no file, and learns nothing of the process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.conftest import ASK, CHAT, Place, error_of

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
        makes, touches, [makes], {"name": "confidence", **makes}, {"name": "confidence", "threshold": makes},
        {"name": "credit", "inner": makes}, {"name": "credit", "inner": {"name": "static", **makes}},
        "${oc.env:DLLM_SECRET}", {"name": "static", "score": "${oc.env:DLLM_SECRET}"},
        {"name": "prophet", "region": "anchor", "anchor_text": "${oc.env:DLLM_SECRET}"},
        {"name": "learn2pd", "filter": file}, {"name": "pc", "frequencies": file},
        {"name": "oracle", "reference": file},
        file, "../../secret", "{{ 7 * 7 }}", "__import__('os')",
        "dllm.samplers.static.Static", "tests.serve.own.Mine", {"name": "confidence", "_convert_": "all"},
        {"name": "confidence", "_partial_": True}, {"name": "static", "__class__": "x"},
    ]  # fmt: skip


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
