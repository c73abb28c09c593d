"""The end of thought, written in time: Nemotron's published loop, written from its description and held by its
recorded decodes, beside ours; and what holds for every schedule and cache."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import DATA, full
from replay_causal import WAYS, Way, model_of
from replay_families import nemotron
from torch import Tensor

from dllm import Decoder, load, part
from dllm.parts import Canvas, Choice, ContextCausal, Fixed, Model, Request, ThinkingBudget, Transformer, UserError

MASK, EOS, END = 60, 61, 57
CASES = [
    one
    for one in json.loads((DATA / "goldens" / "nemotron.json").read_text())["cases"]
    if one["params"]["mode"] == "generate"
]


def network(case: dict[str, Any]) -> Transformer:
    return model_of(DATA / "models" / case["model"], torch.float64, case["params"]["block_length"], ContextCausal)


def published(network: Transformer, case: dict[str, Any]) -> dict[str, Any]:
    """The loop, one sequence, everything computed anew: prefill and seed; two-way forwards of a block; a causal one."""
    params, context = case["params"], list(case["prompt"])
    start, block, threshold = len(context), params["block_length"], params["threshold"]
    kinds, committed = ["prefill"], list[list[int]]()
    for _ in range(params["max_new_tokens"] // block):
        done = len(context) - start
        seed = int(logits(network, context, [])[-1].argmax())
        now = [seed, *[MASK] * (block - 1)]
        committed.append([done])
        if (
            "max_thinking_tokens" in params
            and done + block > params["max_thinking_tokens"]
            and END not in context[start:]
        ):
            now[max(0, params["max_thinking_tokens"] - done)] = END
        while MASK in now[: now.index(EOS) if EOS in now else block]:
            p, token = logits(network, context, now)[len(context) :].double().softmax(-1).max(-1)
            left = [at for at in range(block) if now[at] == MASK]
            best = max(left, key=lambda at: (p[at], -at))
            chosen = [at for at in left if at == best or (threshold is not None and p[at] >= threshold)]
            for at in chosen:
                now[at] = int(token[at])
            committed.append([done + at for at in chosen])
            kinds.append("two-way")
        context += now
        kinds.append("causal")
        if EOS in context[start:]:
            context = context[: context.index(EOS, start) + 1]
            break
    computed = [start, *[block] * (len(kinds) - 1)]
    return {
        "tokens": context,
        "nfe": len(kinds) - 1,
        "kinds": kinds,
        "committed": committed,
        "forward_tokens": computed,
    }


def logits(network: Transformer, context: list[int], block: list[int]) -> Tensor:
    tokens = torch.tensor([context + block])
    two_way = torch.arange(tokens.shape[1])[None] >= len(context)
    with torch.inference_mode():
        return network.logits(network.encode(tokens, masked=two_way, start=len(context)))[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["params"]["block_length"]))
def test_the_loop_written_here_is_the_recorded_one(case: dict[str, Any]) -> None:
    found = published(network(case), case)
    assert found == {name: case[name] for name in found}


PAIRS = [(budget, way) for at, budget in enumerate((0, 3, 8, 9)) for way in (WAYS if full() else WAYS[at : at + 1])]


@pytest.mark.parametrize(("budget", "way"), PAIRS)
def test_a_budget_is_the_published_one(budget: int, way: Way) -> None:
    written = 0
    for case in CASES:
        params = {**case["params"], "max_thinking_tokens": budget, "end_think_token_id": END}
        asked = {**case, "params": params}
        expected = published(network(case), asked)
        (found,) = nemotron([asked], DATA / "models" / case["model"], way)
        assert found == {name: expected[name] for name in found}
        written += END in found["tokens"] and END not in case["tokens"]
    assert written >= 2


ANSWERS = ((3, 8), (2, 7))  # tokens of the prompt, and of the answer


@pytest.mark.parametrize("budget", [4, 5])
@pytest.mark.parametrize("opened", [(0, 0), (4, 0), (4, 4)], ids=str)
@pytest.mark.parametrize("thought", [None, *range(11)])
def test_an_end_of_thought_counts_anywhere_in_the_answer_and_nowhere_else(
    thought: int | None, opened: tuple[int, int], budget: int
) -> None:
    """An end in column ``thought`` of both rows keeps the other from being written where it is in the answer, not where
    it is in the prompt or in the padding."""
    canvas = Canvas.of([Request.answer([3] * prompt, length, MASK) for prompt, length in ANSWERS], 0)
    blocks = Fixed(4).start(canvas)
    if thought is not None:
        columns = (canvas.columns == thought).expand_as(canvas.tokens)
        canvas = canvas.commit(columns & canvas.masked, torch.full_like(canvas.tokens, END))
        canvas = replace(canvas, tokens=torch.where(columns & ~canvas.masked, END, canvas.tokens))
    begin = canvas.start + torch.tensor(opened)
    blocks = replace(blocks, begin=begin, end=torch.minimum(begin + 4, canvas.end))
    after = ThinkingBudget(part("eos", "none"), budget, END).opened(canvas, blocks)
    for row, (prompt, length) in enumerate(ANSWERS):
        thinks, at = thought is None or not prompt <= thought < prompt + length, prompt + budget
        expected = [at] if thinks and begin[row] <= at < blocks.end[row] else []
        assert (after.tokens[row] != canvas.tokens[row]).nonzero()[:, 0].tolist() == expected
        assert (canvas.masked[row] & ~after.masked[row]).nonzero()[:, 0].tolist() == expected


@pytest.fixture(scope="module")
def words() -> Model:
    return load("mini-llada")


PROMPTS = ['Sort the list: ["Kai", "Emma", "Hugo"]', "Which names are there? Ada, Nell, Otto, Kai", "Reverse: Kai, Ada"]
WORD = "Otto"
SETTINGS = [
    ("confidence", "fixed", "none", "eager"),
    ("localleap", "fixed", "dual", "static"),
    ("confidence", "whole", "window", "static"),
    ("static", "adablock", "prefix", "eager"),
    ("eb", "whole", "elastic", "eager"),
    ("saber", "fixed", "none", "static"),
]


@pytest.mark.parametrize(("sampler", "blocks", "cache", "runtime"), SETTINGS, ids=lambda one: one)
def test_the_word_stands_where_its_block_opened(
    words: Model, sampler: str, blocks: str, cache: str, runtime: str
) -> None:
    """In every schedule, alone as in a batch, eager as static: at the budget, or earlier by the model itself."""
    budget, (word,) = 10, words.tokenizer.encode(WORD)
    more = {"block_length": 8} if blocks == "fixed" else {}
    made = part("blocks", blocks, **more)
    options = {"gen_length": 32, "thinking_budget": budget, "end_of_thought": WORD}
    alone = [Decoder(words, sampler, made, cache, **options)([one])[0] for one in PROMPTS]
    batch = Decoder(words, sampler, made, cache, batch_size=3, runtime=runtime, **options)(PROMPTS)
    for one, other in zip(alone, batch, strict=True):
        assert one.canvas == other.canvas
        answer = one.canvas[-32:]
        assert word in answer[: budget + 1] or words.ids.eos in answer[:budget], answer


def test_without_a_budget_nothing_is_written(words: Model) -> None:
    plain, off = (Decoder(words, gen_length=16, **more)(PROMPTS) for more in ({}, {"end_of_thought": WORD}))
    assert [one.canvas for one in plain] == [one.canvas for one in off]


@pytest.mark.parametrize(
    ("parts", "options", "sentence"),
    [
        (("confidence",), {"end_of_thought": "</think>"}, "must be one token, and mini-llada writes it in 4 tokens"),
        (("joint_threshold",), {}, "joint_threshold may replace it. Use sampler=confidence"),
        (("freedave",), {}, "freedave drafts whole turns"),
        (("confidence",), {"thinking_budget": -1}, "^thinking_budget=-1 must be at least 0"),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else None,
)
def test_what_cannot_think_to_a_budget(
    words: Model, parts: tuple[str, ...], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        Decoder(words, *parts, **{"thinking_budget": 4, "end_of_thought": WORD, **options})


def test_a_constraint_knows_no_budget(words: Model) -> None:
    decoder = Decoder(words, gen_length=16, thinking_budget=4, end_of_thought=WORD)
    with pytest.raises(UserError, match="thinking_budget=4 writes a token that a constraint does not know"):
        decoder(PROMPTS[:1], constraints=[Choice(("Kai", "Ada"))])
