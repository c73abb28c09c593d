"""Checks that parts fit one that changes the lengths of rows: what does not follow columns that move is refused."""

from __future__ import annotations

from collections.abc import Iterator

from dllm.cache.base import Cache
from dllm.contract.canvas import Canvas, Request
from dllm.contract.setting import Setting
from dllm.contract.traits import Schedule
from dllm.eos.base import EndOfText
from dllm.errors import IncompatibleParts, UserError, name_of
from dllm.lengths.base import Length
from dllm.samplers.base import Sampler


def check_length(setting: Setting, length: Length, sampler: Sampler, policy: Cache, eos: EndOfText) -> None:
    """Raise UserError for a part that cannot follow rows whose length changes, and for a length that cannot work."""
    length.check(setting)
    if not length.traits.changes:
        return
    name = f"length={name_of(length)} changes the length of rows"
    schedule, sampling = setting.blocks, setting.sampling
    if not schedule.traits.follows:
        raise UserError(
            f"{name}, and blocks={name_of(schedule)} does not say where a block ends after that. Use blocks=fixed or "
            "blocks=whole."
        )
    if not eos.traits.leaves_rows:
        raise UserError(f"{name}, and eos={name_of(eos)} shortens them by rules of its own. Use eos=none.")
    for what in lacking(sampler, schedule):
        raise UserError(f"{name}, but sampler={name_of(sampler)} {what}. Use sampler=confidence.")
    if sampling.guidance:
        raise UserError(
            f"{name}, but under sampling.guidance={sampling.guidance:g} a second canvas does not follow. Set "
            "sampling.guidance=0."
        )
    if sampling.thinking_budget is not None:
        raise UserError(
            f"{name}, and sampling.thinking_budget={sampling.thinking_budget} writes at a column of its own. Set it to "
            "null."
        )
    if not policy.traits.follows:
        raise IncompatibleParts(
            f"{name}, and cache={name_of(policy)} keeps keys and values by column. Use cache=none, or length=fixed."
        )


def lacking(sampler: Sampler, schedule: Schedule) -> Iterator[str]:
    """What keeps a sampler from following columns that move, as the end of a sentence."""
    found = {
        "branches": "offers several candidates", "verifies": "drafts tokens", "revocable": "takes tokens back",
        "edits": "replaces tokens", "soft": "shows mixtures of tokens", "renoises": "draws all positions again",
        "lookahead": "opens several blocks",
        "spans": "keeps the columns of a span",
        "commits_ahead": "commits several turns at once", "fixed_order": "plans which position comes when",
    }  # fmt: skip
    yield from (what for trait, what in found.items() if getattr(sampler.traits, trait))
    one = Canvas.of([Request.answer([0], 1, 0)], 0)
    if sampler.turns(one) is not None:
        yield "plans how many turns an answer takes"
    moved = {*sampler.per_request, *sampler.per_block}
    if any(value.dim() > 1 for name, value in sampler.start(one, schedule).items() if name not in moved):
        yield "remembers columns from block to block"
