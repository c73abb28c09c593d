"""What the YAML files of the choices say in words: a summary, a comment after each option, and what is served.

A part says on top of its file what it is: ``# idea:``, ``# paper:`` (numbers of arXiv), ``# checked:`` (what it was
compared with). ``--help``, ``GET /v1/parts`` and the guides of the parts show these lines. Any other choice is
explained by the comment on top of its file, or else by the first sentence of the module that it names; an option by the
comment after it. No module is imported for that, so help comes at once.

``# serve_max 8`` at the end of an option's comment says how much of it may be asked for over HTTP (``dllm.serve``): the
largest whole number, or the longest text. Without it such an option is not offered there.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dllm.common.errors import UserError
from dllm.compose.config_choices import choice_text, choices, comes_along

FACT = re.compile(r"^# (idea|paper|checked): (.+)$", re.MULTILINE)
SERVED = re.compile(r"(?:^|[;,] )serve_max (\d+)$")


@dataclass(frozen=True)
class PartFacts:
    """What the file of a part says on top."""

    idea: str  # in a line
    papers: tuple[str, ...]  # numbers of arXiv; none: it is ours, or common knowledge
    checked: str  # what it was compared with (empty: nothing to compare)


def part_facts(group: str, name: str) -> PartFacts:
    """The facts of a sampler, block schedule, cache or end-of-text policy. Raises UserError for one of ours without an
    idea; one of the user's own may have a comment in its place."""
    facts = dict(FACT.findall(choice_text(group, name)))
    if "idea" not in facts and not comes_along(group, name):
        facts["idea"] = choice_summary(group, name)
    if "idea" not in facts:
        raise UserError(f"dllm/conf/{group}/{name}.yaml does not say what the part does: begin it with # idea: LINE.")
    papers = tuple(number.strip() for number in facts.get("paper", "").split(",") if number)
    return PartFacts(facts["idea"], papers, facts.get("checked", ""))


def choice_summary(group: str, name: str) -> str:
    """One line about a choice."""
    text = choice_text(group, name)
    if facts := dict(FACT.findall(text)):
        return facts["idea"]
    heads = [line[2:] for line in text.splitlines() if line.startswith("# ") and not line.startswith("# @")]
    if heads and text.splitlines().index(f"# {heads[0]}") < 2:
        head = heads[0]  # whose last words may lead to the command below it
        return without_markup((head.rpartition(". ")[0] or head[:-1]) if head.endswith(":") else head)
    targets = [re.search(rf"^\s*{key}: (\S+)", text, re.MULTILINE) for key in ("_target_", "run")]
    return next((module_summary(target[1].rpartition(".")[0]) for target in targets if target), "")


def module_summary(module: str) -> str:
    """The first paragraph of a module's docstring, without ``group=name:``; empty for one that cannot be read."""
    try:
        spec = find_spec(module)
        assert spec is not None and spec.origin is not None, module
        words = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    except Exception:  # a user's module may be missing, or hold anything
        if module.startswith("dllm."):
            raise
        return ""
    words = without_markup(" ".join(words.split("\n\n")[0].split()))
    return re.sub(r"^\w+=.*?: (\w)", lambda match: match[1].upper(), words)


def without_markup(words: str) -> str:
    """Words without markup and full stop. Of a paper the name stays and the number goes."""
    words = words.replace("``", "").rstrip(".")
    return re.sub(r" \((?:([^()]+?),? )?arXiv [^()]*\)", lambda match: f" ({match[1]})" if match[1] else "", words)


def choice_notes(group: str, name: str) -> dict[str, str]:
    """The comments of a choice's file, after those of the choices of its group that it builds on."""
    text = choice_text(group, name)
    bases = [base for base in choices(group) if re.search(rf"^  - {re.escape(base)}\b", text, re.MULTILINE)]
    return {key: note for base in bases for key, note in choice_notes(group, base).items()} | comments(text)


def serve_limits(group: str, name: str) -> dict[str, int]:
    """The ``serve_max`` of a choice's options, as far as its file gives them."""
    matches = {key: SERVED.search(note) for key, note in _comments(choice_text(group, name)).items()}
    return {key: int(match[1]) for key, match in matches.items() if match}


def comments(text: str) -> dict[str, str]:
    """The comment after each key of a YAML file, without its ``serve_max``."""
    return {key: words for key, note in _comments(text).items() if (words := SERVED.sub("", note))}


def _comments(text: str) -> dict[str, str]:
    return dict(re.findall(r"^\s*([\w.]+):[^#\n]*\s#\s(.+)$", text, re.MULTILINE))
