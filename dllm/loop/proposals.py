"""From rows of logits to proposals: the token at each position, its confidence, and the statistics that parts ask for.

Probabilities are float64, or float32 sums with a float64 last step. In float32 many confidences would be exactly 1.0,
and their order arbitrary. The largest entry is left out of the sum, so that 1 - p stays precise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from dllm.common.noise import gumbel_of, mixed
from dllm.common.nucleus import nucleus
from dllm.common.ranking import one_of
from dllm.common.rowwise import Rowwise, select_or_all
from dllm.contract.canvas import Canvas
from dllm.contract.readouts import Lookup
from dllm.contract.setting import Sampling
from dllm.kernels.gumbel_argmax import gumbel_argmax
from dllm.kernels.head_statistics import can_fuse, head_statistics
from dllm.kernels.row_statistics import ALL_STATISTICS, first_largest, row_statistics
from dllm.kernels.sliced_head import HeadSlice, sliced_head_statistics
from dllm.kernels.slot_logits import slot_logits
from dllm.models.network.transformer import Transformer
from dllm.models.text.ids import Ids


def statistics(
    logits: Tensor,
    names: frozenset[str],
    token: Tensor | None = None,
    current: Tensor | None = None,
    triton: bool = False,
) -> dict[str, Tensor]:
    """The statistics ``names`` of logit rows [..., V] under plain softmax, and token and confidence, each [...].

    token: the proposal (None: the argmax). confidence = softmax(logits)[token]. current: the token now on the canvas.
    ``dllm.kernels.row_statistics`` defines the others.
    """
    out = row_statistics(logits, basis(names), triton)
    if "likeliest" in names:
        out["likeliest"] = out["token"]
    if token is not None:
        logit, best = (logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1) for ids in (token, out["token"]))
        out |= {"token": token, "confidence": (logit - best).double().exp() * out["first"]}
    if current is not None:
        out["logit"] = logits.gather(-1, current.unsqueeze(-1)).squeeze(-1).double()
    return rename(out, names)


def basis(names: frozenset[str]) -> frozenset[str]:
    """The row statistics from which the statistics ``names`` are computed."""
    return (names & ALL_STATISTICS) | {"first"} | ({"logsumexp"} if "current" in names else set())


def rename(rows: dict[str, Tensor], names: frozenset[str]) -> dict[str, Tensor]:
    """Row statistics under the names of ``Scores``. The confidence is the proposal's, by default the argmax's."""
    out = {"confidence": rows["first"], **rows}
    if "logit" in rows:
        out["current"] = rows["logit"] - rows["logsumexp"]
    return {name: value for name, value in out.items() if name in names or name in ("token", "confidence")}


def filtered(logits: Tensor, top_p: float | None, top_k: int | None) -> Tensor:
    """Logits [..., V] with -inf outside the nucleus, then outside the k largest (Dream's order).

    A token is dropped if the mass of all larger ones already exceeds ``top_p``; the largest always stays.
    """
    if top_p is not None and top_p < 1:
        logits = nucleus(logits, top_p)
    if top_k is not None and top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k, -1).values[..., -1:], -torch.inf)
    return logits


def log_probability(logits: Tensor, token: Tensor, triton: bool = False) -> Tensor:
    """log softmax(logits [..., V])[token] [...], float64: as precise near 0 as ``row_statistics`` is near 1."""
    rows = row_statistics(logits, frozenset({"first"}), triton)
    logit, best = (logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1) for ids in (token, rows["token"]))
    return (logit - best).double() + rows["first"].log()


def temper(logits: Tensor, temperature: Tensor) -> Tensor:
    """Logits [..., V] over their ``temperature`` [..., 1], as they are where it is 0."""
    return torch.where(temperature > 0, logits / temperature.clamp(min=1e-9), logits)


@dataclass(frozen=True)
class Proposer:
    """Turns rows of logits into proposals and statistics, by the sampler's ``tempered`` convention."""

    sampling: Sampling  # temperature, filters and bans
    ids: Ids  # of the mask and the ends of a text, which it may ban
    statistics: frozenset[str] = frozenset()  # names of those that parts read
    triton: bool = False  # compute statistics by the fused kernel

    def __call__(self, logits: Tensor, canvas: Canvas, turn: Tensor, columns: Tensor) -> dict[str, Tensor]:
        """Token and statistics, each [B, n], of logits [B, n, V] for target ``columns`` [B, n] in ``turn`` [B].

        Banned ids become -inf in ``logits`` itself: it must be the caller's own copy.
        """
        self.hold_ends(self.ban(logits), columns < self.earliest_end(canvas)[:, None])
        token, filtered = (None, logits) if self.sampling.plain else self.sample(logits, canvas, turn, columns)
        current = canvas.tokens.gather(1, columns) if "current" in self.statistics else None
        scored = filtered if self.sampling.tempered else logits
        values = statistics(scored, self.statistics, token, current, self.triton)
        return self.rank_eos_last(values | self.chances(logits, filtered, values, canvas.temperature[:, None]))

    def fused(
        self, hidden: Tensor, model: Transformer, canvas: Canvas, columns: Tensor, entries: Tensor | None
    ) -> dict[str, Tensor]:
        """The same for hidden states [B, n, D], without storing more than a chunk of their logits. For plain sampling
        only. entries [k]: which of the B n rows are not padding (None: all may be); the head runs on no others."""
        current = canvas.tokens.gather(1, columns).flatten() if "current" in self.statistics else None
        hidden, current = select_or_all((hidden.flatten(0, 1), current), entries)
        rows = self._head_statistics(hidden, model, current)
        if "likeliest" in self.statistics:
            rows["likeliest"] = rows["token"]
        out = rename(rows, self.statistics)
        out = self.rank_eos_last(out | self.chances_of_argmax(out))
        if entries is not None:
            blank = {name: value.new_zeros(columns.numel()) for name, value in out.items()}
            out = {name: blank[name].index_copy(0, entries, value) for name, value in out.items()}
        return {name: value.view(columns.shape) for name, value in out.items()}

    def _head_statistics(self, hidden: Tensor, model: Transformer, current: Tensor | None) -> dict[str, Tensor]:
        if model.config.ranks.size > 1:
            head = model.head_slice
            return sliced_head_statistics(hidden, head, self.banned(), basis(self.statistics), current, self.triton)
        return head_statistics(
            hidden,
            lambda rows: self.ban(model.logits(rows)),
            model.head_weight,
            self.banned(),
            model.config.logit_scale,
            basis(self.statistics),
            current,
            self.triton,
        )

    def sliced_lookup(self, columns: Tensor, hidden: Tensor, head: HeadSlice) -> Lookup:
        """As ``lookup``, of a head that ranks share."""
        return Lookup(columns, hidden, lambda source, ids: head.lookup(source, ids, self.triton), self.triton)

    def lookup(self, columns: Tensor, hidden: Tensor, weight: Tensor, scale: float) -> Lookup:
        """A lookup of logits of a few tokens, from hidden states [B, n, D] and the head's ``weight`` [V, D]."""
        triton = self.triton and can_fuse(hidden, weight)

        def find(source: Tensor, ids: Tensor) -> Tensor:
            logits = slot_logits(source, weight, ids, triton)
            return logits if scale == 1.0 else logits * scale

        return Lookup(columns, hidden, find, self.triton)

    @property
    def reads_logits(self) -> bool:
        """Whether proposals rest on each row's place or noise, so that its logits are stored."""
        return bool(self.sampling.min_tokens) or not self.sampling.plain

    def banned(self) -> tuple[int, ...]:
        return self.ids.banned(self.sampling.suppress_mask, self.sampling.forbid_eos)

    def ban(self, logits: Tensor) -> Tensor:
        for token in self.banned():
            logits.select(-1, token).fill_(-torch.inf)
        return logits

    def earliest_end(self, canvas: Canvas) -> Tensor:
        """The first column of each row [B] in which an end of text may be proposed."""
        return canvas.start + self.sampling.min_tokens

    def hold_ends(self, logits: Tensor, early: Tensor) -> Tensor:
        """``logits`` [..., V], in which no text ends where it is too ``early`` [...]; they change in place."""
        for end in self.ids.ends if self.sampling.min_tokens else ():
            logits.select(-1, end).masked_fill_(early, -torch.inf)
        return logits

    def rank_eos_last(self, out: dict[str, Tensor]) -> dict[str, Tensor]:
        """Under ``eos_last``, end-of-text proposals get confidence -1."""
        if not self.sampling.eos_last:
            return out
        ends = one_of(out["token"], self.ids.ends)
        return out | {"confidence": out["confidence"].masked_fill(ends, -1.0)}

    def chances(
        self, logits: Tensor, filtered: Tensor, values: dict[str, Tensor], temperature: Tensor
    ) -> dict[str, Tensor]:
        """Log-probabilities [...] of the proposed tokens, where a part reads them. logits [..., V]: the model's
        own. filtered [..., V]: what is drawn from. temperature [..., 1] or [...]: where it is 0, nothing is drawn."""
        if self.sampling.plain:
            return self.chances_of_argmax(values)
        out, sure = dict[str, Tensor](), values["confidence"].log()
        if "own" in self.statistics:
            tempered = self.sampling.tempered
            out["own"] = log_probability(logits, values["token"], self.triton) if tempered else sure
            if "likeliest" in self.statistics:
                out["own_likeliest"] = log_probability(logits, values["likeliest"], self.triton)
        if "drawn" in self.statistics:
            chance = sure if self.sampling.tempered else log_probability(filtered, values["token"], self.triton)
            out["drawn"] = torch.where(temperature > 0, chance, 0.0)
        return out

    def chances_of_argmax(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """``chances`` of the argmax of the model's own logits, computed without reading logits again."""
        chances = {"own": values["confidence"].log()} if "own" in self.statistics else {}
        return chances | ({"drawn": torch.zeros_like(values["confidence"])} if "drawn" in self.statistics else {})

    def sample(self, logits: Tensor, canvas: Canvas, turn: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [B, n] drawn by Gumbel-max, and the tempered and filtered logits [B, n, V] that they are drawn from:
        argmax(z / T + g) is a draw from softmax(z / T)."""
        filtered = self.filter_logits(logits, canvas.temperature[:, None, None])
        noise_state = mixed(canvas.seed[:, None], columns, turn[:, None])
        random = (canvas.temperature[:, None] > 0).expand_as(noise_state)
        return gumbel_argmax(filtered, noise_state, random, self.triton), filtered

    def filter_logits(self, logits: Tensor, temperature: Tensor) -> Tensor:
        """What is drawn from: logits [..., V] over their ``temperature`` [..., 1] where it is not 0, filtered."""
        return filtered(temper(logits, temperature), self.sampling.top_p, self.sampling.top_k)


@dataclass(frozen=True)
class LogitReproposer(Rowwise):
    """The logits of a forward at a few of the positions that it scored (``contract.Reproposer``)."""

    shared: ClassVar[tuple[str, ...]] = ("proposer", "find", "vocab")

    proposer: Proposer  # bans, tempers and draws as in the forward itself
    find: Callable[[Tensor], Tensor]  # makes logits [..., V] of what ``source`` holds
    source: Tensor  # [N, n, ...] what the forward kept of each scored column: its hidden state or its logits
    columns: Tensor  # [N, n] which columns these are, ascending (L: no column)
    canvas: Canvas  # of the candidates, for the seeds of draws
    turn: Tensor  # [N] the row's turn, for the seeds of draws
    vocab: int  # size of the vocabulary

    @property
    def narrow(self) -> bool:
        sampling = self.proposer.sampling
        return sampling.top_p is not None or sampling.top_k is not None

    def cold(self) -> LogitReproposer:
        """The same at temperature 0."""
        sampling = self.proposer.sampling
        cold = Sampling(
            forbid_eos=sampling.forbid_eos, min_tokens=sampling.min_tokens, suppress_mask=sampling.suppress_mask
        )
        return replace(self, proposer=replace(self.proposer, sampling=cold))

    def logits(self, row: Tensor, column: Tensor) -> Tensor:
        at = (self.columns[row] == column[:, None]).long().argmax(1)
        logits = self.proposer.ban(self.find(self.source[row, at]))
        return self.proposer.hold_ends(logits, column < self.proposer.earliest_end(self.canvas)[row])

    def log_probabilities(self, row: Tensor, column: Tensor) -> Tensor:
        return self.logits(row, column).double().log_softmax(-1)

    def pick(self, row: Tensor, column: Tensor, logits: Tensor, allowed: Tensor) -> Tensor:
        fitting = logits.masked_fill(~allowed, -torch.inf)
        if self.proposer.sampling.plain:
            return first_largest(fitting).squeeze(-1)
        canvas, turn = self.canvas.select(row), self.turn[row]
        return self.proposer.sample(fitting[:, None], canvas, turn, column[:, None])[0].squeeze(1)

    def compared(self, row: Tensor, column: Tensor, logits: Tensor, allowed: Tensor) -> Tensor:
        fitting = logits.masked_fill(~allowed, -torch.inf)
        if self.proposer.sampling.plain:
            return fitting
        temperature, seed = (value[row, None] for value in (self.canvas.temperature, self.canvas.seed))
        noise_state = mixed(seed, column[:, None], self.turn[row, None])
        vocabulary = torch.arange(self.vocab, device=logits.device)
        noise = gumbel_of(mixed(vocabulary, after=noise_state)) * (temperature > 0)
        return self.proposer.filter_logits(fitting, temperature) + noise

    def statistics(
        self, logits: Tensor, row: Tensor, token: Tensor, allowed: Tensor, renormalised: bool
    ) -> dict[str, Tensor]:
        names = self.proposer.statistics
        values = self._statistics(logits, row, token, allowed if renormalised else None)
        if "own" in names:
            values["own"] = log_probability(logits, token, self.proposer.triton)
        if "drawn" in names:
            temperature, fitting = self.canvas.temperature[row], logits.masked_fill(~allowed, -torch.inf)
            filtered = self.proposer.filter_logits(fitting, temperature[:, None])
            chance = log_probability(filtered, token, self.proposer.triton)
            values["drawn"] = torch.where(temperature > 0, chance, 0.0)
        return values

    def _statistics(self, logits: Tensor, row: Tensor, token: Tensor, allowed: Tensor | None) -> dict[str, Tensor]:
        """Over all ids, ``first`` is the proposal's own probability, ``second`` the model's largest, ``gap`` is not
        positive, and the entropy at least the proposal's surprise: samplers put it off until its neighbours are known.
        """
        proposer, temperature = self.proposer, self.canvas.temperature[row, None]
        if allowed is not None:
            fitting = logits.masked_fill(~allowed, -torch.inf)
            scored = proposer.filter_logits(fitting, temperature) if proposer.sampling.tempered else fitting
            return proposer.rank_eos_last(statistics(scored, proposer.statistics, token))
        if proposer.sampling.tempered:
            logits = temper(logits, temperature)
        raw = row_statistics(logits, basis(proposer.statistics) - {"second", "gap"}, proposer.triton)
        behind = logits.gather(-1, torch.stack([token, raw["token"]], -1)).double()
        gap = behind[:, 0] - behind[:, 1]
        proposal = raw["first"] * gap.exp()
        out = raw | {"token": token, "confidence": proposal, "first": proposal, "second": raw["first"], "gap": gap}
        if "entropy" in raw:
            out["entropy"] = torch.maximum(raw["entropy"], -proposal.clamp(min=1e-300).log())
        statistic_names = proposer.statistics | {"token", "confidence"}
        return proposer.rank_eos_last({name: value for name, value in out.items() if name in statistic_names})


def scatter_columns(values: dict[str, Tensor], rows: Tensor, length: int) -> dict[str, Tensor]:
    """Values [B, n] at columns ``rows`` [B, n] (L: padding), laid out as [B, L], zero elsewhere."""
    shape = (rows.shape[0], length + 1)
    return {name: value.new_zeros(shape).scatter(1, rows, value)[:, :length] for name, value in values.items()}


def lookup_stored(logits: Tensor, columns: Tensor, triton: bool) -> Lookup:
    """A lookup in logits [N, n, V] of ``columns`` [N, n] that are stored."""
    return Lookup(columns, logits, lambda source, ids: source.gather(-1, ids), triton)
