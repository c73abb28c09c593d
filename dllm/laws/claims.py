"""The laws, each a function of a trial that raises ``Broken`` where it does not hold. B rows, L columns.

Law 5, that every row which is attended to has been written, is checked by the caches (``dllm.common.debug``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import takewhile

import torch

from dllm.common.errors import name_of
from dllm.compose.fitted import Parts
from dllm.contract import State, Step, View
from dllm.contract.canvas import Canvas, Request
from dllm.contract.setting import Sampling
from dllm.contract.traits import SamplerTraits
from dllm.laws.decodes import Broken, Decoded, ids_of, recorded
from dllm.models.network.transformer import Transformer
from dllm.parts.lengths.base import Length
from dllm.parts.samplers.base import Sampler
from dllm.record.turns import ShownMixtures, TurnRecord


@dataclass(frozen=True)
class Trial:
    """What a law looks at: parts that take each other, a model, and requests of several lengths."""

    network: Transformer  # of few weights, in float64
    parts: Parts  # validated for it
    requests: tuple[Request, ...]  # a batch; each is decoded alone, too
    sampling: Sampling  # its temperature above all

    def decode(self, numbers: Sequence[int], lag: int | None = None) -> list[Decoded]:
        """The requests so numbered, as one batch."""
        return recorded(self.network, self.parts, [self.requests[n] for n in numbers], self.sampling, lag)

    @cached_property
    def together(self) -> list[Decoded]:
        return self.decode(range(len(self.requests)))

    @cached_property
    def mask(self) -> int:
        """The id that undecided positions show."""
        return ids_of(self.network.config).placeholder

    @property
    def fills_up(self) -> bool:
        """Whether the end-of-text policy leaves no mask."""
        return not self.parts.eos.traits.shrinks and not self.parts.eos.traits.at_once


def holds(condition: bool, sentence: str) -> None:
    """Raise Broken with the sentence where the condition is not met."""
    if not condition:
        raise Broken(sentence)


def may_stand_still(sampler: Sampler) -> bool:
    """Whether a rule says that it may leave a row as it is for a turn: it takes back what it commits, verifies drafts,
    follows a plan of turns, or has another patience than usual."""
    traits, canvas = sampler.traits, Canvas.of([Request.answer([0], 64, 0)], 0)
    plans = type(sampler).turns is not Sampler.turns or int(sampler.may_wait(canvas)) > traits.patience
    return bool(traits.revocable or traits.verifies or plans or traits.patience != SamplerTraits.patience)


def every_turn_commits(trial: Trial, exempt: bool = False) -> None:
    """A turn with something open commits. A rule of noise commits in the last of its forwards of a block. exempt: the
    rule may leave a row as it is."""
    sampler = trial.parts.sampler
    exempt = exempt or trial.parts.cache.traits.closes
    for row, decoded in enumerate(trial.together):
        trace = decoded.trace
        waits = waiting_turns(trial, decoded)
        for number, (record, undecided) in enumerate(zip(trace.turns, decoded.undecided, strict=True), 1):
            _, begin, end = record.block
            if number <= waits:
                continue
            if sampler.traits.renoises:
                count = sum(other.block == record.block for other in trace.turns)
                steps = int(sampler.steps)  # type: ignore[attr-defined]
                holds(count <= steps, f"row {row}: {count} forwards of one block, of {steps}")
            elif not exempt and any(undecided[trace.start + begin : trace.start + end]):
                commits = all(commits.positions for commits in record.candidates)
                holds(
                    commits,
                    f"row {row}, turn {number}: nothing is committed, and positions {begin} to {end - 1} "
                    "of the answer are not all decided",
                )


def waiting_turns(trial: Trial, decoded: Decoded) -> int:
    """Turns before the first commit, in which a rule for the length may keep everything closed."""
    if type(trial.parts.length).waits is Length.waits:
        return 0
    return len([*takewhile(lambda record: not record.candidates[0].positions, decoded.trace.turns)])


def commits_stay(trial: Trial) -> None:
    """Revocable samplers may undo, inside the open block; a schedule may roll the block back. Editing samplers may
    replace tokens of the open block, and the trace keeps both. Where a row changes its length, tokens keep their order,
    and none but the last ones go."""
    traits = trial.parts.sampler.traits
    for row, decoded in enumerate(trial.together):
        trace = decoded.trace
        for before, after, record in zip(decoded.canvases, decoded.canvases[1:], trace.turns, strict=False):
            start, turn, change = trace.start, f"row {row}, block {record.block}", record.length
            expected = before if change is None else change.canvas(before, start, -1, trace.eos_id)
            holds(len(expected) == len(after), f"{turn}: {len(after)} columns, where the trace has {len(expected)}")
            holds(change is None or trial.parts.length.traits.changes, f"{turn}: its length changes without a word")
            pairs = enumerate(zip(expected, after, strict=True))
            undone = {at - start for at, (old, new) in pairs if old not in (-1, new)}
            remasked = {at for candidate in record.remasked for at in candidate}
            edited = {at: token for commits in record.edited for at, token, *_ in commits.rows()}
            holds(edited.keys() <= undone and (not edited or traits.edits), f"{turn}: edits {edited} are not declared")
            holds(all(after[start + at] == token for at, token in edited.items()), f"{turn}: edits are not shown")
            reports = remasked | edited.keys() | {at for candidate in record.rolled for at in candidate}
            holds(undone <= reports, f"{turn}: positions {sorted(undone - reports)} lost their tokens without a word")
            holds(not remasked or traits.revocable, f"{turn}: takes back {sorted(remasked)}, and is not revocable")
            outside = [at for at in undone if not record.block[1] <= at < record.block[2]]
            holds(not outside, f"{turn}: positions {outside} of another block lost their tokens")


def a_block_gains(trial: Trial) -> None:
    """A block commits more than it takes back. Not every turn does: wino, rcr and remdm may mask more in a turn than
    they commit in it."""
    for row, decoded in enumerate(trial.together):
        trace = decoded.trace
        gained = Counter[int]()
        for record in trace.turns:
            commits = max(len(commits.positions) for commits in record.candidates)
            gained[record.block[0]] += commits - max(len(remasked) for remasked in record.remasked)
        *closed, _ = gained  # an end of text may cut the last one short
        holds(all(gained[number] > 0 for number in closed), f"row {row}: gained by block {dict(gained)}")


def all_is_decided(trial: Trial) -> None:
    """Nothing stays masked, the prompt is as it was, the answer as long as it may be, and forwards are bounded."""
    for row, (decoded, request) in enumerate(zip(trial.together, trial.requests, strict=True)):
        result, start, length = decoded.final, request.answer_start, len(request.tokens) - request.answer_start
        holds(result.prompt_tokens == list(request.tokens[:start]), f"row {row}: another prompt")
        most = longest_answer(trial, request)
        fits = len(result.canvas) <= most if trial.parts.length.traits.changes else len(result.canvas) == length
        holds(fits, f"row {row}: the answer has {len(result.canvas)} positions of {most}")
        mask_id = decoded.trace.mask_id
        if trial.fills_up:
            holds(mask_id not in result.canvas, f"row {row}: masks are left in {result.canvas}")
        holds(mask_id not in result.tokens, f"row {row}: masks are left in the text {result.tokens}")
        most = 2 * (len(result.canvas) + redecoded(trial, decoded)) + turns_on_full_blocks(trial, decoded)
        most += resized_turns(decoded) if trial.parts.length.traits.changes else 0
        holds(0 < result.nfe <= most, f"row {row}: {result.nfe} forwards for {length} positions, {most} at most")


def redecoded(trial: Trial, decode: Decoded) -> int:
    """Positions that are decided again at the cost of further forwards: those that an editing rule has masked again,
    and those that the schedule has rolled back where a second forward verifies drafts and may take none. Other rules
    commit in every forward, and two a position cover these."""
    if trial.parts.sampler.traits.edits:
        return sum(len(positions) for record in decode.trace.turns for positions in record.remasked)
    rolled = sum(len(positions) for record in decode.trace.turns for positions in record.rolled)
    return rolled if trial.parts.sampler.traits.verifies == "beside" else 0


def longest_answer(trial: Trial, request: Request) -> int:
    """Columns that a request's answer may come to have."""
    limit = getattr(trial.parts.length, "limit", None)
    if limit is None or not trial.parts.length.traits.changes:
        return len(request.tokens) - request.answer_start
    return int(limit[request.param_index or 0] if isinstance(limit, Sequence) else limit)


def resized_turns(decoded: Decoded) -> int:
    """Turns that changed the length of a row, or found before its first commit that it stays, and positions that are
    decided again after a cut."""
    changes = [record.length for record in decoded.trace.turns if record.length is not None]
    return len(changes) + 2 * sum(change.cut for change in changes) + 1


def turns_on_full_blocks(trial: Trial, decoded: Decoded) -> int:
    """Turns of an editing sampler on full blocks: at most ``post_edit_steps`` of each."""
    sampler, trace = trial.parts.sampler, decoded.trace
    if not sampler.traits.edits:
        return 0
    turns = Counter[tuple[int, int, int]]()
    for record, undecided in zip(trace.turns, decoded.undecided, strict=True):
        _, begin, end = record.block
        turns[record.block] += not any(undecided[trace.start + begin : trace.start + end])
    most = getattr(sampler, "post_edit_steps", sampler.traits.patience)
    holds(max(turns.values()) <= most, f"a full block is held for {max(turns.values())} turns, {most} at most")
    return sum(turns.values())


def a_trace_redraws(trial: Trial) -> None:
    """Every canvas that a forward saw is found again in the trace, and so is every mixture that it was given."""
    for row, decoded in enumerate(trial.together):
        trace = decoded.trace
        reports = [{}, *map(partial(mixtures_in_trace, trace.start), trace.turns)]
        for turn, (mixtures, mixed) in enumerate(zip(decoded.mixed, reports, strict=False), 1):
            apart = sorted(at for at in {*mixtures, *mixed} if mixtures.get(at) != mixed.get(at))
            holds(not apart, f"row {row}: before forward {turn} the trace has other mixtures in columns {apart}")
        *canvases, final = trace.canvases()
        noise, mask = trace.mask_id is None, trace.mask_id
        redrawn = [
            [-1 if cell == -1 and (noise or token == mask) else token for token, cell in zip(canvas, real, strict=True)]
            for canvas, real in zip(canvases, decoded.canvases, strict=True)
        ]
        holds(redrawn == decoded.canvases, f"row {row}: the trace shows other canvases than the forwards saw")
        holds(final[trace.start :] == decoded.final.canvas, f"row {row}: the trace ends in another canvas")


def mixtures_in_trace(start: int, record: TurnRecord) -> dict[int, tuple[list[int], list[float]]]:
    """The mixtures that a turn left, by column: tokens that have a weight, and their weights."""
    mixtures = record.mixtures or ShownMixtures([], [], [])
    rows = zip(mixtures.positions, mixtures.tokens, mixtures.weights, strict=True)
    return {start + at: (tokens, weights) if any(weights) else ([], []) for at, tokens, weights in rows}


def infilling_keeps_what_is_given(trial: Trial, gaps: Request, open_end: Request) -> None:
    """Infilling decides the masked positions only. gaps: given text on both sides of masks; open_end: masks alone
    after a prompt; both are one batch. A decode whose columns move takes no infilling (``loop.runner``)."""
    config = trial.network.config
    if trial.parts.length.traits.changes:
        return
    for decode in recorded(trial.network, trial.parts, [gaps, open_end], trial.sampling)[:1]:
        result = decode.final
        whole = result.prompt_tokens + result.canvas
        cells = zip(whole, gaps.tokens, gaps.masked, strict=True)
        changed = [at for at, (new, old, hole) in enumerate(cells) if not hole and new != old]
        holds(not changed, f"infilling changed given columns {changed}")
        if trial.fills_up:
            masks = [at for at, token in enumerate(whole) if token == config.mask_id and gaps.masked[at]]
            holds(config.mask_id is None or not masks, f"infilling left masks in columns {masks}")


class Watched:
    """Mixed into a rule under trial: refuses a step that commits what is not open."""

    def step(self, view: View, state: State) -> Step:
        step: Step = super().step(view, state)  # type: ignore[misc]
        if isinstance(step, Step) and isinstance(step.commit, torch.Tensor) and step.owner.rows == len(view.open):
            allowed = step.owner.per_candidate(view.open | view.forced_positions)
            if step.commit.shape == allowed.shape and bool((step.commit & ~allowed).any()):
                row, column = (step.commit & ~allowed).nonzero()[0].tolist()
                raise Broken(f"{name_of(self)} commits column {column} of candidate {row}, which is not in view.open")
        return step
