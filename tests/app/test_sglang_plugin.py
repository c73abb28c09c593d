"""Our samplers as an algorithm of sglang's: in both of its loops, blocks are decided token by token as by our loop."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness import DATA, forward_of, make_filter, model
from sglang_stand_in import Req, Scheduler, install

from dllm import UserError, part
from dllm.app import sglang_plugin
from dllm.parts import (
    Canvas,
    Finished,
    Fixed,
    FullLength,
    Parts,
    Request,
    Sampler,
    Sampling,
    Transformer,
    choices,
    denoise,
    reason_against,
)
from experiments.pages.parts import made

ROOT = DATA.parents[1]
FILTER = str(make_filter(8))  # of the blocks of tiny-llada21
# Rules that need an option to go through, or one to be built.
OPTIONS: dict[str, dict[str, Any]] = {
    "klass": {"since": "block"},
    "learn2pd": {"filter": FILTER},
    "order": {"positions": "left_to_right"},
    "oracle": {"reference": [[1]]},
}
MORE = [
    ("static", {"score": "margin", "per_step": 3}),
    ("static", {"steps": 4}),
    ("tacg", {"form": "extras"}),
    ("bacd", {"lower": 0.2}),
    ("joint_threshold", {"threshold": 0.3, "edit_threshold": 0.0}),
    ("joint_threshold", {"threshold": 0.2, "penalty": 2.0, "post_edit_steps": 2}),
    ("groups", {"steps": 5}),
    ("credit", {"inner": {"name": "localleap"}}),
    ("eb", {"gamma": 1.0}),
    ("slowfast", {"explore": 2}),
]
PROMPTS = [[62, 51, 25, 3, 4, 34, 6, 23, 37, 3, 55], [62, 50, 14, 2, 35, 8, 18, 55]]


def rule(name: str) -> Sampler:
    made: Sampler = part("sampler", name, **OPTIONS.get(name, {}))
    return made


THROUGH = [name for name in choices("sampler") if reason_against(rule(name)) is None]
CASES = [(name, OPTIONS.get(name, {})) for name in THROUGH] + MORE


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    found = install(monkeypatch)
    sglang_plugin.register()
    return found


def algorithm(registry: dict[str, Any], network: Transformer, fdfo: bool = True, **config: Any) -> Any:
    settings = {
        "algorithm_config": config,
        "block_size": network.config.attention.block,
        "mask_id": network.config.mask_id,
    }
    return registry["dllm"](SimpleNamespace(**settings, first_done_first_out_mode=fdfo))


@cache
def network_of(name: str) -> Transformer:
    return model(name)


def block_by_loop(network: Transformer, sampler: Sampler, text: list[int], warm: Sampling) -> list[dict[int, int]]:
    """What each turn of our loop writes into the block that follows ``text``, by columns of the block."""
    length, mask = network.config.attention.block, network.config.mask_id
    assert length is not None and mask is not None
    left = length - len(text) % length
    parts = Parts(sampler, Fixed(length), Finished(), FullLength(), warm)
    forward = forward_of(network, parts, warm)
    canvas = Canvas.of([Request.answer(text, left, mask)], 0, grid_at_zero=True)
    begin, written = len(text) // length * length, list[dict[int, int]]()
    with torch.inference_mode():
        for turn in denoise(canvas, forward, parts):
            before, after = turn.canvas.tokens[0].tolist(), turn.candidates.tokens[0].tolist()
            pairs = enumerate(zip(before, after, strict=True))
            written.append({column - begin: now for column, (was, now) in pairs if was != now})
    return written


def follows(req: Req, network: Transformer, sampler: Sampler, fdfo: bool = True) -> None:
    """The blocks of a served request, step by step, are those of our loop, and so are its forwards in rounds."""
    length, text = network.config.attention.block, list(req.prompt)
    assert length is not None and len(req.written) == req.blocks
    for written, forwards in zip(req.written, req.forwards, strict=True):
        expected = block_by_loop(network, sampler, text, Sampling())
        assert [step for step in expected if step] == written
        least = len(expected) + bool(expected[-1])  # one more where the last turn wrote
        assert forwards == least or (not fdfo and forwards > least)
        begin = len(text) // length * length
        text = text + [0] * (begin + length - len(text))
        for step in written:
            for column, token in step.items():
                text[begin + column] = token
    assert text == req.text


@pytest.mark.daily(3)
@pytest.mark.parametrize(
    ("sampler", "options", "fdfo", "name"),
    [
        pytest.param(sampler, options, fdfo, name, id=f"{sampler}-{number}-{fdfo}-{name}")
        for number, (sampler, options) in enumerate(CASES)
        for fdfo in (True, False)
        for name in ("tiny-llada21", "sdar_b4")
        if (sampler, name) != ("learn2pd", "sdar_b4")
    ],
)
def test_blocks_are_those_of_our_loop(
    registry: dict[str, Any], sampler: str, options: dict[str, Any], fdfo: bool, name: str
) -> None:
    network = network_of(name)
    own = part("sampler", sampler, **options)
    served = algorithm(registry, network, fdfo, sampler={"name": sampler, **options})
    reqs = [Req(prompt, 2 + place % 2) for place, prompt in enumerate(PROMPTS)]
    joining = [reqs[:1], [], reqs[1:]] if fdfo else [reqs]
    Scheduler(network, served).run(joining)
    for req in reqs:
        follows(req, network, own, fdfo)


def test_the_page_lists_what_goes_through_and_what_does_not() -> None:
    assert len(THROUGH) >= 22
    page = made("sglang")
    assert "<!-- made: sglang -->" in (ROOT / "docs" / "sglang.md").read_text()
    listed = {line.split("|")[1].strip(): line.split("|")[2].strip() for line in page.splitlines() if "| `" in line[:3]}
    expected = {f"`{name}`": reason for name in choices("sampler") if (reason := reason_against(rule(name)))}
    assert {name: why for name, why in listed.items() if name in expected} == expected
    through = page.split("go through:")[1].split("\n\n")[0]
    assert [word for word in through.split("`") if word in choices("sampler")] == THROUGH


def test_the_entry_point_names_the_function() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, function = project["entry-points"]["sglang.srt.plugins"]["dllm"].partition(":")
    assert module == sglang_plugin.__name__ and callable(getattr(sglang_plugin, function))
    assert project["optional-dependencies"]["sglang"] == ["sglang>=0.5.23"]
    assert resources.files("dllm.app").joinpath("sglang_plugin.py").is_file()


def test_requests_choose_rules_seeds_and_temperatures(registry: dict[str, Any]) -> None:
    network = network_of("sdar_b4")
    served = algorithm(registry, network, sampling={"temperature": "request"})
    asked = {"dllm": {"sampler": {"name": "static", "per_step": 2}}}
    plain, other, cold = Req(PROMPTS[0], 2), Req(PROMPTS[1], 2, asked, 0.0), Req(PROMPTS[1], 2, None, 0.0)
    seeded, again, elsewhere = (Req(PROMPTS[1], 3, {"dllm": {"seed": seed}}) for seed in (1, 1, 2))
    Scheduler(network, served).run([[plain, other, seeded], [], [cold, elsewhere], [again]])
    follows(other, network, part("sampler", "static", per_step=2))
    follows(cold, network, part("sampler", "confidence"))
    assert seeded.text == again.text != elsewhere.text
    unasked = Req(PROMPTS[1], 2)  # sglang's default temperature is 1, which counts only where the file says so
    Scheduler(network, algorithm(registry, network)).run([[unasked]])
    follows(unasked, network, part("sampler", "confidence"))


def test_literal_masks_in_a_prompt_are_text(registry: dict[str, Any]) -> None:
    network = network_of("sdar_b4")
    mask = network.config.mask_id or 0
    req = Req([62, mask, 25, 3, 4, mask], 2)
    Scheduler(network, algorithm(registry, network)).run([[req]])
    assert req.text[:6] == req.prompt and mask not in req.text[6:]
    assert [max(map(len, steps)) <= 4 for steps in req.written] == [True, True]


def test_the_threshold_rule_is_sglangs_own(registry: dict[str, Any]) -> None:
    """LowConfidence: what exceeds the threshold, else the most confident, of float32 probabilities."""
    network, mask = network_of("sdar_b4"), network_of("sdar_b4").config.mask_id
    served = algorithm(registry, network, sampler={"name": "confidence", "threshold": 0.35})
    req = Req(PROMPTS[0], 3)
    Scheduler(network, served).run([[req]])
    text = list(req.prompt)
    for written in req.written:
        begin, found = len(text) // 4 * 4, list[dict[int, int]]()
        text += [mask] * (begin + 4 - len(text))
        while mask in text[begin:]:
            with torch.inference_mode():
                logits = network.logits(network.encode(torch.tensor([text])))[0, begin:].float()
            logits = logits.clone()  # outside of inference mode
            logits[:, mask] = -torch.inf
            best = logits.softmax(-1).max(-1)
            sure = {column: float(best.values[column]) for column in range(4) if text[begin + column] == mask}
            chosen = [column for column, value in sure.items() if value > 0.35] or [max(sure, key=sure.__getitem__)]
            found.append({column: int(best.indices[column]) for column in chosen})
            for column, token in found[-1].items():
                text[begin + column] = token
        assert found == written


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"sampler": "wino"}, "sampler=wino computes extra queries beside the canvas.*Use sampler=confidence"),
        ({"sampler": "conf"}, "sampler='conf' is unknown"),
        ({"sampler": {"name": "eb", "gama": 1}}, "gamma"),
        ({"smapler": "eb"}, "smapler: dllm's YAML lacks.*Did you mean 'sampler'"),
        ({"sampling": 3}, "must be a mapping"),
        ({"sampling": {"guidance": 1}}, "sampling.guidance is not served through sglang"),
        ({"sampling": {"temperature": "warm"}}, "must be a number, or request"),
        ({"sampler": {"name": "order", "positions": [0, 1]}}, "each of the 4 answer positions"),
        ({"sampler": {"name": "credit"}, "sampling": {"temperature": "request"}}, "temperature=1.0, top_p and top_k"),
    ],
    ids=str,
)
def test_settings_are_refused_at_start(registry: dict[str, Any], config: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        algorithm(registry, network_of("sdar_b4"), **config)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"custom_params": {"dllm": {"sampler": {"name": "eb", "gamma": 0.2}}}}, None),
        ({}, None),
        ({"custom_params": {"dllm": {"sampler": "prophet"}}}, "reads scores outside the open block"),
        ({"custom_params": {"dllm": {"sampler": {"name": "pc", "frequencies": "/etc/passwd"}}}}, "is not offered"),
        ({"custom_params": {"dllm": {"steps": 3}}}, "has no 'steps'"),
        ({"custom_params": {"dllm": 3}}, "mapping"),
        ({"custom_params": {"dllm": {"seed": "x"}}}, "whole number"),
        ({"min_p": 0.1}, "min_p has no effect"),
        ({"json_schema": "{}"}, "json_schema has no effect"),
        ({"return_logprob": True}, "return_logprob has no effect"),
    ],
    ids=str,
)
def test_requests_are_refused_in_a_sentence(
    registry: dict[str, Any], params: dict[str, Any], words: str | None
) -> None:
    served = algorithm(registry, network_of("sdar_b4"))
    req = SimpleNamespace(return_logprob=params.pop("return_logprob", False), sampling_params=SimpleNamespace(**params))
    said = type(served).validate_request(req)
    assert said is None if words is None else words in said and said.endswith(".")


def test_sglang_that_is_too_old_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sglang.srt.dllm.algorithm", None)
    with pytest.raises(UserError, match="sglang>=0.5.23.*pip install"):
        sglang_plugin.register()
