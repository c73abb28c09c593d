"""Scaled rotary embeddings: transformers' own tables and logits, rows of different lengths, what is refused."""

from __future__ import annotations

import copy
import json
import os
import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import DATA, Combination, decode, full, parts_of, recorded, requests, results
from model_folders import copy_of, edit_config, logits, published
from recording import FakeGraph

from dllm import load
from dllm.models.network import rope
from dllm.parts import (
    Graphs,
    ModelConfig,
    Rotary,
    Transformer,
    UserError,
    choices,
    fact_rows,
    inspect_checkpoint,
    load_model,
)
from tests.models.test_parity import native
from tests.rope_scaling import compared
from tests.support.random_models import random_model

GOLDEN: dict[str, Any] = json.loads((DATA / "rope_scaling.json").read_text())
HALF = 16 // 2  # frequencies of a head of 16
LISTS = {"short_factor": [1 + 0.1 * j for j in range(HALF)], "long_factor": [1 + 2.0 * j for j in range(HALF)]}
LAWS_SEED = int(os.environ.get("LAWS_SEED", "0"))
# One of each kind, by which a text of 37 tokens is longer than those of training.
KINDS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 3.0},
    "dynamic": {"factor": 4.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 0.5},
    "longrope": {**LISTS, "factor": 4.0, "original_max_position_embeddings": 16},
}


def test_recorded_tables_are_ours() -> None:
    assert [name for name, same in compared(GOLDEN) if not same] == []


def test_a_table_off_by_its_twelfth_digit_is_told() -> None:
    content = copy.deepcopy(GOLDEN)
    content["cases"][9]["inv_freq"][3] *= 1 + 2e-12
    content["ntk"][2]["factor"] *= 1 + 2e-12
    assert [same for _, same in compared(content)].count(False) == 2


@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("kind", KINDS)
def test_random_tables_equal_those_of_transformers(kind: str, spelling: str) -> None:
    """Within the rounding of its float32 tables. llama3's ramp multiplies it."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    chance = random.Random(kind)
    for _ in range(8):
        head, longest = chance.choice([16, 32, 64]), chance.choice([512, 4096, 8192])
        inner: dict[str, Any] = {"rope_type": kind, **KINDS[kind], "factor": chance.uniform(1, 40)}
        if "original_max_position_embeddings" in inner:
            inner["original_max_position_embeddings"] = chance.choice([256, longest])
        if kind == "longrope":
            inner |= {name: [chance.uniform(1, 40) for _ in range(head // 2)] for name in LISTS}
        if kind == "yarn":
            inner |= {
                "beta_fast": chance.uniform(8, 64),
                "beta_slow": chance.uniform(0.5, 4),
                "truncate": chance.random() < 0.5,
            }
            inner["mscale"] = chance.choice([None, 0, 0.7])
        theta, length = chance.choice([1e4, 5e5]), chance.choice([200, 3000, 20000])
        inner = {name: value for name, value in inner.items() if value is not None}
        config = LlamaConfig(
            hidden_size=4 * head,
            num_attention_heads=4,
            max_position_embeddings=longest,
            rope_parameters={**inner, "rope_theta": theta},
        )
        expected, attention = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)
        file = {"rope_theta": theta, spelling: inner}
        ours = rope.scaling_of(file, "config.json", theta, head, longest)
        assert ours is not None
        found = ours.frequencies(theta, head, torch.tensor([length]))[0]
        torch.testing.assert_close(found.float(), expected, rtol=1e-5, atol=0)
        assert ours.attention == pytest.approx(attention, rel=1e-12)


def scaled(name: str, kind: str, **changes: Any) -> dict[str, Any]:
    """A published file whose embedding is of this kind, and texts of training of 16 tokens."""
    return published(name, max_position_embeddings=16, rope_scaling={"rope_type": kind, **KINDS[kind]}, **changes)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_the_native_class(kind: str) -> None:
    model = random_model(scaled("dream_gqa", kind, num_hidden_layers=2), seed=5)
    other = native(
        model,
        "Qwen2",
        max_position_embeddings=16,
        rope_parameters={"rope_theta": model.config.theta, "rope_type": kind, **KINDS[kind]},
    )
    tokens = torch.randint(0, 100, (3, 37), generator=torch.Generator().manual_seed(6))
    visible = torch.ones(3, 1, 37, 37, dtype=torch.bool)
    with torch.inference_mode():
        reference = other(tokens, attention_mask=visible).logits
    ours = logits(model, tokens)
    assert (ours - reference).abs().max() <= 1e-4
    plain = random_model(published("dream_gqa", num_hidden_layers=2), seed=5)
    assert (logits(plain, tokens) - reference).abs().max() > 0.01, "the kind tells"


@cache
def stretched(kind: str) -> Transformer:
    """tiny-llada with an embedding whose texts of training have 30 columns, so that its rows of 35 and 36 rotate
    otherwise than the one of 24."""
    found = load_model(DATA / "models" / "tiny-llada", dtype=torch.float64)
    theta, dim = found.config.theta, found.config.rotary_dim
    given = {"rope_type": kind, **KINDS[kind], "original_max_position_embeddings": 30}
    if kind == "longrope":
        given |= {"short_factor": [1.0] * (dim // 2), "long_factor": [1 + 0.3 * j for j in range(dim // 2)]}
    scaling = rope.scaling_of({"rope_scaling": given}, "config.json", theta, dim, 30)
    assert scaling is not None and scaling.by_length
    found.config, found.rotary = replace(found.config, scaling=scaling), Rotary(dim, theta, scaling)
    return found


CACHED = [("confidence", "fixed", kv) for kv in choices("cache")] + [
    ("lopa", "fixed", "none"),
    ("freedave", "fixed", "dual"),
    ("confidence", "sliding", "sliding"),
    ("confidence", "whole", "window"),
    ("confidence", "whole", "flash_dllm"),
]


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rows_of_different_lengths_rotate_as_alone_with_every_cache(kind: str) -> None:
    network, tried, seen = stretched(kind), 0, set()
    plain = [one.result.canvas for one in decode(Combination("confidence", "fixed"), requests())]
    for names in CACHED if full() else random.Random(LAWS_SEED).sample(CACHED, 4):
        combination = Combination(*names)
        try:
            parts = parts_of(combination)
        except UserError:
            continue
        together = recorded(network, parts, requests())
        for number, request in enumerate(requests()):
            request = replace(request, param_index=number)
            assert recorded(network, parts, [request])[0].canvases == together[number].canvases, names
        tried += 1
        seen.add(tuple(tuple(one.result.canvas) for one in together))
    assert tried and tuple(map(tuple, plain)) not in seen, "the lengths tell"


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_recorded_forwards_take_the_lengths_as_an_input(kind: str) -> None:
    """Turns that replay give the tokens of those that do not, for rows of other lengths too."""
    network = stretched(kind)
    log: list[str] = []
    graphs = Graphs(network, lambda: FakeGraph(log))
    for kv in ("dual", "none"):
        parts = parts_of(Combination("confidence", "fixed", kv))
        for batch in (requests(), requests()[::-1], requests()):
            found = results(network, parts, batch, lag=0, runs=graphs)
            assert [one.canvas for one in found] == [one.canvas for one in results(network, parts, batch)]
    assert "replay" in log


def test_a_row_that_is_cut_short_keeps_its_table() -> None:
    """An end of text cuts columns off; the kept keys are rotated already."""
    network = stretched("dynamic")
    for eos in ("truncate_at_eos", "stop_at_eos"):
        for kv in ("none", "dual", "prefix"):
            parts = parts_of(Combination("confidence", "fixed", kv, eos))
            together = recorded(network, parts, requests())
            alone = [recorded(network, parts, [replace(one, param_index=at)])[0] for at, one in enumerate(requests())]
            assert [one.canvases for one in together] == [one.canvases for one in alone]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"rope_type": "ntk", "factor": 2.0}, "rope_scaling.rope_type='ntk': 'default', 'linear'"),
    ({"rope_type": "linear"}, "rope_scaling.factor"),
    ({"rope_type": "linear", "factor": 0.5}, "rope_scaling.factor=0.5, which must be a number from 1"),
    ({"rope_type": "linear", "factor": 2.0, "beta_fast": 32}, "rope_scaling.beta_fast=32, which is not a key of a"),
    ({"rope_type": "yarn"}, "rope_scaling: neither factor nor a shorter original_max_position_embeddings"),
    ({"rope_type": "yarn", "factor": 2.0, "beta_fast": 1, "beta_slow": 2}, "beta_fast=1 must not be below beta_slow=2"),
    ({"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 4, "high_freq_factor": 4}, "low_freq_factor=4 must be"),
    ({"rope_type": "llama3", "factor": 2.0}, "lacks rope_scaling.low_freq_factor, rope_scaling.high_freq_factor"),
    (
        {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0] * HALF, "factor": 2.0},
        "short_factor has 1 numbers, and 8 frequencies rotate",
    ),
    ({"rope_type": "default", "mrope_section": [2, 3, 3]}, "rope_scaling.mrope_section"),
]


@pytest.mark.parametrize(("given", "sentence"), REFUSED, ids=[sentence for _, sentence in REFUSED])
def test_what_no_kind_has_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        ModelConfig.from_published(published("dream_gqa", rope_scaling=given))
    assert sentence in str(caught.value)


def test_a_file_in_lladas_layout_is_never_scaled() -> None:
    """Its class reads no rope_scaling."""
    with pytest.raises(UserError, match="only unscaled rotary embeddings"):
        ModelConfig.from_published(published("tiny-llada", rope_scaling={"rope_type": "linear", "factor": 2.0}))


def test_two_spellings_agree_or_are_refused() -> None:
    yarn = {"rope_type": "yarn", **KINDS["yarn"]}
    of = ModelConfig.from_published
    once = of(published("dream_gqa", rope_scaling=yarn))
    assert of(published("dream_gqa", rope_scaling=yarn, rope_parameters={"full_attention": yarn})) == once
    assert of(published("dream_gqa", rope_scaling={"type": "linear", **yarn})) == once, "rope_type wins"
    inner = {**yarn, "original_max_position_embeddings": 99}
    assert of(published("dream_gqa", rope_scaling=inner, original_max_position_embeddings=16)) == once, "the top wins"
    with pytest.raises(UserError, match="they contradict each other"):
        of(published("dream_gqa", rope_scaling=yarn, rope_parameters={"rope_type": "linear", "factor": 2.0}))


def test_longer_texts_are_let_in_and_older_code_is_told(tmp_path: Path) -> None:
    folder = copy_of("dream_gqa", tmp_path)
    edit_config(folder, max_position_embeddings=100, rope_scaling={"rope_type": "yarn", **KINDS["yarn"]})
    report = inspect_checkpoint(folder)
    assert report.config is not None and report.config.max_length == 100
    rows = dict(fact_rows(report))
    assert rows["rotary scaling"] == "Yarn by 4 from 16 tokens"
    assert any("4.46, which the code beside Dream's weights" in line for line in report.config.warnings)
    edit_config(folder, max_position_embeddings=16)
    assert load(folder).config.max_length == 64 and not load(folder).config.warnings


NTK: list[tuple[dict[str, Any], str]] = [
    ({"target": 9000, "factor": 2.0}, "say one thing twice"),
    ({"doubled": True}, "needs rope.target"),
    ({"target": 100}, "must be above the model's 256 columns"),
    ({"factor": 1.0}, "must be above 1"),
    ({"length": 9000}, "rope has no length"),
    ({"target": "far"}, "rope.target"),
]


@pytest.mark.parametrize(("given", "sentence"), NTK, ids=[sentence for _, sentence in NTK])
def test_a_reach_that_means_nothing_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load(DATA / "models" / "tiny-llada", rope=given)


def test_a_reach_multiplies_the_base_and_lifts_the_limit() -> None:
    base = load(DATA / "models" / "tiny-llada").config
    found = load(DATA / "models" / "tiny-llada", rope={"target": 1024}).config
    assert found.ntk is not None and (found.max_length, found.ntk.trained) == (1024, base.max_length)
    assert found.theta == pytest.approx(base.theta * found.ntk.factor) and found.ntk.factor > 1
    again = load(DATA / "models" / "tiny-llada", rope={"factor": found.ntk.factor * (1 + 1e-9)}).config
    assert again.max_length == 1024
    report = inspect_checkpoint(DATA / "models" / "tiny-llada", rope={"target": 1024})
    assert "256 of them trained: model.rope multiplies theta by" in dict(fact_rows(report))["max length"]


def test_a_scaled_file_takes_no_other_reach(tmp_path: Path) -> None:
    folder = copy_of("dream_gqa", tmp_path)
    edit_config(folder, rope_scaling={"rope_type": "linear", "factor": 2.0})
    with pytest.raises(UserError, match="scales them itself"):
        load(folder, rope={"target": 2**20})
