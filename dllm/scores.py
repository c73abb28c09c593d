"""Row statistics: the numbers a sampler may ask for, and which rows the head must run on to get them.

All probabilities are float64, or float32 sums with a float64 last step: in float32 many confidences are exactly 1.0
and their order would be arbitrary. The largest entry is kept out of the sum, so that 1 - p stays precise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dllm.blocks.base import Span
from dllm.canvas import Canvas, per_row
from dllm.common.noise import gumbel
from dllm.errors import in_range
from dllm.kernels.head_statistics import can_fuse, head_statistics
from dllm.kernels.row_statistics import ALL_STATISTICS, row_statistics
from dllm.kernels.slot_logits import slot_logits

if TYPE_CHECKING:
    from dllm.models.transformer import Transformer


@dataclass(frozen=True)
class Need:
    """What a part wants scored: a region, whether decided positions count too, given ones as well, and which extra
    statistics.

    region: ``block`` (the open blocks), ``suffix`` (from the block's start on), ``answer`` (all of it, or its columns
    ``span``), ``ahead`` (columns ``span`` from the block's start on, or ``ratio`` of the answer's length).
    Token and confidence always come. ``logits``: all of them are kept; ``lookup``: any few can be asked for.
    ``opening``: needed only on the forward that opens a block.
    """

    region: str = "block"
    committed: bool = False
    span: tuple[int, int] | None = None
    ratio: float | None = None
    statistics: frozenset[str] = field(default_factory=frozenset)
    logits: bool = False
    opening: bool = False
    lookup: bool = False

    def mask(self, canvas: Canvas, blocks: Span) -> Tensor:
        """Wanted target positions [B, L]."""
        wanted = canvas.valid if self.committed else canvas.undecided
        if self.region == "block":
            return wanted & blocks.inside
        low, high = self._bounds(canvas, blocks)
        return wanted & (canvas.columns >= low[:, None]) & (canvas.columns < high[:, None])

    def _bounds(self, canvas: Canvas, blocks: Span) -> tuple[Tensor, Tensor]:
        if self.region == "suffix":
            return blocks.begin, canvas.end
        origin = blocks.begin if self.region == "ahead" else canvas.start
        if self.ratio is not None:
            return origin, origin + (self.ratio * (canvas.length - canvas.start)).floor().long()
        if self.span is None:
            return origin, canvas.end
        return origin + self.span[0], origin + self.span[1]


@dataclass(frozen=True)
class Sampling:
    """How a token is proposed at a position. Per-request values are tensors indexed by request.

    temperature 0 is the argmax. ``tempered``: confidences come from the tempered and filtered distribution (Dream)
    instead of the model's own (LLaDA). ``forbid_eos``: LLaDA's ``logits_eos_inf``. ``eos_last``: the intent of LLaDA's
    ``confidence_eos_eot_inf``, end-of-text proposals are committed after everything else.
    """

    temperature: float | Sequence[float] | Tensor = 0.0
    top_p: float | None = None
    top_k: int | None = None
    guidance: float = 0.0
    suppress_mask: bool = True
    forbid_eos: bool = False
    eos_last: bool = False
    tempered: bool = False

    def __post_init__(self) -> None:
        in_range("sampling.temperature", self.temperature, 0.0, float("inf"), "0 is the argmax.")
        in_range("sampling.guidance", self.guidance, 0.0, float("inf"), "0 is off.")
        if self.top_p is not None:
            in_range("sampling.top_p", self.top_p, 1e-9, 1.0, "null switches it off.")
        if self.top_k is not None:
            in_range("sampling.top_k", self.top_k, 1, float("inf"), "null switches it off.")

    @property
    def plain(self) -> bool:
        """The proposal is simply the argmax of the model's own logits."""
        cold = isinstance(self.temperature, int | float) and self.temperature == 0
        return cold and self.top_p is None and self.top_k is None


@dataclass(frozen=True)
class Lookup:
    """Logits of a few tokens at each scored row, without all the others: a product with so many rows of the head.

    rows [B, n]: the columns that the scored rows are for (L: padding); source [B, n, ...]: what ``find`` makes them of.
    """

    rows: Tensor
    source: Tensor
    find: Callable[[Tensor, Tensor], Tensor]
    triton: bool = False

    @staticmethod
    def stored(rows: Tensor, logits: Tensor, triton: bool = False) -> Lookup:
        """In logits [B, n, V] that are there anyway."""
        return Lookup(rows, logits, lambda source, ids: source.gather(-1, ids), triton)

    def __call__(self, ids: Tensor) -> Tensor:
        """Logits [B, n, K] of ``ids`` [B, n, K] at the scored rows."""
        return self.find(self.source.flatten(0, 1), ids.flatten(0, 1)).view(ids.shape)


@dataclass(frozen=True)
class Scores:
    """Statistics of the scored rows, laid out by target position [B, L]; zero where ``known`` is False.

    token: the proposal; confidence: its probability (float64; -1 for end-of-text proposals under ``eos_last``).
    first: probability of the likeliest token; second: of the runner-up; gap: difference of the two largest logits;
    entropy in nats; logsumexp; current: log-probability of the token now on the canvas; shadow: the same from an extra
    row that sees all but that token (committed positions of the block). ready: predicted by a row this forward
    computed, and committable by the cache's plan. only: if set, rows that have an entry commit exactly those positions.
    logits [B, n, V] as the model gave them but for banned ids (-inf), and their target columns [B, n] (L: padding),
    where somebody asked for them. lookup: logits of any few tokens, where somebody did.
    """

    known: Tensor
    token: Tensor
    confidence: Tensor
    ready: Tensor
    only: Tensor | None = None
    first: Tensor | None = None
    second: Tensor | None = None
    gap: Tensor | None = None
    entropy: Tensor | None = None
    logsumexp: Tensor | None = None
    current: Tensor | None = None
    shadow: Tensor | None = None
    logits: Tensor | None = None
    rows: Tensor | None = None
    lookup: Lookup | None = None

    def stat(self, name: str) -> Tensor:
        """An optional statistic; a part that reads one it did not ask for is a mistake of ours."""
        value = getattr(self, name)
        assert value is not None, f"statistic {name!r} was read but not declared in any need"
        return value


def statistics(
    logits: Tensor, wanted: frozenset[str], token: Tensor | None = None, current: Tensor | None = None,
    triton: bool = False,
) -> dict[str, Tensor]:
    """Statistics of logit rows [..., V] under plain softmax, each [...]; ``token`` is the proposal (None: the argmax).

    confidence = softmax(logits)[token]; see ``dllm.kernels.row_statistics`` for the others.
    """
    found = row_statistics(logits, names(wanted), triton)
    if token is not None:
        chosen, best = (logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1) for ids in (token, found["token"]))
        found |= {"token": token, "confidence": (chosen - best).double().exp() * found["first"]}
    if current is not None:
        found["logit"] = logits.gather(-1, current.unsqueeze(-1)).squeeze(-1).double()
    return named(found, wanted)


def names(wanted: frozenset[str]) -> frozenset[str]:
    """The row statistics that the ``wanted`` ones are made of."""
    return (wanted & ALL_STATISTICS) | {"first"} | ({"logsumexp"} if "current" in wanted else set())


def named(found: dict[str, Tensor], wanted: frozenset[str]) -> dict[str, Tensor]:
    """Row statistics under the names of ``Scores``; the confidence is the proposal's, by default the argmax's."""
    out = {"confidence": found["first"], **found}
    if "logit" in found:
        out["current"] = found["logit"] - found["logsumexp"]
    return {name: value for name, value in out.items() if name in wanted or name in ("token", "confidence")}


def filtered(logits: Tensor, top_p: float | None, top_k: int | None) -> Tensor:
    """Logits [..., V] with -inf outside the nucleus, then outside the k largest (Dream's order).

    A token is dropped when the mass of all larger ones already exceeds ``top_p``; the largest always stays.
    """
    if top_p is not None and top_p < 1:
        ordered, index = logits.sort(dim=-1, descending=True, stable=True)
        mass = ordered.to(torch.promote_types(ordered.dtype, torch.float32)).softmax(-1)
        dropped = (mass.cumsum(-1) - mass) > top_p
        logits = logits.masked_fill(torch.zeros_like(dropped).scatter(-1, index, dropped), -torch.inf)
    if top_k is not None and top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k, -1).values[..., -1:], -torch.inf)
    return logits


@dataclass(frozen=True)
class Ids:
    """The special ids that proposing needs: MASK, and those that end a text (EOS, end of turn)."""

    mask: int
    eos: int
    stops: tuple[int, ...]


@dataclass(frozen=True)
class Propose:
    """Turns logit rows into proposals and statistics (the sampler's ``tempered`` convention included).

    heat [] or [requests]: the temperature, on the device where it is used.
    """

    sampling: Sampling
    ids: Ids
    heat: Tensor
    wanted: frozenset[str] = frozenset()
    triton: bool = False

    @staticmethod
    def of(sampling: Sampling, ids: Ids, wanted: frozenset[str], model: Transformer) -> Propose:
        heat = torch.as_tensor(sampling.temperature, dtype=torch.float64, device=model.device)
        return Propose(sampling, ids, heat, wanted, model.triton)

    def check(self, canvas: Canvas) -> None:
        """Raises UserError when there are fewer temperatures than requests."""
        per_row(self.heat, canvas)

    def __call__(self, logits: Tensor, canvas: Canvas, turn: Tensor, columns: Tensor) -> dict[str, Tensor]:
        """logits [B, n, V] for target ``columns`` [B, n]; turn [B] -> token and statistics, each [B, n].

        Banned ids become -inf in ``logits`` itself, which is the caller's own copy.
        """
        self._ban(logits)
        token, scored = (None, logits) if self.sampling.plain else self._draw(logits, canvas, turn, columns)
        current = canvas.tokens.gather(1, columns) if "current" in self.wanted else None
        return self._ends_last(statistics(scored, self.wanted, token, current, self.triton))

    def unstored(self, hidden: Tensor, model: Transformer, canvas: Canvas, columns: Tensor) -> dict[str, Tensor]:
        """The same for hidden rows [B, n, D] whose logits nobody else reads: never more than a chunk of them exists.
        For plain sampling only."""
        current = canvas.tokens.gather(1, columns).flatten() if "current" in self.wanted else None
        found = head_statistics(
            hidden.flatten(0, 1), lambda rows: self._ban(model.logits(rows)), model.head_weight, self._banned(),
            model.config.logit_scale, names(self.wanted), current, self.triton,
        )  # fmt: skip
        out = named(found, self.wanted)
        return self._ends_last({name: value.view(columns.shape) for name, value in out.items()})

    def lookup(self, rows: Tensor, hidden: Tensor, weight: Tensor, scale: float) -> Lookup:
        """Logits of few tokens, from hidden rows [B, n, D] and the head's ``weight`` [V, D]."""
        triton = self.triton and can_fuse(hidden, weight)

        def find(source: Tensor, ids: Tensor) -> Tensor:
            found = slot_logits(source, weight, ids, triton)
            return found if scale == 1.0 else found * scale

        return Lookup(rows, hidden, find, self.triton)

    def _banned(self) -> tuple[int, ...]:
        return (self.ids.mask,) * self.sampling.suppress_mask + (self.ids.eos,) * self.sampling.forbid_eos

    def _ban(self, logits: Tensor) -> Tensor:
        for banned in self._banned():
            logits.select(-1, banned).fill_(-torch.inf)
        return logits

    def _ends_last(self, out: dict[str, Tensor]) -> dict[str, Tensor]:
        """End-of-text proposals get confidence -1, if the sampling wants it so."""
        if not self.sampling.eos_last:
            return out
        ends = one_of(out["token"], (self.ids.eos, *self.ids.stops))
        return out | {"confidence": out["confidence"].masked_fill(ends, -1.0)}

    def _draw(self, logits: Tensor, canvas: Canvas, turn: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Gumbel-max on the filtered logits: argmax(z + T g) is a draw from softmax(z / T)."""
        heat = (self.heat[canvas.number] if self.heat.dim() else self.heat.expand(canvas.number.shape))[:, None, None]
        hot = heat > 0
        tempered = torch.where(hot, logits / heat.clamp(min=1e-9), logits)
        kept = filtered(tempered, self.sampling.top_p, self.sampling.top_k)
        vocabulary = torch.arange(logits.shape[-1], device=logits.device)
        position = columns - canvas.first[:, None]
        noise = gumbel(canvas.seed[:, None, None], position[..., None], turn[:, None, None], vocabulary)
        token = torch.where(hot, kept + noise, kept.double()).argmax(-1)
        return token, kept if self.sampling.tempered else logits


def one_of(tokens: Tensor, ids: Iterable[int]) -> Tensor:
    """Which of ``tokens`` is one of a few ids. Those stay numbers: a tensor of them would be copied to the device in
    every turn."""
    found = torch.zeros_like(tokens, dtype=torch.bool)
    for one in ids:
        found = found | (tokens == one)
    return found


def spread(values: dict[str, Tensor], rows: Tensor, length: int) -> dict[str, Tensor]:
    """Values [B, n] at target columns ``rows`` [B, n] (L: padding) laid out as [B, L], zero elsewhere."""
    shape = (rows.shape[0], length + 1)
    return {name: value.new_zeros(shape).scatter(1, rows, value)[:, :length] for name, value in values.items()}
