"""The body of POST /v1/decisions: OpenAI's fields, vLLM's ``joint`` and ``cache_salt``, ours under ``diffusion``."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dllm.common.coerce import coerce, is_text
from dllm.decisions import Choice, Predicate, Question, Score
from dllm.decisions.protocol import DecisionOptions
from dllm.decisions.questions import QUESTION_TYPES
from dllm.errors import in_choices, nearest
from dllm.prompts import Message, Prompts
from dllm.serve.api_errors import ApiError, as_refusal
from dllm.serve.body import check_values
from dllm.serve.fields import DIFFUSION, flag, object_of
from dllm.serve.messages import refuse_many, validated_messages
from dllm.serve.request_parts import Defaults

MAX_QUESTIONS = 400
MAX_ALTERNATIVES = 4096  # of all questions of a request
MAX_VALUE = 256  # characters of an alternative, as of a stop string
DECISION_FIELDS = (
    "model",
    "input",
    "questions",
    "joint",
    "diffusion",
    "cache_salt",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "metadata",
    "user",
)
# Parts of a content by their type, with the field that holds what they say.
TEXT_PARTS = {"input_text": "text", "text": "text", "output_text": "text", "refusal": "refusal", "input_json": "data"}
OF_DIFFUSION = ("template", "labels", "estimator", "slot", "free", "temperature", "neutral", "order")
LIST_FIELDS = {"choice": ("choices", "value"), "score": ("levels", "label")}


@dataclass(frozen=True)
class ParsedDecisions:
    """What a request asks for."""

    model: str  # the name that it was asked by
    state: str | list[Message]  # what the questions are about: a text, or messages
    questions: Mapping[str, Question]  # by name
    unnamed: frozenset[str]  # names that we gave to questions without one
    options: DecisionOptions  # how they are read
    prompts: Prompts  # the canvases that they become


def parse_decisions(body: Mapping[str, Any], defaults: Defaults) -> ParsedDecisions:
    """What ``body`` asks for. Raises ApiError, before anything is computed, for whatever cannot be served."""
    check_values(body)
    given = {name: value for name, value in body.items() if value is not None}
    for name in given:
        if name not in DECISION_FIELDS:
            hint = (
                f': write "diffusion": {{"{name}": ...}}.'
                if name in OF_DIFFUSION
                else f".{nearest(name, DECISION_FIELDS)}"
            )
            raise ApiError(400, f"{name!r} is no field of a decision{hint}", name, "unknown_field")
    model = given.get("model", defaults.name)
    if model not in defaults.names:
        sentence = f"model={model!r} is not served here, only {defaults.listed_names}. Name that, or leave model out."
        raise ApiError(404, sentence, "model", "model_not_found")
    for name in ("input", "questions"):
        if name not in given:
            raise ApiError(400, f"{name} is missing.", name, "missing_field")
    ours = object_of("diffusion", _without_decoding(given.get("diffusion", {})), OF_DIFFUSION)
    joint = flag("joint", given, "joint")
    labels, template = ours.pop("labels", "values"), ours.pop("template", None)
    if isinstance(template, list) != joint and (joint is False or template is not None):
        rule = "texts and names of questions with joint=true, else a text, or an object of texts by name"
        if template is not None:
            raise ApiError(400, f"diffusion.template must be a list of {rule}.", "diffusion.template")
    questions, unnamed = _questions(given["questions"], labels, template if not joint else None)
    return ParsedDecisions(
        model, _input(given["input"]), questions, unnamed, 
        _options(ours, joint, template if joint else None, defaults.calibration),
        replace(defaults.prompts, chat=None),
    )  # fmt: skip


def _without_decoding(value: Any) -> Any:
    """The same. Raises ApiError for options of a decode."""
    for name in DIFFUSION if isinstance(value, Mapping) else ():
        if value.get(name) is not None:
            sentence = f"diffusion.{name} is an option of a decode, and a decision decodes nothing. Drop it."
            raise ApiError(400, sentence, f"diffusion.{name}", "unknown_field")
    return value


def _options(
    ours: Mapping[str, Any], joint: bool, template: Any, calibration: Mapping[str, float]
) -> DecisionOptions:  # fmt: skip
    kinds = {"estimator": "str", "slot": "str", "free": "int", "temperature": "float", "neutral": "str", "order": "str"}
    sound: dict[str, Any] = {}
    for name, value in ours.items():
        with as_refusal(f"diffusion.{name}"):
            sound[name] = coerce(f"diffusion.{name}", value, kinds[name])
            DecisionOptions(joint=joint, **{name: sound[name]})
    if template is not None and not all(isinstance(piece, str) for piece in template):
        raise ApiError(400, "diffusion.template must hold texts and names of questions.", "diffusion.template")
    with as_refusal("diffusion"):
        pieces = None if template is None else tuple(template)
        return DecisionOptions(joint=joint, template=pieces, calibration=calibration, **sound)


def _input(value: Any) -> str | list[Message]:
    """A text, or messages in the form of OpenAI's responses. Raises ApiError."""
    if isinstance(value, str):
        if not value.strip():
            raise ApiError(400, "input is empty: what is to be judged?", "input")
        return value
    if not isinstance(value, list):
        raise ApiError(400, "input must be a text, or a list of messages.", "input")
    refuse_many("input", value)
    try:
        return validated_messages([_plain(f"input[{number}]", entry) for number, entry in enumerate(value)])
    except ApiError as refused:
        told, param = refused.message.replace("messages", "input", 1), (refused.param or "input")
        raise ApiError(refused.status, told, param.replace("messages", "input", 1), refused.code) from None


def _plain(name: str, message: Any) -> Any:
    if not isinstance(message, Mapping):
        return message
    if message.get("type", "message") != "message":
        sentence = f"{name}.type={message['type']!r} must be message: write calls of tools into a message's text."
        raise ApiError(400, sentence, f"{name}.type")
    fields = {key: value for key, value in message.items() if key not in ("type", "phase")}
    if isinstance(fields.get("content"), list):
        fields["content"] = _text(f"{name}.content", fields["content"])
    return fields


def _text(place: str, parts: list[Any]) -> str:
    """What the parts of a content say, line by line; objects as JSON. Raises ApiError."""
    found = []
    for number, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else None
        said = part.get(TEXT_PARTS[kind]) if isinstance(kind, str) and kind in TEXT_PARTS else None
        if kind == "input_json":
            said = json.dumps(said, ensure_ascii=False) if isinstance(said, Mapping | list) else None
        if not isinstance(said, str):
            where = f"{place}[{number}]"
            raise ApiError(400, f"{where} of type {kind!r} must be input_text: the model reads text alone.", where)
        found.append(said)
    return "\n".join(found)


def _questions(value: Any, labels: Any, template: Any) -> tuple[dict[str, Question], frozenset[str]]:
    """Questions by name, and which of these names are ours. Raises ApiError."""
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_QUESTIONS:
        raise ApiError(400, f"questions must be a list of 1 to {MAX_QUESTIONS} questions.", "questions")
    _refuse_many(value)
    found, ours = dict[str, Question](), set[str]()
    given = {entry.get("name") for entry in value if isinstance(entry, Mapping) and is_text(entry.get("name"))}
    for number, entry in enumerate(value):
        place = f"questions[{number}]"
        fields = object_of(place, entry, ("type", "name", "instructions", "choices", "levels"))
        if "name" not in fields:
            fields["name"] = free_name(f"q{number + 1}", given)
            ours.add(fields["name"])
        name = fields["name"]
        if not isinstance(name, str) or not name or name in found:
            raise ApiError(400, f"{place}.name={name!r} must be a text that no other question has.", f"{place}.name")
        found[name] = _question(place, name, fields, labels, template)
    if isinstance(template, Mapping) and (lost := [name for name in template if name not in found]):
        raise ApiError(400, f"diffusion.template names {lost[0]!r}, which is no question.", "diffusion.template")
    return found, frozenset(ours)


def _refuse_many(questions: list[Any]) -> None:
    """Raise ApiError for more alternatives, of all questions together, than are laid on canvases for one request."""
    lists = [entry.get(key) for entry in questions if isinstance(entry, Mapping) for key, _ in LIST_FIELDS.values()]
    if (count := sum(len(one) for one in lists if isinstance(one, list))) > MAX_ALTERNATIVES:
        sentence = f"questions hold {count} alternatives, more than {MAX_ALTERNATIVES}. Ask in several requests."
        raise ApiError(400, sentence, "questions")


def free_name(name: str, taken: Collection[object]) -> str:
    """The name, with a sign more where it is taken."""
    while name in taken:
        name += "_"
    return name


def _question(place: str, name: str, fields: Mapping[str, Any], labels: Any, template: Any) -> Question:
    kind, instructions = fields.get("type"), fields.get("instructions", "")
    if isinstance(instructions, list):
        instructions = _text(f"{place}.instructions", instructions)
    with as_refusal(f"{place}.type"):
        in_choices(f"{place}.type", kind, QUESTION_TYPES)
    own = template.get(name) if isinstance(template, Mapping) else template
    for what, text in ((f"{place}.instructions", instructions), ("diffusion.template", own)):
        if text is not None and not isinstance(text, str):
            raise ApiError(400, f"{what} must be a text.", what)
    listed, key = LIST_FIELDS.get(str(kind), ("", ""))
    for other in {"choices", "levels"} - {listed}:
        if other in fields:
            raise ApiError(400, f"{place}.{other} does not go with a {kind}. Drop it.", f"{place}.{other}")
    try:
        with as_refusal(f"{place}.{listed}" if listed else place):
            if kind == "predicate":
                return Predicate(instructions, own, labels=labels)
            values, descriptions = _alternatives(f"{place}.{listed}", fields.get(listed), key)
            made = Choice if kind == "choice" else Score
            return made(values, instructions, own, descriptions, labels)
    except ApiError as refused:
        if refused.message.startswith(place):
            raise
        raise ApiError(400, f"{refused.param}: {refused.message}", refused.param, refused.code) from None


def _alternatives(place: str, value: Any, key: str) -> tuple[list[str | bool], list[str]]:
    if not isinstance(value, list):
        raise ApiError(400, f'{place} must be a list of {{"{key}": ...}}.', place, "missing_field")
    values, descriptions = list[str | bool](), list[str]()
    for number, entry in enumerate(value):
        fields = object_of(f"{place}[{number}]", entry, (key, "description"))
        one, described = fields.get(key), fields.get("description", "")
        if not isinstance(one, str) and not (isinstance(one, bool) and key == "value"):
            rule = "a text" + (", true or false" if key == "value" else "")
            raise ApiError(400, f"{place}[{number}].{key}={one!r} must be {rule}.", f"{place}[{number}].{key}")
        if isinstance(one, str) and len(one) > MAX_VALUE:
            sentence = f"{place}[{number}].{key} has {len(one)} characters, more than {MAX_VALUE}. Shorten it."
            raise ApiError(400, sentence, f"{place}[{number}].{key}")
        if not isinstance(described, str):
            raise ApiError(400, f"{place}[{number}].description must be a text.", f"{place}[{number}].description")
        values.append(one)
        descriptions.append(described)
    return values, descriptions if any(descriptions) else []
