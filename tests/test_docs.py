"""The code of the documentation runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dllm.parts import choices

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "add_a_sampler.md").read_text()
NEW = """
import sys, types, yaml
source, config, test = (open(name).read() for name in ("alternate.py", "alternate.yaml", "test.py"))
module = types.ModuleType("dllm.samplers.alternate")
sys.modules[module.__name__] = module
exec(source, module.__dict__)
from dllm.parts import build
names = {}
exec(test, names)
assert isinstance(build("sampler", yaml.safe_load(config)), module.Alternate)
[value() for name, value in names.items() if name.startswith("test_")]
print("ran")
"""


def blocks() -> list[str]:
    return re.findall(r"```(?:python|yaml)\n(.*?)```", PAGE, re.DOTALL)


def test_the_new_sampler_takes_under_sixty_lines() -> None:
    assert sum(block.count("\n") for block in blocks()) < 60


def test_the_new_sampler_runs_with_its_config_and_its_test(tmp_path: Path) -> None:
    for name, block in zip(("alternate.py", "alternate.yaml", "test.py"), blocks(), strict=True):
        (tmp_path / name).write_text(block)
    done = subprocess.run([sys.executable, "-c", NEW], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "ran\n", done.stderr


@pytest.mark.parametrize("name", choices("sampler"))
def test_every_sampler_has_its_page(name: str) -> None:
    page = (ROOT / "docs" / "samplers" / f"{name}.md").read_text()
    assert page.startswith(f"# {name}\n")
    assert f"(samplers/{name}.md)" in (ROOT / "docs" / "samplers.md").read_text()
    if name in ("eb", "klass", "pc", "dus", "saber", "wino"):
        assert "not compared with a reference" in page.lower()
