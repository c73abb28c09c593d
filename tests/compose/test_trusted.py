"""What files of others may name: the classes that ship, and what the user's own command line names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dllm.parts import (
    BASE_CLASSES,
    VARIABLE,
    UserError,
    choices,
    composed,
    describe_arguments,
    plain_config,
    refuse_command,
    refuse_strangers,
    shipped_commands,
    with_trust,
)


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(VARIABLE, "")
    yield


@pytest.mark.parametrize(
    "config",
    [
        {"sampler": {"_target_": "evil.Mine"}},
        {"sampler": {"inner": {"_target_": "os.system"}}},
        {"a": [[{"b": [{"_target_": "pandas.read_pickle"}]}]]},
        {"_target_": "dllm.__main__.x"},
        {"_target_": None},
        {"eos": {"_target_": "dllm.parts.samplers.static.Static"}},
        {"_target_": ["dllm.parts.samplers.eb.EB"]},
        {"engine": {"_target_": "dllm.app.engines"}},
        {"_target_": "__main__.Mine"},
    ],
    ids=str,
)
def test_a_stranger_is_named_wherever_it_stands(config: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"the file names \S*\._target_="):
        refuse_strangers("the file", config)


@pytest.mark.daily(4)
@pytest.mark.parametrize("words", [f"{group}={name}" for group in BASE_CLASSES for name in choices(group)])
def test_every_choice_that_ships_is_no_stranger(words: str) -> None:
    refuse_strangers("the file", plain_config(composed([words])))


def test_a_family_of_a_stranger_is_no_class_and_named() -> None:
    with pytest.raises(UserError, match="names model.family='evil.FAMILY', which is not part of dllm"):
        refuse_strangers("the file", {"model": {"family": "evil.FAMILY"}})
    with pytest.raises(UserError, match="names model.family='evil.FAMILY'"):
        describe_arguments({"family": "evil.FAMILY"})
    with_trust(["model.family=evil.FAMILY"])
    refuse_strangers("the file", {"model": {"family": "evil.FAMILY"}})
    refuse_strangers("the file", {"model": {"family": "DreamModel"}})


def test_the_command_line_is_trusted_by_name() -> None:
    words = ["sampler=my.samplers.Mine", "+task.packages=[one, 'two']", "cache._target_=own.Cache", "seed=1"]
    assert with_trust(words) == [words[0], *words[2:]]
    for target in ("my.samplers.Mine", "one.A", "two.b.C", "own.Cache"):
        refuse_strangers("the file", {"_target_": target})
    for target in ("my.samplers.Other", "my.Mine", "own.Other", "three.A"):
        with pytest.raises(UserError, match=rf"add task.packages=\[{target.partition('.')[0]}\]"):
            refuse_strangers("the file", {"_target_": target})
    assert with_trust(["task=replay", "task.packages=[a]"]) == ["task=replay", "task.packages=[a]"]


@pytest.mark.parametrize("value", ["[a", "{a: b}", "[[a]]", "a.b", "[1]", "a b"])
def test_a_package_is_a_name(value: str) -> None:
    with pytest.raises(UserError, match=r"must be a list of packages"):
        with_trust([f"task.packages={value}"])


@pytest.mark.parametrize("name", ["hydra.utils.instantiate", "timeit.main", "dllm.app.commands.serve", None, ["x"], {}])
def test_a_task_runs_a_command_that_ships(name: Any) -> None:
    with pytest.raises(UserError, match="is no command of dllm's"):
        refuse_command(name)
    for known in shipped_commands():
        refuse_command(known)
    with_trust(["task.run=os.system", "task.packages=[mine]"])
    refuse_command("mine.commands.run")
    with pytest.raises(UserError, match="is no command of dllm's"):  # a class may be typed, and no function
        refuse_command("os.system")
