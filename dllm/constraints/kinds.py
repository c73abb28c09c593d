"""What a request may ask its text to be: frozen values, equal where they ask the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, ClassVar

from dllm.common.coerce import unwritable
from dllm.common.errors import Refusal, first_line, in_choices, verbatim

WHITESPACE = ("any", "one", "none")
CONFIDENCE = ("model", "admissible")


@dataclass(frozen=True)
class Constraint:
    """Base of the kinds."""

    kind: ClassVar[str]
    _: KW_ONLY  # options after it are named
    confidence: str = "model"  # of a proposal among all ids (``model``) or among those allowed (``admissible``)
    joint: bool = False  # proposals of the best filling together
    limit: int = 20_000  # states of the automaton
    seconds: float = 10.0  # to compile it. Raises UserError for other values

    def to_json(self) -> dict[str, Any]:
        """Its name and options, from which ``dllm.compose.parts.part_of`` makes an equal one."""
        return {"name": self.kind, **{entry.name: getattr(self, entry.name) for entry in fields(self) if entry.init}}

    def __post_init__(self) -> None:
        for entry in fields(self):
            _check_option(entry.name, getattr(self, entry.name))


@dataclass(frozen=True)
class TaskConstraint(Constraint):
    """In an evaluation what each question says of its answer, with these options."""

    kind = "from_task"


@dataclass(frozen=True)
class Choice(Constraint):
    """One of ``options``."""

    kind = "choice"
    options: Sequence[str]  # the texts

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.options, str) or not all(isinstance(option, str) for option in _entries(self.options)):
            raise Refusal("{constraint.options:quoted} must be a list of texts, such as ['yes', 'no'].", [self.options])
        for option in self.options:
            _text("options", option)
        object.__setattr__(self, "options", tuple(self.options))


@dataclass(frozen=True)
class Regex(Constraint):
    """A text that ``re.fullmatch(pattern, text)`` matches."""

    kind = "regex"
    pattern: str  # in the syntax of Python's ``re``


@dataclass(frozen=True)
class Json(Constraint):
    """Any JSON with at most ``depth`` containers around a value."""

    kind = "json"
    depth: int = 4  # containers around a value, at most
    whitespace: str = "any"  # any, one (after ``,`` and ``:``), none


@dataclass(frozen=True)
class JsonSchema(Constraint):
    """JSON that validates under ``schema`` (Draft 2020-12)."""

    kind = "json_schema"
    # a mapping, true or false, any of these as JSON text, or a class of pydantic's
    schema: Mapping[str, Any] | bool | str | type = field(compare=False)
    depth: int = 4  # how often definitions that contain themselves are entered in each other
    whitespace: str = "any"  # any, one (after ``,`` and ``:``), none
    additional: bool = False  # members that the schema does not speak of may be added
    # keywords that are not known are refused. Members come in the order of ``properties``, so that schemas in another
    # order are other ones
    strict: bool = True
    # the schema as JSON text, from which equality and the store's key follow
    text: str = field(init=False, repr=False, default="")

    def __post_init__(self) -> None:
        super().__post_init__()
        text = _schema_text(self.schema)
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "schema", json.loads(text))
        if not isinstance(self.schema, Mapping | bool):
            raise _wrong("schema", f"{self.schema!r:.100}", "must be a mapping, true or false.", "")


@dataclass(frozen=True)
class FunctionCall(Constraint):
    """A call of one of ``functions``: of a single one the object of its arguments, of several an object with ``name``
    and ``arguments``. The arguments validate under the function's own parameters, in their own draft."""

    kind = "call"
    # each a mapping with name, parameters (a JSON schema; none: no arguments) and strict (false); or these as JSON text
    functions: Sequence[Mapping[str, Any]] | str = field(compare=False)
    depth: int = 4  # how often definitions that contain themselves are entered in each other
    whitespace: str = "any"  # any, one (after ``,`` and ``:``), none
    additional: bool = False  # members that no schema speaks of may be added
    text: str = field(init=False, repr=False, default="")  # the functions as JSON text, as of ``JsonSchema``

    def __post_init__(self) -> None:
        super().__post_init__()
        entries = _parsed(self.functions, "functions") if isinstance(self.functions, str) else self.functions
        functions = [_function(f"functions[{at}]", entry) for at, entry in enumerate(_entries(entries))]
        if not functions or len({function["name"] for function in functions}) < len(functions):
            raise Refusal(
                "{constraint.functions:name} must be a list of functions with names of their own, and not empty."
            )
        text = _json_text("functions", functions)
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "functions", tuple(json.loads(text)))


@dataclass(frozen=True)
class Grammar(Constraint):
    """A text of a grammar in Lark's syntax."""

    kind = "grammar"
    grammar: str  # in Lark's syntax
    start: str = "start"  # the rule that a text follows
    depth: int = 4  # how often rules that contain themselves are entered in each other
    # a terminal that begins with a word character does not follow directly on one that ends in such
    words: bool = False


def refuse_stop(stop: Sequence[str]) -> None:
    """Raise UserError for stop strings beside a constraint."""
    if stop:
        raise Refusal(
            "{stop:quoted} cannot go with a constraint: its language says where the text ends. Drop stop.", [list(stop)]
        )


def _entries(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [None]


def _wrong(name: str, value: object, rule: str, form: str = ":quoted") -> Refusal:
    """The refusal of an option's value."""
    return Refusal(f"{{constraint.{name}{form}}} {rule}", {f"constraint.{name}": value})


def _text(name: str, value: object) -> None:
    """Refuse what is not text, or holds half a character (a surrogate), which no UTF-8 can write."""
    if not isinstance(value, str):
        raise _wrong(name, value, "must be a text.")
    if unwritable(value) is not None:
        raise _wrong(name, value, "holds half a character (a surrogate). Write the whole one.")


def _number(name: str, value: object, low: float, kind: type | tuple[type, ...]) -> None:
    what = "a whole number" if kind is int else "a number"
    if isinstance(value, bool) or not isinstance(value, kind) or not value >= low:  # type: ignore[operator]
        raise _wrong(name, value, f"must be {what} of at least {low:g}.")


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise _wrong(name, value, "must be true or false.")


def _check_option(name: str, value: Any) -> None:
    """Raise UserError for a value that an option of this name, of whatever kind, cannot have."""
    match name:
        case "confidence":
            in_choices("constraint.confidence", value, CONFIDENCE)
        case "whitespace":
            in_choices("constraint.whitespace", value, WHITESPACE)
        case "joint" | "additional" | "strict" | "words":
            _flag(name, value)
        case "limit" | "depth":
            _number(name, value, 1 if name == "limit" else 0, int)
        case "seconds":
            _number(name, value, 0.001, (int, float))
        case "pattern" | "grammar" | "start":
            _text(name, value)


def _schema_text(schema: Any) -> str:
    """The schema as JSON in its own order; of a class of pydantic's the schema that it gives of itself."""
    if isinstance(schema, str):
        schema = _parsed(schema)
    if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    return _json_text("schema", schema)


def _json_text(name: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        why = first_line(error)
        raise _wrong(name, "", f"is not JSON: {verbatim(why)}. Give a mapping, or a FILE.json.", ":name") from None
    except RecursionError:
        raise _wrong(name, "", "is nested too deeply. Write it with definitions.", ":name") from None


def _function(name: str, value: Any) -> dict[str, Any]:
    """A function with all of its fields. Raises UserError."""
    entries = dict(value) if isinstance(value, Mapping) else {}
    parameters, strict = entries.get("parameters"), entries.get("strict")
    if not entries.keys() <= {"name", "parameters", "strict"} or not isinstance(entries.get("name"), str):
        raise _wrong(name, f"{value!r:.100}", "must be a mapping with name, parameters and strict.", "")
    _text(f"{name}.name", entries["name"])
    if not isinstance(parameters, Mapping | None):
        raise _wrong(f"{name}.parameters", f"{parameters!r:.100}", "must be a JSON schema: an object.", "")
    _flag(f"{name}.strict", strict := bool(strict) if strict is None else strict)
    return {"name": entries["name"], "parameters": {} if parameters is None else parameters, "strict": strict}


def _parsed(text: str, name: str = "schema") -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        shown, why = text if len(text) <= 40 else f"{text[:40]}...", verbatim(first_line(error))
        raise _wrong(name, shown, f"is not JSON: {why}. Give JSON, or a FILE.json.") from None
