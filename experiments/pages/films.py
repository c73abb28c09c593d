"""A film of every sampler and a picture of every cache: ``python -m experiments.pages.pictures`` writes them.

All films show one prompt, so that rules can be compared: a Latin square, whose frame is sure at once and whose letters
depend on each other. A column is a position, a line a forward; a token stands where it is committed, in the colour of
its forward, and stays below until it is taken back or replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any
from unittest.mock import patch

from dllm import Decoder, Model, Trace, load, part
from dllm.common.palette import hexes
from dllm.compose.config_choices import choices
from dllm.contract import ForwardPlan
from dllm.loop.rows import Rows
from experiments.pages.drawing import DIM, Drawing

SQUARE = "Latin square: A,B,C,D"
WIDE, TALL, LEFT, TOP = 15, 15, 34, 6  # of a cell, and around all cells; in pixels
MASKED, KEPT = "#e4e4ea", "#f5f5f8"
LENGTH = 32
# What a rule needs beside its defaults; one block without an end-of-text policy where nothing is said.
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "d2f": {
        "model": "mini-llada",
        "attention_block": 8,
        "blocks": ("pipelined", {"block_length": 8}),
        "cache": "finished",
        "eos": "stop_opening",
    },
    "d3llm": {"blocks": ("ahead", {"block_length": 8}), "cache": "delayed"},
    "dream": {"model": "mini-dream", "options": {"steps": 16}},
    "flash_verify": {"cache": "flash_verify", "eos": "stop_at_last_eos"},
    "groups": {"options": {"steps": 16}},
    "linear_spec": {
        "model": "mini-nbdiff",
        "blocks": ("sliding", {"block_length": 8}),
        "cache": ("linear_spec", {"window_length": 8}),
        "eos": "stop_front",
    },
    "order": {"options": {"positions": "left_to_right"}},
    "prior": {"options": {"over_thresholds": True}},
    "remdm": {"options": {"per_step": 2, "number": 1}},
    "slowfast": {"cache": "span"},
}
NO_FILM = {"ancestral", "dmax", "renoise"}  # no model that is trained for them is here


@cache
def model_of(name: str, **options: Any) -> Model:
    return load(name, **options)


def made(group: str, choice: str | tuple[str, Mapping[str, Any]]) -> Any:
    name, options = (choice, {}) if isinstance(choice, str) else choice
    return part(group, name, **options)


def decoded(sampler: str) -> Trace:
    """The traced decode of a sampler's film."""
    said = SETTINGS.get(sampler, {})
    model = model_of(said.get("model", "mini-llada"), **{k: v for k, v in said.items() if k == "attention_block"})
    options = dict(said.get("options", {}))
    if sampler == "oracle":
        options["reference"] = [Decoder(model, "static", "whole", eos="none", gen_length=LENGTH)(SQUARE)[0].canvas]
    decoder = Decoder(
        model,
        part("sampler", sampler, **options),
        made("blocks", said.get("blocks", "whole")),
        made("cache", said.get("cache", "none")),
        made("eos", said.get("eos", "none")),
        gen_length=LENGTH,
    )
    return decoder(SQUARE, trace=True)[0].traced()


def film(trace: Trace, title: str) -> str:
    """The SVG of a decode: what each position shows from which forward on."""
    lines = list(trace.answers())
    turns, width = len(lines) - 1, min(map(len, lines))
    drawing = Drawing.of(LEFT + WIDE * width + 6, TOP * 2 + TALL * (turns + 1))
    drawing.box(LEFT, TOP, WIDE * width, TALL * (turns + 1), MASKED)
    begun: dict[int, list[tuple[int, int, str]]] = {}  # by the forward that commits: column, lines, letter
    for column in range(width):
        for first, last, token in stays([line[column] for line in lines], trace.mask_id):
            begun.setdefault(first, []).append((column, last - first, shown(trace.words[token])))
    for first, cells in sorted(begun.items()):
        ground, letters = hexes(max(first - 1, 0), turns)
        y = TOP + TALL * first
        drawing.boxes([(LEFT + WIDE * column, y, WIDE - 1, TALL * tall) for column, tall, _ in cells], ground)
        drawing.letters([(LEFT + WIDE * column + 3, letter) for column, _, letter in cells], y + 12, letters)
    numbered(drawing, turns)
    return drawing.svg(title)


def numbered(drawing: Drawing, turns: int) -> None:
    """The numbers of forwards at the left; 0: the start."""
    for turn in range(0, turns + 1, 4 if turns > 8 else 1):
        drawing.text(LEFT - 6, TOP + TALL * turn + 12, str(turn), DIM, "end")


def stays(tokens: Sequence[int], mask: int | None) -> Iterator[tuple[int, int, int]]:
    """The runs of one token at a position: first line, line after the last, token."""
    first = 0
    for at in range(1, len(tokens) + 1):
        if at == len(tokens) or tokens[at] != tokens[first]:
            if tokens[first] != mask:
                yield first, at, tokens[first]
            first = at


def shown(word: str) -> str:
    """A token in one letter."""
    if word.startswith("<|"):
        return "\N{END OF PROOF}"
    return "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}" if word == "\n" else (word.strip(" ") or " ")[0]


def sampler_films() -> Iterator[tuple[str, str]]:
    """Name and SVG of each sampler's film."""
    for name in choices("sampler"):
        if name not in NO_FILM:
            yield name, film(decoded(name), f"sampler={name}: what each forward commits")


# -- caches -----------------------------------------------------------------------------------------------------

CACHE_PROMPT = 'Sort the list:\n["Nell", "Kai", "Emma"]'
COMPUTED, WRITTEN, ATTENDED = "#31688e", "#e69f00", "#cfd8e3"  # computed; the answer's start; kept and attended to
CACHE_CELL = 7  # width of a column
# What a cache needs beside its defaults, small enough that a short answer shows its turns.
CACHE_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "d2cache": {"options": {"masks": 6}},
    "delayed": {"blocks": ("ahead", {"block_length": 8})},
    "dkv_greedy": {"sampler": ("order", {"positions": "left_to_right"})},
    "dkv_pd": {"model": "mini-dream"},
    "dkv_prefill": {"model": "mini-dream"},
    "dllm_cache": {"options": {"response_interval": 4}},
    "dpad": {"options": {"suffix_window": 12, "suffix_count": 4}},
    "elastic": {"blocks": "whole", "options": {"window_length": 6}},
    "finished": {"attention_block": 8},
    "flash_dllm": {"blocks": "whole", "options": {"window_length": 4, "mask_windows": 2, "track_windows": 1}},
    "flash_verify": {
        "sampler": "flash_verify",
        "blocks": "whole",
        "prompt": SQUARE,
        "options": {"window_length": 4, "mask_windows": 2, "track_windows": 1},
    },
    "linear_spec": {
        "model": "mini-nbdiff",
        "prompt": SQUARE,
        "sampler": "linear_spec",
        "eos": "stop_front",
        "blocks": ("sliding", {"block_length": 8}),
        "options": {"window_length": 8},
    },
    "sliding": {"blocks": ("sliding", {"block_length": 8}), "options": {"prefix_window": 4}},
    "span": {"sampler": ("slowfast", {"explore": 2, "window": 2}), "blocks": "whole", "prompt": SQUARE},
    "streaming": {"options": {"suffix_window": 8}},
    "vicinity": {"options": {"prefix_look": 3, "after_look": 3, "warmup": 0}},
    "window": {"blocks": "whole", "options": {"active_tokens": 6, "window_tokens": 14, "refresh_interval": 8}},
}

NO_PICTURE = {"focus"}  # no model that attends by blocks is here


def planned(name: str) -> tuple[list[ForwardPlan], int]:
    """The plans of a decode under a cache, and the first column of its answer."""
    said = CACHE_SETTINGS.get(name, {})
    model = model_of(said.get("model", "mini-llada"), **{k: v for k, v in said.items() if k == "attention_block"})
    sampler = said.get("sampler", ("static", {"per_step": 2}))
    decoder = Decoder(
        model,
        made("sampler", sampler),
        made("blocks", said.get("blocks", ("fixed", {"block_length": 8}))),
        made("cache", (name, said.get("options", {}))),
        made("eos", said.get("eos", "none")),
        gen_length=24,
    )
    plans: list[ForwardPlan] = []

    def recorded(rows: Rows) -> ForwardPlan:
        plans.append(coming(rows))
        return plans[-1]

    coming = Rows.coming
    with patch.object(Rows, "coming", recorded):
        trace = decoder(said.get("prompt", CACHE_PROMPT), trace=True)[0].traced()
    return plans[: len(trace.turns)], trace.start


def cache_picture(name: str) -> str:
    """A line per forward: what it computes, and what it attends to of earlier forwards."""
    plans, start = planned(name)
    width = max(plan.columns.shape[1] for plan in plans)
    drawing = Drawing.of(LEFT + CACHE_CELL * width + 6, 2 * TOP + 9 * len(plans) + 4)
    drawing.box(LEFT, TOP, CACHE_CELL * width, 9 * len(plans), "#f5f5f8")
    for kind, fill in ((lambda plan: plan.keys & ~plan.columns, ATTENDED), (lambda plan: plan.columns, COMPUTED)):
        cells = [
            (LEFT + CACHE_CELL * first, TOP + 9 * line, CACHE_CELL * (last - first) - 1, 8)
            for line, plan in enumerate(plans)
            for first, last in runs(kind(plan)[0].tolist())
        ]
        drawing.boxes(cells, fill)
    drawing.box(LEFT + CACHE_CELL * start - 1, TOP - 3, 1, 9 * len(plans) + 6, WRITTEN)
    return drawing.svg(f"cache={name}: columns that each forward computes (dark) and attends to (light)")


def runs(flags: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """The stretches of true values: first, and one after the last."""
    for first, last, there in stays([int(flag) for flag in flags], 0):
        if there:
            yield first, last


def cache_pictures() -> Iterator[tuple[str, str]]:
    """Name and SVG of each cache's picture."""
    for name in choices("cache"):
        if name not in NO_PICTURE:
            yield name, cache_picture(name)
