"""Decodes prompts into rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dllm.common.errors import Refusal, in_range
from dllm.common.noise import mixed
from dllm.common.ranking import one_of
from dllm.contract import Turn
from dllm.contract.canvas import Canvas, Request
from dllm.contract.setting import Sampling
from dllm.loop.runner import Runner
from dllm.models.network.experts import at_least_float32
from dllm.record.collector import Collector, Text
from dllm.record.results import Result
from dllm.scoring.rl.gathered import GatheredTurns
from dllm.scoring.rl.live_weights import gradient_notes, refuse_next_token, refuse_replaced
from dllm.scoring.rl.rollout_checks import limits_of, notes_of, refuse_copies, refuse_parts, refuse_requests
from dllm.scoring.rl.rollouts import Origin, Rollouts
from dllm.scoring.rl.trajectories import goes_by_block, trajectory_logprobs


@dataclass(frozen=True)
class RolloutRequest:
    """What is asked of ``decoder.rollouts``."""

    n: int = 1  # rollouts of each prompt
    seed: int = 0  # of the first row
    step: int | None = None  # number of the update, which the seeds are mixed with (None: seed + row)
    draws: bool = False  # keep every proposal and canvas
    rescore: bool = False  # compute the log-probabilities again, without a cache

    def __post_init__(self) -> None:
        in_range("n", self.n, 1, advice="It counts rollouts of a prompt.")

    def row_seeds(self, prompts: int) -> list[int]:
        """The seeds of all rows, prompt by prompt. With ``step`` they have 63 bits: no two updates share noise."""
        count = prompts * self.n
        if self.step is None:
            return list(range(self.seed, self.seed + count))
        numbers = torch.arange(count)
        hashes = mixed(self.seed, self.step, numbers // self.n, numbers % self.n)
        return ((hashes >> 1) & ((1 << 63) - 1)).tolist()  # type: ignore[no-any-return]


def rollouts_of(
    runner: Runner,
    requests: Sequence[Request],
    order: RolloutRequest,
    text: Text,
    stop: Sequence[str] = (),
    observe: Callable[[Turn], None] | None = None,
    most: int | None = None,
) -> Rollouts:
    """Decode ``requests``, ``order.n`` in a row of each prompt. text: of ids. stop: strings that end an answer. most:
    rows at once (None: all). Raises UserError, before anything is decoded, for what gives no rollouts."""
    model, parts = runner.model, runner.parts
    refuse_next_token(model)
    refuse_replaced(model)
    refuse_parts(parts)
    refuse_requests(requests)
    requests = [parts.sampler.prepare(replace(request, param_index=number)) for number, request in enumerate(requests)]
    runner.constraints.batch(requests)
    pad = model.ids.eos if model.config.pad_id is None else model.config.pad_id
    temperature = Canvas.of(requests, pad, temperature=parts.sampling.temperature).temperature
    refuse_copies(parts, order.n, temperature.tolist())
    network = model.transformer
    turns = GatheredTurns(requests, model.ids, pad, network.device, at_least_float32(network.dtype), order.draws)
    collector = Collector((), model.ids, text, stop, trace=False)
    for turn in runner.scoring().stream(requests, most or len(requests), collector.join):
        turns.observe(turn)
        collector.observe(turn)
        if observe is not None:
            observe(turn)
    out = _rollouts_from(runner, requests, turns, collector.results(), temperature, pad, order)
    out = replace(out, completion_mask=_completion_mask(out, stop, text))
    if order.rescore or parts.sampler.traits.tokens != "proposed":
        out = _rescore(runner, out, order.rescore)
    return replace(out, notes=_notes(runner, out, int(turns.taken_back.sum()), order.rescore))


def _rollouts_from(
    runner: Runner,
    requests: Sequence[Request],
    turns: GatheredTurns,
    results: list[Result],
    temperature: Tensor,
    pad: int,
    order: RolloutRequest,
) -> Rollouts:
    """Everything but what the texts decide."""
    device, config = turns.start.device, runner.model.config
    prompts = [
        torch.tensor(request.tokens[: request.answer_start][::-1]) for request in requests
    ]  # reversed: padded on the left
    prompt_ids = pad_sequence(prompts, batch_first=True, padding_value=pad).flip(1).to(device)
    columns = torch.arange(prompt_ids.shape[1], device=device)
    real = columns >= prompt_ids.shape[1] - turns.start[:, None]
    grid = torch.zeros_like(turns.start) if config.attention.grid_at_zero else turns.start
    heats = {*temperature.tolist()}
    shared = heats.pop() if len(heats) == 1 else 0.0
    sampling = Sampling(**{**vars(runner.parts.sampling), "temperature": shared})
    return Rollouts(
        prompt_ids=prompt_ids, prompt_mask=real.long(), completion_ids=turns.tokens,
        completion_mask=torch.ones_like(turns.tokens), step_map=turns.step, origin=turns.origin,
        own_logps=turns.own, drawn_logps=turns.drawn,
        block=turns.blocks(runner.parts.blocks.fixed_length, grid), width=turns.widths(),
        forwards=turns.forwards(), seeds=torch.tensor([request.seed for request in requests], device=device),
        group=torch.arange(len(requests), device=device) // order.n, temperature=temperature.to(device),
        bent=turns.bent, draw_ids=turns.draw_ids(), canvas_ids=turns.canvas_ids(),
        finish=[result.stop_reason for result in results], texts=[result.text for result in results], notes=[],
        results=results, mask_id=runner.model.ids.placeholder, pad_id=pad, ends=runner.model.ids.ends,
        sampling=sampling, by_block=goes_by_block(runner.model),
        limits={name: str(Refusal(why)) for name, why in limits_of(runner.parts).items()},
    )  # fmt: skip


def _completion_mask(rollouts: Rollouts, stop: Sequence[str], text: Text) -> Tensor:
    """1 through the token that ends each text, or completes a stop string [R, G]; all 1 where none does."""
    wide = rollouts.asked
    ends = one_of(rollouts.completion_ids, rollouts.ends) & (rollouts.origin != Origin.GIVEN) & wide
    mask = wide & (ends.cumsum(1) - ends.long() == 0)
    for row, result in enumerate(rollouts.results):
        if result.stop_reason == "stop_string":
            ids = result.canvas
            last = next(at for at in range(1, len(ids) + 1) if any(string in text(ids[:at]) for string in stop))
            mask[row, last:] = False
    return mask.long()


def _rescore(runner: Runner, rollouts: Rollouts, all_of_them: bool) -> Rollouts:
    """The same with log-probabilities of forwards without a cache; where the model did not draw, ``own`` alone."""
    is_scored = (rollouts.origin != Origin.GIVEN) & (rollouts.origin != Origin.FILLED)

    def again(law: str) -> Tensor:
        with torch.no_grad():
            values = trajectory_logprobs(runner.model, rollouts, law=law, corrected=True)
        return values.masked_fill(~is_scored, torch.nan)

    drawn_logps = rollouts.drawn_logps
    if "drawn" in rollouts.limits:
        drawn_logps = torch.full_like(drawn_logps, torch.nan)
    elif all_of_them and not bool(rollouts.bent.any()):
        drawn_logps = again("drawn")
    return replace(rollouts, own_logps=again("own"), drawn_logps=drawn_logps)


def _notes(runner: Runner, rollouts: Rollouts, taken_back: int, is_rescored: bool) -> list[str]:
    """Sentences about these rollouts."""
    model = runner.model
    kind = str(model.transformer.dtype).removeprefix("torch.")
    notes = [*notes_of(runner.parts, kind, model.quantize, is_rescored), *gradient_notes(model)]
    answers = [tuple(result.canvas) for result in rollouts.results]
    groups = rollouts.group.tolist()
    distinct = [*Counter(group for group, _ in {*zip(groups, answers, strict=True)}).values()]  # answers of each group
    if len(answers) > len(distinct):
        count = len(answers) // len(distinct)
        mean = sum(distinct) / len(distinct)
        notes.append(f"Of {count} answers to a prompt {mean:.3g} differ on average, {min(distinct)} at least.")
    filled_columns = int((rollouts.origin == Origin.FILLED).sum())
    if filled_columns:
        share = filled_columns / int(rollouts.asked.sum())
        notes.append(f"The end-of-text policy filled {share:.0%} of the columns, which the model did not draw.")
    if taken_back:
        notes.append(f"{taken_back} commits were taken back; step_map and log-probabilities are of the last one.")
    if bent := int(rollouts.bent.sum()):
        notes.append(f"A constraint changed or held up commits in {bent} of {len(rollouts)} rollouts.")
    return notes
