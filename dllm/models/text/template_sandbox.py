"""Jinja's sandbox with bounds: a rendering ends, and makes little, whatever its template says.

Everything that makes a value asks the budget first: the template's tree is changed so that loops, joins, literals,
slices, comparisons and what is written go through filters of ours, and calls, operators and all other filters through
the environment. None of them is computed while a template is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.filters import make_attrgetter
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.utils import Namespace, pass_context
from jinja2.visitor import NodeTransformer

from dllm.models.text.template_bounds import FILTER_BOUNDS, LIST_FILTERS, METHOD_BOUNDS, printed_size
from dllm.models.text.template_budget import LONGEST_TEXT, RenderingBudget

LONGEST_TEMPLATE = 1 << 16  # characters; published ones have up to 20,000
_LONGEST_FORMAT = 1 << 16  # characters of a text with fields
_ESCAPED = 6  # characters for one, as in &quot;, where a text is Markup, which has __html__
_OPERATORS = ("+", "-", "*", "/", "//", "**", "%")


class BoundedText(ImmutableSandboxedEnvironment):
    """A sandbox whose renderings stay within the ``RenderingBudget`` that was begun before."""

    intercepted_binops = frozenset(_OPERATORS)

    def __init__(self, words: Mapping[str, Any], filters: Mapping[str, Callable[..., Any]], **fields: Any) -> None:
        """words: globals that a template may call. filters: instead of Jinja's own. fields: of Environment."""
        super().__init__(**fields)
        self.globals = {"range": self.globals["range"], **words}
        self.word_ids = {id(word) for word in self.globals.values()}
        all_filters = {**self.filters, "join": _join, "sum": _sum, **filters}
        self.filters = {name: pass_context(partial(self._filtered, name, all_filters[name])) for name in FILTER_BOUNDS}
        self.filters |= {name: pass_context(hook) for name, hook in _HOOKS.items()}
        self.tests |= {"lower": lambda value: _text(value).islower(), "upper": lambda value: _text(value).isupper()}

    def bounded(self, tree: nodes.Template) -> nodes.Template:
        """The tree of a template with our filters in it."""
        return _Asking().visit(tree)  # type: ignore[no-any-return]

    def call(__self, __context: Context, __obj: Any, *args: Any, **fields: Any) -> Any:  # a field may be called self
        budget = RenderingBudget.now()
        budget.spend(48 * len(args) + 100 * len(fields))
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(__obj, Macro | BlockReference | Undefined) or not callable(__obj):
            return budget.keep(super().call(__context, __obj, *args, **fields))
        args = tuple(list(budget.each(argument)) if isinstance(argument, Iterator) else argument for argument in args)
        if isinstance(owner, str | list | tuple | dict):
            methods = next(methods for kind, methods in METHOD_BOUNDS.items() if isinstance(owner, kind))
            if name not in methods:
                raise SecurityError(f"a template may not call {name!r} of a {type(owner).__name__}")
            escaped = _ESCAPED if any(hasattr(argument, "__html__") for argument in (owner, *args)) else 1
            budget.room(escaped * methods[name](budget, owner, *args, **_of_method(fields)))
        elif not (
            isinstance(__obj, partial | LoopContext)
            or isinstance(owner, LoopContext | Extension)
            or id(__obj) in __self.word_ids
            or id(owner) in __self.word_ids
        ):
            raise SecurityError(f"a template may not call {name or type(__obj).__name__!r}")
        else:
            budget.room(100 * sum(budget.size(argument).entries for argument in (*args, *fields.values())))
        return budget.keep(super().call(__context, __obj, *args, **fields))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = RenderingBudget.now()
        escaped = _ESCAPED if hasattr(left, "__html__") or hasattr(right, "__html__") else 1
        budget.room(escaped * _operated(budget, operator, left, right))
        return budget.keep(super().call_binop(context, operator, left, right))

    def call_test(self, name: str, value: Any, *args: Any, **fields: Any) -> Any:
        RenderingBudget.now().spend()
        return super().call_test(name, value, *args, **fields)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(argument, int) and RenderingBudget.now().size(argument).text_length > LONGEST_TEXT >> 6:
            raise SecurityError("a name is too long to look it up")
        value = super().getitem(obj, argument)
        if isinstance(obj, Namespace):  # it has no size of its own: see ``_listed``
            RenderingBudget.now().spend(12 * RenderingBudget.now().size(value).characters)
        return value

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        owner, name = getattr(value, "__self__", None), getattr(value, "__name__", "")
        if not isinstance(owner, str) or name not in ("format", "format_map"):
            return None
        return partial(self._formatted, owner, name == "format_map")

    def _formatted(self, form: Any, mapped: bool, *args: Any, **fields: Any) -> str:
        if len(form) > _LONGEST_FORMAT:
            raise SecurityError(f"a format of {len(form)} characters is too long")
        formatter = _EscapeFormatter(self, escape=form.escape) if hasattr(form, "__html__") else _Formatter(self)
        return str(formatter.vformat(form, () if mapped else args, args[0] if mapped else fields))

    def _filtered(
        self, name: str, function: Callable[..., Any], context: Context, value: Any, *args: Any, **fields: Any
    ) -> Any:
        budget = RenderingBudget.now()
        if isinstance(value, Iterator) and name in LIST_FILTERS:
            value = list(budget.each(value))
        escaped = _ESCAPED if any(hasattr(argument, "__html__") for argument in (value, *args, *fields.values())) else 1
        budget.room(escaped * FILTER_BOUNDS[name](budget, value, *args, **fields))
        kind = getattr(getattr(function, "jinja_pass_arg", None), "name", "")
        passed: Any = {"context": [context], "eval_context": [context.eval_ctx], "environment": [self]}.get(kind, [])
        result = function(*passed, value, *args, **fields)
        if isinstance(result, Iterator):
            return budget.stream(result, value)
        return budget.keep(result)


def _of_method(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without what the compiler adds for functions that know the context."""
    return {name: value for name, value in fields.items() if name not in ("_loop_vars", "_block_vars")}


def _operated(budget: RenderingBudget, operator: str, left: Any, right: Any) -> int:
    """What an operator makes at most, in bytes."""
    both = (left, right)
    if operator == "**" and not all(isinstance(operand, int | float) and abs(operand) < 1 << 24 for operand in both):
        raise SecurityError("a power is too large")
    if operator == "**" and isinstance(right, int) and abs(right) > 64:  # noqa: PLR2004
        raise SecurityError("a power is too large")
    if operator == "*":
        for operand, times in (both, both[::-1]):
            if isinstance(operand, str | list | tuple) and isinstance(times, int):
                return max(0, times) * (4 * len(operand) if isinstance(operand, str) else 8 * len(operand))
    if operator == "+":
        return sum(
            4 * len(operand) if isinstance(operand, str) else 8 * len(operand)
            for operand in both
            if isinstance(operand, str | list | tuple)
        )
    if operator == "%" and isinstance(left, str):
        return printed_size(budget, left, right)
    if operator == "-" and not all(
        isinstance(operand, int | float | str | list | tuple | dict | Undefined | None) for operand in both
    ):
        raise SecurityError(f"a template may not subtract from a {type(left).__name__}")
    return 0


class _Bounded:
    """Fields of a format."""

    def format_field(self, value: Any, spec: str) -> Any:
        if any(len(digits) > 4 for digits in _digits(spec)):  # noqa: PLR2004
            raise SecurityError("a format asks for too wide a field")
        text = _text(value) if isinstance(value, list | tuple | dict) and not spec else value
        field_text = super().format_field(text, spec)  # type: ignore[misc]
        RenderingBudget.now().spend(4 * len(field_text) + 128)
        return field_text

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        budget = RenderingBudget.now()
        budget.room(40 * budget.size(value).characters + 32 * budget.size(value).entries)
        return budget.keep(super().convert_field(value, conversion))  # type: ignore[misc]


class _Formatter(_Bounded, SandboxedFormatter):
    """Of a plain text."""


class _EscapeFormatter(_Bounded, SandboxedEscapeFormatter):
    """Of one that escapes."""


def _digits(spec: str) -> Sequence[str]:
    return "".join(sign if sign.isdigit() else " " for sign in spec).split()


def _text(value: Any) -> str:
    return RenderingBudget.now().text(value) if not isinstance(value, str) else value


def _output_text(context: Context, value: Any) -> str:
    """What an output writes."""
    text = _text(value)
    RenderingBudget.now().spend(4 * len(text) + 8)  # one wide character widens all that is written
    return text


def _joined(context: Context, parts: Sequence[Any]) -> Any:
    """What ``~`` joins."""
    texts = [_text(part) for part in parts]
    RenderingBudget.now().room(4 * sum(map(len, texts)))
    return RenderingBudget.now().keep("".join(texts))


def _join(context: Context, values: Any, between: str = "", attribute: str | int | None = None) -> str:
    """Jinja's filter of this name, each of whose texts is counted before they are joined."""
    if attribute is not None:
        values = map(make_attrgetter(context.environment, attribute), values)
    texts, budget = [], RenderingBudget.now()
    for value in values:
        texts.append(_text(value))
        budget.spend(4 * (len(texts[-1]) + len(between)))
    return str(between).join(texts)


_join.jinja_pass_arg = pass_context(lambda: None).jinja_pass_arg  # type: ignore[attr-defined]


def _kept_value(context: Context, value: Any) -> Any:
    """A list, tuple or dict that the template writes."""
    return RenderingBudget.now().keep(value)


def _compared(context: Context, result: bool) -> bool:
    RenderingBudget.now().spend()
    return result


def _looped(context: Context, values: Any) -> Iterator[Any]:
    """What a loop runs over."""
    return RenderingBudget.now().each(values)


def _spread(context: Context, values: Any) -> Sequence[Any]:
    """What ``*`` hands over."""
    return list(RenderingBudget.now().each(values))


def _sliced(context: Context, values: Any, start: Any, stop: Any, step: Any) -> Any:
    budget = RenderingBudget.now()
    budget.room(
        4 * len(values) if isinstance(values, str) else 8 * len(values) if isinstance(values, list | tuple) else 0
    )
    return budget.keep(values[start:stop:step])


@pass_context
def _sum(context: Context, values: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    """Jinja's filter of this name, by the operator that is bounded."""
    if attribute is not None:
        values = map(make_attrgetter(context.environment, attribute), values)
    for value in values:
        start = context.environment.call_binop(context, "+", start, value)  # type: ignore[attr-defined]
    return start


# By names that no template can write.
_HOOKS: Mapping[str, Callable[..., Any]] = {
    " written": _output_text,
    " joined": _joined,
    " made": _kept_value,
    " compared": _compared,
    " looped": _looped,
    " spread": _spread,
    " sliced": _sliced,
}


_MADE, _COMPARED = (nodes.Tuple, nodes.List, nodes.Dict), (nodes.Compare, nodes.Test)
_FILTERED: Mapping[type[nodes.Node], str] = {**dict.fromkeys(_MADE, "made"), **dict.fromkeys(_COMPARED, "compared")}


class _Asking(NodeTransformer):
    """Puts our filters into a tree."""

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [_through_filter("written", entry) for entry in node.nodes]
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return nodes.Const(node.data, lineno=node.lineno, environment=node.environment)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _through_filter("looped", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _through_filter("joined", nodes.List(node.nodes, lineno=node.lineno, environment=node.environment))

    def visit_Call(self, node: nodes.Call) -> nodes.Node:
        self.generic_visit(node)
        if node.dyn_args is not None:
            node.dyn_args = _through_filter("spread", node.dyn_args)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        return _through_filter(
            "sliced", node.node, *(nodes.Const(None) if bound is None else bound for bound in bounds)
        )

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        super().generic_visit(node, *args, **kwargs)
        name = _FILTERED.get(type(node)) if getattr(node, "ctx", "load") == "load" else None
        return node if name is None else _through_filter(name, node)

    def visit_ScopedEvalContextModifier(self, node: nodes.Node) -> nodes.Node:
        raise TemplateSyntaxError("autoescape is for HTML, not for conversations", node.lineno)


def _through_filter(name: str, node: Any, *args: nodes.Expr) -> nodes.Filter:
    """``node`` through a filter of ours."""
    return nodes.Filter(node, f" {name}", list(args), [], None, None, lineno=node.lineno, environment=node.environment)
