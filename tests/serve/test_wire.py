"""A body becomes jobs with the parts that the command line builds, or is refused in OpenAI's form. Nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from math import inf
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from dllm import UserError, load
from dllm.app.runs.plan import RunPlan
from dllm.compose.parts import composed
from dllm.models.bundle import Model
from dllm.serve.body import MAX_BYTES, MAX_DEPTH, parsed
from dllm.serve.choose import Defaults
from dllm.serve.refused import Refused
from dllm.serve.wire import Asked, asked
from dllm.setting import Sampling

GROUPS = ("sampler", "blocks", "cache", "eos")
MESSAGES = [{"role": "user", "content": 'Copy the list:\n["Kai", "Emma"]'}]
LIMIT = 256  # tokens of the shipped models


@pytest.fixture(scope="module")
def model() -> Model:
    return load("mini-llada")


def defaults_of(model: Model, *overrides: str, **settings: Any) -> Defaults:
    """The settings of a server whose command line says ``overrides``."""
    config: Any = OmegaConf.to_container(composed(list(overrides)), resolve=True)
    return Defaults(model, "mini", *(config[group] for group in GROUPS), **{"gen_length": 32, **settings})


@pytest.fixture(scope="module")
def server(model: Model) -> Defaults:
    return defaults_of(model)


def plan_of(*overrides: str) -> RunPlan:
    """The run that the command line makes of ``overrides``."""
    config: Any = OmegaConf.to_container(composed(["gen_length=32", *overrides]), resolve=True)
    return RunPlan.of(config)


def chat(server: Defaults, **fields: Any) -> Asked:
    return asked({"model": "mini", "messages": MESSAGES, **fields}, True, server)


def refusal(server: Defaults, is_chat: bool = True, **fields: Any) -> Refused:
    body: dict[str, Any] = {"messages": MESSAGES} if is_chat else {"prompt": "a"}
    with pytest.raises(Refused) as refused:
        asked({**body, **fields}, is_chat, server)
    return refused.value


def alike(one: Any, other: Any) -> bool:
    """Whether two parts are of one class and hold the same."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if type(one).__module__.startswith("dllm."):
        return type(one) is type(other) and alike(vars(one), vars(other))
    return bool(one == other)


SAME: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"sampler": "static", "steps": 8, "block_length": 16, "cache": "elastic", "eos": "cut_open", "blocks": "fixed"},
     ["sampler=static", "sampler.steps=8", "blocks=fixed", "blocks.block_length=16", "cache=elastic", "eos=cut_open"]),
    ({"cache": {"name": "elastic", "gamma": 0.8}, "threshold": 0.7},
     ["cache=elastic", "cache.gamma=0.8", "sampler.threshold=0.7"]),
    ({"sampler": {"name": "credit", "beta": 0.5, "inner": {"name": "localleap", "radius": 2}}},
     ["sampler=credit", "sampler.beta=0.5", "sampler/inner=localleap", "sampler.inner.radius=2"]),
    ({"sampler": {"name": "prophet", "inner": {"name": "credit", "inner": "localleap"}}},
     ["sampler=prophet", "sampler/inner=credit", "sampler/inner@sampler.inner.inner=localleap"]),
    ({"sampler": {"name": "learn2pd", "threshold": 1}, "block_length": 32},
     ["sampler=learn2pd", "sampler.threshold=1"]),
    ({"sampler": "order", "cache": "dkv_greedy", "blocks": {"name": "list", "lengths": [4, 12]}},
     ["sampler=order", "cache=dkv_greedy", "blocks=list", "blocks.lengths=[4,12]"]),
    ({"sampler": {"name": "prophet", "region": "anchor", "anchor_text": "so", "anchor_position": 2}, "guidance": 0.5},
     ["sampler=prophet", "sampler.region=anchor", "sampler.anchor_text=so", "sampler.anchor_position=2",
      "sampling.guidance=0.5"]),
    ({"blocks": "adablock", "cache": "dual", "eos": {"name": "eotp", "scope": "block"}},
     ["blocks=adablock", "cache=dual", "eos=eotp", "eos.scope=block"]),
]  # fmt: skip


@pytest.mark.parametrize(("diffusion", "overrides"), SAME, ids=lambda entry: "-".join(entry) if entry else "none")
def test_a_body_gets_the_parts_and_the_request_that_the_command_line_makes(
    diffusion: dict[str, Any], overrides: list[str], server: Defaults
) -> None:
    plan = plan_of(*overrides)
    (job,) = chat(server, diffusion=diffusion, seed=5).jobs
    for group in GROUPS:
        assert alike(getattr(job.chosen, group), getattr(plan.parts, group)), group
    assert replace(job.chosen.sampling, tempered=False) == plan.sampling
    assert job.chosen.sampling.tempered == plan.parts.sampler.tempered
    request = plan.prompts.request(MESSAGES[0]["content"], 5)
    assert job.request == replace(request, temperature=0.0)


def test_what_the_server_was_told_holds_where_a_request_says_nothing(model: Model) -> None:
    server = defaults_of(
        model, "sampler=localleap", "sampler.radius=3", "blocks.block_length=16", "cache=dual", "eos=keep",
        sampling=Sampling(temperature=0.4, top_p=0.9, suppress_mask=False), gen_length=24, seed=9,
    )  # fmt: skip
    first = chat(server, diffusion={"threshold": 0.8}).jobs[0]
    sampler: Any = first.chosen.sampler
    assert (sampler.radius, sampler.threshold, first.chosen.blocks.fixed_length) == (3, 0.8, 16)
    assert first.chosen.sampling == Sampling(0.4, 0.9, suppress_mask=False) and first.request.temperature == 0.4
    assert sum(first.request.masked) == 24
    other: Any = chat(server, diffusion={"sampler": "localleap"}).jobs[0].chosen.sampler
    assert other.radius == 4, "a part that is named comes as its file has it"
    cold = chat(server, temperature=0, top_p=1, max_tokens=5)
    assert cold.seed == 9 and cold.jobs[0].chosen.sampling.plain and sum(cold.jobs[0].request.masked) == 5


def test_a_cache_brings_its_blocks_as_on_the_command_line(model: Model) -> None:
    def blocks(defaults: Defaults, **diffusion: Any) -> tuple[str, int | None]:
        found = chat(defaults, diffusion=diffusion).jobs[0].chosen.blocks
        return type(found).__name__, found.fixed_length

    sixteen = defaults_of(model, "blocks.block_length=16")
    assert blocks(sixteen, cache="elastic") == ("Whole", None) and blocks(sixteen, cache="dual") == ("Fixed", 16)
    assert blocks(sixteen, cache="elastic", blocks="fixed") == ("Fixed", 32)
    elastic = defaults_of(model, "cache=elastic")
    assert blocks(elastic) == ("Whole", None) and blocks(elastic, cache="dual") == ("Fixed", 32)
    narrow = defaults_of(model, "cache=elastic", "blocks=fixed", "blocks.block_length=8")
    assert blocks(narrow, cache="dual") == ("Fixed", 8)


def test_a_server_with_a_class_of_its_own_serves_it_but_none_of_its_options(model: Model) -> None:
    server = defaults_of(model, "sampler=static", "sampler._target_=tests.serve.own.Mine")
    assert type(chat(server).jobs[0].chosen.sampler).__name__ == "Mine"
    refused = refusal(server, diffusion={"steps": 4})
    assert "sampler=tests.serve.own.Mine is the server's own; none of its options can be set." in refused.message
    assert refused.param == "diffusion.steps"


def test_rows_that_may_share_a_batch_have_one_key(server: Defaults) -> None:
    def key(temperature: float = 0, top_p: float | None = None, length: int = 32, **diffusion: Any) -> Any:
        fields = {"temperature": temperature, "top_p": top_p, "max_tokens": length}
        return chat(server, **fields, diffusion=diffusion).jobs[0].chosen.key

    plain = key()
    same = [
        key(threshold=0.5), key(length=7), key(sampler="confidence"),
        key(sampler={"name": "confidence", "threshold": 1}),
        key(blocks={"name": "fixed", "block_length": 32}, eos="fill_after_block"), key(guidance=0), key(top_p=1.0),
    ]  # fmt: skip
    assert same == [plain] * len(same)
    inner = {"name": "credit", "inner": {"name": "localleap", "radius": 1}}
    others = [
        key(0.5), key(top_p=0.5), key(block_length=8), key(cache="dual"), key(eos="keep"), key(guidance=1.0),
        key(sampler="localleap"), key(sampler="credit"), key(sampler=inner),
        key(sampler={"name": "credit", "slots": 8}),
    ]  # fmt: skip
    assert len({plain, *others}) == len(others) + 1
    assert key(0.5) == key(1.5) and key(sampler=inner) == key(sampler={**inner, "beta": 0.1, "inner": "localleap"})


def test_parts_stay_built_and_threads_may_ask_at_once(model: Model) -> None:
    server = defaults_of(model)
    choices = [{"sampler": name, "threshold": 0.8} for name in ("confidence", "localleap", "klass")]
    bodies = [choices[number % 3] for number in range(24)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda diffusion: chat(server, diffusion=diffusion).jobs[0].chosen, bodies))
    again = [chat(server, diffusion=diffusion).jobs[0].chosen for diffusion in bodies]
    assert [one.key for one in found] == [one.key for one in again]
    assert len({id(one) for one in again}) == 3


def test_choices_differ_by_their_seeds(server: Defaults) -> None:
    found = chat(server, n=3, seed=7, temperature=0.5)
    assert [job.request.seed for job in found.jobs] == [7, 8, 9] and found.seed == 7
    assert {job.request.temperature for job in found.jobs} == {0.5} and found.jobs[0].deadline == inf
    drawn = {chat(server, temperature=0.5).seed for _ in range(4)}
    assert len(drawn) > 1 and all(0 <= seed < 2**31 for seed in drawn)
    assert chat(server).seed == server.seed and not chat(server).jobs[0].follow


def test_the_plain_fields_arrive(server: Defaults) -> None:
    found = chat(
        server, stream=True, stream_options={"include_usage": True}, logprobs=True, stop=["x", "y"], user="me",
        metadata={"a": "b"}, response_format={"type": "text"}, presence_penalty=0.0, echo=False, best_of=1, suffix=None,
        diffusion={"snapshots": True, "trace": True}, max_completion_tokens=9, max_tokens=9, top_k=5,
    )  # fmt: skip
    assert found.chat and found.stream and found.include_usage and found.logprobs and found.snapshots and found.trace
    assert found.stop == ("x", "y") and found.jobs[0].snapshots and found.jobs[0].trace
    assert found.prompt_tokens == len(found.jobs[0].request.tokens) - 9 and found.jobs[0].chosen.sampling.top_k == 5
    plain = asked({"prompt": "a", "logprobs": 0, "stop": "x"}, False, server)
    assert plain.logprobs and plain.jobs[0].follow and plain.stop == ("x",)
    assert not (plain.chat or plain.stream or plain.include_usage)


def test_messages_go_through_the_template_and_prompts_do_not(server: Defaults) -> None:
    prompts = server.prompts
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    expected = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a\nb"}]
    found = asked({"messages": body}, True, server)
    assert list(found.jobs[0].request.tokens[: found.prompt_tokens]) == prompts.encode(expected)
    for prompt in ("a <|eot_id|>", ["a <|eot_id|>"]):
        found = asked({"prompt": prompt}, False, server)
        ids = list(found.jobs[0].request.tokens[: found.prompt_tokens])
        assert prompts.text(ids) == "a <|eot_id|>" and not {*prompts.ids.stops, prompts.ids.mask} & set(ids)
    for given in ([5, 4, 9], [[5, 4, 9]]):
        assert list(asked({"prompt": given}, False, server).jobs[0].request.tokens[:3]) == [5, 4, 9]


def test_a_canvas_is_the_answer_with_holes(server: Defaults) -> None:
    pieces = ['["Kai", "', 2, '", "Hugo"]', 3]
    alone = asked({"diffusion": {"canvas": pieces}}, False, server)
    assert alone.jobs[0].request == replace(server.prompts.infill(pieces), temperature=0.0)
    assert alone.prompt_tokens == sum(not masked for masked in alone.jobs[0].request.masked)
    behind = chat(server, diffusion={"canvas": pieces}).jobs[0].request
    begin = chat(server).jobs[0].request.answer_start
    assert behind.start == begin and list(behind.tokens[begin:]) == list(alone.jobs[0].request.tokens)
    assert not any(behind.masked[:begin])


CHAT: list[tuple[dict[str, Any], int, str | None, str]] = [
    ({"model": "gpt-5"}, 404, "model", "model='gpt-5' is not served here; 'mini' is."),
    ({"temprature": 1}, 400, "temprature", "'temprature' is no field of this request. Did you mean 'temperature'?"),
    ({"prompt": "a"}, 400, "prompt", "'prompt' is no field of this request."),
    ({"tools": []}, 400, "tools", "'tools' is no field"),
    ({"messages": None}, 400, "messages", "messages is missing"),
    ({"messages": []}, 400, "messages", "not empty"),
    ({"messages": "hi"}, 400, "messages", "must be a list of"),
    ({"messages": ["hi"]}, 400, "messages[0]", "must be an object"),
    ({"messages": [{"role": "tool", "content": "a"}]}, 400, "messages[0].role", "must be one of system, dev"),
    ({"messages": [{"role": ["user"], "content": "a"}]}, 400, "messages[0].role", "must be one of"),
    ({"messages": [{"role": "user"}]}, 400, "messages[0].content", "must be a text, or a list of"),
    ({"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content", "must be a text"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "text": "x"}]}]}, 400, "messages[0].content[0]",
     "of type 'image_url' must be of type text"),
    ({"messages": [{"role": "user", "content": "a", "tools": [1]}]}, 400, "messages[0].tools", "has no field"),
    ({"messages": [{"role": "user", "content": "word " * 300}]}, 400, "messages", "more than the model's limit of 256"),
    ({"max_tokens": 0}, 400, "max_tokens", "max_tokens=0 must lie in [1, 192]: the model's limit is 256 tokens"),
    ({"max_tokens": 193}, 400, "max_tokens", "must lie in [1, 192]"),
    ({"max_tokens": "5"}, 400, "max_tokens", "max_tokens='5' must be a whole number"),
    ({"max_tokens": 5.0}, 400, "max_tokens", "must be a whole number"),
    ({"max_tokens": True}, 400, "max_tokens", "must be a whole number"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, 400, "max_completion_tokens", "say the same thing differently"),
    ({"temperature": -1}, 400, "temperature", "must lie in [0, 100]"),
    ({"temperature": "hot"}, 400, "temperature", "temperature='hot' must be a number"),
    ({"top_p": 0}, 400, "top_p", "sampling.top_p=0.0 must lie in [1e-09, 1]"),
    ({"top_k": 0}, 400, "top_k", "sampling.top_k=0 must be at least 1"),
    ({"n": 0}, 400, "n", "n=0 must lie in [1, 8]"),
    ({"n": 9}, 400, "n", "n=9 must lie in [1, 8]"),
    ({"seed": -1}, 400, "seed", "seed=-1 must lie in"),
    ({"seed": 2**62}, 400, "seed", "must lie in"),
    ({"stop": 5}, 400, "stop", "must be a text or a list of texts"),
    ({"stop": [""]}, 400, "stop", "at most 16 texts of 1 to 256 characters"),
    ({"stop": ["x"] * 17}, 400, "stop", "at most 16"),
    ({"stop": ["x" * 257]}, 400, "stop", "at most 16"),
    ({"stream": "yes"}, 400, "stream", "stream='yes' must be true or false"),
    ({"stream_options": {"include_usage": True}}, 400, "stream_options", "goes with stream=true"),
    ({"stream": True, "stream_options": {"usage": True}}, 400, "stream_options.usage", "has no field 'usage'"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, 400, "stream_options.include_usage", "true or false"),
    ({"stream": True, "stream_options": [1]}, 400, "stream_options", "must be an object"),
    ({"logprobs": 3}, 400, "logprobs", "logprobs=3 must be true or false"),
    ({"top_logprobs": 2}, 400, "top_logprobs", "top_logprobs=2 must be 0: nothing else is served"),
    ({"presence_penalty": 0.5}, 400, "presence_penalty", "must be 0"),
    ({"frequency_penalty": False}, 400, "frequency_penalty", "must be 0"),
    ({"store": True}, 400, "store", "store=True must be false"),
    ({"metadata": {"a": 1}}, 400, "metadata", "at most 16 texts"),
    ({"user": [1]}, 400, "user", "user=[1] must be text"),
    ({"response_format": {"type": "json_object"}}, 400, "response_format", "constrained output is not there yet"),
    ({"response_format": "text"}, 400, "response_format", "must be {'type': 'text'}"),
    ({"diffusion": "fast"}, 400, "diffusion", "must be an object with any of sampler"),
    ({"diffusion": {"samper": "eb"}}, 400, "diffusion.samper", "Did you mean 'sampler'?"),
    ({"diffusion": {"sampler": "confidance"}}, 400, "diffusion.sampler", "Did you mean 'confidence'?"),
    ({"diffusion": {"sampler": "oracle"}}, 400, "diffusion.sampler", "sampler='oracle' is not offered"),
    ({"diffusion": {"sampler": 5}}, 400, "diffusion.sampler", "must be NAME or"),
    ({"diffusion": {"sampler": {"threshold": 0.5}}}, 400, "diffusion.sampler", "must be NAME or"),
    ({"diffusion": {"sampler": {"name": "eb", "gama": 1}}}, 400, "diffusion.sampler", "Did you mean 'gamma'?"),
    ({"diffusion": {"sampler": {"name": "pc", "frequencies": "/etc/passwd"}}}, 400, "diffusion.sampler", "not offered"),
    ({"diffusion": {"sampler": {"name": "freedave", "draft_steps": 9}}}, 400, "diffusion.sampler", "is more than 8"),
    ({"diffusion": {"threshold": 2}}, 400, "diffusion.sampler", "sampler.threshold=2.0 must lie in [0, 1]"),
    ({"diffusion": {"threshold": "high"}}, 400, "diffusion.threshold", "must be a number, such as 0.9"),
    ({"diffusion": {"steps": 4}}, 400, "diffusion.steps", "sampler.steps does not exist; sampler=confidence"),
    ({"diffusion": {"sampler": {"name": "static", "steps": 4}, "steps": 4}}, 400, "diffusion.sampler", "thing twice"),
    ({"diffusion": {"block_length": 0}}, 400, "diffusion.blocks", "blocks.block_length=0 must be at least 1"),
    ({"diffusion": {"block_length": 8, "cache": "elastic"}}, 400, "diffusion.block_length", "blocks=whole offers min"),
    ({"diffusion": {"guidance": -1}}, 400, "diffusion.guidance", "sampling.guidance=-1.0 must be at least 0"),
    ({"diffusion": {"guidance": "much"}}, 400, "diffusion.guidance", "must be a number"),
    ({"diffusion": {"snapshots": 1}}, 400, "diffusion.snapshots", "must be true or false"),
    ({"diffusion": {"trace": "yes"}}, 400, "diffusion.trace", "must be true or false"),
    ({"diffusion": {"canvas": "text"}}, 400, "diffusion.canvas", "must be a list of at most 1024 texts"),
    ({"diffusion": {"canvas": []}}, 400, "diffusion.canvas", "must be a list"),
    ({"diffusion": {"canvas": ["a", 0]}}, 400, "diffusion.canvas", "must be a list"),
    ({"diffusion": {"canvas": ["a", True]}}, 400, "diffusion.canvas", "must be a list"),
    ({"diffusion": {"canvas": ["a"]}}, 400, "diffusion.canvas", "has nothing to fill in"),
    ({"diffusion": {"canvas": [10**9]}}, 400, "diffusion.canvas", "the model's limit is 256"),
    ({"diffusion": {"canvas": ["a", 250]}}, 400, "messages", "together more than the model's limit of 256"),
    ({"diffusion": {"canvas": ["a", 2]}, "stop": ["x"]}, 400, "stop", "has given parts behind it. Drop one."),
    ({"diffusion": {"canvas": ["a", 2]}, "max_tokens": 5}, 400, "max_tokens", "both say how long the answer is"),
    ({"diffusion": {"cache": "dkv_greedy"}}, 400, "diffusion.cache", "The nearest that works is cache="),
    ({"diffusion": {"sampler": "credit"}, "temperature": 1}, 400, "diffusion.sampler", "sampling.temperature=1.0"),
    ({"diffusion": {"sampler": {
        "name": "prophet", "region": "anchor", "anchor_text": "x", "anchor_position": 31}}}, 400, "diffusion.sampler",
     "leaves no room"),
    ({"diffusion": {"sampler": "static", "steps": 8}, "max_tokens": 40}, 400, "max_tokens",
     "gen_length=40 must be a multiple of blocks.block_length=32"),
]  # fmt: skip
COMPLETIONS: list[tuple[dict[str, Any], int, str | None, str]] = [
    ({"prompt": None}, 400, "prompt", "prompt is missing"),
    ({"prompt": ""}, 400, "prompt", "the prompt is empty"),
    ({"prompt": []}, 400, "prompt", "must be a text, or a list of token ids"),
    ({"prompt": ["a", "b"]}, 400, "prompt", "one prompt: send a request for each"),
    ({"prompt": [1, "a"]}, 400, "prompt", "a text, or a list of token ids"),
    ({"prompt": [1, True]}, 400, "prompt", "a text, or a list of token ids"),
    ({"prompt": [10**6]}, 400, "prompt", "token id 1000000 is not in the model's vocabulary"),
    ({"prompt": [5, 2]}, 400, "prompt", "token id 2 is the mask"),
    ({"prompt": [5] * 300}, 400, "prompt", "the prompt takes 300 tokens and its answer 32"),
    ({"messages": MESSAGES}, 400, "messages", "no field of this request"),
    ({"logprobs": 5}, 400, "logprobs", "those of other tokens are not served"),
    ({"echo": True}, 400, "echo", "echo=True must be false"),
    ({"suffix": "x"}, 400, "suffix", "suffix='x' must be empty"),
    ({"best_of": 2}, 400, "best_of", "best_of=2 must be 1"),
]  # fmt: skip
CASES = [(True, *case) for case in CHAT] + [(False, *case) for case in COMPLETIONS]


@pytest.mark.parametrize(("is_chat", "fields", "status", "param", "sentence"), CASES, ids=range(len(CASES)))
def test_what_cannot_be_served_is_refused_in_a_sentence(
    is_chat: bool, fields: dict[str, Any], status: int, param: str | None, sentence: str, server: Defaults
) -> None:
    refused = refusal(server, is_chat, **fields)
    assert sentence in refused.message and (refused.status, refused.param) == (status, param)
    assert refused.to_json() == {"error": {
        "message": refused.message, "type": "invalid_request_error", "param": param, "code": refused.code}}  # fmt: skip


def test_codes_are_openais_where_it_has_one(server: Defaults) -> None:
    assert refusal(server, model="x").code == "model_not_found"
    assert refusal(server, messages=[{"role": "user", "content": "word " * 300}]).code == "context_length_exceeded"
    assert len(refusal(server, model="x" * 10**5).message) < 1100


@pytest.mark.parametrize(
    ("overrides", "fields"),
    [
        (["sampler=static", "sampler.steps=8", "gen_length=40"],
         {"max_tokens": 40, "diffusion": {"sampler": "static", "steps": 8}}),
        (["cache=dkv_greedy"], {"diffusion": {"cache": "dkv_greedy"}}),
        (["sampler=wino", "sampling.guidance=1.5"], {"diffusion": {"sampler": "wino", "guidance": 1.5}}),
        (["sampler=credit", "sampler/inner=wino"], {"diffusion": {"sampler": {"name": "credit", "inner": "wino"}}}),
        (["blocks=tccf"], {"diffusion": {"blocks": "tccf"}}),
    ],
    ids=lambda entry: "-".join(entry),
)  # fmt: skip
def test_parts_that_do_not_fit_are_refused_with_the_sentence_of_the_command_line(
    overrides: list[str], fields: dict[str, Any], server: Defaults
) -> None:
    with pytest.raises(UserError) as theirs:
        plan_of(*overrides)
    assert refusal(server, **fields).message == str(theirs.value)


@pytest.mark.parametrize(
    ("raw", "status", "sentence"),
    [
        (b"", 400, "it is no JSON"), (b"{", 400, "it is no JSON"), (b"\xff{}", 400, "it is no UTF-8 (byte 0)"),
        (b"[]", 400, "it is no object"), (b"null", 400, "it is no object"), (b'"a"', 400, "it is no object"),
        (b'{"temperature": NaN}', 400, "NaN is no number of JSON"), (b'{"n": Infinity}', 400, "Infinity is no number"),
        (b'{"n": -Infinity}', 400, "-Infinity is no number"), (b'{"n": 1e999}', 400, "inf is no number of JSON"),
        (b'{"n": ' + b"9" * 30 + b"}", 400, "more than 64 bits"),
        (b'{"n": ' + b"9" * 5000 + b"}", 400, "it is no JSON"),
        (b'{"messages": "\\ud800"}', 400, "half of a surrogate pair"), (b'{"\\udfff": 1}', 400, "half of a surrogate"),
        (b'{"n": 1, "n": 2}', 400, "'n' stands in one object twice"),
        (b'{"a": ' + b"[" * 20 + b"]" * 20 + b"}", 400, f"nested deeper than {MAX_DEPTH}"),
        (b'{"a": ' + b"[" * 100000 + b"]" * 100000 + b"}", 400, f"nested deeper than {MAX_DEPTH}"),
        (b'{"a": "' + b"x" * MAX_BYTES + b'"}', 413, f"more than {MAX_BYTES}"),
    ],
    ids=range(18),
)  # fmt: skip
def test_a_body_that_is_no_plain_object_is_refused(raw: bytes, status: int, sentence: str) -> None:
    with pytest.raises(Refused) as refused:
        parsed(raw)
    assert refused.value.status == status and sentence in refused.value.message
    assert json.dumps(refused.value.to_json()).encode()


def test_a_body_of_another_type_is_refused() -> None:
    for content_type in (None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        with pytest.raises(Refused, match=r"must be application/json") as refused:
            parsed(b"{}", content_type)
        assert refused.value.status == 415
    assert parsed('{"a": "é\\ud83d\\ude00"}'.encode(), "Application/JSON; charset=utf-8") == {"a": "é\U0001f600"}


ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**63 - 1, -(2**63 - 1), 0.5, -0.0, 1e308, 5e-324, "", "x", "\0", "${oc.env:HOME}",
    "../../x", "null", [], [1], ["x"], [[]], [[1], "x"], {}, {"name": "eb"}, {"name": ["eb"]}, {"_target_": "os.mkdir"},
    {"": {}}, "x" * 5000, [0.5] * 100, {"name": "credit", "inner": {"name": "credit"}}, {"type": "text"}, "confidence",
    "<|mdm_mask|>", 10**12, [2**62],
]  # fmt: skip


def anything(rng: random.Random, depth: int = 0) -> Any:
    """A random value of JSON."""
    if depth > 2 or rng.random() < 0.6:
        return deepcopy(rng.choice(ODD))
    if rng.random() < 0.5:
        return [anything(rng, depth + 1) for _ in range(rng.randrange(4))]
    keys = ("name", "inner", "threshold", "steps", "role", "content", "text", "type", "_target_", "canvas", "é")
    return {rng.choice(keys): anything(rng, depth + 1) for _ in range(rng.randrange(4))}


def broken(rng: random.Random) -> dict[str, Any]:
    """A body with a mistake for certain, and others perhaps."""
    mistakes: list[Callable[[dict[str, Any]], Any]] = [
        lambda body: body.update({f"x{rng.randrange(99)}": anything(rng) or 1}),
        lambda body: body.update(messages=rng.choice([5, "x", [5], [{}], {"a": 1}, [[]], [{"role": "user"}]])),
        lambda body: body.update(max_tokens=rng.choice([-1, 0, 10**9, 0.5, "x", [], {}, True])),
        lambda body: body.update(temperature=rng.choice([-0.1, 1e308, "x", [0.5], {}, True])),
        lambda body: body.update(stop=rng.choice([0, {}, [None], ["x", 5], [""], ["x"] * 40])),
        lambda body: body.update(seed=rng.choice([-5, 2**63 - 1, 0.5, "x", [1]])),
        lambda body: body.update(diffusion=rng.choice([5, "x", [1], {"_target_": "os.mkdir"}, {"": 1}])),
        lambda body: body["diffusion"].update(sampler=rng.choice([5, [], {}, "oracle", {"name": 5}, {"name": "x"}])),
        lambda body: body["diffusion"].update(cache={"name": "dual", rng.choice(["_target_", "x", ""]): anything(rng)}),
        lambda body: body["diffusion"].update(canvas=rng.choice([5, {}, [0], [-1], [0.5], [None], ["x"], [[1]]])),
        lambda body: body["diffusion"].update(steps=rng.choice(["x", -1, 10**9, [4], {}, 0.5])),
    ]  # fmt: skip
    body: dict[str, Any] = {"messages": deepcopy(MESSAGES), "diffusion": {"sampler": "static"}}
    rng.choice(mistakes[:7] if rng.random() < 0.5 else mistakes[7:])(body)
    return body


def test_sixty_bodies_with_a_mistake_are_refused(server: Defaults) -> None:
    rng = random.Random(18)
    for _ in range(60):
        body = broken(rng)
        with pytest.raises(Refused) as refused:
            asked(parsed(json.dumps(body).encode()), True, server)
        assert refused.value.status in (400, 404) and refused.value.message.endswith((".", "?", "...")), body


def test_whatever_a_body_says_it_is_served_or_refused(server: Defaults) -> None:
    """Any value in any field, in both routes: never an error of another kind."""
    rng, served = random.Random(81), 0
    fields = (
        "messages", "prompt", "max_tokens", "temperature", "top_p", "top_k", "n", "seed", "stop", "stream", "logprobs",
        "stream_options", "metadata", "response_format", "diffusion", "suffix", "best_of", "store", "user", "model",
    )  # fmt: skip
    inside = ("sampler", "blocks", "cache", "eos", "threshold", "steps", "block_length", "guidance", "canvas", "trace")
    for _ in range(300):
        is_chat = rng.random() < 0.5
        body: dict[str, Any] = {"messages": MESSAGES} if is_chat else {"prompt": "a"}
        body["diffusion"] = {rng.choice(inside): anything(rng) for _ in range(rng.randrange(3))}
        if rng.random() < 0.5:
            body[rng.choice(fields)] = anything(rng)
        try:
            asked(parsed(json.dumps(body).encode()), is_chat, server)
            served += 1
        except Refused as refused:
            assert refused.status in (400, 404) and refused.message
    assert 20 < served < 200
