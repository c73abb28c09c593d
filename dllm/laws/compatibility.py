"""Which parts fit together, as the parts themselves say.

``python -m dllm.laws.compatibility`` prints the page of the docs.

Nothing is decoded and no weights are read. Every sampler, cache and block schedule is built at its defaults, and the
same check runs as for a command line.
"""

from __future__ import annotations

import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from omegaconf import OmegaConf

from dllm.common.terminal import say
from dllm.compose.parts import build_part, choices, composed
from dllm.compose.validate import validate
from dllm.contract.setting import Setting
from dllm.errors import IncompatibleParts, SettingWarning, UserError
from dllm.models.config import ModelConfig
from dllm.models.shipped import CHECKPOINTS
from dllm.models.visibility import BlockCausal, CausalByRank, ContextCausal, DenoisedBlock
from dllm.models.weights import read_model_config

PART_GROUPS = ("sampler", "blocks", "cache", "eos")
# Options without a default. Their values do not change what fits together.
REQUIRED_OPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("blocks", "lengths"): {"lengths": [32]},
    ("blocks", "adablock"): {"delimiter_ids": [6]},
    ("blocks", "tccf"): {"marker": 6},
    ("sampler", "oracle"): {"reference": [[6]]},
}
PAGE_HEAD = """# What goes with what

Made by `python -m dllm.laws.compatibility` from what every part declares: what a sampler needs, and what a cache
supplies.
A combination that is refused is refused before weights are read, with the reason and the nearest one that works.

**yes**: with every block schedule. **Names**: with these schedules only; after **not**: with all others. **A number**:
refused, for the reason below the tables. Samplers with equal columns share one, and are listed above their table.
End-of-text policy `none`; the last table shows the others.
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
                "DiffusionGemma: noise instead of masks, causal outside the canvas",
                replace(llada, attention=DenoisedBlock(32), process="uniform", mask_id=None),
                "diffusiongemma-26b",
            ),
        ]


@dataclass
class Reasons:
    """Sentences of refusal, numbered in the order of their first use."""

    numbers: dict[str, int] = field(default_factory=dict)  # by sentence, from 1

    def number(self, sentence: str) -> str:
        sentence = re.sub(r"^sampler=\w+", "This sampler", sentence)
        sentence = re.sub(r"^cache=\w+( and \w+)?", "This cache", sentence).replace("This cache are", "This cache is")
        return str(self.numbers.setdefault(sentence, len(self.numbers) + 1))


def all_parts(options: Mapping[tuple[str, str], Mapping[str, Any]] = REQUIRED_OPTIONS) -> list[dict[str, Any]]:
    """Every choice of every group of ``PART_GROUPS``, with ``options`` by group and name.

    A configuration takes 40 ms to compose, so each gives one choice of every group. Raises UserError when a part cannot
    be built.
    """
    found: dict[str, dict[str, Any]] = {group: {} for group in PART_GROUPS}
    for names in zip_longest(*(choices(group) for group in PART_GROUPS)):
        chosen = {group: name for group, name in zip(PART_GROUPS, names, strict=True) if name is not None}
        config = composed([f"{group}={name}" for group, name in chosen.items()])
        for group, name in chosen.items():
            for key, value in options.get((group, name), {}).items():
                OmegaConf.update(config[group], key, value)
            found[group][name] = build_part(group, config[group])
    return list(found.values())


def refusal(kind: ModelKind, sampler: Any, blocks: Any, cache: Any, eos: Any) -> str | None:
    """Why these parts do not fit together; None: they do."""
    setting = Setting(kind.config, blocks, None, name=kind.name)
    try:
        validate(setting, sampler, cache, eos)
    except UserError as error:
        return str(error.__context__ if isinstance(error.__context__, IncompatibleParts) else error)
    return None


def table_cell(kind: ModelKind, sampler: Any, cache: Any, schedules: dict[str, Any], eos: Any, reasons: Reasons) -> str:
    """``yes``, the schedules that work or those that do not, or the number of the reason why none works."""
    found = {name: refusal(kind, sampler, blocks, cache, eos) for name, blocks in schedules.items()}
    working = [name for name, reason in found.items() if reason is None]
    refused = [name for name in found if name not in working]
    if not refused:
        return "yes"
    if working:
        return ", ".join(working) if len(working) < len(refused) else f"not {', '.join(refused)}"
    return reasons.number(str(found["fixed"]))


def equal_columns(columns: Mapping[str, list[str]]) -> dict[tuple[str, ...], list[str]]:
    """Columns with equal cells as one, by the names that share it: first ``confidence`` and ``none``."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name, cells in columns.items():
        found.setdefault(tuple(cells), []).append(name)
    first = [sorted(names, key=lambda name: (name not in ("confidence", "none"), name)) for names in found.values()]
    return {tuple(names): list(cells) for names, cells in zip(first, found, strict=True)}


def markdown_table(caches: list[str], columns: Mapping[str, list[str]]) -> Iterator[str]:
    """A row a cache, a column a group of equal ``columns``, and before it a line for each group of several names."""
    groups = equal_columns(columns)
    for first, *others in groups:
        if others:
            line = f"- As `{first}`: {', '.join(f'`{name}`' for name in others)}."
            yield from textwrap.wrap(line, 120, subsequent_indent="  ")
    yield ""
    yield f"| cache | {' | '.join(f'`{names[0]}`' for names in groups)} |"
    yield f"|---|{'---|' * len(groups)}"
    for cache, cells in zip(caches, zip(*groups.values(), strict=True), strict=True):
        yield f"| `{cache}` | {' | '.join(cells)} |"
    yield ""


def by_process(kind: ModelKind, samplers: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The samplers for models of the process of this kind, and a line that names the others."""
    noise = kind.config.process == "uniform"
    fit = {name: sampler for name, sampler in samplers.items() if sampler.traits.renoises == noise}
    if noise:
        return fit, "All other samplers decide masks, and are refused."
    others = ", ".join(f"`{name}`" for name in samplers if name not in fit)
    return fit, f"Refused, as it is for models of noise: {others}."


def compatibility_page() -> str:
    """The page in Markdown."""
    samplers, schedules, caches, policies = all_parts()
    reasons, lines = Reasons(), [PAGE_HEAD]
    for kind in ModelKind.all():
        fit, others = by_process(kind, samplers)
        columns = {
            name: [table_cell(kind, sampler, cache, schedules, policies["none"], reasons) for cache in caches.values()]
            for name, sampler in fit.items()
        }
        lines += [f"## {kind.title}", "", *markdown_table(list(caches), columns), others, ""]
    kind = ModelKind.all()[0]
    columns = {
        name: [table_cell(kind, samplers["confidence"], cache, schedules, policy, reasons) for cache in caches.values()]
        for name, policy in policies.items()
    }
    lines += ["## End-of-text policies (LLaDA, `sampler=confidence`)", "", *markdown_table(list(caches), columns)]
    lines += ["## Reasons", "", *(f"{number}. {sentence}" for sentence, number in reasons.numbers.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    warnings.simplefilter("ignore", SettingWarning)  # the page says what fits, not what is wise
    say(compatibility_page().rstrip("\n"))
