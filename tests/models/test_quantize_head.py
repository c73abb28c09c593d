"""Embedding and head in fewer bits: logits of the dequantised weights, tied and not, and the same in every use."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from model_folders import edit_config, logits, wide_folder
from safetensors import safe_open
from torch import Tensor, nn

from dllm import Decoder, UserError, load
from dllm.parts import (
    Estimator,
    JsonSchema,
    Likelihood,
    Model,
    ModelConfig,
    NarrowEmbedding,
    NarrowHead,
    check_numbers,
    describe,
    fact_rows,
    inspect_checkpoint,
    locate,
    quantize_folder,
    save_model,
    unwatched,
)
from dllm.scoring.decisions import Choice
from tests.kernels.test_narrow_embedding import rounded

KINDS = ("int8", "int4")
PROMPT = 'Copy the list:\n["Emma", "Hugo", "Kai"]'
TOKENS = torch.arange(24)[None] % 60
MATRICES = {
    "llada_mha_untied": ("model.transformer.wte.weight", "model.transformer.ff_out.weight"),
    "llada_gqa_tied": ("model.transformer.wte.weight", "model.transformer.wte.weight"),
    "llada2_moe": ("model.word_embeddings.weight", "lm_head.weight"),
}


def narrow(folder: Path | str, kind: str | None, head: str | None, **options: Any) -> Model:
    return load(folder, dtype="bfloat16", quantize=kind, quantize_head=head, **options)


@cache
def mini(name: str, head: str | None) -> Model:
    return narrow(name, "int8", head)


def stored(folder: Path, name: str) -> Tensor:
    with safe_open(folder / "model.safetensors", "pt") as file:
        found: Tensor = file.get_tensor(name).to(torch.bfloat16)
    return found


@pytest.mark.parametrize("head", KINDS)
@pytest.mark.parametrize("name", MATRICES)
def test_logits_are_those_of_the_dequantised_weights(name: str, head: str, tmp_path: Path) -> None:
    """The rows that enter the layers are the rounded ones, the logits the float64 product of the rounded head."""
    wide_folder(name, tmp_path)
    model, other = narrow(tmp_path, "int8", head, mask_id=60), narrow(tmp_path, "int8", None, mask_id=60)
    network, reference = model.transformer, other.transformer
    embedding, weight = (rounded(stored(tmp_path, one), 8 if head == "int8" else 4) for one in MATRICES[name])
    assert network.head_weight is None and reference.head_weight is not None
    assert isinstance(network.embed, NarrowEmbedding) and isinstance(network.lm_head, NarrowHead)
    assert (network.dtype, network.device) == (torch.bfloat16, torch.device("cpu"))
    reference.embed.weight = nn.Parameter(embedding.to(torch.bfloat16), requires_grad=False)
    with torch.inference_mode():
        hidden, expected = network.encode(TOKENS), reference.encode(TOKENS)
        torch.testing.assert_close(hidden, expected, rtol=2**-6, atol=2**-5)  # roundings of a rounding, seldom
        found = network.logits(hidden)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), hidden.double() @ weight.t(), rtol=2**-6, atol=2**-5)


@pytest.mark.parametrize(("kind", "head"), [("int8", "int4"), ("int4", "int8"), ("int4", "int4")])
@pytest.mark.parametrize("name", MATRICES)
def test_on_disk_is_in_memory_bit_for_bit(name: str, kind: str, head: str, tmp_path: Path) -> None:
    source, target = wide_folder(name, tmp_path / "source"), tmp_path / "target"
    quantize_folder(source, target, describe(source, 60).config, kind, None, unwatched, head)
    memory, disk = narrow(source, kind, head, mask_id=60), load(target, dtype="bfloat16", mask_id=60)
    assert (disk.quantize, disk.quantize_head) == (kind, head)
    expected, found = (one.transformer.state_dict() for one in (memory, disk))
    assert expected.keys() == found.keys()
    for key, tensor in expected.items():
        assert found[key].dtype == tensor.dtype and torch.equal(found[key], tensor), key
    assert torch.equal(logits(memory.transformer, TOKENS), logits(disk.transformer, TOKENS))
    report = inspect_checkpoint(target, 60)
    assert report.usable and f"memory {kind}, head {head}" in dict(fact_rows(report))
    assert f"{kind} of task=quantize, embedding and head {head}" in dict(fact_rows(report))["stored"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("narrow") / "mini"
    quantize_folder(locate("mini-llada"), found, describe("mini-llada").config, "int4", None, unwatched, "int8")
    return found


def test_a_folder_is_mapped_and_not_copied(folder: Path) -> None:
    network = load(folder, dtype="bfloat16").transformer
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]
    spans = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    for narrowed in (network.embed.get_buffer("narrow"), network.lm_head.get_buffer("narrow")):
        assert narrowed.data_ptr() % 64 == 0 and any(begin <= narrowed.data_ptr() < end for begin, end in spans)


def test_a_folder_says_what_it_cannot_become(folder: Path) -> None:
    assert load(folder, dtype="bfloat16", quantize_head="int8").quantize_head == "int8"
    with pytest.raises(
        UserError, match=r"quantize_head=int4: embedding and head of this folder are int8\. Set quantize_head=None"
    ):
        load(folder, dtype="bfloat16", quantize_head="int4")
    config = describe(folder).config
    with pytest.raises(UserError, match=r"for a CPU: .* Set device=cpu\. Or run task=quantize without"):
        check_numbers(config, torch.bfloat16, torch.device("meta"), "torch", "int4", "int8")
    for said, sentence in (
        ({"version": 2, "kind": "int4"}, r"head=null, which must be one of int8, int4\."),
        ({"version": 1, "kind": "int4"}, "embed.weight is missing"),
    ):
        edit_config(folder, dllm_quantization=said)
        with pytest.raises(UserError, match=sentence):
            load(folder, dtype="bfloat16")


def refused(sentence: str, head: str, kind: str | None = "int8", **changes: Any) -> None:
    with pytest.raises(UserError, match=sentence):
        narrow("mini-llada", kind, head, **changes)


def test_what_does_not_go_with_it_is_refused(tmp_path: Path) -> None:
    refused(r"quantize_head='int3' must be None, int8 or int4\. Did you mean", "int3")
    for kind in (None, "float8"):
        refused(rf"and there is quantize={kind}\. Set quantize=int8 or qu", "int8", kind)
    refused(r"invariant multiplies plain weights", "int8", kernels="invariant")
    config: ModelConfig = describe("mini-llada").config
    with pytest.raises(UserError, match=r"the fused head of a GPU .* Set device=cpu or quantize_he"):
        check_numbers(config, torch.bfloat16, torch.device("meta"), "torch", "int4", "int8")
    odd = replace(config, width=112)
    with pytest.raises(UserError, match=r"int4 takes widths that are multiples of 32, and .* 112\. Set quantize"):
        check_numbers(odd, torch.bfloat16, torch.device("cpu"), "torch", "int8", "int4")
    model = mini("mini-llada", "int8").transformer
    with pytest.raises(UserError, match="cannot write packed or quantised weights"):
        save_model(model, tmp_path)


@pytest.mark.parametrize("name", ["mini-llada", "mini-dream"])
@pytest.mark.parametrize("head", KINDS)
def test_prefix_and_static_decodes_give_what_the_wide_head_gives(name: str, head: str) -> None:
    """A model that is sure. A prompt alone and beside a longer one; recorded shapes and eager ones."""
    expected = Decoder(mini(name, None), gen_length=16, cache="prefix")(PROMPT)[0]
    longer = 'Sort the list:\n["Nina", "Mia", "Kai", "Hugo", "Emma"]'
    for runtime, policy in product(("eager", "static"), ("none", "prefix", "dual")):
        decoder = Decoder(mini(name, head), gen_length=16, cache=policy, runtime=runtime)
        alone, beside = decoder(PROMPT)[0], decoder([PROMPT, longer])[0]
        assert alone.text == beside.text == expected.text


def widened(name: str, head: str) -> Model:
    """The same layers, and the rounded embedding and head as plain matrices."""
    model = narrow(name, "int8", None)
    for end in (model.transformer.embed, model.transformer.lm_head):
        every = torch.arange(model.config.vocab)
        rows = NarrowEmbedding.of(end.weight.detach(), 8 if head == "int8" else 4)(every)
        end.weight = nn.Parameter(rows, requires_grad=False)
    return model


@pytest.mark.parametrize("head", KINDS)
def test_whoever_reads_the_head_reads_the_rounded_one(head: str) -> None:
    """Logits of a few ids (credit), whole ones (klass), draws, guidance, a constraint, decisions, likelihood: as from a
    plain head of the same numbers."""
    models = widened("mini-llada", head), mini("mini-llada", head)
    names = JsonSchema({"type": "array", "items": {"enum": ["Ada", "Emma", "Kai"]}, "minItems": 2, "maxItems": 3})
    ways: list[dict[str, Any]] = [
        {"sampler": "credit"},
        {"sampler": "klass"},
        {"guidance": 0.5},
        {"temperature": 0.5},
        {"constraint": names},
    ]
    for options in ways:
        plain, found = (Decoder(model, gen_length=16, **options)(PROMPT)[0] for model in models)
        assert plain.text == found.text and plain.nfe == found.nfe, options
    town = Choice(["Cairo", "Lima", "Oslo"], template='[{"name": "Bush", "age": 72, "town": "{slot}"}')
    state = "Rows as JSON:\nBush, 72, Cairo\nIvan, 92, Lima"
    chosen = [Decoder(model, gen_length=16).decide(state, town=town)["town"].probabilities for model in models]
    assert list(chosen[0].values()) == pytest.approx(list(chosen[1].values()), abs=0.02)
    text, answer = list(range(100, 120)), list(range(200, 208))
    told = [Likelihood(model, Estimator("exact_ar"))(text, answer).value for model in models]
    assert told[0] == pytest.approx(told[1], rel=2e-3)
