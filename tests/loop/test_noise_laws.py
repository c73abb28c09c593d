"""What holds of every decode of noise, whatever is beside a row: on dg_dev, DiffusionGemma's small model."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
import torch
from harness import DATA, ending, full
from recording import FakeGraph
from torch import Tensor

from dllm.parts import (
    Canvas,
    Collector,
    FillAfterBlock,
    Finished,
    Fixed,
    Forward,
    FullLength,
    Ids,
    NoCache,
    Parts,
    Proposer,
    RecordedTurns,
    Renoise,
    Request,
    Sampling,
    Setting,
    StackedExperts,
    StopAtEos,
    Transformer,
    TruncateAtEos,
    Turn,
    denoise,
    load_model,
    start_rows,
    take_turn,
    validate,
)

BLOCK, VOCAB = 8, 64
IDS = Ids(None, 1, (1, 15))
ROWS = 8
noise = random.Random(0)
OWN: dict[str, Any] = {  # of each row
    "steps": [3, 5, 9, 4, 12, 6, 2, 7],
    "entropy_bound": [0.1, 2.0, 0.01, 0.5, 0.1, 5.0, 1.0, 0.1],
    "t_min": [0.4, 0.1, 0.2, 0.4, 0.4, 0.0, 0.3, 0.6],
    "t_max": [0.8, 0.3, 0.9, 1.5, 0.8, 0.5, 0.4, 0.7],
    "stop_entropy": [0.005, 0.3, 0.5, 0.2, 0.02, 0.4, 0.1, 0.05],
}


@cache
def network() -> Transformer:
    return load_model(DATA / "models" / "dg_dev", dtype=torch.float64)


def requests() -> list[Request]:
    """Of other lengths, prompts shorter and longer than the window; the last one has given text in two canvases."""
    out = [
        Request.answer([noise.randrange(2, 60) for _ in range(size)], length, 1, seed)
        for seed, (size, length) in enumerate(zip((3, 9, 17, 5, 12, 4, 1), (16, 8, 24, 11, 16, 20, 8), strict=True))
    ]
    given = {6, 7, 8, 9, 12}
    whole = [Request([20 + at for at in range(19)], [at >= 3 and at not in given for at in range(19)], 7, 3)]
    return [replace(one, param_index=number) for number, one in enumerate(out + whole)]


REQUESTS = requests()
ENDS = (FullLength, FillAfterBlock, StopAtEos, TruncateAtEos)


def parts_of(cache: Any = Finished, eos: Any = FullLength, **more: Any) -> Parts:
    rule, sampling = Renoise(**{**OWN, **more}), Sampling()
    parts = Parts(rule, Fixed(BLOCK), cache(), eos(), sampling.under(rule))
    setting = Setting(network().config, parts.blocks, None, sampling, "dg_dev")
    return replace(parts, sampler=validate(setting, rule, parts.cache, parts.eos))


@dataclass
class Row:
    """Of one row: the canvas of each of its forwards and the final one, what was undecided, and how many commits."""

    canvases: list[list[int]] = field(default_factory=list)
    undecided: list[list[bool]] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)


def seen(turns: Iterator[Turn]) -> dict[int, Row]:
    out = dict[int, Row]()
    for turn in turns:
        for row, seed in enumerate(turn.canvas.seed.tolist()):
            found, size = out.setdefault(seed, Row()), int(turn.canvas.initial_end[row])
            if bool(turn.active[row]):
                found.canvases.append(turn.tried.tokens[row, :size].tolist())
                found.undecided.append(turn.tried.undecided[row, :size].tolist())
                found.commits.append(int(turn.step.commit[row].sum()))
            if row in turn.finished:
                found.canvases.append(turn.candidates.tokens[row, :size].tolist())
                found.undecided.append(turn.candidates.undecided[row, :size].tolist())
    return out


def decoded(
    batch: Sequence[Request], parts: Parts, lag: int | None = None, take: RecordedTurns | None = None
) -> dict[int, Row]:
    forward = Forward.of(network(), IDS, parts)
    lag = lag and lag * parts.cache.traits.bounds_late  # a cache without late bounds is read at once
    with torch.inference_mode():
        return seen(ending(denoise(Canvas.of(batch, 0), forward, parts, lag, take)))


@pytest.mark.parametrize("eos", ENDS if full() else ENDS[1:2], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("cache", [NoCache, Finished] if full() else [Finished])
def test_a_row_decodes_in_a_batch_as_it_does_alone(cache: Any, eos: Any) -> None:
    """Rows of other lengths, steps, bounds and temperatures, canvas by canvas; given text stays."""
    parts = parts_of(cache, eos)
    together = decoded(REQUESTS, parts)
    for one in REQUESTS:
        alone = decoded([one], parts)[one.seed]
        assert together[one.seed] == alone
        for canvas in alone.canvases:
            kept = [at for at, masked in enumerate(one.masked) if not masked]
            assert [canvas[at] for at in kept] == [one.tokens[at] for at in kept]


@pytest.mark.parametrize("eos", ENDS if full() else ENDS[:1], ids=lambda kind: kind.__name__)
def test_the_exact_cache_gives_what_no_cache_gives(eos: Any) -> None:
    some = REQUESTS if full() else REQUESTS[::3]
    assert decoded(some, parts_of(Finished, eos)) == decoded(some, parts_of(NoCache, eos))


@pytest.mark.parametrize("lag", [0, 1, 2] if full() else [1])
@pytest.mark.parametrize("cache", [NoCache, Finished])
def test_static_shapes_give_what_exact_ones_give(cache: Any, lag: int) -> None:
    parts, some = parts_of(cache), REQUESTS if full() else REQUESTS[::3]
    assert decoded(some, parts, lag) == decoded(some, parts)


def unasking(experts: StackedExperts, rows: Tensor, ends: Tensor) -> Tensor:
    """Rows [T, D] through the expert of each, with all matrices spread out."""
    expert = (torch.arange(len(rows))[:, None] >= ends).sum(1)
    gate, up = torch.einsum("td,tfd->tf", rows, experts.gate_up[expert]).chunk(2, -1)
    return torch.einsum("tf,tdf->td", experts.times(gate, up), experts.down[expert])


@pytest.mark.parametrize("cache", [NoCache, Finished] if full() else [Finished])
def test_recorded_turns_are_turns(cache: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of two kinds have buffers of two shapes. What was recorded serves the next decode. Experts run as their
    kernel runs them: asking nothing."""
    monkeypatch.setattr(StackedExperts, "forward", unasking)
    parts, some, log = parts_of(cache), REQUESTS[1:4] if full() else REQUESTS[5:7], list[str]()
    take, expected = RecordedTurns(network(), lambda: FakeGraph(log)), decoded(some, parts)
    assert [decoded(some, parts, 1, take) for _ in range(2)] == [expected] * 2
    before = log.count("record")
    assert decoded(some, parts, 1, take) == expected and log.count("record") == before < log.count("replay")


def test_the_exact_cache_computes_a_canvas_or_the_one_before_as_well() -> None:
    """After the first forward; but the whole canvases of given text between, too."""
    one = Request([7] * 5 + [1] * 32, [5 <= at < 21 or at >= 29 for at in range(37)], 0, 5)
    for asked, wide in ((REQUESTS[2], 2 * BLOCK), (one, 3 * BLOCK)):
        widths, model = list[int](), network()
        hook = model.layers[0].attn_norm.register_forward_pre_hook(
            lambda _, args, found=widths: found.append(args[0].shape[1])
        )
        try:
            decoded([asked], parts_of())
        finally:
            hook.remove()
        assert widths[0] == asked.answer_start + BLOCK and set(widths[1:]) <= {BLOCK, 2 * BLOCK, wide}, widths
        assert wide in widths[1:], widths


def test_a_row_that_joins_decodes_as_it_does_alone() -> None:
    parts = parts_of()
    forward = Forward.of(network(), IDS, parts)

    def turns() -> Iterator[Turn]:
        rows, left = start_rows(Canvas.of(REQUESTS[:2], 0), forward, parts, None), REQUESTS[2:6]
        while len(rows):
            rows, turn = take_turn(rows, forward, parts)
            yield turn
            rows = rows.without(turn.finished)
            if left and int(turn.view.blocks.turn[0]) % 2:
                own = Canvas.of([left[0]], 0)
                rows, left = rows.join(start_rows(own, forward, parts, None)), left[1:]

    with torch.inference_mode():
        joined = seen(turns())
    assert len(joined) > 3 and all(decoded([REQUESTS[seed]], parts)[seed] == row for seed, row in joined.items())


def test_a_turn_commits_a_whole_canvas_or_nothing_within_the_bound_and_what_is_decided_stays() -> None:
    for seed, row in decoded(REQUESTS, parts_of()).items():
        forwards, steps = 0, OWN["steps"][seed]
        for number, commits in enumerate(row.commits):
            before, after = row.undecided[number], row.undecided[number + 1]
            canvas = [row.canvases[number], row.canvases[number + 1]]
            assert all(a == b for a, b, masked in zip(*canvas, before, strict=True) if not masked)
            forwards += 1
            assert commits in (0, sum(before) - sum(after)) and sum(before) - sum(after) == commits
            open_ = [at for at, masked in enumerate(before) if masked]
            start = REQUESTS[seed].answer_start
            block = [at for at in open_ if (at - start) // BLOCK == (open_[0] - start) // BLOCK]
            assert commits in (0, len(block)) and forwards <= steps
            forwards = 0 if commits else forwards
        assert not any(row.undecided[-1])


def test_a_trace_shows_every_canvas_as_its_forward_saw_it() -> None:
    parts = parts_of(eos=FillAfterBlock)
    forward, collector = Forward.of(network(), IDS, parts), Collector(REQUESTS, IDS, str, (), trace=True)
    with torch.inference_mode():
        turns = list(ending(denoise(Canvas.of(REQUESTS, 0), forward, parts)))
    for turn in turns:
        collector.observe(turn)
    rows = seen(iter(turns))
    for result in collector.results():
        trace, row = result.trace, rows[result.seed]
        assert trace is not None and trace.mask_id is None and list(trace.canvases()) == row.canvases
        for record, canvas in zip(trace.turns, row.canvases[1:], strict=True):
            (shown,) = record.shown
            assert [canvas[trace.start + at] for at in shown.positions] == shown.tokens
            assert any(shown.drawn) == bool(shown.positions)  # the position of least entropy shows its draw


def test_draws_follow_the_tempered_distribution() -> None:
    """Of 20,000 columns with one and the same logits, at two temperatures."""
    rule, columns = Renoise(), 20_000
    proposer = Proposer(Sampling().under(rule), IDS, frozenset())
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2
    canvas = Canvas.of([Request.answer([], columns, 1, 5)], 0)
    for temperature in (0.4, 0.8):
        hot = replace(canvas, temperature=torch.tensor([temperature], dtype=torch.float64))
        drawn = [
            proposer(logits.expand(1, columns, -1).clone(), hot, torch.tensor([turn]), canvas.columns[None])["token"][0]
            for turn in (1, 2)
        ]
        expected = (logits / temperature).softmax(-1) * columns
        common = expected >= 5
        for tokens in drawn:
            counts = tokens.bincount(minlength=VOCAB).double()
            rest = [(counts[~common].sum(), expected[~common].sum())] if float(expected[~common].sum()) >= 5 else []
            pairs = [*zip(counts[common], expected[common], strict=True), *rest]
            chi, freedom = float(sum((a - b) ** 2 / b for a, b in pairs)), len(pairs) - 1
            assert abs(chi - freedom) < 5 * (2 * freedom) ** 0.5
        same = float((drawn[0] == drawn[1]).double().mean())  # independent from turn to turn
        share = float((expected / columns).square().sum())
        assert abs(same - share) < 5 * (share * (1 - share) / columns) ** 0.5
