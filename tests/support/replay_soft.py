"""Recorded decodes of rules under which positions show mixtures: tokens, closings, mixtures and the inputs they made.

``AsPublished`` has the accidents of DMax's code, for the cases that are marked so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from accidents import accident, named
from constraints_decodes import same
from flattened import load_model, read_model_config
from mapped import parts_by
from replay_params import mapping_of
from replay_parts import Case, CaseParts
from replay_record import relative
from torch import Tensor

from dllm.parts import (
    BlockState,
    CacheView,
    Canvas,
    DMax,
    EndOfText,
    FillAfterBlock,
    Finished,
    Fixed,
    Forward,
    ForwardPlan,
    FullLength,
    Ids,
    Memory,
    Owner,
    Request,
    Setting,
    State,
    Step,
    Transformer,
    Turn,
    View,
    denoise,
)

OF_CASE = {"model", "prompt", "params", "accident"}
CLOSE = 3e-4  # numbers with a point compare within this


@accident("the mask may be proposed and accepted")
class AsPublished(DMax):
    """The model may propose the mask: where it is accepted the position stays masked, where a token stood it is masked
    again. A block closes although masks are left. For one row."""

    traits = DMax.traits.but(revocable=True)
    closes = torch.tensor([False])

    def step(self, view: View, state: State) -> Step:
        mask, step, blocks = 60, super().step(view, state), view.blocks
        assert step.edit is not None and step.mixture is not None
        proposed = view.scores.token == mask
        taken, step = step.edit & proposed, step.but(commit=step.commit & ~proposed, edit=step.edit & ~proposed)
        active = view.open | view.editable
        sure = (~active | (view.scores.confidence >= 0.9)).all(1)
        same = ~(step.written | taken).any(1)
        self.closes = sure | same | (blocks.forwards >= blocks.end - blocks.begin)
        mixture = replace(step.mixture, where=step.mixture.where & ~proposed)
        return step.but(remask=taken, keep_open=~self.closes, mixture=mixture)


@accident("blocks close with masks in them")
class Closing(Fixed):
    """Blocks that close when the rule says so, and stay behind with their masks."""

    traits = Fixed.traits

    def __init__(self, length: int, rule: AsPublished) -> None:
        super().__init__(length)
        self.rule = rule

    def advance(
        self, candidates: Canvas, blocks: BlockState, owner: Owner, full: Tensor, stopped: Tensor
    ) -> BlockState:
        past = candidates.columns < torch.where(self.rule.closes, blocks.end, blocks.begin)[:, None]
        rest = replace(candidates, masked=candidates.masked & ~past)
        return super().advance(rest, blocks, owner, self.rule.closes, stopped)


@accident("an end of text is found in blocks that close with masks")
class ClosingFill(FillAfterBlock):
    """The same of the end of a text: the row ends there, and the masks that its block was left with stay."""

    traits = FillAfterBlock.traits.but(at_once=True, fills=True)

    def __init__(self, rule: AsPublished) -> None:
        super().__init__()
        self.rule = rule

    def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
        return super().cut(candidates, view, step, ends, self.rule.closes)


@accident("what a closed block leaves masked counts as decided")
class LeftBehind(Finished):
    """What is left masked in a closed block counts as decided."""

    def plan(self, view: CacheView) -> ForwardPlan:
        masked = view.canvas.masked & (view.canvas.columns >= view.blocks.begin[:, None])
        return super().plan(replace(view, canvas=replace(view.canvas, masked=masked)))


@dataclass
class Row:
    """What a decode did, in the words of the files."""

    start: int
    length: int
    shown: list[Tensor] = field(default_factory=list)  # embeddings that each forward took, by column [L, D]
    turns: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def watch(self, model: Transformer) -> Callable[..., tuple[Tensor, Tensor | None]]:
        """The network, whose inputs are noted."""

        def run(tokens: Tensor, positions: Tensor, memory: Memory, columns: Tensor | None, **more: Any) -> Any:
            x = model.embed(tokens)
            at = torch.arange(tokens.shape[1]) if columns is None else columns[0]
            laid = torch.zeros(self.length + 1, x.shape[-1])
            self.shown.append(laid.index_copy(0, at, more["conditioning"].over(x)[0])[:-1])
            return model(tokens, positions, memory, columns, **more)

        return run

    def observe(self, turn: Turn) -> None:
        canvas, start, before, now = turn.candidates, self.start, turn.view.blocks, turn.blocks
        mixture, edit, masked = turn.step.mixture, turn.step.edit, turn.canvas.masked[0]
        assert mixture is not None
        self.tokens = canvas.tokens[0].tolist()
        span = slice(int(before.begin[0]), int(before.end[0]))
        edited = [] if edit is None else edit[0].nonzero()[:, 0].tolist()
        stands = mixture.where[0].nonzero()[:, 0].tolist()
        self.turns.append({
            "forward_tokens": int(turn.cost.queries[0, 0]), "committed": relative(turn.step.commit[0], start),
            "remasked": relative(~masked & canvas.masked[0], start),
            "edited": [[at - start, int(canvas.tokens[0, at])] for at in edited], "span": span, "masked": masked[span],
            "stays": int(now.index[0]) == int(before.index[0]) and not bool(now.done[0]),
            "number": int(before.forwards[0]), "canvas": canvas.tokens[0],
            "active": (turn.view.open | turn.view.editable)[0], "sure": turn.view.scores.confidence[0],
            "soft": [[at - start, *map(list, zip(mixture.tokens[0, at].tolist(), mixture.weights[0, at].tolist(),
                                                 strict=True))] for at in stands],
            "rejected": [] if mixture.rejected is None else relative(mixture.rejected[0], start),
            "changed": bool(turn.step.written.any() or turn.step.remask.any()),
        })  # fmt: skip

    def each(self, name: str) -> list[Any]:
        return [turn[name] for turn in self.turns]


def digest(x: Tensor) -> list[float]:
    """The mean of the norms and of the sums of embeddings [n, D]."""
    return [float(x.norm(dim=-1).mean()), float(x.sum(-1).mean())]


def decoded(model: Transformer, case: Case, parts: CaseParts) -> Row:
    prompt, config, length = case["prompt"], model.config, case["params"]["gen_length"]
    length += -(len(prompt) + length) % parts.fills_up
    assert config.mask_id is not None and config.eos_id is not None
    row = Row(len(prompt), len(prompt) + length)
    forward = Forward.of(model, Ids(config.mask_id, config.eos_id, ()), parts, row.watch(model))
    canvas = Canvas.of([Request.answer(prompt, length, config.mask_id)], 0, "cpu", config.attention.grid_at_zero)
    with torch.inference_mode():
        for turn in denoise(canvas, forward, parts):
            row.observe(turn)
    return row


def biased(model: Transformer, bias: float) -> Transformer:
    """The model whose mask has that much more of a logit."""
    kind, own = type(model), type(model).local_head

    def local_head(self: Transformer, hidden: Tensor) -> Tensor:
        return own(self, hidden).index_add(-1, torch.tensor([60]), torch.full((*hidden.shape[:-1], 1), bias))

    model.__class__ = type("Biased", (kind,), {"local_head": local_head, "local_head_weight": None})
    return model


def dmax(case: Case, folder: Path) -> dict[str, Any]:
    """Every field of a case of DMax."""
    params, config = case["params"], read_model_config(folder)
    block, prompt = params["block_length"], len(case["prompt"])
    model = load_model(
        folder, dtype=torch.float32, config=replace(config, attention=replace(config.attention, length=block))
    )
    model = biased(model, params.get("mask_bias", 0.0))
    rule, blocks, cache = DMax(params["threshold"], params["top_k"]), Fixed(block), Finished()
    eos: EndOfText = FillAfterBlock()
    if named(case):
        rule = AsPublished(params["threshold"], params["top_k"])
        blocks, cache, eos = Closing(block, rule), LeftBehind(), ClosingFill(rule)
    eos = eos if params["early_stop"] else FullLength()
    row = decoded(model, case, CaseParts(rule, blocks, cache, eos, fills_up=block))
    before = block * (prompt // block)
    spent = row.each("forward_tokens")
    closed = [closing(turn) for turn in row.turns]
    mixtures = [[] if why else turn["soft"] for why, turn in zip(closed, row.turns, strict=True)]
    limits = [turn["number"] == block and not why for why, turn in zip(closed, row.turns, strict=True)]
    return {
        "tokens": row.tokens,
        "nfe": len(row.turns),
        "prefill": max(block, before),
        "forward_tokens": [spent[0] - before, *spent[1:]],
        "committed": row.each("committed"),
        "edited": row.each("edited"),
        "remasked": row.each("remasked"),
        "closed": closed,
        "soft": mixtures,
        "inputs": [None if why else digest(given(model, row, at)) for at, why in enumerate(closed)],
        **({"limit": any(limits)} if "limit" in case else {}),  # case 17 has such a block, and no mark
    }


def closing(turn: dict[str, Any]) -> str:
    """Why a forward closed its block, by the rule's text: ``sure``, ``same``, or empty."""
    if turn["stays"]:
        return ""
    if bool((turn["sure"][turn["active"]] >= 0.9).all()):
        return "sure"
    return "" if turn["changed"] else "same"


def given(model: Transformer, row: Row, at: int) -> Tensor:
    """What the forward after turn ``at`` takes for its block's columns. Of a turn that the limit ends: what it would
    have taken, by the formula."""
    turn = row.turns[at]
    if turn["stays"]:
        return row.shown[at + 1][turn["span"]]
    weight = model.embed.weight.double()
    x = weight[turn["canvas"]].clone()
    for place, *parts in turn["soft"]:
        shares = [*parts, [60, max(0.0, 1 - sum(share for _, share in parts))]]
        u = torch.stack([share * weight[token] for token, share in shares]).sum(0)
        goal = sum(share * float(weight[token].norm()) for token, share in shares)
        x[place + row.start] = u * goal / (u.norm() + 1e-6)
    return x[turn["span"]]


def remix(case: Case, folder: Path) -> dict[str, Any]:
    """Every field of a case of ReMix."""
    params, model = case["params"], load_model(folder, dtype=torch.float32)
    parts = parts_by(mapping_of("remix"), params)
    rule = parts.sampler.resolved(Setting(model.config, parts.blocks, params["gen_length"]))
    row = decoded(model, case, replace(parts, sampler=rule))
    plain = [turn["number"] == 1 or at == 1 for at, turn in enumerate(row.turns)]
    shown = [x[turn["span"]][turn["masked"]] for x, turn in zip(row.shown, row.turns, strict=True)]
    return {
        "tokens": row.tokens,
        "nfe": len(row.turns),
        "forward_tokens": row.each("forward_tokens"),
        "committed": row.each("committed"),
        "mixed": [not one for one in plain],
        "rejected": row.each("rejected"),
        "inputs": [None if one else digest(x) for one, x in zip(plain, shown, strict=True)],
    }


def outcomes(data: Case, models: Path, sample: bool = False) -> Iterator[str | None]:
    """What is wrong with every case; sample: every third is decoded."""
    decode = {"dmax": dmax, "remix": remix}[data["method"]]
    for number, case in enumerate(data.get("cases", ())):
        if sample and number % 3:
            yield None
            continue
        found = decode(case, models / case["model"])
        wrong = sorted(case.keys() - OF_CASE - found.keys())
        wrong += [name for name, value in found.items() if name not in case or not same(value, case[name], CLOSE)]
        yield f"{', '.join(wrong)} differ" if wrong else None


METHODS = {"dmax": outcomes, "remix": outcomes}
