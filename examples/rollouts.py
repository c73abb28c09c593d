"""Rollouts for a trainer: answers with the log-probability of every token, and one step of a policy gradient."""

import torch

from dllm import Decoder, load, part
from dllm.scoring.rl import trajectory_backward, trajectory_logprobs

model = load("mini-llada", trainable=True)
decoder = Decoder(model, part("sampler", "static", steps=4), gen_length=32, batch_size=8, temperature=1.0)
rollouts = decoder.rollouts(['Shuffle the list:\n["Kai", "Ada", "Emma"]'], n=8, seed=0)
rewards = [float(text.startswith('["Kai"')) for text in rollouts.texts]
advantages, tokens = rollouts.advantages(rewards), int(rollouts.completion_mask.sum())


def loss_of(logps: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    return -(advantages[rows] * logps).sum() / tokens


drawn = rollouts.origin == 1
before = trajectory_logprobs(model, rollouts).detach()
print(f"largest |log ratio| before the step: {(before - rollouts.own_logps)[drawn].abs().max():.1e}")
trajectory_backward(model, rollouts, loss_of, only=rollouts.completion_mask)
torch.optim.SGD(model.transformer.parameters(), lr=1e-2).step()  # the decoder sees it at once
after = trajectory_logprobs(model, rollouts).detach()
for text, reward, change in zip(rollouts.texts, rewards, ((after - before) * drawn).sum(1).tolist(), strict=True):
    print(f"reward {reward:.0f}  log-probability {change:+.3f}  {text}")
