"""Answers items with choices: by the likeliest of them."""

from __future__ import annotations

from typing import cast

from dllm.common.errors import UserError
from dllm.models.bundle import Model
from dllm.prompts import Message, PrefilledPrompt, Prompts
from dllm.record.results import Result
from dllm.record.stopwatch import Stopwatch, machine_load
from dllm.scoring.decisions.likelihood import Estimator, Likelihood
from dllm.tasks.base import Item


def likeliest_choice(model: Model, prompts: Prompts, item: Item, estimator: Estimator) -> Result:
    """The likeliest of the item's choices, in the form of a decode: its text, tokens, forwards and seconds.

    No sampler, block schedule, cache or end-of-text policy is involved. Raises UserError for a prompt of other kinds
    than text and messages.
    """
    if not isinstance(item.prompt, str | list):
        raise UserError(f"item {item.id!r} offers choices, which need a prompt of text or messages.")
    question = cast(str | list[Message], item.prompt)
    prompt = prompts.encode(question)
    targets = [prompts.encode(PrefilledPrompt(question, choice))[len(prompt) :] for choice in item.choices]
    watch = Stopwatch.on(model.transformer.device)
    estimates = Likelihood(model, estimator).compare(prompt, targets)
    seconds, cpu_seconds = watch.seconds(), watch.cpu_seconds()
    best = max(range(len(estimates)), key=lambda at: estimates[at].value)
    return Result(
        prompt_tokens=prompt,
        tokens=targets[best],
        text=item.choices[best],
        canvas=targets[best],
        nfe=sum(e.forwards for e in estimates),
        query_tokens=sum(e.query_tokens for e in estimates),
        seconds=seconds,
        stop_reason="length",
        seed=estimator.seed,
        turns=[0] * len(targets[best]),
        words=prompts.words(targets[best]),
        cpu_seconds=cpu_seconds,
        load=machine_load(),
        device=model.transformer.device.type,
    )
