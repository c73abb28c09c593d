"""Group-relative policy optimisation (GRPO, arXiv 2402.03300) on rollouts of our decoder, one update a batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from dllm import Decoder
from dllm.scoring.rl import Rollouts, trajectory_backward
from dllm.scoring.rl.rollouts import Origin
from dllm.tasks.mini import tasks
from dllm.tasks.mini.items import Sample
from experiments.distill.train import seeded
from experiments.rl.recipe import Recipe, Where
from experiments.support.course import CLIP, Course, learning, log_of

BETAS = (0.9, 0.99)
LAST = 5  # updates whose mean reward decides whether training ends
SHOWN = {"reward": "mean reward", "spread": "groups with two rewards", "norm": "norm of the gradient"}


class Run(Course):
    """The training of a decoder's model. Every process decodes its share of an update's prompts."""

    def __init__(
        self,
        decoder: Decoder,
        items: Sequence[Sample],
        recipe: Recipe,
        where: Where,
        samples: int,
        seed: int,
        accelerator: Accelerator,
    ) -> None:
        self.decoder, self.items, self.recipe, self.where = decoder, items, recipe, where
        self.samples, self.seed, network = samples, seed, decoder.model.transformer
        weights = list(learning(network).values())
        optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, betas=BETAS, weight_decay=0.0)
        super().__init__(Path(where.out), network, optimizer, accelerator)

    def chosen(self) -> list[Sample]:
        """This process's prompts of the coming update. Each epoch is a new permutation, without what fills no whole
        update."""
        size, of = self.recipe.groups, self.accelerator
        epoch, at = divmod(self.step, len(self.items) // size)
        order = torch.randperm(len(self.items), generator=seeded(self.seed, epoch)).tolist()
        return [self.items[one] for one in order[at * size : (at + 1) * size]][of.process_index :: of.num_processes]

    def advance(self) -> dict[str, float]:
        """One update: decode, judge, learn. Returns its figures."""
        items, of = self.chosen(), self.accelerator
        update = self.step * of.num_processes + of.process_index
        rollouts = self.decoder.rollouts(
            [one.messages for one in items], n=self.samples, seed=self.seed, step=update, draws=self.recipe.draws
        )
        judged = zip((one for one in items for _ in range(self.samples)), rollouts.texts, strict=True)
        rewards = torch.tensor([tasks.score(item, text)["score"] for item, text in judged])
        advantages = rollouts.advantages(rewards, self.recipe.scale)
        tokens = self.learn(rollouts, advantages)
        norm = float(nn.utils.clip_grad_norm_(list(self.learning.values()), CLIP))
        if tokens:
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        spread = (advantages.view(-1, self.samples) != 0).any(1).double().mean()
        means = of.reduce(torch.stack([rewards.double().mean(), spread.cpu()]).to(of.device), "mean").tolist()
        return {"reward": means[0], "spread": means[1], "tokens": tokens, "norm": norm}

    def learn(self, rollouts: Rollouts, advantages: Tensor) -> float:
        """The gradient of - sum A log p / tokens, over the rollouts whose group has two rewards. Returns the tokens."""
        recipe, of = self.recipe, self.accelerator
        chosen, own = rollouts.select(advantages != 0), advantages[advantages != 0]
        mask = chosen.completion_mask.bool()
        scored = mask & ((chosen.origin == Origin.DRAWN) | (chosen.origin == Origin.FORCED))
        if chosen.draw_ids is not None:
            scored = (chosen.draw_ids >= 0) & mask[:, None]
        tokens = float(of.reduce(scored.sum().double(), "sum"))

        def weigh(logps: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
            return -(own[rows].to(logps.dtype) * logps).sum() / tokens

        if len(chosen):
            trajectory_backward(
                self.decoder.model,
                chosen,
                weigh,
                law=recipe.law,
                shrink=recipe.shrink,
                only=mask,
                draws=recipe.draws,
                rows=recipe.rows,
            )
        if of.num_processes > 1:
            for weight in self.learning.values():
                found = torch.zeros_like(weight) if weight.grad is None else weight.grad
                weight.grad = of.reduce(found, "sum")
        return tokens

    @property
    def is_over(self) -> bool:
        """Whether updates are over, or rewards are high enough. Every process reads the same log."""
        last = [line["reward"] for line in log_of(self.folder)[-LAST:]]
        enough = len(last) == LAST and sum(last) / LAST > self.recipe.stop_reward
        return enough or self.step >= self.recipe.updates

    def train(self) -> None:
        """To the end, or to ``stop_at``."""
        with self.bar(self.recipe.updates) as tell:
            while not self.is_over and self.step != (self.where.stop_at or -1):
                figures = self.advance()
                self.note(figures)
                tell({name: figures[name] for name in ("reward", "spread")})
                if self.step % self.where.save_every == 0:
                    self.save()
                self.accelerator.wait_for_everyone()
        self.save()
