"""Defaults are said twice, by the class and by the file of its choice, and are the same."""

from __future__ import annotations

import inspect

import pytest

from dllm.parts import BASE_CLASSES, arguments_of, choices, class_of, options_of_choices

# The classes of tasks are made by their files alone, which say what the benchmark asks for.
GROUPS = [group for group in BASE_CLASSES if group != "task"]


@pytest.mark.parametrize("group", GROUPS)
def test_a_class_and_the_file_of_its_name_have_the_same_defaults(group: str) -> None:
    """Of several choices of one class the one that has its module's name; the others are variants."""
    files = {name: options for name, options in options_of_choices(group).items() if options.get("_target_")}
    compared = 0
    for name, options in files.items():
        target = options["_target_"]
        alone = sum(other["_target_"] == target for other in files.values()) == 1
        if not alone and target.split(".")[-2] != name:
            continue
        for key, argument in arguments_of(class_of(group, target)).items():
            if key in options and argument.default is not inspect.Parameter.empty:
                default = argument.default
                is_same = options[key] == (list(default) if isinstance(default, tuple) else default)
                assert is_same, f"{group}/{name}.yaml: {key}={options[key]!r}, and the class says {default!r}"
                compared += 1
    assert compared or group in ("engine",)
    assert len(files) >= len(choices(group)) - 1
