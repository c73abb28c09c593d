"""Parts are immutable, so that one object serves every decode, model and thread; and each has one name."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, Optional

import pytest
import torch
from harness import build, full, model, sealed

import dllm
from dllm import Decoder, UserError, load, part
from dllm.parts import (
    PART_BASES,
    TCCF,
    AdaBlock,
    Canvas,
    Collector,
    Fixed,
    Forward,
    Ids,
    Learn2PD,
    Model,
    Parts,
    PerRequest,
    Prophet,
    Request,
    Sampler,
    SamplerTraits,
    Sampling,
    Setting,
    Static,
    StopStrings,
    arguments_of,
    build_part,
    choices,
    denoise,
    name_of,
    takes_part,
    validate,
    words_of,
)

GROUPS = ("sampler", "blocks", "cache", "eos")
MODELS = ("tiny-llada", "tiny-dream", "sdar_b4", "tiny-nbdiff", "dg_dev")
# Tried in turn, until the part in question works with them.
OTHERS = [
    {"sampler": sampler, "blocks": blocks, "cache": "none", "eos": "none"}
    for sampler in ("confidence", "order", "renoise")
    for blocks in ("fixed", "whole")
] + [{"sampler": name, "blocks": "whole", "cache": name, "eos": "none"} for name in ("flash_verify", "linear_spec")]


def decode(name: str, parts: dict[str, Any]) -> tuple[list[int], list[int], int]:
    """One row of 5 masks: its tokens, the turns that fixed them, and the forwards."""
    network, (sampler, blocks, kv, eos) = model(name), (parts[group] for group in GROUPS)
    sampler = validate(Setting(network.config, blocks, None), sampler, kv, eos)
    config = network.config
    ids = Ids(None if config.process == "uniform" else config.mask_id or 0, config.eos_id or 0, ())
    forward = Forward.of(network, ids, Parts(sampler, blocks, kv, eos, Sampling().under(sampler)))
    request = sampler.prepare(Request.answer([62, 51, 25, 3, 55], 5, ids.placeholder))
    collector = Collector([request], ids, str, (), trace=False)
    at_zero = network.config.attention.grid_at_zero
    with torch.inference_mode():
        canvas = Canvas.of([request], network.config.pad_id or 0, grid_at_zero=at_zero)
        for turn in denoise(canvas, forward, Parts(sampler, blocks, kv, eos)):
            collector.observe(turn)
    result = collector.results()[0]
    return result.canvas, result.turns, result.nfe


def fitting(group: str, name: str) -> tuple[dict[str, str], list[str]]:
    """Names of parts that go with this one, and the models that all of them serve."""
    for others in OTHERS:
        names, served = others | {group: name}, []
        for network in MODELS:
            parts = {kind: build(kind, choice) for kind, choice in names.items()}
            setting = Setting(model(network).config, parts["blocks"], None)
            try:
                validate(setting, *(parts[kind] for kind in ("sampler", "cache", "eos")))
                served.append(network)
            except UserError:
                continue
        if served:
            return names, served
    raise AssertionError(f"{group}={name} goes with nothing here")


def chosen() -> list[tuple[str, str]]:
    """A quarter of all parts; ``make laws``: all of them. Sealed they are in every law: the harness sees to it."""
    parts = [(group, name) for group in GROUPS for name in choices(group)]
    return parts if full() else sorted(random.Random(14).sample(parts, len(parts) // 4))


@pytest.mark.daily(8)
@pytest.mark.parametrize(("group", "name"), chosen())
def test_one_object_serves_two_models_in_two_threads(group: str, name: str) -> None:
    names, networks = fitting(group, name)
    networks = (networks * 2)[:2]
    shared = {kind: build(kind, choice) for kind, choice in names.items()}
    before = deepcopy(vars(shared[group]))
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda network: decode(network, shared), networks))
    own = [decode(network, {k: deepcopy(build(k, choice)) for k, choice in names.items()}) for network in networks]
    assert together == own
    assert alike(before, vars(shared[group]))


def alike(one: Any, other: Any) -> bool:
    """Whether two values are equal, tensors and parts by what they hold."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    return alike(vars(one), vars(other)) if isinstance(one, PART_BASES) else bool(one == other)


def test_the_seal_sees_what_is_written() -> None:
    class Learns(Static):
        def turns(self, canvas: Canvas) -> torch.Tensor:
            self.seen = len(canvas.tokens)
            return super().turns(canvas)

    canvas = Canvas.of([Request.answer([1], 2, 60)], 61)
    Learns().turns(canvas)
    with pytest.raises(AssertionError, match="Learns.seen was written"):
        sealed(Learns()).turns(canvas)
    with pytest.raises(AssertionError, match="Learns.seen was written"):
        sealed(Prophet(Learns())).start(canvas, Fixed())


def test_what_a_part_learns_of_a_model_stays_with_that_decoder() -> None:
    """Each model has a filter of its own, and both decoders stand before either decodes."""
    prompt, models = "Latin square:\nA,B,C,D", [load(name) for name in ("mini-llada", "mini-dream")]

    def decoder(model: Model, sampler: Sampler) -> Decoder:
        return Decoder(model, sampler, Fixed(32), eos="none", gen_length=32)

    rule = sealed(Learn2PD(threshold=0.9))
    both = [decoder(model, rule) for model in models]
    shared = [one(prompt)[0] for one in both]
    alone = [decoder(model, Learn2PD(threshold=0.9))(prompt)[0] for model in models]
    assert [(row.canvas, row.turns) for row in shared] == [(row.canvas, row.turns) for row in alone]
    assert shared[0].turns != shared[1].turns


def test_texts_are_bound_to_a_copy() -> None:
    anchored = sealed(Prophet(Static(), region="anchor", anchor_text="so", anchor_position=1))
    delimited, marked = sealed(AdaBlock()), sealed(TCCF())
    for ids in ([7], [8]):
        setting = Setting(model("tiny-llada").config, Fixed(), 9, ids_of=lambda text, ids=ids: ids)
        request = anchored.resolved(setting).prepare(Request.answer([1], 9, 60))
        assert list(request.tokens)[2:4] == [*ids, 60]
        assert delimited.resolved(setting.ids_of).delimiter_ids == ids
        assert marked.resolved(setting.ids_of).marker == ids[0]
    assert anchored.begin is None and delimited.delimiter_ids is None and marked.marker == "</think>"


@pytest.mark.parametrize("group", GROUPS)
def test_messages_call_a_part_by_the_name_that_chooses_it(group: str) -> None:
    for name in choices(group):
        assert name_of(build(group, name)) == name


class Mine(Static):
    """A rule of the user's own."""


def test_a_part_of_the_users_own_goes_by_its_class() -> None:
    assert name_of(Mine()) == "Mine"
    assert name_of(StopStrings(part("eos", "none"), ["x"], str)) == "none"


def test_nothing_else_makes_names_of_classes() -> None:
    """In messages ``sampler=entropybound`` is no choice of anybody's."""
    files = [*Path(dllm.__file__).parent.rglob("*.py")]
    found = [file.name for file in files if re.search(r"__name__\.lower|__class__\.__name__", file.read_text())]
    assert found == ["errors.py"] and len(files) > 100


def test_an_argument_without_an_annotation_is_of_its_defaults_kind() -> None:
    """A user's class need not name kinds."""

    class Mine(Sampler):
        traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=True)

        def __init__(self, threshold=0.9, count=3, score="margin", inner=None, width: int = 4) -> None:  # type: ignore[no-untyped-def]
            self.threshold = threshold

    found = arguments_of(Mine)
    kinds = {name: argument.annotation for name, argument in found.items() if name != "inner"}
    assert kinds == {"threshold": "float", "count": "int", "score": "str", "width": "int"}
    assert [name for name, argument in found.items() if takes_part(argument)] == ["inner"]


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (PerRequest, ["PerRequest"]),
        (PerRequest | None, ["None", "PerRequest"]),
        ("PerRequest", ["PerRequest"]),
        (Optional[float], ["float", "None"]),  # noqa: UP045
        ("Optional[float]", ["float", "None"]),
        (Literal["a", "b"], ["str"]),
        ("Literal['a', 'b'] | None", ["str", "None"]),
        (Sequence[float] | None, ["Sequence[float]", "None"]),
        (Optional[Static], ["Static", "None"]),  # noqa: UP045
    ],
    ids=str,
)
def test_an_annotation_is_read_alike_as_text_and_as_python_evaluates_it(written: Any, words: list[str]) -> None:
    assert words_of(written) == words


def test_a_class_of_ours_is_found_after_its_file_moved() -> None:
    old = {"_target_": "dllm.samplers.confidence.Confidence", "threshold": 0.7}
    assert build_part("sampler", old).threshold == 0.7
    with pytest.raises(UserError, match="sampler._target_='dllm.samplers.confidence.Nothing'"):
        build_part("sampler", {"_target_": "dllm.samplers.confidence.Nothing"})
