"""Every tensor is on the device of the data it meets: shown with GPUs that are not there (see ``fake_gpu``)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, product
from json import dumps
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from fake_gpu import CPU, GPU, SECOND, FakeGPUs, WrongDevice, device_of, place_of, placed
from fake_tensors import FakeTensors
from harness import Combination, allowed, build, forward_of, full, model, with_mask
from torch import Tensor

from dllm.blocks.fixed import Fixed
from dllm.canvas import Canvas, Request
from dllm.collect import Collector
from dllm.denoise import denoise
from dllm.errors import UserError
from dllm.models.transformer import Transformer
from dllm.models.weights import device_of as home_of
from dllm.models.weights import random_model, spread
from dllm.parts import choices
from dllm.results import Result
from dllm.samplers.base import State, Step, View
from dllm.samplers.confidence import Confidence
from dllm.scores import Ids, Need, Sampling
from dllm.setting import Setting, validate

MODELS = ("tiny-llada", "tiny-dream", "sdar_b4")
PARTS = ("sampler", "blocks", "cache", "eos")
PROMPTS, LENGTHS = ([62, 51, 25, 55], [62, 50]), (7, 4)
HOT = Sampling(temperature=[0.8, 0.0])  # both ways of proposing in one batch


# What CUDA refuses, and what it takes. ``a`` [3, 4] and ``at`` [3] lie on the GPU, ``b`` [3, 4] and ``row`` [3] do not.
MISTAKES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], object]] = {
    "arange without a device": lambda a, at, b, row: a + torch.arange(4),
    "tensor without a device": lambda a, at, b, row: a * torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "zeros without a device": lambda a, at, b, row: torch.where(a > 0, a, torch.zeros(3, 4)),
    "mixed cat": lambda a, at, b, row: torch.cat([a, b]),
    "mixed stack": lambda a, at, b, row: torch.stack([a, b]),
    "a number in a stack": lambda a, at, b, row: torch.stack([a.sum(), torch.tensor(1.0)]),
    "where with a mask elsewhere": lambda a, at, b, row: torch.where(b > 0, a, a),
    "masked_fill with a mask elsewhere": lambda a, at, b, row: a.masked_fill(b > 0, 0.0),
    "gather": lambda a, at, b, row: a.gather(0, row[None]),
    "scatter of values elsewhere": lambda a, at, b, row: a.scatter(1, at[:, None], b),
    "product": lambda a, at, b, row: a @ b.T,
    "linear": lambda a, at, b, row: torch.nn.functional.linear(a, b),
    "embedding": lambda a, at, b, row: torch.nn.functional.embedding(row, a),
    "searchsorted": lambda a, at, b, row: torch.searchsorted(at, row),
    "isin": lambda a, at, b, row: torch.isin(at, row),
    "in place": lambda a, at, b, row: b.add_(a),
    "two GPUs": lambda a, at, b, row: a + a.to("cuda:1"),
    "a number on the second GPU": lambda a, at, b, row: a + a.sum().to("cuda:1"),
}
INDICES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], object]] = {
    "index": lambda a, at, b, row: a[row],
    "index beside another": lambda a, at, b, row: a[at, row],
    "mask": lambda a, at, b, row: a[b > 0],
    "assigned index": lambda a, at, b, row: a.__setitem__(row, 0.0),
    "index on the GPU": lambda a, at, b, row: b[at],
}
ALLOWED: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Any]] = {
    "a number on the CPU": lambda a, at, b, row: a + torch.tensor(1.0),
    "where with a number": lambda a, at, b, row: torch.where(a > 0, a, torch.tensor(-1.0)),
    "masked_fill with a number": lambda a, at, b, row: a.masked_fill(a > 0, torch.tensor(-1.0)),
    "python numbers": lambda a, at, b, row: torch.where(a > 0, 1.0, a.clamp(min=0)) - 2,
    "made where it is used": lambda a, at, b, row: a + torch.arange(4, device=a.device),
    "made like it": lambda a, at, b, row: torch.zeros_like(a) + a.new_ones(4) + torch.empty(4, device="cuda").fill_(1),
    "moved": lambda a, at, b, row: a + b.to(a.device) + b.cuda() + b.to(a),
    "indices": lambda a, at, b, row: a[at] + a[:, None, 1] + a[None, at, 1:, None][0, :, :1, 0],
    "views": lambda a, at, b, row: a.view(4, 3).T.unflatten(0, (3, 1)).flatten(0, 1) * next(iter(a)),
    "maximum": lambda a, at, b, row: torch.maximum(a, a.amax(1, keepdim=True)).sort(1, descending=True).values,
    "into itself": lambda a, at, b, row: a.mul_(2).index_put_((at, at), a.sum()),
}  # fmt: skip


def tensors(gpu: bool = True) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``a``, ``at``, ``b`` and ``row`` of the tables above; to be called under a mode."""
    a, at = torch.linspace(-1, 1, 12).view(3, 4), torch.arange(3)
    b, row = a.clone(), at.clone()
    return (a.to("cuda:0"), at.to("cuda:0"), b, row) if gpu else (a, at, b, row)


@pytest.mark.parametrize("name", [*MISTAKES, *INDICES])
def test_the_fake_gpu_sees_a_mistake(name: str) -> None:
    with FakeGPUs():
        here = tensors()
        with pytest.raises(WrongDevice, match="on several devices"):
            (MISTAKES | INDICES)[name](*here)


@pytest.mark.parametrize("name", ALLOWED)
def test_the_fake_gpu_lets_pass_what_cuda_takes(name: str) -> None:
    expected = ALLOWED[name](*tensors(gpu=False)) if name not in ("made like it", "moved") else None
    with FakeGPUs():
        found = ALLOWED[name](*tensors())
        assert found.device == GPU and found.is_cuda
    assert expected is None or torch.equal(found, expected)


@pytest.mark.parametrize("name", [name for name in [*MISTAKES, *ALLOWED] if name != "a number in a stack"])
def test_torchs_own_fake_tensors_agree(name: str) -> None:
    """Where there is no GPU, FakeTensorMode knows the rules. It lets a number into a stack, CUDA does not."""
    with FakeTensors():
        here = tensors()
        if name in ALLOWED:
            assert ALLOWED[name](*here).device == GPU
        else:
            with pytest.raises(RuntimeError, match="at least two devices"):
                MISTAKES[name](*here)


BLOCKS = Fixed(block_length=4)


@dataclass(frozen=True, eq=False)
class Case:
    """A decode, by what is special about it. Parts are names, or objects made for the case."""

    name: str
    sampler: Any = "confidence"
    blocks: Any = BLOCKS
    cache: Any = "none"
    eos: Any = "keep"
    model: str = ""
    sampling: Sampling = Sampling()
    every: int | None = None
    turns: int | None = None  # how many to run; None: all
    trace: bool = False

    def __str__(self) -> str:
        return self.name


def made(group: str, name: str, **options: Any) -> Any:
    """A part with other options than its defaults, without composing a configuration (30 ms)."""
    return type(build(group, name))(**options)


def parts(case: Case) -> tuple[tuple[Any, Any, Any, Any], str]:
    """The case's parts and the first model they take; blocks=whole where they take no others. Every part has one."""
    chosen = {group: getattr(case, group) for group in PARTS}
    refusals = []
    for blocks, name in product(dict.fromkeys([case.blocks, "whole"]), [case.model] if case.model else MODELS):
        sampler, schedule, kv, eos = (
            build(group, one) if isinstance(one, str) else one for group, one in (chosen | {"blocks": blocks}).items()
        )
        try:
            validate(Setting(model(name).config, schedule, None, case.sampling), sampler, kv, eos)
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
    config, sampling = network.config, replace(case.sampling, tempered=sampler.tempered)
    ids = Ids(config.mask_id or 0, config.eos_id or 0, ())
    batch = [
        with_mask(Request.answer(prompt, length, ids.mask, seed), ids.mask)
        for seed, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True))
    ]
    forward = forward_of(network, (sampler, blocks, kv, eos), sampling)
    collector = Collector(batch, ids, str, (), case.trace)
    canvas = Canvas.of(batch, config.pad_id or 0, network.device, grid_at_zero=config.attention_block is not None)
    for turn in islice(denoise(canvas, forward, sampler, blocks, eos, case.every), case.turns):
        collector.observe(turn)
    return collector.results() if case.turns is None else []


@cache
def on_a_gpu(case: Case) -> FakeGPUs:
    """What the fake GPU saw of the case. Raises WrongDevice."""
    with torch.inference_mode(), FakeGPUs() as mode:
        decoded(case, on_gpus(parts(case)[1], split=False))
    return mode


STATISTICS = ("first", "second", "gap", "entropy", "logsumexp", "current", "shadow")


class Everything(Confidence):
    """Asks for all that can be asked for."""

    def needs(self) -> tuple[Need, ...]:
        regions = (Need(region) for region in ("suffix", "answer"))
        return (Need(committed=True, statistics=frozenset(STATISTICS), logits=True, lookup=True),
                Need("ahead", ratio=0.5), Need("ahead", span=(0, 4)), *regions)  # fmt: skip


def frequencies() -> str:
    file = Path(mkdtemp()) / "frequencies.json"
    file.write_text(dumps({token: 1 / (token + 2) for token in range(60)}))
    return str(file)


def samplers() -> Iterator[Case]:
    """Every sampler, at temperature 0 in one row and above it in the other."""
    for name in choices("sampler"):
        case = Case(f"sampler={name}", name, sampling=HOT)
        yield case if taken(case) else replace(case, sampling=Sampling())  # some are for the argmax alone
    variants: dict[str, list[dict[str, Any]]] = {
        "static": [{"score": score} for score in ("random", "margin", "entropy")] + [{"steps": 6}],
        "dream": [{"alg": "origin"}, {"alg": "topk_margin"}, {"alg": "maskgit_plus", "alg_temp": 0.5}, {"steps": 6}],
        "order": [{"positions": "left_to_right"}, {"positions": list(range(7))[::-1]}],
        "prophet": [{"inner": build("sampler", "static"), "region": "offset", "start": 2},
                    {"inner": build("sampler", "static"), "thresholds": (90.0, 90.0, 20.0)}],
        "pc": [{"frequencies": frequencies()}, {"steps": 6}],
        "ete": [{"explore_score": "cascade_count"}, {"explore_position": "leftmost"}, {"explore_score": "prior"}],
        "bacd": [{"history": history} for history in ("block", "turn")][:1],
        "freedave": [{"inner": build("sampler", "static"), "reference_branches": True}],
        "confidence": [{"threshold": [0.9, 0.5]}],
    }  # fmt: skip
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
        yield Case(f"blocks={name}-static", "credit", name, every=3)


def caches() -> Iterator[Case]:
    """Every cache on both kinds of model, with the samplers that ask most of one: branches, shadows, an order."""
    rules = {"dkv_greedy": "order", "none": "freedave", "prefix": "wino", "dual": "ete", "recap": "wino"}
    for name, kind in product(choices("cache"), MODELS):
        if allowed(Combination(rules.get(name, "confidence"), "fixed", name, model=kind)):
            yield Case(f"cache={name}-{kind}", rules.get(name, "confidence"), cache=name, model=kind)
    variants: dict[str, list[dict[str, Any]]] = {
        "elastic": [{"window_length": 4, "trigger": "next_step", "gamma": 0.999}, {"first_layer": 1},
                    {"window_length": 4, "similarity": "keys", "track_num": 2, "gamma": 0.999},
                    {"window_length": 4, "block_caching": False}],
        "window": [{"active_tokens": 3, "window_tokens": 9, "refresh_interval": 4, **options} for options in (
                   {"queries": "range", "refresh_candidates": "first", "reference_eos": True},
                   {"refresh_scope": "all", "refresh_candidates": "all", "recent_includes_refresh": False})],
        "recap": [{"targets": "all_masked", "local_steps": 3}],
        "dual": [{"query_left": False}],
        "dkv": [{"shift_type": "un_right"}],
    }  # fmt: skip
    for name, listed in variants.items():
        for number, options in enumerate(listed):
            kind = "tiny-dream" if name in ("dual", "dkv") else "tiny-llada"
            yield Case(f"cache={name}-{number}", cache=made("cache", name, **options), model=kind)
    for name in ("none", "prefix", "dual", "window"):
        yield Case(f"cache={name}-static", cache=name, every=3)


def endings() -> Iterator[Case]:
    for name, kv in product(choices("eos"), ("none", "dual")):
        policy = made("eos", "eotp", scope="block") if (name, kv) == ("eotp", "dual") else build("eos", name)
        yield Case(f"eos={name}-{kv}", cache=kv, eos=policy, trace=True)
    kept = made("cache", "dual", keep_stale_tail=True)
    yield Case("eos=eotp-stale-tail", cache=kept, eos=made("eos", "eotp", scope="block"))


def samplings() -> Iterator[Case]:
    chosen = {
        "guidance": Sampling(guidance=0.5), "eos_last": Sampling(eos_last=True),
        "filters": Sampling(temperature=0.7, top_p=0.9, top_k=5, forbid_eos=True, suppress_mask=False),
    }  # fmt: skip
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
    """Combinations of parts, for two turns each: a seeded sample, or all there are."""
    every = [Combination(*one) for one in product(*(choices(group) for group in PARTS), MODELS)]
    random.Random(14).shuffle(every)
    fits = (one for one in every if allowed(one))
    return [
        Case(str(one), one.sampler, one.blocks, one.cache, one.eos, one.model, HOT, turns=2)
        for one in islice(fits, None if full() else 24)
    ]


CASES = [*samplers(), *wrappers(), *schedules(), *caches(), *endings(), *samplings(), *together()]
NOISE = "noise.py moves its state to the device of the last key, and a number's is the CPU: issue 14, point 1"
KLASS = "klass.py makes a tensor without a device: issue 14, point 1"
# Strict: what is mended turns red here, so that its line goes.
MISPLACED = {"order": NOISE, "dkv_greedy": NOISE, "random": NOISE, "origin": NOISE, "alg_temp": NOISE, "klass": KLASS}
COPYING = {
    "canvas.py:per_row": "sampling.temperature becomes a tensor in every turn (scores.py)",
    "noise.py:uniform": "keys that are numbers become tensors, and the state moves, in every draw",
    "scores.py:_ends_last": "sampling.eos_last makes a tensor of the ids in every turn",
    "samplers/learn2pd.py:<dictcomp>": "the filter's weights are moved in every turn",
    "samplers/pc.py:step": "the table of frequencies is moved in every turn",
    "blocks/adablock.py:look": "the delimiters become a tensor in every turn",
    "blocks/list.py:_edges": "the lengths become a tensor whenever a block opens",
}


def marked(case: Case) -> Any:
    reason = next((why for name, why in MISPLACED.items() if name in case.name and "positions" not in case.name), None)
    marks = [] if reason is None else [pytest.mark.xfail(raises=WrongDevice, strict=True, reason=reason)]
    return pytest.param(case, id=case.name, marks=marks)


def test_the_cases_name_every_part() -> None:
    names = {case.name for case in CASES}
    assert len(names) == len(CASES)
    for group in ("sampler", "blocks"):
        assert {f"{group}={name}" for name in choices(group)} <= names
    assert {f"eos={name}-{kv}" for name in choices("eos") for kv in ("none", "dual")} <= names
    assert {name for name in choices("cache") if any(case.cache == name for case in CASES)} == set(choices("cache"))


@pytest.mark.parametrize("case", [marked(case) for case in CASES])
def test_every_tensor_is_on_the_device_of_what_it_meets(case: Case) -> None:
    on_a_gpu(case)


@pytest.mark.parametrize("case", [marked(case) for case in CASES])
def test_a_turn_copies_nothing_to_the_gpu(case: Case) -> None:
    assert set(on_a_gpu(case).copies) <= set(COPYING)


@pytest.mark.parametrize("site", COPYING)
def test_what_is_known_to_copy(site: str) -> None:
    """Each of these stalls the stream in every turn: mended, it fails here, and its line goes."""
    assert any(site in on_a_gpu(case).copies for case in CASES if not marked(case).marks)


@pytest.mark.parametrize("name", ["sampler=confidence", "sampler=freedave", "cache=dual-tiny-llada", "guidance-dkv"])
def test_a_fake_gpu_decodes_what_the_cpu_does(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    with torch.inference_mode():
        expected = decoded(case)
        with FakeGPUs():
            found = decoded(case, on_gpus(parts(case)[1], split=False))
    assert [(one.canvas, one.turns, one.nfe) for one in found] == [(one.canvas, one.turns, one.nfe) for one in expected]


class Planted(Confidence):
    """A sampler that makes a mistake in its second turn."""

    def __init__(self, mistake: Callable[[View], object]) -> None:
        super().__init__()
        self.mistake, self.calls = mistake, 0

    def step(self, view: View, state: State) -> Step:
        self.calls += 1
        if self.calls == 2:
            self.mistake(view)
        return super().step(view, state)


IN_A_TURN: dict[str, Callable[[View], object]] = {
    "an index on another device": lambda view: view.scores.confidence[torch.arange(len(view.acts))],
    "a tensor without a device": lambda view: view.open & torch.tensor([True] * view.open.shape[1]),
    "an arange without a device": lambda view: view.canvas.columns < torch.arange(view.open.shape[1]),
    "a mixed cat": lambda view: torch.cat([view.open, torch.zeros(view.open.shape, dtype=torch.bool)]),
}
COPIES: dict[str, Callable[[View], object]] = {
    "a tensor made with a device": lambda view: view.scores.confidence > torch.tensor([0.5], device=view.open.device),
    "a constant that is moved": lambda view: view.scores.confidence > torch.full((1,), 0.5).to(view.open.device),
    "a number assigned from the host": lambda view: view.open.clone().__setitem__(0, torch.tensor(True)),
    "a list as an index": lambda view: view.open[:, [0, 1]],
    "a host's number in where": lambda view: torch.where(view.open, torch.tensor(1), 0),
}


@pytest.mark.parametrize("name", IN_A_TURN)
def test_a_turn_with_a_mistake_fails(name: str) -> None:
    with pytest.raises(WrongDevice):
        on_a_gpu(Case(name, Planted(IN_A_TURN[name])))


@pytest.mark.parametrize("name", COPIES)
def test_a_turn_that_copies_is_reported(name: str) -> None:
    assert on_a_gpu(Case(name, Planted(COPIES[name]))).copies == ["samplers/base.py:propose"]


@pytest.mark.parametrize(("kv", "kind", "split"), [("none", "tiny-dream", False), ("prefix", "tiny-llada", True),
                                                   ("dual", "tiny-dream", True), ("window", "tiny-llada", True)])  # fmt: skip
def test_static_turns_run_on_torchs_own_fake_tensors(
    kv: str, kind: str, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one GPU and on two. Behind the first turn no number is asked for; FakeTensorMode itself refuses two devices."""
    monkeypatch.setattr("dllm.debug.ON", False)
    (sampler, blocks, cache, eos), name = parts(Case(kv, "credit", cache=kv, model=kind))
    network, mode = deepcopy(model(name)), FakeTensors()
    placement = halves(network) if split else ONE
    for place, parameter in list(network.named_parameters()):
        module, _, leaf = place.rpartition(".")
        fake = mode.fake(parameter, device_of(home_of(place, placement)))
        network.get_submodule(module)._parameters[leaf] = fake  # type: ignore[assignment]
    spread(network, placement)
    batch = [Request.answer(prompt, length, 60) for prompt, length in zip(PROMPTS, LENGTHS, strict=True)]
    with mode, torch.inference_mode():
        canvas, forward = Canvas.of(batch, 0, GPU), forward_of(network, (sampler, blocks, cache, eos), Sampling())
        running = denoise(canvas, forward, sampler, blocks, eos, 4)
        first = next(running)
        assert first.candidates.tokens.device == GPU and first.view.scores.confidence.device == GPU
        asked = mode.asked
        for turn in islice(running, 2):
            assert turn.candidates.tokens.device == GPU
        assert mode.asked == asked


def split_cases() -> Iterator[Case]:
    """Every cache over two GPUs, with branches, shadows and guidance where it takes them, and the caches' own options."""
    yield from caches()
    for name, kind in product(choices("cache"), MODELS):
        for rule in ("confidence", "freedave", "ete", "wino"):
            if allowed(Combination(rule, "fixed", name, model=kind)):
                yield Case(f"{rule}-{name}-{kind}", rule, cache=name, model=kind)
        guided = Case(f"guidance-{name}-{kind}", cache=name, model=kind, sampling=Sampling(guidance=0.5))
        if taken(guided):
            yield guided
    for kind in ("llada2_moe", "llada_moe", "llada_gqa_tied", "dream_gqa"):
        yield Case(f"model={kind}", cache="none" if kind == "llada2_moe" else "dual", model=kind)
    yield Case("statistics", Everything(), blocks="whole", cache="prefix")


def two_gpus() -> list[Any]:
    """By default a third of the pairs of sampler and cache, seeded, and every cache."""
    found = list(split_cases())
    kept = [case for number, case in enumerate(found) if full() or case.name.startswith("cache=") or number % 3 == 0]
    return [marked(case) for case in kept]


@pytest.mark.parametrize("case", two_gpus())
def test_two_gpus_decode_what_one_device_does(case: Case) -> None:
    with torch.inference_mode():
        expected = decoded(case)
        with FakeGPUs() as mode:
            found = decoded(case, on_gpus(parts(case)[1], split=True))
    assert [(one.canvas, one.turns, one.nfe) for one in found] == [(one.canvas, one.turns, one.nfe) for one in expected]
    assert mode.moves


@pytest.mark.parametrize("kv", choices("cache"))
def test_what_layers_share_is_moved_once_to_each_gpu(kv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows and what goes with them, not by layer: twelve layers make no more moves than two."""
    name = "sdar_b4" if kv == "finished" else "tiny-dream" if kv in ("dkv_pd", "dkv_prefill") else "tiny-llada"
    case = Case(f"moves-{kv}", made("sampler", "order", positions="left_to_right"), cache=kv, model=name, turns=4)
    moves = {}
    for layers in (2, 12):
        key = "n_layers" if name == "tiny-llada" else "num_hidden_layers"
        network = random_model({**model(name).config.published, key: layers})
        with torch.inference_mode(), FakeGPUs() as mode:
            decoded(case, placed(network, halves(network)))
        moves[layers] = len(mode.moves) / 4
    assert moves[12] <= moves[2] + 2 and moves[12] <= 12, moves
