"""Constraints as values: equal where they ask the same, refused where an option is wrong."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from dllm.parts import (
    MAX_ADDED_NODES,
    Bytes,
    Cat,
    Choice,
    Constraint,
    Grammar,
    Json,
    JsonSchema,
    Language,
    Regex,
    RuleCall,
    Tree,
    UserError,
    automaton_of,
    remaining,
)


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (Choice(["a", "b"]), Choice(("a", "b")), Choice(["b", "a"])),
        (Regex("a"), Regex("a", limit=20_000), Regex("a", confidence="admissible")),
        (Json(3), Json(depth=3, whitespace="any"), Json(3, "one")),
        (
            JsonSchema({"type": "object", "properties": {"a": {}, "b": {}}}),
            JsonSchema({"type": "object", "properties": {"a": {}, "b": {}}}),
            JsonSchema({"type": "object", "properties": {"b": {}, "a": {}}}),
        ),
        (Grammar('start: "a"'), Grammar('start: "a"', start="start"), Grammar('start: "a"', words=True)),
    ],
)
def test_equal_constraints_are_one_key(one: Constraint, same: Constraint, other: Constraint) -> None:
    assert one == same and hash(one) == hash(same) and {one: 1}[same] == 1
    assert one != other
    with pytest.raises(FrozenInstanceError):
        one.limit = 3  # type: ignore[misc]


def test_a_schema_is_its_own_copy() -> None:
    schema: dict[str, Any] = {"enum": ["a"]}
    constraint = JsonSchema(schema)
    schema["enum"].append("b")
    assert constraint == JsonSchema({"enum": ["a"]}) and not automaton_of(constraint).accepts(b'"b"')


def test_a_class_of_pydantic_is_its_schema() -> None:
    pydantic = pytest.importorskip("pydantic")
    person = pydantic.create_model("Person", name=(str, ...), age=(int, 3))
    assert JsonSchema(person) == JsonSchema(person.model_json_schema())
    assert automaton_of(JsonSchema(person)).accepts(b'{"name": "Ada", "age": 36}')


def test_a_choice_is_one_of_its_texts() -> None:
    automaton = automaton_of(Choice(["yes", "yesterday", "", "über", "yes"]))
    words = ["yes", "yesterday", "", "über"]
    for text in [*words, "y", "yest", "uber", "yesyes"]:
        assert automaton.accepts(text.encode()) == (text in words)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Choice("yes"), "constraint.options='yes' must be a list of texts, such as ['yes', 'no']."),
        (lambda: Choice([1]), "must be a list of texts"),  # type: ignore[list-item]
        (lambda: Choice(["\ud800"]), "half a character"),
        (lambda: JsonSchema("[1]"), "constraint.schema=[1] must be a mapping, true or false."),
        (lambda: Regex(3), "constraint.pattern=3 must be a text."),  # type: ignore[arg-type]
        (lambda: Json(-1), "constraint.depth=-1 must be a whole number of at least 0."),
        (lambda: Json(1.5), "constraint.depth=1.5 must be a whole number"),  # type: ignore[arg-type]
        (lambda: Json(True), "constraint.depth=True must be a whole number"),
        (lambda: Json(whitespace="some"), "constraint.whitespace='some' must be one of any, one, none."),
        (lambda: Regex("a", confidence="models"), "Did you mean 'model'?"),
        (lambda: Regex("a", joint=1), "constraint.joint=1 must be true or false."),  # type: ignore[arg-type]
        (lambda: Regex("a", limit=0), "constraint.limit=0 must be a whole number of at least 1."),
        (lambda: Regex("a", seconds=float("nan")), "constraint.seconds=nan must be a number of at least 0.001."),
        (lambda: JsonSchema({"enum": {1, 2}}), "constraint.schema is not JSON: Object of type set is"),
        (lambda: JsonSchema({"const": float("nan")}), "constraint.schema is not JSON"),
        (lambda: Grammar("start: a", depth="4"), "constraint.depth='4' must be a whole number"),  # type: ignore[arg-type]
    ],
)
def test_wrong_options_say_what_is_right(make: Any, says: str) -> None:
    with pytest.raises(UserError) as refusal:
        make()
    assert says in str(refusal.value)


def test_a_constraint_without_a_text_is_refused() -> None:
    for constraint in (Choice([]), Regex(r"[^\s\S]"), JsonSchema(False)):
        with pytest.raises(UserError, match="^the constraint allows no text at all"):
            automaton_of(constraint)


def test_its_own_limits_hold() -> None:
    with pytest.raises(UserError, match=r"needs more than 100 states\. Shorten counted repetitions"):
        automaton_of(Regex("a{200}", limit=100))
    with pytest.raises(UserError, match="needs more than 100 states at depth 3. Lower constraint.depth"):
        automaton_of(Json(3, limit=100))
    assert len(automaton_of(Regex("a{200}", limit=201)).moves) == 201


def chain(depth: int, times: int) -> Language:
    """Rules of which each calls the one before several times."""
    rules: dict[str, Tree] = {"r0": Cat((Bytes(((65, 65),)),) * 2)}
    rules |= {f"r{at}": Cat((RuleCall(f"r{at - 1}"),) * times) for at in range(1, depth)}
    return Language({**rules, "start": RuleCall(f"r{depth - 1}")})


def size(tree: Tree, language: Language, kept: frozenset[str]) -> int:
    """Nodes of a tree, counted one by one, with all calls written out but those of ``kept``."""
    if isinstance(tree, RuleCall) and tree.rule not in kept:
        return size(language.rules[tree.rule], language, kept)
    return 1 + sum(size(part, language, kept) for part in tree.parts) if isinstance(tree, Cat) else 1


@pytest.mark.parametrize("times", [2, 3])
def test_calls_are_written_out_up_to_the_limit_of_nodes(times: int) -> None:
    for depth in range(2, 14 if times == 2 else 10):
        language = chain(depth, times)
        every = frozenset(language.rules)
        before = sum(size(tree, language, every) for tree in language.rules.values())
        kept = frozenset(remaining(language))
        after = sum(size(language.rules[rule], language, kept) for rule in kept)
        assert after <= before + MAX_ADDED_NODES
        if size(language.rules["start"], language, frozenset()) < MAX_ADDED_NODES // 4:
            assert kept == {"start"}
