"""Rollouts: their fields against a plain decode of the same rows, what they refuse, and what they say."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import DATA, PROMPTS
from torch import Tensor

from dllm import Decoder, load, part
from dllm.parts import Model, Origin, Request, Rollouts, UserError, trajectory_logprobs


@cache
def tiny(name: str = "tiny-llada") -> Model:
    return load(DATA / "models" / name, dtype="float64", trainable=True)


def decoder(model: str = "tiny-llada", **options: Any) -> Decoder:
    return Decoder(tiny(model), **{"gen_length": 16, "batch_size": 3, "temperature": 1.0, **options})


@cache
def rolled() -> Rollouts:
    """Two prompts of different lengths, two rollouts of each."""
    return decoder().rollouts(PROMPTS[:2], n=2, seed=5)


def test_rows_are_those_of_a_call_prompt_by_prompt() -> None:
    found, called = rolled(), decoder()(PROMPTS[:2], samples=2, seed=5, trace=True)
    assert found.completion_ids.tolist() == [one.canvas for one in called]
    assert found.step_map.tolist() == [one.turns for one in called]
    assert found.texts == [one.text for one in called] and found.finish == [one.stop_reason for one in called]
    assert found.forwards.tolist() == [one.nfe for one in called] and found.seeds.tolist() == [5, 6, 7, 8]
    assert found.group.tolist() == [0, 0, 1, 1]
    for row, one in enumerate(called):
        for values, said in ((found.own_logps, one.commit_logprobs), (found.drawn_logps, one.drawn_logprobs)):
            expected = torch.tensor([torch.nan if value is None else value for value in said]).double()
            torch.testing.assert_close(values[row], expected, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_prompts_are_padded_on_the_left_and_tensors_may_be_saved_for_backward() -> None:
    found = rolled()
    short = len(PROMPTS[0]) - len(PROMPTS[1])
    assert found.prompt_mask[2].tolist() == [0] * short + [1] * len(PROMPTS[1])
    assert found.prompt_ids[2, short:].tolist() == PROMPTS[1] and found.prompt_ids[0].tolist() == PROMPTS[0]
    assert not any(tensor.is_inference() for tensor in found.tensors().values())


def test_a_row_alone_has_the_same_draws() -> None:
    found = rolled()
    alone = decoder(batch_size=1)(PROMPTS[1], seed=int(found.seeds[3]))[0]
    assert alone.canvas == found.completion_ids[3].tolist()


def test_an_update_has_seeds_of_its_own() -> None:
    one, same, other = (decoder(gen_length=4).rollouts(PROMPTS[:2], n=2, step=step).seeds for step in (3, 3, 4))
    assert torch.equal(one, same) and not set(one.tolist()) & set(other.tolist()) and int(one.min()) >= 0


def test_canvases_are_those_that_the_forwards_saw() -> None:
    seen: list[Tensor] = []
    found = decoder(batch_size=1).rollouts(PROMPTS[1], seed=7, observe=lambda turn: seen.append(turn.canvas.tokens))
    assert found.canvases(0).tolist() == torch.cat(seen).tolist()
    start = len(PROMPTS[1])
    assert found.at(3).tolist() == seen[2][:, start:].tolist()


def test_selected_and_stored_rollouts_are_the_same(tmp_path: Path) -> None:
    found = rolled()
    found.save(tmp_path / "rollouts.safetensors")
    back = Rollouts.load(tmp_path / "rollouts.safetensors")
    for name, tensor in found.tensors().items():
        assert torch.equal(tensor.nan_to_num(7), getattr(back, name).nan_to_num(7)), name
    others = [entry.name for entry in fields(found) if entry.name not in found.tensors()]
    assert {name: getattr(back, name) for name in others} == {name: getattr(found, name) for name in others}
    picked = back.select([3, 0])
    assert picked.texts == [found.texts[3], found.texts[0]] and picked.row(0).canvas == found.completion_ids[3].tolist()
    assert back.select(found.group == 1).seeds.tolist() == [7, 8] and len(back.to("cpu")) == 4


def test_a_file_that_holds_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("{}")
    with pytest.raises(UserError, match="holds no rollouts"):
        Rollouts.load(tmp_path / "other")


def test_advantages_are_relative_to_the_group() -> None:
    found = rolled().advantages([1, 0, 2, 2])
    torch.testing.assert_close(found, torch.tensor([0.5, -0.5, 0, 0]).double() / (0.5**0.5 + 1e-4))
    assert rolled().advantages([1, 0, 2, 2], scale=False).tolist() == [0.5, -0.5, 0, 0]


def test_a_row_without_a_reward_has_no_advantage_and_counts_in_no_mean() -> None:
    found = decoder(temperature=1.0).rollouts(PROMPTS[1], n=3)
    assert found.advantages([4, None, 1], scale=False).tolist() == [1.5, 0, -1.5]
    torch.testing.assert_close(
        found.advantages([4, None, 1]), torch.tensor([1.5, 0, -1.5]).double() / (4.5**0.5 + 1e-4)
    )
    assert found.advantages([None, 3, None]).tolist() == found.advantages([None] * 3).tolist() == [0, 0, 0]
    for bad in (float("nan"), float("inf")):
        for rewards in ([1.0, bad, 0.0], torch.tensor([1.0, bad, 0.0])):
            with pytest.raises(UserError, match=rf"rewards\[1\]={bad} must be a finite number, or None"):
                found.advantages(rewards)


def test_origins_tell_draws_from_fills() -> None:
    blocks = part("blocks", "fixed", block_length=4)
    found = decoder(eos="fill_after_block", blocks=blocks, gen_length=24, temperature=0.2).rollouts(PROMPTS[1], n=2)
    filled = found.origin == Origin.FILLED
    assert bool(filled.any()) and bool((found.completion_ids[filled] == tiny().ids.eos).all())
    assert bool(found.own_logps[filled].isnan().all()) and any("filled" in note for note in found.notes)
    forced = decoder(sampler="confidence", temperature=1.5, gen_length=6).rollouts(PROMPTS[1]).origin == Origin.FORCED
    assert bool(forced.any())


@pytest.mark.parametrize("law", ["own", "drawn"])
def test_at_unchanged_weights_the_noted_value_is_found_again(law: str) -> None:
    found = decoder(temperature=0.8, top_k=6, eos="truncate_at_eos").rollouts(PROMPTS[:2], n=2)
    again = trajectory_logprobs(tiny(), found, law=law)
    torch.testing.assert_close(again, getattr(found, f"{law}_logps").nan_to_num(0), rtol=0, atol=1e-12)


def test_the_first_ratio_is_one_and_a_step_of_an_optimiser_moves_it() -> None:
    model = load(DATA / "models" / "tiny-llada", trainable=True)
    drawn = Decoder(model, gen_length=6, batch_size=4, temperature=1.0)
    old = drawn.rollouts(PROMPTS[1], n=4, seed=3)
    scored = ~old.own_logps.isnan()
    new = trajectory_logprobs(model, old)
    with torch.no_grad():
        before = trajectory_logprobs(model, old)
        assert float(((new - before).exp() - 1).abs().max()) < 1e-6
        assert float(((new - old.own_logps)[scored].exp() - 1).abs().max()) < 1e-5
    optimiser = torch.optim.SGD(model.transformer.parameters(), 0.01)
    (-(new * old.advantages([1, 0, 0, 1])[:, None]).sum()).backward()
    optimiser.step()
    moved = trajectory_logprobs(model, old)
    assert float((moved - old.own_logps)[scored].detach().abs().max()) > 1e-4
    moved.sum().backward()  # a second pass goes through the new weights
    again = drawn.rollouts(PROMPTS[1], n=4, seed=3)
    with torch.no_grad():
        found = trajectory_logprobs(model, again)
    torch.testing.assert_close(found, again.own_logps.nan_to_num(0), rtol=0, atol=1e-5)


def test_blocks_are_numbered_by_column_whether_they_were_current_or_filled() -> None:
    blocks = part("blocks", "fixed", block_length=4)
    found = decoder(blocks=blocks, gen_length=24, temperature=0.2).rollouts(PROMPTS[1], n=2)
    assert bool((found.origin == Origin.FILLED).any())
    assert found.block.tolist() == [[at // 4 for at in range(24)]] * 2
    assert not bool(decoder(blocks="whole", gen_length=4).rollouts(PROMPTS[1]).block.any())


def test_rows_that_ask_for_less_end_in_pads_and_have_their_own_temperature() -> None:
    rows = [Request.answer(PROMPTS[0], 5, 60), replace(Request.answer(PROMPTS[1], 8, 60), temperature=0.4)]
    found = decoder(eos="none").rollouts(rows)
    assert found.completion_ids.shape == (2, 8) and found.asked.sum(1).tolist() == [5, 8]
    assert found.completion_ids[0, 5:].tolist() == [found.pad_id] * 3 and not bool(found.completion_mask[0, 5:].any())
    assert found.temperature.tolist() == [1.0, 0.4]
    again = trajectory_logprobs(tiny(), found, law="drawn")
    torch.testing.assert_close(again, found.drawn_logps.nan_to_num(0), rtol=0, atol=1e-12)


def test_equal_canvases_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found, rows = decoder(gen_length=4, sampler=part("sampler", "static", per_step=2)).rollouts(PROMPTS[1], n=5), []
    encode = type(tiny().transformer).encode

    def counted(self: Any, tokens: Tensor, *given: Any, **more: Any) -> Tensor:
        rows.append(len(tokens))
        return encode(self, tokens, *given, **more)

    monkeypatch.setattr(type(tiny().transformer), "encode", counted)
    with torch.no_grad():
        trajectory_logprobs(tiny(), found)
    second = {tuple(one) for one in found.at(2).tolist()}
    assert sum(rows) == 1 + len(second) < 10  # the five first canvases are one


def test_rollouts_are_printed_in_a_line(tiny: Path) -> None:
    decoder = Decoder(load(tiny), "static", gen_length=8, batch_size=4, temperature=0.7)
    rollouts = decoder.rollouts([[3, 4], [5, 6]], n=2, step=0)
    assert repr(rollouts).startswith("Rollouts(4 rows of 2 prompts, 8 columns, temperature 0.7, finish: ")
    assert len(repr(rollouts)) < 120 and rollouts.sampling.temperature == 0.7
    assert repr(rollouts.select([0])).startswith("Rollouts(1 rows of 1 prompts")
