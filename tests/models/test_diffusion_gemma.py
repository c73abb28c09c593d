"""DiffusionGemma's network: recorded logits, transformers' own class, and files that are not whole."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import full
from model_folders import DATA, copy_of, edit_weights, published
from safetensors.torch import save_file

from dllm import UserError, load
from dllm.parts import (
    CostModel,
    DiffusionGemma,
    Ids,
    ModelConfig,
    inspect_checkpoint,
    load_model,
    parameter_sources,
    quantize_folder,
    read_model_config,
    unwatched,
)
from tests.parity import TWO_PASSES, compare_passes
from tests.support.adapters import stored

FOLDER, NAME = DATA / "dg_dev", "DiffusionGemmaForBlockDiffusion"
CAUSAL = "model.encoder.language_model.layers."


def network(folder: Path = FOLDER, dtype: torch.dtype = torch.float64) -> DiffusionGemma:
    found = load_model(folder, dtype=dtype)
    assert isinstance(found, DiffusionGemma)
    return found


@pytest.mark.parametrize("name", ["dg_dev", "dg_other"])
def test_both_passes_give_the_recorded_logits(name: str) -> None:
    found = list(compare_passes(DATA / name))
    assert len(found) == 4 * 3 * 2 and all(one.passed for one in found), [one for one in found if not one.passed]


def test_a_field_of_a_case_that_is_not_known_is_a_failure(tmp_path: Path) -> None:
    folder = copy_of("dg_dev", tmp_path)
    cases = json.loads((folder / TWO_PASSES).read_text())
    (folder / TWO_PASSES).write_text(json.dumps([{**cases[0], "layers": []}]))
    assert [one.why for one in compare_passes(folder)] == [": fields ['layers']"] * 2


def text_config(**changes: Any) -> dict[str, Any]:
    """The text model of dg_dev's file, changed."""
    return {**published("dg_dev")["text_config"], **changes}


def rotation(**changes: Any) -> dict[str, Any]:
    """The rotations of both kinds of layers, those of global ones changed; null leaves a key out."""
    turns = {"rope_type": "proportional", "rope_theta": 2e4, "partial_rotary_factor": 0.5, **changes}
    return {
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        "full_attention": {key: value for key, value in turns.items() if value is not None},
    }


OTHER = text_config(  # two global layers inside, odd sizes, groups of heads, other bases and shares
    num_hidden_layers=5,
    hidden_size=40,
    num_attention_heads=6,
    num_key_value_heads=3,
    head_dim=6,
    sliding_window=11,
    layer_types=["sliding_attention", "full_attention", *["sliding_attention"] * 2, "full_attention"],
    vocab_size=83,
    per_layer_config={str(at): {"head_dim": 24, "num_key_value_heads": 2} for at in (1, 4)},
    num_experts=5,
    top_k_experts=3,
    intermediate_size=30,
    moe_intermediate_size=16,
    rms_norm_eps=1e-5,
    rope_parameters=rotation(),
)


def saved(folder: Path, text: dict[str, Any]) -> Any:
    """transformers' own class with random weights, as it reads the ``text`` of a file, and saved with that file."""
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, NAME):
        pytest.skip(f"transformers {transformers.__version__} has no {NAME}")
    config = {**published("dg_dev"), "canvas_length": 12, "text_config": text}
    torch.manual_seed(0)
    model = getattr(transformers, NAME)(transformers.DiffusionGemmaConfig.from_dict(deepcopy(config))).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or "scal" in name:  # as they are made, they would hide where they go
            parameter.data.uniform_(0.5, 1.5)
        elif "vision" not in name:
            parameter.data.normal_(std=0.2)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return model


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model of another shape, and its folder."""
    folder = tmp_path_factory.mktemp("native")
    return saved(folder, OTHER), folder


@pytest.mark.parametrize("prompt", [5, 31])
def test_another_shape_computes_what_transformers_computes(native: Any, prompt: int) -> None:
    """Before the window is full, and behind it."""
    theirs, folder = native
    ours, length = network(folder, torch.float32), 12
    tokens = torch.randint(0, 83, (2, prompt + length), generator=torch.Generator().manual_seed(prompt))
    before = torch.randn(2, length, 83, generator=torch.Generator().manual_seed(1))
    masked = (torch.arange(prompt + length) >= prompt).expand(2, -1)
    for conditioned in (None, before):
        soft = torch.zeros(2, prompt + length, 40)
        with torch.inference_mode():
            expected = theirs(
                input_ids=tokens[:, :prompt], decoder_input_ids=tokens[:, prompt:], self_conditioning_logits=conditioned
            )
            if conditioned is not None:
                soft[:, prompt:] = ours.soft(conditioned)
            found = ours.logits(ours.encode(tokens, None, masked, prompt, soft)[:, prompt:])
        assert float((found - expected.logits).abs().max()) < 1e-4 and float(expected.logits.abs().max()) > 2


SLIDING = ["sliding_attention"]
GLOBAL_SIZES = {"global_head_dim": 24, "num_global_key_value_heads": 2}
SPELLINGS: dict[str, tuple[dict[str, Any], list[str]]] = {  # what a file says in place of ``OTHER``, and leaves out
    "sizes of global layers": (GLOBAL_SIZES, ["per_layer_config"]),
    "no kinds of layers": (GLOBAL_SIZES, ["per_layer_config", "layer_types"]),
    "the last layer slides": ({**GLOBAL_SIZES, "layer_types": SLIDING * 5}, ["per_layer_config"]),
    "null overrides": ({"per_layer_config": None}, []),
    "no share of a head": ({"rope_parameters": rotation(partial_rotary_factor=None)}, []),
    "a plain rotation": ({"rope_parameters": rotation(partial_rotary_factor=None, rope_type=None)}, []),
    "no rotation": ({}, ["rope_parameters"]),
}


@pytest.mark.parametrize("name", list(SPELLINGS) if full() else list(SPELLINGS)[1:6:2])
def test_a_file_means_what_transformers_takes_it_for(name: str, tmp_path: Path) -> None:
    changes, gone = SPELLINGS[name]
    theirs = saved(tmp_path, {key: value for key, value in {**OTHER, **changes}.items() if key not in gone})
    tokens = torch.randint(0, 83, (1, 29), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        expected = theirs(input_ids=tokens[:, :17], decoder_input_ids=tokens[:, 17:]).logits
        ours = network(tmp_path, torch.float32)
        found = ours.logits(ours.encode(tokens, None, torch.arange(29)[None] >= 17, 17)[:, 17:])
    assert float((found - expected).abs().max()) < 1e-4
    assert any("the last of layer_types" in one for one in ours.config.warnings) == (name == "the last layer slides")


def test_in_bfloat16_it_rounds_as_transformers_does(native: Any) -> None:
    """Norms multiply before they round, and the scale of embeddings is rounded, bit for bit. The whole is as far from
    float32 as theirs."""
    theirs, folder = native
    half = type(theirs)(theirs.config).eval()
    half.load_state_dict(theirs.state_dict())
    half.to(torch.bfloat16)
    ours, noise, decoder = network(folder, torch.bfloat16), torch.Generator().manual_seed(0), half.model.decoder
    tokens, rows = torch.randint(0, 83, (6, 17), generator=noise), torch.randn(7, 40, generator=noise).bfloat16()
    masked = (torch.arange(17) >= 5).expand(6, -1)
    with torch.inference_mode():
        assert torch.equal(ours.norm(rows), decoder.norm(rows))
        assert torch.equal(ours.embed(tokens) * ours.embed_scale, decoder.embed_tokens(tokens))
        given = {"input_ids": tokens[:, :5], "decoder_input_ids": tokens[:, 5:]}
        exact, rounded = theirs(**given).logits, half(**given).logits
        found = ours.logits(ours.encode(tokens, None, masked, 5)[:, 5:])
    own, other = (float((one - exact).abs().mean()) for one in (found, rounded))
    assert own < 1.1 * other and other < 0.2 * float(exact.abs().mean()), (own, other)


def test_the_file_says_what_the_network_is() -> None:
    config = read_model_config(FOLDER)
    assert config.gemma is not None and config.mask_id is None and config.process == "uniform"
    sliding, last = config.gemma.layers[0], config.gemma.layers[5]
    assert (sliding.head_dim, sliding.kv_heads, sliding.sliding, sliding.theta, sliding.pairs) == (8, 2, True, 1e4, 4)
    assert (last.head_dim, last.kv_heads, last.sliding, last.theta, last.pairs) == (16, 1, False, 1e6, 2)
    assert config.gemma.softcap == 30 and config.window == 8 and config.attention.block == 8
    assert config.unread == () and config.warnings == ("The towers for images are left out: only text is read.",)


def test_kinds_of_layers_have_the_defaults_of_the_class() -> None:
    """Without kinds every sixth layer is global; without overrides these have heads of 512."""
    text = {
        key: value
        for key, value in text_config(num_hidden_layers=12).items()
        if key not in ("layer_types", "per_layer_config", "rope_parameters")
    }
    gemma = ModelConfig.from_published({**published("dg_dev"), "text_config": text}).gemma
    assert gemma is not None
    assert [at for at, kind in enumerate(gemma.layers) if not kind.sliding] == [5, 11]
    assert {(kind.head_dim, kind.kv_heads, kind.theta, kind.pairs) for kind in gemma.layers} == {
        (8, 2, 1e4, 4),
        (512, 2, 1e6, 64),
    }
    own = {**text, "global_head_dim": 24, "num_global_key_value_heads": 4}
    gemma = ModelConfig.from_published({**published("dg_dev"), "text_config": own}).gemma
    assert gemma is not None and (gemma.layers[5].head_dim, gemma.layers[5].kv_heads) == (24, 4)


@pytest.mark.parametrize(
    ("changes", "text", "words"),
    [
        ({"text_config": None}, None, "has no text_config, so it describes towers alone"),
        ({"tie_word_embeddings": False}, {}, "tie_word_embeddings=false"),
        ({"canvas_length": 300}, {}, "canvas_length=300, max_position_embeddings=256: the first must not be larger"),
        ({"canvas_length": 0}, {}, "canvas_length=0, which must be an integer from 1"),
        ({}, {"tie_word_embeddings": False}, "text_config has tie_word_embeddings=false"),
        ({}, {"use_bidirectional_attention": "all"}, "use_bidirectional_attention='all'"),
        ({}, {"attention_bias": True}, "attention_bias=true.*Copy the checkpoint's own config.json again"),
        ({}, {"hidden_activation": "silu"}, "hidden_activation='silu'"),
        ({}, {"layer_types": ["full_attention"] * 5}, "one kind per layer"),
        ({}, {"layer_types": ["linear_attention"] * 6}, "layer_types="),
        ({}, {"num_key_value_heads": 3}, "num_attention_heads=4, num_key_value_heads=3: the first must be a multiple"),
        ({}, {"head_dim": 7}, "head_dim=7: a head's features rotate in pairs"),
        ({}, {"top_k_experts": 9}, "top_k_experts=9, num_experts=4"),
        ({}, {"per_layer_config": {"9": {"head_dim": 8}}}, "per_layer_config.'9'"),
        ({}, {"per_layer_config": {"5": {"sliding_window": 8}}}, "a layer's number from 0 to 5"),
        ({}, {"final_logit_softcapping": 0}, "final_logit_softcapping=0"),
        ({}, {"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}}, "rope_parameters.full_attention=null"),
        ({}, {"rope_parameters": rotation(factor=2)}, "must be an object of"),
        ({}, {"rope_parameters": rotation(rope_theta=None)}, "rope_parameters.full_attention lacks rope_theta"),
        ({}, {"rope_parameters": rotation(rope_type=None)}, "a head that rotates in part must have rope_type='prop"),
        ({}, {"num_experts": None}, "lacks num_experts"),
    ],
)
def test_a_file_that_describes_another_network_is_refused(
    changes: dict[str, Any], text: dict[str, Any] | None, words: str
) -> None:
    config = {**published("dg_dev"), **({} if text is None else {"text_config": text_config(**text)}), **changes}
    with pytest.raises(UserError, match=words) as refused:
        ModelConfig.from_published(config)
    assert "\n" not in str(refused.value)


def test_keys_that_nobody_reads_are_told() -> None:
    config = {**published("dg_dev"), "depth_of_thought": 3, "text_config": text_config(altitude=8)}
    assert ModelConfig.from_published(config).unread == ("depth_of_thought", "text_config.altitude")


def test_the_file_holds_every_parameter_and_towers_are_left_out() -> None:
    names = {source.name for source in parameter_sources(DiffusionGemma(read_model_config(FOLDER))).values()}
    others = stored(FOLDER).keys() - names
    towers = ("model.encoder.vision_tower.", "model.encoder.embed_vision")
    assert others and all(name.startswith(towers) for name in others)
    report = inspect_checkpoint(FOLDER)
    assert report.usable and [note for note in report.notes if "left out" in note] == [
        "The towers for images are left out: only text is read."
    ]
    assert report.parameters == sum(tensor.numel() for name, tensor in stored(FOLDER).items() if name in names)
    assert report.kv_bytes("float32") == 4 * 2 * (5 * 2 * 8 + 16)


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        ("model.decoder.layers.3.layer_scalar", "layers.3.layer_scalar is missing"),
        (f"{CAUSAL}2.layer_scalar", "language_model.layers.2.layer_scalar is missing"),
        ("model.decoder.self_conditioning.up_proj.weight", "self_conditioning.up_proj.weight is missing"),
        ("model.decoder.layers.0.self_attn.v_proj.weight", "v_proj.weight is missing"),
    ],
)
def test_a_file_without_a_part_is_refused(gone: str, words: str, tmp_path: Path) -> None:
    folder = copy_of("dg_dev", tmp_path)
    edit_weights(folder, **{gone.replace(".", "__"): None})
    with pytest.raises(UserError, match=words):
        load(folder)


def test_towers_alone_are_refused(tmp_path: Path) -> None:
    folder = copy_of("dg_dev", tmp_path)
    towers = {name: tensor for name, tensor in stored(FOLDER).items() if "vision" in name}
    save_file(towers, folder / "model.safetensors")
    with pytest.raises(UserError, match="embed_tokens.weight is missing"):
        load(folder)


def test_values_of_a_global_layer_are_refused(tmp_path: Path) -> None:
    folder = copy_of("dg_dev", tmp_path)
    edit_weights(folder, model__decoder__layers__5__self_attn__v_proj__weight=torch.zeros(16, 32))
    with pytest.raises(UserError, match=r"layers.5.self_attn.v_proj.weight is not part of this architecture"):
        load(folder)


def test_a_file_may_hold_the_causal_passs_names(tmp_path: Path) -> None:
    """Its class ties both. A file with both is refused: one of them would be ignored."""
    folder, begin = copy_of("dg_dev", tmp_path), "model.decoder.layers."
    tensors = stored(FOLDER)
    other = {
        name.replace(begin, CAUSAL) if name.startswith(begin) and "layer_scalar" not in name else name: tensor
        for name, tensor in tensors.items()
    }
    save_file(other, folder / "model.safetensors")
    expected, found = (dict(network(place).named_parameters()) for place in (FOLDER, folder))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    save_file({name: tensor.clone() for name, tensor in {**tensors, **other}.items()}, folder / "model.safetensors")
    with pytest.raises(UserError, match="is not part of this architecture"):
        load(folder)


def test_ends_of_a_text_are_those_of_the_generation_config_or_else_all_of_the_config(tmp_path: Path) -> None:
    folder = copy_of("dg_other", tmp_path)
    assert load(folder).ids == Ids(None, 7, (7, 33))
    (folder / "generation_config.json").unlink()
    assert load(folder).ids == Ids(None, 1, (1,))
    config = published("dg_other")
    config["text_config"]["eos_token_id"] = [9, 1, 50]
    (folder / "config.json").write_text(json.dumps(config))
    assert load(folder).ids == Ids(None, 9, (9, 1, 50))


def test_a_mask_is_refused() -> None:
    with pytest.raises(UserError, match=f"mask_id=60: undecided positions of {NAME} show noise"):
        load(FOLDER, mask_id=60)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with products of 128 rows and columns, which int4 takes."""
    text = text_config(
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=128,
        head_dim=32,
        per_layer_config={"5": {"head_dim": 64, "num_key_value_heads": 2}},
    )
    folder = tmp_path_factory.mktemp("wide")
    config = {**published("dg_dev"), "vision_config": None, "text_config": text}
    model = DiffusionGemma(ModelConfig.from_published(config)).eval()
    noise = torch.Generator().manual_seed(0)
    tensors = {}
    for name, source in parameter_sources(model).items():
        shape = model.get_parameter(name).shape
        gains = len(shape) == 1
        tensors[source.name] = (
            torch.rand(shape, generator=noise) / 2 + 0.75
            if gains
            else torch.randn(shape, generator=noise) * shape[-1] ** -0.5
        )
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("kind", "head", "error"), [("int8", None, 0.15), ("int4", None, 0.8), ("int4", "int8", 0.8)])
def test_quantised_weights_stay_close(wide: Path, kind: str, head: str | None, error: float) -> None:
    """A wrong place of a scale shows errors above 1. The router stays as it is."""
    whole, narrow = (
        load(wide, dtype="bfloat16", quantize=way, quantize_head=end).transformer
        for way, end in ((None, None), (kind, head))
    )
    tokens, masked = torch.arange(24)[None] % 60, torch.arange(24)[None] >= 16
    with torch.inference_mode():
        expected, found = (one.logits(one.encode(tokens, None, masked, 16)) for one in (whole, narrow))
    assert 0 < float((expected - found).abs().mean() / expected.abs().mean()) < error
    assert type(narrow.layers[0].router.proj).__name__ == "Router"


@pytest.mark.parametrize(("kind", "head"), [("int8", None), ("int4", None), ("int4", "int4")])
def test_weights_narrow_on_disk_are_those_in_memory(wide: Path, kind: str, head: str | None, tmp_path: Path) -> None:
    quantize_folder(wide, tmp_path, read_model_config(wide), kind, None, unwatched, head)
    memory, disk = (
        load(place, dtype="bfloat16", quantize=kind, quantize_head=head).transformer for place in (wide, tmp_path)
    )
    tokens, masked = torch.arange(24)[None] % 60, torch.arange(24)[None] >= 16
    with torch.inference_mode():
        first, second = (one.logits(one.encode(tokens, None, masked, 16)) for one in (memory, disk))
    assert torch.equal(first, second)
    aligned = [one for one in disk.state_dict().values() if one.nbytes % 64 == 0]
    assert aligned and all(one.data_ptr() % 64 == 0 for one in aligned), "a scalar of a layer shifts what follows it"


@pytest.mark.parametrize("head", ["int8", "int4"])
def test_expected_embeddings_are_sums_of_rounded_rows(wide: Path, head: str) -> None:
    """What the next forward is given under logits, and the head's own, of one narrow matrix: in float64."""
    network = load(wide, dtype="bfloat16", quantize="int8", quantize_head=head).transformer
    rows = network.embed(torch.arange(network.config.vocab)).double()
    before = torch.randn(2, 5, network.config.vocab, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        soft, hidden = network.soft(before), network.encode(torch.arange(8)[None])
        found = network.logits(hidden).double()
    torch.testing.assert_close(
        soft.double(), before.double().softmax(-1) @ rows * network.embed_scale, rtol=0.02, atol=0.05
    )
    assert network.config.gemma is not None
    cap = network.config.gemma.softcap
    torch.testing.assert_close(found, (hidden.double() @ rows.t() / cap).tanh() * cap, rtol=0.02, atol=0.05)


def test_another_canvas_is_refused() -> None:
    config = ModelConfig.from_published(published("dg_dev"))
    assert config.with_attention_block(8) == config
    with pytest.raises(UserError, match="attention_block=4, but config.json says canvas_length=8"):
        config.with_attention_block(4)


def test_flops_count_both_kinds_of_layers() -> None:
    """Of one row, by counting products of the network's own modules; each token uses two experts of four."""
    model = network()
    products = sum(
        part.weight.numel() for layer in model.layers for part in layer.modules() if isinstance(part, torch.nn.Linear)
    )
    experts = sum(
        (part.gate_up.numel() + part.down.numel()) // 2
        for layer in model.layers
        for part in layer.modules()
        if type(part).__name__ == "StackedExperts"
    )
    assert float(CostModel(model.config).rows.sum()) == 2 * (products + experts)
