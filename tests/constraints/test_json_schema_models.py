"""Classes of pydantic: each compiles, and reads every word; or the field that cannot be kept is named."""

from __future__ import annotations

import json
import random
from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any, Literal, Optional
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from word_samples import drawn_words

from dllm.parts import JsonSchema, UserError, automaton_of


class Colour(Enum):
    RED, BLUE = "red", "blue"


class Point(BaseModel):
    x: int
    y: int = 0


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1, max_length=8, pattern="^[a-z]+$")


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str


class Line(BaseModel):
    start: Point
    end: Point
    colour: Colour = Colour.RED


class Maybe(BaseModel):
    a: Optional[int]  # noqa: UP045  # both spellings of an optional
    b: str | None = None


class Either(BaseModel):
    value: int | str | list[bool]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=0, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str] = []


class Bird(BaseModel):
    kind: Literal["bird", "parrot"]
    inner: Cat | None = None


class Pet(BaseModel):
    pet: Annotated[Cat | Dog | Bird, Field(discriminator="kind")]


class Zoo(BaseModel):
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]] = Field(min_length=1, max_length=3)


class Tuples(BaseModel):
    pair: tuple[int, str]
    many: tuple[int, ...]


class Dicts(BaseModel):
    counts: dict[str, int]
    any: dict[str, Any] = {}


class Dates(BaseModel):
    day: date
    at: datetime
    id: UUID


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


class Even(BaseModel):
    n: int = Field(multiple_of=2, gt=0, lt=100)
    share: float = Field(ge=0, le=1)


class Words(BaseModel):
    flag: bool
    none: None
    level: Literal[1, 2, 3]
    mixed: Literal["a", 1, True]


class Base(BaseModel):
    id: int


class Derived(Base):
    label: str = Field(description="inherits id")


class Described(BaseModel):
    """Titles, examples and defaults say nothing of the text."""

    name: str = Field(title="Name", examples=["a"], deprecated=True)
    address: Point = Field(description="a reference with a description beside it")


class Matrix(BaseModel):
    rows: list[list[float]] = Field(max_length=2)


class Days(BaseModel):
    days: set[Literal["mon", "tue", "wed"]]


MODELS: list[tuple[Any, dict[str, Any]]] = [
    (Point, {"x": 1}),
    (Closed, {"name": "abc"}),
    (Open, {"name": "é"}),
    (Line, {"start": {"x": 1, "y": 2}, "end": {"x": -3}, "colour": "blue"}),
    (Maybe, {"a": None}),
    (Either, {"value": [True]}),
    (Pet, {"pet": {"kind": "parrot", "inner": {"kind": "cat", "lives": 9}}}),
    (Zoo, {"pets": [{"kind": "dog"}, {"kind": "cat", "lives": 0}]}),
    (Tuples, {"pair": [1, "a"], "many": []}),
    (Dicts, {"counts": {"a": 1, "b": 2}}),
    (Dates, {"day": "2024-02-29", "at": "2024-02-29T12:00:00Z", "id": "12345678-1234-1234-1234-123456789abc"}),
    (Tree, {"value": 1, "children": [{"value": 2, "children": []}]}),
    (Even, {"n": 98, "share": 0.5}),
    (Words, {"flag": True, "none": None, "level": 2, "mixed": "a"}),
    (Derived, {"id": 1, "label": ""}),
    (Described, {"name": "a", "address": {"x": 0}}),
    (Matrix, {"rows": [[1.5], []]}),
    (Days, {"days": ["wed", "mon"]}),
    (Bird, {"kind": "bird"}),
    (Cat, {"kind": "cat", "lives": 3}),
]


@pytest.mark.parametrize(("model", "example"), MODELS, ids=lambda each: getattr(each, "__name__", ""))
def test_models_compile_and_read_what_is_written(model: Any, example: dict[str, Any]) -> None:
    found = automaton_of(JsonSchema(model, depth=1))
    assert found.accepts(json.dumps(example).encode())
    for word in drawn_words(found, random.Random(0), 10, 20):
        model.model_validate_json(word)


def test_a_union_with_a_discriminator_takes_no_case_without_it() -> None:
    found = automaton_of(JsonSchema(Pet))
    assert not found.accepts(b'{"pet": {"kind": "dog", "lives": 3}}')
    assert not found.accepts(b'{"pet": {"tricks": []}}')


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (set[str], "uniqueItems"),
        (Annotated[str, Field(json_schema_extra={"pattern": "a(?=b)"})], "looks ahead"),
        (bytes, "'binary'"),
    ],
)
def test_a_field_that_cannot_be_kept_is_named(field: Any, words: str) -> None:
    class Holder(BaseModel):
        fine: int
        odd: field

    with pytest.raises(UserError) as refusal:
        automaton_of(JsonSchema(Holder))
    assert words in str(refusal.value) and "#/properties/odd" in str(refusal.value)


def test_a_schema_of_a_type_adapter_compiles() -> None:
    schema = TypeAdapter(list[Point]).json_schema()
    assert automaton_of(JsonSchema(schema)).accepts(b'[{"x": 1}]')
