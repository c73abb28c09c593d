"""All decodes of a short answer, enumerated: the exact expected reward and its gradient, against which sums of
log-probabilities are held.

One token is committed a forward, drawn among the ``TOP`` likeliest at temperature 1. Of G columns there are
TOP^(G + (G-1) + ... + 1) ways to draw, since columns that are not committed draw, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from made_rollouts import made_rollouts
from torch import Tensor

from dllm.parts import Model, Rollouts, Sampling, trajectory_logprobs

TOP = 3


@dataclass(frozen=True)
class DrawnPath:
    """One way to draw."""

    answer: tuple[int, ...]  # ids by column
    steps: tuple[int, ...]  # the forward, from 1, that committed each column
    draws: tuple[tuple[int, ...], ...]  # by forward and column, -1 where nothing was drawn
    canvases: tuple[tuple[int, ...], ...]  # the answer before each forward


def enumerated(model: Model, prompt: Sequence[int], length: int, rule: str) -> list[DrawnPath]:
    """Every path. rule: ``order`` commits from left to right, ``confidence`` the draw of the highest probability, of
    equal ones the leftmost."""
    mask = model.ids.mask
    assert mask is not None
    log_p = likeliest_by_canvas(model, prompt, mask)
    paths = [DrawnPath((mask,) * length, (0,) * length, (), ())]
    for forward in range(1, length + 1):
        grown = []
        for path in paths:
            found = log_p(path.answer)
            masked = [at for at, token in enumerate(path.answer) if token == mask]
            choices = [found[at].topk(TOP).indices.tolist() for at in masked]
            for drawn in product(*choices):
                ids = dict(zip(masked, drawn, strict=True))
                at = masked[0]
                if rule == "confidence":
                    at = max(masked, key=lambda one: (float(found[one, ids[one]]), -one))
                answer, steps = list(path.answer), list(path.steps)
                answer[at], steps[at] = ids[at], forward
                draws = tuple(ids.get(one, -1) for one in range(length))
                grown.append(
                    DrawnPath(tuple(answer), tuple(steps), (*path.draws, draws), (*path.canvases, path.answer))
                )
        paths = grown
    return paths


def likeliest_by_canvas(model: Model, prompt: Sequence[int], mask: int):  # type: ignore[no-untyped-def]
    """log p [G, V] of an answer's canvas, each computed once; the mask is banned."""
    known: dict[tuple[int, ...], Tensor] = {}

    @torch.no_grad()
    def log_p(answer: tuple[int, ...]) -> Tensor:
        if answer not in known:
            tokens = torch.tensor([[*prompt, *answer]])
            hidden = model.transformer.encode(tokens, None, tokens == mask, len(prompt))
            sources = model.config.sources(tokens == mask, torch.tensor([len(prompt)]))[0, len(prompt) :]
            logits = model.transformer.logits(hidden)[0, sources]
            logits[:, mask] = -torch.inf
            known[answer] = logits.log_softmax(-1)
        return known[answer]

    return log_p


def as_rollouts(model: Model, prompt: Sequence[int], paths: Sequence[DrawnPath]) -> Rollouts:
    return made_rollouts(
        model,
        prompt,
        torch.tensor([one.answer for one in paths]),
        torch.tensor([one.steps for one in paths]),
        sampling=Sampling(top_k=TOP),
        draw_ids=torch.tensor([one.draws for one in paths]).int(),
        canvas_ids=torch.tensor([one.canvases for one in paths]).int(),
    )


def reward(answer: Sequence[int]) -> float:
    """What the recorded closed forms expect: sum (i + 1) (token_i mod 5) / 10."""
    return sum((at + 1) * (token % 5) / 10 for at, token in enumerate(answer))


@dataclass(frozen=True)
class ClosedForm:
    """What an enumeration gives."""

    paths: int  # ways to draw
    probability: dict[tuple[int, ...], float]  # of every answer
    value: float  # expected reward J
    true: Tensor  # gradient of J over all weights, flat
    commit: Tensor  # sum of P r grad(log-probabilities of the committed draws)
    own: Tensor  # the same under the model alone


def closed_form(model: Model, prompt: Sequence[int], length: int, rule: str) -> ClosedForm:
    """The exact gradient, and those of the committed draws alone."""
    paths = enumerated(model, prompt, length, rule)
    rollouts, rewards = (
        as_rollouts(model, prompt, paths),
        torch.tensor([reward(one.answer) for one in paths], dtype=torch.float64),
    )
    weights = list(model.transformer.parameters())
    log_p = trajectory_logprobs(model, rollouts, law="drawn", draws=True).sum((1, 2))
    value = (log_p.exp() * rewards).sum()
    true, share = flat(torch.autograd.grad(value, weights)), (log_p.detach().exp() * rewards)[:, None]
    sums = [(trajectory_logprobs(model, rollouts, law=law) * share).sum() for law in ("drawn", "own")]
    commit, own = (flat(torch.autograd.grad(one, weights)) for one in sums)
    probability: dict[tuple[int, ...], float] = {}
    for path, p in zip(paths, log_p.detach().exp().tolist(), strict=True):
        probability[path.answer] = probability.get(path.answer, 0.0) + p
    return ClosedForm(len(paths), probability, value.item(), true, commit, own)


def flat(gradients: Sequence[Tensor]) -> Tensor:
    return torch.cat([one.flatten() for one in gradients])
