"""Rollouts for TRL's GRPOTrainer: a ``rollout_func``, and a mixin that scores what it drew.

TRL computes log-probabilities as a causal model's, one column later, which means nothing here. With the mixin they are
those of the trajectory that our loop drew.

    class Trainer(DiffusionGRPOMixin, GRPOTrainer): ...

    Trainer(model, rewards, args, train_dataset=data, processing_class=tokenizer, rollout_func=TrlRollouts())

How long answers are and how they are drawn is said in GRPOConfig, as for any other model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dllm.bridges.trainers.filters import filters_of
from dllm.common.errors import UserError, in_choices
from dllm.common.noise import seed_of
from dllm.decoder import Decoder
from dllm.models.bundle import Model, load
from dllm.prompts import Prompt
from dllm.scoring.rl.rollouts import Origin, Rollouts
from dllm.scoring.rl.trajectories import trajectory_logprobs

UNSAID = ("gen_length", "chat_template_kwargs")  # where None is the default; elsewhere it is off
KEPT_BATCHES = 4  # batches of rollouts: an evaluation may come between a batch and the last use of it
CALLS_OF_A_STEP = 1 << 16  # of one step, at most, each with seeds of its own
TrlRow = tuple[tuple[int, ...], tuple[int, ...]]  # ids of a prompt, and of its answer


class TrlRollouts:
    """TRL's ``rollout_func`` on our loop.

    Args:
        law, shrink: of the log-probabilities, as ``trajectory_logprobs`` has them.
        seed: of the draws, with the trainer's step (None: GRPOConfig's).
        options: of ``Decoder``: sampler, cache, ... As in TRL, texts get no chat template; messages do. GRPOConfig's
            temperature, top_p, top_k, max_completion_length and chat_template_kwargs need not be said again.

    Raises:
        UserError: a wrong law; when called, parts that do not fit the model, an option that contradicts GRPOConfig, and
            a setting of GRPOConfig that is missing here.
    """

    def __init__(self, *, law: str = "own", shrink: int = 1, seed: int | None = None, **options: Any) -> None:
        in_choices("law", law, ("own", "drawn"))
        self.law, self.shrink, self.seed = law, shrink, seed
        sampling = options.pop("sampling", None)
        self.options = {"batch_size": 32, "chat": False, **({} if sampling is None else vars(sampling)), **options}
        self.decoder: Decoder | None = None  # of the trainer's model, from the first call on
        self.models: dict[int, Model] = {}  # a reference model's weights are shared, too
        self.kept: deque[tuple[dict[TrlRow, int], Rollouts]] = deque(maxlen=KEPT_BATCHES)
        self.called = (-1, 0)  # the last step, and its calls

    def __call__(self, prompts: Sequence[Prompt], trainer: Any) -> dict[str, list[Any]]:
        """One answer for each prompt. TRL repeats a prompt in a row, for its generations, which draw differently."""
        args = getattr(trainer, "args", None)
        if self.decoder is None:
            options = {"temperature": 1.0, **with_trainer_s(self.options, args)}
            self.decoder = Decoder(self.of(trainer.model, trainer), **options)
        step = int(trainer.state.global_step)
        self.called = step, self.called[1] + 1 if self.called[0] == step else 0
        groups = [(prompt, len(list(same))) for prompt, same in groupby(prompts)]
        counts = {count for _, count in groups}
        n = counts.pop() if len(counts) == 1 else 1
        batch = [prompt for prompt, _ in groups] if n > 1 else list(prompts)
        own = getattr(args, "seed", 0) if self.seed is None else self.seed
        rollouts = self.decoder.rollouts(
            batch,
            n=n,
            seed=seed_of(own, trainer.accelerator.process_index),
            step=step * CALLS_OF_A_STEP + self.called[1],
        )
        ids = [rollouts.ids(number) for number in range(len(rollouts))]
        rows = [(tuple(prompt), tuple(answer)) for prompt, answer in ids]
        # The first of equal answers to a prompt stands for all: their rewards are equal, and so ratios stay 1.
        places = {row: number for number, row in reversed([*enumerate(rows)])}
        self.kept.append((places, rollouts))
        logps = self.reported(rollouts).tolist()
        return {
            "prompt_ids": [prompt for prompt, _ in ids],
            "completion_ids": [answer for _, answer in ids],
            "logprobs": [logps[places[row]][: len(row[1])] for row in rows],
            "forwards": rollouts.forwards.tolist(),
        }

    def of(self, module: nn.Module, trainer: Any) -> Model:
        """A module of the trainer's, as our loop runs it."""
        inner = trainer.accelerator.unwrap_model(module)
        if id(inner) not in self.models:
            self.models[id(inner)] = load(inner, trainer.processing_class)
        return self.models[id(inner)]

    def scored(self, model: Model, rollouts: Rollouts, rows: int = 32) -> Tensor:
        """Log-probabilities [R, G] of answers through their ends, ``rows`` canvases at a time."""
        return trajectory_logprobs(
            model, rollouts, law=self.law, shrink=self.shrink, only=rollouts.completion_mask, rows=rows
        )

    def reported(self, rollouts: Rollouts) -> Tensor:
        """What ``scored`` gives at the weights that drew, from the decode's own notes where those are the same."""
        assert self.decoder is not None, "it has decoded them"
        noted = rollouts.own_logps if self.law == "own" else rollouts.drawn_logps
        exact = self.shrink == 1 and self.decoder.parts.cache.traits.exact and not rollouts.limits
        if exact and not bool((rollouts.origin == Origin.CONSTRAINED).any()):
            return noted.nan_to_num(0.0)
        with torch.no_grad():
            return self.scored(self.decoder.model, rollouts)

    def found(self, rows: Sequence[TrlRow], cut: Sequence[bool]) -> Rollouts:
        """The rollouts of some rows. cut: the mask of the row's answer is 0 everywhere, so that pads follow its ids.
        Raises UserError for a row that was not drawn here."""
        for places, rollouts in reversed(self.kept):
            numbers = [number_in_batch(places, row, is_cut) for row, is_cut in zip(rows, cut, strict=True)]
            if None not in numbers:
                return rollouts.select([number for number in numbers if number is not None])
        raise UserError(
            f"the trainer scores a row that none of its last {KEPT_BATCHES} batches of rollouts has. Generate by "
            "TrlRollouts alone, and leave the prompts and answers as they are."
        )


def with_trainer_s(options: Mapping[str, Any], args: Any) -> dict[str, Any]:
    """Options of ``Decoder`` with GRPOConfig's. Raises UserError where they differ, and for what a decoder lacks."""
    for name, off in (("min_p", (None, 0)), ("repetition_penalty", (None, 1)), ("generation_kwargs", (None, {}))):
        if (value := getattr(args, name, None)) not in off:
            raise UserError(
                f"GRPOConfig({name}={value!r}) is of transformers' generation, and a decoder has no such option. Leave "
                "it out; TrlRollouts takes the options of Decoder."
            )
    if args is None:
        return dict(options)
    theirs = {
        "temperature": args.temperature,
        **filters_of(args.top_p, args.top_k),
        "gen_length": args.max_completion_length,
        "chat_template_kwargs": args.chat_template_kwargs,
    }
    out = dict(options)
    for ours, value in theirs.items():
        name = "max_completion_length" if ours == "gen_length" else ours
        if value is None and ours in UNSAID:
            continue
        if out.setdefault(ours, value) != value:
            raise UserError(
                f"GRPOConfig({name}={getattr(args, name)!r}) and TrlRollouts({ours}={out[ours]!r}) differ. Say it in "
                "GRPOConfig alone."
            )
    return out


def number_in_batch(places: Mapping[TrlRow, int], row: TrlRow, cut: bool) -> int | None:
    """The number of a row in its batch; None: it has none. cut: its answer may have pads after it."""
    if not cut:
        return places.get(row)
    prompt, answer = row
    fits = [pair for pair in places if pair[0] == prompt and pair[1] == answer[: len(pair[1])]]
    return places[max(fits, key=lambda pair: len(pair[1]))] if fits else None


class DiffusionGRPOMixin:
    """What GRPOTrainer computes of a diffusion model's answers. It comes first among the bases; the trainer's
    rollout_func must be ``TrlRollouts``."""

    rollout_func: Any
    accelerator: Any
    model_wrapped: nn.Module
    top_entropy_quantile = 1.0
    _entropy_bonus_enabled = False

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """TRL's, after which all processes have the mean of their gradients. DistributedDataParallel averages what its
        own forward leads to, and ours goes around it."""
        loss: Tensor = super().training_step(*args, **kwargs)  # type: ignore[misc]
        if isinstance(self.model_wrapped, DistributedDataParallel) and self.accelerator.sync_gradients:
            for weight in self.model_wrapped.parameters():
                if weight.requires_grad:
                    weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
                    torch.distributed.all_reduce(weight.grad)
                    weight.grad /= torch.distributed.get_world_size()
        return loss

    def _get_per_token_logps_and_entropies(
        self,
        model: nn.Module,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **_: Any,
    ) -> tuple[Tensor, Tensor | None, None]:
        """Log-probabilities [B, logits_to_keep] of the answers' tokens in the forwards that drew them, 0 where none
        did. Instead of entropies: minus the log-probability of each token, whose mean is the entropy."""
        sampler = self.rollout_func
        if not isinstance(sampler, TrlRollouts):
            raise UserError(f"rollout_func={sampler!r} must be a TrlRollouts for DiffusionGRPOMixin. Pass one.")
        if self.top_entropy_quantile < 1.0 or self._entropy_bonus_enabled:
            name = f"top_entropy_quantile={self.top_entropy_quantile}"
            raise UserError(
                f"{'an entropy bonus' if self._entropy_bonus_enabled else name} needs the entropy of every "
                "token, which is not computed. Leave it out."
            )
        if compute_aux_loss:
            raise UserError(
                "GRPOConfig(router_aux_loss_coef=...) balances experts by a loss that is not computed. Use 0."
            )
        start = input_ids.shape[1] - logits_to_keep
        cut = (attention_mask[:, start:] == 0).all(1)  # rows of mask_truncated_completions, whose loss is times 0
        visible = attention_mask.bool()
        visible[:, start:] |= cut[:, None]
        rows = [
            (tuple(ids[:start][real[:start]].tolist()), tuple(ids[start:][real[start:]].tolist()))
            for ids, real in zip(input_ids, visible, strict=True)
        ]
        rollouts = sampler.found(rows, cut.tolist())
        logps = sampler.scored(sampler.of(model, self), rollouts, batch_size or 32)[:, :logits_to_keep]
        logps = nn.functional.pad(logps, (0, logits_to_keep - logps.shape[1]))
        return logps, -logps.detach() if compute_entropy else None, None
