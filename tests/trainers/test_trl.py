"""TRL: its own trainer where it is installed, and a stand-in that calls what it calls."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast

from dllm import UserError
from dllm.rl import trajectory_logprobs
from dllm.trainers.trl import DiffusionGRPOMixin, TrlRollouts
from tests.rl.test_live_weights import made
from tests.support.tiny import EOS

PROMPTS = ["w3 w4", "w3 w4", "w3 w4", "w7 w8 w9", "w7 w8 w9", "w7 w8 w9"]
LENGTH = 6


class StandIn(DiffusionGRPOMixin):
    """The part of TRL's trainer that rollouts meet."""

    def __init__(self, tokenizer: Any, **options: Any) -> None:
        self.model, self.processing_class = made(), tokenizer
        self.rollout_func = TrlRollouts(sampler="static", eos="none", gen_length=LENGTH, batch_size=6, **options)
        self.state = SimpleNamespace(global_step=0)
        self.accelerator = SimpleNamespace(unwrap_model=lambda module: module, process_index=0)

    def generated(self) -> tuple[dict[str, list[Any]], Tensor, Tensor]:
        """The output of ``rollout_func``, and the ids and the mask that TRL makes of it."""
        output = self.rollout_func(PROMPTS, self)
        prompts, answers = ([torch.tensor(one) for one in output[name]] for name in ("prompt_ids", "completion_ids"))
        left = pad_sequence([one.flip(0) for one in prompts], batch_first=True, padding_value=EOS).flip(1)
        seen = pad_sequence([torch.ones_like(one) for one in prompts], batch_first=True).flip(1)
        right = pad_sequence(answers, batch_first=True, padding_value=EOS)
        after = pad_sequence([torch.ones_like(one) for one in answers], batch_first=True)
        return output, torch.cat([left, right], 1), torch.cat([seen, after], 1)


@pytest.fixture
def trainer(tiny: Path) -> StandIn:
    return StandIn(PreTrainedTokenizerFast.from_pretrained(tiny))


def test_every_prompt_gets_an_answer_of_its_own(trainer: StandIn) -> None:
    output, _, _ = trainer.generated()
    assert {len(one) for one in output.values()} == {6}
    assert output["prompt_ids"] == [[3, 4]] * 3 + [[7, 8, 9]] * 3
    assert len({tuple(one) for one in output["completion_ids"][:3]}) > 1
    assert all(EOS not in one[:-1] for one in output["completion_ids"])
    for answer, logps in zip(output["completion_ids"], output["logprobs"], strict=True):
        assert len(answer) == len(logps) and all(value < 0 for value in logps)
    again = trainer.generated()[0]["completion_ids"]
    trainer.state.global_step = 1
    assert output["completion_ids"] != again != trainer.generated()[0]["completion_ids"]


def test_log_probabilities_are_those_of_the_trajectories(trainer: StandIn) -> None:
    """In any order of the rows, as TRL shuffles them; at unchanged weights those noted; with a gradient."""
    output, ids, mask = trainer.generated()
    keep, order = ids.shape[1] - 3, torch.tensor([4, 0, 5])
    logps, entropies, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model, ids[order], mask[order], keep, compute_entropy=True
    )
    rollouts = trainer.rollout_func.kept[-1][1]
    expected = trajectory_logprobs(trainer.rollout_func.decoder.model, rollouts, only=rollouts.completion_mask)
    assert torch.equal(logps, expected[order, :keep]) and entropies is not None and torch.equal(entropies, -logps)
    for row, number in enumerate(order.tolist()):
        noted = torch.tensor(output["logprobs"][number])
        assert torch.allclose(logps[row, : len(noted)], noted, atol=1e-4)
    before = logps.detach()
    optimiser = torch.optim.SGD(trainer.model.parameters(), lr=1.0)
    logps.sum().backward()
    optimiser.step()
    assert all(one.grad is not None for one in trainer.model.parameters())
    changed = trainer._get_per_token_logps_and_entropies(trainer.model, ids[order], mask[order], keep)[0]
    assert not torch.allclose(changed, before)


def test_a_reference_model_has_weights_of_its_own(trainer: StandIn) -> None:
    _, ids, mask = trainer.generated()
    reference = made().requires_grad_(False)
    with torch.no_grad():
        nn.init.normal_(reference.lm_head.weight)
        ours, theirs = (trainer._get_per_token_logps_and_entropies(model, ids, mask, LENGTH)[0]
                        for model in (trainer.model, reference))  # fmt: skip
    assert not torch.allclose(ours, theirs)


def test_what_cannot_be_scored_says_why(trainer: StandIn) -> None:
    _, ids, mask = trainer.generated()
    for _ in range(3):
        trainer.generated()  # an evaluation between two uses of a batch
    trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, LENGTH)
    trainer.generated()
    with pytest.raises(UserError, match="a row that none of its last 4 batches of rollouts has"):
        trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, LENGTH)
    trainer.top_entropy_quantile = 0.2
    with pytest.raises(UserError, match="top_entropy_quantile=0.2 needs the entropy of every token"):
        trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, LENGTH)
    trainer.rollout_func = print
    with pytest.raises(UserError, match="must be a TrlRollouts for DiffusionGRPOMixin"):
        trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, LENGTH)
    with pytest.raises(UserError, match="law='new' must be one of own, drawn"):
        TrlRollouts(law="new")


def test_a_group_of_equal_answers_is_refused(tiny: Path) -> None:
    greedy = StandIn(PreTrainedTokenizerFast.from_pretrained(tiny), temperature=0.0)
    with pytest.raises(UserError, match="n=3 rollouts of a prompt would be the same"):
        greedy.generated()


def test_three_steps_of_trl_s_own_trainer(tiny: Path, tmp_path: Path) -> None:
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    model, steps = made(), 3
    model.config.pad_token_id = EOS

    class Trainer(DiffusionGRPOMixin, trl.GRPOTrainer):  # type: ignore[misc,name-defined]
        pass

    args = trl.GRPOConfig(
        output_dir=str(tmp_path), max_steps=steps, per_device_train_batch_size=8, num_generations=4, num_iterations=2,
        learning_rate=3e-3, max_completion_length=LENGTH, report_to=[], logging_steps=1, use_cpu=True, bf16=False,
        save_strategy="no",
    )  # fmt: skip
    trainer = Trainer(
        model=model, args=args, processing_class=PreTrainedTokenizerFast.from_pretrained(tiny),
        reward_funcs=lambda completion_ids, **_: [float(sum(one) % 2) for one in completion_ids],
        train_dataset=datasets.Dataset.from_dict({"prompt": [f"w{at} w{at + 1}" for at in range(8)]}),
        rollout_func=TrlRollouts(sampler="static", eos="none", gen_length=LENGTH, batch_size=8),
    )  # fmt: skip
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    trainer.train()
    assert not any(torch.equal(before[name], one) for name, one in model.named_parameters())
    clipped = [line["clip_ratio/region_mean"] for line in trainer.state.log_history if "reward" in line]
    assert clipped[0] == 0, "at unchanged weights every ratio is 1"
