"""llama.cpp's column: the files are those of its format, and its benchmark's numbers are put together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dllm import UserError
from experiments.bench import llama_cpp
from experiments.bench.llama_cpp import KINDS, blocks_of, forward_seconds, seconds


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_numbers_of_the_format(kind: str) -> None:
    quants = pytest.importorskip("gguf.quants", reason="gguf is not installed: pip install 'dllm[gguf]'")
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    rows, columns, code = 8, 256, GGMLQuantizationType[kind]
    made = blocks_of(kind, rows, columns, np.random.default_rng(0))
    group, size = GGML_QUANT_SIZES[code]
    assert made.shape == (rows, columns // group * size)
    numbers = quants.dequantize(made, code)
    assert numbers.shape == (rows, columns) and abs(float(numbers.std()) - 0.02) < 0.002


def test_layers_that_are_not_there_are_counted_by_their_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that takes a second for the head, and a tenth for a layer and row."""
    program = tmp_path / "bench"
    program.write_text(
        "#!/usr/bin/env python3\nimport json, sys\n"
        "layers = int(open(sys.argv[sys.argv.index('-m') + 1]).read())\n"
        "rows = map(int, sys.argv[sys.argv.index('-p') + 1].split(','))\n"
        "print(json.dumps([{'n_prompt': n, 'samples_ns': [9e12, 1e9 + layers * n * 1e8]} for n in rows]))\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(llama_cpp, "write", lambda file, kind, layers: file.write_text(str(layers)))
    found = forward_seconds(program, (1, 8), 32, 2, 1)
    assert set(found) == set(KINDS)
    assert all(times == pytest.approx([1 + 3.2, 1 + 8 * 3.2]) for times in found.values())


def test_a_program_that_fails_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not run .*Give --llama-bench a built llama-bench"):
        seconds(tmp_path / "none", tmp_path / "model.gguf", (1,), 1, 1)
    program = tmp_path / "fails"
    program.write_text("#!/bin/sh\necho no such file >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(UserError, match="ended with 3: .*no such file"):
        seconds(program, tmp_path / "model.gguf", (1,), 1, 1)
