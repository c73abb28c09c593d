"""What a request says of its answer's form: ``response_format`` and ``diffusion.constraint``, made a constraint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from dllm.common.coerce import is_list_of, is_text
from dllm.common.errors import Wording
from dllm.constraints.kinds import CONFIDENCE, WHITESPACE, Choice, Constraint, FunctionCall, Grammar, JsonSchema, Regex
from dllm.serve.dialects.other_fields import others_of
from dllm.serve.dialects.tools import ToolUse
from dllm.serve.http.api_errors import ApiError, as_refusal
from dllm.serve.http.offered import Offer, Option
from dllm.serve.http.typed import AnyText, BodyObject, must, wrong

# The most bytes of what a form holds: compiling takes its own limits, and reading must not take long either.
MOST_BYTES = {"schema": 64 << 10, "options": 64 << 10, "grammar": 16 << 10, "pattern": 4 << 10}
MAX_NESTING = 32
# vLLM's and llama.cpp's words for a form.
FORMS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "json_schema", "structured_outputs")


@dataclass(frozen=True)
class AnswerForm:
    """The form that an answer must have."""

    kind: Literal["json_object", "json_schema", "regex", "grammar", "choice"]  # of the language
    value: Any  # the schema, pattern, grammar or texts; of json_object nothing
    field: str  # of the request that asks for it
    place: str  # of the value, inside that field or the field itself
    strict: bool = False  # an unknown keyword of the schema is refused


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
    "grammar": Offer(
        "a text of grammar, in Lark's syntax, from its rule start",
        {"confidence": _CONFIDENCE, "depth": _DEPTH, "words": _WORDS},
    ),
    "choice": Offer("one of options", {"confidence": _CONFIDENCE}),
}


def formats_offered() -> dict[str, Any]:
    """The forms by their types, each with what ``diffusion.constraint`` may say to it, as GET /v1/parts shows them."""
    return {kind: asdict(offer) for kind, offer in OFFERS.items()}


TextOptions = Annotated[list[str], must(is_list_of(is_text), "a list of texts, such as ['yes', 'no']")]


class TextForm(BodyObject):
    """Any text."""

    refuses_unknown = True
    type: Literal["text"] = Field(description="its kind")

    def answer_form(self, field: str) -> AnswerForm | None:
        """The form that a field of the request holds."""
        return None


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

    def answer_form(self, field: str) -> AnswerForm:
        return (
            _form("json", self.schema_, field, f"{field}.schema")
            if self.schema_ is not None
            else AnswerForm("json_object", None, field, field)
        )


class NamedSchema(BodyObject):
    """A JSON schema. What OpenAI's ``strict`` refuses, such as optional members, is taken."""

    refuses_unknown = True
    schema_: SentSchema = Field(alias="schema", description="the JSON schema (Draft 2020-12)")
    name: AnyText | None = Field(None, description="without effect")
    description: AnyText | None = Field(None, description="without effect")
    strict: bool = Field(False, description="an unknown keyword is refused")

    def form(self, field: str, place: str) -> AnswerForm:
        """The form that a field of the request asks for, whose schema is at a place in it."""
        return AnswerForm("json_schema", self.schema_, field, place, self.strict)


class SchemaForm(BodyObject):
    """JSON that validates under a schema."""

    refuses_unknown = True
    type: Literal["json_schema"] = Field(description="its kind")
    json_schema: NamedSchema = Field(description="the schema and its name")

    def answer_form(self, field: str) -> AnswerForm:
        return self.json_schema.form(field, f"{field}.json_schema.schema")


class RegexForm(BodyObject):
    """A text that a pattern matches as a whole."""

    refuses_unknown = True
    type: Literal["regex"] = Field(description="its kind")
    pattern: str = Field(description="in the syntax of Python's re")

    def answer_form(self, field: str) -> AnswerForm:
        return _form("regex", self.pattern, field, f"{field}.pattern")


class GrammarForm(BodyObject):
    """A text of a grammar."""

    refuses_unknown = True
    type: Literal["grammar"] = Field(description="its kind")
    grammar: str = Field(description="in Lark's syntax, from its rule start")

    def answer_form(self, field: str) -> AnswerForm:
        return _form("grammar", self.grammar, field, f"{field}.grammar")


class ChoiceForm(BodyObject):
    """One of some texts."""

    refuses_unknown = True
    type: Literal["choice"] = Field(description="its kind")
    options: TextOptions = Field(description="the texts, such as ['yes', 'no']")

    def answer_form(self, field: str) -> AnswerForm:
        return _form("choice", self.options, field, f"{field}.options")


IS_TYPED = must(
    lambda value: isinstance(value, Mapping | BodyObject),
    f'an object whose type is one of {", ".join(OFFERS)}, such as {{"type": "json_object"}}',
)
Form = TextForm | ObjectForm | SchemaForm | RegexForm | GrammarForm | ChoiceForm
ResponseFormat = Annotated[Form, Field(discriminator="type"), IS_TYPED]


class StructuredOutputs(BodyObject):
    """A form in vLLM's words: one of json, regex, choice and grammar."""

    refuses_unknown = True
    others = others_of("outputs")
    json_: SentSchema | None = Field(None, alias="json", description="a JSON schema")
    regex: str | None = Field(None, description="a pattern of Python's re")
    choice: TextOptions | None = Field(None, description="the texts")
    grammar: str | None = Field(None, description="in Lark's syntax")

    @model_validator(mode="after")
    def _check_count(self) -> StructuredOutputs:
        names = [name for name in ("json_", "regex", "choice", "grammar") if getattr(self, name) is not None]
        if len(names) != 1:
            raise wrong(f"must hold one of json, regex, choice, grammar, and holds {len(names)}.")
        return self

    def answer_form(self, field: str) -> AnswerForm:
        """The form that a field of the request holds."""
        (name,) = (key for key in ("json_", "regex", "choice", "grammar") if getattr(self, key) is not None)
        place = f"{field}.{name.rstrip('_')}"
        return _form(name.rstrip("_"), getattr(self, name), place, place)


def _form(word: str, value: Any, field: str, place: str) -> AnswerForm:
    """The form that a word of vLLM's or llama.cpp's asks for."""
    kinds: Any = {"json": "json_schema"}
    return AnswerForm(kinds.get(word, word), value, field, place)


def form_of(body: BodyObject, form_of_request: AnswerForm | None, must_call: bool) -> tuple[AnswerForm | None, str]:
    """The form that a request asks for, in whatever words, and the field of one that has no effect (empty: none).
    form_of_request: what its own field says. must_call: the answer must be a call, beside which no form binds a text.
    Raises ApiError for two forms."""
    forms = [] if form_of_request is None else [form_of_request]
    for name in (name for name in FORMS if body.has(name)):
        value = getattr(body, name)
        word = "json" if name == "json_schema" else name.removeprefix("guided_")
        forms.append(
            value.answer_form(name) if isinstance(value, StructuredOutputs) else _form(word, value, name, name)
        )
    fields = [form.field if form is form_of_request else form.field.partition(".")[0] for form in forms]
    if must_call:
        return None, fields[0] if fields else ""
    if len(forms) > 1:
        raise ApiError(400, f"{fields[0]} and {fields[1]} both say what an answer must be. Drop one.", fields[0])
    return (forms[0] if forms else None), ""


def parse_constraint(
    form: AnswerForm | None, settings: Mapping[str, Any], use: ToolUse | None, words: Wording
) -> Constraint | None:
    """What the answer must be; None: any text. settings: ``diffusion.constraint``. use: the tools; one of them may have
    to be called. words: of the request. Raises ApiError for what is too long, and options without a meaning. Whether
    its language can be compiled is not asked here."""
    if use is not None and use.must_call:
        options = _options("json_schema", settings, words)
        with as_refusal(words=words):
            call = FunctionCall(use.functions, **options)
        return _within("schema", call.text, call, words)
    options = _options("text" if form is None else form.kind, settings, words)
    if form is None:
        return None
    with as_refusal(words=words):
        match form.kind:
            case "json_object":
                return JsonSchema({"type": "object"}, additional=True, strict=False, **options)
            case "json_schema":
                schema = JsonSchema(form.value, strict=form.strict, **options)
                return _within("schema", schema.text, schema, words)
            case "choice":
                choice = Choice(form.value, **options)
                return _within("options", "".join(choice.options), choice, words)
            case "regex":
                return _within("pattern", form.value, Regex(form.value, **options), words)
            case "grammar":
                return _within("grammar", form.value, Grammar(form.value, **options), words)


def _options(kind: str, settings: Mapping[str, Any], words: Wording) -> dict[str, Any]:
    """The options of ``diffusion.constraint``, each with a meaning for this kind, and of its kind."""
    name, offers, out = words.name("diffusion.constraint"), OFFERS[kind].options, dict[str, Any]()
    for key, value in settings.items():
        if key not in offers:
            field = words.name("response_format")
            takes = f"takes {', '.join(offers)}" if offers else f"takes none: set {field}, too"
            sentence = f"{name}.{key} has no meaning for {field} of type {kind}, which {takes}."
            raise ApiError(400, sentence, f"{name}.{key}")
        with as_refusal(f"diffusion.constraint.{key}", words):
            out[key] = offers[key].validate(f"constraint.{key}", value)
    return out


def _within(name: str, text: str, constraint: Constraint, words: Wording) -> Constraint:
    """The constraint, whose text is short enough to be compiled. Raises ApiError."""
    if (size := len(text.encode())) > MOST_BYTES[name]:
        field = words.name("response_format")
        sentence = f"{field}: its {name} has {size} bytes, more than the limit of {MOST_BYTES[name]}. Shorten it."
        raise ApiError(400, sentence, field)
    return constraint
