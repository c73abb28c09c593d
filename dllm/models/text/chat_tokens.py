"""Which special tokens of a rendered conversation are the chat template's own.

A message is text, whatever the template does with it: ``'<' + content + '>'``, a content in lower case, or its words
joined must make no special token. So what the template itself writes is marked before it is rendered: the special
tokens in its own texts and constants, by marks that no one who writes a message can know. All others are text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jinja2 import Template
from tokenizers import Tokenizer

from dllm.common.errors import UserError
from dllm.models.text.chat_template import compile_template, render_messages
from dllm.models.text.spelling import Span, plain_pieces, special_spans

Rendered = tuple[str, set[Span]]  # a text, and where the template's own special tokens are in it


@dataclass(frozen=True, eq=False)
class ChatTokens:
    """What a conversation needs of one tokenizer."""

    backend: Tokenizer  # the tokenizer
    special: frozenset[int]  # ids that a text can spell
    template: str  # of the conversation, in Jinja
    special_tokens: Mapping[str, str]  # by the names that the template has for them

    @cached_property
    def _marks(self) -> Marks:
        return Marks()

    @cached_property
    def _marking(self) -> Template:
        return compile_template(self.template, lambda text: self._marks.around(text, self._spans(text)))

    def pieces(self, messages: Sequence[Mapping[str, Any]], beside: Mapping[str, Any] | None = None) -> list[Rendered]:
        """The rendered conversation, cut where a message spells what the template puts together. Raises UserError
        where a template that puts special tokens together cannot be told from messages that do."""
        beside = beside or {}
        pieces = self._rendered(messages, beside)
        if not any(self._strangers(*piece) for piece in pieces):
            return pieces
        # A template may put its tokens together, from the role above all ('<|' + role): then whatever is said.
        silent = [{**changed(message, lambda _: "x"), "role": message["role"]} for message in messages]
        if not self._composed(silent, beside):
            return pieces
        longest = max(len(text) for text, _ in pieces)
        messages, beside = (changed(each, lambda text: self._cut(text, longest)) for each in (messages, beside))
        pieces = self._rendered(messages, beside)
        strangers, tokens = [self._strangers(*piece) for piece in pieces], self._composed(silent, beside)
        if tokens != [text[slice(*span)] for (text, _), spans in zip(pieces, strangers, strict=True) for span in spans]:
            raise UserError(
                f"the chat template puts {(tokens or ['special tokens'])[0]!r} together from pieces, and a message may "
                "do so, too. Take what is like a part of a special token out of it."
            )
        return [(text, spans_here | set(spans)) for (text, spans_here), spans in zip(pieces, strangers, strict=True)]

    def _composed(self, silent: Sequence[Mapping[str, Any]], beside: Mapping[str, Any]) -> list[str]:
        """The special tokens that the template puts together for messages that say nothing."""
        return [
            text[slice(*span)]
            for text, spans in self._rendered(silent, beside)
            for span in self._strangers(text, spans)
        ]

    def _rendered(self, messages: Sequence[Mapping[str, Any]], beside: Mapping[str, Any]) -> list[Rendered]:
        special_tokens = {key: self._marks.around(text, [(0, len(text))]) for key, text in self.special_tokens.items()}
        try:
            return self._marks.split(render_messages(self._marking, messages, special_tokens, beside))
        except Exception as error:  # its words would show the marks
            sentence = f"the chat template refuses these messages ({type(error).__name__}). Change them to fit it."
            raise UserError(sentence) from None

    def _spans(self, text: str) -> list[Span]:
        return special_spans(self.backend, text, self.special)

    def _strangers(self, text: str, spans: set[Span]) -> list[Span]:
        return [span for span in self._spans(text) if span not in spans]

    def _cut(self, text: str, longest: int) -> str:
        """A text cut where it spells special tokens. longest: characters of the whole conversation, which a longer
        text cannot be in; the blanks around it, which a template may drop, need no look either."""
        core = text.strip()
        if not core or len(core) > longest:
            return text
        cut = self._marks.cut.join(piece for piece, _ in plain_pieces(self.backend, core, self.special))
        begin = text.index(core)
        return text[:begin] + cut + text[begin + len(core) :]


def changed(value: Any, change: Callable[[str], str]) -> Any:
    """A message's field with its texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: changed(entry, change) for key, entry in value.items()}
    return [changed(entry, change) for entry in value] if isinstance(value, list | tuple) else value


def _nonce() -> str:
    return "".join(chr(0xF0000 + secrets.randbelow(0xFFFE)) for _ in range(4))  # private use: in no one's text


@dataclass(frozen=True)
class Marks:
    """Texts that no prompt has, by which a rendered template is taken apart."""

    before: str = field(default_factory=_nonce)  # is before what a template writes
    behind: str = field(default_factory=_nonce)  # is after it
    cut: str = field(default_factory=_nonce)  # is where a message is cut

    def around(self, text: str, spans: Iterable[Span]) -> str:
        """``text`` with marks around ``spans``, which come in their order."""
        pieces, at = [], 0
        for begin, end in spans:
            pieces += [text[at:begin], self.before, text[begin:end], self.behind]
            at = end
        return "".join([*pieces, text[at:]])

    def split(self, marked: str) -> list[Rendered]:
        """The pieces of a text as it is cut, without marks, and the spans that was between two."""
        return [self._unmarked(piece) for piece in marked.split(self.cut)]

    def _unmarked(self, marked: str) -> Rendered:
        text, spans, begin = "", set(), -1
        for piece in re.split(f"({self.before}|{self.behind})", marked):
            if piece == self.before:
                begin = len(text)
            elif piece == self.behind:
                spans.add((begin, len(text)))
            else:
                text += piece
        return text, spans
