"""TRL: its own trainer where it is installed, and a stand-in that calls what it calls."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast

from dllm import UserError, part
from dllm.parts import DiffusionGRPOMixin, Sampling, TrlRollouts, trajectory_logprobs
from tests.rl.test_live_weights import made
from tests.support.tiny import EOS

ROOT = Path(__file__).parents[2]
PROMPTS = ["w3 w4", "w3 w4", "w3 w4", "w7 w8 w9", "w7 w8 w9", "w7 w8 w9"]
LENGTH = 6
# Of GRPOConfig, with its defaults but the length: what a stand-in has that is made with other ones says the same.
SETTINGS: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": None,
    "repetition_penalty": 1.0,
    "generation_kwargs": None,
    "max_completion_length": LENGTH,
    "chat_template_kwargs": None,
    "seed": 42,
}


class StandIn(DiffusionGRPOMixin):
    """The part of TRL's trainer that rollouts meet."""

    def __init__(self, tokenizer: Any, said: dict[str, Any] | None = None, **options: Any) -> None:
        """said: in GRPOConfig (None: all options that it has)."""
        said = {name: one for name, one in options.items() if name in SETTINGS} if said is None else said
        self.model, self.processing_class, self.prompts = made(), tokenizer, PROMPTS
        self.rollout_func = TrlRollouts(**{"sampler": "static", "eos": "none", "batch_size": 6, **options})
        self.args = SimpleNamespace(**{**SETTINGS, **said})
        self.state = SimpleNamespace(global_step=0)
        self.accelerator = SimpleNamespace(unwrap_model=lambda module: module, process_index=0)

    def generated(self) -> tuple[dict[str, list[Any]], Tensor, Tensor]:
        """The output of ``rollout_func``, and the ids and the mask that TRL makes of it."""
        output = self.rollout_func(self.prompts, self)
        prompts, answers = ([torch.tensor(one) for one in output[name]] for name in ("prompt_ids", "completion_ids"))
        left = pad_sequence([one.flip(0) for one in prompts], batch_first=True, padding_value=EOS).flip(1)
        seen = pad_sequence([torch.ones_like(one) for one in prompts], batch_first=True).flip(1)
        right = pad_sequence(answers, batch_first=True, padding_value=EOS)
        after = pad_sequence([torch.ones_like(one) for one in answers], batch_first=True)
        return output, torch.cat([left, right], 1), torch.cat([seen, after], 1)


@pytest.fixture
def words(tiny: Path) -> Any:
    return PreTrainedTokenizerFast.from_pretrained(tiny)


@pytest.fixture
def trainer(words: Any) -> StandIn:
    return StandIn(words)


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


@pytest.mark.parametrize("options", [
    *({"law": law, "temperature": heat, "top_p": p, "top_k": k}
      for law in ("own", "drawn") for heat in (1.0, 0.5) for p in (1.0, 0.7) for k in (0, 5)),
    {"shrink": 2}, {"cache": "dual"}, {"eos": "fill_at_once"},
], ids=str)  # fmt: skip
def test_what_is_reported_is_what_is_scored(words: Any, options: dict[str, Any]) -> None:
    """Under every setting, at unchanged weights, equal answers included: 0 nats in every column."""
    said = {name: one for name, one in options.items() if name in SETTINGS}
    trainer = StandIn(words, said, **{name: one for name, one in options.items() if name not in SETTINGS})
    output, ids, mask = trainer.generated()
    with torch.no_grad():
        scored = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, ids.shape[1] - 3)[0]
    assert bool((scored < 0).any())
    for noted, row in zip(output["logprobs"], scored, strict=True):
        assert torch.allclose(torch.tensor(noted), row[: len(noted)], atol=1e-5)


def test_equal_answers_are_reported_as_one(words: Any) -> None:
    """Of two trajectories with the same ids the first is scored, so it is the one that is reported."""
    anyhow = part("sampler", "static", score="random")
    trainer = StandIn(words, {"top_k": 2, "max_completion_length": 3}, sampler=anyhow)
    trainer.prompts = ["w3 w4"] * 24
    output, ids, mask = trainer.generated()
    trajectories = trainer.rollout_func.kept[-1][1].own_logps.tolist()
    keep = 3
    assert len({*map(tuple, output["completion_ids"])}) < len({*map(tuple, trajectories)})
    scored = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, keep)[0].detach()
    for noted, row in zip(output["logprobs"], scored, strict=True):
        assert torch.allclose(torch.tensor(noted), row[: len(noted)], atol=1e-5)


def test_generation_is_as_the_trainer_s_config_says(words: Any) -> None:
    said = {"temperature": 0.3, "top_p": 0.9, "top_k": 7, "max_completion_length": 4, "seed": 5}
    trainer = StandIn(words, said)
    trainer.generated()
    rollouts = trainer.rollout_func.kept[-1][1]
    assert rollouts.completion_ids.shape[1] == 4 and rollouts.temperature.unique().tolist() == [0.3]
    assert (rollouts.sampling.top_p, rollouts.sampling.top_k) == (0.9, 7)
    other, own = StandIn(words, {**said, "seed": 6}), StandIn(words, said, seed=6)
    assert trainer.generated()[0] != other.generated()[0] == own.generated()[0]


@pytest.mark.parametrize(
    ("said", "options", "message"),
    [
        ({}, {"temperature": 0.5}, r"GRPOConfig\(temperature=1.0\) and TrlRollouts\(temperature=0.5\) differ. Say it"),
        ({"top_k": 3}, {"top_k": 4}, r"GRPOConfig\(top_k=3\) and TrlRollouts\(top_k=4\) differ"),
        ({}, {"sampling": Sampling(top_p=0.5, temperature=1.0)}, r"\(top_p=1.0\) and TrlRollouts\(top_p=0.5\) differ"),
        ({}, {"gen_length": 9}, r"GRPOConfig\(max_completion_length=6\) and TrlRollouts\(gen_length=9\) differ"),
        ({"min_p": 0.1}, {}, r"GRPOConfig\(min_p=0.1\) is of transformers' generation.*Leave it out"),
        ({"repetition_penalty": 1.1}, {}, "repetition_penalty=1.1"),
        ({"generation_kwargs": {"top_k": 3}}, {}, "generation_kwargs={'top_k': 3}"),
    ],
)
def test_what_contradicts_the_trainer_is_refused(
    words: Any, said: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        StandIn(words, said, **options).generated()


@pytest.mark.parametrize("multiple", [1, 8])
def test_rows_that_trl_masks_whole_are_scored(trainer: StandIn, multiple: int) -> None:
    """mask_truncated_completions=True: all rows of a microbatch, with pads behind them, as they would be without."""
    output, ids, mask = trainer.generated()
    ids, mask = (
        nn.functional.pad(one, (0, -(ids.shape[1] - 3) % multiple), value=value)
        for one, value in ((ids, EOS), (mask, 0))
    )
    cut = torch.tensor([one[-1] != EOS for one in output["completion_ids"]])
    masked, keep = mask.clone(), ids.shape[1] - 3
    masked[cut, 3:] = 0
    assert bool(cut.any())
    for rows in (slice(None), cut):
        found = trainer._get_per_token_logps_and_entropies(trainer.model, ids[rows], masked[rows], keep)[0]
        plain = trainer._get_per_token_logps_and_entropies(trainer.model, ids[rows], mask[rows], keep)[0]
        assert found.requires_grad and torch.equal(found, plain)


def test_a_reference_model_has_weights_of_its_own(trainer: StandIn) -> None:
    _, ids, mask = trainer.generated()
    reference = made().requires_grad_(False)
    with torch.no_grad():
        nn.init.normal_(reference.lm_head.weight)
        ours, theirs = (
            trainer._get_per_token_logps_and_entropies(model, ids, mask, LENGTH)[0]
            for model in (trainer.model, reference)
        )
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


def own_trainer(folder: Path, words: Any, options: dict[str, Any], **settings: Any) -> Any:
    """TRL's own, with a first step that notes what it was given and what is scored."""
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    model = made()
    model.config.pad_token_id = EOS

    class Trainer(DiffusionGRPOMixin, trl.GRPOTrainer):  # type: ignore[misc,name-defined]
        apart = -1.0  # nats between the reported and the scored log-probability of a token, at most

        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
            if self.apart < 0:
                ids, mask = (
                    torch.cat([inputs[f"prompt_{one}"], inputs[f"completion_{one}"]], 1) for one in ("ids", "mask")
                )
                keep = inputs["completion_ids"].shape[1]
                with torch.no_grad():
                    scored = self._get_per_token_logps_and_entropies(model, ids, mask, keep)[0]
                off = (inputs["sampling_per_token_logps"] - scored) * inputs["completion_mask"]
                self.apart = float(off.abs().max())
            return super()._compute_loss(model, inputs)

    args = trl.GRPOConfig(**{
        "output_dir": str(folder), "max_steps": 1, "per_device_train_batch_size": 8, "num_generations": 4,
        "num_iterations": 2, "learning_rate": 3e-3, "max_completion_length": LENGTH, "report_to": [],
        "logging_steps": 1, "use_cpu": True, "bf16": False, "save_strategy": "no", "disable_tqdm": True,
        **{name: one for name, one in settings.items() if name != "peft_config"},
    })  # fmt: skip
    trainer = Trainer(
        model=model,
        args=args,
        processing_class=words,
        peft_config=settings.get("peft_config"),
        reward_funcs=lambda completion_ids, **_: [float(sum(one) % 2) for one in completion_ids],
        train_dataset=datasets.Dataset.from_dict({"prompt": [f"w{at} w{at + 1}" for at in range(8)]}),
        rollout_func=TrlRollouts(sampler="static", eos="none", batch_size=8, **options),
    )
    trainer.before = {name: one.detach().clone() for name, one in trainer.model.named_parameters()}
    trainer.train()
    return trainer


def test_three_steps_of_trl_s_own_trainer(words: Any, tmp_path: Path) -> None:
    trainer = own_trainer(tmp_path, words, {}, max_steps=3)
    assert not any(torch.equal(trainer.before[name], one) for name, one in trainer.model.named_parameters())
    clipped = [line["clip_ratio/region_mean"] for line in trainer.state.log_history if "reward" in line]
    assert clipped[0] == 0 and trainer.apart < 1e-5, "at unchanged weights every ratio is 1"


def test_trl_s_own_config_is_the_stand_in_s(words: Any, tmp_path: Path) -> None:
    """So that the stand-in stays true, and its settings are those that TRL has."""
    trl = pytest.importorskip("trl")
    usual = trl.GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    assert {name: getattr(usual, name) for name in SETTINGS} == {**SETTINGS, "max_completion_length": 512}
    options: dict[str, Any] = {"law": "drawn"}
    trainer = own_trainer(tmp_path, words, options, temperature=0.5, top_p=0.9, top_k=7, max_completion_length=4)
    rollouts = trainer.rollout_func.kept[0][1]
    assert rollouts.completion_ids.shape[1] == 4 and rollouts.temperature.unique().tolist() == [0.5]
    assert (rollouts.sampling.top_p, rollouts.sampling.top_k, trainer.apart < 1e-5) == (0.9, 7, True)


def test_trl_s_own_trainer_masks_what_was_cut(words: Any, tmp_path: Path) -> None:
    """Here all answers: a microbatch of zeros, whose weights stay."""
    trainer = own_trainer(tmp_path, words, {}, mask_truncated_completions=True)
    assert trainer.state.log_history[0]["completions/clipped_ratio"] == 1
    assert trainer.state.log_history[0]["grad_norm"] == 0


RANK = """
import sys
from pathlib import Path
import torch
from transformers import PreTrainedTokenizerFast
from test_trl import own_trainer
words = PreTrainedTokenizerFast.from_pretrained(sys.argv[1])
trainer = own_trainer(Path(sys.argv[2]), words, {}, max_steps=2, learning_rate=1e-2, ddp_backend="gloo")
flat = torch.cat([one.detach().flatten() for one in trainer.accelerator.unwrap_model(trainer.model).parameters()])
answers = trainer.rollout_func.kept[0][1].completion_ids
torch.save([flat, answers], f"{sys.argv[2]}/{trainer.accelerator.process_index}.pt")
torch.distributed.destroy_process_group()
"""


def test_processes_draw_apart_and_learn_the_same(tiny: Path, tmp_path: Path) -> None:
    """Two, of TRL's own trainer: DistributedDataParallel alone would leave each with its own gradient."""
    pytest.importorskip("trl")
    (tmp_path / "rank.py").write_text(RANK)
    how = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    here = os.pathsep.join(map(str, (ROOT, ROOT / "tests/support", ROOT / "tests/trainers")))
    subprocess.run(
        [sys.executable, *how, "rank.py", str(tiny), str(tmp_path)],
        cwd=tmp_path,
        check=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": here, "OMP_NUM_THREADS": "1"},
        capture_output=True,
    )
    (one, drawn), (other, elsewhere) = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert torch.equal(one, other) and not torch.equal(drawn, elsewhere)


def test_the_example_of_the_page_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl")
    (block,) = re.findall(r"^```py\n(.*?)```", (ROOT / "docs/rollouts.md").read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(block, "rollouts.md", "exec"), names)
    assert names["trainer"].state.global_step == 2


def test_trl_s_own_trainer_with_an_adapter(words: Any, tmp_path: Path) -> None:
    """The reference is the model with its adapter switched off: no divergence at first, some later."""
    peft = pytest.importorskip("peft")
    adapter = peft.LoraConfig(r=4, lora_dropout=0.3, target_modules=["q_proj", "v_proj"])
    trainer = own_trainer(
        tmp_path, words, {}, max_steps=2, beta=0.1, peft_config=adapter, num_iterations=1, learning_rate=0.1
    )
    assert trainer.apart < 1e-5
    moved = {name for name, one in trainer.model.named_parameters() if not torch.equal(trainer.before[name], one)}
    assert moved and all("lora_" in name for name in moved)
    kl = [line["kl"] for line in trainer.state.log_history if "kl" in line]
    assert kl[0] == 0 < kl[1]
