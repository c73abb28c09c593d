"""The last section of docs/add_a_cache.md: a package outside of the repository adds a cache that decides layer by
layer. It keeps the laws, decodes alone and in a batch, serves, and leaves a trace that is read again."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dllm import Decoder, Trace, load
from dllm.laws import batch_claims
from dllm.laws.__main__ import main
from dllm.parts import Confidence, Fixed, FullLength, NoCache, Parts, Trial, network, recorded, requests, turns_of_rows
from tests.repo.test_docs import code
from tests.serve.bodies import mini_defaults
from tests.serve.live import live

PAGE = Path(__file__).parents[2] / "docs" / "add_a_cache.md"
PROMPT = 'Copy the list:\n["Kai", "Emma", "Ada"]'


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The section's module, in a folder of its own."""
    folder = tmp_path_factory.mktemp("own")
    *_, module = code(PAGE, "python")
    (folder / "settled.py").write_text(module)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("settled")
    sys.path.remove(str(folder))
    del sys.modules["settled"]


def trial(cache: Any) -> Trial:
    parts = Parts(Confidence(0.6), Fixed(8), cache, FullLength())
    return Trial(network("llada"), parts, requests(), parts.sampling)


def test_decided_columns_leave_after_the_first_layer_and_masks_never(settled: Any) -> None:
    one, left = trial(settled.Settled(0.9)), 0
    for turn in turns_of_rows(one.network, one.parts, one.requests):
        first, last = turn.cost.queries.unbind(1)
        masks = (turn.canvas.undecided & turn.view.blocks.in_open).sum(1)
        assert torch.equal(first, turn.canvas.valid.sum(1)) and bool(((masks <= last) & (last <= first)).all())
        assert torch.equal(turn.view.scores.scored, turn.canvas.undecided & turn.view.blocks.in_open)
        left += int((first - last).sum())
    assert left > 50


def test_without_tolerance_it_decodes_as_without_a_cache(settled: Any) -> None:
    plain = recorded(network("llada"), trial(NoCache()).parts, requests())
    kept = recorded(network("llada"), trial(settled.Settled(1.0)).parts, requests())
    assert [row.canvases for row in kept] == [row.canvases for row in plain]


def test_a_row_decodes_the_same_alone_and_among_three(settled: Any) -> None:
    batch_claims.a_row_is_alone(trial(settled.Settled(0.9)), [[0], [2, 0, 1]])


@pytest.mark.program
def test_the_command_of_laws_takes_it(settled: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settled.Settled", "--cases", "4"]) == 0
    assert "cache=Settled: 4 of" in capsys.readouterr().out


def test_it_answers_for_less_and_its_trace_is_read_again(settled: Any, tmp_path: Path) -> None:
    model = load("mini-llada")
    less, whole = (
        Decoder(model, "static", "fixed", cache, gen_length=16)(PROMPT, trace=True)[0]
        for cache in (settled.Settled(), "none")
    )
    assert less.text == whole.text and less.query_tokens < 0.9 * whole.query_tokens
    file = less.trace.save(tmp_path / "trace.json")
    assert list(Trace.load(file).canvases()) == list(less.trace.canvases())


@pytest.mark.program
def test_it_serves_three_requests_at_once(settled: Any) -> None:
    model = load("mini-llada")
    defaults = replace(mini_defaults(model), cache={"_target_": "settled.Settled", "similarity": 0.999})
    decoder = Decoder(model, "confidence", "fixed", settled.Settled(), gen_length=32)
    prompts = [PROMPT, 'Copy the list:\n["Leo"]', "What is 7 plus 12?"]
    with live(model, defaults=defaults) as server, ThreadPoolExecutor(3) as pool:

        def asked(prompt: str) -> str:
            body = {"model": "mini", "messages": [{"role": "user", "content": prompt}], "max_tokens": 32}
            with server.client() as client:
                found = client.post("/v1/chat/completions", json=body).json()
            return str(found["choices"][0]["message"]["content"])

        answers = list(pool.map(asked, prompts))
    assert answers[0] == decoder(PROMPT)[0].text and all(answers)
