"""Bodies as typed models (pydantic), and what is wrong with one as a sentence.

A field that is null is not set. A field that no one knows is passed over, unless it looks like a known one, which makes
it a slip. Whatever a model refuses, ``refused_body`` says in one sentence with the field, its value and the rule.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from threading import Lock
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

import annotated_types
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Tag,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from dllm.common.coerce import is_number
from dllm.common.errors import nearest
from dllm.serve.dialects.other_fields import OtherField
from dllm.serve.http.api_errors import ApiError

_MOST = 16  # different names that one request may have passed over: each is compared with some 200 known ones
_LONGEST = 64  # characters of a name that may be a slip
_MAX_CHARACTERS = 100  # characters of a value in a sentence
_PLAIN = re.compile(r"[A-Za-z][\w.:-]*", re.ASCII)  # what programs call fields
_UNKNOWN, _WRONG = "unknown_field", "wrong"  # types of our own errors
# What a value must be, by the type of pydantic's error.
_KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
}
_SHORT = reprlib.Repr()  # of lists and objects
_SHORT.maxlist, _SHORT.maxdict, _SHORT.maxstring = 8, 4, 60
_OMITTED: Any = object()  # a value that a sentence leaves out


@dataclass
class Unknown:
    """The unknown fields of one request."""

    refuse: bool = False  # they are refused, instead of passed over
    names: set[str] = field(default_factory=set)  # those passed over so far
    has_refused: bool = False  # one was refused, and only the first is reported

    def passes(self, name: str) -> bool:
        """Whether one more may be passed over."""
        return not self.refuse and (name in self.names or len(self.names) < _MOST) and bool(_PLAIN.fullmatch(name))


class BodyObject(BaseModel):
    """An object of a request. Its docstring and the descriptions of its fields are those of ``/openapi.json``."""

    # ``build_models`` builds them, which takes 0.1 s that no start should wait for
    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=(), defer_build=True)
    refuses_unknown: ClassVar[bool] = False  # what is passed over here would change the answer
    others: ClassVar[Mapping[str, OtherField]] = {}  # fields that other servers have

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, value: Any, info: ValidationInfo) -> Any:
        """The fields that are set, once each unknown one is judged."""
        if not isinstance(value, Mapping):
            return value
        fields, unknown = fields_of(cls), info.context or Unknown()
        values = {name: entry for name, entry in cls.meaningful(value).items() if entry is not None}
        for name in [name for name in values if name in cls.others]:
            if cls.others[name].passes(values[name]):
                del values[name]
            elif cls.others[name].why:
                raise wrong(cls.others[name].refusal, name, values[name])
        for name in (name for name in values if name not in fields):
            hint = "" if unknown.has_refused else cls.instead(name, values[name])
            if hint or cls.refuses_unknown or not unknown.passes(name):
                unknown.has_refused, many = True, len(unknown.names) >= _MOST and not hint
                raise PydanticCustomError(
                    _UNKNOWN, "unknown", {"name": name, "hint": hint, "many": many, "known": ", ".join(fields)}
                )
            unknown.names.add(name)
        return values

    @classmethod
    def meaningful(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields without those that say nothing. Raises PydanticCustomError for what is not served."""
        return value

    @classmethod
    def instead(cls, name: str, value: Any) -> str:
        """The end of a sentence about an unknown field: what says it here; empty: nothing does."""
        slip = slip_of(name, names_near(cls))
        return f".{slip}" if slip else ""

    def has(self, name: str) -> bool:
        """Whether the request sets a field."""
        return name in self.model_fields_set


def all_models(kind: type[BodyObject] = BodyObject) -> Iterator[type[BodyObject]]:
    """Every model of an object of a request."""
    yield kind
    for subclass in kind.__subclasses__():
        yield from all_models(subclass)


Body = TypeVar("Body", bound=BodyObject)
_BUILDING = Lock()  # a model that two threads build may be seen half built


@cache
def build_models() -> None:
    """Make every model ready to judge bodies, if that was not done."""
    with _BUILDING:
        for kind in all_models():
            kind.model_rebuild()


def read_body(kind: type[Body], body: Mapping[str, Any], refuse: bool) -> tuple[Body, tuple[str, ...]]:
    """A body as its model, and the places of the fields passed over. refuse: there may be none. Raises ApiError."""
    build_models()
    unknown = Unknown(refuse)
    try:
        model = kind.model_validate(body, context=unknown)
    except ValidationError as error:
        raise refused_body(error, kind) from None
    first: dict[str, str] = {}
    for name, place in extras(model) if unknown.names else ():
        first.setdefault(name, place)
    return model, tuple(first.values())


def extras(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Names and places of unknown fields."""
    if isinstance(value, BodyObject):
        for name in value.model_extra or ():
            yield name, f"{place}.{name}".lstrip(".")
        for name in filter(value.model_fields_set.__contains__, type(value).model_fields):
            yield from extras(getattr(value, name), f"{place}.{name}".lstrip("."))
    elif isinstance(value, list):
        for at, entry in enumerate(value):
            yield from extras(entry, f"{place}[{at}]")


def wrong(rule: str, at: str = "", value: Any = _OMITTED) -> PydanticCustomError:
    """What a validator raises: the rest of a sentence that begins with the field. at: a field inside it, such as
    ``name`` or ``[3].name``. value: to be shown."""
    text = "" if value is _OMITTED else f"={value_json(value)}"
    return PydanticCustomError(_WRONG, "wrong", {"rule": rule, "at": at, "shown": text})


def must(test: Callable[[Any], object], rule: str, shows: bool = True) -> BeforeValidator:
    """A field whose value passes ``test``, or ``must be`` as the rule says."""

    def check(value: Any) -> Any:
        if not test(value):
            raise wrong(f"must be {rule}.", value=value if shows else _OMITTED)
        return value

    return BeforeValidator(check)


_Part = TypeVar("_Part")
# A text, or a list of parts. < > are in no name of a field.
TextOr = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[_Part], Tag("<list>")],
    Discriminator(lambda value: "<text>" if isinstance(value, str) else "<list>"),
]
# A text; a number in its place is written as one.
AnyText = Annotated[str, BeforeValidator(lambda value: str(value) if is_number(value) else value)]


def refused_body(error: ValidationError, root: type[BodyObject]) -> ApiError:
    """What is wrong with a body, in one sentence."""
    detail = error.errors(include_url=False)[0]
    place, field_info, inside = field_at(root, detail["loc"])
    context = detail.get("ctx", {})
    if detail["type"] == _UNKNOWN:
        return _unknown(place, context)
    if detail["type"] == _WRONG:
        at = context["at"] if not place or not context["at"] or context["at"][0] == "[" else f".{context['at']}"
        place += at
        return ApiError(400, f"{place}{context['shown']} {context['rule']}", place)
    if detail["type"] == "missing":
        return ApiError(400, f"{place} is missing: {_description(field_info)}.", place, "missing_field")
    value = detail["input"]
    if detail["type"].startswith("union_tag") and isinstance(value, Mapping):  # of a union told apart by ``type``
        place, value = f"{place}.type", value.get("type")
        rule = _be_one_of([word for model in inside for word in tags_of(model)], value)
    else:
        rule = _rule(detail, field_info, inside)
    return ApiError(400, f"{place}={value_json(value)} must {rule}", place)


def _be_one_of(words: Sequence[str], value: Any) -> str:
    return f"be {words[0]}." if len(words) == 1 else f"be one of {', '.join(words)}.{nearest(str(value), words)}"


def _unknown(place: str, context: Mapping[str, Any]) -> ApiError:
    name = context["name"]
    sentence = (
        f"{place} has no field {name!r}; it has {context['known']}"
        if place
        else (f"{name!r} is not a field of this request")
    )
    end = f", and more than {_MOST} others are unknown, too. Drop them." if context["many"] else context["hint"] or "."
    return ApiError(400, sentence + end, f"{place}.{name}".lstrip("."), _UNKNOWN)


def _description(field_info: FieldInfo | None) -> str:
    """What a missing field says, by its kind or its documentation."""
    if field_info is not None and get_origin(field_info.annotation) is Literal:
        return f"it must {_be_one_of(get_args(field_info.annotation), '').rstrip('.')}"
    text = "" if field_info is None or field_info.description is None else field_info.description
    return re.split(r"[:.;]( |$)", text)[0]


def _rule(detail: ErrorDetails, field_info: FieldInfo | None, inside: Sequence[type[BodyObject]]) -> str:
    """The rule that an error of pydantic's own speaks of, with the end of the sentence."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _KINDS:
        return f"be {_KINDS[kind]}."
    if kind in ("model_type", "model_attributes_type"):
        return f"be an object with any of {', '.join(names_of(inside[0]))}."
    if kind == "literal_error":
        return _be_one_of(re.findall(r"'([^']*)'", context["expected"]), detail["input"])
    return f"{_range(field_info)}."


def _range(field_info: FieldInfo | None) -> str:
    bounds = [] if field_info is None else field_info.metadata
    low = next((bound.ge for bound in bounds if isinstance(bound, annotated_types.Ge)), None)
    above = next((bound.gt for bound in bounds if isinstance(bound, annotated_types.Gt)), None)
    high = next((bound.le for bound in bounds if isinstance(bound, annotated_types.Le)), None)
    if high is None:
        return f"be at least {low}"
    return f"lie in [{low}, {high}]" if above is None else f"lie in ({above}, {high}]"


def field_at(root: type[BodyObject], loc: Sequence[int | str]) -> tuple[str, FieldInfo | None, list[type[BodyObject]]]:
    """The place that pydantic's ``loc`` names without tags of unions, the field there, and the models it may hold."""
    place, field_info, models = "", None, [root]
    for key in loc:
        if isinstance(key, int):
            place += f"[{key}]"
            continue
        tagged_models = [model for model in models if key in tags_of(model)] if len(models) > 1 else []
        if tagged_models:
            models = tagged_models
            continue
        info = next((fields_of(model)[key] for model in models if key in fields_of(model)), None)
        if info is not None:
            place, field_info, models = f"{place}.{key}".lstrip("."), info, list(models_in(info.annotation))
    return place, field_info, models


def models_in(annotation: Any) -> Iterator[type[BodyObject]]:
    """The models of an annotation, whatever is around them."""
    if isinstance(annotation, type) and issubclass(annotation, BodyObject):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


def tags_of(kind: type[BodyObject]) -> tuple[str, ...]:
    """The words of ``type`` by which a model is told from others."""
    field_info = kind.model_fields.get("type")
    return () if field_info is None else get_args(field_info.annotation)


@cache
def fields_of(kind: type[BodyObject]) -> dict[str, FieldInfo]:
    """The fields of a model by their names in a request."""
    return {info.alias or name: info for name, info in kind.model_fields.items()}


@cache
def names_of(kind: type[BodyObject]) -> tuple[str, ...]:
    """What a request calls the fields of a model."""
    return tuple(fields_of(kind))


@cache
def names_near(kind: type[BodyObject]) -> tuple[str, ...]:
    """The names that an unknown one may be a slip of: of the fields, and of those that other servers have."""
    return (*names_of(kind), *(name for name, row in kind.others.items() if row.why))


def value_json(value: Any) -> str:
    """A value in a sentence, shortened."""
    if isinstance(value, str):
        return repr(value) if len(value) <= _MAX_CHARACTERS else f"{value[:_MAX_CHARACTERS]!r}..."
    return _SHORT.repr(value)


def slip_of(name: str, names: tuple[str, ...]) -> str:
    """`` Did you mean 'x'?`` of a name that looks like a known one, else nothing."""
    return "" if len(name) > _LONGEST else _nearest(name, names)


@lru_cache(4096)  # a name is kept with its answer, so it must be short
def _nearest(name: str, names: tuple[str, ...]) -> str:
    return nearest(name, names)


def note_of(places: Sequence[str]) -> str:
    """What the reply says of the fields that were passed over."""
    names = ", ".join(place if len(place) <= _LONGEST else f"{place[:_LONGEST]}..." for place in places)
    return f"Not known here, and passed over: {names}."
