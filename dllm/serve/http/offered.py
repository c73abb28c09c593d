"""What a request may choose: the parts and their options, from their YAML files and their classes.

A new part is safe by what its file leaves out: whole numbers, lists of them and free texts are offered only up to the
``serve_max`` after them in the YAML file (``dllm.compose.choice_files``), words only where the part itself names its
choices. So a file's name is never offered, nor a part that cannot be built without one.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from math import inf
from typing import Any

from dllm.common.coerce import PER_REQUEST, coerce, is_number, words_of
from dllm.common.errors import Refusal, UnknownChoice, UserError, nearest
from dllm.common.hints import other_choice
from dllm.compose.choice_files import choice_notes, part_facts, serve_limits
from dllm.compose.config_choices import choice_of, choices, comes_along, options_of_choices
from dllm.compose.parts import arguments_of, build_part, class_of, configurations, takes_part

OFFERED_GROUPS = ("sampler", "blocks", "cache", "eos")
LONGEST_LIST = 64
DEEPEST = 3  # wrappers within each other
# The annotations that stand for an option's kind, in the order in which they are looked for.
ANNOTATIONS = {
    "bool": "boolean",
    "str": "text",
    "float": "number",
    "int": "integer",
    "Sequence[float]": "numbers",
    "Sequence[int]": "integers",
}
OF_KINDS = {kind: annotation for annotation, kind in ANNOTATIONS.items()}
BOUND_TO_LIMITS = ("integer", "integers", "text")


@dataclass(frozen=True)
class Option:
    """An option that a request may set."""

    kind: str  # boolean, text, number, integer, numbers, integers, or part
    default: Any  # of a request without the field
    null: bool = False  # it may be null
    most: int | None = None  # the largest whole number, or the longest text
    choices: tuple[str, ...] = ()  # the words that it may be
    note: str = ""  # its comment in the YAML file

    def validate(self, name: str, value: Any) -> Any:
        """``value`` of this kind. Raises UserError with the command line's sentence, or the most that is served."""
        if isinstance(value, str) and "${" in value:
            raise Refusal(
                f"{{{name}:quoted}} must not hold ${{{{}}, which stands for a setting of the server. Drop it.", [value]
            )
        value = coerce(name, value, OF_KINDS[self.kind] + " | None" * self.null, self.default)
        entries, most = value if isinstance(value, list) else [value], inf if self.most is None else self.most
        if len(entries) > LONGEST_LIST:
            raise Refusal(f"{{{name}:name}} has {len(entries)} entries. At most {LONGEST_LIST} are served.")
        for entry in entries:
            if isinstance(entry, str) and len(entry) > most:
                raise Refusal(f"{{{name}:name}} has {len(entry)} characters. At most {most} are served.")
            if is_number(entry) and entry > most:
                raise Refusal(f"{{{name}}} is more than {most}, the most that is served.", [value])
        return value


@dataclass(frozen=True)
class Offer:
    """A part that a request may choose."""

    doc: str  # a line about it
    options: Mapping[str, Option]  # what may be set of it
    about: str = ""  # all that its module says of it
    papers: tuple[str, ...] = ()  # numbers of arXiv
    checked: str = ""  # what it was compared with (empty: nothing to compare)


def parts_on_offer() -> dict[str, dict[str, Any]]:
    """What may be chosen, as GET /v1/parts shows it: groups, names, a line about each, and their options."""
    return {group: {name: asdict(offer) for name, offer in offers(group).items()} for group in OFFERED_GROUPS}


def validated_options(name: str, choice: str, options: Mapping[str, Any], depth: int = 1) -> dict[str, Any]:
    """The ``options`` of a part, each offered and valid. An option that is null is not set, unless null is
    one of its values. name: ``sampler``, or ``sampler.inner``. Raises UserError."""
    if not options:
        return {}
    group = name.partition(".")[0]
    if not is_offered(group, choice):
        raise Refusal(f"{{{name}}} is the server's own; none of its options can be set.", [choice])
    nullable = {key for key, option in offer_of(group, choice).options.items() if option.null}
    values = {key: value for key, value in options.items() if value is not None or key in nullable}
    return {key: _sound_option(f"{name}.{key}", choice, key, value, depth) for key, value in values.items()}


def choice_and_options(name: str, value: Any) -> tuple[str, dict[str, Any]]:
    """Name and options of a part chosen by NAME or {"name": NAME, ...}. Raises UserError where it is not offered."""
    options = dict(value) if isinstance(value, Mapping) else {"name": value}
    choice, group = options.pop("name", None), name.partition(".")[0]
    if not isinstance(choice, str):
        raise Refusal(f'{{{name}:quoted}} must be NAME or {{"name": NAME, OPTION: VALUE}}.', [value])
    if is_offered(group, choice):
        return choice, options
    if (other := other_choice(name, choice)) is not None:
        raise Refusal(f"{{{name}:quoted}} is not offered.", [choice], [other])
    names = list(offers(group))
    raise Refusal(
        f"{{{name}:quoted}} is not offered; choose one of {', '.join(names)}.{nearest(choice, names)}", [choice]
    )


def _sound_option(name: str, choice: str, key: str, value: Any, depth: int) -> Any:
    group = name.partition(".")[0]
    offers_of_choice = offer_of(group, choice).options
    if key not in offers_of_choice:
        why = "is not offered" if key in _config(group, choice) else "does not exist"
        names = ", ".join(offers_of_choice) or "none"
        raise Refusal(f"{{{name}:name}} {why}; {{{group}}} offers {names}.{nearest(key, offers_of_choice)}", [choice])
    if offers_of_choice[key].kind != "part":
        return offers_of_choice[key].validate(name, value)
    if depth == DEEPEST:
        raise Refusal(f"{{{name}:name}} is a part within {depth} others, and no more are served.")
    inner, options = choice_and_options(name, value)
    return {"name": inner, **validated_options(name, inner, options, depth + 1)}


@cache
def offers(group: str) -> dict[str, Offer]:
    """The parts of a group that are offered. All of them take seconds to find out, and a request asks for one."""
    return {name: offer_of(group, name) for name in choices(group) if _builds(group, name)}


def is_offered(group: str, name: str) -> bool:
    """Whether a choice is there, and can be built without further words."""
    return name in choices(group) and _builds(group, name)


@cache  # of names that are offered
def offer_of(group: str, name: str) -> Offer:
    """What a part is: its facts, what its module says of it, and its options, its own before those of the plainest."""
    facts, module = part_facts(group, name), class_of(group, _config(group, name)["_target_"]).__module__
    usual = _config(group, "none") if "none" in choices(group) and name != "none" else {}
    options = dict(sorted(_options(group, name), key=lambda item: item[0] in usual))
    about = inspect.cleandoc(sys.modules[module].__doc__ or "")
    return Offer(facts.idea, options, about, facts.papers, facts.checked)


@cache
def _builds(group: str, name: str) -> bool:
    with suppress(UserError if comes_along(group, name) else Exception):  # a user's file and class may hold anything
        build_part(group, _config(group, name))
        return True
    return False


def _config(group: str, name: str) -> dict[str, Any]:
    """What the file of a choice says, and those of the parts inside it. A user's own file is composed by Hydra."""
    if not comes_along(group, name):
        return configurations(group, name)[group]
    entries = dict(options_of_choices(group)[name])
    inside = [entry for entry in entries.pop("defaults", []) if isinstance(entry, Mapping)]
    return {key: _config(group, choice) for entry in inside for key, choice in entry.items()} | entries


def _options(group: str, name: str) -> Iterator[tuple[str, Option]]:
    config, limits, notes = _config(group, name), serve_limits(group, name), choice_notes(group, name)
    for key, argument in arguments_of(class_of(group, config["_target_"])).items():
        if key in config:
            option = _option(group, config, key, argument, limits.get(key), notes.get(key, ""))
            if option is not None:
                yield key, option


def _option(
    group: str, config: Mapping[str, Any], key: str, argument: inspect.Parameter, most: int | None, note: str
) -> Option | None:
    """An option as it is offered; None: it is not."""
    words, default = words_of(argument.annotation), config[key]
    if takes_part(argument):
        if not isinstance(default, Mapping):  # an annotation of another library
            return None
        inner = tuple(choice for choice in choices(f"{group}/inner") if _builds(group, choice))
        return Option("part", _name_of(group, default), choices=inner, note=note)
    if PER_REQUEST in words:  # a number, which in Python may differ by request
        words = [*words, type(argument.default).__name__]
    kind = next((kind for annotation, kind in ANNOTATIONS.items() if annotation in words), None)
    allowed = _words(group, config, key) if kind == "text" else ()
    if kind is None or (kind in BOUND_TO_LIMITS and most is None and not allowed):
        return None
    return Option(kind, default, "None" in words, most, allowed, note)


def _words(group: str, config: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """The words that an option may be, which the part itself tells for any other value."""
    try:
        build_part(group, {**config, key: "\0"})  # no word, and no file's name either
    except UnknownChoice as refusal:
        return refusal.known
    except UserError:
        pass
    return ()


def _name_of(group: str, config: Mapping[str, Any]) -> str:
    """The choice inside another part, whose options may differ from the choice's own."""
    same = (name for name in choices(group) if _builds(group, name) and _config(group, name) == config)
    return next(same, choice_of(group, config))
