"""The decodes of ``test_devices``: every part, wrapper, option with code of its own, and a sample of combinations."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, product
from json import dumps
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from unittest.mock import patch

import torch
from fake_gpu import FakeGPUs, placed
from harness import Combination, allowed, build, full, model, with_mask

from dllm.parts import (
    ROWS_PER_STREAMED,
    STATISTICS,
    AllLogits,
    AttentionMap,
    Canvas,
    Collector,
    Confidence,
    Fixed,
    Forward,
    HiddenState,
    Ids,
    LogitLookup,
    Need,
    Parts,
    Request,
    Result,
    Sampling,
    Setting,
    Shadow,
    Statistic,
    Transformer,
    UserError,
    choices,
    denoise,
    validate,
)

MODELS = ("tiny-llada", "tiny-dream", "sdar_b4", "tiny-nbdiff", "tiny-dream-d2f")
VERIFIERS = ("flash_verify", "linear_spec")  # samplers whose drafts the cache of the same name verifies
PARTS = ("sampler", "blocks", "cache", "eos")
PROMPTS, LENGTHS = ([62, 51, 25, 55], [62, 50]), (7, 4)
HOT = Sampling(temperature=[0.8, 0.0])  # both ways of proposing in one batch
BLOCKS = Fixed(block_length=4)


@dataclass(frozen=True, eq=False)
class Case:
    """A decode, by what is special about it. Parts are names, or objects made for the case."""

    name: str
    sampler: Any = "confidence"
    blocks: Any = BLOCKS
    cache: Any = "none"
    eos: Any = "none"
    model: str = ""
    sampling: Sampling = Sampling()
    lag: int | None = None
    turns: int | None = None  # how many to run; None: all
    trace: bool = False
    apart: bool = False  # rows of other widths run in calls of their own, which so few rows would never be worth

    def __str__(self) -> str:
        return self.name


def made(group: str, name: str, **options: Any) -> Any:
    """A part with other options than its defaults, without composing a configuration (30 ms)."""
    return type(build(group, name)).__bases__[0](**options)  # below the class that seals it


def parts(case: Case) -> tuple[tuple[Any, Any, Any, Any], str]:
    """The case's parts and the first model they take; blocks=whole where they take no others. Every part has one."""
    chosen = {group: getattr(case, group) for group in PARTS}
    refusals = []
    for blocks, name in product(dict.fromkeys([case.blocks, "whole"]), [case.model] if case.model else MODELS):
        sampler, schedule, kv, eos = (
            build(group, one) if isinstance(one, str) else one for group, one in (chosen | {"blocks": blocks}).items()
        )
        try:
            sampler = validate(Setting(model(name).config, schedule, None, case.sampling), sampler, kv, eos)
        except UserError as error:
            refusals.append(str(error))
        else:
            return (sampler, schedule, kv, eos), name
    raise AssertionError(f"no model takes {case}: {refusals}")


ONE = {"": 0}


@cache
def on_gpus(name: str, split: bool) -> Transformer:
    """The model on one fake GPU, or its layers on two, with the head behind the last ones."""
    network = model(name)
    return placed(network, halves(network) if split else ONE)


def halves(network: Transformer) -> dict[str, int]:
    """As accelerate lays a model out: the embedding first, norm and head last, which a tied model has together."""
    count = network.config.layers
    layers = {f"layers.{layer}": int(2 * layer >= count) for layer in range(count)}
    return {"embed": 0, **layers, "norm": 1, "lm_head": int(not network.config.tied)}


def taken(case: Case) -> bool:
    try:
        parts(case)
    except AssertionError:
        return False
    return True


def decoded(case: Case, network: Transformer | None = None) -> list[Result]:
    """The case's results, by a model on the CPU or by this one."""
    (sampler, blocks, kv, eos), name = parts(case)
    network = network or model(name)
    config, sampling = network.config, case.sampling.under(sampler)
    ids = Ids(None if config.process == "uniform" else config.mask_id or 0, config.eos_id or 0, ())
    batch = [
        with_mask(Request.answer(prompt, length, ids.placeholder, seed), ids.placeholder)
        for seed, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True))
    ]
    forward = Forward.of(network, ids, Parts(sampler, blocks, kv, eos, sampling))
    collector = Collector(batch, ids, str, (), case.trace)
    at_zero = config.attention.grid_at_zero
    canvas = Canvas.of(batch, config.pad_id or 0, network.device, at_zero, sampling.temperature)
    with patch.dict(ROWS_PER_STREAMED, dict.fromkeys(ROWS_PER_STREAMED, 0) if case.apart else {}):
        for turn in islice(denoise(canvas, forward, Parts(sampler, blocks, kv, eos), case.lag), case.turns):
            collector.observe(turn)
    return collector.results() if case.turns is None else []


@cache
def on_a_gpu(case: Case) -> FakeGPUs:
    """What the fake GPU saw of the case. Raises WrongDevice."""
    with torch.inference_mode(), FakeGPUs() as mode:
        decoded(case, on_gpus(parts(case)[1], split=False))
    return mode


class Everything(Confidence):
    """Asks for all that can be asked for."""

    def needs(self) -> tuple[Need, ...]:
        regions = (Need(region) for region in ("suffix", "answer"))
        reads = (AllLogits(), LogitLookup(), Shadow(), AttentionMap(received=True), HiddenState(), HiddenState(0))
        everything = Need(committed=True, reads=(*Statistic.of(*STATISTICS), *reads))
        return (everything, Need("ahead", ratio=0.5), Need("ahead", span=(0, 4)), *regions)


def frequencies() -> str:
    file = Path(mkdtemp()) / "frequencies.json"
    file.write_text(dumps({token: 1 / (token + 2) for token in range(60)}))
    return str(file)


def samplers() -> Iterator[Case]:
    """Every sampler, at temperature 0 in one row and above it in the other."""
    for name in choices("sampler"):
        if build("sampler", name).traits.renoises:
            for cache in ("none", "finished"):
                rule = made("sampler", name, steps=3)
                title = f"sampler={name}" + ("" if cache == "none" else f"-{cache}")
                yield Case(title, rule, Fixed(8), cache, model="dg_dev")
            continue
        case = Case(f"sampler={name}", name, cache=name if name in VERIFIERS else "none", sampling=HOT)
        yield case if taken(case) else replace(case, sampling=Sampling())  # some are for the argmax alone
    variants: dict[str, list[dict[str, Any]]] = {
        "static": [{"score": score} for score in ("random", "margin", "entropy")] + [{"steps": 6}],
        "dream": [{"alg": "origin"}, {"alg": "topk_margin"}, {"alg": "maskgit_plus", "alg_temp": 0.5}, {"steps": 6}],
        "order": [{"positions": "left_to_right"}, {"positions": list(range(7))[::-1]}],
        "prophet": [
            {"inner": build("sampler", "static"), "region": "offset", "start": 2},
            {"inner": build("sampler", "static"), "thresholds": (90.0, 90.0, 20.0)},
        ],
        "pc": [{"frequencies": frequencies()}, {"steps": 6}],
        "ete": [{"explore_score": "cascade_count"}, {"explore_position": "leftmost"}, {"explore_score": "prior"}],
        "bacd": [{"history": history} for history in ("block", "turn")][:1],
        "freedave": [{"inner": build("sampler", "static"), "as_published": True}],
        "confidence": [{"threshold": [0.9, 0.5]}],
    }
    for lag in (None, 0):  # rules between mask and token, with their schedules and caches
        title = "" if lag is None else "-static"
        yield Case(f"sampler=dmax-finished{title}", "dmax", cache="finished", model="sdar_b4", lag=lag)
        yield Case(f"sampler=remix-prefix{title}", "remix", cache="prefix", model="tiny-llada", lag=lag)
        pipeline = made("blocks", "pipelined", block_length=4)
        yield Case(f"sampler=d2f-pipelined{title}", "d2f", pipeline, "finished", model="tiny-llada-d2f", lag=lag)
    for name, listed in variants.items():
        for options in listed:
            shown = "-".join(f"{key}={value}" for key, value in options.items() if key not in ("inner", "frequencies"))
            yield Case(f"sampler={name}-{shown}", made("sampler", name, **options))


def wrappers() -> Iterator[Case]:
    """Every wrapper around every rule it takes; by default around each rule in turn."""
    outer = [name for name in choices("sampler") if hasattr(build("sampler", name), "inner")]
    inner = sorted(set(choices("sampler/inner")) - set(outer))
    for number, (wrapper, rule) in enumerate(product(outer, inner)):
        if full() or number % len(outer) == (number // len(inner)) % len(outer):
            try:
                case = Case(f"sampler={wrapper}-{rule}", made("sampler", wrapper, inner=build("sampler", rule)))
            except UserError:
                continue
            if taken(case):
                yield case


def schedules() -> Iterator[Case]:
    for name in choices("blocks"):
        yield Case(f"blocks={name}", blocks=build("blocks", name))
    yield Case("blocks=fixed-min_forwards", blocks=made("blocks", "fixed", block_length=4, min_forwards=2))
    for name in ("fixed", "whole"):
        yield Case(f"blocks={name}-static", "credit", name, lag=1)


def caches() -> Iterator[Case]:
    """Every cache on both kinds of model, with the samplers that ask most of one: branches, shadows, an order."""
    rules = {
        "dkv_greedy": "order",
        "none": "freedave",
        "prefix": "wino",
        "dual": "ete",
        "recap": "wino",
        "span": "slowfast",
        **{name: name for name in VERIFIERS},
    }
    for name, kind in product(choices("cache"), MODELS):
        rule, schedule = rules.get(name, "confidence"), "sliding" if name == "sliding" else "fixed"
        if allowed(Combination(rule, schedule, name, model=kind)):
            yield Case(f"cache={name}-{kind}", rule, schedule if name == "sliding" else BLOCKS, name, model=kind)
    variants: dict[str, list[dict[str, Any]]] = {
        "elastic": [
            {"window_length": 4, "trigger": "next_step", "gamma": 0.999},
            {"first_layer": 1},
            {"window_length": 4, "similarity": "keys", "track_num": 2, "gamma": 0.999},
            {"window_length": 4, "block_caching": False},
        ],
        "window": [
            {"active_tokens": 3, "window_tokens": 9, "refresh_interval": 4, **options}
            for options in (
                {"queries": "range", "refresh_candidates": "first", "eos_as_published": True},
                {"refresh_scope": "all", "refresh_candidates": "all", "recent_includes_refresh": False},
            )
        ],
        "recap": [{"targets": "all_masked", "local_steps": 3}],
        "dual": [{"query_left": False}],
        "dkv": [{"shift_type": "un"}],
    }
    for name, listed in variants.items():
        for number, options in enumerate(listed):
            kind = "tiny-dream" if name in ("dual", "dkv") else "tiny-llada"
            yield Case(f"cache={name}-{number}", cache=made("cache", name, **options), model=kind)
    for name in ("none", "prefix", "dual", "window") if full() else ("prefix", "window"):
        yield Case(f"cache={name}-static", cache=name, lag=int(name != "window"))
    for name in ("none", "prefix"):
        yield Case(f"cache={name}-apart", "wino" if name == "prefix" else "confidence", cache=name, apart=True)
    for name in ("prefix", "dual") if full() else ("dual",):
        yield Case(f"cache={name}-apart-branches", "freedave", cache=name, apart=True)
    yield Case("cache=dual-apart-static", cache="dual", apart=True, lag=0)
    yield Case("cache=dual-apart-guidance", cache="dual", apart=True, sampling=Sampling(guidance=0.5))
    yield Case("cache=finished-apart", cache="finished", apart=True)


def endings() -> Iterator[Case]:
    for name, kv in product(choices("eos"), ("none", "dual") if full() else ("dual",)):
        policy = made("eos", "eotp", scope="block") if (name, kv) == ("eotp", "dual") else build("eos", name)
        yield Case(f"eos={name}-{kv}", cache=kv, eos=policy, trace=True)
    kept = made("cache", "dual", keep_stale_tail=True)
    yield Case("eos=eotp-stale-tail", cache=kept, eos=made("eos", "eotp", scope="block"))


def samplings() -> Iterator[Case]:
    chosen = {
        "guidance": Sampling(guidance=0.5),
        "eos_last": Sampling(eos_last=True),
        "filters": Sampling(temperature=0.7, top_p=0.9, top_k=5, forbid_eos=True, suppress_mask=False),
    }
    for name, sampling in chosen.items():
        yield Case(f"sampling={name}", sampling=sampling)
    for kv in ("dual", "elastic", "dkv", "window"):
        yield Case(f"guidance-{kv}", cache=kv, blocks="whole", sampling=chosen["guidance"])
    yield Case("guidance-branches", "freedave", cache="dual", sampling=chosen["guidance"])
    yield Case("statistics", Everything(), blocks="whole")
    yield Case("statistics-hot", Everything(), blocks="whole", sampling=HOT)
    for kind in ("llada2_moe", "llada_moe", "llada_gqa_tied", "dream_gqa"):
        yield Case(f"model={kind}", cache="none" if kind == "llada2_moe" else "dual", model=kind)


def together() -> list[Case]:
    """Combinations of parts that take a temperature, for two turns each: a seeded sample, or all there are."""
    every = [Combination(*one) for one in product(*(choices(group) for group in PARTS), MODELS)]
    random.Random(14).shuffle(every)
    fits = (
        Case(str(one), one.sampler, one.blocks, one.cache, one.eos, one.model, HOT, turns=2)
        for one in every
        if allowed(one)
    )
    return list(islice(filter(taken, fits), None if full() else 12))


def split_cases() -> Iterator[Case]:
    """Every cache over two GPUs, with its options, and branches, shadows and guidance where it takes them."""
    yield from caches()
    for name, kind in product(choices("cache"), MODELS):
        for rule in ("freedave", "ete", "wino"):
            if allowed(Combination(rule, "fixed", name, model=kind)):
                yield Case(f"{rule}-{name}-{kind}", rule, cache=name, model=kind)
        guided = Case(f"guidance-{name}-{kind}", cache=name, model=kind, sampling=Sampling(guidance=0.5))
        if taken(guided):
            yield guided
    for kind in ("llada2_moe", "llada_moe", "llada_gqa_tied", "dream_gqa"):
        yield Case(f"model={kind}", cache="none" if kind == "llada2_moe" else "dual", model=kind)
    yield Case("statistics", Everything(), blocks="whole", cache="prefix")
    for kv in ("none", "dual", "elastic"):
        yield Case(f"attention-{kv}", "adas" if kv == "elastic" else "dawn", cache=kv)
    yield Case("attention-branches", made("sampler", "freedave", inner=build("sampler", "adas")), cache="dual")
