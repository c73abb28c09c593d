"""Decoded texts before judges that share no code with the constraints: of random weights, whose proposals are all
wrong, under random schemas, and of both demo models over combinations of parts."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from harness import Combination, build, combinations, full
from judges import Real, other_judge, validates
from law import law
from random_schemas import Schemas

from dllm import Decoder, load, part
from dllm.parts import Constraint, JsonSchema, Model, Regex, Transformer, UserError

ROWS, LENGTH = 8, 40
BATCHES = range(125 if full() else 2)  # of eight texts
PARTS = [
    {"sampler": "static", "blocks": "whole"},
    {"sampler": "confidence", "cache": "dual"},
    {"sampler": "localleap"},
    {"sampler": "factor", "blocks": "whole"},
    {"sampler": "eb", "cache": "prefix"},
    {"sampler": "klass"},
]
HEATS: list[dict[str, float]] = [
    {},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.5, "top_k": 5},
    {"temperature": 1.0, "guidance": 1.5},
    {"temperature": 1.2, "top_p": 0.6, "top_k": 20},
    {"guidance": 0.5},
]


@cache
def random_weights(name: str) -> Model:
    """The demo model's tokenizer on a small network of random weights."""
    demo = load(name)
    config = replace(demo.config, width=16, layers=1, heads=2, kv_heads=2, head_dim=8, mlp_width=16, rotary_dim=8)
    torch.manual_seed(0)
    network = Transformer(config).eval().requires_grad_(False)
    for parameter in network.parameters():
        parameter.normal_()
    return replace(demo, transformer=network, config=config)


def drawn_schemas(seed: int, decoder: Decoder) -> Iterator[JsonSchema]:
    """Random schemas that compile, and have a text that fits the canvas."""
    draw, number = random.Random(seed), 1000 * seed
    while True:
        number += 1
        try:
            one = JsonSchema(
                Schemas(number).root(),
                depth=1,
                additional=draw.random() < 0.3,
                whitespace=draw.choice(["any", "one", "none"]),
                joint=draw.random() < 0.2,
            )
            if decoder.min_tokens(one) <= LENGTH:
                yield one
        except UserError:
            continue


@pytest.mark.parametrize("seed", BATCHES)
def test_texts_of_random_weights_are_valid_before_two_judges(seed: int) -> None:
    pytest.importorskip("llguidance")
    draw = random.Random(seed)
    sampling, parts = draw.choice(HEATS), draw.choice(PARTS)
    model = random_weights(draw.choice(["mini-llada", "mini-dream"]))
    decoder = Decoder(model, gen_length=LENGTH, batch_size=ROWS, **parts, **sampling)
    schemas = drawn_schemas(seed, decoder)
    asked = [next(schemas) for _ in range(ROWS)]
    judged = 0
    for constraint, result in zip(asked, decoder(["a"] * ROWS, constraints=asked, seed=seed), strict=True):
        assert validates(constraint.schema, result.text), (constraint, result.text)
        if (judge := other_judge(constraint.schema)) is not None:
            judged += 1
            assert not judge(result.text), (judge(result.text), constraint, result.text)
    assert judged


ZIP = {
    "type": "object",
    "properties": {"zip": {"type": "string", "pattern": r"^\d{5}$"}},
    "required": ["zip"],
    "additionalProperties": False,
}
LETTER = {
    "type": "object",
    "required": ["title", "body"],
    "additionalProperties": False,
    "properties": {"title": {"type": "string", "maxLength": 200}, "body": {"type": "string", "maxLength": 4000}},
}


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.5}])
def test_patterns_and_long_strings_hold_for_random_weights(sampling: dict[str, float]) -> None:
    decoder = Decoder(random_weights("mini-llada"), gen_length=64, batch_size=ROWS, **sampling)
    asked = [JsonSchema(ZIP), JsonSchema(LETTER)] * 2
    for constraint, result in zip(asked, decoder(["a"] * 4, constraints=asked, seed=1), strict=True):
        assert validates(constraint.schema, result.text), result.text
        if constraint.schema == ZIP:
            assert re.search(r'"[0-9]{5}"', result.text), result.text


LIST = {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 6}
RECORD = {
    "type": "object",
    "required": ["name", "age"],
    "additionalProperties": False,
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0}},
}
ASKED: list[tuple[str, Constraint | None]] = [
    ('Shuffle the list:\n["Kai", "Emma", "Hugo"]', JsonSchema(LIST)),
    ("Sort the list:\n[]", None),
    ('Copy the list:\n["Kai", "Emma"]', JsonSchema(RECORD, whitespace="one")),
    ("Write", Regex("[a-z]+( [a-z]+)*")),
]


@cache
def demo(name: str) -> Model:
    return load(name)


def decoder_of(combination: Combination, **options: Any) -> Decoder:
    groups = ("sampler", "blocks", "cache", "eos")
    parts = {group: build(group, getattr(combination, group)) for group in groups}
    return Decoder(demo(combination.model), **parts, gen_length=32, batch_size=len(ASKED), **options)


def on_demo_models() -> Iterator[Combination]:
    """Those that the demo models take; the oracle and the filter are made for the tiny ones."""
    names = {"tiny-llada": "mini-llada", "tiny-dream": "mini-dream"}
    for one in combinations():
        if one.model in names and one.sampler not in ("oracle", "learn2pd") and one.blocks != "lengths":
            yield replace(one, model=names[one.model])


@law(on_demo_models, daily=5, least=2000)
def test_texts_of_the_demo_models_are_valid(combination: Combination) -> None:
    sampling = random.Random(str(combination)).choice(HEATS)
    try:
        decoder = decoder_of(combination, **sampling)
    except UserError:
        decoder = decoder_of(combination)
    asked, constraints = zip(*ASKED, strict=True)
    texts = [result.text for result in decoder(list(asked), constraints=constraints)]
    assert validates(LIST, texts[0]) and validates(RECORD, texts[2]) and re.fullmatch("[a-z]+( [a-z]+)*", texts[3])


@pytest.mark.parametrize("sampler", ["saber", "rcr", "wino", "remdm"])
def test_what_lies_behind_a_cut_is_not_taken_back(sampler: str) -> None:
    """The cut ends the text in the middle of a block; a rule that remasks found columns behind it."""
    parts = {"sampler": sampler, "cache": "none" if sampler == "wino" else "dpad", "eos": "stop_at_eos"}
    decoder = Decoder(demo("mini-llada"), blocks=part("blocks", "fixed", block_length=8), **parts, gen_length=32)
    asked, constraints = zip(*ASKED, strict=True)
    texts = [result.text for result in decoder(list(asked), constraints=constraints)]
    assert validates(LIST, texts[0]) and validates(RECORD, texts[2]) and re.fullmatch("[a-z]+( [a-z]+)*", texts[3])


def test_a_number_is_whole_as_it_is_written() -> None:
    parts = product(("", "-"), ("0", "7", "120", "1" * 70), ("", ".0", ".20", ".01"), ("", "e0", "E2", "e-1", "E-3"))
    for text in map("".join, parts):
        assert Real(text).is_integer() == (Fraction(text).denominator == 1), text
    assert Real("1E1717").is_integer() and Real("-2.5e1717") == -1e300
