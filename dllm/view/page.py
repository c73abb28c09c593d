"""The trace viewer: traces as one HTML page that re-runs the denoising. No network, no build step, no framework.

``python -m dllm.view TRACE.json [OTHER.json] [-o FILE]`` writes it, and ``Trace.to_html``; ``trace=true`` writes one
beside every trace.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import sha256
from html import escape
from importlib.resources import files
from math import isfinite
from typing import Any

from dllm.common.palette import hexes
from dllm.compose.naming import part_words
from dllm.constraints.kinds import Constraint
from dllm.record.parting import Parting, parting
from dllm.record.trace import Trace
from dllm.record.turns import Commits, ShownMixtures, ShownTokens, TurnRecord
from dllm.view.final_columns import on_final_columns

PARTS = ("sampler", "blocks", "cache", "eos")
COMMON = tuple(entry.name for entry in fields(Constraint))  # how a constraint is compiled, not what it asks
# What templates write around messages: roles between or after their marks, and the marks themselves.
TEMPLATE_TOKENS = re.compile(
    r"<\|start_header_id\|>\w+<\|end_header_id\|>|<\|im_start\|>\w+\n|<[|/]?\w[^<>\s]*>|<\|[^<>|]*\|>"
)
MAX_TITLE = 60
MOST_MIXED = 3  # tokens of a mixture that a page names
MAX_FACT = 120  # characters of a schema or grammar above a trace
# Entries of the legend by the class of a cell: the class that they have with it, a sign, and what it means.
SIGNS = {
    "edited": ("sample", "a", "took the place of another token"),
    "corrected": ("sample", "a", "not the model's first choice, which did not fit the constraint"),
    "replaced": ("sample", "a", "another token than proposed, which goes with the others"),
    "waits": ("mask", "&oslash;", "waits, since it does not go with the others"),
    "drawn": ("mask open", "a", "undecided: the next forward sees this draw"),
    "noise": ("mask open", "a", "undecided: the next forward sees this noise"),
    "mixed": ("sample", "a", "the next forward sees a mixture with the mask; the bar is the likeliest token's share"),
}


@dataclass(frozen=True)
class Pane:
    title: str  # above the canvas
    trace: Trace  # the decode that it plays
    # the chosen parts, such as {"sampler": "confidence(threshold=0.7)"}
    facts: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(run: str, data: Mapping[str, Any], trace: Trace) -> Pane:
        """From the content of a trace file, its trace, and the name of the run that it is in (empty: in none)."""
        facts = setting_facts(data["config"]) if data["config"] else {}
        name = f"{run}: {sample_of(data)}" if run else sample_of(data)
        facts = {"sample": name} | facts | constraint_facts(data.get("constraint"))
        return Pane(prompt_title(trace) or name, on_final_columns(trace), facts)


def prompt_title(trace: Trace) -> str:
    """The beginning of a trace's prompt, on one line and without the marks of a chat template; empty where it says
    nothing."""
    text = "".join(trace.words.get(token, "") for token in trace.prompt[: trace.start])
    plain = " ".join(TEMPLATE_TOKENS.sub(" ", text).split())
    return plain if len(plain) <= MAX_TITLE else plain[: MAX_TITLE - 1] + "\N{HORIZONTAL ELLIPSIS}"


def sample_of(data: Mapping[str, Any]) -> str:
    """Which prompt, and which of its answers unless it is the first. A prompt without a name has a number."""
    name = f"prompt {data['id']}" if data["id"].isdigit() else str(data["id"])
    return f"{name}, answer {data['sample'] + 1}" if data["sample"] else name


def setting_facts(config: Mapping[str, Any]) -> dict[str, str]:
    """The model, and the parts with their own options, from a resolved configuration."""
    facts = {"model": str(config["model"].get("name") or config["model"]["path"])}
    length = {"length": part_words(config, "length")} if config.get("length") else {}
    return facts | {group: part_words(config, group) for group in PARTS} | length


def constraint_facts(settings: Mapping[str, Any] | None) -> dict[str, str]:
    """What the text had to be, in words; nothing where it was free."""
    if settings is None:
        return {}
    words = [f"{key}={short_fact(value)}" for key, value in settings.items() if key not in ("name", *COMMON)]
    return {"constraint": " ".join([str(settings["name"]), *words])}


def short_fact(value: Any) -> str:
    """A value as JSON, or a text as it is, in at most ``MAX_FACT`` characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_FACT else text[: MAX_FACT - 3] + "..."


def trace_page(panes: Sequence[Pane]) -> str:
    """The whole page; two panes are side by side and share the slider."""
    last = max(len(pane.trace.turns) for pane in panes)
    colours = [hexes(turn, last) for turn in range(1, last + 1)]
    title = " and ".join(dict.fromkeys(pane.title for pane in panes))
    content = [{**pane_data(pane), "heading": heading} for pane, heading in zip(panes, headings(panes), strict=True)]
    split = parting_of(panes)
    place = split and {"forward": split.forward, "position": split.position, "known": [*map(str, split.states)]}
    data = json.dumps({"colours": colours, "panes": content, "parting": place}, separators=(",", ":"))
    parts = {
        "TITLE": escape(title),
        "STYLE": page_asset("trace.css"),
        "SCRIPT": page_asset("boxes.js") + page_asset("trace.js"),
        "DATA": data.replace("<", "\\u003c"),  # a token's text must not end the script element
        "MARKS": marks_legend(panes),
    }
    # The only script that runs; ``data`` is not a script. One pass: a prompt may spell {{MARKS}}.
    parts["HASH"] = b64encode(sha256(f"\n{parts['SCRIPT']}\n".encode()).digest()).decode()
    return re.sub(r"{{([A-Z]+)}}", lambda match: parts[match[1]], page_asset("trace.html"))


def parting_of(panes: Sequence[Pane]) -> Parting | None:
    """Where two decodes of one prompt part; None: there are not two, their prompts differ, or they are equal."""
    traces = [pane.trace for pane in panes]
    if len(traces) != 2 or len({tuple(trace.prompt[: trace.start]) for trace in traces}) > 1:  # noqa: PLR2004
        return None
    return parting(*traces)


def headings(panes: Sequence[Pane]) -> list[str]:
    """What each pane is called beside the others: by its prompt, or of one prompt by the settings that differ."""
    if len({pane.title for pane in panes}) == len(panes):
        return [pane.title for pane in panes]
    names = [name for name in panes[0].facts if len({pane.facts.get(name) for pane in panes}) > 1]
    labels = [name for name in names if name != "sample"] or names
    return [", ".join(f"{name} {pane.facts.get(name, '')}" for name in labels) or pane.title for pane in panes]


def marks_legend(panes: Sequence[Pane]) -> str:
    """Entries of the legend for what rules replaced and constraints changed in these decodes."""
    turns = [turn for pane in panes for turn in pane.trace.turns]
    there = {
        "edited": any(commits.positions for turn in turns for commits in turn.edited),
        "corrected": any(turn.corrected for turn in turns),
        "replaced": any(any(turn.replaced) for turn in turns),
        "waits": any(any(turn.refused) for turn in turns),
        "drawn": any(any(noise.drawn) for turn in turns for noise in turn.shown),
        "noise": any(noise.positions for turn in turns for noise in turn.shown),
        "mixed": any(turn.mixtures for turn in turns),
    }
    return "\n    ".join(
        f'<li><span class="t {kind} {name}">{sign}</span> {words}</li>'
        for name, (kind, sign, words) in SIGNS.items()
        if there[name]
    )


def page_asset(name: str) -> str:
    """The text of a file beside this one."""
    return (files("dllm.view") / name).read_text(encoding="utf-8")


def pane_data(pane: Pane) -> dict[str, Any]:
    """A pane's data for the script. Positions count from the answer's start."""
    trace = pane.trace
    return {
        "title": pane.title,
        "facts": dict(pane.facts),
        "words": trace.words,
        "eos": trace.eos_id,
        "prompt": trace.prompt[: trace.start],
        "answer": trace.prompt[trace.start :],
        "given": trace.given[trace.start :],
        "noise": any(turn.shown for turn in trace.turns),
        "turns": [turn_data(record, candidate) for record, candidate in trace.path()],
    }


def turn_data(record: TurnRecord, candidate: int) -> dict[str, Any]:
    """One turn as that candidate saw it. Within a turn: remask, commit and edit, fill, roll back, in this order."""
    edit = record.edited[candidate] if record.edited else Commits()
    noise = record.shown[candidate] if record.shown else ShownTokens()
    return {
        "commit": commit_data(record.candidates[candidate]),
        "edit": commit_data(edit),
        "remask": record.remasked[candidate],
        "fill": record.filled[candidate],
        "roll": record.rolled[candidate],
        "block": record.block,
        "queries": record.queries,
        "refreshed": record.refreshed,
        "corrected": record.corrected,
        "doubted": record.doubted,
        "refused": of_candidate(record.refused, candidate),
        "replaced": of_candidate(record.replaced, candidate),
        "candidates": len(record.candidates),
        "kept": candidate,
        "seconds": six_digits(record.seconds),
        "flops": record.flops,
        "guess": {"at": record.guesses.positions, "token": record.guesses.tokens, "p": record.guesses.confidence},
        "shown": {"at": noise.positions, "token": noise.tokens, "drawn": [int(own) for own in noise.drawn]},
        **mixture_data(record.mixtures),
    }


def mixture_data(mixtures: ShownMixtures | None) -> dict[str, Any]:
    """What positions show between mask and token after a turn: the ``MOST_MIXED`` likeliest tokens, and the mask's
    share; nothing where none does."""
    if mixtures is None:
        return {}
    shares = [[round(share, 4) for share in shares_at[:MOST_MIXED]] for shares_at in mixtures.weights]
    return {
        "mixed": {
            "at": mixtures.positions,
            "token": [tokens[:MOST_MIXED] for tokens in mixtures.tokens],
            "p": shares,
            "mask": [round(max(0.0, 1 - sum(weights)), 4) for weights in mixtures.weights],
        }
    }


def of_candidate(positions: Sequence[list[int]], candidate: int) -> list[int]:
    """The positions of a candidate. Traces of versions without constraints have none."""
    return positions[candidate] if positions else []


def commit_data(commits: Commits) -> dict[str, Any]:
    return {
        "at": commits.positions,
        "token": commits.tokens,
        "p": [six_digits(p) for p in commits.confidence],
        "forced": [int(is_forced) for is_forced in commits.forced],
        "entropy": [six_digits(h) for h in commits.entropy],
        "drawn": [six_digits(p) for p in commits.drawn],
    }


def six_digits(number: float | None) -> float | None:
    """Six digits, which halve the file and are more than the page shows. None for nan, which JSON lacks."""
    return float(f"{number:.6g}") if number is not None and isfinite(number) else None
