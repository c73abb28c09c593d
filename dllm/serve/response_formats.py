"""What a request says of its answer's form: ``response_format`` and ``diffusion.constraint``, made a constraint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from dllm.common.coerce import is_list_of, is_text
from dllm.constraints.kinds import CONFIDENCE, WHITESPACE, Choice, Constraint, FunctionCall, Grammar, JsonSchema, Regex
from dllm.serve.api_errors import ApiError, as_refusal
from dllm.serve.offered import Offer, Option
from dllm.serve.tools import ToolUse
from dllm.serve.typed import AnyText, BodyObject, must, wrong

# The most bytes of what a form holds: compiling takes its own limits, and reading must not take long either.
MOST_BYTES = {"schema": 64 << 10, "options": 64 << 10, "grammar": 16 << 10, "pattern": 4 << 10}
MAX_NESTING = 32
# vLLM's and llama.cpp's words for a form.
FORMS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "json_schema", "structured_outputs")
# What sentences call what a form holds.
FORM_PLACES = {
    "json": "response_format.json_schema.schema", "regex": "response_format.pattern",
    "grammar": "response_format.grammar", "choice": "response_format.options",
}  # fmt: skip

_CONFIDENCE = Option("text", "model", choices=CONFIDENCE, note="of a proposal among all tokens, or the admissible ones")
_WHITESPACE = Option("text", "any", choices=WHITESPACE, note="wherever JSON allows it, one after , and :, or none")
_DEPTH = Option("integer", 4, most=MAX_NESTING, note="how often what contains itself is entered in itself")
_WORDS = Option("boolean", False, note="two words in a row have something between them")
_ADDITIONAL = Option("boolean", False, note="members that the schema does not speak of may be added")
_JSON = {"confidence": _CONFIDENCE, "whitespace": _WHITESPACE, "depth": _DEPTH}
OFFERS = {
    "text": Offer("any text", {}),
    "json_object": Offer("a JSON object of any members", _JSON),
    "json_schema": Offer("JSON that validates under json_schema.schema", {**_JSON, "additional": _ADDITIONAL}),
    "regex": Offer("a text that matches pattern as a whole, in Python's syntax", {"confidence": _CONFIDENCE}),
    "grammar": Offer("a text of grammar, in Lark's syntax, from its rule start",
                     {"confidence": _CONFIDENCE, "depth": _DEPTH, "words": _WORDS}),
    "choice": Offer("one of options", {"confidence": _CONFIDENCE}),
}  # fmt: skip
Switch = Annotated[
    bool, must(lambda value: value is False, "false: diffusion.constraint says how a form is meant. Drop it")
]


def formats_offered() -> dict[str, Any]:
    """The forms by their types, each with what ``diffusion.constraint`` may say to it, as GET /v1/parts shows them."""
    return {kind: asdict(offer) for kind, offer in OFFERS.items()}


TextOptions = Annotated[list[str], must(is_list_of(is_text), "a list of texts, such as ['yes', 'no']")]


class TextForm(BodyObject):
    """Any text."""

    refuses_unknown = True
    type: Literal["text"] = Field(description="its kind")


def _schema(value: Any) -> Any:
    """A schema, or the one that a JSON text holds, as vLLM's clients send it."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise wrong(f"is not JSON ({error}). Send a schema.") from None
    if not isinstance(value, Mapping | bool):
        raise wrong("must be a schema: an object, true or false.", value=value)
    return value


SentSchema = Annotated[dict[str, Any] | bool, BeforeValidator(_schema)]


class ObjectForm(BodyObject):
    """A JSON object; with llama.cpp's ``schema`` JSON that validates under it."""

    refuses_unknown = True
    type: Literal["json_object"] = Field(description="its kind")
    schema_: SentSchema | None = Field(None, alias="schema", description="a JSON schema (llama.cpp)")


class NamedSchema(BodyObject):
    """A JSON schema. What OpenAI's ``strict`` refuses, such as optional members, is taken."""

    refuses_unknown = True
    schema_: SentSchema = Field(alias="schema", description="the JSON schema (Draft 2020-12)")
    name: AnyText | None = Field(None, description="without effect")
    description: AnyText | None = Field(None, description="without effect")
    strict: bool = Field(False, description="an unknown keyword is refused")


class SchemaForm(BodyObject):
    """JSON that validates under a schema."""

    refuses_unknown = True
    type: Literal["json_schema"] = Field(description="its kind")
    json_schema: NamedSchema = Field(description="the schema and its name")


class RegexForm(BodyObject):
    """A text that a pattern matches as a whole."""

    refuses_unknown = True
    type: Literal["regex"] = Field(description="its kind")
    pattern: str = Field(description="in the syntax of Python's re")


class GrammarForm(BodyObject):
    """A text of a grammar."""

    refuses_unknown = True
    type: Literal["grammar"] = Field(description="its kind")
    grammar: str = Field(description="in Lark's syntax, from its rule start")


class ChoiceForm(BodyObject):
    """One of some texts."""

    refuses_unknown = True
    type: Literal["choice"] = Field(description="its kind")
    options: TextOptions = Field(description="the texts, such as ['yes', 'no']")


TYPED = must(
    lambda value: isinstance(value, Mapping | BodyObject),
    f'an object whose type is one of {", ".join(OFFERS)}, such as {{"type": "json_object"}}',
)
Form = TextForm | ObjectForm | SchemaForm | RegexForm | GrammarForm | ChoiceForm
ResponseFormat = Annotated[Form, Field(discriminator="type"), TYPED]


class StructuredOutputs(BodyObject):
    """A form in vLLM's words: one of json, regex, choice and grammar."""

    refuses_unknown = True
    json_: SentSchema | None = Field(None, alias="json", description="a JSON schema")
    regex: str | None = Field(None, description="a pattern of Python's re")
    choice: TextOptions | None = Field(None, description="the texts")
    grammar: str | None = Field(None, description="in Lark's syntax")
    disable_fallback: Switch = Field(False, description="must be false")
    disable_any_whitespace: Switch = Field(False, description="must be false")
    disable_additional_properties: Switch = Field(False, description="must be false")

    @model_validator(mode="after")
    def _one(self) -> StructuredOutputs:
        held = [name for name in ("json_", "regex", "choice", "grammar") if getattr(self, name) is not None]
        if len(held) != 1:
            raise wrong(f"must hold one of json, regex, choice, grammar, and holds {len(held)}.")
        return self


@dataclass(frozen=True)
class Asked:
    """What the answer of a request must be."""

    form: Form | None = None  # None: any text
    names: Mapping[str, str] = field(default_factory=dict)  # what the request calls it, by our names
    unused: str = ""  # the field of a form that has no effect; empty: none


def form_of(body: BodyObject, use: ToolUse | None) -> Asked:
    """The form that a request asks for, in whatever words. A form binds text, so beside a call that must be made there
    is none. Raises ApiError for two forms."""
    given = [name for name in ("response_format", *FORMS) if body.has(name)]
    given = [name for name in given if not isinstance(getattr(body, name), TextForm)]
    if use is not None and use.forced:
        return Asked(names=use.names, unused=given[0] if given else "")
    if len(given) > 1:
        raise ApiError(400, f"{given[0]} and {given[1]} both say what an answer must be. Drop one.", given[0])
    if not given:
        return Asked()
    (name,) = given
    value = getattr(body, name)
    if isinstance(value, ObjectForm) and value.schema_ is not None:
        return Asked(_of_words("json", value.schema_))
    if name == "response_format":
        return Asked(value)
    kind = "json" if name == "json_schema" else name.removeprefix("guided_")
    if isinstance(value, StructuredOutputs):
        (kind,) = (one for one in ("json_", "regex", "choice", "grammar") if getattr(value, one) is not None)
        value, kind = getattr(value, kind), kind.rstrip("_")
        name = f"{name}.{kind}"
    return Asked(_of_words(kind, value), {FORM_PLACES[kind]: name, "response_format": name})


def _of_words(kind: str, value: Any) -> Form:
    """The form that a word of vLLM's or llama.cpp's asks for."""
    match kind:
        case "regex":
            return RegexForm(type="regex", pattern=value)
        case "grammar":
            return GrammarForm(type="grammar", grammar=value)
        case "choice":
            return ChoiceForm(type="choice", options=value)
    return SchemaForm(type="json_schema", json_schema=NamedSchema(schema=value))


def parse_constraint(form: Form | None, given: Mapping[str, Any], use: ToolUse | None = None) -> Constraint | None:
    """What the answer must be; None: any text. given: ``diffusion.constraint``. use: the tools; one of them may have
    to be called. Raises ApiError for what is too long, and options without a meaning. Whether its language can be
    compiled is not asked here."""
    if use is not None and use.forced:
        return _call(use, _options("json_schema", given))
    options = _options("text" if form is None else form.type, given)
    with as_refusal():
        match form:
            case ObjectForm():
                return JsonSchema({"type": "object"}, additional=True, strict=False, **options)
            case SchemaForm(json_schema=held):
                made = JsonSchema(held.schema_, strict=held.strict, **options)
                return _within("schema", made.text, made)
            case ChoiceForm():
                choice = Choice(form.options, **options)
                return _within("options", "".join(choice.options), choice)
            case RegexForm():
                return _within("pattern", form.pattern, Regex(form.pattern, **options))
            case GrammarForm():
                return _within("grammar", form.grammar, Grammar(form.grammar, **options))
    return None


def _options(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of ``diffusion.constraint``, each with a meaning for this kind, and of its kind."""
    name, there, found = "diffusion.constraint", OFFERS[kind].options, dict[str, Any]()
    for key, value in given.items():
        if key not in there:
            takes = f"takes {', '.join(there)}" if there else "takes none: set response_format, too"
            sentence = f"{name}.{key} has no meaning for response_format of type {kind}, which {takes}."
            raise ApiError(400, sentence, f"{name}.{key}")
        with as_refusal(f"{name}.{key}"):
            found[key] = there[key].validated(f"{name}.{key}", value)
    return found


def _call(use: ToolUse, options: dict[str, Any]) -> Constraint:
    with as_refusal():
        made = FunctionCall(use.functions, **options)
    return _within("schema", made.text, made)


def _within(name: str, text: str, made: Constraint) -> Constraint:
    """The constraint, whose text is short enough to be compiled. Raises ApiError."""
    if (size := len(text.encode())) > MOST_BYTES[name]:
        sentence = (
            f"response_format: its {name} has {size} bytes, more than the limit of {MOST_BYTES[name]}. Shorten it."
        )
        raise ApiError(400, sentence, "response_format")
    return made
