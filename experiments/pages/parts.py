"""What the guides list of samplers, schedules, caches, ends and lengths.

Every part says on top of its YAML file what its idea is, which paper has it and what it was compared with, and beside
each option what that means. ``--help``, ``GET /v1/parts`` and these pages show the same words. The tables of names are
kept in the pages, where ``python -m experiments.pages.parts`` writes them; the rest is made while the site is built.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from dllm.compose.choice_files import choice_notes, part_facts
from dllm.compose.config_choices import choice_text, choices, wrappers
from dllm.compose.parts import part
from dllm.laws.compatibility import compatibility_page
from dllm.loop.given_logits import reason_against
from dllm.record.results import NOT_STORED, Result
from dllm.serve.engine.jobs import Stats
from dllm.serve.http.prometheus import Metrics
from experiments.pages import model_choices, published_rows, request_fields, words
from experiments.pages.compared import compared
from experiments.support.markdown import table
from experiments.support.marked import write_marked
from experiments.support.scripts import refusing

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    "sampler": "samplers.md",
    "blocks": "blocks.md",
    "cache": "caches.md",
    "eos": "blocks.md",
    "length": "lengths.md",
}
LINKS = {"sampler": "[`{0}`](samplers/{0}.md)", "cache": "[`{0}`](#{0})"}
MARKS = {"eos": "eos "}  # before the names of marks on a page of two groups
HEADS = ("name", "idea", "paper", "checked against")


# -- the lists --------------------------------------------------------------------------------------------------


def listed(group: str) -> str:
    """The table of a group: a line for each part."""
    around = wrappers() if group == "sampler" else ()
    return table(HEADS, (line(group, name, name in around) for name in choices(group)), len(HEADS)) + "\n"


def line(group: str, name: str, wraps: bool) -> tuple[str, str, str, str]:
    facts = part_facts(group, name)
    idea = f"{facts.idea} (wrapper)" if wraps else facts.idea
    return LINKS.get(group, "`{0}`").format(name), idea, papers(facts.papers) or "-", facts.checked or "-"


def papers(numbers: Iterable[str]) -> str:
    return " ".join(f"[{number}](https://arxiv.org/abs/{number})" for number in numbers)


# -- options ----------------------------------------------------------------------------------------------------


@cache
def options(group: str, name: str) -> Mapping[str, tuple[str, str]]:
    """What is typed for each option of a choice, with its default, and what it means."""
    text, notes = choice_text(group, name), choice_notes(group, name)
    values = yaml.safe_load(text) or {}  # a file may say what its choice is, and nothing else
    inner = [
        f"{key}={value}"
        for entry in values.get("defaults", [])
        if isinstance(entry, dict)
        for key, value in entry.items()
        if key == "inner"
    ]
    own = values[group] if "@package _global_" in text else values
    typed = {key: f"{group}.{key}={shown(value)}" for key, value in own.items() if key not in ("_target_", "defaults")}
    found = {key: (words, notes.get(key, "")) for key, words in typed.items()}
    return found | dict.fromkeys(("inner",) * len(inner), (f"{group}/{''.join(inner)}", "the rule inside"))


def shown(value: Any) -> str:
    """A value as it is typed."""
    return str(yaml.safe_dump(value, default_flow_style=True, width=1000)).removesuffix("\n...\n").strip()


def bullets(found: Mapping[str, tuple[str, str]]) -> str:
    return "\n".join(f"- `{typed}`: {note}." for typed, note in found.values())


def by_meaning(group: str, names: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    """The choices of each option; the same option with another explanation is another one."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in names:
        for key, (_, note) in options(group, name).items():
            found.setdefault((key, note), []).append(name)
    return found


def with_names(group: str, found: Mapping[tuple[str, str], list[str]]) -> str:
    """A line for each option, with the choices that have it."""
    lines = (
        f"- `{options(group, names[0])[key][0]}` ({', '.join(names)}): {note}." for (key, note), names in found.items()
    )
    return "\n".join(lines) + "\n"


def compared_lines(group: str) -> str:
    """A line for each choice that recorded decodes have, where choices have no sections of their own."""
    found = {name: compared(group, name) for name in choices(group)}
    lines = [f"- `{name}`: {text.removeprefix('**Compared.** ')}" for name, text in found.items() if text]
    return "\nWhat was compared with published programs:\n\n" + "\n".join(lines) + "\n" if lines else ""


# -- caches -----------------------------------------------------------------------------------------------------


def target(name: str) -> str:
    return next(line for line in choice_text("cache", name).splitlines() if "_target_" in line).split(".")[-2]


def base_of(name: str) -> str | None:
    """The cache of the same class or the same words whose options ``name`` has, with other defaults."""
    alike = [
        other
        for other in choices("cache")
        if options("cache", other).keys() == options("cache", name).keys()
        and (target(other) == target(name) or notes(other) == notes(name))
    ]
    first = min(alike, key=lambda other: target(other) != other)
    return None if first == name else first


def notes(name: str) -> list[str]:
    return [note for _, note in options("cache", name).values()]


def shared() -> dict[tuple[str, str], list[str]]:
    """The options that several caches explain in the same words, and whose they are."""
    own = [name for name in choices("cache") if base_of(name) is None]
    return {key: names for key, names in by_meaning("cache", own).items() if len(names) > 1}


def cache_section(name: str) -> str:
    """The options of one cache: its own, and the names of those that several have."""
    found, base, several = options("cache", name), base_of(name), shared()
    if base is not None:
        other = options("cache", base)
        changed = [f"`{typed}`" for key, (typed, _) in found.items() if typed != other[key][0]]
        words = f"Options of [`{base}`](#{base}){', with ' + ', '.join(changed) if changed else ''}."
        return "\n\n".join(filter(None, (words, compared("cache", name)))) + "\n"
    own = {key: value for key, value in found.items() if (key, value[1]) not in several}
    rest = [f"`{key}`" for key in found if key not in own]
    more = f"And [options of several caches](#options-of-several-caches): {', '.join(rest)}." if rest else ""
    return "\n\n".join(filter(None, (bullets(own), more, compared("cache", name)))) + "\n"


# -- the pages of the samplers ----------------------------------------------------------------------------------


def sampler_section(name: str) -> str:
    """What ends a sampler's page: its options and sources."""
    facts, found = part_facts("sampler", name), options("sampler", name)
    source = f"**Source.** {f'arXiv {papers(facts.papers)}. ' if facts.papers else ''}"
    checked = {"own": "Ours: tested against cases worked by hand.", "paper": "Written from the paper alone."}
    source += checked.get(facts.checked, f"Checked against {facts.checked}.")
    parts = ("**Options.**", bullets(found), source, compared("sampler", name))
    return "\n\n".join(filter(None, parts)) + "\n"


# -- what other programs take -----------------------------------------------------------------------------------

IN_SGLANG: Mapping[str, Mapping[str, Any]] = {"klass": {"since": "block"}, "oracle": {"reference": [[0]]}}


def sglang_section() -> str:
    """The samplers that sglang's servers take, and why they do not take the others."""
    reasons = {name: reason_against(part("sampler", name, **IN_SGLANG.get(name, {}))) for name in choices("sampler")}
    taken = ", ".join(
        f"`{name}`" + " (with `since: block`)" * (name == "klass") for name, why in reasons.items() if not why
    )
    refused = [(f"`{name}`", why) for name, why in reasons.items() if why]
    head = ("sampler", "why it does not go through: it")
    return f"These samplers go through: {taken}.\n\n{table(head, refused, len(head))}\n"


# -- what others declare ---------------------------------------------------------------------------------------

FIELD = re.compile(r"^    (?:# (?P<above>.+)\n    )?(?P<name>\w+): [^#\n]+?(?:  # (?P<behind>.+))?$", re.MULTILINE)


def result_fields() -> Iterator[tuple[str, str]]:
    """Each field that a line of results.jsonl has, and its comment."""
    fields = inspect.getsource(Result).partition("    @property")[0]
    for found in FIELD.finditer(fields):
        if found["name"] not in NOT_STORED:
            yield f"`{found['name']}`", (found["behind"] or found["above"]).replace("``", "`")


def metrics() -> Iterator[tuple[str, str, str]]:
    """The figures of ``/metrics``, as they are registered."""
    for family in Metrics(Stats, lambda: "ready").registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield f"`{name}`", family.type, family.documentation


# -- all of it --------------------------------------------------------------------------------------------------


def made(mark: str) -> str:
    """What the site shows in the place of ``<!-- made: mark -->``. Raises KeyError where nothing has this name."""
    kind, _, name = mark.partition(" ")
    makers: Mapping[str, Callable[[], str]] = {
        "sampler": lambda: sampler_section(name),
        "cache": lambda: cache_section(name),
        "shared": lambda: with_names("cache", shared()),
        "options": lambda: with_names(name, by_meaning(name, choices(name))) + compared_lines(name),
        "sglang": sglang_section,
        "words": words.section,
        "result": lambda: table(("key", "meaning"), result_fields(), 2) + "\n",
        "published": published_rows.section,
        "models": model_choices.section,
        "metrics": lambda: table(("metric", "kind", "what it tells"), metrics(), 3) + "\n",
        "fields": lambda: request_fields.tables()[name],
        "compatibility": compatibility_page,
    }
    return makers[kind]()


def sections() -> Iterator[tuple[Path, str, str]]:
    """Every table that is kept: its page, the name of its marks, its text."""
    for group, page in PAGES.items():
        yield DOCS / page, MARKS.get(group, "") + "list", listed(group)


@refusing
def main() -> int:
    for page, mark, text in sections():
        write_marked(page, mark, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
