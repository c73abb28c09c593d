"""Models that predict the next token: equal to transformers' own decodes, and refused where a mask would be asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dllm import Decoder, load
from dllm.parts import (
    Defaults,
    IncompatibleParts,
    Model,
    ModelConfig,
    Order,
    Refusal,
    UserError,
    composed,
    fact_rows,
    inspect_checkpoint,
    plain_config,
)
from dllm.scoring.decisions import Choice
from tests.autoregressive import line
from tests.serve.live import live
from tests.support.gguf_files import Converted, Kind
from tests.support.mini_llama import mini_llama
from tests.support.next_token_folders import SIZES, TRAITS, generated, next_token_folder

PARTS = ("whole", "finished", "stop_front")
ASKED = 'Copy the list:\n["Kai", "Emma"]'


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(mini_llama(tmp_path_factory.mktemp("mini") / "llama"))


@pytest.mark.parametrize("trait", list(TRAITS))
def test_it_decodes_what_transformers_generates(trait: str, tmp_path: Path) -> None:
    """Tokens and log-probabilities, alone and in a batch, with the exact cache and with none."""
    pytest.importorskip("transformers")
    told, equal = line(next_token_folder(tmp_path / trait, trait))
    assert equal, told


@pytest.mark.parametrize(
    ("architecture", "own", "kind"),
    [
        ("llama", {"num_key_value_heads": 4}, "F32"),
        ("llama", {"tie_word_embeddings": True}, "F32"),
        ("qwen2", {"hidden_size": 64, "intermediate_size": 96}, "Q8_0"),
        ("qwen3", {"head_dim": 16}, "F32"),
    ],
)
def test_a_gguf_file_decodes_what_transformers_reads_in_it(
    architecture: str, own: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    """Q and k of Llama have turned rows there, which transformers turns back by code of its own."""
    transformers = pytest.importorskip("transformers")
    folder = next_token_folder(tmp_path / "source", (architecture, own), lengths=(9,))
    (tmp_path / "packed").mkdir()
    Converted(folder, tmp_path / "packed" / "model.gguf", Kind[kind])
    config = transformers.AutoConfig.from_pretrained(folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "packed", gguf_file="model.gguf", config=config, dtype="float32"
    )
    expected = generated(theirs, [5, 9, 31, 4, 77], 12)["tokens"]
    (found,) = decoder(load(tmp_path / "packed" / "model.gguf"), gen_length=12)([5, 9, 31, 4, 77])
    assert found.canvas[: len(expected)] == expected


def decoder(model: Model, **options: Any) -> Decoder:
    return Decoder(model, Order("left_to_right"), *PARTS, **{"gen_length": 24, **options})


def test_static_shapes_give_the_same(small: Model) -> None:
    asked = [ASKED, 'Sort the list:\n["Zoe", "Ida", "Tim"]', ASKED]
    expected, *others = (
        decoder(small, batch_size=rows, runtime=runtime)(asked) for rows, runtime in ((1, "eager"), (3, "static"))
    )
    assert [one.canvas for one in expected] == [one.canvas for one in others[0]] and expected[0].text == ASKED[15:]


@pytest.mark.parametrize(
    ("setting", "kind", "words"),
    [
        ({"sampler": "confidence"}, Refusal, "asks the model what stands at masks, but LlamaForCausalLM predicts"),
        ({"sampler": Order()}, Refusal, "it has no mask"),
        ({"sampler": "linear_spec", "cache": "linear_spec"}, Refusal, "it has no mask"),
        ({"cache": "dual"}, IncompatibleParts, "this one is causal, for the next token"),
        ({"guidance": 1.0}, Refusal, "needs a prompt of masks"),
    ],
)
def test_what_asks_masks_is_refused(setting: dict[str, Any], kind: type[Exception], words: str, small: Model) -> None:
    given = {"sampler": Order("left_to_right"), "blocks": "whole", "cache": "finished", **setting}
    with pytest.raises(kind, match=words) as caught:
        Decoder(small, **given)
    if isinstance(caught.value, Refusal) and "sampler" in setting:
        assert str(caught.value).count("positions") == 1


def test_gaps_that_text_follows_are_refused(small: Model) -> None:
    decode = decoder(small)
    for parts, words in (((["a", 3, "b"]), "text after a gap"), (([3]), "a text without a beginning")):
        with pytest.raises(UserError, match=f"{words} means nothing to llama, which predicts the next token"):
            decode(decode.infill(parts))
    with pytest.raises(UserError, match="mask_id=2: LlamaForCausalLM predicts the next token, and has no mask token"):
        load(small.path, mask_id=2)


def test_it_gives_no_rollouts(small: Model) -> None:
    with pytest.raises(UserError, match="predicts the next token, and rollouts here are canvases of masks"):
        decoder(small).rollouts([3, 4, 5], n=2)


def test_a_decision_is_the_next_token(small: Model) -> None:
    town = Choice(["Cairo", "Lima"], template='[{"name": "Bush", "age": 72, "town": "{slot}"}]')
    assert decoder(small).decide("Rows as JSON:\nBush, 72, Cairo", town=town)["town"].choice == "Cairo"


def test_the_server_answers_as_the_decoder_does(small: Model) -> None:
    config = composed(["experiment=ar"])
    parts = {group: plain_config(config[group]) for group in ("sampler", "blocks", "cache", "eos")}
    expected = decoder(small)(ASKED)[0].text
    with live(small, defaults=Defaults(small, "mini", **parts, gen_length=24)) as server, server.client() as client:

        def reply(**more: Any) -> Any:
            body = {"messages": [{"role": "user", "content": ASKED}], **more}
            return client.post("/v1/chat/completions", json=body)

        (plain,), (formed,) = (
            reply(**more).json()["choices"]
            for more in ({}, {"structured_outputs": {"regex": r'\["Kai", "[A-Z][a-z]+"\]'}})
        )
        streamed = reply(stream=True).text
        refused = reply(diffusion={"sampler": "confidence"})
    assert plain["message"]["content"] == formed["message"]["content"] == expected and plain["finish_reason"] == "stop"
    deltas = [json.loads(one[6:])["choices"] for one in streamed.split("\n") if one.startswith("data: {")]
    assert "".join(one[0]["delta"].get("content") or "" for one in deltas if one) == expected
    assert refused.status_code == 400 and "predicts the next token alone" in refused.text


def of(kind: str, **keys: Any) -> Callable[[], ModelConfig]:
    return lambda: ModelConfig.from_published({**SIZES, "architectures": [f"{kind}ForCausalLM"], **keys})


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (of("Llama", mask_token_id=7), "mask_token_id=7 under LlamaForCausalLM.*has no mask.*model.family="),
        (of("Llama", hidden_act="gelu"), "hidden_act='gelu', which must be 'silu'"),
        (of("Llama", partial_rotary_factor=0.5), "partial_rotary_factor=0.5"),
        (of("Llama", rope_scaling={"rope_type": "proportional"}), "rope_type='proportional'"),
        (of("Llama", head_dim=7), "must be an even number"),
        (of("Mistral", layer_types=["full_attention"] * 3), "layer_types=.*must be null"),
        (of("Mistral", attention_bias=True), "attention_bias=true"),
        (of("Qwen2", layer_types=["sliding_attention"] * 3), "layers with a window need its length"),
        (of("Qwen3", layer_types=["full_attention"] * 2), "one kind per layer"),
        (of("Qwen3", layer_types=["chunked_attention"] * 3), "chunked_attention"),
    ],
)
def test_keys_that_would_change_what_is_computed_are_refused(read: Callable[[], Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        read()


def test_the_check_tells_what_it_is(small: Model) -> None:
    rows = dict(fact_rows(inspect_checkpoint(small.path)))
    assert rows["mask id"] == "none: it predicts the next token" and "from left to right" in rows["attention"]
    assert inspect_checkpoint(small.path).usable


def test_a_growing_embedding_is_read_up_to_where_it_grows() -> None:
    """Its published class rotates a longer text's keys by several frequencies, as they come."""
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    config = of("Llama", rope_parameters=dynamic)()
    assert config.max_length == SIZES["max_position_embeddings"] and "texts of 128 tokens" in config.warnings[-1]
