"""Weights that change under a decoder: shared, written in place, replaced, or unable to learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from masked_lms import make_masked_lm, masked_lm
from random_models import random_model
from recording import FakeGraph
from safetensors.torch import load_file
from tiny import EOS, MASK
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from dllm import Decoder, Model, UserError, load
from dllm.parts import (
    Graphs,
    RecordedTurns,
    gradient_notes,
    load_model,
    parameter_sources,
    refuse_replaced,
    refuse_unlearning,
    reload,
    save_model,
    write_weights,
)
from tests.models.model_folders import DATA, edit_config, published
from tests.support.tiny import make_tiny

SOURCES = ("tiny-llada", "llada_gqa_tied", "llada2_moe", "tiny-a2d-bd3lm")
HEAD = "model.transformer.ff_out.weight"
TOKENS = torch.arange(2, 26).view(2, 12)


class A2DQwen3LMHeadModel(Qwen3ForCausalLM):
    """As its published class."""


def made(pad: int | None = None) -> nn.Module:
    torch.manual_seed(0)
    return A2DQwen3LMHeadModel(Qwen3Config(
        vocab_size=64, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=12, max_position_embeddings=64, eos_token_id=EOS, mask_token_id=MASK,
        pad_token_id=pad, tie_word_embeddings=False,
    ))  # fmt: skip


@pytest.fixture
def two(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """Two folders of one config with other weights."""
    ids = {"mask_token_id": MASK, "eos_token_id": EOS, "pad_token_id": EOS}
    config = published(getattr(request, "param", "tiny-llada"), **ids)
    folders = tmp_path / "old-bd3lm", tmp_path / "new-bd3lm"
    for seed, folder in enumerate(folders):
        save_model(random_model(config, seed), make_tiny(folder))
    return folders


def logits(model: Model) -> Tensor:
    with torch.no_grad():
        return model.transformer.logits(model.transformer.encode(TOKENS))


WAYS: tuple[dict[str, Any], ...] = ({}, {"pack": False}, {"kernels": "invariant"}, {"trainable": True})


@pytest.mark.daily(6)
@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("two", SOURCES, indirect=True)
def test_reload_leaves_what_load_of_the_folder_gives(two: tuple[Path, Path], options: dict[str, Any]) -> None:
    model, expected = load(two[0], **options), load(two[1], **options)
    held = {name: one.data_ptr() for name, one in model.transformer.named_parameters()}
    assert not torch.equal(logits(model), logits(expected))
    again = reload(model, two[1])
    assert torch.equal(logits(model), logits(expected))
    assert held == {name: one.data_ptr() for name, one in model.transformer.named_parameters()}
    assert (again.path, again.name, again.transformer) == (two[1], "new-bd3lm", model.transformer)


def test_reload_of_a_masked_lm(tmp_path: Path) -> None:
    folder = make_masked_lm("bert", tmp_path / "old")
    masked_lm("bert", seed=1).save_pretrained(tmp_path / "new")
    model = load(folder, trainable=True)
    assert reload(model, tmp_path / "new").ids == model.ids
    assert torch.equal(logits(model), logits(load(tmp_path / "new", mask_id=model.ids.mask)))
    refuse_unlearning(model)


@pytest.mark.parametrize("recorded", ["nothing", "networks", "turns"])
def test_what_is_recorded_goes_on_with_new_weights(two: tuple[Path, Path], recorded: str) -> None:
    """No Python of a recording runs again: it reads the weights where they were."""
    model, log, how = load(two[0], pack=False), list[str](), ("static", "fixed", "dual", "none")
    decoder, graph = Decoder(model, *how, gen_length=8, runtime="static"), lambda: FakeGraph(log)
    forward = decoder.runner.forward
    if recorded == "networks":
        forward = replace(forward, network=Graphs(model.transformer, graph))
    take = RecordedTurns(model.transformer, graph) if recorded == "turns" else decoder.runner.take
    decoder.runner = replace(decoder.runner, forward=forward, take=take)
    before = [decoder([[3, 4, 5]])[0].canvas for _ in range(3)]
    records = log.count("record")
    reload(model, two[1])
    expected = Decoder(load(two[1]), *how, gen_length=8)([[3, 4, 5]])[0].canvas
    assert decoder([[3, 4, 5]])[0].canvas == expected != before[0] == before[1] == before[2]
    assert log.count("record") == records and bool(log) == (recorded != "nothing")


def test_a_trainable_folder_has_single_plain_matrices_with_gradients(two: tuple[Path, Path]) -> None:
    model = load(two[0], trainable=True)
    refuse_unlearning(model)
    plain = load_model(two[0], fuse=False)
    assert [name for name, _ in model.transformer.named_parameters()] == [name for name, _ in plain.named_parameters()]
    model.transformer.logits(model.transformer.encode(TOKENS)).logsumexp(-1).sum().backward()
    assert all(one.grad is not None and bool(one.grad.any()) for one in model.transformer.parameters())
    decoder = Decoder(model, gen_length=4)
    before = decoder([[3, 4]])[0].canvas
    with torch.no_grad():
        model.transformer.lm_head.weight.neg_()
    assert decoder([[3, 4]])[0].canvas != before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"rope_theta": 5000.0},
            r"its theta is 5000.0, and the model's is 500000.0\. Give a folder of the same config",
        ),
        ({"n_layers": 1}, r"its layers is 1"),
    ],
)
def test_another_config_is_refused(two: tuple[Path, Path], change: dict[str, Any], message: str) -> None:
    model = load(two[0])
    before = logits(model)
    edit_config(two[1], **change)
    with pytest.raises(UserError, match=message):
        reload(model, two[1])
    assert torch.equal(logits(model), before)


def test_weights_that_are_not_a_file_s_alone_are_not_reloaded(two: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="are made with adapter='lora'. Call load instead."):
        reload(replace(load(two[0]), adapter=Path("lora")), two[1])


def test_what_cannot_learn_says_its_name(two: tuple[Path, Path]) -> None:
    frozen = load(two[0])
    cases = (
        (frozen, r"none of its weights learns \(layers.0.attn.o is packed\). Take load\(FOLDER, trainable=True\)"),
        (load(two[0], pack=False), r"none of its weights learns \(embed.weight is frozen\)"),
        (replace(frozen, quantize="int8"), "weights in int8 cannot learn"),
    )
    for model, message in cases:
        with pytest.raises(UserError, match=message):
            refuse_unlearning(model)
    for options in ({"quantize": "int8"}, {"kernels": "triton"}, {"kernels": "invariant"}):
        with pytest.raises(UserError, match="trainable=True"):
            load(two[0], trainable=True, **options)


def test_tensors_that_a_trainer_replaces_are_told() -> None:
    own = made()
    model = load(own)
    refuse_unlearning(model)
    optimiser = torch.optim.SGD(own.parameters(), lr=0.1)
    own(input_ids=TOKENS).logits.square().mean().backward()
    optimiser.step()
    refuse_replaced(model)
    head = own.lm_head.weight
    head.data = head.data.clone()
    with pytest.raises(UserError, match="holds another tensor as lm_head.weight than when load shared it.*Call load"):
        refuse_replaced(model)
    again = load(own)
    own.model.layers[1].mlp.gate_proj.weight = nn.Parameter(torch.zeros(96, 48))
    with pytest.raises(UserError, match=r"as model.layers.1.mlp.gate_proj.weight"):
        refuse_unlearning(again)


def test_rows_of_a_fused_tensor_do_not_learn(two: tuple[Path, Path]) -> None:
    """LLaDA2's class holds q, k and v in one tensor, of which our network has views."""
    model = load(made())
    lender = model.transformer.lender
    name, source = next(iter(lender.sources.items()))
    parted = replace(lender, sources={**lender.sources, name: replace(source, rows=(0, 2))})
    assert lender.parts() == {} and parted.parts() == {name: source.name}
    model.transformer.lender = parted
    with pytest.raises(UserError, match=rf"{name} is a view of rows of {source.name}, which no gradient reaches"):
        refuse_unlearning(model)


def test_a_row_for_padding_is_noted() -> None:
    assert gradient_notes(load(made())) == ()
    assert gradient_notes(load(made(pad=EOS))) == (
        "padding_idx=61: the object's own backward gives this row of the embedding no gradient, and here it has one",
    )


PARTS: dict[str, Callable[[str], bool]] = {
    "one a call": lambda name: True,
    "v alone": lambda name: "v_proj" in name or "query_key_value" in name,
    "gate alone": lambda name: "gate_proj" in name or "ff_proj" in name,
    "norms": lambda name: "norm" in name,
    "head alone": lambda name: "lm_head" in name or "diffusion_head" in name or "transformer.ff_out" in name,
}
FAMILIES = sorted({path.parent.name for path in DATA.glob("*/model.safetensors")} - {"efficient_dlm"})  # names no end


@pytest.mark.daily(4)
@pytest.mark.parametrize("which", PARTS)
@pytest.mark.parametrize("name", FAMILIES)
def test_parts_of_a_checkpoint_are_written_where_they_belong(name: str, which: str) -> None:
    """Against single matrices that take each tensor by themselves; one tensor a call, and all in one call."""
    options: dict[str, Any] = {"mask_id": None if "dg_" in name else 1}
    sent = {
        one: value * 1.5 for one, value in load_file(DATA / name / "model.safetensors").items() if PARTS[which](one)
    }
    apart = load(DATA / name, **options, trainable=True)
    with torch.no_grad():
        for ours, source in parameter_sources(apart.transformer).items():
            if ours == "embed.weight" and apart.config.tied and "lm_head.weight" in sent:
                apart.transformer.embed.weight.copy_(sent["lm_head.weight"])  # of which it is another name
            if source.name in sent:
                rows = slice(None) if source.rows is None else slice(*source.rows)
                apart.transformer.get_parameter(ours).copy_(sent[source.name][rows])
    for packed in (True, False):
        each, whole = load(DATA / name, **options, pack=packed), load(DATA / name, **options, pack=packed)
        for one in sent.items():
            write_weights(each, [one])
        write_weights(whole, reversed(sent.items()))
        assert torch.equal(logits(each), logits(whole))
        assert torch.allclose(logits(each), logits(apart), atol=1e-4)


def test_a_tensor_that_its_sender_overwrites_has_been_taken(two: tuple[Path, Path]) -> None:
    """verl's senders fill one bucket again and again."""
    model, expected = load(two[0]), load(two[1])
    bucket = torch.empty(1 << 16)

    def buckets() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in load_file(two[1] / "model.safetensors").items():
            yield name, bucket[: tensor.numel()].view(tensor.shape).copy_(tensor)

    write_weights(model, buckets())
    assert torch.equal(logits(model), logits(expected))


def test_weights_that_two_parts_share_may_come_by_either_name() -> None:
    """DiffusionGemma's decoder and its encoder's language model are one network."""
    folder = DATA / "dg_dev"
    tensors = {name: value * 1.5 for name, value in load_file(folder / "model.safetensors").items()}
    own, other = (f"model.{part}." for part in ("decoder", "encoder.language_model"))
    renamed = {other + name.removeprefix(own) if name.startswith(own) else name: tensors[name] for name in tensors}
    assert renamed.keys() != tensors.keys()
    models = [load(folder, mask_id=None) for _ in range(2)]
    for model, sent in zip(models, (tensors, renamed), strict=True):
        write_weights(model, sent.items())
    assert torch.equal(*map(logits, models))


@pytest.mark.parametrize("two", ["llada_gqa_tied"], indirect=True)
def test_a_tied_head_is_its_embedding(two: tuple[Path, Path]) -> None:
    model, expected, (embed, head) = load(two[0]), load(two[1]), ("model.transformer.wte.weight", HEAD)
    sent = load_file(two[1] / "model.safetensors")
    matrix = sent.pop(embed)
    write_weights(model, [*sent.items(), (head, matrix)])
    assert torch.equal(logits(model), logits(expected))
    write_weights(model, [(embed, matrix), (head, matrix)])
    for pair in ([(embed, matrix), (head, -matrix)], [(head, matrix), (embed, -matrix)]):
        with pytest.raises(UserError, match="ff_out.weight differs from model.transformer.wte.weight.*Send one"):
            write_weights(model, pair)


@pytest.mark.parametrize("two", ["sdar_moe"], indirect=True)
def test_experts_may_come_in_one_tensor(two: tuple[Path, Path]) -> None:
    """As transformers 5 holds them: gate over up [E, 2 f, D], down [E, D, f]."""
    model, expected, sent = load(two[0]), load(two[1]), load_file(two[1] / "model.safetensors")
    stacks: dict[str, dict[int, Tensor]] = {}
    for name in [one for one in sent if ".experts." in one]:
        stem, _, rest = name.partition(".experts.")
        number, part, _ = rest.split(".")
        stacks.setdefault(f"{stem}.experts.{part}", {})[int(number)] = sent.pop(name)
    whole = {name: torch.stack([of[at] for at in range(len(of))]) for name, of in stacks.items()}
    for name in [one for one in whole if "up_proj" in one]:
        gate = whole.pop(name.replace("up_proj", "gate_proj"))
        whole[name.replace("up_proj", "gate_up_proj")] = torch.cat([gate, whole.pop(name)], 1)
    write_weights(model, {**sent, **whole}.items())
    assert torch.equal(logits(model), logits(expected))
    short = next(iter(whole.items()))
    with pytest.raises(UserError, match=r"has no weight .*experts.*_proj. Send the tensors by the names"):
        write_weights(model, [(short[0], short[1][:-1])])


def test_a_masked_lm_takes_tensors_by_its_own_names(tmp_path: Path) -> None:
    folder = make_masked_lm("bert", tmp_path / "old")
    other = masked_lm("bert", seed=1)
    model, expected = load(folder), load(other, mask_id=load(folder).ids.mask)
    write_weights(model, other.state_dict().items())
    assert torch.equal(logits(model), logits(expected))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.zeros(1), r"wte.weight has the shape \[1\], and in .* it has \[64, 96\]. Send whole tensors"),
        (torch.zeros(64, 96, dtype=torch.int8), "wte.weight is int8, and weights are float32, .*Send numbers of one"),
        (torch.zeros(64, 96, device="meta"), "wte.weight is on the meta device"),
    ],
)
def test_tensors_that_do_not_fit_are_named(two: tuple[Path, Path], tensor: Tensor, message: str) -> None:
    model = load(two[0])
    before = logits(model)
    with pytest.raises(UserError, match=message):
        write_weights(model, [("model.transformer.wte.weight", tensor)])
    with pytest.raises(UserError, match="has no weight model.transformer.wte.wait. Send the tensors by the names of"):
        write_weights(model, [("model.transformer.wte.wait", tensor)])
    assert torch.equal(logits(model), before)
