"""``model.activations=int8``: answers stay, a batch is as its rows alone, and what cannot be is said or refused."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_files import mini_gguf

from dllm import Decoder, Model, UserError, load
from dllm.models.network import activations
from dllm.parts import (
    NarrowHead,
    NarrowLinear,
    Processor,
    RoundedLinear,
    SettingWarning,
    agreed,
    check_runtime,
    locate,
    quantize_folder,
    round_activations,
    save_model,
    this_processor,
    unwatched,
)

PROMPTS = ['Copy the list:\n["Emma", "Hugo", "Kai"]', "Shuffle these names: Ada, Felix, Zoe", "Latin square: A,B"]
KINDS = ["int8", "int4"]


@pytest.fixture(autouse=True)
def exact() -> None:
    if not this_processor().most:
        pytest.skip("this processor has no exact product of bytes that is faster")


@cache
def mini(kind: str, rows: str | None = "int8", kernels: str = "auto") -> Model:
    return load("mini-llada", dtype="bfloat16", quantize=kind, activations=rows, kernels=kernels)


def logits(model: Model) -> torch.Tensor:
    with torch.inference_mode():
        network = model.transformer
        return network.head(network.encode(torch.arange(40).view(1, 40))).double()


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_answers_stay_close(kind: str) -> None:
    wide, found = logits(mini(kind, None)), logits(mini(kind))
    assert 0 < (found - wide).norm() / wide.norm() < 0.05
    assert (found.argmax(-1) == wide.argmax(-1)).double().mean() > 0.9
    assert mini(kind).activations == "int8"
    answers = [Decoder(mini(kind, rows), gen_length=8, cache="dual")(PROMPTS[0])[0].tokens for rows in (None, "int8")]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("kind", KINDS)
def test_invariant_kernels_give_a_row_the_same_bits_in_any_batch(kind: str) -> None:
    decoder = Decoder(mini(kind, kernels="invariant"), gen_length=12, cache="dual", batch_size=3)
    together = decoder(PROMPTS)
    for prompt, row in zip(PROMPTS, together, strict=True):
        (alone,) = decoder(prompt)
        assert (alone.canvas, alone.turns) == (row.canvas, row.turns)


@pytest.mark.parametrize("kind", KINDS)
def test_fixed_shapes_give_the_eager_tokens(kind: str) -> None:
    found = [
        Decoder(mini(kind), runtime=runtime, gen_length=12, cache="dual")(PROMPTS)[2].tokens
        for runtime in ("eager", "static")
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_quantised_folder_is_multiplied_as_its_checkpoint(kind: str, tmp_path: Path) -> None:
    quantize_folder(locate("mini-llada"), tmp_path, mini(kind, None).config, kind, None, unwatched, "int8")
    found = load(tmp_path, dtype="bfloat16", activations="int8")
    assert isinstance(found.transformer.lm_head, NarrowHead)
    expected = load("mini-llada", dtype="bfloat16", quantize=kind, quantize_head="int8", activations="int8")
    assert torch.equal(logits(found), logits(expected))


def test_a_published_file_keeps_its_steps(tmp_path: Path) -> None:
    file = mini_gguf(tmp_path / "mini.gguf")
    found, wide = (load(file, dtype="bfloat16", quantize="int4", activations=rows) for rows in ("int8", None))
    assert sum(isinstance(one, RoundedLinear) for one in found.transformer.modules()) == 4 * found.config.layers
    assert (logits(found) - logits(wide)).norm() / logits(wide).norm() < 0.05


def test_heads_and_experts_stay_as_they_are() -> None:
    model = load("mini-llada", dtype="bfloat16", quantize="int8", quantize_head="int8", activations="int8")
    assert type(model.transformer.lm_head) is NarrowHead
    assert not any(type(part) is NarrowLinear for part in model.transformer.layers.modules())
    with pytest.raises(UserError, match="cannot write packed or quantised weights"):
        save_model(model.transformer, "nowhere")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, r"activations=int8 goes with layers in int8 or int4, and there is quantize=None\. Set quantize=int8"),
        ({"quantize": "int8", "activations": "int9"}, r"activations='int9' must be None or int8\. Did you mean 'int8'"),
        ({"quantize": "int8", "quantize_head": "int8", "kernels": "invariant"}, "with a narrow head in another way"),
        ({"quantize": "int8", "activations": None, "kernels": "invariant"}, r"or activations=int8 on a CPU\."),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load("mini-llada", dtype="bfloat16", **{"activations": "int8", **options})


def test_compiled_layers_are_refused() -> None:
    with pytest.raises(UserError, match="runtime=compile: torch.compile cannot look into weights in oneDNN's layout"):
        check_runtime("int8", "compile", torch.device("cpu"), "int8")
    with pytest.raises(UserError, match="cannot look into"):
        Decoder(mini("int8"), runtime="compile", gen_length=8)


def test_a_processor_without_the_operators_multiplies_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "this_processor", Processor)
    with pytest.warns(SettingWarning, match="no exact product of bytes that is faster. Rows of bfloat16 are multipli"):
        model = load("mini-llada", dtype="bfloat16", quantize="int8", activations="int8")
    assert model.activations is None and torch.equal(logits(model), logits(mini("int8", None)))
    with pytest.raises(UserError, match="in another way than many. Use kernels=auto"):
        load("mini-llada", dtype="bfloat16", quantize="int8", activations="int8", kernels="invariant")


def test_sizes_that_operators_do_not_take_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "this_processor", lambda: Processor(63, 0))
    network = load("mini-llada", dtype="bfloat16", quantize="int4").transformer
    with pytest.raises(UserError, match=r"products \(0.attn.o, ...\) have sizes that this processor's operators"):
        round_activations(network, invariant=True)
    with pytest.warns(SettingWarning, match="Rows of bfloat16 are multiplied with these"):
        assert round_activations(network, invariant=False) == "int8"


def test_a_gpu_says_what_it_does_instead() -> None:
    network = type("Elsewhere", (), {"device": torch.device("cuda")})()
    with pytest.warns(SettingWarning, match="for a CPU, and the model is on cuda: its kernels multiply rows of bfloat"):
        assert round_activations(network, invariant=False) is None


def test_ranks_agree_on_what_all_of_them_can() -> None:
    class Two:
        size = 2

        def largest(self, x: torch.Tensor) -> torch.Tensor:
            return torch.maximum(x, torch.tensor([-63.0, 0.0]))

    assert agreed(Processor(127, 64, four_from=8), Two()) == Processor(63, 0, four_from=8)  # type: ignore[arg-type]
