"""What does not go together whichever parts are chosen, by their traits and by the model. What one part alone cannot
do is in its class (``clashes``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from dllm.common.errors import IncompatibleParts, Refusal, Set
from dllm.contract.canvas import Canvas, Request
from dllm.contract.clash import (
    COLD,
    NEUTRAL_SAMPLING,
    NO_BUDGET,
    ROWS_STAY,
    UNGUIDED,
    USE_CONFIDENCE,
    USE_FIXED,
    USE_NO_CACHE,
    USE_NO_POLICY,
    Clash,
    PartRows,
    Selection,
    all_of,
    first_clash,
    switched_off,
)
from dllm.parts.samplers.wrapper import nested

LEFT_TO_RIGHT = Set("sampler", "order") & Set("sampler.positions", "left_to_right")
_PROCESS = (
    Clash(lambda c: c.attention.next_token and not c.does.left_to_right,
          "{sampler} asks the model what stands at masks, but {model.architecture:value} predicts the next token "
          "alone: it has no mask, and was trained on none.", [LEFT_TO_RIGHT],
          "(On the command line, experiment=ar is that with the exact cache.)"),
    Clash(lambda c: c.attention.one_by_one and not c.does.left_to_right,
          "{sampler} needs a model that fills masks, but {model.architecture:value} in blocks of one column predicts "
          "the next token alone.", [LEFT_TO_RIGHT],
          "(On the command line, experiment=ar is that with the exact cache.)"),
    Clash(lambda c: c.gen_length is not None and c.gen_length >= c.model.max_length,
          "{gen_length} leaves no room for a prompt: the model's limit is {model.max_length:value} tokens."),
    Clash(lambda c: c.model.process == "uniform" and not c.does.renoises,
          "{sampler} decides masks for good, but {model.architecture:value} was trained to undo noise: it has no mask, "
          "and what a position shows is decided again in every forward.", [Set("sampler", "renoise")]),
    Clash(lambda c: c.model.process != "uniform" and c.does.renoises,
          "{sampler} undoes noise, but {model.architecture:value} was trained to fill masks.", [USE_CONFIDENCE]),
    Clash(lambda c: c.does.renoises and not (isinstance(heat := c.sampling.temperature, int | float) and heat == 0),
          "{sampling.temperature}: {sampler} sets the temperature of every forward itself, by options of its own.",
          [COLD]),
    Clash(lambda c: c.does.renoises and c.attention.block is not None and not (
              c.blocks.fixed_length == c.attention.block and _alone(c)) and _options_of_blocks(c),
          "{blocks}{what:value}: {model.architecture:value} denoises canvases of {model.attention.block:value} "
          "columns, each whole and one after the other.",
          [lambda c: USE_FIXED & Set("blocks.block_length", c.attention.block)]),
)  # fmt: skip
EARLY_ROWS: PartRows = "", None, _PROCESS  # a sampler is resolved for a model


def _alone(c: Selection) -> bool:
    """Whether blocks are decided for good, one after the other."""
    return c.blocks.traits.one_at_a_time and not c.blocks.traits.rolls_back


def _options_of_blocks(c: Selection) -> Mapping[str, Any]:
    """What a sentence about the length of blocks says of it."""
    length = c.blocks.fixed_length
    return {"what": "" if length is None else f" of {length} columns"}


_ATTENTIONS = {"decided": ("block-causal",), "undecided": ("full", "block-causal")}  # by ``Soft.at``
_SHOWS = "{sampler} shows mixtures of tokens and the mask"
_SOFT = (  # where a rule shows mixtures
    Clash(lambda c: c.model.prediction_shift or c.model.seed_shift,
          _SHOWS + " at the position that they predict, but this model predicts it from the one before.",
          [USE_CONFIDENCE], "A model without that shift, such as LLaDA2, goes with it, too."),
    Clash(lambda c: (c.attention.name not in (kinds := _ATTENTIONS[c.sampler.traits.soft.at]) or c.model.carries)
          and " or ".join(kinds),
          _SHOWS + " to models with {what:value} attention, and this one is {kind:value}.", [USE_CONFIDENCE]),
    Clash(lambda c: not c.blocks.traits.follows or c.does.lookahead,
          _SHOWS + " in one block at a time, whose columns are known before it opens, and {blocks} does otherwise.",
          [USE_FIXED]),
    Clash(lambda c: c.sampling.guidance,
          _SHOWS + ", which say what the model alone expects, and {sampling.guidance} mixes two forwards.", [UNGUIDED]),
    Clash(lambda c: not c.sampling.plain or c.sampling.eos_last,
          _SHOWS + ", and its published code takes the argmax: {sampling.temperature:name}, {sampling.top_p:name}, "
          "{sampling.top_k:name} and {sampling.eos_last:name} do not apply.", [switched_off(*NEUTRAL_SAMPLING)]),
)  # fmt: skip
_EOS_LAST = (
    Clash(
        lambda c: c.sampling.eos_last and not c.does.by_confidence,
        "{sampling.eos_last} ranks end-of-text proposals last by their confidence, but {sampler} with these options "
        "does not rank by confidence alone.",
        [Set("sampling.eos_last", False), USE_CONFIDENCE, Set("sampler", "localleap"), Set("sampler", "static")],
    ),
)
_ENDS = (
    Clash(
        lambda c: c.does.edits and c.eos.traits.at_once,
        "{eos} acts on an end of text at once, but {sampler} may replace it as long as its block is open.",
        [Set("eos", "fill_after_block"), USE_NO_POLICY],
        "(A policy of your own that waits until the block is full says at_once=False in its traits.)",
    ),
    Clash(
        lambda c: c.does.branches and c.does.commits_ahead and c.eos.traits.fills,
        "{sampler} drafts whole turns, but {eos} fills positions between them, which no draft knows.",
        [Set("eos", "stop_at_last_eos"), Set("eos", "fill_after_block")],
        "(A policy of your own that decides nothing in rows that go on says fills=False in its traits.)",
    ),
)

# Why a rule cannot follow columns that move, by its traits.
_STAYS = {
    "branches": "offers several candidates",
    "verifies": "drafts tokens",
    "revocable": "takes tokens back",
    "edits": "replaces tokens",
    "soft": "shows mixtures of tokens",
    "renoises": "draws all positions again",
    "lookahead": "opens several blocks",
    "spans": "keeps the columns of a span",
    "commits_ahead": "commits several turns at once",
    "fixed_order": "plans which position comes when",
}


def _cannot_follow(c: Selection) -> str | None:
    """What keeps a sampler from following columns that move, as the end of a sentence."""
    if why := next((why for trait, why in _STAYS.items() if getattr(c.does, trait)), None):
        return why
    canvas, sampler = Canvas.of([Request.answer([0], 1, 0)], 0), c.sampler
    if sampler.turns(canvas) is not None:
        return "plans how many turns an answer takes"
    moved = {*sampler.per_request, *sampler.per_block}
    state = sampler.start(canvas, c.blocks)
    remembers = any(value.dim() > 1 for name, value in state.items() if name not in moved)
    return "remembers columns from block to block" if remembers else None


_CHANGES = "{length} changes the length of rows"
_LENGTHS = (  # where rows change their length
    Clash(
        lambda c: not c.blocks.traits.follows,
        _CHANGES + ", and {blocks} does not say where a block ends after that.",
        [USE_FIXED, Set("blocks", "whole")],
        at="blocks",
    ),
    Clash(
        lambda c: not c.eos.traits.leaves_rows,
        _CHANGES + ", and {eos} shortens them by rules of its own.",
        [USE_NO_POLICY],
        at="eos",
    ),
    Clash(_cannot_follow, _CHANGES + ", but {sampler} {what:value}.", [USE_CONFIDENCE], at="sampler"),
    Clash(
        lambda c: c.sampling.guidance,
        _CHANGES + ", but under {sampling.guidance} a second canvas does not follow.",
        [UNGUIDED],
        at="sampling.guidance",
    ),
    Clash(
        lambda c: c.sampling.thinking_budget is not None,
        _CHANGES + ", and {sampling.thinking_budget} writes at a column of its own.",
        [NO_BUDGET],
        at="sampling.thinking_budget",
    ),
    Clash(
        lambda c: not c.cache.traits.follows,
        _CHANGES + ", and {cache} keeps keys and values by column.",
        [USE_NO_CACHE, ROWS_STAY],
        at="cache",
        kind=IncompatibleParts,
    ),
)

# Parts that read neither a later block nor committed tokens.
WITHOUT_AHEAD = {"sampler": USE_CONFIDENCE, "blocks": USE_FIXED, "eos": USE_NO_POLICY, "length": ROWS_STAY}


def _reads_ahead(c: Selection) -> list[str]:
    """The groups of parts that read what is after the open block."""
    return [
        group
        for group, needs in c.needs_by_group.items()
        if any(need.region not in ("block", "before") for need in needs)
    ]


def _scores_committed(group: str) -> Clash:
    """The row for models whose decided columns tell nothing; ``group`` is the first whose part scores them."""
    return Clash(
        lambda c: (
            not c.attention.judges
            and [name for name, needs in c.needs_by_group.items() if any(need.committed for need in needs)][:1]
            == [group]
        ),
        f"{{{group}}} scores committed tokens, but {_KIND}, and it predicts masks alone.",
        [WITHOUT_AHEAD[group]],
    )


def _ahead(group: str) -> Clash:
    """The row for models that predict one block at a time; ``group`` is the first whose part reads more."""
    return Clash(
        lambda c: not c.attention.everywhere and group in _reads_ahead(c)[:1],
        f"{{{group}}} reads what is after the open block, but {_KIND}, and it predicts one block at a time.",
        [lambda c: all_of(*(WITHOUT_AHEAD[reader] for reader in _reads_ahead(c)))],
    )


_KIND = "this model's attention is {kind:value}"
_LAYER = "{sampler} reads {what:value}, "
_SEES = (  # where not all columns see all others
    Clash(
        lambda c: c.attention.causal and c.sampling.guidance,
        "{sampling.guidance} needs a prompt of masks, which means nothing where, as here, " + _KIND + ".",
        [UNGUIDED],
    ),
    Clash(
        lambda c: c.attention.causal and any(readout.extra_queries for readout in c.reads),
        "{sampler} computes extra queries that stand in for committed tokens, but " + _KIND + ".",
        [USE_CONFIDENCE],
    ),
    Clash(
        lambda c: (
            c.attention.sealed
            and any(readout.reads_attention or readout.extra_queries or readout.reads_hidden for readout in c.reads)
        ),
        "{sampler} reads attention or hidden states, or computes extra queries beside the canvas, but this model is "
        "{kind:value}.",
        [USE_CONFIDENCE],
    ),
    *map(_scores_committed, WITHOUT_AHEAD),
    Clash(
        lambda c: not c.attention.everywhere and c.does.edits,
        "{sampler} goes on with a block that is full, but " + _KIND + ", and a full block is predicted no more.",
        [USE_CONFIDENCE],
    ),
    Clash(
        lambda c: not c.attention.everywhere and (c.does.branches or c.does.lookahead),
        "{sampler} tries tokens of several blocks, but " + _KIND + ", and it predicts one block at a time.",
        [USE_CONFIDENCE],
    ),
    *map(_ahead, WITHOUT_AHEAD),
)
_READS = (
    Clash(lambda c: c.model.carries and next((str(readout) for readout in c.reads if readout.layer is not None), None),
          _LAYER + "but {model.architecture:value} runs its layers in two passes, and shows what leaves the last one "
          "only.", [USE_CONFIDENCE], "(A rule of your own reads HiddenState().)"),
    Clash(lambda c: next((
              {"what": readout, "count": count, "last": count - 1} for readout in c.reads for count in (c.model.layers,)
              if readout.layer is not None and not -count <= readout.layer < count), None),
          _LAYER + "and this model has layers 0 to {last:value}, or -{count:value} to -1 from the last.",
          [USE_CONFIDENCE], "(A rule of your own names one of these.)"),
    Clash(lambda c: sum(readout.reads_attention for readout in c.reads) > 1,
          "two parts read attention weights of different layers or rows, and a forward makes one set of them.",
          [USE_CONFIDENCE], "Give both the same layers, or use one of them.", "sampler"),
)  # fmt: skip

_TWO_FORWARDS = "{sampling.guidance_against} takes two forwards in every turn, and {sampler} "
_AGAINST_PROMPT = Set("sampling.guidance_against", "prompt")
_DOUBTED = (  # where guidance is against doubted tokens
    Clash(
        lambda c: c.attention.name != "full",
        "{sampling.guidance_against} masks decided tokens of earlier blocks, but this model is {kind:value}, and has "
        "never seen masks there.",
        [UNGUIDED, Set("model", "mini-llada")],
    ),
    Clash(
        lambda c: not ((has := c.cache.traits).exact and has.committed and "answer" in has.regions),
        "{sampling.guidance_against} masks decided tokens in a second forward, which keys that {cache} holds know "
        "nothing of.",
        [USE_NO_CACHE, _AGAINST_PROMPT],
    ),
    Clash(
        lambda c: any(
            readout.reads_attention or readout.extra_queries or readout.layer is not None for readout in c.reads
        ),
        _TWO_FORWARDS + "reads attention weights, inner layers or extra queries of one.",
        [USE_CONFIDENCE, _AGAINST_PROMPT],
    ),
    Clash(
        lambda c: c.does.branches, _TWO_FORWARDS + "tries several canvases in each.", [USE_CONFIDENCE, _AGAINST_PROMPT]
    ),
)
_ENDINGS = (
    Clash(lambda c: c.sampling.thinking_budget is not None and (
              "may replace it" if c.does.edits else "undoes noise in whole blocks" if c.does.renoises
              else "drafts whole turns, which know nothing of it" if c.does.branches or c.does.verifies else ""),
          "{sampling.thinking_budget} writes the end of thought into a block, and {sampler} {what:value}.",
          [USE_CONFIDENCE, NO_BUDGET]),
    Clash(lambda c: c.stop and c.length.traits.changes and {"stop": list(c.stop)},
          "{stop} ends rows whose length {length} says.", [ROWS_STAY], "Or drop {stop:name}."),
)  # fmt: skip
RANKS = (
    Clash(
        lambda c: c.ranks > 1 and c.cache.traits.heads not in ("local", "summed") and {"model.tp": c.ranks},
        "{model.tp} gives each rank some of the heads, and {cache} does not say how it reads them.",
        [Set("model.tp", 1)],
        "(A cache of your own says heads='local' or heads='summed' in its traits.)",
        kind=IncompatibleParts,
    ),
    Clash(
        lambda c: c.ranks > 1 and c.runtime.startswith("compile") and {"model.tp": c.ranks, "runtime": c.runtime},
        "{model.tp} with {runtime}: torch.compile does not read sums over ranks.",
        [Set("runtime", "cudagraph"), Set("runtime", "static")],
    ),
)


def tables(c: Selection) -> Iterator[PartRows]:
    """The rows that a combination is tried with, in order."""
    yield "", None, _SOFT if c.does.soft is not None else ()
    for rule in reversed([*nested(c.sampler)]):
        yield "sampler", rule, rule.clashes
    yield "", None, _EOS_LAST
    yield "blocks", c.blocks, c.blocks.clashes
    yield "eos", c.eos, c.eos.clashes
    yield "", None, _ENDS
    yield "length", c.length, c.length.clashes
    yield "", None, _LENGTHS if c.length.traits.changes else ()
    yield "", None, _SEES if c.attention.name != "full" else ()
    yield "", None, _READS
    yield "cache", c.cache, c.cache.clashes
    yield "", None, _DOUBTED if c.sampling.doubts else ()
    yield "", None, _ENDINGS


def clash_in(c: Selection) -> Refusal | None:
    """What the parts are refused for, without the ways out that are searched; None: they go together. Raises UserError
    for a sampler that cannot be resolved."""
    if (early := first_clash(c, [EARLY_ROWS])) is not None:
        return early
    c = replace(c, sampler=c.sampler.resolved(c.setting))
    return first_clash(c, tables(c))
