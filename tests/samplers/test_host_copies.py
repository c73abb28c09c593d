"""A turn makes nothing on the host and moves nothing between devices.

On the meta device every tensor that is somewhere else shows: what a rule does runs there whole, but for the few rules
that ask the device for numbers. Those run on the CPU, where a tensor made of numbers shows by its operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from harness import build
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dllm.parts import (
    PC,
    TCCF,
    AdaBlock,
    Blocks,
    Bounded,
    Canvas,
    Dream,
    Fixed,
    Ids,
    Lengths,
    Proposer,
    ReMix,
    Sampler,
    Sampling,
    Soft,
    Static,
    StopStrings,
    Uniform,
    View,
    choices,
    gumbel,
    move,
    replaced,
    shared_by,
    uniform,
)
from tests.samplers.game import Game, with_attention

VARIANTS: dict[str, Callable[[], Sampler]] = {
    **{name: lambda n=name: build("sampler", n) for name in choices("sampler")},
    **{name: lambda n=name: replaced(build("sampler", n), process=Uniform(64)) for name in ("ancestral", "renoise")},
    "remix": lambda: replaced(build("sampler", "remix"), traits=ReMix.traits.but(soft=Soft("undecided", 11))),
    "static-random": lambda: Static(score="random"),
    "dream-origin": lambda: Dream("origin"),
    "dream-drawn": lambda: Dream(alg_temp=0.5),
}


class Here(TorchDispatchMode):
    """Refuses a tensor made of numbers, a copy to another device, and tensors that are not on ``device``."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name, out = func.overloadpacket.__name__, func(*args, **(kwargs or {}))
        assert name != "lift_fresh", "a tensor made of numbers"
        for one in tree_leaves((args, kwargs, out)):
            assert not isinstance(one, Tensor) or one.device.type == self.device, f"{name} on {one.device}"
        return out


def played(sampler: Sampler) -> tuple[Game, View]:
    """The second turn of two rows, with every statistic there is."""
    game = Game(sampler, 6, 3, rows=2)
    noise = torch.Generator().manual_seed(1)
    view = game.view(0.5)
    for _ in range(2):
        logits = torch.randn(2, 6, 11, generator=noise, dtype=torch.float64)
        p = logits.softmax(-1)
        first, token = p.max(-1)
        view = game.view(
            first,
            token,
            logits=logits,
            first=first,
            second=first / 2,
            gap=0.1,
            entropy=0.5,
            current=-0.1,
            shadow=-0.1,
            likeliest=token,
        )
    weights = torch.rand(2, *view.canvas.columns.shape * 2, generator=noise)
    return game, with_attention(view, weights.softmax(-1))


def at(view: View, sampler: Sampler, device: str) -> View:
    """The same on a device, with bounds, so that nobody asks it, and with what the sampler gives to all rows."""
    shared = shared_by(sampler, torch.device(device))
    readings = {
        one: found.to(device) if isinstance(found, Tensor) else moved(found, device)
        for one, found in view.scores.readings.items()
    }
    statistics = {name: value.to(device) for name, value in view.scores.statistics.items()}
    scores = replace(moved(view.scores, device), readings=readings, statistics=statistics)
    params = {name: value.to(device) for name, value in view.blocks.params.items()}
    span = replace(moved(view.blocks, device), shapes=Bounded(width=3), params=params)
    return replace(moved(view, device), canvas=move(view.canvas, device), scores=scores, blocks=span, shared=shared)


def moved(value: Any, device: str) -> Any:
    """A dataclass with its tensors on a device."""
    tensors = {field.name: getattr(value, field.name) for field in fields(value)}
    return replace(value, **{name: one.to(device) for name, one in tensors.items() if isinstance(one, Tensor)})


@pytest.mark.parametrize(
    "name", [name for name, make in VARIANTS.items() if not (make().traits.syncs or make().traits.branches)]
)
def test_a_rule_decides_where_its_canvas_is(name: str) -> None:
    sampler = VARIANTS[name]()
    game, view = played(sampler)
    canvas = move(game.canvas, "meta")
    if name == "oracle":  # reads prompts, once
        state = {key: value.to("meta") for key, value in sampler.start(game.canvas, game.blocks).items()}
    else:
        state = sampler.start(canvas, game.blocks)
    assert {value.device.type for value in state.values()} <= {"meta"}
    assert {value.shape[0] for value in state.values()} <= {2}
    view = at(view, sampler, "meta")
    with Here("meta"):
        step = sampler.propose(view, state)
    assert step.commit.device.type == "meta"


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "scout"])  # whose trees grow on the host
def test_a_rule_makes_no_tensor_of_numbers_in_a_turn(name: str) -> None:
    game, view = played(VARIANTS[name]())
    with Here("cpu"):
        game.sampler.propose(view, game.state)


def test_files_of_numbers_are_moved_once(tmp_path: Any) -> None:
    (tmp_path / "f.json").write_text('{"5": 0.5, "7": 0.25}')
    sampler = PC(frequencies=str(tmp_path / "f.json"))
    game, view = played(sampler)
    state = sampler.start(move(game.canvas, "meta"), game.blocks)
    view = at(view, sampler, "meta")
    with Here("meta"):
        sampler.propose(view, state)


def test_noise_is_made_where_its_keys_are() -> None:
    seed, columns = torch.arange(3)[:, None], torch.arange(5)
    for keys in ((seed, columns, 3), (7, seed, columns), (seed, 2, columns, torch.tensor(9), 1)):
        expected = uniform(*keys)
        away = [key.to("meta") if isinstance(key, Tensor) else key for key in keys]
        with Here("meta"):
            assert gumbel(*away).device.type == "meta" and uniform(*away).shape == expected.shape
    with pytest.raises(AssertionError, match="keys of noise lie on several devices: (cpu|meta), (cpu|meta)"):
        uniform(seed, columns.to("meta"))


def test_a_number_is_the_key_that_its_tensor_is() -> None:
    seed = torch.arange(-2, 3)
    for key in (0, 1, -1, 2**31, 2**63 - 1, -(2**63)):
        assert torch.equal(uniform(seed, key, 5), uniform(seed, torch.tensor(key), torch.tensor(5)))


@pytest.mark.parametrize(
    "blocks", [AdaBlock(3, delimiter_ids=[4, 7]), Lengths([2, 3]), TCCF(3, 1, marker=8), Fixed(3)], ids=type
)
def test_a_schedule_makes_no_tensor_of_numbers_in_a_turn(blocks: Blocks) -> None:
    game = Game(Static(), 6)
    span, view = blocks.start(game.canvas), game.view([0.9] * 6, [1, 4, 1, 7, 1, 1])
    with Here("cpu"):
        span = blocks.resize(game.canvas, view.scores, span.after_forward())
        full = game.canvas.commit(span.in_block, view.scores.token)
        full, span = blocks.revise(full, span, 60)
        opened = blocks.advance(full, span, view.owner, span.full(full, view.owner), view.canvas.shortened)
    assert int(opened.begin[0]) > int(span.begin[0])


@pytest.mark.parametrize("name", [*choices("eos"), "strings"])
def test_a_policy_makes_no_tensor_of_numbers_in_a_turn(name: str) -> None:
    policy = StopStrings(build("eos", "none"), ["never"], str) if name == "strings" else build("eos", name)
    game = Game(Static(), 6)
    view = game.view([0.9] * 6, 7)
    step = game.sampler.propose(view, game.state)
    with Here("cpu"):
        after = game.canvas.commit(step.commit, view.scores.token)
        policy.cut(after, view, step, (7,), view.blocks.full(after, step.owner))


def test_end_of_text_proposals_are_found_without_a_tensor_of_their_ids() -> None:
    canvas: Canvas = Game(Static(), 2).canvas
    propose = Proposer(Sampling(eos_last=True), Ids(3, 1, (2,)))
    logits = torch.eye(4)[None, [0, 1, 2, 3]] * 5 + torch.tensor([0.1, 0.0, 0.0, 0.0])
    with Here("cpu"):
        out = propose(logits, canvas, torch.zeros_like(canvas.start), torch.zeros(1, 4, dtype=torch.int64))
    assert out["token"].tolist() == [[0, 1, 2, 0]]
    assert (out["confidence"] == -1).tolist() == [[False, True, True, False]]
