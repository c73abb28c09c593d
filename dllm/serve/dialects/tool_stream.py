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

    def feed(self, text: str, written: int | None = None) -> Iterator[TextPiece | CallStart | CallPiece]:
        """What new text makes certain. White space waits for what follows: at the end it belongs to nothing. written:
        the choice's tokens up to here."""
        self.text += text
        begin = self.text.find(BEGIN)
        if self.use.single is not None:
            begins, new = self.sent == 0, self._new(len(self.text))
            yield TextPiece(self.choice, "", written)
            if new and begins:
                yield CallStart(self.choice, 0, self.use.single.name, new.lstrip())
            elif new:
                yield CallPiece(self.choice, 0, new)
        elif self.use.forced:
            yield TextPiece(self.choice, "", written)
        else:
            yield TextPiece(self.choice, self._new(begin if begin >= 0 else open_tail(self.text, (BEGIN,))), written)

    def _new(self, until: int) -> str:
        """What was not sent of the text until there, but the white space at its end."""
        until = max(self.sent, len(self.text[:until].rstrip()))
        new, self.sent = self.text[self.sent : until], until
        return new

    def finished(self, written: int | None = None) -> Iterator[TextPiece | CallStart]:
        """What is left at the end of the answer."""
        if self.use.single is not None:
            return
        text, calls = self.use.read(self.text)
        yield TextPiece(self.choice, text[self.sent :], written)
        for at, call in enumerate(calls):
            yield CallStart(self.choice, at, call.name, call.arguments)
