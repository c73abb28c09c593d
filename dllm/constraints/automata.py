"""A constraint's language, and its automaton."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from dllm.common.errors import Refusal, verbatim
from dllm.constraints.kinds import Choice, Constraint, FunctionCall, Grammar, Json, JsonSchema, Regex, TaskConstraint
from dllm.constraints.languages.automaton_of import counting
from dllm.constraints.languages.json import json_language
from dllm.constraints.languages.lark_grammar import grammar_language
from dllm.constraints.languages.limits import CompileLimits, TooManyStates, within_limits
from dllm.constraints.languages.regex import regex_language
from dllm.constraints.languages.schema.function_calls import call_language
from dllm.constraints.languages.schema.language import schema_language
from dllm.constraints.languages.schema.numbers import as_fraction
from dllm.constraints.languages.schema.places import pointer_part
from dllm.constraints.languages.trees import Alt, ByteAutomaton, Language
from dllm.constraints.languages.utf8 import literal_text

# Keywords whose numbers take states, and those whose values are no schemas.
_COUNTING = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "multipleOf")
_VALUES = ("enum", "const", "default", "examples")
_BLAMED = 50  # with smaller numbers it is not a number that makes a schema large


def language_of(constraint: Constraint) -> Language:
    """The language of a constraint as trees. Raises UserError for what cannot be read or is not supported."""
    match constraint:
        case Choice(options=options):
            return Language({"start": Alt(tuple(map(literal_text, dict.fromkeys(options))))})
        case Regex(pattern=pattern):
            return regex_language(pattern)
        case Json(depth=depth, whitespace=whitespace):
            return json_language(depth, whitespace)
        case JsonSchema(schema=schema, depth=depth, whitespace=whitespace, additional=additional, strict=strict):
            assert isinstance(schema, Mapping | bool), "a constraint keeps what its schema says, however it was given"
            return schema_language(schema, depth=depth, whitespace=whitespace, additional=additional, strict=strict)
        case FunctionCall(functions=functions, depth=depth, whitespace=whitespace, additional=additional):
            assert not isinstance(functions, str), "a constraint keeps what its functions are, however they were given"
            return call_language(functions, depth=depth, whitespace=whitespace, additional=additional)
        case Grammar(grammar=grammar, start=start, depth=depth, words=words):
            return grammar_language(grammar, start=start, depth=depth, words=words)
        case TaskConstraint():
            raise Refusal(
                "{constraint=from_task} is what each question of a task says of its answer; there is no question "
                "here. Choose a task with questions, or give the constraint itself."
            )
    raise TypeError(f"{type(constraint).__name__} is not a kind of constraint")


def automaton_of(constraint: Constraint) -> ByteAutomaton:
    """The minimal automaton of a constraint, within its own limits. Raises UserError, also where nothing is a word."""
    with within_limits(CompileLimits(constraint.limit, constraint.seconds, getattr(constraint, "depth", None))):
        try:
            automaton = counting(language_of(constraint))
        except TooManyStates as error:
            raise _too_large(constraint, error) from None
        except RecursionError:
            raise Refusal("{constraint} is nested too deeply. Write it more simply.", [constraint.kind]) from None
        if not len(automaton.moves):
            raise _empty(constraint)
    return automaton


def _too_large(constraint: Constraint, error: TooManyStates) -> Refusal:
    """The refusal of a constraint with too many states: of a schema with its largest number, and where that is."""
    counts = [
        (count[2], count, name) for name, schema in _schemas(constraint).items() if (count := largest_count(schema))
    ]
    if not counts:
        return error
    _, (place, keyword, number), name = max(counts)
    return Refusal(
        f"{{constraint.{name}:name}} at {verbatim(place)}: {keyword}={number} is too much: {error.says}",
        [constraint.limit],
        note="Lower it, or raise {constraint.limit} (a server takes no other).",
    )


def largest_count(schema: Any) -> tuple[str, str, float] | None:
    """The largest number that is counted: the place of its schema, its keyword, and the number. None: all are small."""
    counts: list[tuple[int, str, str, float]] = []
    waiting: list[tuple[str, Any]] = [("#", schema)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, list):
            waiting += [(f"{place}/{index}", each) for index, each in enumerate(value)]
        for key, inner in value.items() if isinstance(value, Mapping) else ():
            if key in _COUNTING and isinstance(inner, int | float):
                size = as_fraction(inner).numerator if key == "multipleOf" else int(inner)
                counts.append((size, place, key, inner))
            elif key == "pattern" and isinstance(inner, str):
                numbers = map(int, re.findall(r"[0-9]{1,20}", " ".join(re.findall(r"\{([0-9,]+)\}", inner))))
                largest = max(numbers, default=0)
                counts.append((largest, place, "pattern with a number in {}", largest))
            elif key not in _VALUES:
                waiting.append((f"{place}/{pointer_part(key)}", inner))
    size, place, key, number = max(counts, default=(0, "", "", 0))
    return (place, key, number) if size >= _BLAMED else None


def _schemas(constraint: Constraint) -> dict[str, Any]:
    """The schemas of a constraint, by the options that hold them."""
    if isinstance(constraint, FunctionCall):
        functions = cast("Sequence[Mapping[str, Any]]", constraint.functions)
        return {f"functions[{at}].parameters": function["parameters"] for at, function in enumerate(functions)}
    return {"schema": constraint.schema} if isinstance(constraint, JsonSchema) else {}


def _empty(constraint: Constraint) -> Refusal:
    """The refusal of a constraint without a text."""
    schema = ": no value fulfils all keywords of {constraint.schema:name}. Change or drop one."
    return Refusal(
        f"the {{constraint:name}} allows no text at all{schema if isinstance(constraint, JsonSchema) else '.'}"
    )
