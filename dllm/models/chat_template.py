"""Chat templates in transformers' dialect of Jinja, without transformers, whose import takes most of a second.

A template comes with a checkpoint, so it is sandboxed: it sees plain data, changes nothing, and calls no code but what
is here. ``tests/models/test_chat_template.py`` holds texts and refusals equal to ``apply_chat_template``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from math import inf
from threading import local
from time import thread_time
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

# What every conversation sets, so that no switch of a user's may.
TEMPLATES_OWN = ("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token", "pad_token")
RENDER_SECONDS = 5  # of a thread; 20,000 messages take 0.1
LONGEST_RENDERING = 1 << 24  # characters of a text, entries of a list
_BUDGET = local()  # of the thread that renders: when it must have ended
REASONING = ("reasoning_content", "thinking", "reasoning")  # names of one thing, as transformers prefers them


def parse_template(template: str) -> None:
    """Raises TemplateError, or RecursionError for deep nesting, when ``template`` is not a Jinja template."""
    _environment().parse(template)


def names_read(template: str) -> frozenset[str]:
    """The names that a template expects from outside, such as ``messages`` and ``tools``."""
    return frozenset(meta.find_undeclared_variables(_environment().parse(template)))


def compile_template(template: str, rewritten: Callable[[str], str] | None = None) -> Template:
    """The template, ready for ``render_messages``. rewritten: what becomes of each text that the template itself
    writes. Raises TemplateError, for an unknown filter too, and SyntaxError."""
    tree = _environment().parse(template)
    if rewritten is None:
        return _counted(tree)
    for data in tree.find_all(nodes.TemplateData):
        data.data = rewritten(data.data)
    for constant in tree.find_all(nodes.Const):
        if isinstance(constant.value, str):
            constant.value = rewritten(constant.value)
    return _counted(tree)


def _counted(tree: nodes.Template) -> Template:
    """The template, each of whose loops and joins asks ``BoundedText`` first."""
    for loop in tree.find_all(nodes.For):
        loop.iter = nodes.Call(nodes.EnvironmentAttribute("looped"), [loop.iter], [], None, None)
    for joined in list(tree.find_all(nodes.Concat)):
        joined.nodes = [nodes.Call(nodes.EnvironmentAttribute("joined"), list(joined.nodes), [], None, None)]
    return _environment().from_string(tree)


def render_messages(
    template: Template, messages: Sequence[Mapping[str, Any]], special: Mapping[str, str],
    beside: Mapping[str, Any] | None = None,
) -> str:  # fmt: skip
    """The conversation up to where the assistant speaks. Fields that are None count as missing. special: the
    special tokens, by their names. beside: what else the template may read, ``tools`` above all.

    Raises whatever a template may raise, and TypeError for a field that JSON cannot hold.
    """
    _BUDGET.end = thread_time() + RENDER_SECONDS
    plain = json.loads(json.dumps([_fields(message) for message in messages]))
    usual = {"tools": None, "documents": None, "add_generation_prompt": True}
    return template.render({**usual, **json.loads(json.dumps(dict(beside or {}))), **special, "messages": plain})


def _fields(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates read it: what was thought is there by both names that they know."""
    given = {key: value for key, value in message.items() if value is not None}
    thought = next((given[name] for name in REASONING if name in given), None)
    return given if thought is None else {"thinking": thought, **given, "reasoning_content": thought}


class BoundedText(ImmutableSandboxedEnvironment):
    """A sandbox that ends: rendering has limited time, and no text or list grows beyond
    LONGEST_RENDERING. What loops, calls and joins is asked, so that macros that call themselves twice end, too."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def call(__self, __context: Any, __obj: Any, *args: Any, **fields: Any) -> Any:  # a field may be called self
        __self.spend()
        return __self.short(super().call(__context, __obj, *args, **fields))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self.spend()
        size, number = _sized(left, right)
        if operator == "*" and size * max(0, number) > LONGEST_RENDERING:
            raise SecurityError(f"a text or list of {size} times {number} is too long")
        if operator == "**" and not (abs(left) < LONGEST_RENDERING and abs(right) <= 64):  # noqa: PLR2004
            raise SecurityError("a power is too large")
        if operator == "%" and isinstance(left, str) and re.search(r"\d{5}|\*", left):
            raise SecurityError("a format asks for too wide a field")
        return self.short(super().call_binop(context, operator, left, right))

    def looped(self, values: Any) -> Any:
        """What a loop runs over."""
        for value in values:
            self.spend()
            yield value

    def joined(self, *parts: Any) -> str:
        """What ``~`` joins."""
        self.spend()
        return str(self.short("".join(map(str, parts))))

    def short(self, value: Any) -> Any:
        if isinstance(value, str | list | tuple) and len(value) > LONGEST_RENDERING:
            raise SecurityError(f"a text or list of {len(value)} is too long")
        return value

    def spend(self) -> None:
        if thread_time() > getattr(_BUDGET, "end", inf):
            raise SecurityError(f"it does not end within {RENDER_SECONDS} s")


def _sized(left: Any, right: Any) -> tuple[int, int]:
    """The length of a text or list and the number that multiplies it; zeros: these are none."""
    for one, other in ((left, right), (right, left)):
        if isinstance(one, str | list | tuple) and isinstance(other, int):
            return len(one), other
    return 0, 0


@lru_cache(1)
def _environment() -> BoundedText:
    extensions = [GenerationBlocks, loopcontrols]
    found = BoundedText(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    found.filters["tojson"] = _to_json
    for name in ("lipsum", "cycler", "joiner"):  # no template needs them, and lipsum has no bound
        del found.globals[name]
    found.globals |= {
        "raise_exception": _refuse, "strftime_now": _now, "dict": PlainDict(), "namespace": GuardedNamespace,
    }  # fmt: skip
    return found


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
        self, *given = args
        Namespace.__init__(self)
        for name, value in dict(*given, **fields).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"namespaces hold no names that begin with an underscore, such as {name!r}")
        super().__setitem__(name, value)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:  # fmt: skip
    """Jinja's own filter of this name escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


@dataclass(frozen=True)
class ThoughtMarks:
    """What is around a thought."""

    begin: str  # the text that begins it
    end: str  # the text that ends it


# Qwen3's, SDAR's, TraDo's and Nemotron's; DiffusionGemma's, whose thoughts are a channel of this name; Mistral's.
KNOWN_MARKS = (
    ThoughtMarks("<think>", "</think>"), ThoughtMarks("<|channel>thought", "<channel|>"),
    ThoughtMarks("[THINK]", "[/THINK]"),
)  # fmt: skip


def thought_marks(template: str | None) -> ThoughtMarks | None:
    """The marks that a chat template writes or looks for. None: it knows no thoughts."""
    return next((marks for marks in KNOWN_MARKS if marks.end in (template or "")), None)
