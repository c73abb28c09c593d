"""Rollouts for DARE (yjyddq/DARE), whose workers call ``generate_sequences``.

``DareRollout`` takes the place of a worker of its own: the trainer's module decodes, with any of our parts. What an
algorithm needs beside the answers is in the batch; the others (d1, coupled, bgpo, ebpo, espo, spg, vrpo) need nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import count
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dllm.bridges.trainers.filters import filters_of
from dllm.common.errors import UserError, in_choices
from dllm.common.noise import seed_of
from dllm.compose.parts import part
from dllm.decoder import Decoder
from dllm.models.bundle import Model, load
from dllm.scoring.rl.rollouts import Origin, Rollouts
from dllm.scoring.rl.trajectories import trajectory_logprobs
from dllm.scoring.rl.whole_blocks import block_of, replay_of

# What each algorithm needs of a rollout: slices of the canvas by forward, the same within blocks, or every canvas.
TRAJECTORIES = {"cj-grpo": "forwards", "cj-grpo-blocks": "blocks", "mdpo": "predictions"}
WITHOUT_TRAJECTORY = ("d1", "coupled", "bgpo", "ebpo", "espo", "spg", "vrpo")
WORKERS = count()  # of this process
DARE_OPTIONS = ("algorithm", "sampler", "blocks", "cache", "eos", "seed", "batch_size")


class DareRollout:
    """DARE's rollout worker on our loop.

    Args:
        module: the trainer's model object, whose weights are shared.
        config: DARE's: n, response_length, num_diffusion_steps, block_length, temperature, top_p, top_k, cfg_scale,
            step_merge, val_kwargs; and under ``dllm`` what is ours: algorithm (``cj-grpo``, ``cj-grpo-blocks`` for SDAR
            and LLaDA2, ``mdpo``, or one that needs no trajectory), sampler, blocks, cache, eos (by name), seed,
            batch_size.
        tokenizer: of transformers.

    Raises:
        UserError: an option of ``dllm`` does not exist, or the parts do not fit the model.
    """

    def __init__(self, module: Any, config: Mapping[str, Any], tokenizer: Any = None) -> None:
        self.prepare(load(module, tokenizer), config)

    def prepare(self, model: Model, config: Mapping[str, Any]) -> None:
        """Take a model and the options. Raises UserError as the class."""
        self.config, self.model, self.calls, self.number = config, model, 0, next(WORKERS)
        self.own: dict[str, Any] = dict(config.get("dllm") or {})
        if unknown := [name for name in self.own if name not in DARE_OPTIONS]:
            raise UserError(f"dllm.{unknown[0]} does not exist. Choose among {', '.join(DARE_OPTIONS)}.")
        self.algorithm = str(self.own.get("algorithm", "cj-grpo"))
        in_choices("dllm.algorithm", self.algorithm, (*TRAJECTORIES, *WITHOUT_TRAJECTORY))
        self.decoder(False)  # refuses now what cannot work

    def decoder(self, validate: bool) -> Decoder:
        """The decoder of a training batch, or of a validation."""
        kwargs = (self.config.get("val_kwargs") or {}) if validate else {}

        def told(name: str, usual: Any = None) -> Any:
            return kwargs.get(name, self.config.get(name, usual))

        block = int(told("block_length"))
        usual = {
            "sampler": part("sampler", "static", steps=int(told("num_diffusion_steps"))),
            "cache": "none",
            "eos": "none",
            "blocks": part("blocks", "fixed", block_length=block),
        }
        parts = {name: self.own.get(name, value) for name, value in usual.items()}
        return Decoder(
            self.model,
            **parts,
            gen_length=int(told("response_length")),
            guidance=float(told("cfg_scale", 0)),
            batch_size=int(self.own.get("batch_size", 32)),
            temperature=float(told("temperature")),
            **filters_of(told("top_p"), told("top_k")),
        )

    def answers_to_a_row(self, validate: bool) -> int:
        """How often a row is answered. A validation's rows are repeated already."""
        return 1 if validate else int(self.config["n"])

    def seed_of_call(self, meta: Mapping[str, Any]) -> int:
        """The noise of the next call: of this process, the worker, the update if ``meta`` counts it, and the call."""
        return seed_of(
            int(self.own.get("seed", 0)), process_rank(), self.number, meta.get("global_steps", -1), self.calls
        )

    def generate_sequences(self, prompts: Any, **_: Any) -> Any:
        """A batch of B n rows, prompt by prompt, from one of B prompts; n is 1 in a validation."""
        validate = bool(prompts.meta_info.get("validate", False))
        ids, mask = prompts.batch["input_ids"], prompts.batch["attention_mask"]
        rows = [row[real.bool()].tolist() for row, real in zip(ids, mask, strict=True)]
        needs = None if validate else TRAJECTORIES.get(self.algorithm)
        decoder = self.decoder(validate)
        rollouts = decoder.rollouts(
            rows,
            n=self.answers_to_a_row(validate),
            seed=self.seed_of_call(prompts.meta_info),
            step=0,
            draws=needs == "predictions",
        )
        self.calls += 1
        batch = dare_batch(rollouts, ids, mask, prompts.batch["position_ids"])
        if needs == "forwards":
            batch |= forward_slices(rollouts, ids.shape[1], bool(self.config.get("step_merge", False)))
        elif needs == "blocks":
            batch |= block_slices(rollouts, batch["prompts"], block_of(decoder.parts, self.model.config))
        elif needs == "predictions":
            batch |= prediction_steps(self.model, rollouts)
        attended = drawn_columns(rollouts) if needs == "forwards" else rollouts.completion_mask if needs else None
        if attended is not None:
            batch["attention_mask"][:, ids.shape[1] :] = attended
        return type(prompts)(batch=type(prompts.batch)(batch, batch_size=[len(rollouts)]))


def process_rank() -> int:
    """The number of this process among all of a training: torch.distributed's, or else what a launcher has told it."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", 0))


def dare_batch(rollouts: Rollouts, ids: Tensor, mask: Tensor, positions: Tensor) -> dict[str, Tensor]:
    """What every algorithm has: prompts [R, Lp] as DARE pads them, answers [R, G], both together, the attention mask,
    which is 1 on the whole answer, and positions, which go on from the prompt's."""
    times = len(rollouts) // len(ids)
    prompts, real, places = (tensor.repeat_interleave(times, 0) for tensor in (ids, mask, positions))
    answers = rollouts.completion_ids.to(ids)
    after = places[:, -1:] + torch.arange(1, answers.shape[1] + 1, device=places.device)
    return {
        "prompts": prompts,
        "responses": answers,
        "input_ids": torch.cat([prompts, answers], 1),
        "attention_mask": torch.cat([real, torch.ones_like(answers)], 1),
        "position_ids": torch.cat([places, after], 1),
    }


def drawn_columns(rollouts: Rollouts) -> Tensor:
    """Columns [R, G] that a forward drew: the others belong to no slice, and DARE's actor must not attend to them."""
    return ((rollouts.origin != Origin.FILLED) & (rollouts.completion_ids != rollouts.mask_id)).long()


def unmask_slices(steps: Tensor, count: int, prompt: int) -> Tensor:
    """Bool [R, count, prompt + G]: of each slice the columns of that number in ``steps`` [R, G] (-1: of none)."""
    slices = steps[:, None] == torch.arange(count, device=steps.device)[:, None]
    return torch.cat([slices.new_zeros(len(steps), count, prompt), slices], 2)


def forward_slices(rollouts: Rollouts, prompt: int, merge: bool = False) -> dict[str, Tensor]:
    """The slices of cj-grpo for LLaDA and Dream: slice t has what forward t + 1 left. merge: one slice a block."""
    left = (rollouts.origin == Origin.DRAWN) | (rollouts.origin == Origin.FORCED)
    steps = (rollouts.block.long() if merge else rollouts.step_map.long() - 1).masked_fill(~left, -1)
    return {"reversed_traj_unmask_positions": unmask_slices(steps, slice_count(steps), prompt)}


def block_slices(rollouts: Rollouts, prompts: Tensor, block: int) -> dict[str, Tensor]:
    """The slices of cj-grpo for SDAR and LLaDA2 (contract version 2): whole blocks, right-padded, and slices by the
    forwards of each block. Raises UserError for a row whose last block is not whole."""
    step, stop = rollouts.step_map.masked_fill(rollouts.origin == Origin.FILLED, 0), rollouts.completion_mask.sum(1)
    rows = zip(
        rollouts.prompt_mask.sum(1).tolist(),
        rollouts.completion_ids.tolist(),
        step.tolist(),
        stop.tolist(),
        strict=True,
    )
    replays = [replay_of(*row, block) for row in rows]
    width, device = rollouts.completion_ids.shape[1], rollouts.completion_ids.device

    def padded(lists: list[list[int]], fill: int) -> Tensor:
        rows = pad_sequence([torch.tensor(numbers) for numbers in lists], batch_first=True, padding_value=fill)
        return torch.nn.functional.pad(rows, (0, width - rows.shape[1]), value=fill).to(device)

    steps = padded([[at - 1 for at in replay.steps] for replay in replays], -1)
    answers = rollouts.completion_ids.masked_fill(rollouts.completion_mask == 0, rollouts.pad_id)
    return {
        "responses": answers,
        "input_ids": torch.cat([prompts, answers.to(prompts)], 1),
        "cj_replay_responses": padded([replay.tokens for replay in replays], rollouts.pad_id),
        "cj_replay_attention_mask": (steps >= 0).long(),
        "reversed_traj_unmask_positions": unmask_slices(steps, slice_count(steps), prompts.shape[1]),
        "rollout_log_probs": rollouts.drawn_logps.nan_to_num(0.0),  # a diagnostic: the actor computes its own
    }


def prediction_steps(model: Model, rollouts: Rollouts) -> dict[str, Tensor]:
    """The tensors of mdpo [R, T, G]: the answer before each forward, what the forward predicted of it, and the
    probability of each prediction under what it was drawn from (1 where nothing was masked, 0 where nothing was
    scored). Rows that ended earlier repeat their answer."""
    assert rollouts.draw_ids is not None and rollouts.canvas_ids is not None, "asked for with draws=True"
    draws, before = rollouts.draw_ids.long(), rollouts.canvas_ids.long()
    over = torch.arange(draws.shape[1], device=draws.device) >= rollouts.forwards[:, None]
    before = torch.where(over[..., None], rollouts.completion_ids[:, None], before)
    with torch.no_grad():
        sure = trajectory_logprobs(model, rollouts, law="drawn", draws=True).exp()
    sure = sure.masked_fill(draws < 0, 0.0).masked_fill(before != rollouts.mask_id, 1.0)
    return {
        "all_steps_input_ids": before,
        "all_steps_completion_ids": torch.where(draws >= 0, draws, before),
        "all_confidence": sure,
    }


def slice_count(steps: Tensor) -> int:
    """How many slices there are at most, over all processes."""
    count = steps.max().clamp(min=0) + 1
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(count, op=torch.distributed.ReduceOp.MAX)
    return int(count)
