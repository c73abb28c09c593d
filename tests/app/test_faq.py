"""Every refusal of docs/faq.md is printed as the page has it, and what the page says to type instead decodes."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from dllm.common import hub
from tests.app.conftest import ROOT, Run

INSTEAD = re.compile(r"[Tt]ype\s`([^`]+)`")
PAGE = (ROOT / "docs" / "faq.md").read_text()
SECTIONS = {block.partition("\n")[0]: block for block in PAGE.split("\n## ")[1:]}


def test_the_page_has_the_ten_that_it_promises() -> None:
    assert len(SECTIONS) == 10
    assert all(re.search("^You typed `.+`:$", block, re.MULTILINE) for block in SECTIONS.values())
    assert sum(bool(INSTEAD.findall(block)) for block in SECTIONS.values()) == 8


@pytest.mark.parametrize("title", SECTIONS)
def test_a_refusal_is_printed_as_the_page_has_it(title: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hub.OFFLINE, "1")
    hub.hub_reachable.cache_clear()
    (typed,) = re.findall(r"^You typed `(.+)`:$", SECTIONS[title], re.MULTILINE)
    (sentence,) = re.findall(r"^> (.+)$", SECTIONS[title], re.MULTILINE)
    if "not installed" in sentence:
        for name in [name for name in sys.modules if name.startswith(("dllm.serve", "starlette"))]:
            monkeypatch.delitem(sys.modules, name)  # what other tests of the process have loaded
        monkeypatch.setitem(sys.modules, "starlette", None)
    outcome = run(*shlex.split(typed), bare=True)
    hub.hub_reachable.cache_clear()
    pattern = ".*".join(map(re.escape, sentence.split("...")))
    assert outcome.code == 2 and re.fullmatch(f"Error: {pattern}", outcome.err.strip().splitlines()[-1]), outcome.err


REMEDIES = [text for block in SECTIONS.values() for text in INSTEAD.findall(block) if "FOLDER" not in text]


@pytest.mark.parametrize("typed", REMEDIES)
def test_what_to_type_instead_decodes(typed: str, run: Run, tmp_path: Path) -> None:
    outcome = run(*shlex.split(typed), "name=instead", bare=True)
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "runs" / "instead" / "config.yaml").is_file()
