"""The objects of a response, OpenAI's Responses: its output items, and what is around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dllm.serve.decoding import Completed
from dllm.serve.replies import Envelope
from dllm.serve.tools import ToolCall


@dataclass(frozen=True)
class ResponseEnvelope(Envelope):
    """What every object of one response has in common."""

    def completion(self, choices: Sequence[Completed]) -> dict[str, Any]:
        choice = choices[0]
        status = "incomplete" if choice.ending.reason == "length" else "completed"
        used, thought = self.usage(choices), {"reasoning_tokens": choice.thought_tokens}
        usage = {
            "input_tokens": used["prompt_tokens"], "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": used["completion_tokens"], "output_tokens_details": thought,
            "total_tokens": used["total_tokens"],
        }  # fmt: skip
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        whole = self.response(status, self._output(choice, status))
        return {
            **whole,
            "incomplete_details": details,
            "usage": usage,
            "diffusion": {**choice.cost, **self.parsed.diffusion_notes},
        }

    def _output(self, choice: Completed, status: str) -> list[dict[str, Any]]:
        text, calls = self._read(choice)
        said = [self.message(status, text)] if text or not (calls or choice.thought) else []
        thought = [self.thought("completed" if said or calls else status, choice.thought)] if choice.thought else []
        return [*thought, *said, *(self.call("completed", call, at) for at, call in enumerate(calls))]

    def response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        """The object without its ending."""
        request = self.parsed.jobs[0].request
        return {
            "id": f"resp_{self.ident}", "object": "response", "created_at": self.created, "status": status,
            "error": None, "incomplete_details": None, "instructions": None, "metadata": {}, "model": self.model,
            "max_output_tokens": len(request.tokens) - request.answer_start, "output": output,
            "parallel_tool_calls": True, "previous_response_id": None, "reasoning": {"effort": None, "summary": None},
            "service_tier": "default", "store": False, "temperature": request.temperature, "tool_choice": "auto",
            "tools": [], "top_p": None, "truncation": "disabled", "usage": None, "user": None, **self.parsed.repeated,
        }  # fmt: skip

    def thought(self, status: str, text: str | None) -> dict[str, Any]:
        """The output item that is what the model thought. text: None: none yet."""
        content = [] if text is None else [text_part(text, "reasoning_text")]
        return {"id": f"rs_{self.ident}", "type": "reasoning", "status": status, "summary": [], "content": content}

    def message(self, status: str, text: str | None) -> dict[str, Any]:
        """The output item that is text. text: None: none yet."""
        content = [] if text is None else [text_part(text)]
        return {"id": f"msg_{self.ident}", "type": "message", "status": status, "role": "assistant", "content": content}

    def call(self, status: str, call: ToolCall, at: int) -> dict[str, Any]:
        """The output item that is a call; at: which of them."""
        idents = {"id": f"fc_{self.ident}_{at}", "call_id": f"call_{self.ident}_{at}"}
        return {**idents, "type": "function_call", "status": status, "name": call.name, "arguments": call.arguments}


def text_part(text: str, kind: str = "output_text") -> dict[str, Any]:
    """The part of an item that holds its text."""
    more: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    return {"type": kind, "text": text, **more}
