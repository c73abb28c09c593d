"""Recorded decodes of causal models, WeDLM's and NBDiff's: in every field, alone and as the batches they ran in.

Each is decoded in ``WAYS``: without a cache and with the exact one, in float32 and float64. The engines' own forwards
that decide nothing (a prefill by itself, a last forward whose logits nobody reads) have no turn here. They follow from
the turns that there are, and are put back where a field counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from flattened import load_model, read_model_config
from replay_parts import Case, CaseParts
from torch import Tensor

from dllm.parts import (
    Canvas,
    Confidence,
    ContextCausal,
    EntropyDistance,
    FillAfterBlock,
    Finished,
    Fixed,
    Forward,
    Ids,
    InBlocks,
    NoCache,
    Request,
    Sampler,
    Sampling,
    Sliding,
    Static,
    Step,
    StopFront,
    Transformer,
    Turn,
    View,
    denoise,
)

WAYS = tuple((policy, dtype) for policy in (Finished, NoCache) for dtype in (torch.float32, torch.float64))
PATCHES = {"margin_axis", "masked_only"}  # defects of the published code, mended in the reference before it ran
MASK, NO_EOS = 60, 61
Fields = dict[str, Any]
Way = tuple[type[Finished] | type[NoCache], torch.dtype]


@dataclass
class Row:
    """What a decode did in one row, turn by turn: columns computed, columns kept from before, the first mask before the
    turn, commits (positions of the answer) and their tokens, whether they were forced, and the block's number."""

    start: int
    computed: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    front: list[int] = field(default_factory=list)
    committed: list[list[int]] = field(default_factory=list)
    tokens_committed: list[list[int]] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)
    number: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    masked: list[bool] = field(default_factory=list)

    def observe(self, turn: Turn, row: int) -> None:
        canvas, after, commit = turn.canvas, turn.candidates, turn.step.commit[row]
        self.computed.append(int(turn.cost.queries[row, 0]))
        self.kept.append(int(turn.cost.keys[row, 0]) - self.computed[-1])
        self.front.append(int(canvas.masked[row].long().argmax()))
        self.committed.append((commit.nonzero()[:, 0] - self.start).tolist())
        self.tokens_committed.append(turn.step.tokens[row, commit].tolist())
        self.forced.append(bool(turn.view.forced_positions[row].any()))
        self.number.append(int(turn.view.blocks.index[row]))
        filled = canvas.masked[row] & ~after.masked[row] & ~commit
        self.tokens = after.tokens[row].masked_fill(filled, MASK)[: int(after.end[row])].tolist()
        self.masked = after.masked[row].tolist()


def decoded(model: Transformer, rows: Sequence[Case], lengths: Sequence[int], parts: CaseParts, ids: Ids) -> list[Row]:
    """The rows of a batch, decoded together."""
    asked = [Request.answer(row["prompt"], length, MASK) for row, length in zip(rows, lengths, strict=True)]
    return decoded_requests(model, asked, parts, ids)


def decoded_requests(model: Transformer, asked: Sequence[Request], parts: CaseParts, ids: Ids) -> list[Row]:
    forward = Forward.of(model, ids, parts)
    out = [Row(request.answer_start) for request in asked]
    canvas = Canvas.of(asked, NO_EOS, "cpu", model.config.attention.grid_at_zero)
    with torch.inference_mode():
        for turn in denoise(canvas, forward, parts):
            for row, name in enumerate(turn.canvas.row_id.tolist()):
                out[name].observe(turn, row)
    return out


class StopEach(StopFront):
    """Each request's own stop tokens and limit, which the recorded engine has."""

    traits = StopFront.traits

    def __init__(self, rows: Sequence[Case]) -> None:
        super().__init__()
        self.each = [StopFront(row["params"]["stop_token_ids"], row["params"]["max_tokens"]) for row in rows]

    def cut(self, candidates: Canvas, view: View, step: Step, ends: tuple[int, ...], full: Tensor) -> Canvas:
        for number, policy in enumerate(self.each):
            own = policy.cut(candidates, view, step, ends, full)
            end = torch.where(candidates.param_index == number, own.end, candidates.end)
            candidates = candidates.stop_at(end, end < candidates.end, attended=False)
        return candidates


def wedlm(rows: Sequence[Case], folder: Path, way: Way) -> list[Fields]:
    """The window goes on behind max_tokens, so the canvas is longer by it; a threshold null is one token a forward."""
    params = [row["params"] for row in rows]
    (window,) = {one["wedlm_window_size"] for one in params}
    rule = EntropyDistance(
        [one["wedlm_entropy_threshold"] or 0.0 for one in params], [one["wedlm_pos_penalty_factor"] for one in params]
    )
    parts = CaseParts(rule, Sliding(window, window), way[0](), StopEach(rows), Sampling(suppress_mask=False))
    lengths = [one["max_tokens"] + window for one in params]
    found = decoded(model_of(folder, way[1], None), rows, lengths, parts, Ids(MASK, NO_EOS, ()))
    return [wedlm_fields(row, window, way[0] is Finished) for row in found]


def wedlm_fields(row: Row, window: int, cached: bool) -> Fields:
    """With the prefill apart, and the last forward, which only moves what is known from the window to the prefix."""
    prompt, known, end = row.start, row.masked.index(True), len(row.tokens)
    fields: Fields = {
        "tokens": row.tokens,
        "nfe": len(row.computed) + 2,
        "committed": [[], *row.committed, []],
        "committed_tokens": [[], *row.tokens_committed, []],
        # What the cache held before each turn but the first, what it holds after the last, and all that is emitted.
        "cached": [prompt, *(row.kept[1:] if cached else row.front[:-1]), row.front[-1], end],
    }
    if cached:
        first, *others = row.computed
        last = window + min(known - row.front[-1], window)
        fields["forward_tokens"] = [prompt, first - prompt, *others, last]
    return fields


NBDIFF_RULES: dict[str, Callable[[float], Sampler]] = {
    "entropy": lambda _: Static(score="entropy"),
    "origin": lambda _: Static(),
    "topk_margin": lambda _: Static(score="margin"),
    "confidence_threshold": lambda bar: Confidence(bar) if bar <= 1 else Static(),
}


def nbdiff(rows: Sequence[Case], folder: Path, way: Way) -> list[Fields]:
    """Rows of a batch have the same parameters."""
    params = rows[0]["params"]
    assert all(row["params"] == params for row in rows)
    block, length = params["block_length"], params["max_new_tokens"]
    sampling = Sampling(suppress_mask=False, tempered=True, top_p=params["top_p"], top_k=params["top_k"])
    parts = CaseParts(
        NBDIFF_RULES[params["alg"]](params["threshold"]),
        Fixed(block // params["num_small_blocks"]),
        way[0](),
        FillAfterBlock("any"),
        sampling,
    )
    ids = Ids(params["mask_token_id"], params["eos_token_id"], ())
    found = decoded(model_of(folder, way[1], block), rows, [length] * len(rows), parts, ids)
    return [nbdiff_fields(row, block, ids.eos, way[0] is Finished) for row in found]


def nbdiff_fields(row: Row, block: int, eos: int, cached: bool) -> Fields:
    """A run that reaches its end makes a last commit pass, for nothing."""
    last = 0 if eos in row.tokens[row.start :] else 1
    kinds = ["commit" if forced else "denoise" for forced in row.forced]
    fields: Fields = {
        "tokens": row.tokens,
        "nfe": len(kinds) + last,
        "kinds": ["prefill", *kinds[1:], *["commit"] * last],
        "committed": row.committed + [[]] * last,
        "committed_tokens": row.tokens_committed + [[]] * last,
    }
    if cached:
        fields["forward_tokens"] = row.computed + [block] * last
    return fields | {"small": list(zip(row.number, row.forced, strict=True))}


def lockstep(rows: Sequence[Fields]) -> int:
    """Forwards of a batch in which every row waits, in each small block, for the one that takes longest."""
    counts = [{key: len(list(turns)) for key, turns in groupby(fields["small"])} for fields in rows]
    most = {key: max(count.get(key, 0) for count in counts) for count in counts for key in count}
    return sum(most.values()) + (rows[0]["kinds"].count("commit") - sum(forced for _, forced in most) + 1)


Decode = Callable[[Sequence[Case], Path, Way], list[Fields]]
METHODS: dict[str, Decode] = {"wedlm": wedlm, "nbdiff": nbdiff}
WAYS_OF: dict[str, tuple[Way, ...]] = {}  # where it is not in all of them
NEEDS_CACHE = {"forward_tokens", "block_tokens"}  # which the recorded engines, all of them cached, have by their cache
OF_ROW, OF_BATCH = {"prompt", "params"}, {"model", "rows", "patched"}


@cache
def model_of(folder: Path, dtype: torch.dtype, block: int | None, kind: type[InBlocks] = ContextCausal) -> Transformer:
    """block: the attention's, where a case says it."""
    config = read_model_config(folder)
    config = config if block is None else replace(config, attention=kind(block))
    return load_model(folder, dtype=dtype, config=config)


def outcomes(data: Case, models: Path, sample: bool = False) -> Iterator[str | None]:
    """What is wrong with each case and each batch (None: all is equal). sample: in one of the ways, by turns."""
    method, every = METHODS[data["method"]], WAYS_OF.get(data["method"], WAYS)
    cases = [{"model": case["model"], "patched": case.get("patched", []), "rows": [case]} for case in data["cases"]]
    for number, case in enumerate((*cases, *data.get("batches", ()))):
        ways = every[number % len(every) :][:1] if sample else every
        faults = [fault for way in ways for fault in differing(method, case, models, way)]
        yield "; ".join(dict.fromkeys(faults)) or None


def differing(method: Decode, case: Case, models: Path, way: Way) -> Iterator[str]:
    """Which fields differ in one way of decoding, or are unknown here."""
    found = method(case["rows"], models / case["model"], way)
    for row, fields in zip(case["rows"], found, strict=True):
        wanted = row.keys() - OF_ROW - (OF_BATCH if len(found) == 1 else set())
        wanted -= NEEDS_CACHE if way[0] is NoCache else set()
        yield from (f"{name} cannot be compared here" for name in sorted(wanted - fields.keys()))
        yield from (f"{name} differ" for name in sorted(wanted & fields.keys()) if row[name] != fields[name])
    yield from (f"patched={patch} is unknown here" for patch in sorted({*case.get("patched", ())} - PATCHES))
    for name in sorted(case.keys() - OF_BATCH):
        if name != "lockstep_nfe":
            yield f"{name} cannot be compared here"
        elif lockstep(found) != case[name]:
            yield f"{name} differ"
