"""verl's worker and dLLM-RL's JSON."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from inspect import iscoroutinefunction, signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from random_models import random_model
from safetensors.torch import load_file
from test_dare import CONFIG, PROMPTS, asked
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from dllm import Decoder, UserError, load
from dllm.parts import Rollouts, VerlRollout, save_model, trace_rows
from tests.models.model_folders import published
from tests.support.tiny import EOS, make_written

PROMPTING = Path(__file__).parents[1] / "prompting_utils.py"  # fetched beside the tests, and not part of them


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model.transformer.head(model.transformer.encode(torch.tensor(PROMPTS[:1])))


@pytest.mark.parametrize("name", ["tiny-llada", "llada_gqa_tied"])
def test_weights_that_verl_sends_are_those_that_decode(name: str, tiny: Path, tmp_path: Path) -> None:
    """One by one in any order, asynchronously; q, k and v are one product here, and packed."""
    for seed, folder in enumerate(("old", "new")):
        save_model(random_model(published(name), seed), tmp_path / folder)
    config = {**CONFIG, "dllm": {"algorithm": "d1"}, "device": "cpu", "dtype": "float32"}
    made = VerlRollout(config, SimpleNamespace(local_path=tmp_path / "old"), None)
    sent, expected = load_file(tmp_path / "new" / "model.safetensors"), load(tmp_path / "new")
    assert not torch.equal(logits(made.model), logits(expected))

    async def stream() -> AsyncIterator[tuple[str, Tensor]]:
        for one in sorted(sent, reverse=True):
            yield one, sent[one]

    async def update() -> None:
        await made.resume(["weights"])
        await made.update_weights(stream(), wire_format="named_tensors")
        await made.release()

    asyncio.run(update())
    assert torch.equal(logits(made.model), logits(expected))
    batch = made.generate_sequences(asked()).batch
    assert {*batch} == {"prompts", "responses", "input_ids", "attention_mask", "position_ids"}
    assert torch.equal(batch["prompts"], asked().batch["input_ids"]), "verl's driver has repeated the rows"
    with pytest.raises(UserError, match="n=3 rollouts of a prompt would be the same at temperature=0"):
        VerlRollout({**config, "temperature": 0.0}, SimpleNamespace(path=tmp_path / "old"))


def test_the_methods_are_those_that_verl_calls() -> None:
    """Of verl/workers/rollout/base.py of verl-project/verl at 1dda039: ``BaseRollout``, whose methods its engine
    workers call. ``generate_sequences`` raises there, and the driver never calls it (trainer/ppo/ray_trainer.py)."""
    contract = {
        "__init__": ["config", "model_config", "device_mesh"],
        "resume": ["tags"],
        "release": [],
        "update_weights": ["weights", "wire_format"],
        "generate_sequences": ["prompts"],
    }
    for name, names in contract.items():
        method = getattr(VerlRollout, name)
        own = [one for one in signature(method).parameters.values() if one.kind is not one.VAR_KEYWORD]
        assert [one.name for one in own][1:] == names
        assert iscoroutinefunction(method) == (name in ("resume", "release", "update_weights"))


def test_what_verl_cannot_send_is_refused(tiny: Path) -> None:
    config = {**CONFIG, "dllm": {"algorithm": "d1"}, "device": "cpu", "dtype": "float32"}
    made = VerlRollout(config, SimpleNamespace(path=tiny))
    with pytest.raises(UserError, match="wire_format='delta_flush' is not read. Send named_tensors."):
        asyncio.run(made.update_weights([], wire_format="delta_flush"))
    with pytest.raises(UserError, match="has no weight model.norm.bias. Send the tensors by the names"):
        asyncio.run(made.update_weights([("model.norm.bias", torch.zeros(1))]))
    with pytest.raises(UserError, match="algorithm=mdpo needs trajectories.*Use DARE, or dllm.algorithm=d1"):
        VerlRollout({**config, "dllm": {"algorithm": "mdpo"}}, SimpleNamespace(path=tiny))


@pytest.fixture(scope="module")
def rolled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Rollouts]:
    model = load(make_written(tmp_path_factory.mktemp("written") / "tiny"), pack=False)
    return model, Decoder(model, "static", gen_length=16, batch_size=4, temperature=1.0).rollouts(PROMPTS, n=2)


def test_rows_of_dllm_rl_give_their_ids_back(rolled: tuple[Any, Rollouts]) -> None:
    model, rollouts = rolled
    found = trace_rows(rollouts, model.tokenizer, [0.0, 1.0, 0.5, 0.0])
    assert found.lost == 0 and [one["reward"] for one in found.rows] == [0.0, 1.0, 0.5, 0.0]
    for number, row in enumerate(found.rows):
        kept = int(rollouts.completion_mask[number].sum())
        assert model.tokenizer.backend.encode(row["response"]).ids == rollouts.completion_ids[number, :kept].tolist()
        assert row["step_map"] == (rollouts.step_map[number] - 1).tolist()


@pytest.mark.parametrize("eos", ["none", "fill_at_once"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_file_of_answers_of_many_lengths_gives_the_canvases_back(tmp_path: Path, eos: str, seed: int) -> None:
    """As train/rl_llada.py and rl_dream.py of Gen-Verse/dLLM-RL at 10b4fd1 lay a file out: prompts padded on the left,
    responses on the right to the longest one, a row's map over that width; before a step whatever comes from it on is
    masked. rl_sdar.py and rl_trado.py cut the map to the width."""
    model = load(make_written(tmp_path / "tiny"), pack=False)
    decoder = Decoder(model, "static", eos=eos, gen_length=16, batch_size=12, temperature=3.0)
    rollouts = decoder.rollouts(PROMPTS, n=6, seed=seed, step=0)
    rows = trace_rows(rollouts, model.tokenizer, [0.0] * 12).rows
    lengths, pad = rollouts.completion_mask.sum(1), model.ids.eos
    width = int(lengths.max())
    assert len(rows) == 12 and int(lengths.min()) < width
    for number, row in enumerate(rows):
        ids = model.tokenizer.backend.encode(row["response"]).ids
        response = torch.tensor(ids + [pad] * (width - len(ids)))
        order = torch.full((width,), -1)
        order[:] = torch.as_tensor(row["step_map"])[:width]
        answer = slice(rollouts.prompt_ids.shape[1], rollouts.prompt_ids.shape[1] + len(ids))
        for forward, canvas in enumerate(rollouts.canvases(number)):
            shown = response.where(order < forward, model.ids.mask)[: len(ids)]
            assert torch.equal(shown, canvas[answer])
        undrawn = rollouts.step_map[number] == 0
        assert bool((torch.tensor(row["step_map"])[undrawn] == int(rollouts.step_map[number].max())).all())


def test_its_own_prompting_takes_the_rows(rolled: tuple[Any, Rollouts], tmp_path: Path) -> None:
    if not PROMPTING.is_file():
        pytest.skip(f"put train/prompting_utils.py of Gen-Verse/dLLM-RL at 10b4fd1 into {PROMPTING}")
    pytest.importorskip("accelerate")
    spec = importlib.util.spec_from_file_location("prompting_utils", PROMPTING)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    words = PreTrainedTokenizerFast.from_pretrained(make_written(tmp_path / "tiny"))
    words.pad_token = words.eos_token = words.convert_ids_to_tokens(EOS)
    model, rollouts = rolled
    rows = trace_rows(rollouts, model.tokenizer, [0.0] * 4).rows
    asked, answers = ([row[name] for row in rows] for name in ("prompt", "response"))
    ids, _, start, dropped = module.UniversalPrompting(words, 100, 100)((asked, answers))
    assert dropped == 0 and ids.shape[1] - start == int(rollouts.completion_mask.sum(1).max())
    for row in rows:
        order = torch.full((ids.shape[1],), -1)
        order[start:] = torch.as_tensor(row["step_map"])[: ids.shape[1] - start]


def test_rows_that_change_when_they_are_tokenised_are_counted(rolled: tuple[Any, Rollouts]) -> None:
    model, rollouts = rolled

    class Merging:
        """Writes w3 as w4."""

        def decode(self, ids: list[int], skip_special: bool = True) -> str:
            return model.tokenizer.decode([4 if one == 3 else one for one in ids], skip_special=skip_special)

        encode = model.tokenizer.encode

    with pytest.raises(UserError, match=r"of 4 rollouts do not survive being written as text.*more than 10%"):
        trace_rows(rollouts, Merging(), [0.0] * 4)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="there are 1 rewards for 4 rollouts"):
        trace_rows(rollouts, model.tokenizer, [0.0])
