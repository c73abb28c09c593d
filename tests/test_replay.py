"""Recorded decodes of the published implementations, replayed case by case."""

from __future__ import annotations

from pathlib import Path

import pytest
from replay import MODELS, replay

GOLDENS = sorted((Path(__file__).parent / "data" / "goldens").glob("*.json"))


@pytest.mark.parametrize("file", GOLDENS, ids=lambda file: file.stem)
def test_every_recorded_decode_is_reproduced(file: Path) -> None:
    _, outcome, _ = replay(file, MODELS)
    assert all(not fields for fields in outcome), [fields for fields in outcome if fields]
