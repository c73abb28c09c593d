"""Recorded decodes of answers whose length changes: lengths, insertions, cuts, commits and tokens of every forward.

Rows of a batch decode together. The recorded rule lets the mask token take part in argmax and softmax, and never
commits it (``Published``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from math import inf, nextafter
from pathlib import Path

import torch
from accidents import accident
from flattened import load_model
from mapped import parts_by
from replay_params import mapping_of
from replay_parts import Case, CaseParts
from torch import Tensor

from dllm.parts import (
    AllLogits,
    Cal,
    Canvas,
    Confidence,
    Dream,
    Extra,
    Fixed,
    Forward,
    FullLength,
    Ids,
    Need,
    NoCache,
    Parts,
    Request,
    Sampling,
    State,
    Static,
    Step,
    Transformer,
    Turn,
    View,
    Whole,
    argmax_mask,
    denoise,
    replaced,
    sized,
)

OF_CASE = {"model", "prompt", "params", "mask_bias"}
OF_GAP = {"model", "kind", "prefix", "suffix", "params"}
COMPARED = ("tokens", "nfe", "stage1", "forward_tokens", "lengths", "committed", "committed_tokens", "inserted", "cut",
            "change", "probes", "length")  # fmt: skip
OF_BATCH = {"model", "params", "calls", "width", "rows"}
NOT_COMPARED = {"eos_confidence", "density", "phi"}  # rounded, for debugging


@accident("the threshold is strict, and the mask may be proposed, never committed")
class Published(Confidence):
    """The threshold rule of both programs: strictly above it, and never the mask token. Where all that is open would be
    the mask, the best other token of these positions, under a softmax without the mask."""

    def __init__(self, threshold: float, mask: int) -> None:
        super().__init__(min(1.0, nextafter(threshold, inf)))
        self.mask = mask

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=(AllLogits(),)),)

    def step(self, view: View, state: State) -> Step:
        scores, length = view.scores, view.open.shape[1]
        logits = scores.of(AllLogits()).spread(length).double()
        logits[..., self.mask] = -inf
        other, best = logits.softmax(-1).max(-1).values, logits.argmax(-1)
        said = view.open & (scores.token != self.mask)
        none = view.open & ~said.any(1, keepdim=True)
        accepted = said & (scores.confidence >= state["threshold"][:, None])
        sure = argmax_mask(scores.confidence, said) & ~accepted.any(1, keepdim=True)
        commit = accepted | sure | argmax_mask(other, none)
        return view.step(commit, tokens=torch.where(none, best, scores.token), accepted=accepted)


@dataclass(frozen=True)
class Biased(Extra):
    """A number added to the logit of the mask."""

    mask: int
    bias: float

    stores_logits = True

    def mix(self, logits: Tensor) -> Tensor:
        logits[..., self.mask] += self.bias
        return logits


@dataclass
class Row:
    """What a decode did in one row, in the file's words."""

    params: Case
    tokens: list[int] = field(default_factory=list)
    forward_tokens: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    committed: list[list[int]] = field(default_factory=list)
    committed_tokens: list[list[int]] = field(default_factory=list)
    inserted: list[list[int] | None] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    change: list[int] = field(default_factory=list)
    stage1: int = 0

    @property
    def nfe(self) -> int:
        return len(self.lengths)

    def observe(self, turn: Turn, row: int) -> None:
        view, start = turn.view, int(turn.canvas.start[row])
        before, after = (int(canvas.end[row]) - start for canvas in (view.canvas, turn.candidates))
        where = turn.step.commit[row].nonzero()[:, 0]
        self.lengths.append(before)
        self.forward_tokens.append(int(turn.cost.queries[row, 0]))
        self.committed.append((where - start).tolist())
        self.committed_tokens.append(turn.step.tokens[row, where].tolist())
        change = None if turn.reshape is None else turn.reshape.change
        waits = not bool(view.open[row].any())
        self.stage1 += waits
        found = None
        if change is not None and int(change.insert[row]):
            found = [int(change.at[row]) - start, int(change.insert[row])]
        elif change is not None and int(change.append[row]):
            found = [before, int(change.append[row])]
        self.inserted.append(found)
        lost = 0
        if change is not None:
            lost = int((turn.canvas.end + change.insert + change.append + change.fill - change.end)[row])
        self.cut.append(lost)
        self.change.append(after - before)
        canvas = turn.candidates
        self.tokens = canvas.tokens[row, canvas.valid[row]].tolist()


@cache
def model_of(folder: Path) -> Transformer:
    return load_model(folder, dtype=torch.float32)


def decoded(data: Case, case: Case, prompts: Sequence[list[int]], models: Path) -> list[Row]:
    """The prompts, decoded as one batch by the parts of a case."""
    params, model = case["params"], model_of(models / case["model"])
    config = model.config
    assert config.mask_id is not None and config.eos_id is not None and config.pad_id is not None
    ids = Ids(config.mask_id, config.eos_id, ())
    parts = parts_by(mapping_of(data["method"]), params)
    parts = replace(parts, length=parts.length.resolved(ids, 1 << 30))
    forward = Forward.of(model, ids, parts)
    if "mask_bias" in case:
        forward = replace(forward, extras=(*forward.extras, Biased(config.mask_id, case["mask_bias"])))
    asked = [Request.answer(prompt, params["initial_gen_length"], config.mask_id) for prompt in prompts]
    out = [Row(params) for _ in prompts]
    most = params["max_gen_length"] if data["method"] == "rho_eos" else None  # the program's own limit of turns
    with torch.inference_mode():
        for turn in islice(denoise(Canvas.of(asked, config.pad_id), forward, parts), most):
            for row, name in enumerate(turn.canvas.row_id.tolist()):
                out[name].observe(turn, row)
    return out


def outcomes(data: Case, models: Path, sample: bool = False) -> Iterator[str | None]:
    """What is wrong with each case (None: all is equal), then with each batch. sample: every third of them."""
    for number, case in enumerate(data["cases"]):
        yield None if sample and number % 3 else one(data, case, models)
    for number, batch in enumerate(data.get("batches", ())):
        yield None if sample and number % 3 else together(data, batch, models)


def one(data: Case, case: Case, models: Path) -> str | None:
    return faults(case, decoded(data, case, [case["prompt"]], models)[0], OF_CASE)


def together(data: Case, batch: Case, models: Path) -> str | None:
    unknown = [f"{name} cannot be compared here" for name in sorted(batch.keys() - OF_BATCH)]
    found = decoded(data, batch, [row["prompt"] for row in batch["rows"]], models)
    if batch["calls"] != max(row.nfe for row in found):
        unknown.append("calls differ")
    wrong = [fault for row, got in zip(batch["rows"], found, strict=True) if (fault := faults(row, got, {"prompt"}))]
    return "; ".join(dict.fromkeys(unknown + wrong)) or None


def faults(case: Case, row: Row, known: set[str]) -> str | None:
    unknown = sorted(case.keys() - known - {*COMPARED} - NOT_COMPARED)
    names = [f"{name} cannot be compared here" for name in unknown]
    names += [f"{name} differ" for name in COMPARED if name in case and case[name] != getattr(row, name)]
    return "; ".join(names) or None


@dataclass
class Gap(Row):
    """The same of a gap whose size was found first, or was given."""

    probes: list[int] = field(default_factory=list)
    length: int = 0

    @property
    def nfe(self) -> int:
        return len(self.forward_tokens)


def gaps(data: Case, models: Path, sample: bool = False) -> Iterator[str | None]:
    """What is wrong with each case of CAL. sample: every third of them is decoded."""
    for number, case in enumerate(data["cases"]):
        yield None if sample and number % 3 else faults(case, filled(case, models), OF_GAP)


def filled(case: Case, models: Path) -> Gap:
    """A gap between a prefix and a suffix. The diffucoder program tries its first length also where it searches for no
    other, to no effect."""
    params, model, row = case["params"], model_of(models / case["model"]), Gap(case["params"])
    mask, eos, pad = model.config.mask_id, model.config.eos_id, model.config.pad_id
    assert mask is not None and eos is not None and pad is not None
    search, known = params["dstep"] >= 0, len(case["prefix"]) + len(case["suffix"])
    size = 1 if search else params["gen_length"]
    text = [*case["prefix"], *[mask] * size, *case["suffix"]]
    masked = [at in range(len(case["prefix"]), len(case["prefix"]) + size) for at in range(len(text))]
    request = Request(text, masked, gap=len(case["prefix"]) if search else None)
    length = Cal(
        params["max_gen_length"], params["gen_length"], params["span"], max(1, params["dstep"]), params["use_bias"]
    )
    ids = Ids(mask, eos, ())
    parts = replace(rule_of(case, params.get("block_length") or 1), length=length)
    (request,) = sized([request], Forward.of(model, ids, parts), parts, pad, 1)
    row.probes = [tried for tried, _ in request.probes]
    if not search and case["kind"] == "diffucoder":
        row.probes = [size]
    row.length = sum(request.masked)
    row.lengths, row.committed = list(row.probes), [[] for _ in row.probes]
    row.forward_tokens = [known + tried for tried in row.probes]
    parts = replace(rule_of(case, row.length), length=length)
    with torch.inference_mode():
        for turn in denoise(Canvas.of([request], pad), Forward.of(model, ids, parts), parts):
            at = turn.step.commit[0].nonzero()[:, 0] - len(case["prefix"])
            row.committed.append(at.tolist())
            row.lengths.append(row.length)
            row.forward_tokens.append(int(turn.cost.queries[0, 0]))
            row.tokens = turn.candidates.tokens[0].tolist()
    return row


def rule_of(case: Case, length: int) -> Parts:
    """LLaDA's loop with a quota, or Dream's, for a gap of that many masks. All steps are run."""
    params = case["params"]
    steps = params["steps"] or length
    if case["kind"] == "llada":
        whole = params.get("block_length") or length
        count = length // whole  # text after the gap has no blocks in that program
        blocks = replaced(
            Fixed(whole, min_forwards=steps // count), count=lambda canvas: torch.full_like(canvas.end, count)
        )
        return CaseParts(Static(steps), blocks, NoCache(), FullLength(), Sampling(suppress_mask=False))
    eps, top_p = (1e-12, None) if case["kind"] == "diffucoder" else (1e-3, 0.95)
    sampling = Sampling(suppress_mask=False, tempered=True, top_p=top_p)
    return CaseParts(Dream(params["alg"], steps, eps), Whole(min_forwards=steps), NoCache(), FullLength(), sampling)


METHODS = {"daedal": outcomes, "rho_eos": outcomes, "cal": gaps}
