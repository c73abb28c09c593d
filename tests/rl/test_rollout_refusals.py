"""What gives no rollouts, or none that can be scored again, and what rollouts say of themselves."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from harness import DATA, PROMPTS

from dllm import Decoder, load, part
from dllm.parts import Model, Origin, Regex, Request, Rollouts, UserError, trajectory_backward, trajectory_logprobs

PROMPT = PROMPTS[1]


@cache
def tiny(name: str = "tiny-llada") -> Model:
    return load(DATA / "models" / name, dtype="float64")


def decoder(model: str = "tiny-llada", **options: Any) -> Decoder:
    return Decoder(tiny(model), **{"gen_length": 12, "batch_size": 3, "temperature": 1.0, **options})


def scored(rollouts: Rollouts, **how: Any) -> torch.Tensor:
    with torch.no_grad():
        return trajectory_logprobs(tiny(), rollouts, **how)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"sampler": "joint_threshold", "temperature": 0.0},
            "sampler=joint_threshold replaces tokens that it has decided",
        ),
        ({"sampler": "remix", "temperature": 0.0}, "sampler=remix shows the model mixtures of tokens and the mask"),
        ({"sampler": "ete", "temperature": 0.0}, "sampler=ete tries several canvases"),
        ({"sampler": "freedave", "temperature": 0.0}, "sampler=freedave tries several canvases"),
        ({"sampler": "flash_verify", "cache": "flash_verify", "temperature": 0.0}, "lets a later forward judge"),
        (
            {"sampler": part("sampler", "oracle", reference=[[1] * 12])},
            "sampler=oracle writes tokens that no forward drew",
        ),
        (
            {"model": "dg_dev", "sampler": "renoise", "temperature": 0.0, "gen_length": 8},
            "sampler=renoise draws every undecided",
        ),
    ],
    ids=lambda one: one.get("sampler") if isinstance(one, dict) and isinstance(one.get("sampler"), str) else None,
)
def test_rules_whose_tokens_no_single_forward_draws_are_refused(options: dict[str, Any], said: str) -> None:
    chosen = {key: value for key, value in options.items() if key != "model"}
    if options.get("model") == "dg_dev":
        chosen["blocks"] = part("blocks", "fixed", block_length=tiny("dg_dev").config.attention.block)
    with pytest.raises(UserError, match=said) as refused:
        decoder(options.get("model", "tiny-llada"), **chosen).rollouts(
            [[1, 2, 3]], observe=lambda _: pytest.fail("decoded")
        )
    assert "Use " in str(refused.value)


def test_groups_of_copies_are_refused() -> None:
    said = "n=8 rollouts of a prompt would be the same at temperature=0.0. Set it above 0."
    with pytest.raises(UserError, match=said):
        decoder(temperature=0.0).rollouts(PROMPT, n=8)
    hot = Request.answer(PROMPT, 4, 60)
    with pytest.raises(UserError, match="n=2 rollouts"):
        decoder().rollouts([hot, Request(hot.tokens, hot.masked, start=hot.start, temperature=0.0)], n=2)
    one = decoder(temperature=0.0, gen_length=4).rollouts(PROMPT)
    assert bool((one.drawn_logps == 0).all()) and bool((one.own_logps <= 0).all())
    drawn = decoder(temperature=0.0, sampler=part("sampler", "static", score="random"), gen_length=5).rollouts(
        PROMPT, n=2
    )
    assert len(drawn) == 2 and drawn.step_map[0].tolist() != drawn.step_map[1].tolist()


def test_infillings_and_rows_without_an_answer_are_refused() -> None:
    with pytest.raises(UserError, match="rollout 0 is an infilling"):
        decoder().rollouts(Request([1, 60, 3, 60], [False, True, False, True]))
    for masked in ([False, False, True, False], [False, True, True, True]):  # a given column behind, a mask before
        with pytest.raises(UserError, match="rollout 0 is an infilling"):
            decoder().rollouts(Request([1, 60, 60, 60], masked, start=2))
    with pytest.raises(UserError, match="rollout 0 is an infilling"):
        decoder().rollouts(Request([1, 2, 60, 60], [False, False, True, True], start=2, infill=True))
    with pytest.raises(UserError, match="rollout 0 has no answer columns. Set gen_length"):
        decoder().rollouts(Request([1, 2], [False, False]))
    with pytest.raises(UserError, match="n=0 must be at least 1"):
        decoder().rollouts(PROMPT, n=0)


def test_names_and_numbers_that_mean_nothing_are_refused() -> None:
    found = decoder().rollouts(PROMPT)
    with pytest.raises(UserError, match="law='drwan' must be one of own, drawn. Did you mean 'drawn'"):
        scored(found, law="drwan")
    with pytest.raises(UserError, match="shrink=0 must be at least 1"):
        scored(found, shrink=0)
    with pytest.raises(UserError, match="shrink_in='blocks' must be one of answer, block"):
        scored(found, shrink_in="blocks")
    with pytest.raises(UserError, match=r"only has the shape \[12\], and the answers \[1, 12\]"):
        scored(found, only=torch.ones(12))
    with pytest.raises(UserError, match=r"Decode with rollouts\(..., draws=True\)"):
        scored(found, draws=True)
    with pytest.raises(UserError, match="rewards have the shape"):
        found.advantages([1.0, 2.0])


def test_weights_that_cannot_learn_are_refused_where_gradients_are_on() -> None:
    found = decoder().rollouts(PROMPT)
    with pytest.raises(UserError, match="none of its weights learns"):
        trajectory_logprobs(tiny(), found)
    with pytest.raises(UserError, match="none of its weights learns"):
        trajectory_backward(tiny(), found, lambda values, row, column: values.sum())


BACK = [{"sampler": "rcr"}, {"blocks": part("blocks", "tccf", block_length=6, marker=54)}]


@pytest.mark.parametrize("options", BACK, ids=["rule", "blocks"])
def test_commits_that_are_taken_back_are_scored_draw_by_draw(options: dict[str, Any]) -> None:
    found = decoder(**options, eos="none").rollouts(PROMPTS[:2], draws=True, seed=1)
    assert any("commits were taken back" in note for note in found.notes)
    kept = decoder(eos="none").rollouts(PROMPTS[:2], seed=1).notes
    assert not any("taken back" in note for note in kept), "confidence takes nothing back"
    with pytest.raises(UserError, match="takes commits back, so step_map does not tell the canvases"):
        scored(found)
    each = scored(found, law="drawn", draws=True)
    drawn = (found.origin == Origin.DRAWN) | (found.origin == Origin.FORCED)
    last = each.gather(1, (found.step_map.long() - 1).clamp(min=0)[:, None])[:, 0]
    torch.testing.assert_close(last[drawn], found.drawn_logps[drawn], rtol=0, atol=1e-12)
    with pytest.raises(UserError, match="takes commits back"):
        decoder(**options).rollouts(PROMPT).canvases(0)


def test_reweighed_tokens_have_the_models_own_log_probability_alone() -> None:
    found = decoder(sampler="credit", temperature=0.0).rollouts(PROMPTS)
    known = found.origin != Origin.GIVEN
    assert bool(found.drawn_logps.isnan().all()) and not bool(found.own_logps[known].isnan().any())
    torch.testing.assert_close(scored(found)[known], found.own_logps[known])
    with pytest.raises(UserError, match="sampler=credit writes the likeliest token of logits that it has changed"):
        scored(found, law="drawn")


def test_a_cache_is_named_and_rescoring_takes_its_place() -> None:
    cached = decoder(cache="dual", gen_length=8, blocks=part("blocks", "fixed", block_length=4))
    noted = cached.rollouts(PROMPT)
    assert any(note.startswith("cache=dual: ") and "rescore=True" in note for note in noted.notes)
    again = cached.rollouts(PROMPT, rescore=True)
    assert torch.equal(noted.completion_ids, again.completion_ids) and not torch.equal(noted.own_logps, again.own_logps)
    for law in ("own", "drawn"):
        known = ~getattr(again, f"{law}_logps").isnan()
        assert torch.equal(scored(again, law=law)[known], getattr(again, f"{law}_logps")[known])
    assert not any(note.startswith("cache=") for note in again.notes)


def test_narrow_numbers_are_named() -> None:
    model = load(DATA / "models" / "tiny-llada", dtype="bfloat16")
    found = Decoder(model, gen_length=4, temperature=1.0).rollouts(PROMPT)
    assert any(note.startswith("bfloat16: ") for note in found.notes) and found.own_logps.dtype == torch.float32


def test_ends_that_rank_last_have_their_log_probability() -> None:
    found = decoder(eos_last=True, gen_length=24, temperature=0.7).rollouts(PROMPTS)
    ends = found.completion_ids == tiny().ids.eos
    assert bool(ends.any()) and not bool(found.own_logps[ends].isnan().any())
    torch.testing.assert_close(scored(found, law="drawn"), found.drawn_logps.nan_to_num(0), rtol=0, atol=1e-12)


def test_a_constraint_is_noted_and_what_it_changed_is_scored_on_request() -> None:
    model = load("mini-llada")
    found = Decoder(model, gen_length=8, temperature=1.5, constraint=Regex("[0-9]{3}")).rollouts("Sort", n=2)
    assert bool(found.bent.all()) and found.notes[-1] == "A constraint changed or held up commits in 2 of 2 rollouts."
    put = found.origin == Origin.CONSTRAINED
    assert bool(put.any()) and not bool(found.drawn_logps[put].isnan().any())
    with torch.no_grad():
        with pytest.raises(UserError, match=r"changed or held up commits in 2 of 2 rollouts.*select\(~rollouts.bent\)"):
            trajectory_logprobs(model, found, law="drawn")
        assert not bool(trajectory_logprobs(model, found)[put].any())
        again = trajectory_logprobs(model, found, corrected=True)
    torch.testing.assert_close(again[put], found.own_logps[put], rtol=0, atol=1e-4)
    assert len(found.select(~found.bent)) == 0


def test_the_mask_ends_with_the_token_that_completes_a_stop_string() -> None:
    stopped = Decoder(load("mini-llada"), gen_length=32, stop=[","])
    found = stopped.rollouts('Copy the list:\n["Kai", "Ada"]')
    assert found.finish == ["stop_string"]
    counted = int(found.completion_mask.sum())
    texts = [stopped.prompts.text(found.completion_ids[0, :at].tolist()) for at in (counted - 1, counted)]
    assert "," not in texts[0] and "," in texts[1]


def test_groups_say_how_many_answers_differ() -> None:
    found = decoder(gen_length=2, temperature=0.3).rollouts(PROMPT, n=6)
    count = len({tuple(one) for one in found.completion_ids.tolist()})
    assert found.notes[0].startswith(f"Of 6 answers to a prompt {count} differ on average")
