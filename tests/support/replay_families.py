"""Recorded decodes of the families of 2026: in every field, without a cache and with the exact one.

The published loops run forwards that decide nothing (a prefill by itself, a finished block for its keys and values).
Here these rows ride along with a forward that decides. Where a field counts such forwards they are put back.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import replay_causal
import torch
from accidents import accident, stand_in
from replay_causal import MASK, NO_EOS, Fields, Row, Way, decoded, decoded_requests, model_of
from replay_parts import Case, CaseParts
from replay_record import relative
from torch import Tensor

from dllm.parts import (
    AllLogits,
    AnswerBlocks,
    BlockCausal,
    Canvas,
    Confidence,
    ContextCausal,
    DraftWindow,
    FillAfterBlock,
    Fixed,
    Focus,
    FocusPass,
    Forward,
    FullLength,
    Ids,
    LinearSpec,
    Need,
    NoCache,
    Request,
    Sampler,
    SamplerTraits,
    Sampling,
    SeededBlocks,
    Sliding,
    State,
    Static,
    Step,
    StopFront,
    ThinkingBudget,
    View,
    Whole,
    argmax_mask,
    denoise,
    top_k_mask,
    with_tokens,
)

EOS, PAD = 61, 63
IDS = Ids(MASK, EOS, ())
PLAIN = Sampling(suppress_mask=False)


@stand_in
class Quotas(Sampler):
    """So many positions in each forward, the surest first."""

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=True)

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = list(counts)

    def step(self, view: View, state: State) -> Step:
        count = torch.tensor(self.counts)[view.blocks.turn - 1]
        return view.step(top_k_mask(self.cost(view), view.open, count))

    def cost(self, view: View) -> Tensor:
        return view.scores.confidence


@accident("the threshold is strict")
class Above(Confidence):
    """Strictly above the threshold."""

    def step(self, view: View, state: State) -> Step:
        confidence = view.scores.confidence
        accepted = view.open & (confidence > state["threshold"][:, None])
        return view.step(accepted | argmax_mask(confidence, view.open), accepted=accepted)


@stand_in
class OverSteps(Sampler):
    """The masks that a block begins with over so many forwards, the first ones one more where they do not divide."""

    traits = SamplerTraits(stateless=True, deterministic=True, by_confidence=True)

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def step(self, view: View, state: State) -> Step:
        masks, at = view.blocks.masks, view.block_step
        return view.step(top_k_mask(view.scores.confidence, view.open, masks // self.steps + (at < masks % self.steps)))


def a2d_mdlm(rows: Sequence[Case], folder: Path, way: Way) -> list[Fields]:
    """The repository's quotas hold float32 errors; the recorded counts stand for them."""
    (row,), params = rows, rows[0]["params"]
    sampling = Sampling(
        suppress_mask=False, guidance=params.get("cfg_scale", 0.0), forbid_eos=bool(params.get("suppress_tokens"))
    )
    assert params.get("suppress_tokens", [EOS]) == [EOS]
    parts = CaseParts(
        Quotas([len(one) for one in row["committed"]]), Fixed(params["block_size"]), way[0](), FullLength(), sampling
    )
    (found,) = decoded(model_of(folder, way[1], None), rows, [params["max_new_tokens"]], parts, IDS)
    double = 2 if sampling.guidance else 1
    return [common(found) | {"forward_tokens": [one // double for one in found.computed]}]


def common(found: Row) -> Fields:
    return {"tokens": found.tokens, "nfe": len(found.computed), "committed": found.committed}


def a2d_bd3lm(rows: Sequence[Case], folder: Path, way: Way) -> list[Fields]:
    (row,), block, length = rows, rows[0]["params"]["block_size"], rows[0]["params"]["max_new_tokens"]
    sampler, eos = Quotas([len(one) for one in row["committed"]]), FillAfterBlock("any")
    parts = CaseParts(sampler, Fixed(block), way[0](), eos, PLAIN)
    (found,) = decoded(model_of(folder, way[1], block, AnswerBlocks), rows, [length], parts, IDS)
    widths = [min(block, length - number * block) for number in found.number]
    fields = common(found) | {"tokens": unfilled(found), "prefix_forwards": len({*found.number})}
    if way[0] is not NoCache:
        assert found.computed == ride_along(found, widths, found.start)
        fields["block_tokens"] = widths
    return [fields]


def unfilled(found: Row) -> list[int]:
    """The tokens without what the end-of-text policy wrote behind the last block."""
    return found.tokens[: found.tokens.index(MASK)] if MASK in found.tokens else found.tokens


def ride_along(found: Row, widths: Sequence[int], first: int) -> list[int]:
    """Rows of each forward: its block's, and in a block's first one those that have just become final; ``first`` in the
    first of all."""
    out = []
    for at, width in enumerate(widths):
        new = at and found.number[at] != found.number[at - 1]
        out.append(width + (first if not at else widths[at - 1] if new else 0))
    return out


@stand_in
class TemperedEntropy(Quotas):
    """RND1's two rules: entropy schedule and bound. Entropies and probabilities are those after temperature, though the
    token is the argmax."""

    def __init__(self, counts: Sequence[int], temperature: float, gamma: float | None, steps: int) -> None:
        super().__init__(counts)
        self.temperature, self.gamma, self.steps = temperature, gamma, steps

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=(AllLogits(),)),)

    def step(self, view: View, state: State) -> Step:
        logits = view.scores.of(AllLogits())
        p = (logits.values.double() / self.temperature).softmax(-1)
        entropy, best = [-torch.special.xlogy(p, p).sum(-1), p.amax(-1)]
        length = view.open.shape[1]
        wide = torch.zeros(len(p), length + 1, dtype=torch.float64)
        entropy, best = (wide.scatter(1, logits.columns, one)[:, :length] for one in (entropy, best))
        if self.gamma is None:
            count = torch.tensor(self.counts)[view.blocks.turn - 1]
            return view.step(top_k_mask(-entropy, view.open, count))
        if int(view.blocks.turn[0]) >= self.steps:
            return view.step(view.open)
        order = best.masked_fill(~view.open, -1).sort(descending=True, stable=True).indices
        ranked = entropy.gather(1, order)
        passes = ranked.cumsum(1) - ranked.cummax(1).values <= self.gamma
        leading = passes.long().cumprod(1).bool()
        chosen = torch.zeros_like(view.open).scatter(1, order, leading)
        return view.step(chosen & view.open)


def rnd1(rows: Sequence[Case], folder: Path, way: Way) -> list[Fields]:
    """The canvas has one more column, which holds a pad. Forwards that decide nothing are no turns here."""
    (row,), params = rows, rows[0]["params"]
    length, steps = params["max_new_tokens"], params["num_steps"]
    kept = [length * (steps - k) // steps for k in range(steps + 1)]
    quotas = [before - after for before, after in zip(kept, kept[1:], strict=False)]
    sampler = TemperedEntropy([one for one in quotas if one], params["temperature"], params["eb_gamma"], steps)
    parts = CaseParts(sampler, Whole(), way[0](), FullLength(), PLAIN)
    asked = with_tokens(Request.answer(row["prompt"], length + 1, MASK), {len(row["prompt"]) + length: PAD})
    (found,) = decoded_requests(model_of(folder, way[1], None), [asked], parts, IDS)
    committed = list(found.committed)
    if params["eb_gamma"] is None:
        after = iter(committed)
        last = max(k for k, one in enumerate(quotas) if one)
        committed = [next(after) if one else [] for one in quotas[: last + 1]]
        # The published forwards count from 1 and keep floor(n (S - k) / S): the first may already decide.
    return [common(found) | {"committed": committed, "nfe": len(committed)}]


def fastdllm_v2(rows: Sequence[Case], folder: Path, way: Way) -> list[Fields]:
    (row,), params = rows, rows[0]["params"]
    block, prompt = params["block_size"], len(row["prompt"])
    whole = prompt // block * block
    end = whole + params["max_new_tokens"] // block * block + 1  # and the seed of a block that is not decoded
    parts = CaseParts(Above(params["threshold"]), Fixed(params["small_block_size"]), way[0](), StopFront(), PLAIN)
    (found,) = decoded(model_of(folder, way[1], block, SeededBlocks), rows, [end - prompt], parts, IDS)
    kinds = ["commit" if forced else "denoise" for forced in found.forced]
    committed, computed = found.committed, found.computed
    if whole and not found.forced[0]:  # the published prefill is a call of its own
        kinds, committed = ["commit", *kinds], [[], *committed]
        computed = [whole, computed[0] - whole, *computed[1:]]
    fields = {"tokens": found.tokens, "nfe": len(kinds), "kinds": kinds, "committed": committed}
    return [fields | ({} if way[0] is NoCache else {"forward_tokens": computed})]


def diffcoder(rows: Sequence[Case], folder: Path, way: Way) -> list[Fields]:
    (row,), params = rows, rows[0]["params"]
    block, length, prompt = params["block_length"], params["gen_length"], len(row["prompt"])
    threshold = params["threshold"]
    steps = params["steps"] // (length // block)
    sampler = OverSteps(steps) if threshold is None else Confidence(threshold)
    parts = CaseParts(sampler, Fixed(block), way[0](), FillAfterBlock("any"), PLAIN)
    (found,) = decoded(model_of(folder, way[1], block, BlockCausal), rows, [length], parts, IDS)
    tokens = unfilled(found)
    ended = EOS in tokens[prompt:]
    if ended:
        first = tokens.index(EOS, prompt)
        tokens = tokens[:first] + [EOS] * (len(tokens) - first)
    blocks = len({*found.number})
    fields = {"tokens": tokens, "nfe": len(found.computed) + blocks - ended, "committed": found.committed}
    if way[0] is not NoCache:
        whole = prompt // block * block
        begin = [whole + (number - found.number[0]) * block for number in found.number]
        widths = [min(block, prompt + length - one) for one in begin]
        assert found.computed == ride_along(found, widths, whole)
        calls = [whole] if whole else []
        for at, width in enumerate(widths):
            if at and found.number[at] != found.number[at - 1]:
                calls.append(widths[at - 1])
            calls.append(width)
        fields["forward_tokens"] = calls + ([] if ended else [widths[-1]])
    return [fields]


class Watched(Focus):
    """Notes its forwards."""

    traits = Focus.traits

    def __init__(self, alpha: float | None) -> None:
        super().__init__(alpha)
        self.passes: list[FocusPass] = []

    def own_pass(self, *given: Any) -> FocusPass:
        self.passes.append(super().own_pass(*given))
        return self.passes[-1]


def focus(rows: Sequence[Case], folder: Path, way: Way) -> list[Fields]:
    """The canvas ends with a whole block, whose closing forward is put back."""
    (row,), params = rows, rows[0]["params"]
    assert params["delayed_cache"], "rows leave a cache that delays"
    block, start = params["block_length"], len(row["prompt"])
    length = params["gen_length"] + -(start + params["gen_length"]) % block
    cache = Watched(params["focus_alpha"] if params["focus"] else None)
    model = model_of(folder, way[1], block, BlockCausal)
    parts = CaseParts(Above(params["threshold"]), Fixed(block), cache, FullLength(), PLAIN)
    canvas = Canvas.of([Request.answer(row["prompt"], length, MASK)], NO_EOS, "cpu", True)
    whole, layers, kept = start // block * block, list[list[int]](), list[list[int] | None]()
    with torch.inference_mode():
        turns = [
            (turn.cost.queries[0].tolist(), relative(turn.step.commit[0], start), turn.candidates.tokens[0].tolist())
            for turn in denoise(canvas, Forward.of(model, IDS, parts), parts)
        ]
    for (queries, commit, _), one in zip(turns, cache.passes, strict=True):
        layers.append([count - (whole if not layers else 0) for count in queries])
        columns = relative(one.deep["stay"][0], 0)
        kept.append([column % block for column in columns if column >= whole] if commit else None)
    committed, layers = [commit for _, commit, _ in turns], [*layers, [block] * model.config.layers]
    return [
        {
            "tokens": turns[-1][2],
            "nfe": len(layers),
            "forward_tokens": [one[0] for one in layers],
            "layer_tokens": layers,
            "committed": [*committed, []],
            "kept": [*kept, None],
        }
    ]


def nemotron(rows: Sequence[Case], folder: Path, way: Way) -> list[Fields]:
    (row,), params = rows, rows[0]["params"]
    mode, length = params["mode"], params["max_new_tokens"]
    if mode == "linear_spec_generate":
        return [linear_speculation(row, folder, way)]
    block = 1 if mode == "ar_generate" else params["block_length"]
    threshold = params.get("threshold")
    budget, ends = params.get("max_thinking_tokens"), StopFront()
    ends = ends if budget is None else ThinkingBudget(ends, budget, params["end_think_token_id"])
    parts = CaseParts(Static() if threshold is None else Confidence(threshold), Fixed(block), way[0](), ends, PLAIN)
    (found,) = decoded(model_of(folder, way[1], block, ContextCausal), rows, [length], parts, IDS)
    if mode == "ar_generate":
        kinds = ["prefill", *["causal"] * (len(found.computed) - 1)]
        fields: Fields = {"tokens": found.tokens, "nfe": len(kinds), "kinds": kinds}
        return [fields | ({} if way[0] is NoCache else {"forward_tokens": found.computed})]
    found = with_seeds(found, block)
    kinds = ["causal" if forced else "two-way" for forced in found.forced]
    fields = {
        "tokens": found.tokens,
        "nfe": len(kinds),
        "kinds": ["prefill", *kinds[1:], "causal"],
        "committed": found.committed,
    }
    return [fields | ({} if way[0] is NoCache else {"forward_tokens": [*found.computed, block]})]


def with_seeds(found: Row, block: int) -> Row:
    """The published loop computes a block's first token and then writes the end of thought over it. Ours, which has
    written it by then, saves that forward: put back."""
    turns = list(zip(found.number, found.forced, found.committed, found.computed, strict=True))
    out = Row(found.start, tokens=found.tokens)
    for at, (number, forced, commit, computed) in enumerate(turns):
        first = at == 0 or number != turns[at - 1][0]
        if first and not forced:
            out.forced.append(True)
            out.committed.append([(number - turns[0][0]) * block])
            out.computed.append(computed - block)
            computed = block
        out.forced.append(forced)
        out.committed.append(commit)
        out.computed.append(computed)
    return out


class DraftsSeen(LinearSpec):
    """Remembers what each causal forward judged: the token that a draft begins with, and the drafts."""

    traits = LinearSpec.traits

    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self.seen: list[list[int]] = []

    def step(self, view: View, state: State) -> Step:
        step, laid = super().step(view, state), view.scores.drafts
        if laid is not None and bool(step.commit.any()):
            first = int((laid > 0).long().argmax())
            self.seen.append([int(view.canvas.tokens[0, first - 1]), *state["draft"][laid > 0].tolist()])
        return step


def linear_speculation(row: Case, folder: Path, way: Way) -> Fields:
    """The published answer may overrun its length, and lacks the token that follows the last draft."""
    params, start = row["params"], len(row["prompt"])
    length, block = params["max_new_tokens"], params["block_length"]
    rule = DraftsSeen(params["threshold"])
    parts = CaseParts(rule, Sliding(block), DraftWindow(block), StopFront(), PLAIN)
    model = model_of(folder, way[1], 32, ContextCausal)
    (found,) = decoded(model, [row], [length + 2 * block], parts, IDS)
    decided = list(accumulate(map(len, found.committed)))
    turns = next((turn for turn, count in enumerate(decided, 1) if count > length), len(decided))
    tokens = found.tokens[: start + decided[turns - 1]]
    tokens = tokens[: tokens.index(EOS, start) + 1] if EOS in tokens[start:] else tokens[:-1]
    kinds = [
        "prefill" if forced else "causal" if commit else "two-way"
        for forced, commit in zip(found.forced[:turns], found.committed, strict=False)
    ]
    judged = kinds.count("causal")
    accepted = [len(commit) for kind, commit in zip(kinds, found.committed, strict=False) if kind == "causal"]
    return {
        "tokens": tokens,
        "nfe": turns,
        "kinds": kinds,
        "forward_tokens": found.computed[:turns],
        "drafts": rule.seen[:judged],
        "accepted": accepted,
    }


METHODS = {
    "a2d_mdlm": a2d_mdlm,
    "a2d_bd3lm": a2d_bd3lm,
    "rnd1": rnd1,
    "fastdllm_v2": fastdllm_v2,
    "diffcoder": diffcoder,
    "nemotron": nemotron,
    "focus": focus,
}
FULL = tuple(way for way in replay_causal.WAYS if way[0] is NoCache)
replay_causal.METHODS.update(METHODS)
CACHED = tuple(way for way in replay_causal.WAYS if way[0] is not NoCache)
replay_causal.WAYS_OF.update(a2d_mdlm=FULL, rnd1=FULL, focus=CACHED)
