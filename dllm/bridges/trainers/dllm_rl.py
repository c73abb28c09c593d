"""Rollouts as dLLM-RL (Gen-Verse/dLLM-RL, TraceRL) reads them: JSON of texts, with the forward of every token.

Its trainers tokenise texts again, so a row whose text does not give its own ids back would have its forwards at other
tokens: such rows are left out and counted. They pad all responses of a file to the longest, and lay a row's step map
over that width (train/rl_llada.py, rl_dream.py, rl_sdar.py, rl_trado.py at 10b4fd1): so it covers every column of the
canvas, as that of sample/llada_rl_rollout.py does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dllm.common.errors import UserError
from dllm.models.text.tokenizer import Tokenizer
from dllm.scoring.rl.rollouts import Rollouts

MOST_LOST = 0.1  # share of rows that may be left out


@dataclass(frozen=True)
class TraceRows:
    """What a file holds, and what it does not."""

    rows: list[dict[str, Any]]  # one object for each rollout that is kept
    lost: int  # rollouts that their text does not give back


def trace_rows(rollouts: Rollouts, tokenizer: Tokenizer, rewards: Sequence[float]) -> TraceRows:
    """The rows for its training step: prompt, response, step_map (from 0, one number for each column of the canvas) and
    reward. The rows of one file must have the same number of columns.

    Args:
        rollouts: what ``decoder.rollouts`` gave, whose columns up to the end were all drawn.
        tokenizer: the model's.
        rewards: of each rollout.

    Raises:
        UserError: more than a tenth of the rows would be left out, or their number is not that of the rewards.
    """
    if len(rewards) != len(rollouts):
        raise UserError(f"there are {len(rewards)} rewards for {len(rollouts)} rollouts. Give one for each.")
    records = [trace_row(rollouts, number, tokenizer) for number in range(len(rollouts))]
    lost = records.count(None)
    if lost > MOST_LOST * len(records):
        raise UserError(
            f"{lost} of {len(records)} rollouts do not survive being written as text and tokenised again, more than "
            f"{MOST_LOST:.0%}: their forwards would be at other tokens. Train by dllm.scoring.rl, which takes ids."
        )
    rows = [
        {**record, "reward": float(reward)}
        for record, reward in zip(records, rewards, strict=True)
        if record is not None
    ]
    return TraceRows(rows, lost)


def trace_row(rollouts: Rollouts, number: int, tokenizer: Tokenizer) -> dict[str, Any] | None:
    """One rollout as its texts, up to its end; None if they do not give its ids back, or a token was not drawn."""
    (prompt, ids), steps = rollouts.ids(number), rollouts.step_map[number].tolist()
    texts = [tokenizer.decode(each, skip_special=False) for each in (prompt, ids)]
    again = [tokenizer.encode(text, special=True) for text in texts]
    if again != [prompt, ids] or min(steps[: len(ids)], default=0) < 1:
        return None
    return {"prompt": texts[0], "response": texts[1], "step_map": whole_map(steps)}


def whole_map(steps: Sequence[int]) -> list[int]:
    """The forwards of all columns from 0; columns that none drew (0) come last, as its SDAR loader continues a map."""
    return [step - 1 if step else max(steps) for step in steps]
