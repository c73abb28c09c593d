"""The body of POST /v1/decisions: OpenAI's fields, vLLM's ``joint`` and ``cache_salt``, ours under ``diffusion``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dllm.common.coerce import coerce
from dllm.decisions import Choice, Predicate, Question, Score
from dllm.decisions.protocol import DecisionOptions
from dllm.errors import in_choices, nearest
from dllm.prompts import Message, Prompts
from dllm.serve.api_errors import ApiError, as_refusal
from dllm.serve.body import check_values
from dllm.serve.fields import flag, object_of
from dllm.serve.messages import validated_messages
from dllm.serve.request_parts import Defaults

QUESTION_TYPES = ("predicate", "choice", "score")
MAX_QUESTIONS = 200
DECISION_FIELDS = (
    "model",
    "input",
    "questions",
    "joint",
    "diffusion",
    "cache_salt",
    "safety_identifier",
    "metadata",
    "user",
)
OF_DIFFUSION = ("template", "labels", "estimator", "slot", "free", "temperature", "neutral", "order")
LIST_FIELDS = {"choice": ("choices", "value"), "score": ("levels", "label")}


@dataclass(frozen=True)
class ParsedDecisions:
    """What a request asks for."""

    model: str  # the name that it was asked by
    state: str | list[Message]  # what the questions are about: a text, or messages
    questions: Mapping[str, Question]  # by name
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
    ours = object_of("diffusion", given.get("diffusion", {}), OF_DIFFUSION)
    joint = flag("joint", given, "joint")
    labels, template = ours.pop("labels", "values"), ours.pop("template", None)
    if isinstance(template, list) != joint and (joint is False or template is not None):
        rule = "texts and names of questions with joint=true, else a text, or an object of texts by name"
        if template is not None:
            raise ApiError(400, f"diffusion.template must be a list of {rule}.", "diffusion.template")
    questions = _questions(given["questions"], labels, template if not joint else None)
    return ParsedDecisions(
        model, _input(given["input"]), questions, _options(ours, joint, template if joint else None),
        replace(defaults.prompts, chat=None),
    )  # fmt: skip


def _options(ours: Mapping[str, Any], joint: bool, template: Any) -> DecisionOptions:
    kinds = {"estimator": "str", "slot": "str", "free": "int", "temperature": "float", "neutral": "str", "order": "str"}
    sound: dict[str, Any] = {}
    for name, value in ours.items():
        with as_refusal(f"diffusion.{name}"):
            sound[name] = coerce(f"diffusion.{name}", value, kinds[name])
            DecisionOptions(joint=joint, **{name: sound[name]})
    if template is not None and not all(isinstance(piece, str) for piece in template):
        raise ApiError(400, "diffusion.template must hold texts and names of questions.", "diffusion.template")
    with as_refusal("diffusion"):
        return DecisionOptions(joint=joint, template=None if template is None else tuple(template), **sound)


def _input(value: Any) -> str | list[Message]:
    """A text, or messages, whose parts may be called input_text. Raises ApiError."""
    if isinstance(value, str):
        if not value.strip():
            raise ApiError(400, "input is empty: what is to be judged?", "input")
        return value
    if not isinstance(value, list):
        raise ApiError(400, "input must be a text, or a list of messages.", "input")
    try:
        return validated_messages([_plain(f"input[{number}]", entry) for number, entry in enumerate(value)])
    except ApiError as refused:
        told, param = refused.message.replace("messages", "input", 1), (refused.param or "input")
        raise ApiError(refused.status, told, param.replace("messages", "input", 1), refused.code) from None


def _plain(name: str, message: Any) -> Any:
    if not isinstance(message, Mapping):
        return message
    fields = {key: value for key, value in message.items() if (key, value) != ("type", "message")}
    content = fields.get("content")
    if isinstance(content, list):
        for number, part in enumerate(content):
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind not in ("input_text", "text"):
                place = f"{name}.content[{number}]"
                raise ApiError(400, f"{place} of type {kind!r} must be input_text: the model reads text alone.", place)
        fields["content"] = [{**part, "type": "text"} for part in content]
    return fields


def _questions(value: Any, labels: Any, template: Any) -> dict[str, Question]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_QUESTIONS:
        raise ApiError(400, f"questions must be a list of 1 to {MAX_QUESTIONS} questions.", "questions")
    found: dict[str, Question] = {}
    for number, entry in enumerate(value):
        place = f"questions[{number}]"
        fields = object_of(place, entry, ("type", "name", "instructions", "choices", "levels"))
        name = fields.get("name", f"q{number + 1}")
        if not isinstance(name, str) or not name or name in found:
            raise ApiError(400, f"{place}.name={name!r} must be a text that no other question has.", f"{place}.name")
        found[name] = _question(place, name, fields, labels, template)
    if isinstance(template, Mapping) and (lost := [name for name in template if name not in found]):
        raise ApiError(400, f"diffusion.template names {lost[0]!r}, which is no question.", "diffusion.template")
    return found


def _question(place: str, name: str, fields: Mapping[str, Any], labels: Any, template: Any) -> Question:
    kind, instructions = fields.get("type"), fields.get("instructions", "")
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
        if not isinstance(described, str):
            raise ApiError(400, f"{place}[{number}].description must be a text.", f"{place}[{number}].description")
        values.append(one)
        descriptions.append(described)
    return values, descriptions if any(descriptions) else []
