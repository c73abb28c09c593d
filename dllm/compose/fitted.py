"""The parts of a decode, put together and fitted to a model: what command line, ``Decoder`` and server decode with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dllm.common.errors import Refusal
from dllm.compose.parts import build_part
from dllm.compose.validate import validate
from dllm.contract.clash import NO_BUDGET
from dllm.contract.setting import Sampling, Setting
from dllm.models.config import ModelConfig
from dllm.models.text.ids import Ids
from dllm.models.text.tokenizer import Tokenizer
from dllm.parts.blocks.base import Blocks
from dllm.parts.cache.base import Cache
from dllm.parts.eos.base import EndOfText
from dllm.parts.eos.stop_strings import StopStrings
from dllm.parts.eos.thinking_budget import ThinkingBudget
from dllm.parts.lengths.base import Length
from dllm.parts.lengths.fixed_length import FixedLength
from dllm.parts.samplers.base import Sampler


class Described(Protocol):
    """What is known of a model before its weights are read: of ``dllm.models.bundle.Model``, and of ``Prompts``."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def tokenizer(self) -> Tokenizer | None: ...

    @property
    def ids(self) -> Ids: ...

    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class Parts:
    """What a decode is put together from."""

    sampler: Sampler  # which positions are committed
    blocks: Blocks  # which are open
    cache: Cache  # what a forward computes
    eos: EndOfText  # what follows an end of text
    sampling: Sampling = Sampling()  # how a token is proposed at a position
    length: Length = FixedLength()  # how long rows are

    @property
    def steady(self) -> bool:
        """Whether rules alone commit, and take nothing back, so that masks only get fewer; and no second half of a row
        computes columns of its own (guidance)."""
        rule, blocks, eos = self.sampler.traits, self.blocks.traits, self.eos.traits
        apart = self.sampling.guidance and self.cache.traits.acts_in_layers
        return not (rule.revocable or blocks.rolls_back or eos.fills or eos.writes or apart)

    @staticmethod
    def of(config: Mapping[str, Any], sampling: Sampling) -> Parts:
        """The parts of a configuration, fitted to no model yet."""
        groups = ("sampler", "blocks", "cache", "eos", "length")
        parts = {group: build_part(group, config.get(group, {}), per_request=False) for group in groups}
        return Parts.from_groups(parts, sampling)

    def kept_numbers(self, columns: int, config: ModelConfig) -> int:
        """``Cache.kept_numbers`` of a row of ``columns``; guidance keeps each row twice."""
        open_columns = min(columns, self.blocks.widest(columns) * (1 + self.sampler.traits.lookahead))
        return (2 if self.sampling.guidance else 1) * self.cache.kept_numbers(columns, open_columns, config)

    @staticmethod
    def from_groups(parts: Mapping[str, Any], sampling: Sampling) -> Parts:
        """From parts by their groups (``length`` None: rows keep their lengths)."""
        return Parts(**{**parts, "length": parts["length"] or FixedLength()}, sampling=sampling)

    def fitted(self, model: Described, gen_length: int | None, stop: Sequence[str] = ()) -> Parts:
        """The same for a model: with its ids instead of texts, and checked. gen_length: masks after a prompt
        (None: infilling, where only the prompts tell). stop: strings that end an answer.

        Raises UserError for parts that do not fit each other or the model, and warns (SettingWarning) of those that may
        do harm.
        """
        tokenizer = model.tokenizer
        ids_of = None if tokenizer is None else tokenizer.encode
        blocks = self.blocks if ids_of is None else self.blocks.resolved(ids_of)
        eos, sampling = self.eos.resolved(model.ids), self.sampling.under(self.sampler)
        length = self.length.resolved(model.ids, model.config.max_length)
        path = getattr(model, "path", None)  # ``Prompts`` has none
        setting = Setting(model.config, blocks, gen_length, sampling, model.name, ids_of, path)
        sampler = validate(setting, self.sampler, self.cache, eos, length, stop)
        if sampling.thinking_budget is not None:
            eos = ThinkingBudget(eos, sampling.thinking_budget, end_of_thought(sampling.end_of_thought, model))
        if stop:
            eos = StopStrings(eos, stop, lambda ids: "" if tokenizer is None else tokenizer.decode(list(ids)))
        return replace(self, sampler=sampler, blocks=blocks, eos=eos, sampling=sampling, length=length)


def end_of_thought(text: str | None, model: Described) -> int:
    """The id of the token that ends a thought (None: the chat template's, else ``</think>``). Raises UserError where
    the tokenizer has no such token."""
    marks = None if model.tokenizer is None else model.tokenizer.thought_marks
    text = text or ("</think>" if marks is None else marks.end)
    ids = [] if model.tokenizer is None else model.tokenizer.encode(text, special=True)
    if len(ids) == 1:
        return ids[0]
    what = "has no tokenizer" if model.tokenizer is None else f"writes it in {len(ids)} tokens"
    raise Refusal(
        "{sampling.end_of_thought:quoted} must be one token, and {model:value} {what:value}.",
        {"sampling.end_of_thought": text, "model": model.name, "what": what},
        [NO_BUDGET],
        "Or name the token that ends its thoughts.",
    )
