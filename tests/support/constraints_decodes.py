"""Replays recorded decodes under a constraint: through the loop with the real samplers, blocks and end-of-text policy,
and recorded logits in the model's place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dllm.parts import (
    Canvas,
    CompiledConstraint,
    Confidence,
    ConstrainedBatch,
    ConstrainedRow,
    Filling,
    Fixed,
    Forward,
    FullLength,
    Ids,
    ModelConfig,
    NoCache,
    Parts,
    Request,
    RowSets,
    Sampler,
    Sampling,
    Static,
    TokenLanguage,
    Turn,
    denoise,
)

Case = Mapping[str, Any]


def class_maxima(language: TokenLanguage, scores: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """The highest of ``scores`` [V] in each class [C + 1], -inf in one without ids, and the lowest id that has it."""
    highest, ids = np.full(language.end + 1, -np.inf), np.zeros(language.end + 1, np.intp)
    for number, kind in reversed([*enumerate(language.classes.tolist())]):
        if scores[number] >= highest[kind]:
            highest[kind], ids[kind] = scores[number], number
    return highest, ids


def best_filling_of(row: RowSets, positions: Sequence[int], scores: Sequence[Sequence[float]]) -> Filling | None:
    """The best filling by the scores [V] of each position."""
    return row.best_of(positions, [class_maxima(row.language, each) for each in scores])


class Recorded:
    """A network whose hidden rows say where they stand; its head reads the logits of the turn there."""

    head_weight, local_head_weight, triton, streams, device = None, None, False, True, torch.device("cpu")

    def __init__(self, logits: list[list[list[float]]]) -> None:
        self.table, self.turn = torch.tensor(logits, dtype=torch.float64), -1
        columns, vocab = self.table.shape[1:]
        self.config = ModelConfig(
            family="stand-in", width=columns, layers=0, heads=1, kv_heads=1, head_dim=columns, mlp_width=columns,
            vocab=vocab, max_length=columns, eps=1e-5, theta=1e4, mask_id=None, eos_id=None, pad_id=None,
        )  # fmt: skip
        self.ranks = self.config.ranks

    def __call__(self, tokens: Tensor, positions: Tensor, memory: object, columns: Tensor | None) -> tuple[Tensor, Any]:
        self.turn = min(self.turn + 1, len(self.table) - 1)
        return torch.eye(self.table.shape[1], dtype=torch.float64).expand(len(tokens), -1, -1), columns

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.table[self.turn]


def sampler_of(rule: Case) -> Sampler:
    if rule["name"] == "threshold":
        return Confidence(threshold=rule["threshold"])
    assert rule["name"] == "schedule", f"rule {rule['name']} is unknown here"
    return Static(per_step=rule["per_step"])


def turns_of(case: Case, row: RowSets, sampling: Sampling = Sampling(), seed: int = 0) -> Iterator[Turn]:  # noqa: B008
    """The turns of a case's decode."""
    mask, parts = (
        case["mask"],
        Parts(sampler_of(case["rule"]), Fixed(case["block_length"]), NoCache(), FullLength(), sampling),
    )
    model: Any = Recorded(case["logits"])
    forward = Forward.of(model, Ids(mask, mask, tuple(case["ends"])), parts)
    tokens = [mask if token < 0 else token for token in case["canvas"]]
    request = Request(tokens, [token < 0 for token in case["canvas"]], seed, start=0)
    canvas = Canvas.of([request], mask, temperature=sampling.temperature)
    renormalised, joint = case["confidence"] == "admissible", case.get("joint", False)
    compiled = CompiledConstraint(row.language, "", renormalised, joint, False)
    own = ConstrainedBatch((ConstrainedRow(compiled, 0, [row]),))
    with torch.inference_mode():
        yield from denoise(canvas, forward, parts, constraints=own)


def decoded(case: Case, row: RowSets) -> dict[str, Any]:
    """What a case records of its decode."""
    told, final = [], [case["mask"] if token < 0 else token for token in case["canvas"]]
    for turn in turns_of(case, row):
        told.append(told_of(turn))
        final = turn.candidates.tokens[0].tolist()
    text = "".join(case["tokens"][token] or "" for token in final).encode("latin-1").decode()
    return {"turns": told, "final": final, "text": text}


def told_of(turn: Turn) -> dict[str, Any]:
    """A turn as the files record it."""
    view, step, marks = turn.view, turn.step, turn.marks
    open_, commits = places(view.open), places(step.commit)
    token, sure = view.scores.token[0].tolist(), view.scores.confidence[0].tolist()
    written, replaced, refused = step.tokens[0].tolist(), places(marks.replaced), places(marks.refused)
    return {
        "open": open_,
        "proposals": {str(at): [token[at], round(sure[at], 6)] for at in open_},
        "selected": sorted({*commits, *refused}),
        "refused": refused,
        "commits": {str(at): written[at] for at in commits if at not in replaced},
        "filled": {str(at): written[at] for at in replaced},
    }


def places(where: Tensor) -> list[int]:
    return where[0].nonzero()[:, 0].tolist()


def same(found: Any, recorded: Any, close: float = 2e-6) -> bool:
    """Equal, numbers with a point within ``close``: confidences to five digits."""
    if isinstance(recorded, dict):
        return found.keys() == recorded.keys() and all(same(found[key], recorded[key], close) for key in recorded)
    if isinstance(recorded, list) and isinstance(found, list):
        return len(found) == len(recorded) and all(map(same, found, recorded, [close] * len(found)))
    if isinstance(recorded, float) or isinstance(found, float):
        return None not in (found, recorded) and abs(found - recorded) < close
    return bool(found == recorded)
