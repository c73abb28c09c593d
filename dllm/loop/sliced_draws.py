"""Proposals that are drawn where ranks share the head: each rank draws among its own ids, and the best of these draws
is the draw of the whole head.

argmax_v (z_v / T + g_v) is a maximum, and the noise g_v is a hash of v: the largest of the ranks' maxima is the token
that one process draws. The k largest logits are among the k largest of each rank. So a row costs 88 bytes, 128 with
log-probabilities, and 4 k of ``top_k``, instead of its logits (4 V). A nucleus (``top_p``) ends where a sum over sorted
logits does, and how many of them it takes is known only then: its logits are gathered.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dllm.common.noise import gumbel_of, mixed, shifted
from dllm.contract.canvas import Canvas
from dllm.kernels.gumbel_argmax import gumbel_argmax
from dllm.kernels.sliced_head import HeadSlice, final, fold, own_summary
from dllm.loop.proposals import Proposer, rename, temper


@dataclass(frozen=True)
class OwnIds:
    """What a rank knows of rows [R] at its own ids."""

    logits: Tensor  # [R, v] the model's own, -inf for banned ids
    filtered: Tensor  # [R, v] what is drawn from: tempered and filtered
    state: Tensor  # [R] of the noise, so that local ids have the noise of their global ones
    random: Tensor  # [R] where something is drawn

    @staticmethod
    def of(
        proposer: Proposer, hidden: Tensor, head: HeadSlice, canvas: Canvas, turn: Tensor, columns: Tensor
    ) -> OwnIds:
        """hidden [N, n, D] under canvases [N], in their ``turn`` [N], at ``columns`` [N, n]."""
        sampling, (begin, end) = proposer.sampling, head.ranks.share(head.vocab)
        logits, early = head.logits(hidden), columns < proposer.earliest_end(canvas)[:, None]
        for token in proposer.banned():
            if begin <= token < end:
                logits.select(-1, token - begin).fill_(-torch.inf)
        for last in proposer.ids.ends if sampling.min_tokens else ():
            if begin <= last < end:
                logits.select(-1, last - begin).masked_fill_(early, -torch.inf)
        logits, heat = logits.flatten(0, 1), canvas.temperature[:, None].expand_as(columns).flatten()
        filtered = logits if sampling.plain else temper(logits, heat[:, None])
        if sampling.top_k is not None and sampling.top_k < head.vocab and not sampling.plain:
            filtered = filtered.masked_fill(filtered < last_of_largest(filtered, sampling.top_k, head), -torch.inf)
        noise_state = mixed(canvas.seed[:, None], columns, turn[:, None]).flatten()
        return OwnIds(logits, filtered, shifted(noise_state, begin), (heat > 0) & (not sampling.plain))

    def report(
        self, scored: Tensor, other: Tensor, likeliest: Tensor, head: HeadSlice, current: Tensor, triton: bool
    ) -> list[Tensor]:
        """Six numbers [R] of this rank: how good its draw is, its global id, its logits in both distributions, the
        other's logit of the ``likeliest`` of its ids, and the logit of the ``current`` one, where that is its own."""
        token, (mine, place) = gumbel_argmax(self.filtered, self.state, self.random, triton), head.inside(current)
        at = lambda logits, ids: logits.gather(-1, ids[:, None])[:, 0].double()  # noqa: E731
        value, noise = at(self.filtered, token), gumbel_of(mixed(token, after=self.state))
        best = at(other, (likeliest.long() - head.begin).clamp(0, other.shape[-1] - 1))
        return [
            torch.where(self.random, value + noise, value),
            token.double() + head.begin,
            at(scored, token),
            at(other, token),
            best,
            torch.where(mine, at(scored, place), 0.0),
        ]


def last_of_largest(filtered: Tensor, count: int, head: HeadSlice) -> Tensor:
    """The last [R, 1] of the ``count`` largest logits of rows; each rank has [R, v] of them, ``filtered``."""
    few = min(count, -(-head.vocab // head.ranks.size))
    largest = filtered.topk(min(few, filtered.shape[-1]), -1).values
    largest = torch.nn.functional.pad(largest, (0, few - largest.shape[-1]), value=-torch.inf)
    return torch.cat(list(head.ranks.gather(largest)), -1).topk(count, -1).values[..., -1:]


@dataclass(frozen=True)
class JointSummary:
    """What all ranks together say of one distribution over the ids, in rows [R]."""

    summary: Tensor  # [5, R] its summary
    dtype: torch.dtype  # of its logits

    @staticmethod
    def of(summaries: Tensor, dtype: torch.dtype) -> JointSummary:
        """Of each rank's [N, 5, R]."""
        return JointSummary(fold(summaries[:, :4].permute(1, 2, 0), summaries[:, 4].T), dtype)

    @property
    def statistics(self) -> dict[str, Tensor]:
        return final(self.summary)

    def below(self, logit: Tensor) -> Tensor:
        """By how much a logit [R] is under the largest: a difference of logits as they are, as in one process."""
        return (logit.to(self.dtype) - self.summary[0].to(self.dtype)).double()

    def log_probability(self, logit: Tensor) -> Tensor:
        return self.below(logit) + self.statistics["first"].log()


def drawn_statistics(
    proposer: Proposer, hidden: Tensor, head: HeadSlice, canvas: Canvas, turn: Tensor, columns: Tensor
) -> dict[str, Tensor]:
    """As ``Proposer`` of all logits, of hidden states [N, n, D] under a head that ranks share. Without ``top_p``."""
    sampling, names, dtype = proposer.sampling, proposer.statistics, torch.float64
    mine = OwnIds.of(proposer, hidden, head, canvas, turn, columns)
    scored, other = (mine.filtered, mine.logits) if sampling.tempered else (mine.logits, mine.filtered)
    parts = [own_summary(scored, head.begin, proposer.triton)]
    if two := not sampling.plain and not names.isdisjoint(("own", "drawn")):
        parts.append(own_summary(other, head.begin, proposer.triton))
    report = mine.report(scored, other, parts[0][4], head, canvas.tokens.gather(1, columns).flatten(), proposer.triton)
    reports = head.ranks.gather(torch.cat([torch.stack(report), *parts]).to(dtype))  # [N, 6 + 5 or 10, R]
    value, token, logit, otherwise, best, current = reports[:, :6].unbind(1)
    whole = JointSummary.of(reports[:, 6:11], mine.logits.dtype)
    draw = torch.where(value == value.amax(0), token, torch.inf).amin(0)  # of equals the lowest id
    pick = lambda numbers, where: torch.where(where, numbers, 0.0).sum(0)  # noqa: E731
    logit, otherwise = (pick(numbers, token == draw) for numbers in (logit, otherwise))
    first, likeliest = whole.statistics["first"], whole.statistics["token"]
    confidence = whole.below(logit).exp() * first
    out = whole.statistics | {"token": draw.long(), "confidence": confidence, "likeliest": likeliest}
    out = rename(out | {"logit": current.sum(0)}, names)
    if not two:
        out |= proposer.chances_of_argmax(out) if sampling.plain else {}
        return _by_column(proposer.rank_eos_last(out), columns)
    second, sure = JointSummary.of(reports[:, 11:], mine.logits.dtype), confidence.log()
    behind = second.log_probability(otherwise)
    if "own" in names:
        out["own"] = behind if sampling.tempered else sure
        if "likeliest" in names:
            where = second.log_probability(pick(best, reports[:, 10] == likeliest))
            out["own_likeliest"] = where if sampling.tempered else first.log()
    if "drawn" in names:
        out["drawn"] = torch.where(mine.random, sure if sampling.tempered else behind, 0.0)
    return _by_column(proposer.rank_eos_last(out), columns)


def _by_column(statistics: dict[str, Tensor], columns: Tensor) -> dict[str, Tensor]:
    return {name: value.view(columns.shape) for name, value in statistics.items()}
