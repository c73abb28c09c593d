"""The field ``diffusion`` chooses the parts that the command line builds, and rows of one setting share a key."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from dllm.parts import CHAT_WORDS, Defaults, Model, Refusal, Sampling, SettingWarning, UserError, warn_once
from tests.serve.bodies import GROUPS, MESSAGES, SAME, alike, chat, mini_defaults, plan_of, refusal


@pytest.mark.daily(5)
@pytest.mark.parametrize(("diffusion", "overrides"), SAME, ids=lambda entry: "-".join(entry) if entry else "none")
def test_a_body_gets_the_parts_and_the_request_that_the_command_line_makes(
    diffusion: dict[str, Any], overrides: list[str], mini: Defaults
) -> None:
    plan = plan_of(*overrides)
    (job,) = chat(mini, diffusion=diffusion, seed=5).jobs
    for group in GROUPS:
        assert alike(getattr(job.setting.parts, group), getattr(plan.parts, group)), group
    assert replace(job.setting.parts.sampling, tempered=False) == plan.sampling
    assert job.setting.parts.sampling.tempered == plan.parts.sampler.traits.tempered
    request = plan.prompts.request(MESSAGES[0]["content"], 5)
    assert job.request == replace(request, temperature=0.0)


def test_what_the_server_was_told_holds_where_a_request_says_nothing(mini_model: Model) -> None:
    server = mini_defaults(
        mini_model,
        "sampler=localleap",
        "sampler.radius=3",
        "blocks.block_length=16",
        "cache=dual",
        "eos=none",
        sampling=Sampling(temperature=0.4, top_p=0.9, suppress_mask=False),
        gen_length=24,
        seed=9,
    )
    first = chat(server, diffusion={"threshold": 0.8}).jobs[0]
    sampler: Any = first.setting.parts.sampler
    assert (sampler.radius, sampler.threshold, first.setting.parts.blocks.fixed_length) == (3, 0.8, 16)
    assert first.setting.parts.sampling == Sampling(0.4, 0.9, suppress_mask=False) and first.request.temperature == 0.4
    assert sum(first.request.masked) == 24
    other: Any = chat(server, diffusion={"sampler": "localleap"}).jobs[0].setting.parts.sampler
    assert other.radius == 4, "a part that is named comes as its file has it"
    cold = chat(server, temperature=0, top_p=1, max_tokens=5)
    request = cold.jobs[0].request
    assert request.seed == 9 and cold.jobs[0].setting.parts.sampling.plain and sum(request.masked) == 5


def test_a_part_that_may_do_harm_is_a_warning_once(mini_model: Model) -> None:
    warn_once.cache_clear()
    with pytest.warns(SettingWarning, match="sampler.region=all_masked: .*sampler.region=none") as heard:
        for seed in (1, 2):
            chat(mini_defaults(mini_model), diffusion={"sampler": "prophet"}, seed=seed)
        chat(mini_defaults(mini_model), diffusion={"sampler": {"name": "prophet", "region": "none"}})
    assert len(heard) == 1


def test_a_cache_brings_its_blocks_as_on_the_command_line(mini_model: Model) -> None:
    def blocks(defaults: Defaults, **diffusion: Any) -> tuple[str, int | None]:
        found = chat(defaults, diffusion=diffusion).jobs[0].setting.parts.blocks
        return type(found).__name__, found.fixed_length

    sixteen = mini_defaults(mini_model, "blocks.block_length=16")
    assert blocks(sixteen, cache="elastic") == ("Whole", None) and blocks(sixteen, cache="dual") == ("Fixed", 16)
    assert blocks(sixteen, cache="elastic", blocks="fixed") == ("Fixed", 32)
    elastic = mini_defaults(mini_model, "cache=elastic")
    assert blocks(elastic) == ("Whole", None) and blocks(elastic, cache="dual") == ("Fixed", 32)
    narrow = mini_defaults(mini_model, "cache=elastic", "blocks=fixed", "blocks.block_length=8")
    assert blocks(narrow, cache="dual") == ("Fixed", 8)


def test_a_schedule_brings_its_policy_as_on_the_command_line(mini_model: Model) -> None:
    def policy(defaults: Defaults, **diffusion: Any) -> str:
        return type(chat(defaults, diffusion=diffusion).jobs[0].setting.parts.eos).__name__

    usual, sliding = mini_defaults(mini_model), mini_defaults(mini_model, "blocks=sliding")
    assert [policy(usual), policy(usual, blocks="sliding"), policy(usual, blocks="sliding", eos="none")] == [
        "FillAfterBlock",
        "StopAtEos",
        "FullLength",
    ]
    assert [policy(sliding), policy(sliding, blocks="fixed"), policy(sliding, cache="dkv")] == [
        "StopAtEos",
        "FillAfterBlock",
        "StopAtEos",
    ]
    refused = refusal(usual, diffusion={"blocks": "sliding", "eos": "fill_after_block"})
    assert "blocks=sliding has none that closes" in refused.message


def test_a_server_with_a_class_of_its_own_serves_it_but_none_of_its_options(mini_model: Model) -> None:
    server = mini_defaults(mini_model, "sampler=static", "sampler._target_=tests.serve.own.Mine")
    assert type(chat(server).jobs[0].setting.parts.sampler).__name__ == "Mine"
    refused = refusal(server, diffusion={"steps": 4})
    assert "sampler=tests.serve.own.Mine is the server's own; none of its options can be set." in refused.message
    assert refused.param == "diffusion.steps"


def test_rows_that_may_share_a_batch_have_one_key(mini: Defaults) -> None:
    def key(temperature: float = 0, top_p: float | None = None, length: int = 32, **diffusion: Any) -> Any:
        fields = {"temperature": temperature, "top_p": top_p, "max_tokens": length}
        return chat(mini, **fields, diffusion=diffusion).jobs[0].setting.key

    plain = key()
    same = [
        key(threshold=0.5),
        key(length=7),
        key(sampler="confidence"),
        key(sampler={"name": "confidence", "threshold": 1}),
        key(blocks={"name": "fixed", "block_length": 32}, eos="fill_after_block"),
        key(guidance=0),
        key(top_p=1.0),
        key(block_length=8),
        key(blocks={"name": "fixed", "min_forwards": 2}),
    ]
    assert same == [plain] * len(same)
    inner = {"name": "credit", "inner": {"name": "localleap", "radius": 1}}
    others = [
        key(0.5),
        key(top_p=0.5),
        key(blocks="whole"),
        key(cache="dual"),
        key(eos="none"),
        key(guidance=1.0),
        key(sampler="localleap"),
        key(sampler="credit"),
        key(sampler=inner),
        key(sampler={"name": "credit", "slots": 8}),
    ]
    assert len({plain, *others}) == len(others) + 1
    assert key(0.5) == key(1.5) and key(sampler=inner) == key(sampler={**inner, "beta": 0.1, "inner": "localleap"})


def test_parts_stay_built_and_threads_may_ask_at_once(mini_model: Model) -> None:
    server = mini_defaults(mini_model)
    choices = [{"sampler": name, "threshold": 0.8} for name in ("confidence", "localleap", "klass")]
    bodies = [choices[number % 3] for number in range(24)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda diffusion: chat(server, diffusion=diffusion).jobs[0].setting, bodies))
    again = [chat(server, diffusion=diffusion).jobs[0].setting for diffusion in bodies]
    assert [one.key for one in found] == [one.key for one in again]
    assert len({id(one) for one in again}) == 3


@pytest.mark.parametrize(
    ("overrides", "fields"),
    [
        (
            ["sampler=static", "sampler.steps=8", "gen_length=40"],
            {"max_tokens": 40, "diffusion": {"sampler": "static", "steps": 8}},
        ),
        (["cache=dkv_greedy"], {"diffusion": {"cache": "dkv_greedy"}}),
        (["sampler=wino", "sampling.guidance=1.5"], {"diffusion": {"sampler": "wino", "guidance": 1.5}}),
        (["sampler=credit", "sampler/inner=wino"], {"diffusion": {"sampler": {"name": "credit", "inner": "wino"}}}),
        (["blocks=tccf"], {"diffusion": {"blocks": "tccf"}}),
    ],
    ids=lambda entry: "-".join(entry),
)
def test_parts_that_do_not_fit_are_refused_with_the_sentence_of_the_command_line(
    overrides: list[str], fields: dict[str, Any], mini: Defaults
) -> None:
    with pytest.raises(UserError) as theirs:
        plan_of(*overrides)
    assert isinstance(theirs.value, Refusal)
    said = theirs.value.text(CHAT_WORDS)
    assert refusal(mini, **fields).message == said.replace("diffusion.sampler.steps", "diffusion.steps")
