"""Prompts in, results out: batches requests, runs the loop and collects what it yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from dllm.blocks.base import Blocks
from dllm.cache.base import Cache
from dllm.canvas import Canvas, Request
from dllm.collect import Collector
from dllm.denoise import Turn, denoise
from dllm.eos.base import EndOfText
from dllm.eos.stop_strings import StopStrings
from dllm.errors import UserError
from dllm.forward import Forward
from dllm.models.bundle import Model
from dllm.parts import part
from dllm.results import Result
from dllm.samplers.base import Sampler
from dllm.scores import Propose, Sampling
from dllm.setting import Setting, validate

Message = dict[str, str]
Prompt = str | list[Message] | list[int] | Request
Observer = Callable[[Turn], None]


class Decoder:
    """A model with its decoding parts. Parts are names from the configuration or objects of your own.

    >>> decoder = Decoder(load("mini-llada"), sampler="confidence", gen_length=32)  # doctest: +SKIP
    >>> print(decoder("Copy the list: [\\"Ann\\", \\"Bob\\"]")[0].text)  # doctest: +SKIP

    gen_length: masks after the prompt. chat: apply the model's chat template to string prompts (default: when it has
    one). stop: strings that end an answer. Raises UserError when the parts do not fit together or the model.
    """

    def __init__(
        self, model: Model, sampler: Sampler | str = "confidence", blocks: Blocks | str = "fixed",
        cache: Cache | str = "none", eos: EndOfText | str = "fill_after_block", *, gen_length: int = 128,
        batch_size: int = 1, sampling: Sampling | None = None, stop: Sequence[str] = (), chat: bool | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        self.model, self.gen_length, self.batch_size = model, gen_length, batch_size
        self.sampler: Sampler = part("sampler", sampler)
        self.blocks: Blocks = part("blocks", blocks)
        self.cache: Cache = part("cache", cache)
        policy: EndOfText = part("eos", eos)
        self.eos = StopStrings(policy, stop, self.decode_text) if stop else policy
        self.stop = tuple(stop)
        self.sampling = replace(sampling or Sampling(**options), tempered=self.sampler.tempered)
        self.chat = chat
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size} must be at least 1.")
        validate(Setting(model.config, self.blocks, gen_length), self.sampler, self.cache, self.eos)
        self.forward = self._forward()

    @property
    def pad_id(self) -> int:
        pad = self.model.config.pad_id
        return self.model.ids.eos if pad is None else pad

    def _forward(self) -> Forward:
        needs = (*self.sampler.needs(), *self.blocks.needs(), *self.eos.needs())
        wanted: frozenset[str] = frozenset().union(*(need.statistics for need in needs))
        propose = Propose(self.sampling, self.model.ids, wanted)
        return Forward(self.model.transformer, self.cache, propose, needs, self.eos.shrinks)

    def __call__(
        self, prompts: Prompt | list[Prompt], *, samples: int = 1, seed: int = 0, trace: bool = False,
        observe: Observer | None = None,
    ) -> list[Result]:  # fmt: skip
        """Decode one prompt or several, each ``samples`` times with distinct seeds, in the order given."""
        return list(self.iterate(prompts, samples=samples, seed=seed, trace=trace, observe=observe))

    def iterate(
        self, prompts: Prompt | list[Prompt], *, samples: int = 1, seed: int = 0, trace: bool = False,
        observe: Observer | None = None,
    ) -> Iterator[Result]:  # fmt: skip
        """Like calling, but yields each batch's results as soon as they are there."""
        requests = [
            (prompt, self.request(prompt, seed + number * samples + sample))
            for number, prompt in enumerate(as_list(prompts))
            for sample in range(samples)
        ]
        for at in range(0, len(requests), self.batch_size):
            yield from self._run(requests[at : at + self.batch_size], trace, observe)

    def request(self, prompt: Prompt, seed: int = 0) -> Request:
        """The canvas row of a prompt: text, chat messages, token ids, or a ready-made Request (infilling)."""
        if isinstance(prompt, Request):
            request = replace(prompt, seed=seed)
        else:
            request = Request.answer(self.encode(prompt), self.gen_length, self.model.ids.mask, seed)
        limit = self.model.config.max_length
        if len(request.tokens) > limit:
            raise UserError(
                f"the prompt and its answer take {len(request.tokens)} tokens, more than the model's {limit}. "
                "Shorten the prompt or lower gen_length."
            )
        return request

    def encode(self, prompt: str | list[Message] | list[int]) -> list[int]:
        """Token ids of a prompt. Raises UserError when there is none, or no tokenizer to make them."""
        tokens = self._encode(prompt)
        if not tokens:
            raise UserError("the prompt is empty: give it at least one token.")
        return tokens

    def _encode(self, prompt: str | list[Message] | list[int]) -> list[int]:
        if not isinstance(prompt, str) and is_ids(prompt):
            return cast(list[int], prompt)
        tokenizer = self.model.tokenizer
        if tokenizer is None:
            raise UserError(f"model {self.model.name} has no tokenizer: give prompts as lists of token ids.")
        if not isinstance(prompt, str):
            return tokenizer.chat(cast(list[Message], prompt))
        if not prompt.strip():
            raise UserError("the prompt is empty: give it some text.")
        chat = tokenizer.has_chat_template if self.chat is None else self.chat
        return tokenizer.chat([{"role": "user", "content": prompt}]) if chat else tokenizer.encode(prompt)

    def infill(self, parts: Sequence[str | int]) -> Request:
        """A request with masks anywhere: strings are text, numbers are that many masks, in order."""
        assert self.model.tokenizer is not None
        tokens: list[int] = []
        masked: list[bool] = []
        for piece in parts:
            ids = [self.model.ids.mask] * piece if isinstance(piece, int) else self.model.tokenizer.encode(piece)
            tokens += ids
            masked += [isinstance(piece, int)] * len(ids)
        return Request(tokens, masked)

    def decode_text(self, tokens: Sequence[int]) -> str:
        return "" if self.model.tokenizer is None else self.model.tokenizer.decode(list(tokens))

    def stream(self, prompt: Prompt, seed: int = 0) -> Iterator[Turn]:
        """The turns of one prompt as they happen."""
        with torch.inference_mode():
            yield from self._turns([self.request(prompt, seed)])

    def _turns(self, requests: Sequence[Request]) -> Iterator[Turn]:
        device = self.model.transformer.device
        at_zero = self.model.config.attention_block is not None
        canvas = Canvas.of(requests, self.pad_id, device, grid_at_zero=at_zero)
        return denoise(canvas, self.forward, self.sampler, self.blocks, self.eos)

    def _run(self, batch: Sequence[tuple[Prompt, Request]], trace: bool, observe: Observer | None) -> list[Result]:
        requests = [request for _, request in batch]
        collector = Collector(requests, self.model.ids, self.decode_text, self.stop, trace)
        with torch.inference_mode():
            for turn in self._turns(requests):
                collector.observe(turn)
                if observe is not None:
                    observe(turn)
        return [
            replace(result, prompt=prompt if isinstance(prompt, str) else "")
            for result, (prompt, _) in zip(collector.results(), batch, strict=True)
        ]


def is_ids(prompt: list[Any]) -> bool:
    return all(isinstance(token, int) for token in prompt)


def as_list(prompts: Prompt | list[Prompt]) -> list[Prompt]:
    """Several prompts as they are, one prompt as a list of one."""
    if isinstance(prompts, str | Request) or (prompts and (is_ids(prompts) or isinstance(prompts[0], dict))):
        return [cast(Prompt, prompts)]
    return cast(list[Prompt], prompts)


__all__ = ["Decoder", "Prompt"]
