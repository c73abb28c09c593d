"""What another program needs to take a row apart into its forwards again: the ids of whole blocks, and of each the
forward of its block that left it.

The fields are those that DARE reads of sglang's replies (``dllm_replay_*``, contract version 1, which its
``verl/workers/rollout/cj_trajectory.py`` checks). Blocks are counted from the prompt's first token. The last one is
whole: the tokens after the end of the text took part in its forwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dllm.common.errors import Refusal, Set, UserError, name_of
from dllm.compose.fitted import Parts
from dllm.contract.canvas import Request
from dllm.models.config import ModelConfig
from dllm.models.network.visibility import InBlocks
from dllm.parts.eos.none import FullLength
from dllm.scoring.rl.rollout_checks import limits_of, refuse_parts, refuse_requests

VERSION = 1  # of the contract


@dataclass(frozen=True)
class Replay:
    """One row, from its first answer column to the end of the block in which its text ends."""

    tokens: list[int]  # ids
    steps: list[int]  # of each: the forward, counted from 1 among those of its block that left a token
    stop: int  # how many of them are the answer, its end included

    def meta_info(self) -> dict[str, Any]:
        """The fields of a reply."""
        return {
            "dllm_replay_token_ids": self.tokens,
            "dllm_replay_step_maps": self.steps,
            "dllm_stop_length": self.stop,
            "dllm_replay_contract_version": VERSION,
        }


def replay_of(prompt: int, canvas: Sequence[int], forwards: Sequence[int], stop: int, block: int) -> Replay:
    """A row as it is replayed.

    Args:
        prompt: tokens of the prompt.
        canvas: ids of the whole answer.
        forwards: for each of them the forward that drew it, from 1; 0 where none did (undecided, given or filled).
        stop: tokens of the answer, its end included.
        block: columns of a block.

    Raises:
        UserError: the last block is not whole, or a column of it was not drawn.
    """
    length = -(-(prompt + stop) // block) * block - prompt  # through the block in which the text ends
    if length > len(canvas):
        raise UserError(
            f"a replay ends with a block, and {prompt} tokens of the prompt with {len(canvas)} of the answer end inside"
            f" one of {block}. Take {aligned_length(prompt, len(canvas), block)} tokens of the answer."
        )
    missing = next((at for at, forward in enumerate(forwards[:length]) if forward < 1), None)
    if missing is not None:
        raise Refusal(
            f"column {missing} of the answer was drawn by no forward: it was given, left open or filled. Replays need "
            "whole blocks: use {eos=fill_after_block} or {eos=none}."
        )
    places = [(prompt + at) // block for at in range(length)]
    order: dict[int, list[int]] = {}
    for place, forward in zip(places, forwards, strict=False):
        order.setdefault(place, []).append(forward)
    ranks = {place: {forward: rank for rank, forward in enumerate(sorted({*of}), 1)} for place, of in order.items()}
    steps = [ranks[place][forward] for place, forward in zip(places, forwards, strict=False)]
    return Replay(list(canvas[:length]), steps, stop)


def block_of(parts: Parts, config: ModelConfig) -> int:
    """Columns of a block: the model's own, or the schedule's. Raises UserError for blocks of several lengths."""
    if isinstance(config.attention, InBlocks):
        return config.attention.length
    if parts.blocks.fixed_length is None:
        raise Refusal(
            "{blocks} has blocks of several lengths, and a replay goes by one.",
            [name_of(parts.blocks)],
            (Set("blocks", "fixed"),),
        )
    return parts.blocks.fixed_length


def refuse_replay(request: Request, parts: Parts, config: ModelConfig, stop: Sequence[str] = ()) -> None:
    """Raise UserError, before a decode, for a row whose blocks would not be whole, or that no forward draws."""
    refuse_parts(parts)
    refuse_requests([request])
    for sentence in limits_of(parts).values():
        raise Refusal(sentence)
    if stop:
        raise Refusal("{stop:quoted} cuts a block that a replay needs whole. Drop it.", [list(stop)])
    if request.constraint is not None:
        raise UserError("a replay is of what the model drew, and a constraint bends it. Drop the constraint.")
    if parts.eos.traits.at_once:
        raise Refusal(
            "{eos} ends or fills an open block, which a replay needs whole.",
            [name_of(parts.eos)],
            (Set("eos", "fill_after_block"), Set("eos", "none")),
        )
    prompt, most, block = request.answer_start, len(request.tokens) - request.answer_start, block_of(parts, config)
    if not (config.attention.grid_at_zero or prompt % block == 0 or isinstance(parts.eos, FullLength)):
        raise Refusal(
            f"{{eos}} ends a row with a block that begins after the prompt of {prompt} tokens, inside one of {block} "
            "that a replay needs whole.",
            [name_of(parts.eos)],
            (Set("eos", "none"),),
        )
    if most != (fits := aligned_length(prompt, most, block)):
        raise Refusal(
            f"{{gen_length}} after a prompt of {prompt} tokens ends inside a block, and a replay needs it whole. Use "
            f"{fits}.",
            [most],
        )


def aligned_length(prompt: int, most: int, block: int) -> int:
    """The longest answer of at most ``most`` tokens that ends with a block. Raises UserError where no answer does."""
    length = most - (prompt + most) % block
    if length < 1:
        raise UserError(f"no answer of at most {most} tokens after {prompt} ends with a block of {block}. Allow more.")
    return length
