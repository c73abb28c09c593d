"""Rollouts as dLLM-RL (Gen-Verse/dLLM-RL, TraceRL) reads them: JSON of texts, with the forward of every token.

Its trainer tokenises texts again, so a row whose text does not give its own ids back would have its forwards at other
tokens: such rows are left out and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dllm.errors import UserError
from dllm.models.tokenizer import Tokenizer
from dllm.rl.rollouts import Rollouts

MOST_LOST = 0.1  # share of rows that may be left out


@dataclass(frozen=True)
class TraceRows:
    """What a file holds, and what it does not."""

    rows: list[dict[str, Any]]  # one object for each rollout that is kept
    lost: int  # rollouts that their text does not give back


def trace_rows(rollouts: Rollouts, tokenizer: Tokenizer, rewards: Sequence[float]) -> TraceRows:
    """The rows for its training step: prompt, response, step_map (from 0, one number for each id of the response) and
    reward.

    Args:
        rollouts: what ``decoder.rollouts`` gave, whose columns up to the end were all drawn.
        tokenizer: the model's.
        rewards: of each rollout.

    Raises:
        UserError: more than a tenth of the rows would be left out, or their number is not that of the rewards.
    """
    if len(rewards) != len(rollouts):
        raise UserError(f"there are {len(rewards)} rewards for {len(rollouts)} rollouts. Give one for each.")
    found = [trace_row(rollouts, number, tokenizer) for number in range(len(rollouts))]
    lost = found.count(None)
    if lost > MOST_LOST * len(found):
        raise UserError(
            f"{lost} of {len(found)} rollouts do not survive being written as text and tokenised again, more than "
            f"{MOST_LOST:.0%}: their forwards would be at other tokens. Train by dllm.rl, which takes ids."
        )
    rows = [{**one, "reward": float(reward)} for one, reward in zip(found, rewards, strict=True) if one is not None]
    return TraceRows(rows, lost)


def trace_row(rollouts: Rollouts, number: int, tokenizer: Tokenizer) -> dict[str, Any] | None:
    """One rollout as its texts, up to its end; None if they do not give its ids back, or a token was not drawn."""
    kept, real = rollouts.completion_mask[number].bool(), rollouts.prompt_mask[number].bool()
    ids, steps = rollouts.completion_ids[number][kept].tolist(), rollouts.step_map[number][kept].tolist()
    prompt = rollouts.prompt_ids[number][real].tolist()
    texts = [tokenizer.decode(one, skip_special=False) for one in (prompt, ids)]
    if [tokenizer.encode(text, special=True) for text in texts] != [prompt, ids] or min(steps, default=0) < 1:
        return None
    return {"prompt": texts[0], "response": texts[1], "step_map": [step - 1 for step in steps]}


def answer_lists(rollouts: Rollouts) -> list[dict[str, Any]]:
    """What its reward step reads, for each prompt in order: full_output, step_map and response_length of every rollout,
    to be put beside the question and its ground truth."""
    found: dict[int, dict[str, Any]] = {}
    kept = rollouts.completion_mask.bool()
    for number, group in enumerate(rollouts.group.tolist()):
        lists = found.setdefault(group, {"full_output": [], "step_map": [], "response_length": []})
        steps = rollouts.step_map[number][kept[number]].tolist()
        lists["full_output"].append(rollouts.texts[number])
        lists["step_map"].append([step - 1 for step in steps])
        lists["response_length"].append(len(steps))
    return list(found.values())
