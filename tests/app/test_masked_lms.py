"""``model=transformers``: BERT and ModernBERT from the command line, and behind the server."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dllm import load
from tests.app.conftest import Run, rows_of
from tests.serve.conftest import Place
from tests.support.adapters import adapted
from tests.support.family_folders import FAMILIES, FULL, make_family
from tests.support.harness import full
from tests.support.masked_lms import MASKED_LMS, make_masked_lm


@pytest.mark.parametrize("name", MASKED_LMS)
def test_it_decodes_from_the_command_line(name: str, run: Run, tmp_path: Path) -> None:
    folder, lines = make_masked_lm(name, tmp_path / name), tmp_path / "prompts.jsonl"
    lines.write_text("\n".join(json.dumps({"prompt": prompt}) for prompt in ("w5 w7", "w3")))
    found = {}
    for sampler in ("confidence", "static", "freedave"):
        out = run(
            "model=transformers",
            f"model.path={folder}",
            f"prompts={lines}",
            f"sampler={sampler}",
            "gen_length=12",
            "cache=none",
            "blocks.block_length=4",
            "batch_size=2",
            "output=runs",
            f"name={sampler}",
            "model.device=cpu",
            bare=True,
        )
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


SAMPLERS = ("confidence", "static", "eb") if full() else ("confidence",)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("families")
    return {name: make_family(name, root / name) for name in FAMILIES}


@pytest.mark.daily(5)
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_family_decodes_from_the_command_line(
    name: str, sampler: str, folders: dict[str, Path], run: Run, tmp_path: Path
) -> None:
    """In the blocks of its attention, or shorter ones. The exact cache changes no token."""
    found = {}
    caches = ("none", "dual") if name in FULL else ("none", "finished")
    for kv in caches:
        out = run(
            f"model.path={folders[name]}",
            "prompt=w5 w7 w9",
            f"sampler={sampler}",
            f"cache={kv}",
            "gen_length=16",
            "blocks.block_length=8",
            "output=runs",
            f"name={kv}",
            bare=True,
        )
        assert out.code == 0, out.err
        (row,) = rows_of(tmp_path / "runs" / kv)
        assert row["nfe"] >= 1 and len(row["canvas"]) == 16
        found[kv] = row["canvas"]
    assert name in FULL or found["none"] == found["finished"]


def test_linear_speculation_runs_in_a_batch_with_the_text_of_each_row_alone(
    folders: dict[str, Path], run: Run, tmp_path: Path
) -> None:
    lines = tmp_path / "prompts.jsonl"
    lines.write_text("\n".join(f'{{"prompt": "w5 w{number} w9"}}' for number in range(5)))
    found = {}
    for size in (1, 3):
        out = run(
            f"model.path={folders['nemotron']}",
            f"prompts={lines}",
            "sampler=linear_spec",
            "cache=linear_spec",
            "eos=stop_front",
            "gen_length=16",
            "cache.window_length=6",
            f"batch_size={size}",
            "output=runs",
            f"name=b{size}",
            bare=True,
        )
        assert out.code == 0, out.err
        found[size] = {row["id"]: row["canvas"] for row in rows_of(tmp_path / "runs" / f"b{size}")}
    assert found[1] == found[3] and len(found[1]) == 5


def test_an_adapter_of_drafts_goes_with_linear_speculation_alone(
    folders: dict[str, Path], run: Run, tmp_path: Path
) -> None:
    adapted(folders["nemotron"], tmp_path / "lora", target_modules=r".*o_proj")
    words = [
        f"model.path={folders['nemotron']}",
        f"model.draft_adapter={tmp_path / 'lora'}",
        "prompt=w5",
        "gen_length=8",
    ]
    out = run(*words, bare=True)
    assert out.code == 2 and "sampler=confidence makes none that causal rows judge" in out.err, out.err
    out = run(*words, "sampler=linear_spec", "cache=linear_spec", bare=True)
    assert out.code == 0, out.err


@pytest.mark.parametrize(("name", "words", "sentence"), [
    ("a2d", ["cache=finished"], "cache=finished is for models with block-causal or causal attention; this one is full"),
    ("a2d-bd3lm", ["cache=dual"], "cache=dual is for models with full attention; this one is block-causal from the"),
    ("a2d-bd3lm", ["model.attention_block=999"], r"model.attention_block=999 must be from 0 to the model's 512"),
    ("fastdllm_v2", ["model.attention_block=4"], "model.attention_block=4, but config.json says bd_size=8"),
    ("fastdllm_v2", ["sampler=ete"], "a block's first column is decided alone"),
    ("nemotron", ["sampler=wino"], "causal outside the block that is decoded"),
    ("nemotron", ["sampling.guidance=1"], "needs a prompt of masks"),
    ("efficient_dlm", ["cache=prefix"], "block-causal after a prompt of one block"),
    ("rnd1", ["model.attention_block=8"], "the attention of RND1LM is full, which has no blocks"),
])  # fmt: skip
def test_what_a_family_cannot_do_is_one_sentence(
    name: str, words: list[str], sentence: str, folders: dict[str, Path], run: Run
) -> None:
    out = run(f"model.path={folders[name]}", "prompt=w5", "gen_length=16", "blocks.block_length=8", *words, bare=True)
    assert out.code == 2 and re.search(sentence, out.err), out.err


def test_check_says_that_an_a2d_file_does_not_tell_its_attention(folders: dict[str, Path], run: Run) -> None:
    out = run("task=check", f"model.path={folders['a2d-bd3lm']}", bare=True)
    assert out.code == 0 and "does not say which attention" in " ".join(out.out.split())
    said = run("task=check", f"model.path={folders['a2d-bd3lm']}", "model.attention_block=8", bare=True)
    assert "does not say" not in said.out and "blocks.block_length=8" in said.out
