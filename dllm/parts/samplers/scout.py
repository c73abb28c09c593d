"""Scout: verify a tree of what the rule may do next. Our own method, built on FreeDave's verified drafts."""

from __future__ import annotations

import torch
from torch import Tensor

from dllm.common.best_first import Addition, Weighed, best_first
from dllm.common.errors import in_range
from dllm.common.ranking import few_largest
from dllm.contract import Need, State, Step, View
from dllm.contract.canvas import Canvas
from dllm.contract.readouts import AllLogits, Statistic
from dllm.contract.traits import Schedule
from dllm.parts.samplers.base import Sampler
from dllm.parts.samplers.freedave import FreeDave
from dllm.parts.samplers.lopa import candidates_in_order


class Scout(FreeDave):
    """Commit the inner rule's steps as far as the candidates of the last turn foresaw them. Candidate 0 is what it
    would do. The others are what it may do after that: candidate 0 with a few tokens more, the likeliest such canvases
    first. The next forward runs on all of them. The row goes on along the inner rule's own steps, from candidate 0,
    while each step ends on a candidate. So every canvas that is kept is one of the inner rule's, and the answer is
    exactly its answer.

    The tree: from each canvas one more token may follow, at any open position, one of its ``top_k`` likeliest, with a
    chance proportional to (p1 * p)^2. p is the token's probability, p1 that of the likeliest one there. Besides, the
    inner rule may go on as on these scores (FreeDave's drafts), with the chance (k + 1) / (n + 5): k of n such steps
    came true in the row until now. A canvas that several orders lead to has the sum of their chances.
    candidates: of a turn at most. min_probability: the least chance for which a candidate is worth computing.
    """

    def __init__(self, inner: Sampler, candidates: int = 8, top_k: int = 3, min_probability: float = 0.01) -> None:
        in_range("sampler.candidates", candidates, 1, advice="1 is the inner sampler itself.")
        in_range("sampler.top_k", top_k, 1)
        in_range("sampler.min_probability", min_probability, 0.0, 1.0)
        super().__init__(inner, draft_steps=candidates)
        self.candidates, self.top_k, self.min_probability = candidates, top_k, min_probability

    def needs(self) -> tuple[Need, ...]:
        return (*super().needs(), Need(reads=(Statistic("first"), AllLogits())))

    def start(self, canvas: Canvas, blocks: Schedule) -> State:
        """step_number, draft [B, L]: the number of the inner rule's further step on the last scores that would have
        committed a position (0: none), and the token. hits, tries [B]: how many of these steps came true, of how
        many."""
        memory = {"step_number": torch.zeros_like(canvas.tokens), "draft": canvas.tokens}
        memory |= {name: torch.zeros_like(canvas.start) for name in ("hits", "tries")}
        return super().start(canvas, blocks) | memory

    def propose(self, view: View, state: State) -> Step:
        drafts_of_rule, written, memory = self.drafts(view, state)
        base = drafts_of_rule[:, 0]
        hits, tries = self._came_true(view.canvas.commit(base, written), state)
        step_number = (self.candidates - drafts_of_rule.sum(1)) % self.candidates
        memory |= {"step_number": step_number, "draft": written, "hits": hits, "tries": tries}
        trees = self._trees(view, base, step_number, written, (hits + 1) / (tries + 5))
        counts = torch.tensor([1 + len(tree) for tree in trees], device=base.device)
        owner, _ = candidates_in_order(counts)
        commit, tokens = owner.per_candidate(base).clone(), owner.per_candidate(written).clone()
        drafts = [draft for tree in trees for draft in (frozenset[Addition](), *tree)]
        added = [(at, *addition) for at, draft in enumerate(drafts) for addition in draft]
        if added:
            at, column, token = torch.tensor(added, device=base.device).unbind(1)
            commit[at, column], tokens[at, column] = True, token
        return view.step(commit, tokens=tokens, owner=owner, state=memory)

    def _came_true(self, now: Canvas, state: State) -> tuple[Tensor, Tensor]:
        """hits and tries [B], with the last drafts judged by the canvas ``now`` after one more step of the inner rule.
        A step is missed if the rule went another way, and not tried if it has not come to it yet."""
        step_number, never = state["step_number"], self.candidates
        differs = (step_number > 0) & (now.masked | (now.tokens != state["draft"]))
        first = torch.where(differs, step_number, never).amin(1)
        right = torch.where(first == never, step_number.amax(1), first - 1)
        masks = state["masks"].gather(1, right[:, None])[:, 0]
        missed = (first < never) & (now.masked.sum(1) != masks)
        return state["hits"] + right, state["tries"] + right + missed

    def _trees(
        self, view: View, base: Tensor, step_number: Tensor, written: Tensor, trust: Tensor
    ) -> list[list[frozenset[Addition]]]:
        """The drafts of each row: what they commit besides ``base`` [B, L]. trust [B]: chance that the inner rule goes
        on as on these scores, by ``step_number`` and ``written`` [B, L]."""
        all_logits = view.scores.of(AllLogits())
        logits, ids = few_largest(all_logits.values, self.top_k)
        inside = all_logits.columns.clamp(max=base.shape[1] - 1)
        first = view.scores.statistic("first").gather(1, inside)[..., None]
        weight = self.weight(first, (logits - logits[..., :1]).double().exp())
        open_ = (view.open & ~base & view.active[:, None]).gather(1, inside) & (all_logits.columns < base.shape[1])
        host = [
            value.tolist()
            for value in (all_logits.columns, open_, step_number.gather(1, inside), written.gather(1, inside))
        ]
        return [
            best_first(*guesses(*row), trust=share, most=self.candidates - 1, least=self.min_probability)
            for *row, share in zip(*host, ids.tolist(), weight.tolist(), trust.tolist(), strict=True)
        ]

    def weight(self, first: Tensor, ratio: Tensor) -> Tensor:
        """How likely the rule commits a token next [B, n, T], up to a factor: ``first`` [B, n, 1] is the probability of
        the position's likeliest token, ``ratio`` the token's over that. A rule prefers positions that are sure."""
        return (first * first * ratio) ** 2

    def follows(self, candidates: Canvas, successors: Canvas, rows: Tensor) -> Tensor:
        return equality(candidates, successors, rows)


def guesses(
    columns: list[int],
    open_: list[bool],
    step_number: list[int],
    written: list[int],
    ids: list[list[int]],
    weight: list[list[float]],
) -> tuple[list[Weighed], list[list[Addition]]]:
    """What may be committed next in one row, and the steps of the inner rule on the same scores."""
    candidates = [at for at, free in enumerate(open_) if free]
    single = [
        Weighed((columns[at], token), value)
        for at in candidates
        for token, value in zip(ids[at], weight[at], strict=True)
    ]
    last = max((step_number[at] for at in candidates), default=0)
    steps = [
        [(columns[at], written[at]) for at in candidates if step_number[at] == step] for step in range(1, last + 1)
    ]
    return single, steps


def equality(candidates: Canvas, successors: Canvas, rows: Tensor) -> Tensor:
    """[B, K, K]: whether the successor of candidate i is candidate j > i. An end of text cuts a row once: where i is
    cut, j must be cut there, too."""
    at, real = rows.clamp(min=0), rows >= 0
    # [B, K, L]
    tokens, then = (torch.where(canvas.masked, -1, canvas.tokens)[at] for canvas in (candidates, successors))
    end, cut = candidates.end[at], candidates.shortened[at]
    order = torch.arange(rows.shape[1], device=rows.device)
    same = (tokens[:, None] == then[:, :, None]).all(-1) & (~cut[:, :, None] | (end[:, None] == end[:, :, None]))
    return same & real[:, None, :] & real[:, :, None] & (order[:, None] < order)
