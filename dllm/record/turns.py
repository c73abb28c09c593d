"""What one turn of a decode did to a row, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isnan, nan

import torch
from torch import Tensor

from dllm.contract import Turn
from dllm.record.cost import CostModel


@dataclass(frozen=True)
class Commits:
    """What one candidate committed in one turn; an entry of every list for each commit."""

    positions: list[int] = field(default_factory=list)  # relative to the answer's start
    tokens: list[int] = field(default_factory=list)  # ids that they were fixed to
    # the tokens' probability, as the rule saw it: under the model alone, with Dream's convention under what was drawn
    # from; None: not known
    confidence: list[float | None] = field(default_factory=list)
    # made by the loop, the cache's plan or a constraint, not accepted by the rule
    forced: list[bool] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)  # in nats, of the distribution that the confidence is from
    # log-probabilities of the tokens in nats; None: not known. Older traces have none, so they are not compared. own:
    # under the model alone, at temperature 1
    own: list[float | None] = field(default_factory=list, compare=False)
    # under what they were drawn from: temperature, filters and constraint applied; 0 where nothing is drawn
    drawn: list[float | None] = field(default_factory=list, compare=False)

    def rows(self) -> Iterator[tuple[int, int, float | None, float, bool]]:
        """Position, token, confidence, entropy (nan where it was not measured) and forced of every commit."""
        entropy = self.entropy or [nan] * len(self.positions)
        return zip(self.positions, self.tokens, self.confidence, entropy, self.forced, strict=True)

    def log_probabilities(self) -> Iterator[tuple[float | None, float | None]]:
        """The log-probabilities of every commit, own and drawn."""
        unknown = [None] * len(self.positions)
        return zip(self.own or unknown, self.drawn or unknown, strict=True)


@dataclass(frozen=True)
class RecordedGuesses:
    """What the model proposed at masks; an entry of every list for each position."""

    positions: list[int] = field(default_factory=list)  # relative to the answer's start
    tokens: list[int] = field(default_factory=list)  # ids of the proposals
    confidence: list[float] = field(default_factory=list)  # their probabilities, to two digits; 0: not known


@dataclass(frozen=True)
class ShownTokens:
    """What undecided positions show after a turn of a rule that renoises; an entry of every list for each."""

    positions: list[int] = field(default_factory=list)  # relative to the answer's start
    tokens: list[int] = field(default_factory=list)  # ids that the next forward sees there
    drawn: list[bool] = field(default_factory=list)  # the rule kept its draw; the others are noise


@dataclass(frozen=True)
class ShownMixtures:
    """What positions show between mask and token after a turn of a rule that mixes them; an entry of every list for
    each. What the weights of a position leave to 1 is the mask's."""

    positions: list[int]  # relative to the answer's start
    tokens: list[list[int]]  # ids, those with a weight, in the rule's order: the likeliest first
    weights: list[list[float]]  # theirs in the embedding that the next forward is given

    def likeliest(self) -> dict[int, tuple[int, float]]:
        """The first token of each position and its weight."""
        return {
            at: (tokens[0], weights[0])
            for at, tokens, weights in zip(self.positions, self.tokens, self.weights, strict=True)
        }


@dataclass(frozen=True)
class LengthRecord:
    """How the length of a row changed at the end of a turn: masks were inserted, then masks and ends of text appended,
    then it was cut. Positions and lengths are of its answer."""

    before: int  # columns that this turn's forward saw
    at: int  # position after which masks were inserted
    inserted: int  # how many
    appended: int  # masks at the end
    filled: int  # ends of text after them
    cut: int  # columns that were lost at the end, masked or not

    def canvas(self, canvas: list[int], start: int, mask_id: int, eos_id: int) -> list[int]:
        """What became of a canvas whose answer begins at ``start``."""
        at, masks = start + self.at + 1, [mask_id] * self.inserted
        longer = canvas[:at] + masks + canvas[at:] + [mask_id] * self.appended + [eos_id] * self.filled
        return longer[: len(longer) - self.cut]


@dataclass(frozen=True)
class TurnRecord:
    """One turn of one request. Lists of lists, and ``edited``, have an entry for each candidate."""

    turn: int  # its number
    kept: int  # candidate of the last turn that the row went on with
    candidates: list[Commits]  # what each committed on top of it; most samplers have one
    remasked: list[list[int]]  # positions remasked before that
    filled: list[list[int]]  # positions that the end-of-text policy filled
    rolled: list[list[int]]  # positions that the block schedule remasked
    queries: list[int]  # query tokens of the forward per layer, summed over candidates; one number: equal in all
    block: tuple[int, int, int]  # number, begin and end of the current block, relative to the answer
    seconds: float = 0.0  # wall time of the turn
    keys: list[int] = field(default_factory=list)  # columns that each query token attends to
    refreshed: list[int] = field(default_factory=list)  # rows of layers that compute the whole canvas again
    flops: float = 0.0  # of the forward, if the row is decoded alone (``dllm.record.cost``)
    bytes: float = 0.0  # that the forward moves, if the row is decoded alone
    computed: list[int] = field(default_factory=list)  # query tokens with those that pad a row to its call's width
    corrected: list[int] = field(default_factory=list)  # positions whose proposal a constraint changed
    # commits that wait: a constraint does not allow them with the others
    refused: list[list[int]] = field(default_factory=list)
    # commits made with another token, which the constraint allows
    replaced: list[list[int]] = field(default_factory=list)
    # tokens that replaced others; empty where the sampler never edits
    edited: list[Commits] = field(default_factory=list)
    # proposals of its forward that differ from the last recorded ones of their masks; not compared, since the last
    # digit may be another in a batch of another size
    guesses: RecordedGuesses = field(default_factory=RecordedGuesses, compare=False)
    # what undecided positions show from then on, for each candidate; empty where the sampler never says it
    shown: list[ShownTokens] = field(default_factory=list)
    # decided positions that its second forward masked, which guidance is against; empty under other guidance
    doubted: list[int] = field(default_factory=list)
    length: LengthRecord | None = None  # how the row's length changed then (None: it did not)
    # what positions of the open block show from then on between mask and token (None, and not in the file: nothing)
    mixtures: ShownMixtures | None = None

    def written(self, number: int) -> list[Commits]:
        """What a candidate committed, and what it edited."""
        return [self.candidates[number], *self.edited[number : number + 1]]


LastGuesses = dict[int, tuple[int, float]]  # by position: token and probability that the trace recorded last


def record_turn(
    turn: Turn, row: int, seconds: float, cost: CostModel | None = None, last: LastGuesses | None = None
) -> TurnRecord:
    """What ``turn`` did to batch row ``row``, and what it cost. last: of this row; it is brought up to date."""
    blocks, view, work = turn.view.blocks, turn.view, turn.cost
    start = int(view.canvas.start[row])
    rows, candidates = ((owner.row == row).nonzero()[:, 0].tolist() for owner in (turn.step.owner, turn.tried_owner))
    masked, commit = turn.decided.masked[rows], turn.step.commit[rows]
    was_masked = view.canvas.masked[row] | turn.step.remask[rows]
    return TurnRecord(
        turn=int(blocks.turn[row]),
        kept=candidates.index(int(turn.chosen[row])),
        candidates=[_commits(turn, turn.step.commit, n, row, start) for n in rows],
        remasked=[_positions(turn.step.remask, n, start) for n in rows],
        filled=[_positions(one, None, start) for one in was_masked & ~masked & ~commit],
        rolled=[_positions(one, None, start) for one in masked & (commit | ~was_masked)],
        queries=work.queries[candidates].sum(0).tolist(),
        block=(int(blocks.index[row]), int(blocks.begin[row]) - start, int(blocks.end[row]) - start),
        seconds=seconds,
        keys=work.keys[candidates].amax(0).tolist(),
        refreshed=work.refreshed[candidates].sum(0).tolist(),
        flops=0.0 if cost is None else float(cost.flops(work)[candidates].sum()),
        bytes=0.0 if cost is None else float(cost.bytes(work)[candidates].sum()) + cost.weights(),
        computed=work.computed[candidates].sum(0).tolist(),
        corrected=_positions(turn.marks.corrected, row, start),
        refused=[_positions(turn.marks.refused, n, start) for n in rows],
        replaced=[_positions(turn.marks.replaced, n, start) for n in rows],
        edited=[] if turn.step.edit is None else [_commits(turn, turn.step.edit, n, row, start) for n in rows],
        guesses=_guesses(turn, row, start, {} if last is None else last),
        shown=[] if turn.step.shown is None else [_shown_tokens(turn, n, row, start) for n in rows],
        doubted=_positions(turn.view.scores.statistics.get("doubted"), row, start),
        length=_length(turn, row, start),
        mixtures=mixtures_of(turn, row, start),
    )


def mixtures_of(turn: Turn, row: int, start: int) -> ShownMixtures | None:
    """The mixtures that replace tokens in the next forward of a row's block (None: there are none). A finished row has
    no next forward. Positions count from ``start``."""
    if "where" not in turn.carried or bool(turn.blocks.done[row]):
        return None
    where, tokens, weights = (turn.carried[name][row] for name in ("where", "tokens", "weights"))
    places, begin = where.nonzero()[:, 0], int(turn.blocks.begin[row]) - start
    entries = [
        [(token, share) for token, share in zip(*pairs, strict=True) if share > 0] or [(pairs[0][0], 0.0)]
        for pairs in zip(tokens[places].tolist(), weights[places].tolist(), strict=True)
    ]
    columns = ([[entry[part] for entry in pairs] for pairs in entries] for part in (0, 1))
    return ShownMixtures((places + begin).tolist(), *columns) if entries else None


def _length(turn: Turn, row: int, start: int) -> LengthRecord | None:
    if turn.reshape is None or not bool(turn.reshape.change.changes(turn.decided)[row]):
        return None
    change, before = turn.reshape.change, int(turn.decided.end[row])
    at, inserted, appended, filled = (
        int(tensor[row]) for tensor in (change.at, change.insert, change.append, change.fill)
    )
    cut = before + inserted + appended + filled - int(change.end[row])
    return LengthRecord(before - start, at - start if inserted else 0, inserted, appended, filled, cut)


def _guesses(turn: Turn, row: int, start: int, last: LastGuesses) -> RecordedGuesses:
    """The proposals at masks of a row that differ from the ``last`` ones. None for a rule that renoises: its
    proposals are draws, and those that it shows are recorded as shown."""
    if turn.step.shown is not None:
        return RecordedGuesses()
    masked, scores = turn.view.canvas.masked[row], turn.view.scores
    columns = (masked & scores.scored[row]).nonzero()[:, 0]
    sure = scores.confidence[row][columns].nan_to_num().clamp(min=0).tolist()
    tokens = scores.token[row][columns].tolist()
    guesses = {at - start: (token, round(p, 2)) for at, token, p in zip(columns.tolist(), tokens, sure, strict=True)}
    places = set(_positions(masked, None, start))
    for position in last.keys() - places:  # if it is remasked, its guess is recorded again
        del last[position]
    news = {position: guess for position, guess in guesses.items() if last.get(position) != guess}
    last |= news
    return RecordedGuesses(list(news), [token for token, _ in news.values()], [p for _, p in news.values()])


def probabilities(turn: Turn) -> Tensor:
    """Probability [N, L] of the token that each candidate writes at each position.

    nan where it is not known: the sampler writes another token than was proposed and gives no probability of its own
    (the oracle's, credited ones), or ``eos_last`` has replaced the confidence.
    """
    return turn.step.confidence.masked_fill(turn.step.confidence < 0, nan)


def log_probabilities(turn: Turn) -> tuple[Tensor, Tensor]:
    """Log-probabilities [N, L] in nats of the token that each candidate writes at each position: under the model alone,
    and under what it was drawn from.

    nan where it is not known: the sampler writes another token than was proposed, or a constraint put it there beside
    others. The runner must score (``Runner.scoring``, ``traced``).
    """
    step, scores = turn.step, turn.view.scores
    each, token = step.owner.per_candidate, step.tokens
    statistics, scored = each(scores.statistics), each(scores.scored)
    proposed = (token == each(scores.token)) & scored
    own, drawn = statistics["own"].masked_fill(~proposed, nan), statistics["drawn"]
    drawn = drawn.masked_fill(~proposed | turn.marks.replaced | drawn.isinf(), nan)
    if "own_likeliest" in statistics:  # what is committed is the likeliest token, and no draw
        own = torch.where((token == statistics["likeliest"]) & scored, statistics["own_likeliest"], own)
        drawn = torch.full_like(drawn, nan)
    return own, drawn


def none_for_nan(values: Tensor) -> list[float | None]:
    """The numbers [n]; None for nan."""
    return [None if isnan(value) else value for value in values.tolist()]


def _commits(turn: Turn, where: Tensor, candidate: int, row: int, start: int) -> Commits:
    """The commits or the edits ``where`` [N, L] of a candidate. No edit is forced."""
    step, edits = turn.step, where is turn.step.edit
    columns = where[candidate].nonzero()[:, 0]
    # The decision itself, not the canvas after the end-of-text policy, which may have cut some of it off.
    tokens = step.tokens[candidate][columns]
    forced = torch.zeros_like(where) if edits else turn.forced
    if step.accepted is None or edits:
        forced = forced | turn.marks.replaced
    forced = forced[candidate][columns]
    entropy = turn.view.scores.statistics.get("entropy")
    both = () if "own" not in turn.view.scores.statistics else log_probabilities(turn)
    own, drawn = [none_for_nan(values[candidate][columns]) for values in both] or ([], [])
    return Commits(
        positions=(columns - start).tolist(),
        tokens=tokens.tolist(),
        confidence=none_for_nan(probabilities(turn)[candidate, columns]),
        own=own,
        drawn=drawn,
        forced=forced.tolist(),
        entropy=[] if entropy is None else entropy[row][columns].tolist(),
    )


def _shown_tokens(turn: Turn, candidate: int, row: int, start: int) -> ShownTokens:
    canvas, accepted = turn.decided, turn.step.accepted
    columns = (canvas.undecided[candidate] & turn.view.blocks.in_open[row]).nonzero()[:, 0]
    drawn = [False] * len(columns) if accepted is None else accepted[candidate][columns].tolist()
    return ShownTokens((columns - start).tolist(), canvas.tokens[candidate][columns].tolist(), drawn)


def _positions(where: Tensor | None, row: int | None, start: int) -> list[int]:
    if where is None:
        return []
    return ((where if row is None else where[row]).nonzero()[:, 0] - start).tolist()
