"""Checks, before any weights are read, that the chosen parts fit each other and the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from dllm.common.errors import IncompatibleParts, Refusal, in_range, name_of, warn_once
from dllm.compose.clashes import EARLY_ROWS, RANKS, tables
from dllm.compose.nearest import ways_out
from dllm.contract.clash import PartRows, Selection, first_clash, refuse_clashes
from dllm.contract.setting import Setting
from dllm.parts.cache.base import Cache
from dllm.parts.eos.base import EndOfText
from dllm.parts.lengths.base import Length
from dllm.parts.lengths.fixed_length import FixedLength
from dllm.parts.samplers.base import Sampler
from dllm.parts.samplers.wrapper import nested


def check_ranks(size: int, policy: Cache, runtime: str) -> None:
    """Raise Refusal for a cache or a runtime with which ``size`` ranks cannot share a model."""
    refuse_clashes(Selection(cast(Any, None), None, policy, runtime=runtime, ranks=size), ("", None, RANKS))


def validate(
    setting: Setting,
    sampler: Sampler,
    policy: Cache,
    eos: EndOfText,
    length: Length | None = None,
    stop: Sequence[str] = (),
) -> Sampler:
    """Raise Refusal, with the reason and the ways out, for a setting that cannot work. Warn (SettingWarning) of one
    that may do harm. Returns the sampler, resolved for the setting."""
    in_range("gen_length", setting.gen_length, 1)
    selection = Selection(setting, sampler, policy, eos, length or FixedLength(), stop=stop)
    _refuse(selection, [EARLY_ROWS])
    sampler, name = sampler.resolved(setting), name_of(sampler)
    if not isinstance(sampler, Sampler):
        raise Refusal(f"{{sampler}}: resolved() returned {sampler!r}, and must return the rule (return self).", [name])
    selection = replace(selection, sampler=sampler)
    _refuse(selection, tables(selection))
    for sentence in (*(rule.warning(setting) for rule in nested(sampler)), policy.warning(setting)):
        if sentence:
            warn_once(sentence)
    return sampler


def _refuse(selection: Selection, rows: Iterable[PartRows]) -> None:
    """Raise the first clash. Where a cache does not serve the parts, its ways out are those that work."""
    refusal = first_clash(selection, rows)
    if isinstance(refusal, IncompatibleParts) and selection.eos is not None:
        refusal = refusal.but((*refusal.use, *(way for way in ways_out(selection) if way not in refusal.use)))
    if refusal is not None:
        raise refusal
