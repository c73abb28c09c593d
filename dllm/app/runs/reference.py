"""The reference of ``sampler=oracle`` where none is given: one token per step, in forwards that do not count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dllm.contract.canvas import Request
from dllm.decoder import Decoder
from dllm.record.bounds import GuessRecorder, lossless_minimum
from dllm.samplers.base import Sampler
from dllm.samplers.oracle import Oracle
from dllm.samplers.static import Static

ORACLE = f"{Oracle.__module__}.{Oracle.__name__}"


def with_reference(sampler: Mapping[str, Any]) -> Mapping[str, Any]:
    """A sampler's configuration. An oracle without a reference gets an empty one, which each batch then fills."""
    missing = sampler["_target_"] == ORACLE and sampler["reference"] is None
    return {**sampler, "reference": []} if missing else sampler


def needs_reference(sampler: Sampler) -> bool:
    """Whether this is an oracle with an empty reference."""
    return isinstance(sampler, Oracle) and not sampler.reference


def one_per_step(decoder: Decoder) -> Decoder:
    """A decoder like this one with one token per step."""
    parts = decoder.parts
    return Decoder(
        decoder.model, Static(), parts.blocks, parts.cache, parts.eos, gen_length=decoder.gen_length,
        batch_size=decoder.batch_size, sampling=replace(parts.sampling, tempered=False), stop=decoder.stop,
        chat=decoder.prompts.chat, chat_template_kwargs=decoder.prompts.chat_template_kwargs,
    )  # fmt: skip


def reference_oracle(slow: Decoder, requests: Sequence[Request]) -> tuple[Oracle, list[int]]:
    """The oracle of a batch, and each request's lossless minimum of forwards. slow: decodes one token per step."""
    guesses = GuessRecorder()
    found = dict(slow.run(requests, observe=guesses))
    numbers = range(len(requests))
    minimum = [lossless_minimum(guesses.requests.get(number, [])) for number in numbers]
    return Oracle([found[number].canvas for number in numbers]), minimum
