"""What parts must keep to, checked where the loop takes what they return.

Shapes, kinds and devices are compared in every turn, which asks no device. What tensors hold is read where shapes
are exact, since the loop asks the device in each of those turns anyway; under bounded shapes nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from dllm.common.errors import Refusal, UserError, name_of
from dllm.common.rowwise import Owner
from dllm.contract import BlockState, ForwardPlan, Need, State, Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.traits import Rule

FRACTIONS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
BOOL, IDS, EITHER = (torch.bool,), (torch.int64,), (torch.bool, torch.int64)
_WORDS = {"float": "a floating-point type", "bool": "bool", "int64": "int64 (.long())"}


def is_laid(value: object, what: str, shape: tuple[int, ...], kinds: tuple[torch.dtype, ...], like: Tensor) -> None:
    """Refuse a ``value`` that is not a tensor of this shape and of one of these kinds on the device of ``like``. what:
    who returned which entry, for the message."""
    if type(value) is Tensor and value.shape == shape and value.dtype in kinds and value.device == like.device:
        return
    if not isinstance(value, Tensor):
        raise Refusal(f"{what} is {type(value).__name__}, and must be a tensor {_listed(shape)}.")
    if tuple(value.shape) != shape:
        raise Refusal(f"{what} has the shape {_listed(value.shape)}, and must have {_listed(shape)}.")
    if value.dtype not in kinds:
        wanted = " or ".join(dict.fromkeys(_WORDS["float" if kind in FRACTIONS else str(kind)[6:]] for kind in kinds))
        raise Refusal(f"{what} is of {value.dtype}, and must be of {wanted}.")
    if value.device != like.device:
        raise Refusal(f"{what} is on {value.device}, and the canvas on {like.device}. Make it on view.open.device.")


def _listed(shape: Iterable[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def needs_of(group: str, part: Any) -> tuple[Need, ...]:
    """What a part needs scored. Raises UserError, which names the part, for anything but a tuple of needs, and for a
    need that does not exist."""
    try:
        needs = part.needs()
    except UserError as error:
        raise Refusal(f"{{{group}}}: {error}", [name_of(part)]) from None
    if not isinstance(needs, tuple | list) or not all(isinstance(need, Need) for need in needs):
        raise Refusal(
            f"{{{group}}}: needs() returned {needs!r}, and must return a tuple of Need, such as (Need(),).",
            [name_of(part)],
        )
    return tuple(needs)


def checked_start(what: str, state: object, canvas: Canvas) -> State:
    """The state before the first turn, if it is one: tensors by name, each with an entry for every row. what: the part
    and its method."""
    if not isinstance(state, dict):
        raise Refusal(f"{what} returned {type(state).__name__}, and must return a dict of tensors [B, ...].")
    _follow(what, state, state, canvas.start)
    return state


def _follow(what: str, state: Mapping[str, object], start: Mapping[str, object], like: Tensor) -> None:
    """Refuse entries of a state that no row has, or that are elsewhere than ``like`` [B, ...]."""
    rows = len(like)
    for name, value in state.items():
        if name not in start:
            raise Refusal(f"{what} changes the state {name!r}, and began with {', '.join(sorted(start)) or 'none'}.")
        entry = f"{what} returned a state whose {name!r}"
        if not isinstance(value, Tensor):
            raise Refusal(f"{entry} is {type(value).__name__}, and must be a tensor [B, ...] with an entry a row.")
        if value.shape[:1] != (rows,):
            raise Refusal(
                f"{entry} has the shape {_listed(value.shape)}, and must lead with the row: [{rows}, ...]. What all "
                "rows share comes from shared()."
            )
        if value.device != like.device:
            raise Refusal(f"{entry} is on {value.device}, and the canvas on {like.device}.")


def checked_step(rule: Rule, step: object, view: View, state: State) -> Step:
    """The step, if it has the form that ``Step`` describes and is one that ``rule`` says it makes."""
    name = f"{{sampler={name_of(rule)}}}"
    if not isinstance(step, Step):
        raise Refusal(f"{name}: step() returned {type(step).__name__}, and must return view.step(commit, ...).")
    (rows, length), owner = view.open.shape, step.owner
    if owner.rows != rows:
        raise Refusal(f"{name}: the step's owner has {owner.rows} rows, and the batch {rows}.")
    shape, like, what = (len(owner.row), length), view.open, f"{name}: the step's"
    is_laid(step.commit, f"{what} commit", shape, BOOL, like)
    is_laid(step.tokens, f"{what} tokens", shape, IDS, like)
    is_laid(step.confidence, f"{what} confidence", shape, FRACTIONS, like)
    is_laid(step.remask, f"{what} remask", shape, BOOL, like)
    is_laid(step.next_positions, f"{what} next_positions", (rows, length), EITHER, like)
    is_laid(step.stop, f"{what} stop", (rows,), BOOL, like)
    is_laid(step.keep_open, f"{what} keep_open", (rows,), BOOL, like)
    for entry, kinds in (("accepted", BOOL), ("edit", BOOL), ("shown", IDS)):
        if (value := getattr(step, entry)) is not None:
            is_laid(value, f"{what} {entry}", shape, kinds, like)
    if step.mixture is not None:
        width = 0 if rule.traits.soft is None else rule.traits.soft.tokens
        is_laid(step.mixture.where, f"{what} mixture.where", shape, BOOL, like)
        is_laid(step.mixture.tokens, f"{what} mixture.tokens", (*shape, width), IDS, like)
        is_laid(step.mixture.weights, f"{what} mixture.weights", (*shape, width), FRACTIONS[:1], like)
    if step.state:
        _follow(f"{name}: step()", step.state, state, like)
    _as_declared(rule, name, step, view)
    return step


def _as_declared(rule: Rule, name: str, step: Step, view: View) -> None:
    """Refuse what other parts were told that the rule does not do."""

    def undeclared(what: str, trait: str) -> UserError:
        return Refusal(f"{name} {what}, which other parts must know: write {trait} in its traits.")

    if step.state and rule.traits.stateless:
        raise undeclared("remembers something from turn to turn", "stateless=False")
    if step.edit is not None and not rule.traits.edits:
        raise undeclared("replaces tokens (edit) or keeps a full block open (keep_open)", "edits=True")
    if step.shown is not None and not rule.traits.renoises:
        raise undeclared("says what undecided positions show (shown)", "renoises=True")
    if step.mixture is not None and rule.traits.soft is None:
        raise undeclared("says that positions show mixtures (mixture)", "soft=Soft(...)")
    if not step.owner.is_single and not rule.traits.branches:
        raise undeclared("offers several candidates", "branches=True")
    # fixed shapes do not look into tensors, and owner.per_candidate makes a new one of nothing
    looks = not (rule.traits.revocable or view.blocks.shapes.bounded or step.remask is view.canvas.no_positions)
    if looks and bool(step.remask.any()):
        raise undeclared("takes tokens back (remask)", "revocable=True")


def checked_contents(rule: Rule, step: Step, view: View, vocab: int, wraps: bool) -> None:
    """Refuse ids that the vocabulary does not have, and commits of what is decided already. wraps: the step was not
    narrowed to open positions. Looks only where a rule has chosen tokens or positions by itself, and shapes are
    exact."""
    if view.blocks.shapes.bounded:
        return
    changes, name = step.written, f"{{sampler={name_of(rule)}}}"
    if step.tokens is not view.scores.token:
        wrong = changes & ((step.tokens < 0) | (step.tokens >= vocab))
        if bool(wrong.any()):
            found = int(step.tokens[wrong][0])
            raise Refusal(f"{name} commits token {found}, and the model's ids lie in [0, {vocab - 1}].")
    if step.shown is not None and bool(((step.shown < 0) | (step.shown >= vocab)).any()):
        raise Refusal(f"{name} shows an id outside the model's, which lie in [0, {vocab - 1}].")
    if wraps and bool((step.commit & ~step.owner.per_candidate(view.canvas.undecided)).any()):
        raise Refusal(
            f"{name} commits positions that are decided already, prompt included. A rule around another one commits "
            "positions of view.canvas.undecided alone, and those of view.open unless its traits say commits_ahead=True."
        )


def checked_choice(rule: Rule, choice: object, owner: Owner) -> Tensor:
    """The candidate [B] that each row goes on with, if it is one of its own."""
    what = f"{{sampler={name_of(rule)}}}: choose()"
    is_laid(choice, f"{what}'s result", (owner.rows,), IDS, owner.row)
    assert isinstance(choice, Tensor)
    mine = owner.row[choice.clamp(0, len(owner.row) - 1)] == torch.arange(owner.rows, device=choice.device)
    if not bool((mine & (choice >= 0) & (choice < len(owner.row))).all()):
        raise Refusal(f"{what} names a candidate of another row. It returns indices into view, those of owner.row.")
    return choice


def checked_cut(policy: Any, edits: bool, cut: object, before: Canvas, view: View, step: Step) -> Canvas:
    """The canvases after an end-of-text policy, if they are those before with less left to decide, and if it acted no
    earlier than it says."""
    name = f"{{eos={name_of(policy)}}}"
    if not isinstance(cut, Canvas):
        raise Refusal(f"{name}: cut() returned {type(cut).__name__}, and must return the candidates.")
    if cut is before:
        return cut
    for entry in ("tokens", "masked", "valid", "end"):
        value, was = getattr(cut, entry), getattr(before, entry)
        if value is not was:
            is_laid(value, f"{name}: {entry} of what cut() returned", tuple(was.shape), (was.dtype,), was)
    if cut.valid is not before.valid and not policy.traits.shrinks:
        raise Refusal(f"{name} takes columns off the canvas, so its traits must not say shrinks=False.")
    if view.blocks.shapes.bounded or (cut.end is before.end and cut.masked is before.masked):
        return cut
    if bool((cut.undecided & ~before.undecided).any()):
        raise Refusal(f"{name} leaves more to decide than before. cut() may only end rows earlier, or fill them.")
    goes_on = (cut.masked != before.masked).any(1) & cut.undecided.any(1)
    if not policy.traits.fills and bool(goes_on.any()):
        raise Refusal(f"{name} fills positions of a row that goes on, so its traits must not say fills=False.")
    if edits and not policy.traits.at_once:
        waits = (before.undecided & view.blocks.in_block).any(1) | step.owner.per_candidate(step.keep_open)
        if bool((waits & (cut.undecided != before.undecided).any(1)).any()):
            raise Refusal(
                f"{name} acts in a block that is still open, where this sampler may replace the end of text: "
                "its traits must not say at_once=False."
            )
    return cut


def checked_plan(policy: Any, plan: object, canvas: Canvas, own: State) -> ForwardPlan:
    """A cache's plan, if it has the form that ``ForwardPlan`` describes. own: what the policy remembers itself."""
    name = f"{{cache={name_of(policy)}}}"
    if not isinstance(plan, ForwardPlan):
        raise Refusal(f"{name}: plan() returned {type(plan).__name__}, and must return view.plan(columns, ...).")
    shape, like = tuple(canvas.tokens.shape), canvas.masked
    for entry in ("columns", "committable", "forced", "keys"):
        if entry != "forced" or plan.forced is not None:
            is_laid(getattr(plan, entry), f"{name}: the plan's {entry}", shape, BOOL, like)
    if plan.beside is not None:
        is_laid(plan.beside.drafts, f"{name}: the plan's drafts", shape, IDS, like)
    if plan.state:
        _follow(f"{name}: plan()", plan.state, own, like)
    return plan


def checked_blocks(schedule: Any, what: str, blocks: object, before: BlockState) -> BlockState:
    """The blocks that a schedule returned, if they are laid out as those before."""
    name = f"{{blocks={name_of(schedule)}}}: {what}"
    if not isinstance(blocks, BlockState):
        raise Refusal(f"{name} returned {type(blocks).__name__}, and must return a BlockState.")
    if blocks is not before:
        for entry in ("begin", "end", "open_end", "masks", "done", "in_block", "in_open"):
            value, was = getattr(blocks, entry), getattr(before, entry)
            if value is not was:
                is_laid(value, f"{name}: {entry}", tuple(was.shape), (was.dtype,), was)
    return blocks
