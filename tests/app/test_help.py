"""The help: everything there is, one line each, from the files themselves."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import pytest
from omegaconf import OmegaConf

from dllm.app.command_line.brought import setting_values
from dllm.app.command_line.help import help_text, top_groups
from dllm.compose.choice_files import choice_summary, comments, module_summary
from dllm.compose.parts import build_part, choices, composed, config_groups, plain_config
from dllm.errors import UserError

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
    assert module_summary("dllm.samplers.confidence") == words
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
