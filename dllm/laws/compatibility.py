"""Which parts fit together, as the parts themselves say.

``python -m dllm.laws.compatibility`` prints the tables that the site has.

Nothing is decoded and no weights are read. Every sampler, cache and block schedule is built at its defaults, and the
same check runs as for a command line.
"""

from __future__ import annotations

import textwrap
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from omegaconf import OmegaConf

from dllm.common.errors import Refusal, SettingWarning, Wording
from dllm.common.grouping import grouped
from dllm.common.terminal import say
from dllm.compose.clashes import clash_in
from dllm.compose.config_choices import choices
from dllm.compose.parts import build_part, composed
from dllm.contract.clash import Selection
from dllm.contract.setting import Setting
from dllm.models.config import ModelConfig
from dllm.models.network.visibility import BlockCausal, CausalByRank, ContextCausal, DenoisedBlock, PipelinedBlocks
from dllm.models.weights.shipped import CHECKPOINTS
from dllm.models.weights.weights import read_model_config
from dllm.parts.lengths.fixed_length import FixedLength

PART_GROUPS = ("sampler", "blocks", "cache", "eos")
# Options without a default. Their values do not change what fits together.
REQUIRED_OPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("blocks", "lengths"): {"lengths": [32]},
    ("blocks", "adablock"): {"delimiter_ids": [6]},
    ("blocks", "tccf"): {"marker": 6},
    ("sampler", "oracle"): {"reference": [[6]]},
}
PAGE_HEAD = """**yes**: with every block schedule. **Names**: with these schedules only; after **not**: with all others.
**A number**: refused, for the reason at the end. What is refused throughout has a line above its table, with its reason
or the most frequent one. Equal rows are one, and equal columns. All tables but the last have the end-of-text policy
`none`.
"""


@dataclass(frozen=True)
class ModelKind:
    """A kind of model that parts tell from others."""

    title: str  # families, and what sets them apart: the table's heading
    config: ModelConfig  # of one small model of this kind
    name: str  # one model of this kind: decides whether learn2pd finds a shipped filter

    @staticmethod
    def all() -> list[ModelKind]:
        llada, dream = (read_model_config(CHECKPOINTS / name) for name in ("mini-llada", "mini-dream"))
        return [
            ModelKind("LLaDA, LLaDA 1.5, LLaDA-MoE: a position predicts itself", llada, "mini-llada"),
            ModelKind("Dream: a position predicts its successor", dream, "mini-dream"),
            ModelKind("SDAR, LLaDA2: attention is block-causal", replace(llada, attention=BlockCausal(32)), "sdar-8b"),
            ModelKind("WeDLM: causal, known tokens before masks", replace(llada, attention=CausalByRank()), "wedlm-8b"),
            ModelKind(
                "NBDiff: causal outside the block that is decoded",
                replace(dream, attention=ContextCausal(32)),
                "nbdiff-7b",
            ),
            ModelKind(
                "LLaDA and Dream with D2F's adapter: block-causal, also over unfinished blocks",
                replace(dream, attention=PipelinedBlocks(32)),
                "d2f-dream-7b",
            ),
            ModelKind(
                "DiffusionGemma: noise instead of masks, causal outside the canvas",
                replace(llada, attention=DenoisedBlock(32), process="uniform", mask_id=None),
                "diffusiongemma-26b",
            ),
        ]


@dataclass(frozen=True)
class GeneralWording(Wording):
    """The words of the page, where a reason is that of many combinations."""

    def setting(self, place: str, value: Any) -> str:
        """A part of these groups stands for others; an option for any value."""
        words = {"sampler": "this sampler", "cache": "this cache"}.get(place)
        return words or (f"{place}=N" if "." in place else super().setting(place, value))

    def filled(self, says: str, facts: Mapping[str, Any]) -> str:
        """What is said of one model is said of all."""
        general = {"kind": "of another kind", "model": "NAME", "length": "N", "own": ""}
        text = super().filled(says, {**facts, **{key: general[key] for key in general.keys() & facts.keys()}})
        return text.replace("this", "This", 1) if text.startswith("this") else text


REFUSED = "!"  # begins a cell that holds a reason
Table = dict[str, dict[str, str]]  # cache -> sampler or policy -> cell


@dataclass
class Reasons:
    """Sentences of refusal, numbered in the order of their first use."""

    numbers: dict[str, int] = field(default_factory=dict)  # by sentence, from 1

    def shown(self, cell: str) -> str:
        """A cell as the page has it: the number of its reason, or what it says."""
        if not cell.startswith(REFUSED):
            return cell
        return str(self.numbers.setdefault(cell.removeprefix(REFUSED), len(self.numbers) + 1))


def all_parts(
    options: Mapping[tuple[str, str], Mapping[str, Any]] = REQUIRED_OPTIONS, groups: Sequence[str] = PART_GROUPS
) -> list[dict[str, Any]]:
    """Every choice of every one of the ``groups``, with ``options`` by group and name.

    A configuration takes 40 ms to compose, so each gives one choice of every group. Raises UserError when a part cannot
    be built.
    """
    parts: dict[str, dict[str, Any]] = {group: {} for group in groups}
    for names in zip_longest(*map(choices, groups)):
        choice_of_group = {group: name for group, name in zip(groups, names, strict=True) if name is not None}
        config = composed([f"{group}={name}" for group, name in choice_of_group.items()])
        for group, name in choice_of_group.items():
            for key, value in options.get((group, name), {}).items():
                OmegaConf.update(config[group], key, value)
            parts[group][name] = build_part(group, config[group])
    return list(parts.values())


def refusal(kind: ModelKind, sampler: Any, blocks: Any, cache: Any, eos: Any) -> Refusal | None:
    """Why these parts do not fit together; None: they do."""
    try:
        return clash_in(
            Selection(Setting(kind.config, blocks, None, name=kind.name), sampler, cache, eos, FixedLength())
        )
    except Refusal as error:
        return error


def table_cell(kind: ModelKind, sampler: Any, cache: Any, schedules: dict[str, Any], eos: Any) -> str:
    """``yes``, the schedules that work or those that do not, or the reason why none works."""
    reasons = {name: refusal(kind, sampler, blocks, cache, eos) for name, blocks in schedules.items()}
    working = [name for name, reason in reasons.items() if reason is None]
    refusals = [name for name in reasons if name not in working]
    if not refusals:
        return "yes"
    if working:
        return ", ".join(working) if len(working) < len(refusals) else f"not {', '.join(refusals)}"
    reason = reasons["fixed"]
    assert reason is not None
    return REFUSED + GeneralWording().filled(reason.says, reason.facts)


def fitting_table(
    kind: ModelKind, columns: Mapping[str, tuple[Any, Any]], caches: dict[str, Any], schedules: dict[str, Any]
) -> Table:
    """columns: sampler and end-of-text policy of each."""
    return {
        cache: {name: table_cell(kind, sampler, built, schedules, eos) for name, (sampler, eos) in columns.items()}
        for cache, built in caches.items()
    }


def equal_columns(columns: Mapping[str, list[str]]) -> dict[tuple[str, ...], list[str]]:
    """Columns with equal cells as one, by the names that share it: first ``confidence`` and ``none``."""
    names_by_cells = grouped((tuple(cells), name) for name, cells in columns.items())
    first = [
        sorted(names, key=lambda name: (name not in ("confidence", "none"), name)) for names in names_by_cells.values()
    ]
    return {tuple(names): list(cells) for names, cells in zip(first, names_by_cells, strict=True)}


def markdown_table(table: Table, reasons: Reasons, first: Table | None = None) -> Iterator[str]:
    """Lines for what is refused everywhere, and for rows that are those of the ``first`` table; then the rest: a row a
    cache, a column a group of equal ones."""
    lines, remaining = refused_everywhere(table, reasons)
    alike = [cache for cache, row in remaining.items() if first and row.items() <= first[cache].items()]
    remaining = {cache: row for cache, row in remaining.items() if cache not in alike}
    groups = equal_columns(
        {name: [row[name] for row in remaining.values()] for name in next(iter(remaining.values()), {})}
    )
    lines += [f"As `{one}`: {in_code(other_names)}" for one, *other_names in groups if other_names]
    lines += [f"As in the first table: {in_code(alike)}"] if alike else []
    for line in lines:
        yield from textwrap.wrap(f"- {line}.", 120, subsequent_indent="  ")
    yield ""
    if remaining:
        yield f"| cache | {' | '.join(f'`{names[0]}`' for names in groups)} |"
        yield f"|---|{'---|' * len(groups)}"
        for cells, caches in grouped(zip(zip(*groups.values(), strict=True), remaining, strict=True)).items():
            yield f"| {in_code(caches)} | {' | '.join(map(reasons.shown, cells))} |"
        yield ""


def refused_everywhere(table: Table, reasons: Reasons) -> tuple[list[str], Table]:
    """A line for each reason why columns or rows are refused throughout, and the table without these. A line counts
    before those after it."""
    lines: list[str] = []
    while True:
        columns = throughout(transposed(table))
        table = {key: {name: cell for name, cell in row.items() if name not in columns} for key, row in table.items()}
        rows = throughout(table)
        table = {cache: row for cache, row in table.items() if cache not in rows}
        for words, cells in (("With every cache", columns), ("In every column", rows)):
            by_cell = grouped((cell, name) for name, cell in cells.items())
            lines += [f"{words} ({reasons.shown(cell)}): {in_code(names)}" for cell, names in by_cell.items()]
        if not columns and not rows:
            return lines, table


def throughout(table: Table) -> dict[str, str]:
    """The most frequent reason of each row that holds nothing but reasons."""
    return {
        name: Counter(row.values()).most_common(1)[0][0]
        for name, row in table.items()
        if row and all(cell.startswith(REFUSED) for cell in row.values())
    }


def transposed(table: Table) -> Table:
    return {name: {cache: row[name] for cache, row in table.items()} for name in next(iter(table.values()), {})}


def in_code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def by_process(kind: ModelKind, samplers: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The samplers for models of the process of this kind, and a line that names the others."""
    noise = kind.config.process == "uniform"
    fit = {name: sampler for name, sampler in samplers.items() if sampler.traits.renoises == noise}
    if noise:
        return fit, "All other samplers decide masks, and are refused."
    names_refused = ", ".join(f"`{name}`" for name in samplers if name not in fit)
    return fit, f"Refused, as it is for models of noise: {names_refused}."


def compatibility_page() -> str:
    """The page in Markdown."""
    samplers, schedules, caches, policies = all_parts()
    reasons, lines, tables = Reasons(), [PAGE_HEAD], list[Table]()
    for kind in ModelKind.all():
        fit, names_refused = by_process(kind, samplers)
        columns = {name: (sampler, policies["none"]) for name, sampler in fit.items()}
        tables.append(fitting_table(kind, columns, caches, schedules))
        first = tables[0] if len(tables) > 1 and fit.keys() == tables[0]["none"].keys() else None
        lines += [f"## {kind.title}", "", *markdown_table(tables[-1], reasons, first), names_refused, ""]
    columns = {name: (samplers["confidence"], policy) for name, policy in policies.items()}
    ends = fitting_table(ModelKind.all()[0], columns, caches, schedules)
    lines += ["## End-of-text policies (LLaDA, `sampler=confidence`)", "", *markdown_table(ends, reasons)]
    lines += ["## Reasons", "", *(f"{number}. {sentence}" for sentence, number in reasons.numbers.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    warnings.simplefilter("ignore", SettingWarning)  # the page says what fits, not what is wise
    say(compatibility_page().rstrip("\n"))
