"""``model=transformers``: BERT and ModernBERT from the command line, and behind the server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dllm import load
from tests.app.conftest import Run, rows_of
from tests.serve.conftest import Place
from tests.support.masked_lms import MASKED_LMS, make_masked_lm


@pytest.mark.parametrize("name", MASKED_LMS)
def test_it_decodes_from_the_command_line(name: str, run: Run, tmp_path: Path) -> None:
    folder, lines = make_masked_lm(name, tmp_path / name), tmp_path / "prompts.jsonl"
    lines.write_text("\n".join(json.dumps({"prompt": prompt}) for prompt in ("w5 w7", "w3")))
    found = {}
    for sampler in ("confidence", "static", "freedave"):
        out = run(
            "model=transformers", f"model.path={folder}", f"prompts={lines}", f"sampler={sampler}", "gen_length=12",
            "cache=none", "blocks.block_length=4", "batch_size=2", "output=runs", f"name={sampler}", "model.device=cpu",
            bare=True,
        )  # fmt: skip
        assert out.code == 0, out.err
        rows = sorted(rows_of(tmp_path / "runs" / sampler), key=lambda row: str(row["id"]))
        found[sampler] = [row["canvas"] for row in rows]
    assert found["static"] == found["freedave"] and all(len(row) == 12 for row in found["confidence"])
    out = run("task=check", "model=transformers", f"model.path={folder}", bare=True)
    assert out.code == 0 and "ready" in out.out
    out = run("model=transformers", f"model.path={folder}", "cache=dual", "gen_length=8", "prompt=w5", bare=True)
    assert out.code == 2 and "run through its own class" in out.err


@pytest.mark.parametrize("name", MASKED_LMS)
def test_it_is_served(name: str, tmp_path: Path) -> None:
    place = Place(load(make_masked_lm(name, tmp_path / name, written=True)))
    try:
        chosen = {"sampler": "confidence", "cache": "none", "block_length": 4}
        reply = place.ask(diffusion=chosen, max_tokens=8)
        assert reply.status_code == 200, reply.text
        pattern = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
        reply = place.ask(diffusion=chosen, max_tokens=8, response_format=pattern)
        assert reply.status_code == 200 and isinstance(
            json.loads(reply.json()["choices"][0]["message"]["content"]), int
        )
        reply = place.ask(diffusion={**chosen, "cache": "dual"}, max_tokens=8)
        assert reply.status_code == 400 and "run through its own class" in reply.text
    finally:
        place.close()
