"""The help: everything there is, one line each, from the files themselves."""

from __future__ import annotations

import json
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from harness import full
from omegaconf import OmegaConf

from dllm import Decoder, UserError, load
from dllm.parts import (
    ChatPrompt,
    build_part,
    choice_summary,
    choices,
    comments,
    composed,
    config_groups,
    help_text,
    module_summary,
    named_settings,
    plain_config,
    read_cells,
    setting_values,
    top_groups,
)
from tests.app.conftest import Run, rows_of
from tests.serve.bodies import GROUPS
from tests.support.tiny import make_tiny

TEXT = help_text([], width=110)


@pytest.mark.parametrize("group", top_groups())
def test_every_choice_has_its_line(group: str) -> None:
    block = TEXT.split(f"\n  {group}=\n")[1].split("\n\n")[0].splitlines()
    for name in choices(group):
        (line,) = [line for line in block if line[4:].lstrip("* ").split(" ")[0] == name]
        words = choice_summary(group, name)
        assert len(words) > 8, f"{group}={name} has no comment on top of its file and no docstring"
        assert "()" not in words and "arXiv" not in words
        assert words.split()[0] in line


def test_no_line_is_wider_than_the_terminal() -> None:
    for width in (80, 100):
        lines = help_text(["sampler=credit"], width).split("To choose from")[1].splitlines()
        assert [line for line in lines if len(line) > width and "model.prompt" not in line] == []


def test_help_shows_the_options_of_what_is_chosen() -> None:
    text = help_text(["sampler=localleap", "cache=elastic", "gen_length=77", "--help"], 100)
    assert "    * localleap" in text and "      confidence " in text and "    * elastic" in text
    assert "    * whole" in text, "elastic brings its own blocks"
    assert "  gen_length=77" in text and "  sampler.radius=" in text and "  cache.gamma=" in text
    assert "sampler.threshold=0.9" in TEXT


def test_the_papers_numbers_are_left_out_and_their_names_kept() -> None:
    words = "Commit every position whose confidence reaches a threshold (Fast-dLLM)"
    assert module_summary("dllm.parts.samplers.confidence") == words
    assert module_summary("dllm.app.commands.check") == "Look into a checkpoint without loading it"


def test_comments_belong_to_their_keys() -> None:
    assert comments("a: 1   # one\nb: '#'\nc:\n  d: null # two, three\n") == {"a": "one", "d": "two, three"}


def test_a_choice_that_builds_on_another_has_its_comments_too() -> None:
    layers, head = [
        line for line in help_text(["model=mini-dream"], 110).splitlines() if line.startswith("  model.quantize")
    ]
    assert layers.endswith("int8, int4 or float8: weights in fewer bits")
    assert head.endswith("int8 or int4: embedding and head, too, on a CPU")


def test_inner_groups_are_no_choices_of_their_own() -> None:
    assert "sampler/inner" in config_groups() and "sampler/inner" not in top_groups()


def every_part() -> list[tuple[str, str, dict[str, Any]]]:
    """Group, name and configuration of every part: each composition chooses one from every group."""
    groups, found = ("sampler", "blocks", "cache", "eos", "engine"), []
    for names in zip_longest(*map(choices, groups)):
        chosen = [(group, name) for group, name in zip(groups, names, strict=True) if name is not None]
        config = composed([f"{group}={name}" for group, name in chosen])
        found += [(group, name, plain_config(config[group])) for group, name in chosen]
    return found


@pytest.mark.program
def test_help_shows_the_options_that_building_takes() -> None:
    """Help reads YAML files alone, and building the class: neither may have an option that the other lacks. Where a
    class has several names, each file sets what differs, and what is shown together is what the class takes."""
    parts = every_part()
    assert len(parts) == sum(len(choices(group)) for group in ("sampler", "blocks", "cache", "eos", "engine"))
    shown: dict[str, set[str]] = {}
    taken: dict[str, set[str]] = {}
    for group, _, config in parts:
        with pytest.raises(UserError, match="no such option; it has") as refused:
            build_part(group, {**config, "no_such_option": 1})
        target, listed = config["_target_"], str(refused.value).partition("it has ")[2].rstrip(".").split(", ")
        taken[target] = set(listed) - {"none"}
        shown.setdefault(target, set()).update(
            key.split(".")[1] for key in setting_values(OmegaConf.create({group: config}))
        )
    assert shown == taken


@pytest.mark.skipif(not full(), reason="6 s; runs under DLLM_LAWS=all")
def test_copy_stays_and_shuffle_falls(run: Run) -> None:
    tasks = "task.tasks=[copy,reverse,shuffle,replace_random]"
    sweep = ["-m", "task=parallelbench", tasks, "task.count=8", "sampler=static", "sampler.per_step=1,8"]
    assert run(*sweep, "blocks=whole", "eos=none", "batch_size=8", "name=s", bare=True).code == 0
    careful, reckless = sorted(named_settings(read_cells(Path("runs/s"))[0]), key=lambda one: one.measures.tpf)
    score = {name.rpartition("/")[2]: value for name, value in reckless.scores.items()}
    assert fmean(careful.scores.values()) > 80
    assert min(score["copy"], score["reverse"]) >= 62  # of 8 items: 88 and 90 of 100, says the card
    assert score["shuffle"] < 30 and score["replace_random"] < 50


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
    (["model=tiny-a2d", "model.expects=null", "model.attention_block=null"], False),
    (["model=tiny-a2d", "model.expects=null", "model.attention_block=null",
      "model.chat_template_kwargs.enable_thinking=true"], True),
])  # fmt: skip
def test_the_command_line_switches(words: list[str], thinks: bool, switched: Path, run: Run, tmp_path: Path) -> None:
    out = run(*words, f"model.path={switched}", "prompt=w5", "gen_length=8", "output=runs", "name=one", bare=True)
    assert out.code == 0, out.err
    (row,) = rows_of(tmp_path / "runs" / "one")
    assert (row["prompt_tokens"][-2:] == [7, 8]) != thinks


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("{enable_thinking: false}", "chat_template_kwargs.enable_thinking is not a switch of the chat template of "),
        ("{messages: 1}", "chat_template_kwargs.messages is not a switch"),
        ("5", "model.chat_template_kwargs=5 must be a mapping or null"),
    ],
)
def test_a_switch_that_the_template_does_not_read_is_refused_by_name(
    value: str, sentence: str, run: Run, tmp_path: Path
) -> None:
    fixed = folder_with(FIXED, tmp_path / "fixed")
    out = run(f"model.path={fixed}", f"model.chat_template_kwargs={value}", "prompt=w5", "gen_length=8", bare=True)
    assert out.code == 2 and sentence in out.err and out.err.count("\n") == 1


@pytest.mark.daily(12)
@pytest.mark.parametrize("name", sorted({*choices("model")} - {"endpoint"}))
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
        match=r"enable_thinkin is not a switch of the chat template of switched, which reads "
        r"enable_thinking. Drop it.*Did you mean 'enable_thinking'",
    ):
        Decoder(model, gen_length=8, chat_template_kwargs={"enable_thinkin": False})
    with pytest.raises(UserError, match="which reads nothing but the messages"):
        Decoder(load(folder_with(FIXED, tmp_path / "f")), gen_length=8, chat_template_kwargs={"enable_thinking": False})


def test_the_server_begins_with_the_command_line_s_and_a_request_overrides_it(switched: Path) -> None:
    from dllm.parts import Defaults
    from tests.serve.conftest import usual

    model, config = load(switched), usual()
    own = Defaults(
        model, "m", *(config[group] for group in GROUPS), gen_length=8, chat_template_kwargs={"enable_thinking": False}
    )
    messages = [{"role": "user", "content": "w5"}]
    assert own.prompts.encode(messages)[-2:] == [7, 8]
    assert own.prompts.encode(ChatPrompt(messages, {"enable_thinking": True}))[-2:] != [7, 8]
