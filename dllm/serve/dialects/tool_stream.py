"""The text of an answer that may hold calls of tools, as events."""

from __future__ import annotations

from collections.abc import Iterator

from dllm.serve.dialects.reply_events import CallPiece, CallStart, TextPiece
from dllm.serve.dialects.stream import open_tail
from dllm.serve.dialects.tools import BEGIN, ToolUse


class CallSplitter:
    """Of one choice. The arguments of the only function that can be called come piece by piece; any other call comes
    whole at the end, and text beside calls as soon as no call can begin in it."""

    def __init__(self, use: ToolUse, choice: int) -> None:
        self.use, self.choice, self.text, self.sent = use, choice, "", 0

    def feed(self, text: str, token_count: int | None = None) -> Iterator[TextPiece | CallStart | CallPiece]:
        """What new text makes certain; white space waits for what follows. token_count: of the choice up to here."""
        self.text += text
        begin = self.text.find(BEGIN)
        if self.use.single is not None:
            begins, new = self.sent == 0, self._new(len(self.text))
            yield TextPiece(self.choice, "", token_count)
            if new and begins:
                yield CallStart(self.choice, 0, self.use.single.name, new.lstrip())
            elif new:
                yield CallPiece(self.choice, 0, new)
        elif self.use.must_call:
            yield TextPiece(self.choice, "", token_count)
        else:
            end = begin if begin >= 0 else open_tail(self.text, (BEGIN,))
            yield TextPiece(self.choice, self._new(end), token_count)

    def _new(self, until: int) -> str:
        """What was not sent of the text until there, but the white space at its end."""
        until = max(self.sent, len(self.text[:until].rstrip()))
        new, self.sent = self.text[self.sent : until], until
        return new

    def finish(self, token_count: int | None = None) -> Iterator[TextPiece | CallStart]:
        """What is left at the end of the answer."""
        if self.use.single is not None:
            return
        text, calls = self.use.read(self.text)
        yield TextPiece(self.choice, text[self.sent :], token_count)
        for at, call in enumerate(calls):
            yield CallStart(self.choice, at, call.name, call.arguments)
