"""What a part is cannot be forgotten: silence counts as what is safe, and what our own parts say is so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from harness import build, model
from own_parts import CutFirst

from dllm import UserError
from dllm.parts import (
    NOTHING_SHARED,
    WINO,
    AllLogits,
    Blocks,
    Buffered,
    Cache,
    CacheTraits,
    CacheView,
    Canvas,
    Confidence,
    Dream,
    EndOfText,
    Extra,
    FillAfterBlock,
    Fixed,
    ForwardPlan,
    FullLength,
    JointThreshold,
    Length,
    Need,
    Owner,
    Prophet,
    Request,
    Saber,
    Sampler,
    Scores,
    Setting,
    Statistic,
    Step,
    StopFront,
    StopStrings,
    View,
    all_parts,
    choices,
    validate,
)

EOS, PROMPT, LENGTH, BLOCK = 9, 2, 8, 4
POLICIES = {
    **{name: build("eos", name) for name in choices("eos")},
    "all": FillAfterBlock("all"),
    "stop_front": StopFront(),
    "own": CutFirst(),
    "strings": StopStrings(FullLength(), ["x"], lambda ids: "x" * (EOS in ids)),
    "strings of an early one": StopStrings(CutFirst(), ["x"], lambda ids: ""),
}


def turns_of_a_block() -> Iterator[tuple[Canvas, View, Step, bool]]:
    """Every way to fill some of a block of four, an end of text among them; another one is proposed elsewhere. Canvas,
    view and step of the turn, and whether the block is full then."""
    canvas = Canvas.of([Request.answer([1] * PROMPT, LENGTH, 60)], 61)
    known = canvas.valid & ~canvas.given
    for filled in range(1, 1 << BLOCK):
        where = torch.zeros_like(canvas.masked)
        where[0, PROMPT : PROMPT + BLOCK] = torch.tensor([filled >> at & 1 for at in range(BLOCK)]).bool()
        tokens = torch.full_like(canvas.tokens, EOS)
        scores = Scores(known, tokens, known.double(), known)
        view = View.of(
            canvas,
            scores,
            Fixed(BLOCK).start(canvas).after_forward(),
            None,
            Owner.single(1, canvas.start.device),
            NOTHING_SHARED,
        )
        step = view.step(where, accepted=where).but(edit=canvas.no_positions)  # of a rule that edits
        yield canvas.commit(where, tokens), view, step, filled == (1 << BLOCK) - 1


@pytest.mark.parametrize("name", POLICIES)
def test_an_end_of_text_policy_acts_no_earlier_and_takes_no_more_than_it_says(name: str) -> None:
    """Tried on every state of a block: what it says is exactly what it does."""
    policy = POLICIES[name]
    early = shrinks = False
    for candidates, view, step, full in turns_of_a_block():
        cut = policy.cut(candidates, view, step, (EOS,), torch.tensor([full]))
        early |= not full and not torch.equal(cut.undecided, candidates.undecided)
        shrinks |= not torch.equal(cut.valid, candidates.valid)
    assert (policy.traits.at_once, policy.traits.shrinks) == (early, shrinks)


@pytest.mark.parametrize("name", POLICIES)
def test_an_editing_rule_goes_with_policies_that_wait(name: str) -> None:
    """``stop_at_last_eos`` was taken. It cut a row at an end of text that the rule replaced: 4 of 32 were left."""
    setting, rule = Setting(model("tiny-llada").config, Fixed(4), 8), JointThreshold()
    if not POLICIES[name].traits.at_once:
        validate(setting, rule, build("cache", "none"), POLICIES[name])
        return
    with pytest.raises(UserError, match=r"^eos=\w+ acts on an end of text at once, but sampler=joint_threshold"):
        validate(setting, rule, build("cache", "none"), POLICIES[name])


@pytest.mark.parametrize(
    ("base", "method", "kind"),
    [
        (Sampler, "step", "SamplerTraits"),
        (Blocks, "containing", "BlocksTraits"),
        (Cache, "start", "CacheTraits"),
        (EndOfText, "cut", "EosTraits"),
        (Fixed, "advance", "BlocksTraits"),
        (Fixed, "revise", "BlocksTraits"),
        (Fixed, "_open_end", "BlocksTraits"),
        (FullLength, "cut", "EosTraits"),
        (Length, "change", "LengthTraits"),
    ],
)
def test_a_part_that_says_nothing_of_itself_cannot_be_made(base: type, method: str, kind: str) -> None:
    """Nor one that does otherwise than the class it extends, in what the traits of that one speak of."""
    with pytest.raises(UserError, match=rf"^Silent declares no traits: write traits = {kind}\(\.\.\.\) in the"):
        type("Silent", (base,), {method: lambda *given: given})


def test_a_wrapper_has_the_traits_of_the_rule_inside_but_for_its_own() -> None:
    inner = Dream(alg="origin")
    rule = Prophet(inner, region="none")
    assert inner.traits.tempered and rule.traits == inner.traits.but(stateless=False, commits_ahead=True)

    class Tempered(Prophet):
        traits = Prophet.traits.but(tempered=True)

    assert Tempered(Confidence(), region="none").traits.tempered
    assert StopStrings(CutFirst(), ["x"], str).traits == CutFirst.traits.but(syncs=True)


class Columns(Buffered):
    """A cache that says nothing: it computes what is masked."""

    def plan(self, view: CacheView) -> ForwardPlan:
        return view.plan(view.canvas.masked)


def test_a_cache_that_says_nothing_serves_nothing_beyond_masks_of_the_open_block() -> None:
    silent = CacheTraits()
    said = silent.scores_all_at_open, silent.committed, silent.branches, silent.shadows, silent.exposes_attention
    assert not any(said) and not silent.bounded_shapes
    assert silent.full_on_open and not silent.bounds_late
    setting = Setting(model("tiny-llada").config, Fixed(4), 8)
    validate(setting, Confidence(), Columns(), FullLength())
    for rule in (Saber(), JointThreshold()):  # they read decided positions, which would never be scored
        with pytest.raises(UserError, match="^cache=Columns computes masked positions, not the committed ones"):
            validate(setting, rule, Columns(), FullLength())
    with pytest.raises(UserError, match="^cache=Silent has no room for the extra queries of sampler=wino"):
        validate(setting, WINO(), type("Silent", (Cache,), {"traits": CacheTraits()})(), FullLength())


@pytest.mark.parametrize("name", [name for name in choices("blocks") if build("blocks", name).fixed_length])
def test_blocks_that_say_their_length_have_it(name: str) -> None:
    blocks = build("blocks", name)
    canvas = Canvas.of([Request.answer([1] * PROMPT, 4 * blocks.fixed_length, 60)], 61)
    own = blocks.start(canvas).params
    for column in range(PROMPT, PROMPT + 3 * blocks.fixed_length):
        at = torch.tensor([column])
        begin, end, _ = blocks.containing(canvas, at, torch.zeros_like(at), own)
        assert int(end - begin) == blocks.fixed_length and int(begin) <= column < int(end)


def test_a_need_names_its_statistics() -> None:
    assert Need(reads=(*Statistic.of("gap", "entropy"), AllLogits())).statistics == ("gap", "entropy")


def test_the_rules_that_go_by_earlier_blocks_are_these() -> None:
    """Inside another program's loop, which shows a rule one block, they are refused."""
    rules = all_parts(groups=("sampler",))[0]
    assert {name for name, rule in rules.items() if rule.traits.beyond_block} == {"d2f", "prior"}


def test_what_parts_that_say_how_long_a_row_is_say_of_themselves() -> None:
    parts = {name: build("length", name) for name in choices("length")}
    said = {
        name: {key for key in ("changes", "moves", "takes_back", "probes") if getattr(one.traits, key)}
        for name, one in parts.items()
    }
    assert said == {
        "fixed": set(),
        "cal": {"probes"},
        "daedal": {"changes", "moves"},
        "rho_eos": {"changes", "takes_back"},
    }
    for name, one in parts.items():
        assert one.traits.changes == (type(one).change is not Length.change), name


def test_an_extra_asks_for_no_more_than_it_says() -> None:
    """Stored logits are memory, calls one by one are time, and rows that share a forward must not differ in it."""
    asked = {
        kind.__name__: {flag for flag in ("stores_logits", "looks_up", "leads", "sequential") if getattr(kind, flag, 0)}
        for kind in (Extra, *Extra.__subclasses__())
        if kind.__module__.startswith("dllm.")
    }
    assert {name: flags for name, flags in asked.items() if flags} == {
        **dict.fromkeys(("Guidance", "DoubtGuidance", "CarriedEmbeddings"), {"stores_logits"}),
        "InnerLayers": {"sequential"},
        "Waiting": {"leads"},
    }
