"""Builds the task that the ``task`` section of a resolved configuration describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from dllm.common.errors import UserError, nearest
from dllm.compose.config_choices import options_of_choices
from dllm.compose.parts import build_part
from dllm.tasks.base import Task

FOR_THE_COMMAND_LINE = ("name", "run")  # all others are arguments of the task's class


def task_of(config: Mapping[str, Any]) -> Task:
    """The task of ``conf/task/NAME.yaml`` and what the user set in it. Reads data, never weights.

    Raises UserError when the choice is not a set of questions, an argument is wrong, or its data cannot be read.
    """
    if "_target_" not in config:
        name = str(config.get("name"))
        own = "Questions of your own are task=jsonl task.path=FILE" + (
            "; a prompt without an answer is decoded without -m." if name == "prompt" else "."
        )
        raise UserError(f"task={name} holds no questions to score. Choose one of {', '.join(measurable())}. {own}")
    arguments = {key: value for key, value in config.items() if key not in FOR_THE_COMMAND_LINE}
    return cast(Task, build_part("task", arguments, per_request=False))


def measurable() -> list[str]:
    """Names of the tasks that have questions."""
    return [name for name, options in options_of_choices("task").items() if "_target_" in options]


def names_among(argument: str, choice: str | list[str], options: list[str]) -> list[str]:
    """``choice`` in the order of ``options``; ``all`` is all. Raises UserError for another, naming the nearest."""
    names = options if choice == "all" else [choice] if isinstance(choice, str) else list(choice)
    for name in names:
        if name not in options:
            raise UserError(f"{argument}={name!r} is unknown; known are {', '.join(options)}.{nearest(name, options)}")
    return [name for name in options if name in names]
