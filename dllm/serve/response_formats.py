"""What a request says of its answer's form: ``response_format`` and ``diffusion.constraint``, made a constraint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dllm.common.coerce import coerce
from dllm.constraints.kinds import CONFIDENCE, WHITESPACE, Choice, Constraint, FunctionCall, Grammar, JsonSchema, Regex
from dllm.errors import nearest
from dllm.serve.api_errors import ApiError, as_refusal
from dllm.serve.fields import FORMS, object_of
from dllm.serve.offered import Offer, Option
from dllm.serve.tools import ToolUse

# The most bytes of what a form holds: compiling takes its own limits, and reading must not take long either.
MOST_BYTES = {"schema": 64 << 10, "options": 64 << 10, "grammar": 16 << 10, "pattern": 4 << 10}
MAX_NESTING = 32
SWITCHES = ("disable_fallback", "disable_any_whitespace", "disable_additional_properties")  # vLLM's
PLACE = "response_format.json_schema.schema"

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
FIELD_OF = {"json_schema": "json_schema", "regex": "pattern", "grammar": "grammar", "choice": "options"}
OPTIONS = tuple(dict.fromkeys(name for offer in OFFERS.values() for name in offer.options))


def formats_offered() -> dict[str, Any]:
    """The forms by their types, each with what ``diffusion.constraint`` may say to it, as GET /v1/parts shows them."""
    return {kind: asdict(offer) for kind, offer in OFFERS.items()}


def with_form(fields: Mapping[str, Any], use: ToolUse | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Fields in which ``response_format`` says whatever form they ask for, in vLLM's and llama.cpp's words; and what
    the request calls it. A form binds text, so beside a call that must be made there is none. Raises ApiError for two
    forms."""
    forms = {name: fields[name] for name in ("response_format", *FORMS) if name in fields}
    free = forms.get("response_format", {}) == {"type": "text"}
    given = [name for name in forms if name != "response_format" or not free]
    if use is not None and use.forced:
        return {name: value for name, value in fields.items() if name not in forms}, use.names
    if len(given) > 1:
        raise ApiError(400, f"{given[0]} and {given[1]} both say what an answer must be. Drop one.", given[0])
    rest = {name: value for name, value in fields.items() if name not in FORMS}
    name = given[0] if given else "response_format"
    if name == "response_format":
        return {**rest, **_of_llama(forms)}, {}
    key, value = name, forms[name]
    if name == "structured_outputs":
        held = object_of(name, value, ("json", "regex", "choice", "grammar", *SWITCHES))
        held = {kind: entry for kind, entry in held.items() if kind not in SWITCHES or entry is not False}
        if switched := [kind for kind in held if kind in SWITCHES]:
            rule = "must be false: diffusion.constraint says how a form is meant. Drop it"
            raise ApiError(400, f"{name}.{switched[0]}={held[switched[0]]!r} {rule}.", f"{name}.{switched[0]}")
        if len(held) != 1:
            raise ApiError(400, f"{name} must hold one of json, regex, choice, grammar, and holds {len(held)}.", name)
        ((kind, value),) = held.items()
        key, name = f"guided_{kind}", f"{name}.{kind}"
    made, place = _of_vllm(key, value, name)
    return {**rest, "response_format": made}, {place: name, "response_format": name}


def unused_form(fields: Mapping[str, Any], use: ToolUse | None) -> list[str]:
    """A sentence for the reply where a form is asked for beside a call that must be made."""
    asked = [name for name in ("response_format", *FORMS) if name in fields and fields[name] != {"type": "text"}]
    if use is None or not use.forced or not asked:
        return []
    return [f"{asked[0]} binds the text of an answer, and a call is forced: the call follows its function alone."]


def _of_llama(forms: Mapping[str, Any]) -> dict[str, Any]:
    """llama.cpp's ``{"type": "json_object", "schema": {...}}`` as OpenAI writes it."""
    form = forms.get("response_format")
    if isinstance(form, Mapping) and form.get("type") == "json_object" and form.get("schema") is not None:
        rest = {key: value for key, value in form.items() if key not in ("type", "schema")}
        return {
            "response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": form["schema"]}, **rest}
        }
    return {} if form is None else {"response_format": form}


def _of_vllm(key: str, value: Any, name: str) -> tuple[dict[str, Any], str]:
    """The form that a field of vLLM's or llama.cpp's asks for, and what sentences call what it holds. name: of the
    field in the request."""
    if key == "guided_regex":
        return {"type": "regex", "pattern": value}, "response_format.pattern"
    if key == "guided_grammar":
        return {"type": "grammar", "grammar": value}, "response_format.grammar"
    if key == "guided_choice":
        return {"type": "choice", "options": value}, "response_format.options"
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ApiError(400, f"{name} is no JSON ({error}). Send a schema.", name) from None
    return {"type": "json_schema", "json_schema": {"name": "f", "schema": value}}, PLACE


def parse_constraint(
    fields: Mapping[str, Any], diffusion: Mapping[str, Any], use: ToolUse | None = None
) -> Constraint | None:
    """What the answer must be; None: any text. fields: as ``with_form`` makes them. use: the tools, of which a call may
    have to be made. Raises ApiError for a form that is not known, what is too long, and options without a meaning.
    Whether its language can be compiled is not asked here."""
    if use is not None and use.forced:
        return _call(use, _options("json_schema", diffusion.get("constraint", {})))
    form = fields.get("response_format", {"type": "text"})
    kind = _kind(form)
    options = _options(kind, diffusion.get("constraint", {}))
    known = ("type", FIELD_OF[kind]) if kind in FIELD_OF else ("type",)
    held = object_of("response_format", form, known).get(known[-1])
    if kind == "text":
        return None
    with as_refusal():
        return _made(kind, held, options)


def _kind(form: Any) -> str:
    kind = form.get("type") if isinstance(form, Mapping) else None
    if isinstance(kind, str) and kind in OFFERS:
        return kind
    listed, hint = ", ".join(OFFERS), nearest(str(kind), OFFERS)
    if not isinstance(form, Mapping):
        hint = ' Such as {"type": "json_object"}.'
    raise ApiError(400, f"response_format={form!r} must be an object whose type is one of {listed}.{hint}",
                  "response_format")  # fmt: skip


def _options(kind: str, given: Any) -> dict[str, Any]:
    """The options of ``diffusion.constraint``, each with a meaning for this kind, and of its kind."""
    name, there = "diffusion.constraint", OFFERS[kind].options
    found = object_of(name, given, OPTIONS)
    for key, value in found.items():
        if key not in there:
            takes = f"takes {', '.join(there)}" if there else "takes none: set response_format, too"
            sentence = f"{name}.{key} has no meaning for response_format of type {kind}, which {takes}."
            raise ApiError(400, sentence, f"{name}.{key}")
        with as_refusal(f"{name}.{key}"):
            found[key] = there[key].validated(f"{name}.{key}", value)
    return found


def _made(kind: str, held: Any, options: dict[str, Any]) -> Constraint:
    """Raises UserError with the sentence of the command line, and ApiError."""
    match kind:
        case "json_object":
            return JsonSchema({"type": "object"}, additional=True, strict=False, **options)
        case "json_schema":
            return _schema(held, options)
        case "choice":
            choice = Choice(held, **options)
            _check_size("options", "".join(choice.options))
            return choice
        case "regex":
            regex = Regex(held, **options)
            _check_size("pattern", regex.pattern)
            return regex
    grammar = Grammar(held, **options)
    _check_size("grammar", grammar.grammar)
    return grammar


def _call(use: ToolUse, options: dict[str, Any]) -> FunctionCall:
    with as_refusal():
        made = FunctionCall(use.functions, **options)
    _check_size("schema", made.text)
    return made


def _schema(held: Any, options: dict[str, Any]) -> JsonSchema:
    """OpenAI's own form. What ``strict`` refuses there, such as optional members, is taken here."""
    name = "response_format.json_schema"
    found = object_of(name, held, ("name", "description", "schema", "strict"))
    with as_refusal("response_format"):
        for key, kind in (("name", "str"), ("description", "str"), ("strict", "bool")):
            if key in found:
                found[key] = coerce(f"{name}.{key}", found[key], kind)
    if not isinstance(found.get("schema"), Mapping | bool):
        sentence = f"{name}.schema={found.get('schema')!r} must be a schema: an object, true or false."
        raise ApiError(400, sentence, "response_format")
    made = JsonSchema(found["schema"], strict=found.get("strict", False), **options)
    _check_size("schema", made.text)
    return made


def _check_size(name: str, text: str) -> None:
    if (size := len(text.encode())) > MOST_BYTES[name]:
        sentence = (
            f"response_format: its {name} has {size} bytes, more than the limit of {MOST_BYTES[name]}. Shorten it."
        )
        raise ApiError(400, sentence, "response_format")
