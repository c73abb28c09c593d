"""Switches of a chat template: on the command line, in Python, in presets and behind the server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dllm import Decoder, UserError, load
from dllm.compose.parts import choices, composed
from dllm.prompts import ChatPrompt
from tests.app.conftest import Run, rows_of
from tests.serve.bodies import GROUPS
from tests.support.tiny import make_tiny

SWITCHED = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }} {% endfor %}<assistant>"
    "{% if enable_thinking is defined and not enable_thinking %} w7 w8 {% endif %}"
)
FIXED = SWITCHED.partition("{% if enable")[0]


def folder_with(template: str, folder: Path) -> Path:
    make_tiny(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    return folder


@pytest.fixture(scope="module")
def switched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_with(SWITCHED, tmp_path_factory.mktemp("switched") / "switched")


@pytest.mark.parametrize(("words", "thinks"), [
    ([], True), (["model.chat_template_kwargs={enable_thinking: false}"], False),
    (["model.chat_template_kwargs={enable_thinking: true}"], True), (["model.chat_template_kwargs=null"], True),
    (["model=tiny-a2d", "model.architecture=null", "model.attention_block=null"], False),
    (["model=tiny-a2d", "model.architecture=null", "model.attention_block=null",
      "model.chat_template_kwargs.enable_thinking=true"], True),
])  # fmt: skip
def test_the_command_line_switches(words: list[str], thinks: bool, switched: Path, run: Run, tmp_path: Path) -> None:
    out = run(*words, f"model.path={switched}", "prompt=w5", "gen_length=8", "output=runs", "name=one", bare=True)
    assert out.code == 0, out.err
    (row,) = rows_of(tmp_path / "runs" / "one")
    assert (row["prompt_tokens"][-2:] == [7, 8]) != thinks


@pytest.mark.parametrize(("value", "sentence"), [
    ("{enable_thinking: false}", "chat_template_kwargs.enable_thinking is no switch of the chat template of "),
    ("{messages: 1}", "chat_template_kwargs.messages is no switch"),
    ("5", "model.chat_template_kwargs=5 must be a mapping or null"),
])  # fmt: skip
def test_a_switch_that_the_template_does_not_read_is_refused_by_name(
    value: str, sentence: str, run: Run, tmp_path: Path
) -> None:
    fixed = folder_with(FIXED, tmp_path / "fixed")
    out = run(f"model.path={fixed}", f"model.chat_template_kwargs={value}", "prompt=w5", "gen_length=8", bare=True)
    assert out.code == 2 and sentence in out.err and out.err.count("\n") == 1


@pytest.mark.daily(12)
@pytest.mark.parametrize("name", choices("model"))
def test_every_model_can_be_switched(name: str) -> None:
    words = [f"model={name}", "model.chat_template_kwargs={enable_thinking: true}"]
    assert composed(words)["model"]["chat_template_kwargs"] == {"enable_thinking": True}


def test_python_has_the_same(switched: Path, tmp_path: Path) -> None:
    model = load(switched)
    off = Decoder(model, gen_length=8, chat_template_kwargs={"enable_thinking": False})
    on = Decoder(model, gen_length=8)
    assert off.encode("w5") == [*on.encode("w5"), 7, 8]
    assert off.prompts.encode(ChatPrompt([{"role": "user", "content": "w5"}], {"enable_thinking": True})) == on.encode(
        "w5"
    )
    with pytest.raises(
        UserError,
        match=r"enable_thinkin is no switch of the chat template of switched, which reads "
        r"enable_thinking. Drop it.*Did you mean 'enable_thinking'",
    ):
        Decoder(model, gen_length=8, chat_template_kwargs={"enable_thinkin": False})
    with pytest.raises(UserError, match="which reads nothing but the messages"):
        Decoder(load(folder_with(FIXED, tmp_path / "f")), gen_length=8, chat_template_kwargs={"enable_thinking": False})


def test_the_server_begins_with_the_command_line_s_and_a_request_overrides_it(switched: Path) -> None:
    from dllm.serve.request_parts import Defaults
    from tests.serve.conftest import usual

    model, config = load(switched), usual()
    own = Defaults(model, "m", *(config[group] for group in GROUPS), gen_length=8,
                   chat_template_kwargs={"enable_thinking": False})  # fmt: skip
    messages = [{"role": "user", "content": "w5"}]
    assert own.prompts.encode(messages)[-2:] == [7, 8]
    assert own.prompts.encode(ChatPrompt(messages, {"enable_thinking": True}))[-2:] != [7, 8]
