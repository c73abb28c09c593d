"""The body of POST /v1/decisions: OpenAI's fields, vLLM's ``cache_salt``, ours under ``diffusion``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from dllm.common.coerce import is_text
from dllm.prompts import Message, Prompts
from dllm.scoring.decisions import Choice, Predicate, Question, Score
from dllm.scoring.decisions.protocol import DecisionOptions
from dllm.serve.dialects.fields import Diffusion, Salt
from dllm.serve.dialects.messages import SentMessage, as_messages, conversation, few_entries
from dllm.serve.dialects.other_fields import OtherField, others_of
from dllm.serve.dialects.request_parts import Defaults
from dllm.serve.dialects.tools import distinct_names
from dllm.serve.dialects.wire import check_model
from dllm.serve.http.api_errors import ApiError, as_refusal
from dllm.serve.http.typed import AnyText, BodyObject, TextOr, must, names_of, read_body, slip_of, wrong

MAX_QUESTIONS = 400
MAX_ALTERNATIVES = 4096  # of all questions of a request
MAX_VALUE = 256  # characters of an alternative, as of a stop string
# Parts of a content by their type, with the field that holds what they say.
TEXT_PARTS = {"input_text": "text", "text": "text", "output_text": "text", "refusal": "refusal", "input_json": "data"}


class JudgedPart(BodyObject):
    """A part of a content: a text, or an object that is written as JSON."""

    type: Literal["input_text", "text", "output_text", "refusal", "input_json"] = Field(description="its kind")
    text: str = Field("", description="the text of the other kinds")
    refusal: str = Field("", description="the text of a refusal")
    data: dict[str, Any] | list[Any] | None = Field(None, description="the object of input_json")

    @classmethod
    def meaningful(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        kind = value.get("type")
        content = value.get(TEXT_PARTS[kind]) if is_text(kind) and kind in TEXT_PARTS else None
        if not isinstance(content, Mapping | list if kind == "input_json" else str):
            raise wrong(f"of type {kind!r:.100} must be input_text: the model reads text alone.")
        return {"type": kind, TEXT_PARTS[str(kind)]: content}

    @property
    def as_text(self) -> str:
        """As text."""
        if self.type == "input_json":
            return json.dumps(self.data, ensure_ascii=False)
        return self.refusal if self.type == "refusal" else self.text


JudgedContent = Annotated[
    TextOr[JudgedPart], must(lambda value: isinstance(value, str | list), "a text, or a list of parts", False)
]


def _joined_text(content: str | list[JudgedPart]) -> str:
    """What the parts of a content say, line by line."""
    return content if isinstance(content, str) else "\n".join(part.as_text for part in content)


class JudgedMessage(SentMessage):
    """A message of what is judged."""

    others = others_of("judged")
    content: JudgedContent | None = Field(None, description="a text, or a list of parts")  # type: ignore[assignment]
    type: Literal["message"] = Field("message", description="its kind")  # type: ignore[assignment]

    @classmethod
    def meaningful(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        if value.get("type") not in (None, "message"):
            raise wrong("must be message: write calls of tools into a message's text.", "type", value["type"])
        return value

    @property
    def text(self) -> str:
        return _joined_text(self.content or "")


def _check_input(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        raise wrong("is empty: what is to be judged?")
    if not isinstance(value, str | list) or not value:
        raise wrong("must be a text, or a list of messages.")
    return value


def _no_longer(value: Any) -> Any:
    if is_text(value) and len(value) > MAX_VALUE:
        raise wrong(f"has {len(value)} characters, more than {MAX_VALUE}. Shorten it.")
    return value


class ChoiceValue(BodyObject):
    """An alternative."""

    value: Annotated[
        str | bool,
        BeforeValidator(_no_longer),
        must(lambda value: isinstance(value, str | bool), "a text, true or false"),
    ] = Field(description="a text, true or false")
    description: str = Field("", description="what it means")


class ScoreLevel(BodyObject):
    """A level, from low to high."""

    label: Annotated[str, BeforeValidator(_no_longer), must(is_text, "a text")] = Field(description="a text")
    description: str = Field("", description="what it means")


class OfQuestion(BodyObject):
    """What all questions have in common."""

    name: Annotated[str, must(lambda value: is_text(value) and value, "a text that no other question has")] | None = (
        Field(None, description="of the question; left out: q1, q2, ...")
    )
    instructions: JudgedContent = Field("", description="what is asked")
    type: str


class PredicateBody(OfQuestion):
    """A question of yes or no."""

    others = dict.fromkeys(("choices", "levels"), OtherField((), "it does not go with a predicate"))
    type: Literal["predicate"] = Field(description="its kind")


class ChoiceBody(OfQuestion):
    """Which of some alternatives."""

    others = {"levels": OtherField((), "it does not go with a choice")}
    type: Literal["choice"] = Field(description="its kind")
    choices: list[ChoiceValue] = Field(description='a list of {"value": ...}')


class ScoreBody(OfQuestion):
    """Which of some levels."""

    others = {"choices": OtherField((), "it does not go with a score")}
    type: Literal["score"] = Field(description="its kind")
    levels: list[ScoreLevel] = Field(description='a list of {"label": ...}')


def _few_alternatives(value: list[Any]) -> list[Any]:
    """The questions, whose alternatives, of all of them together, are few enough to be laid on canvases."""
    lists = [entry.get(key) for entry in value if isinstance(entry, Mapping) for key in ("choices", "levels")]
    if (count := sum(len(alternatives) for alternatives in lists if isinstance(alternatives, list))) > MAX_ALTERNATIVES:
        raise wrong(f"hold {count} alternatives, more than {MAX_ALTERNATIVES}. Ask in several requests.")
    return value


class DecisionSettings(BodyObject):
    """How decisions are read."""

    refuses_unknown = True
    decodes: ClassVar[str] = "it is an option of a decode, and a decision decodes nothing"
    others = dict.fromkeys(names_of(Diffusion), OtherField((), decodes))
    template: Any = Field(None, description="a text with {slot}, or such texts by question")
    labels: Any = Field("values", description="values, or letters that stand for them")
    estimator: AnyText | None = Field(None, description="how a value's probability is read")
    slot: AnyText | None = Field(None, description="what stands for the answer's place in a template")
    free: int | None = Field(None, description="masks after the answer")
    temperature: float | None = Field(None, description="of the probabilities")


class DecisionBody(BodyObject):
    """Questions about a state, answered by probabilities."""

    refuses_unknown = True
    others = others_of("decision")
    input: Annotated[TextOr[JudgedMessage], BeforeValidator(few_entries), BeforeValidator(_check_input)] = Field(
        description="what is to be judged: a text, or a list of messages"
    )
    questions: Annotated[
        list[Annotated[PredicateBody | ChoiceBody | ScoreBody, Field(discriminator="type")]],
        distinct_names("name", "must be a text that no other question has."),
        BeforeValidator(_few_alternatives),
        must(
            lambda value: isinstance(value, list) and 1 <= len(value) <= MAX_QUESTIONS,
            f"a list of 1 to {MAX_QUESTIONS} questions",
            False,
        ),
    ] = Field(description="what is asked of it")
    model: AnyText | None = Field(None, description="one of the served names; left out: the server's model")
    joint: bool = Field(False, description="false alone: each question has a canvas of its own")
    diffusion: DecisionSettings = Field(default_factory=DecisionSettings, description="how decisions are read")
    cache_salt: Salt | None = Field(None, description="without effect: nothing is shared")

    @classmethod
    def instead(cls, name: str, value: Any) -> str:
        if name in names_of(DecisionSettings):
            return f': write "diffusion": {{"{name}": ...}}.'
        return f".{slip_of(name, names_of(cls))}"


@dataclass(frozen=True)
class ParsedDecisions:
    """What a request asks for."""

    model: str  # the name that it was asked by
    state: str | list[Message]  # what the questions are about: a text, or messages
    questions: Mapping[str, Question]  # by name
    default_names: frozenset[str]  # names that we gave to questions without one
    options: DecisionOptions  # how they are read
    prompts: Prompts  # the canvases that they become


def parse_decisions(body: Mapping[str, Any], defaults: Defaults) -> ParsedDecisions:
    """What ``body`` asks for. Raises ApiError, before anything is computed, for whatever cannot be served."""
    decisions, _ = read_body(DecisionBody, body, defaults.refuses_unknown)
    model = defaults.name if decisions.model is None else decisions.model
    check_model(model, defaults)
    template = decisions.diffusion.template
    if isinstance(template, list):
        raise ApiError(400, "diffusion.template must be a text, or an object of texts by name.", "diffusion.template")
    if decisions.joint:
        raise ApiError(400, "joint=true is not served: each question has a canvas of its own. Drop it.", "joint")
    questions, default_names = _questions(decisions, template)
    state = decisions.input if isinstance(decisions.input, str) else conversation(as_messages(decisions.input, "input"))
    options = _options(decisions, defaults.calibration)
    return ParsedDecisions(model, state, questions, default_names, options, replace(defaults.prompts, chat=None))


def _options(decisions: DecisionBody, calibration: Mapping[str, float]) -> DecisionOptions:
    options = decisions.diffusion.model_dump(exclude_unset=True, exclude={"template", "labels"})
    for name, value in options.items():
        with as_refusal(f"diffusion.{name}"):
            DecisionOptions(**{name: value})
    with as_refusal("diffusion"):
        return DecisionOptions(calibration=calibration, **options)


def _questions(decisions: DecisionBody, template: Any) -> tuple[dict[str, Question], frozenset[str]]:
    """Questions by name, and which of these names are ours. Raises ApiError."""
    questions, default_names = dict[str, Question](), set[str]()
    names = {question.name for question in decisions.questions}
    for number, question in enumerate(decisions.questions):
        name = question.name or f"q{number + 1}"
        while not question.name and name in names:  # with a sign more where it is taken
            name += "_"
        default_names |= {name} - names
        template_of_question = template.get(name) if isinstance(template, Mapping) else template
        if template_of_question is not None and not isinstance(template_of_question, str):
            raise ApiError(400, "diffusion.template must be a text.", "diffusion.template")
        questions[name] = _question(f"questions[{number}]", question, decisions.diffusion.labels, template_of_question)
    if isinstance(template, Mapping) and (unknown := [name for name in template if name not in questions]):
        raise ApiError(400, f"diffusion.template names {unknown[0]!r}, which is not a question.", "diffusion.template")
    return questions, frozenset(default_names)


def _question(place: str, question: OfQuestion, labels: Any, template: str | None) -> Question:
    """template: of the question. Raises ApiError."""
    asks = _joined_text(question.instructions)
    place_of_list = {"choice": ".choices", "score": ".levels"}.get(question.type, "")
    try:
        with as_refusal(f"{place}{place_of_list}"):
            match question:
                case ChoiceBody(choices=entries):
                    values: list[str | bool] = [entry.value for entry in entries]
                    return Choice(values, asks, template, _descriptions(entries), labels)
                case ScoreBody(levels=entries):
                    return Score([entry.label for entry in entries], asks, template, _descriptions(entries), labels)
            return Predicate(asks, template, labels=labels)
    except ApiError as error:
        if error.message.startswith(place):
            raise
        raise ApiError(400, f"{error.param}: {error.message}", error.param, error.code) from None


def _descriptions(entries: list[Any]) -> list[str]:
    """What the alternatives mean; nothing where none says so."""
    texts = [entry.description for entry in entries]
    return texts if any(texts) else []
