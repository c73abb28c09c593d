"""A release says the same everywhere, and the files that a stranger meets first are there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MOST_LINES = 10  # of a release


def releases(text: str) -> dict[str, list[str]]:
    """By ``X.Y.Z (DATE)`` or Unreleased, the lines of each release, the newest first."""
    headings = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    pairs = zip(headings[::2], headings[1::2], strict=True)
    return {heading: [line for line in block.splitlines() if line] for heading, block in pairs}


def test_version_and_date_are_the_newest_of_the_changelog() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    first, newest, *_ = releases((ROOT / "CHANGELOG.md").read_text())
    assert first == "Unreleased"
    assert newest == f"{PROJECT['version']} ({citation['date-released']})" and citation["version"] == PROJECT["version"]


def test_a_release_has_ten_lines_at_most_each_of_its_own() -> None:
    for name, lines in releases((ROOT / "CHANGELOG.md").read_text()).items():
        assert all(line.startswith("- ") for line in lines), name
        assert len(lines) <= MOST_LINES or name == "Unreleased", name


def test_these_project_urls_are_placeholders_until_the_project_has_an_address() -> None:
    assert (
        {name for name, url in PROJECT["urls"].items() if ".invalid" in url}
        == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
        == {*PROJECT["urls"]}
    )


def test_templates_ask_for_what_helps() -> None:
    for file in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.md"):
        head = yaml.safe_load(file.read_text().split("---")[1])
        assert {"name", "about", "labels"} == {*head}, file.name
    assert "python -m dllm doctor" in (ROOT / ".github/ISSUE_TEMPLATE/bug.md").read_text()
    assert "CHANGELOG.md" in (ROOT / ".github/pull_request_template.md").read_text()
