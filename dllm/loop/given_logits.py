"""Blocks whose network is another program's: its logits come in, tokens are decided. What follows from a forward is the
loop's own (``dllm.loop.stages``); caches, other blocks and ends of text are the other program's.

Letters: B rows, k columns of a block, V tokens of the vocabulary, n scored columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from dllm.common.errors import IncompatibleParts, name_of
from dllm.compose.fitted import Parts
from dllm.constraints.decoding.batch import ConstrainedBatch
from dllm.contract import ForwardCost, Scores, State
from dllm.contract.canvas import Canvas, packed
from dllm.contract.checks import needs_of
from dllm.contract.clash import Selection, refuse_clashes
from dllm.contract.needs import readouts_of
from dllm.contract.readouts import Lookup, Readout, Statistic
from dllm.contract.setting import Sampling, Setting
from dllm.contract.shapes import Shapes
from dllm.contract.shared_values import Shared, shared_by
from dllm.loop.extras.base import ScoredCandidates
from dllm.loop.pace import never_ends
from dllm.loop.proposals import Proposer, lookup_stored, scatter_columns
from dllm.loop.rows import Rows
from dllm.loop.stages import choose_candidates, close_turn, decide, look, write_step
from dllm.models.config import ModelConfig
from dllm.models.network.visibility import BlockCausal
from dllm.models.text.ids import Ids
from dllm.parts.blocks.fixed import Fixed
from dllm.parts.cache.none import NoCache
from dllm.parts.cache.passes import ForwardPass
from dllm.parts.eos.none import FullLength
from dllm.parts.samplers.base import Sampler
from dllm.parts.samplers.wrapper import nested

# Why a rule cannot decide from the logits of one block, by its traits.
REASONS_AGAINST = {
    "renoises": "undoes noise, and these models fill masks",
    "branches": "tries several canvases of a row in each forward",
    "lookahead": "decides in blocks after the open one",
    "verifies": "has drafts verified by forwards of their own",
    "revocable": "takes tokens back, and a block may have been sent",
    "commits_ahead": "commits more than one forward's proposals",
    "soft": "shows mixtures of tokens and the mask, which a server cannot embed",
    "beyond_block": "goes by columns or memories of earlier blocks",
}
UNKNOWN_VOCAB = 1 << 31  # the model's size is known from its first logits


def reason_against(sampler: Sampler) -> str | None:
    """Why ``sampler`` cannot decide from the logits of one block; None: it can."""
    needs = needs_of("sampler", sampler)
    readouts = readouts_of(needs)
    if any(readout.reads_attention for readout in readouts):
        return "reads attention weights"
    if any(readout.extra_queries for readout in readouts):
        return "computes extra queries beside the canvas"
    if any(readout.reads_hidden and not readout.reads_attention and readout.behind_head for readout in readouts):
        return "reads hidden states"
    if (region := next((need.region for need in needs if need.region != "block"), None)) is not None:
        return f"reads scores outside the open block ({region})"
    if sampler.traits.tokens == "given":
        return "writes the tokens of known answers, which belong to prompts"
    return next((reason for trait, reason in REASONS_AGAINST.items() if getattr(sampler.traits, trait)), None)


@dataclass(frozen=True)
class GivenScores:
    """What the head of another program says of B blocks (``HeadInput``)."""

    canvas: Canvas  # [B] the blocks that it saw
    columns: Tensor  # [B, n] the scored columns, ascending (k: no column)
    logits: Tensor  # [B, n, V] of these, -inf for banned ids

    def hidden(self, layer: int | None) -> Tensor:
        raise TypeError("another program's hidden states are not known: ``reason_against`` refuses what reads them")

    def head(self, hidden: Tensor) -> Tensor:
        raise TypeError("another program's head is not known")

    def lookup(self) -> Lookup:
        return lookup_stored(self.logits, self.columns, False)


class GivenLogits:
    """A rule on the blocks of one length of another program, which a position's own logits predict."""

    def __init__(self, sampler: Sampler, sampling: Sampling, mask_id: int, length: int) -> None:
        """mask_id: what an undecided position shows. length: k. Raises UserError for a rule that one block's logits do
        not serve, and as it refuses a setting itself."""
        if (reason := reason_against(sampler)) is not None:
            raise IncompatibleParts(
                f"sampler={name_of(sampler)} {reason}, and another program's server gives the logits of one block. "
                "Use sampler=confidence, or dllm serve."
            )
        self.config = config = ModelConfig(
            family="",
            width=1,
            layers=1,
            heads=1,
            kv_heads=1,
            head_dim=1,
            mlp_width=1,
            vocab=UNKNOWN_VOCAB,
            max_length=UNKNOWN_VOCAB,
            eps=0.0,
            theta=1.0,
            mask_id=mask_id,
            eos_id=None,
            pad_id=None,
            attention=BlockCausal(length),
        )
        blocks, sampling = Fixed(length), sampling.under(sampler)
        setting = Setting(config, blocks, length, sampling)
        sampler = sampler.resolved(setting)
        refuse_clashes(Selection(setting, sampler), *(("sampler", rule, rule.clashes) for rule in nested(sampler)))
        self.parts = Parts(sampler, blocks, NoCache(), FullLength(), sampling)
        self.ids, self.length, self.needs = Ids(mask_id, -1, ()), length, needs_of("sampler", sampler)
        self.readouts = readouts_of(self.needs)
        statistics = frozenset(name for need in self.needs for name in need.statistics)
        self.proposer = Proposer(sampling, self.ids, statistics)
        self._shared: Shared | None = None

    def opened(self, tokens: Tensor, given: Tensor, seed: Tensor, temperature: Tensor) -> Rows:
        """Rows of blocks before their first forward. tokens [B, k]: as they are shown; given [B, k]: which of them are
        text already, the others are masks; seed [B]; temperature [B]."""
        canvas = self._canvas(tokens.long(), given, seed.long(), temperature.double())
        session = self.parts.cache.start(canvas, self.config, True)  # another program keeps keys and values
        return Rows.start(canvas, session, self.parts, Shapes(), ConstrainedBatch.none(len(tokens)), State())

    def _canvas(self, tokens: Tensor, given: Tensor, seed: Tensor, temperature: Tensor) -> Canvas:
        columns = torch.arange(self.length, device=tokens.device)
        last, zero = torch.where(given, columns, -1).amax(1), torch.zeros_like(tokens[:, 0])
        start = given.long().cumprod(1).sum(1).clamp(max=self.length - 1)  # a block of text alone has no answer
        end = zero + self.length
        return Canvas(
            tokens=tokens, masked=~given, valid=torch.ones_like(given), given=given, tail=columns > last[:, None],
            start=start, grid=zero, end=end, initial_end=end, shortened=zero > 0, seed=seed,
            temperature=temperature, row_id=torch.arange(len(tokens), device=tokens.device), param_index=zero,
            columns=columns,
        )  # fmt: skip

    def step(self, rows: Rows, logits: Tensor) -> tuple[Rows, list[bool], list[bool]]:
        """One turn of rows that have something to decide, from a forward's ``logits`` [B, k, V] of their blocks.

        Returns the rows, which of them are done, and in which tokens changed. Raises UserError for a row that would
        never end."""
        parts, shared = self.parts, self._shared_on(logits.device)
        choice = choose_candidates(rows, self._score(rows, logits), parts, shared)
        view = look(rows, choice, parts, shared)
        decision = decide(rows, choice, view, parts, logits.shape[-1])
        canvas = write_step(choice, decision, parts, self.ids)
        changed = (canvas.tokens != rows.candidates.tokens).any(1)
        after, turn = close_turn(rows, choice, decision, canvas, parts, self.ids)
        after, finished = after.reported(after.numbers())
        for row, pace in enumerate(after.paces):
            if pace.is_stuck:
                raise never_ends(turn, row, pace, parts)
        return after, [row in finished for row in range(len(after))], changed.tolist()

    def _shared_on(self, device: torch.device) -> Shared:
        self._shared = self._shared or shared_by(self.parts.sampler, device)
        return self._shared

    def _score(self, rows: Rows, logits: Tensor) -> ScoredCandidates:
        """What the forward says of the blocks."""
        canvas, owner, nothing = rows.candidates, rows.owner, rows.candidates.no_positions
        scored = reduce(Tensor.__or__, (need.mask(canvas, rows.blocks) for need in self.needs))
        scores = self._scores(canvas, scored, rows.blocks.turn, logits)
        run = ForwardPass([], owner, nothing, nothing, canvas.valid, canvas.tokens[:, :0], False, {})
        none = torch.zeros_like(canvas.start)
        cost = ForwardCost(none[:, None], none[:, None], none[:, None], none[:, None], none)
        return ScoredCandidates(canvas, owner, scores, None, nothing, run, cost, {}, rows.carried)

    def _scores(self, canvas: Canvas, scored: Tensor, turn: Tensor, logits: Tensor) -> Scores:
        columns = packed(scored, canvas.columns)
        inside = columns.clamp(max=self.length - 1)
        # a copy, whose bans are ours
        scored_logits = logits.gather(1, inside[..., None].expand(-1, -1, logits.shape[-1]))
        statistics = scatter_columns(self.proposer(scored_logits, canvas, turn, inside), columns, self.length)
        token, confidence = statistics.pop("token"), statistics.pop("confidence")
        source = GivenScores(canvas, columns, scored_logits)
        readings: dict[Readout[object], object] = {
            readout: readout.read(source) for readout in self.readouts if not isinstance(readout, Statistic)
        }
        return Scores(scored, token, confidence, scored & canvas.undecided, statistics, readings)
