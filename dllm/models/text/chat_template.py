"""Chat templates in transformers' dialect of Jinja, without transformers, whose import takes most of a second.

A template comes with a checkpoint, so it is sandboxed: it sees plain data, changes nothing, and calls no code but what
is here. ``tests/models/test_chat_template.py`` holds texts and refusals equal to ``apply_chat_template``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.utils import Namespace

from dllm.models.text.template_budget import RenderingBudget
from dllm.models.text.template_sandbox import LONGEST_TEMPLATE, BoundedText

# What every conversation sets, so that no switch of a user's may.
RESERVED_FIELDS = ("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token", "pad_token")
RENDER_SECONDS = 4  # of a thread; 20,000 messages take 0.2 to 0.9
REASONING = ("reasoning_content", "thinking", "reasoning")  # names of one thing, as transformers prefers them


def parse_template(template: str) -> nodes.Template:
    """The tree of a template. Raises TemplateError for what is no Jinja template, RecursionError for deep nesting."""
    if len(template) > LONGEST_TEMPLATE:
        raise TemplateError(f"it has {len(template)} characters, more than {LONGEST_TEMPLATE}")
    try:
        return _environment().parse(template)
    except ValueError as error:  # a number of more than 4,300 digits
        raise TemplateError(str(error)) from error


def template_names(template: str) -> frozenset[str]:
    """The names that a template expects from outside, such as ``messages`` and ``tools``."""
    return frozenset(meta.find_undeclared_variables(parse_template(template)))


def compile_template(template: str, rewritten: Callable[[str], str] | None = None) -> Template:
    """The template, ready for ``render_messages``. rewritten: what becomes of each text that the template itself
    writes. Raises TemplateError, for an unknown filter too, and SyntaxError."""
    tree = parse_template(template)
    if rewritten is not None:
        for data in tree.find_all(nodes.TemplateData):
            data.data = rewritten(data.data)
        for constant in tree.find_all(nodes.Const):
            if isinstance(constant.value, str):
                constant.value = rewritten(constant.value)
    return _environment().from_string(_environment().bounded(tree))


def render_messages(
    template: Template,
    messages: Sequence[Mapping[str, Any]],
    special: Mapping[str, str],
    beside: Mapping[str, Any] | None = None,
) -> str:
    """The conversation up to where the assistant speaks. Fields that are None count as missing. special: the
    special tokens, by their names. beside: what else the template may read, ``tools`` above all.

    Raises whatever a template may raise, and TypeError for a field that JSON cannot hold.
    """
    plain = json.loads(json.dumps([_fields(message) for message in messages]))
    usual = {"tools": None, "documents": None, "add_generation_prompt": True}
    fields = {**usual, **json.loads(json.dumps(dict(beside or {}))), **special, "messages": plain}
    with RenderingBudget.begun(RENDER_SECONDS):
        context = template.new_context(fields)
        RenderingBudget.now().holders.append(context.vars)
        return str(template.environment.concat(template.root_render_func(context)))


def shared_budget() -> AbstractContextManager[None]:
    """Several renderings of one prompt share RENDER_SECONDS."""
    return RenderingBudget.together(RENDER_SECONDS)


def _fields(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates read it: what was thought is there by both names that they know."""
    fields = {key: value for key, value in message.items() if value is not None}
    thought = next((fields[name] for name in REASONING if name in fields), None)
    return fields if thought is None else {"thinking": thought, **fields, "reasoning_content": thought}


@lru_cache(1)
def _environment() -> BoundedText:
    words = {"raise_exception": _refuse, "strftime_now": _now, "dict": PlainDict(), "namespace": GuardedNamespace}
    extensions = [GenerationBlocks, loopcontrols]
    return BoundedText(words, {"tojson": _to_json}, trim_blocks=True, lstrip_blocks=True, extensions=extensions)


class GenerationBlocks(Extension):
    """``{% generation %}``, which marks the assistant's words for training: its content, and nothing around it."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Macro) -> str:
        return caller()


class PlainDict:
    """``dict`` for templates: a constructor that gives no way to the type and its methods."""

    def __call__(self, *args: Any, **fields: Any) -> dict[Any, Any]:
        return dict(*args, **fields)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class GuardedNamespace(Namespace):
    """``namespace`` for templates, whose attributes cannot stand for Python's own."""

    def __init__(*args: Any, **fields: Any) -> None:  # as in Jinja, ``self`` may be a field
        self, *positional = args
        Namespace.__init__(self)
        RenderingBudget.now().holders.append(self._Namespace__attrs)
        for name, value in dict(*positional, **fields).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"namespaces hold no names that begin with an underscore, such as {name!r}")
        super().__setitem__(name, value)

    def __repr__(self) -> str:  # what it holds may hold it twice, and so on
        return "<Namespace>"


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter of this name escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(RenderingBudget.now().text(message)[:10_000])


def _now(form: str) -> str:
    if isinstance(form, str) and len(form) > 1000:  # noqa: PLR2004  # C may take 256 times as much
        raise SecurityError(f"a format of {len(form)} characters is too long")
    return datetime.now().strftime(form)


@dataclass(frozen=True)
class ThoughtMarks:
    """What is around a thought."""

    begin: str  # the text that begins it
    end: str  # the text that ends it


# Qwen3's, SDAR's, TraDo's and Nemotron's; DiffusionGemma's, whose thoughts are a channel of this name; Mistral's.
KNOWN_MARKS = (
    ThoughtMarks("<think>", "</think>"),
    ThoughtMarks("<|channel>thought", "<channel|>"),
    ThoughtMarks("[THINK]", "[/THINK]"),
)


def thought_marks(template: str | None) -> ThoughtMarks | None:
    """The marks that a chat template writes or looks for. None: it knows no thoughts."""
    return next((marks for marks in KNOWN_MARKS if marks.end in (template or "")), None)
