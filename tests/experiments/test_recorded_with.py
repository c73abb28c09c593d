"""What the pages say of published code is what the golden files' headers say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dllm.compose.choice_files import part_facts
from dllm.compose.parts import choices
from experiments.pages.golden_sources import CODE, GOLDENS, table

ROOT = Path(__file__).parents[2]
RECORDED = {code for file in GOLDENS.glob("*.json") for code in CODE.findall(json.loads(file.read_text())["source"])}
NO_COMMIT = {
    "own",
    "paper",
    "reconstruction",
    "friedrichor/LocalLeap (a copy of it)",
    "Nemotron-Labs-Diffusion's linear_spec_generate",
    "transformers 5.24's DiffusionGemma",
    "rule of diffusers 0.42.1",
}  # such pages say why


def test_the_command_names_all_golden_files() -> None:
    said = table()
    assert [file.stem for file in GOLDENS.glob("*.json") if f"`{file.stem}`" not in said] == []


@pytest.mark.parametrize("page", [*(f"docs/{name}.md" for name in ("samplers", "caches", "blocks"))])
def test_code_that_parts_were_checked_against_is_that_of_a_golden_file(page: str) -> None:
    assert set(CODE.findall((ROOT / page).read_text())) - {"OWNER/NAME@COMMIT"} <= RECORDED


@pytest.mark.parametrize("name", choices("sampler"))
def test_a_samplers_page_and_its_head_name_the_same_code(name: str) -> None:
    page = (ROOT / "docs" / "samplers" / f"{name}.md").read_text()
    checked = part_facts("sampler", name).checked
    said = set(CODE.findall(checked))
    assert (said or checked in NO_COMMIT) and said <= RECORDED & set(CODE.findall(page))
