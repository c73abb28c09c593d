"""Every public name that one module defines is found by `dllm.parts`, and it is that module's."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import dllm.parts
from tests.repo.test_names import places


def test_every_name_is_found_where_it_is_defined() -> None:
    once = {name: next(iter(modules)) for name, modules in places().items() if len(modules) == 1}
    module_of = {
        name: ".".join(("dllm", *Path(file).with_suffix("").parts)).removesuffix(".__init__")
        for name, file in once.items()
    }
    found = {name: dllm.parts._places().get(name) for name in once}
    assert {name for name in once if found[name] != module_of[name] and found[name] is not None} == set()
    assert len([name for name in once if found[name] is None]) < 0.01 * len(once)


def test_a_name_is_the_module_s_own() -> None:
    assert dllm.parts.Confidence is import_module("dllm.parts.samplers.confidence").Confidence


@pytest.mark.parametrize(("name", "why"), [("Confidense", "nowhere"), ("main", "several")])
def test_another_name_is_refused(name: str, why: str) -> None:
    with pytest.raises(AttributeError, match=why):
        getattr(dllm.parts, name)
