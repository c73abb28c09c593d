"""Broken checkpoints by the hundred: each is ready and works, or is refused in one sentence, soon and in little memory.

``DLLM_FUZZ=5000`` runs that many (100 by default); a failing case is run alone by its number.
"""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from mmap import mmap
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from broken import Broken, build, make
from nonsense import BASES, DEEP, HUGE, NAN
from rich.console import Console

from dllm.parts import Report, UserError, inspect_checkpoint, load, print_report

CASES = int(os.environ.get("DLLM_FUZZ", "100"))
SECONDS, BYTES = 10, 2 * 2**30


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("bases")
    for base in BASES:
        build(root / base, base)
    return {base: root / base for base in BASES}


@contextmanager
def bounded() -> Iterator[None]:
    """Fail what takes longer than SECONDS or BYTES more of address space than the process has now."""

    def stop(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"still at work after {SECONDS} s")

    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else None
    before, handler = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGALRM, stop)
    if pages is not None:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES, before[1]))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def judged(folder: Path) -> Report:
    """The report on a folder. What loads must agree: ready means a forward of finite logits, else the same refusal.
    A template that writes no message is a problem of the check alone: plain text needs none."""
    with bounded():
        report = inspect_checkpoint(folder)
        print_report(report, Console(file=io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), width=200))
        if report.usable:
            transformer = load(folder).transformer
            with torch.inference_mode():
                logits = transformer.head(transformer.encode(torch.arange(40)[None]))
            assert logits.shape == (1, 40, transformer.config.vocab)
            assert logits.isfinite().all()
        else:
            template = [problem.startswith("The chat template writes no message") for problem in report.problems]
            with nullcontext() if template and all(template) else pytest.raises(UserError):
                load(folder)
    for problem in report.problems:
        assert problem.endswith(".") and len(problem) < 1000
    return report


def proved(folder: Path, broken: Broken) -> Report:
    report = judged(folder)
    if broken.names:
        assert not report.usable, f"ready, with {broken.what}"
        sentences = " ".join(report.problems)
        assert all(name in sentences for name in broken.names), f"{broken}: {sentences}"
    if broken.reported:
        assert report.usable, f"refused, with {broken.what}: {report.problems}"
        assert all(any(part in note for note in report.notes) for part in broken.reported), f"{broken}: {report.notes}"
    return report


@pytest.mark.parametrize("base", BASES)
def test_a_whole_checkpoint_is_ready(base: str, bases: dict[str, Path]) -> None:
    assert judged(bases[base]).problems == ()


@pytest.mark.parametrize("number", range(CASES))
def test_a_broken_checkpoint_is_refused_or_works(number: int, bases: dict[str, Path], tmp_path: Path) -> None:
    _, broken = make(bases, tmp_path / "case", number)
    proved(tmp_path / "case", broken)


# What was found by hand before there was a generator: base, what config.json gets, and what the sentence names.
CONFIGS: list[tuple[str, dict[str, Any]]] = [
    *(
        ("llada_mha_untied", {key: value})
        for key, value in [
            ("d_model", "96"),
            ("n_heads", 0),
            ("n_layers", "4"),
            ("n_layers", 4.5),
            ("mask_token_id", "abc"),
            ("n_layers", HUGE),
            ("n_layers", 9000),
            ("eos_token_id", "5"),
            ("rms_norm_eps", "x"),
            ("rms_norm_eps", NAN),
            ("rope_theta", 0),
            ("rope_scaling", "linear"),
            ("embedding_size", 5),
            ("block_group_size", 0),
            ("mask_token_id", 272),
            ("eos_token_id", 272),
            ("pad_token_id", 272),
        ]
    ),
    ("dream_gqa", {"rope_scaling": "linear"}),
    ("dream_gqa", {"rope_parameters": {"rope_type": "yarn"}}),
    *(("sdar_b4", {"block_size": value}) for value in ("four", -4, 0, 300)),
    *(
        ("llada2_moe", {key: value})
        for key, value in [
            ("num_experts", 10**8),
            ("num_experts", 9000),
            ("num_experts_per_tok", 999),
            ("n_group", 0),
            ("n_group", 3),
            ("topk_group", 5),
            ("num_experts_per_tok", 7),
            ("partial_rotary_factor", 0.2),
            ("moe_intermediate_size", HUGE),
        ]
    ),
    ("nemotron", {"quantization": {"quant_method": "gptq"}}),
    ("llada_moe", {"num_experts_per_tok": 999}),
    ("llada_moe", {"moe_layer_freq": [1]}),
    ("llada_moe", {"dense_intermediate_size": None, "moe_layer_freq": [1, 0]}),
]


@pytest.mark.parametrize(("base", "change"), CONFIGS, ids=[f"{base}-{change!r:.40}" for base, change in CONFIGS])
def test_a_config_that_makes_no_sense_is_refused_at_once(
    base: str, change: dict[str, Any], bases: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "case"
    folder.mkdir()
    for file in bases[base].iterdir():
        (folder / file.name).symlink_to(file)
    content = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(content))
    start = time.perf_counter()
    report = proved(folder, Broken(str(change), ("config.json", next(iter(change)))))
    assert len(report.problems) == 1
    assert time.perf_counter() - start < 2  # 5 ms on an idle core


FILES: list[tuple[str, str | bytes, str]] = [
    ("config.json", DEEP, "config.json"),
    ("tokenizer_config.json", DEEP, "tokenizer_config.json"),
    ("added_tokens.json", "[1]", "added_tokens.json"),
    ("added_tokens.json", '{"a": "b"}', "added_tokens.json has a="),
    ("tokenizer_config.json", '{"added_tokens_decoder": [1]}', "added_tokens_decoder"),
    ("tokenizer_config.json", '{"added_tokens_decoder": {"260": "x"}}', "added_tokens_decoder"),
    ("tokenizer_config.json", '{"additional_special_tokens": 5}', "additional_special_tokens"),
    ("generation_config.json", '{"eos_token_id": {"a": 1}}', "generation_config.json has eos_token_id"),
    ("generation_config.json", '{"eos_token_id": 400}', "generation_config.json: eos_token_id=400"),
    ("generation_config.json", "[]", "generation_config.json"),
    ("chat_template.jinja", b"\xff\xfe{{ x }}", "chat_template.jinja"),
    ("chat_template.jinja", "{{ x", "chat_template"),
]


@pytest.mark.parametrize(("name", "content", "sentence"), FILES, ids=[f"{one[0]}-{one[1]!r:.40}" for one in FILES])
def test_a_file_of_another_kind_is_named(
    name: str, content: str | bytes, sentence: str, bases: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "case"
    folder.mkdir()
    for file in bases["llada_gqa_tied"].iterdir():
        if file.name != name:
            (folder / file.name).symlink_to(file)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    proved(folder, Broken(name, (sentence,)))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("pipe", "a device or a pipe"),
        ("link", "a link to nothing"),
        ("loop", "a link to nothing"),
        ("folder", "a folder"),
    ],
)
def test_what_is_no_file_is_named_and_never_waited_for(
    name: str, kind: str, said: str, bases: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "case"
    folder.mkdir()
    for file in bases["llada_gqa_tied"].iterdir():
        if file.name != name:
            (folder / file.name).symlink_to(file)
    odd = folder / name
    {"pipe": lambda: os.mkfifo(odd), "folder": odd.mkdir}.get(
        kind, lambda: odd.symlink_to(odd if kind == "loop" else tmp_path / "nowhere")
    )()
    proved(folder, Broken(kind, (name, f"is {said}, not a file")))


@pytest.mark.parametrize("text", ["{{ messages[9].content }}", "{{ lipsum(n=9) }}", "{{ raise_exception('no') }}"])
def test_a_template_that_writes_no_message_is_a_problem_of_the_check(
    text: str, bases: dict[str, Path], tmp_path: Path
) -> None:
    """Loading goes on: plain text needs no template."""
    shutil.copytree(bases["llada_gqa_tied"], tmp_path / "case")
    (tmp_path / "case" / "chat_template.jinja").write_text(text)
    report = inspect_checkpoint(tmp_path / "case")
    assert not report.usable and "The chat template writes no message of a user" in report.problems[0]
    assert load(tmp_path / "case").tokenizer is not None


def test_the_bounds_would_be_noticed() -> None:
    """The limits that the cases run under, themselves: memory here, time by the same signal."""
    with pytest.raises(OSError, match="Cannot allocate memory"), bounded():
        mmap(-1, 2 * BYTES)
    with pytest.raises(pytest.fail.Exception, match="still at work"), bounded():
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        while True:
            pass
