"""Rollouts for TRL's GRPOTrainer: a ``rollout_func``, and a mixin that scores what it drew.

TRL computes log-probabilities as a causal model's, one column later, which means nothing here. With the mixin they are
those of the trajectory that our loop drew.

    class Trainer(DiffusionGRPOMixin, GRPOTrainer): ...

    Trainer(model, rewards, args, train_dataset=data, processing_class=tokenizer, rollout_func=TrlRollouts())
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from torch import Tensor, nn

from dllm.decoder import Decoder
from dllm.errors import UserError, in_choices
from dllm.models.bundle import Model, load
from dllm.prompts import Prompt
from dllm.rl.rollouts import Rollouts
from dllm.rl.trajectories import trajectory_logprobs

KEPT_BATCHES = 4  # batches of rollouts: an evaluation may come between a batch and the last use of it
CALLS_OF_A_STEP = 1 << 16  # of one step, at most, each with seeds of its own
TrlRow = tuple[tuple[int, ...], tuple[int, ...]]  # ids of a prompt, and of its answer


class TrlRollouts:
    """TRL's ``rollout_func`` on our loop.

    Args:
        law, shrink: of the log-probabilities, as ``trajectory_logprobs`` has them.
        seed: of the draws, with the trainer's step.
        options: of ``Decoder``: sampler, gen_length, temperature (1 unless given), ... As in TRL, texts get no chat
            template; messages do.

    Raises:
        UserError: a wrong law; when called, parts that do not fit the model.
    """

    def __init__(self, *, law: str = "own", shrink: int = 1, seed: int = 0, **options: Any) -> None:
        in_choices("law", law, ("own", "drawn"))
        self.law, self.shrink, self.seed = law, shrink, seed
        self.options = {"temperature": 1.0, "batch_size": 32, "chat": False, **options}
        self.decoder: Decoder | None = None  # of the trainer's model, from the first call on
        self.models: dict[int, Model] = {}  # a reference model's weights are shared, too
        self.kept: deque[tuple[dict[TrlRow, int], Rollouts]] = deque(maxlen=KEPT_BATCHES)
        self.called = (-1, 0)  # the last step, and its calls

    def __call__(self, prompts: Sequence[Prompt], trainer: Any) -> dict[str, list[Any]]:
        """One answer for each prompt. TRL repeats a prompt once for each of its generations, in a row; such rows draw
        differently."""
        if self.decoder is None:
            self.decoder = Decoder(self.of(trainer.model, trainer), **self.options)
        step = int(trainer.state.global_step)
        self.called = step, self.called[1] + 1 if self.called[0] == step else 0
        groups = [(prompt, len(list(same))) for prompt, same in groupby(prompts)]
        counts = {count for _, count in groups}
        n = counts.pop() if len(counts) == 1 else 1
        asked = [prompt for prompt, _ in groups] if n > 1 else list(prompts)
        rollouts = self.decoder.rollouts(
            asked, n=n, seed=self.seed + trainer.accelerator.process_index, step=step * CALLS_OF_A_STEP + self.called[1]
        )
        rows = [row_ids(rollouts, number) for number in range(len(rollouts))]
        # Of equal answers to a prompt the first one stands for all: their rewards are equal, and so ratios stay 1.
        self.kept.append(({row: number for number, row in reversed([*enumerate(rows)])}, rollouts))
        logps = rollouts.drawn_logps.nan_to_num(0.0).tolist()
        return {
            "prompt_ids": [list(prompt) for prompt, _ in rows], "completion_ids": [list(answer) for _, answer in rows],
            "logprobs": [of[: len(answer)] for of, (_, answer) in zip(logps, rows, strict=True)],
            "forwards": rollouts.forwards.tolist(),
        }  # fmt: skip

    def of(self, module: nn.Module, trainer: Any) -> Model:
        """A module of the trainer's, as our loop runs it."""
        inner = trainer.accelerator.unwrap_model(module)
        if id(inner) not in self.models:
            self.models[id(inner)] = load(inner, trainer.processing_class)
        return self.models[id(inner)]

    def found(self, rows: Sequence[TrlRow]) -> Rollouts:
        """The rollouts of some rows. Raises UserError for a row that was not drawn here."""
        for places, rollouts in reversed(self.kept):
            if all(row in places for row in rows):
                return rollouts.select([places[row] for row in rows])
        raise UserError(
            f"the trainer scores a row that none of its last {KEPT_BATCHES} batches of rollouts has. Generate by "
            "TrlRollouts alone, and leave the prompts and answers as they are."
        )


class DiffusionGRPOMixin:
    """What GRPOTrainer computes of a diffusion model's answers. It comes first among the bases; the trainer's
    rollout_func must be ``TrlRollouts``."""

    rollout_func: Any
    top_entropy_quantile = 1.0

    def _get_per_token_logps_and_entropies(
        self, model: nn.Module, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int,
        batch_size: int | None = None, compute_entropy: bool = False, **_: Any,
    ) -> tuple[Tensor, Tensor | None, None]:  # fmt: skip
        """Log-probabilities [B, logits_to_keep] of the answers' tokens in the forwards that drew them, 0 where none
        did. In the place of entropies: minus the log-probability of each token, whose mean is the entropy."""
        drawn = self.rollout_func
        if not isinstance(drawn, TrlRollouts):
            raise UserError(f"rollout_func={drawn!r} must be a TrlRollouts for DiffusionGRPOMixin. Pass one.")
        if self.top_entropy_quantile < 1.0:
            raise UserError(f"top_entropy_quantile={self.top_entropy_quantile} needs the entropy of every token, which "
                            "is not computed. Use 1.0.")  # fmt: skip
        start = input_ids.shape[1] - logits_to_keep
        halves = [(ids[:start][seen[:start].bool()], ids[start:][seen[start:].bool()])
                  for ids, seen in zip(input_ids, attention_mask, strict=True)]  # fmt: skip
        rollouts = drawn.found([(tuple(prompt.tolist()), tuple(answer.tolist())) for prompt, answer in halves])
        logps = trajectory_logprobs(
            drawn.of(model, self), rollouts, law=drawn.law, shrink=drawn.shrink, only=rollouts.completion_mask,
            rows=batch_size or 32,
        )[:, :logits_to_keep]  # fmt: skip
        logps = nn.functional.pad(logps, (0, logits_to_keep - logps.shape[1]))
        return logps, -logps.detach() if compute_entropy else None, None


def row_ids(rollouts: Rollouts, number: int) -> TrlRow:
    """Ids of a prompt, and of its answer through its end."""
    prompt = rollouts.prompt_ids[number][rollouts.prompt_mask[number].bool()]
    answer = rollouts.completion_ids[number][rollouts.completion_mask[number].bool()]
    return tuple(prompt.tolist()), tuple(answer.tolist())
