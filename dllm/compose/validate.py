"""Checks, before any weights are read, that the chosen parts fit each other and the model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

from dllm.blocks.base import Blocks
from dllm.cache.base import Cache
from dllm.compose.changing_lengths import check_length
from dllm.compose.parts import class_of, options_of_choices, part
from dllm.compose.soft_inputs import check_soft
from dllm.contract import Need
from dllm.contract.checks import needs_of
from dllm.contract.needs import readouts_of
from dllm.contract.setting import Setting
from dllm.eos.base import EndOfText
from dllm.errors import IncompatibleParts, UserError, in_range, name_of, warn_once
from dllm.lengths.base import Length
from dllm.lengths.fixed_length import FixedLength
from dllm.models.config import ModelConfig
from dllm.models.shipped import shipped_folder, shipped_models
from dllm.models.weights import read_model_config
from dllm.samplers.base import Sampler
from dllm.samplers.wrapper import nested


def check_ranks(size: int, policy: Cache, runtime: str) -> None:
    """Raise UserError for a cache or a runtime with which ``size`` ranks cannot share a model."""
    if size == 1:
        return
    if policy.traits.heads not in ("local", "summed"):
        raise IncompatibleParts(
            f"model.tp={size} gives each rank some of the heads, and cache={name_of(policy)} does not say how it reads "
            "them. Write heads='local' or heads='summed' in its traits, or set model.tp=1."
        )
    if runtime.startswith("compile"):
        raise UserError(
            f"model.tp={size} with runtime={runtime}: torch.compile does not read sums over ranks. Use "
            "runtime=cudagraph on GPUs, or runtime=static."
        )


def validate(
    setting: Setting,
    sampler: Sampler,
    policy: Cache,
    eos: EndOfText,
    length: Length = FixedLength(),  # noqa: B008  frozen
) -> Sampler:
    """Raise UserError, with the reason and the way out, for a setting that cannot work. Warn (SettingWarning) of one
    that may do harm. Returns the sampler, resolved for the setting."""
    in_range("gen_length", setting.gen_length, 1)
    if setting.gen_length is not None and setting.gen_length >= setting.model.max_length:
        raise UserError(
            f"gen_length={setting.gen_length} leaves no room for a prompt: the model's limit is "
            f"{setting.model.max_length} tokens."
        )
    setting.check_process(sampler)
    name, blocks = name_of(sampler), setting.blocks
    sampler = sampler.resolved(setting)
    if not isinstance(sampler, Sampler):
        raise UserError(f"sampler={name}: resolved() returned {sampler!r}, and must return the rule (return self).")
    assert isinstance(blocks, Blocks)
    check_soft(setting, sampler)
    sampler.check(setting)
    check_eos_last(setting, sampler)
    blocks.check(setting, sampler)
    eos.check(setting)
    check_end(sampler, eos)
    check_length(setting, length, sampler, policy, eos)
    asked: NeedsOfPart = {
        f"sampler={name}": ("sampler=confidence", needs_of("sampler", sampler)),
        f"blocks={name_of(blocks)}": ("blocks=fixed", needs_of("blocks", blocks)),
        f"eos={name_of(eos)}": ("eos=none", needs_of("eos", eos)),
        f"length={name_of(length)}": ("length=fixed", length.needs()),
    }
    needs = all_of(asked)
    needs_of("cache", policy)
    readouts = readouts_of(needs)
    setting.check_attention(sampler, needs)
    setting.check_regions(asked)
    setting.check_layers(sampler, readouts)
    if sum(one.reads_attention for one in readouts) > 1:
        raise UserError(
            "two parts read attention weights of different layers or rows, and a forward makes one set of them. Give "
            "both the same layers, or use one of them."
        )
    try:
        policy.check(setting, sampler, needs)
    except IncompatibleParts as error:
        raise UserError(f"{error} {way_out(setting, sampler, policy, asked)}.") from None
    if setting.sampling.doubts:
        check_doubted(setting, sampler, policy, needs)
    for sentence in (*(rule.warning(setting) for rule in nested(sampler)), policy.warning(setting)):
        if sentence:
            warn_once(sentence)
    return sampler


def check_eos_last(setting: Setting, sampler: Sampler) -> None:
    """Raise UserError for ``sampling.eos_last`` with a rule that does not rank by confidence."""
    if setting.sampling.eos_last and not sampler.traits.by_confidence:
        raise UserError(
            "sampling.eos_last=true ranks end-of-text proposals last by their confidence, but "
            f"sampler={name_of(sampler)} with these options does not rank by confidence alone. Set eos_last to false, "
            "or use sampler=confidence, localleap or static."
        )


def check_end(sampler: Sampler, eos: EndOfText) -> None:
    """Raise UserError for an end-of-text policy that acts before the rule has had its say."""
    if sampler.traits.edits and eos.traits.at_once:
        raise UserError(
            f"eos={name_of(eos)} acts on an end of text at once, but sampler={name_of(sampler)} may replace it as long "
            "as its block is open. Use eos=fill_after_block, or eos=none. (A policy of your own that waits until the "
            "block is full says at_once=False in its traits.)"
        )
    if sampler.traits.branches and sampler.traits.commits_ahead and eos.traits.fills:
        raise UserError(
            f"sampler={name_of(sampler)} drafts whole turns, but eos={name_of(eos)} fills positions between them, "
            "which no draft knows. Use eos=stop_at_last_eos, or eos=fill_after_block. (A policy of your own that "
            "decides nothing in rows that go on says fills=False in its traits.)"
        )


def check_doubted(setting: Setting, sampler: Sampler, policy: Cache, needs: Sequence[Need]) -> None:
    """Raise UserError for parts that a second forward, on a canvas that the first decides, does not serve."""
    traits, what, kind = policy.traits, "sampling.guidance_against=doubted", setting.model.attention
    if kind.name != "full":
        raise UserError(
            f"{what} masks decided tokens of earlier blocks, but this model is {kind.is_called}, and has never seen "
            "masks there. Set sampling.guidance=0, or use a model with full attention, such as mini-llada."
        )
    if not (traits.exact and traits.committed and "answer" in traits.regions):
        raise UserError(
            f"{what} masks decided tokens in a second forward, which keys that cache={name_of(policy)} holds know "
            "nothing of. Use cache=none, or sampling.guidance_against=prompt."
        )
    readouts = readouts_of(needs)
    if any(one.reads_attention or one.extra_queries or one.layer is not None for one in readouts):
        raise UserError(
            f"{what} takes two forwards in every turn, and sampler={name_of(sampler)} reads attention weights, inner "
            "layers or extra queries of one. Use sampler=confidence, or sampling.guidance_against=prompt."
        )
    if sampler.traits.branches:
        raise UserError(
            f"{what} takes two forwards in every turn, and sampler={name_of(sampler)} tries several canvases in each. "
            "Use sampler=confidence, or sampling.guidance_against=prompt."
        )


# What each part needs, by its name, with the choice that needs nothing but what is open.
NeedsOfPart = dict[str, tuple[str, Sequence[Need]]]


def all_of(asked: NeedsOfPart, but: str = "") -> tuple[Need, ...]:
    """What the parts need, ``but`` for one group of them."""
    return tuple(need for part, (_, own) in asked.items() if part.partition("=")[0] != but for need in own)


def way_out(setting: Setting, sampler: Sampler, policy: Cache, asked: NeedsOfPart) -> str:
    """What to choose instead of a policy that does not serve these parts, as the end of a sentence. Each way that it
    names has been tried."""
    if name := working(setting, sampler, all_of(asked)):
        return f"The nearest that works is cache={name}{to_serve(setting, sampler, policy, asked)}"
    rest = all_of(asked, but="sampler")
    tried = {
        f"model={name}": (replace(setting, model=_config(name)), sampler, all_of(asked)) for name in shipped_models()
    }
    for part_name, (way, own) in asked.items():
        group = part_name.partition("=")[0]
        if group == "sampler":
            tried[way] = (setting, _at_defaults("sampler", "confidence"), rest)
        elif own:
            blocks = _at_defaults("blocks", "fixed") if group == "blocks" else setting.blocks
            tried[way] = (replace(setting, blocks=blocks), sampler, all_of(asked, but=group))
    found = [(way, name) for way, parts in tried.items() if (name := working(*parts))]
    ways = [way if name == name_of(policy) else f"cache={name} with {way}" for way, name in found]
    return f"No cache serves these parts with this model: use {', or '.join(ways)}"


def to_serve(setting: Setting, sampler: Sampler, policy: Cache, asked: NeedsOfPart) -> str:
    """The shipped models and the drafting samplers with which the policy itself works, as the end of a sentence."""
    traits, rest = policy.traits, all_of(asked, but="sampler")
    other_model = not {"full", setting.model.attention.name} & traits.kinds
    drafts = bool(traits.verifies) and not sampler.traits.verifies
    models = [name for name in shipped_models() if _config(name).attention.name in traits.kinds] if other_model else []
    rules = {name: _at_defaults("sampler", name) for name in drafting(traits.verifies)} if drafts else {"": sampler}
    fits = [
        (model, name)
        for model, config in ({name: _config(name) for name in models} or {"": setting.model}).items()
        for name, rule in rules.items()
        if serves(policy, replace(setting, model=config), rule, (*rest, *rule.needs()))
    ]
    said = [f"; models for cache={name_of(policy)}: "] * other_model + ["; drafts for it: "] * drafts
    names = [dict.fromkeys(f"model={model}" for model, _ in fits)] * other_model
    names += [dict.fromkeys(f"sampler={name}" for _, name in fits)] * drafts
    return "".join(words + ", ".join(found) for words, found in zip(said, names, strict=True) if found)


def serves(policy: Cache, setting: Setting, sampler: Sampler, needs: Sequence[Need]) -> bool:
    """Whether the rule works in the setting, and the policy serves it there."""
    with suppress(UserError):
        sampler.check(setting)
        policy.check(setting, sampler, needs)
        return True
    return False


@cache
def drafting(verifies: str) -> tuple[str, ...]:
    """The samplers whose drafts a policy verifies so (``CacheTraits.verifies``)."""
    found: list[str] = []
    for name, options in options_of_choices("sampler").items():
        with suppress(UserError):  # a user's class may be missing
            kind: Any = class_of("sampler", options.get("_target_"))
            found += [name] if kind.traits.verifies == verifies else []
    return tuple(found)


@cache  # reading all configurations takes longer than checking the parts
def _config(name: str) -> ModelConfig:
    """The configuration of a shipped model."""
    return read_model_config(shipped_folder(name))


# The order of suggestions to a user who wanted a cache. The block-wise ones, which most samplers were published with,
# come early.
BY_REUSE = ("finished", "dual", "prefix", "elastic", "window", "dkv", "recap", "flash_verify", "linear_spec", "none")


def working(setting: Setting, sampler: Sampler, needs: Sequence[Need]) -> str | None:
    """The first cache, at its defaults, that serves these parts; None without one."""
    return next((name for name in BY_REUSE if serves(_at_defaults("cache", name), setting, sampler, needs)), None)


@cache  # composing the configuration of each takes 40 ms
def _at_defaults(group: str, name: str) -> Any:
    return part(group, name)
