"""From what a request asks for to the parts that decode it: composed, built and checked as for the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from dllm.common.errors import Wording
from dllm.compose.config_choices import choice_of, choices
from dllm.compose.fitted import Parts
from dllm.compose.parts import build_part, configurations, with_options
from dllm.contract.refusal import CHAT_WORDS
from dllm.contract.setting import Sampling
from dllm.models.bundle import Model
from dllm.parts.blocks.base import Blocks
from dllm.parts.lengths.base import Length
from dllm.parts.samplers.base import Sampler
from dllm.prompts import Prompts
from dllm.serve.engine.jobs import RequestParts
from dllm.serve.http.api_errors import SHORT, ApiError, as_refusal
from dllm.serve.http.offered import OFFERED_GROUPS, choice_and_options, is_offered, offer_of, offers, validated_options

MAX_SETTINGS = 256  # settings, and parts, that stay built
# Groups whose choices may bring one of another group, the nearest first.
BRINGERS = {"blocks": ("cache",), "eos": ("blocks", "cache")}


@dataclass(frozen=True)
class Defaults:
    """The server's own settings: the defaults of a request."""

    model: Model  # that the server decodes with
    name: str  # of the model, as served
    sampler: Mapping[str, Any]  # its configuration, as the server's command line composed it
    blocks: Mapping[str, Any]  # options of the block schedule
    cache: Mapping[str, Any]  # options of the cache
    eos: Mapping[str, Any]  # options of the end-of-text policy
    sampling: Sampling = field(default_factory=Sampling)  # temperature, filters, guidance
    gen_length: int = 128  # masks after the prompt, of an answer that keeps its length
    # configuration of the part that says how long answers are; empty: they keep the length that is asked for
    length: Mapping[str, Any] = field(default_factory=dict)
    begin: int | None = None  # masks with which an answer begins that changes its length; None: none does
    seed: int = 0  # of requests without randomness
    max_choices: int = 8  # answers to a prompt that one request may ask for
    max_answers: int = 64  # answers to all of its prompts that one request may ask for
    aliases: tuple[str, ...] = ()  # the model's other names
    # switches of the model's chat template that hold where a request gives none
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    # tokens of an answer at most where Anthropic's or Ollama's clients ask for more; None: all that the model leaves
    max_tokens: int | None = None
    fits: bool = False  # an answer has fewer masks where the prompt leaves fewer
    calibration: Mapping[str, float] = field(default_factory=dict)  # temperatures of decisions, by type of question
    refuses_unknown: bool = False  # fields that no one here knows are refused, instead of passed over with a note

    @property
    def names(self) -> tuple[str, ...]:
        """All names that a request may ask for."""
        return self.name, *self.aliases

    @property
    def listed_names(self) -> str:
        return " and ".join(map(repr, self.names))

    @cached_property
    def prompts(self) -> Prompts:
        """Makes requests. Plain prompts stay plain: only messages are put into the chat template."""
        model = self.model
        switches = self.chat_template_kwargs
        return Prompts(model.config, model.tokenizer, model.ids, model.name, self.gen_length, False, switches)

    @cached_property
    def parts(self) -> PartsBuilder:
        return PartsBuilder(self)

    def usual(self) -> RequestParts:
        """The parts of a request that asks for none. Raises UserError for settings that would fail in every one."""
        limit = None if self.begin is None else self.length["limit"]
        configs = {group: getattr(self, group) for group in OFFERED_GROUPS}
        return self.parts.build(configs, self.sampling, self.begin or self.gen_length, limit)

    def warm(self, goes_on: Callable[[], bool]) -> None:
        """Compose all that is offered, so that no request waits. goes_on: asked before each of 90 pieces of 80 ms."""
        if goes_on() and self.model.tokenizer is not None:
            self.model.tokenizer.least_tokens("")
        for group in OFFERED_GROUPS:
            for name in choices(group):
                if not goes_on():
                    return
                if is_offered(group, name):
                    offer_of(group, name)
                    configurations(group, name)
            offers(group)


class PartsBuilder:
    """Builds parts for requests, and keeps what it built by the options. Threads may share it."""

    def __init__(self, defaults: Defaults) -> None:
        self.defaults = defaults
        self.of = lru_cache(MAX_SETTINGS)(self._make_parts)  # the parts of a recipe
        self.by_request: dict[str, RequestParts] = {}  # by the request's settings
        self._part = lru_cache(MAX_SETTINGS)(self._make_part)

    def choose(
        self,
        settings: Mapping[str, Any],
        sampling: Sampling,
        gen_length: int | None,
        limit: int | None = None,
        words: Wording = CHAT_WORDS,
    ) -> RequestParts:
        """The parts that a request's ``diffusion`` field asks for. gen_length: None for infilling. limit: columns that
        an answer may have which changes its length (None: it keeps it). words: of the request. Raises ApiError."""
        choices = {name: settings[name] for name in (*OFFERED_GROUPS, *SHORT) if name in settings}
        key = json.dumps([choices, vars(sampling), gen_length, limit])
        if (parts := self.by_request.get(key)) is None:
            configs = {group: self._config(group, settings, words) for group in OFFERED_GROUPS}
            with as_refusal(words=words):
                parts = self.build(configs, sampling, gen_length, limit)
            if len(self.by_request) >= MAX_SETTINGS:
                self.by_request.clear()
            self.by_request[key] = parts  # choosing them takes 9 ms, four files of parts read and copied
        return parts

    def build(
        self,
        configs: Mapping[str, Mapping[str, Any]],
        sampling: Sampling,
        gen_length: int | None,
        limit: int | None = None,
    ) -> RequestParts:
        """The parts of configurations. gen_length, limit: as in ``choose``; an answer that grows begins with at most
        ``limit``. Raises UserError for those that do not fit."""
        length = self.defaults.length if self.defaults.begin is None else {}
        if limit is not None:
            length, gen_length = {**self.defaults.length, "limit": limit}, min(limit, self.defaults.begin or limit)
        configs = {**configs, "length": length} if length else configs
        return self.of(json.dumps([configs, vars(sampling), gen_length], sort_keys=True))

    def _config(self, group: str, settings: Mapping[str, Any], words: Wording) -> dict[str, Any]:
        """The configuration of a group: the server's, or that of the part asked for, with the options asked for."""
        field_of = {key: f"diffusion.{key}" for key, owner in SHORT.items() if owner == group and key in settings}
        with as_refusal(f"diffusion.{group}" if group in settings else next(iter(field_of.values()), None), words):
            config, choice, options = self._base(group, settings)
            for key in field_of:
                if key in options:
                    both = " and ".join(words.name(name) for name in (field_of[key], f"diffusion.{group}"))
                    sentence = f"{both}.{key} say the same thing twice. Drop one."
                    raise ApiError(400, sentence, words.name(f"diffusion.{group}"))
            options = validated_options(group, choice, options | {key: settings[key] for key in field_of})
            return with_options(group, choice, config, options)

    def _base(self, group: str, settings: Mapping[str, Any]) -> tuple[Mapping[str, Any], str, dict[str, Any]]:
        """Configuration, name and options to set, as far as the group itself says."""
        if group in settings:
            choice, options = choice_and_options(group, settings[group])
            return configurations(group, choice)[group], choice, options
        config: Mapping[str, Any] = getattr(self.defaults, group)
        for bringer in BRINGERS.get(group, ()):
            if bringer in settings:
                config = self._bundled_config(group, bringer, choice_and_options(bringer, settings[bringer])[0])
                break
        return config, choice_of(group, config), {}

    def _bundled_config(self, group: str, bringer: str, choice: str) -> Mapping[str, Any]:
        """The part that comes with the choice of another one, as on the command line: ``cache=elastic`` decodes without
        blocks. The server's own, unless that choice brings one, or the server's choice had brought it."""
        ours, usual = getattr(self.defaults, group), configurations("cache", "none")[group]
        if (config := configurations(bringer, choice)[group]) != usual:
            return config
        name = choice_of(bringer, getattr(self.defaults, bringer))
        ours_by_choice = configurations(bringer, name)[group] if is_offered(bringer, name) else usual
        return usual if ours_by_choice != usual and ours == ours_by_choice else ours

    def _make_parts(self, recipe: str) -> RequestParts:
        configs, fields, gen_length = json.loads(recipe)
        groups = (*OFFERED_GROUPS, "length")
        unfitted_parts = Parts.from_groups(
            {group: self._part(group, json.dumps(configs.get(group, {}))) for group in groups}, Sampling(**fields)
        )
        parts = unfitted_parts.fitted(self.defaults.model, gen_length)
        shared = {
            **configs,
            "sampler": shared_options(configs["sampler"], unfitted_parts.sampler),
            "blocks": shared_options(configs["blocks"], parts.blocks),
            "length": shared_options(configs.get("length", {}), parts.length),
        }
        heat = {**fields, "temperature": fields["temperature"] > 0}
        key = json.dumps([plain_numbers(shared), plain_numbers(heat)])
        return RequestParts(parts, configs, key, recipe)

    def _make_part(self, group: str, canonical: str) -> Any:
        return build_part(group, json.loads(canonical), per_request=False)


def shared_options(config: Mapping[str, Any], part: Sampler | Blocks | Length) -> dict[str, Any]:
    """A part's options less those that each row of a batch may have of its own, and so for the rule inside it."""
    options = {key: value for key, value in config.items() if key not in part.per_request}
    return {
        key: shared_options(value, getattr(part, key)) if isinstance(value, Mapping) else value
        for key, value in options.items()
    }


def plain_numbers(value: Any) -> Any:
    """``value`` with keys in order and 1 as 1.0, so that equal settings are written alike."""
    if isinstance(value, Mapping):
        return {key: plain_numbers(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [plain_numbers(entry) for entry in value]
    return float(value) if type(value) is int else value
