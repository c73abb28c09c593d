"""The deltas of an answer that may hold calls of tools."""

from __future__ import annotations

from typing import Any

from dllm.serve.stream import open_tail
from dllm.serve.tools import BEGIN, ToolCall, ToolUse


class ToolDeltas:
    """Of one choice. The arguments of the only function that can be called come piece by piece; any other call comes
    whole at the end, and text beside calls as soon as no call can begin in it."""

    def __init__(self, use: ToolUse, ident: str) -> None:
        self.use, self.ident, self.text, self.sent = use, ident, "", 0

    def fed(self, text: str) -> list[dict[str, Any]]:
        """What to send for new text. White space waits for what follows: at the end it belongs to nothing."""
        self.text += text
        if self.use.single is not None:
            begins, new = self.sent == 0, self._new(len(self.text))
            if not new:
                return []
            begun = call_object(ToolCall(self.use.single.name, new.lstrip()), self.ident, 0)
            return [{"tool_calls": [{"index": 0, **(begun if begins else {"function": {"arguments": new}})}]}]
        if self.use.forced:
            return []
        begin = self.text.find(BEGIN)
        new = self._new(begin if begin >= 0 else open_tail(self.text, (BEGIN,)))
        return [{"content": new}] if new else []

    def _new(self, until: int) -> str:
        """What was not sent of the text until there, but the white space at its end."""
        until = max(self.sent, len(self.text[:until].rstrip()))
        new, self.sent = self.text[self.sent : until], until
        return new

    def finished(self) -> list[dict[str, Any]]:
        """What is left at the end of the answer."""
        if self.use.single is not None:
            return []
        text, calls = self.use.read(self.text)
        rest, self.sent = text[self.sent :], len(self.text)
        made = [{"index": at, **call_object(call, self.ident, at)} for at, call in enumerate(calls)]
        return [{"content": rest}] * bool(rest) + [{"tool_calls": made}] * bool(made)


def call_object(call: ToolCall, ident: str, at: int) -> dict[str, Any]:
    """A call as OpenAI writes it. ident: of the choice; at: which of its calls."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{ident}_{at}", "type": "function", "function": function}
