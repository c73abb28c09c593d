"""DARE's batches, against the contracts that its own checker holds to."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dllm import Decoder, Model, UserError, load, part
from dllm.parts import DARE_OPTIONS, DareRollout, Rollouts, aligned_length, replay_of
from tests.support.tiny import EOS, MASK, MODELS

# Fetched beside the tests, and not part of them.
CHECKER = Path(__file__).parents[1] / "cj_trajectory.py"
PROMPTS = [[62, 51, 25, 3, 4, 34, 6, 55], [62, 50, 14, 2]]
GRID = 4  # columns of a block of sdar_b4


@pytest.fixture(scope="module")
def checker() -> Any:
    """DARE's own module, which needs torch alone."""
    if not CHECKER.is_file():
        pytest.skip(f"put verl/workers/rollout/cj_trajectory.py of yjyddq/DARE at 83ae8a3 into {CHECKER}")
    spec = importlib.util.spec_from_file_location("cj_trajectory", CHECKER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Batch(dict[str, Tensor]):
    """A TensorDict's stand-in."""

    def __init__(self, content: dict[str, Tensor], batch_size: list[int]) -> None:
        super().__init__(content)
        assert all(len(one) == batch_size[0] for one in content.values())


class Proto(SimpleNamespace):
    """A DataProto's stand-in."""


def asked(validate: bool = False) -> Proto:
    longest = max(map(len, PROMPTS)) + 1
    ids = torch.tensor([[EOS] * (longest - len(one)) + one for one in PROMPTS])
    mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in PROMPTS])
    places = (mask.cumsum(1) - 1).clamp(min=0)
    content = {"input_ids": ids, "attention_mask": mask, "position_ids": places}
    return Proto(batch=Batch(content, [len(ids)]), meta_info={"validate": validate})


CONFIG: dict[str, Any] = {
    "n": 3,
    "response_length": 16,
    "num_diffusion_steps": 8,
    "block_length": 8,
    "temperature": 1.0,
    "cfg_scale": 0.0,
    "val_kwargs": {"num_diffusion_steps": 16, "temperature": 0.0},
}


def worker(name: str = "tiny-llada", **own: Any) -> DareRollout:
    made = DareRollout.__new__(DareRollout)
    made.prepare(model(name), {**CONFIG, **({"block_length": GRID} if name == "sdar_b4" else {}), "dllm": own})
    return made


def model(name: str) -> Model:
    return load(MODELS / name, pack=False)


def rolled(made: DareRollout, **options: Any) -> Rollouts:
    """What its next call draws."""
    return made.decoder(False).rollouts(PROMPTS, n=3, seed=made.seed_of_call({}), step=0, **options)


def test_a_batch_has_the_rows_of_every_prompt_in_order() -> None:
    given, made = asked(), worker(algorithm="d1")
    expected = rolled(made)
    batch = made.generate_sequences(given).batch
    assert {*batch} == {"prompts", "responses", "input_ids", "attention_mask", "position_ids"}
    assert torch.equal(batch["prompts"], given.batch["input_ids"].repeat_interleave(3, 0))
    assert torch.equal(batch["input_ids"], torch.cat([batch["prompts"], batch["responses"]], 1))
    assert batch["position_ids"][:, -16:].tolist() == [
        [len(one) + at for at in range(16)] for one in PROMPTS for _ in range(3)
    ]
    assert bool(batch["attention_mask"][:, 9:].all()) and int(batch["attention_mask"][3].sum()) == 4 + 16
    assert torch.equal(batch["responses"], expected.completion_ids)
    again = made.generate_sequences(given).batch["responses"]
    assert not torch.equal(again, batch["responses"]), "another call is another update"


def test_workers_ranks_and_updates_share_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers of a process, two ranks, two runs after a stop; the same one draws the same."""

    def seeds(number: int, rank: int, **meta: int) -> list[int]:
        monkeypatch.setenv("RANK", str(rank))
        made = worker()
        made.number = number
        found = []
        for made.calls in range(3):
            rollouts = made.decoder(False).rollouts([PROMPTS[0]] * 2, n=2, seed=made.seed_of_call(meta), step=0)
            found += rollouts.seeds.tolist()
        return found

    drawn = [*seeds(0, 0), *seeds(1, 0), *seeds(0, 1), *seeds(1, 1), *seeds(0, 0, global_steps=1)]
    assert len(set(drawn)) == 5 * 3 * 4
    assert seeds(0, 1) == drawn[2 * 12 : 3 * 12]
    assert worker().number != worker().number


def test_filters_of_the_trainer_are_taken() -> None:
    """-1 and 0 switch theirs off, as verl's configs have them; those of val_kwargs are a validation's alone."""
    made = worker()
    made.config = {**CONFIG, "top_p": 0.8, "top_k": 5, "val_kwargs": {"temperature": 0.5, "top_k": -1, "top_p": 1.0}}
    training, validation = (made.decoder(validate).parts.sampling for validate in (False, True))
    assert (training.temperature, training.top_p, training.top_k) == (1.0, 0.8, 5)
    assert (validation.temperature, validation.top_p, validation.top_k) == (0.5, None, None)


def test_a_validation_is_one_greedy_answer_for_each_row() -> None:
    found = worker().generate_sequences(asked(validate=True)).batch
    blocks = part("blocks", "fixed", block_length=8)
    greedy = Decoder(model("tiny-llada"), "static", blocks, eos="none", gen_length=16, batch_size=2)(PROMPTS)
    assert found["responses"].tolist() == [row.canvas for row in greedy]
    assert "reversed_traj_unmask_positions" not in found


@pytest.mark.parametrize("eos", ["none", "fill_at_once"])
def test_slices_give_every_column_that_was_drawn_to_its_forward(eos: str) -> None:
    """Canvases from the slices, as DARE's actor makes them, are those of the decode."""
    made = worker(eos=eos)
    rollouts = rolled(made)
    batch = made.generate_sequences(asked()).batch
    slices, mask = batch["reversed_traj_unmask_positions"], batch["attention_mask"]
    assert slices.dtype == torch.bool and not bool(slices[:, :, :9].any())
    assert torch.equal(slices.sum(1), torch.cat([torch.zeros(6, 9, dtype=torch.long), mask[:, 9:]], 1))
    for row in range(6):
        for forward, canvas in enumerate(rollouts.canvases(row)):
            before = slices[row, :forward].any(0)[9:]
            drawn = mask[row, 9:].bool()
            ours = torch.where(before, batch["responses"][row], MASK)[drawn]
            assert torch.equal(ours, canvas[8:][drawn])


def test_merged_slices_are_one_a_block() -> None:
    made = worker()
    made.config = {**made.config, "step_merge": True}
    slices = made.generate_sequences(asked()).batch["reversed_traj_unmask_positions"]
    assert slices[:, :, 9:].tolist() == [[[True] * 8 + [False] * 8, [False] * 8 + [True] * 8]] * 6


def test_mdpo_has_every_canvas_with_its_prediction_and_probability() -> None:
    made = worker(algorithm="mdpo")
    rollouts = rolled(made, draws=True)
    batch = made.generate_sequences(asked()).batch
    before, after, sure = (batch[f"all_{name}"] for name in ("steps_input_ids", "steps_completion_ids", "confidence"))
    assert before.shape == after.shape == sure.shape == (6, 8, 16)
    assert rollouts.draw_ids is not None
    drawn = rollouts.draw_ids >= 0
    assert torch.equal(after[drawn].int(), rollouts.draw_ids[drawn]) and torch.equal(after[~drawn], before[~drawn])
    last = rollouts.step_map.long()[:, None] - 1
    noted = rollouts.drawn_logps.exp()[:, None]
    left = (rollouts.origin == 1)[:, None]
    assert torch.allclose(sure.gather(1, last)[left], noted[left], atol=1e-5)
    assert bool((sure[before != MASK] == 1).all())


def of_rollouts(rollouts: Rollouts, block: int) -> list[dict[str, Any]]:
    """Replies as sglang's, of all rows."""
    found = []
    for row, (stop, prompt) in enumerate(
        zip(rollouts.completion_mask.sum(1), rollouts.prompt_mask.sum(1), strict=True)
    ):
        ids, steps = rollouts.completion_ids[row].tolist(), rollouts.step_map[row].tolist()
        replay = replay_of(int(prompt), ids, steps, int(stop), block)
        found.append({"token_ids": ids[: int(stop)], "meta_info": replay.meta_info()})
    return found


def test_whole_blocks_pass_the_published_checker(checker: Any) -> None:
    """Both versions of the contract, on a model whose attention goes by blocks."""
    made = worker("sdar_b4", algorithm="cj-grpo-blocks", eos="fill_after_block", seed=3)
    rollouts = rolled(made)
    batch = made.generate_sequences(asked()).batch
    lengths = rollouts.prompt_mask.sum(1).tolist()
    tokens, steps, stops = checker.post_process_dllm_replay_metadata(
        of_rollouts(rollouts, GRID),
        pad_token_id=rollouts.pad_id,
        prompt_lengths=lengths,
        block_size=GRID,
        expected_num_responses=6,
    )
    assert len({*stops.tolist()}) > 1, "some rows should end early"
    width = tokens.shape[1]
    assert torch.equal(batch["cj_replay_responses"][:, :width], tokens)
    assert torch.equal(batch["cj_replay_attention_mask"][:, :width], (steps >= 0).long())
    slices = checker.build_block_parallel_cj_trajectory(
        torch.nn.functional.pad(steps, (0, 16 - width), value=-1),
        batch["cj_replay_attention_mask"],
        9,
        checker.infer_max_local_cj_steps(steps),
    )
    assert torch.equal(batch["reversed_traj_unmask_positions"], slices)
    assert batch["attention_mask"][:, 9:].sum(1).tolist() == stops.tolist()
    assert checker.align_cj_max_new_tokens([3, 4], 14, 4) == [aligned_length(3, 14, 4), aligned_length(4, 14, 4)]


def test_the_example_of_the_contract() -> None:
    """Prompt of 3 in blocks of 4: the first column ends the prompt's block. Forwards 5, 2, 2, 9, 4 of the row."""
    found = replay_of(3, [5, 6, 61, 61, 61, 60], [5, 2, 2, 9, 4, 0], stop=3, block=4)
    assert found.meta_info() == {
        "dllm_replay_token_ids": [5, 6, 61, 61, 61],
        "dllm_replay_step_maps": [1, 1, 1, 3, 2],
        "dllm_stop_length": 3,
        "dllm_replay_contract_version": 1,
    }


def test_a_block_that_is_not_whole_is_refused() -> None:
    with pytest.raises(UserError, match=r"3 tokens of the prompt with 4 of the answer end inside one of 4. Take 1 tok"):
        replay_of(3, [5, 6, 7, 8], [1, 1, 1, 1], stop=4, block=4)
    with pytest.raises(UserError, match="column 4 of the answer was drawn by no forward.*eos=fill_after_block or"):
        replay_of(3, [5, 6, 61, 61, 61], [1, 2, 2, 3, 0], stop=3, block=4)


def test_options_that_do_not_exist_are_refused() -> None:
    for own, message in (
        ({"algoritm": "d1"}, rf"dllm.algoritm does not exist. Choose among {DARE_OPTIONS[0]}"),
        ({"algorithm": "ppo"}, "dllm.algorithm=.?ppo"),
    ):
        with pytest.raises(UserError, match=message):
            worker(**own)
