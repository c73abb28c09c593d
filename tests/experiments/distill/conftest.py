"""Prompts for short runs with tiny models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

SHORT = [
    "held_out=2",
    "gen_length=12",
    "block_length=8",
    "decode_rows=2",
    "batch=4",
    "micro=2",
    "steps=12",
    "learning_rate=1e-3",
    "save_every=2",
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Eleven prompts, one of which brings its answer."""
    lines: list[dict[str, Any]] = [{"prompt": f"w{one} w{one + 7}"} for one in range(9)]
    lines += [{"tokens": [5, 6, 7]}, {"question": "w8", "llm_response": "w3 w4"}]
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def options(model: Path, data: Path, out: Path, *more: str) -> list[str]:
    return [f"model={model}", f"data={data}", f"out={out}", *SHORT, *more]
