"""CITATION.cff: what the Citation File Format 1.2.0 asks for, and what the package says of itself."""

from __future__ import annotations

import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
# The keys of schema 1.2.0, whose root takes no others.
KEYS = {
    "abstract", "authors", "cff-version", "commit", "contact", "date-released", "doi", "identifiers", "keywords",
    "license", "license-url", "message", "preferred-citation", "references", "repository", "repository-artifact",
    "repository-code", "title", "type", "url", "version",
}  # fmt: skip


@pytest.fixture
def citation() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_it_is_a_citation_file(citation: dict[str, Any]) -> None:
    assert citation.keys() <= KEYS and citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert all(isinstance(citation[key], str) and citation[key] for key in ("message", "title", "abstract"))
    assert citation["authors"] == [{"name": "The dllm authors"}]
    assert date.fromisoformat(citation["date-released"]) <= date.today()
    assert len(set(citation["keywords"])) == len(citation["keywords"])


def test_version_and_license_are_the_packages(citation: dict[str, Any]) -> None:
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (citation["version"], citation["license"]) == (package["version"], package["license"])
