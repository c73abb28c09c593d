"""The messages of a conversation as typed models, and what a chat template is given of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Tag, model_validator

from dllm.common.coerce import is_list_of, is_text, is_whole
from dllm.common.json_text import as_object, loaded
from dllm.models.chat_template import REASONING
from dllm.prompts import Message
from dllm.serve.api_errors import ApiError
from dllm.serve.typed import TEXT_OR_LIST, AnyText, BodyObject, must, wrong

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MAX_ENTRIES = 2048  # messages of a conversation, and the parts of their contents
WRITTEN_OUT = (
    "The chat template of this model has no place for calls of tools and their results: they stand in the conversation "
    "as plain text."
)
ONLY_TEXT = "there are only texts. Drop it"
# Kinds of parts that hold no text, and fields of such parts.
NO_TEXT = ("image_url", "input_image", "image", "input_audio", "audio_url", "audio", "video_url", "input_video",
           "video", "file", "input_file", "document", "file_url")  # fmt: skip
_NOT_IN_PARTS = ("image_url", "input_audio", "audio_url", "video_url", "file", "image", "audio", "video", "source")


class TextPart(BodyObject):
    """A part of a content. Only texts are served."""

    not_served = dict.fromkeys(_NOT_IN_PARTS, ONLY_TEXT)
    type: Literal["text"] = Field(description="its kind")
    text: str = Field(description="what it says")
    cache_control: Any = Field(None, description="without effect")

    @classmethod
    def given(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        if is_text(kind := value.get("type")) and kind in NO_TEXT:
            raise wrong(f"of type {kind!r} is not served: there are only texts. Send its text, or drop it.")
        return value


def _as_arguments(value: str) -> str:
    """The text of a JSON object, exactly as it was written; "" is what others write of a call without arguments."""
    found = as_object(value)
    if found is None:
        raise wrong('must be the text of a JSON object; none is "{}".', value=value)
    return found


class SentFunction(BodyObject):
    """The function of a call that an assistant made."""

    name: str = Field(description="of the function")
    arguments: Annotated[str, AfterValidator(_as_arguments)] = Field("{}", description="the text of one JSON object")


class SentCall(BodyObject):
    """A call that an assistant made."""

    id: str = Field(description="by which its result names it")
    type: Literal["function"] = Field("function", description="its kind")
    function: SentFunction = Field(description="name and arguments")
    index: Any = Field(None, description="without effect")


Content = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[TextPart], Tag("<list>")],
    TEXT_OR_LIST,
    must(
        lambda value: isinstance(value, str) or (isinstance(value, list) and value),
        'a text, or a list of {"type": "text", "text": ...}', False,
    ),
]  # fmt: skip


class SentMessage(BodyObject):
    """One message of a conversation."""

    not_served = {
        "function_call": "tool_calls took its place", "audio": ONLY_TEXT, "images": ONLY_TEXT,
        "refusal": "a refusal is a text. Write it into content",
        "tools": "tools are those of the whole request. Write them beside messages",
    }  # fmt: skip
    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(description="who speaks")
    content: Content | None = Field(None, description="a text, or a list of text parts")
    name: AnyText | None = Field(None, description="of the speaker, for templates that read it")
    type: Literal["text"] = Field("text", description="without effect")
    tool_calls: list[SentCall] = Field([], description="calls that the assistant made")
    tool_call_id: str | None = Field(None, description="of a result: the id of its call")
    annotations: Annotated[list[Any], must(lambda value: value == [], "empty: nothing here reads them")] = Field(
        [], description="must be empty"
    )
    reasoning_content: str | None = Field(None, description="what the assistant thought")
    thinking: str | None = Field(None, description="the same")
    reasoning: str | None = Field(None, description="the same")
    reasoning_details: Any = Field(None, description="without effect")
    cache_control: Any = Field(None, description="without effect")

    @model_validator(mode="after")
    def _by_role(self) -> SentMessage:
        """What goes with which role."""
        if self.role != "assistant":
            for name in ("tool_calls", *REASONING):
                if getattr(self, name):
                    raise wrong("goes with role assistant. Drop it.", name)
        if self.role != "tool" and self.tool_call_id is not None:
            raise wrong("goes with role tool. Drop it.", "tool_call_id", self.tool_call_id)
        if self.role == "tool" and self.tool_call_id is None:
            raise wrong("must be the id of a call.", "tool_call_id", None)
        if self.content is None and not self.tool_calls:
            raise wrong('must be a text, or a list of {"type": "text", "text": ...}.', "content")
        return self

    @property
    def text(self) -> str:
        """The content; of several parts line by line."""
        return "\n".join(part.text for part in self.content) if isinstance(self.content, list) else self.content or ""

    def message(self) -> Message:
        """As chat templates take it, with the calls' arguments as text."""
        found: Message = {"role": ROLES[self.role], "content": self.text}
        if self.tool_calls:
            found["tool_calls"] = [
                {"id": call.id, "type": "function",
                 "function": {"name": call.function.name, "arguments": call.function.arguments}}
                for call in self.tool_calls
            ]  # fmt: skip
        thought = next((said for said in (getattr(self, name) for name in REASONING) if said is not None), None)
        more = {"tool_call_id": self.tool_call_id, "reasoning_content": thought, "name": self.name}
        return found | {name: value for name, value in more.items() if value is not None}


def few_entries(value: Any) -> Any:
    """The messages, once their number, with parts of contents and calls, is small enough to look at each."""
    entries = value if isinstance(value, list) else []
    count = len(entries)
    for entry in entries[:MAX_ENTRIES]:
        for key in ("content", "tool_calls", "output") if isinstance(entry, Mapping) else ():
            count += len(entry[key]) if isinstance(entry.get(key), list) else 0
    if count > MAX_ENTRIES:
        raise wrong(f"holds {count} messages, parts and calls, more than {MAX_ENTRIES}. Join some, or send fewer.")
    return value


def in_order(messages: Any) -> Any:
    """The conversation, whose results follow their calls and whose last message asks something. A text stays one."""
    called = set[str]()
    if isinstance(messages, str):
        return messages
    for number, message in enumerate(messages):
        ident = message.tool_call_id
        if ident is not None and ident not in called:
            raise wrong("is the id of no call before it.", f"[{number}].tool_call_id", ident)
        called.update(call.id for call in message.tool_calls)
    if messages[-1].role == "user" and not messages[-1].text.strip():
        raise wrong("is empty: what is to be answered?", f"[{len(messages) - 1}].content")
    return messages


SentConversation = Annotated[
    list[SentMessage],
    AfterValidator(in_order),
    BeforeValidator(few_entries),
    must(
        lambda value: isinstance(value, list) and value, 'a list of {"role": ..., "content": ...}, and not empty', False
    ),
]


def conversation(sent: Sequence[SentMessage], tools: bool = False) -> list[Message]:
    """The messages as the chat template takes them. tools: it writes calls of tools and what they gave; else they are
    written into the text."""
    messages = [one.message() for one in sent]
    if tools:
        return [_with_objects(message) for message in messages]
    return _written_out(messages, {call.id: call.function.name for one in sent for call in one.tool_calls})


def _with_objects(message: Message) -> Message:
    """A message whose calls have their arguments as objects, which templates write."""
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": loaded(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _written_out(messages: Sequence[Message], called: Mapping[str, str]) -> list[Message]:
    """A conversation in which a call is a line of JSON that the assistant says, and its result one that the user does,
    together with what the user says next: templates may want the two to take turns. called: names of functions by the
    ids of their calls."""
    found, results = list[Message](), False
    for message in messages:
        text, was_result = message["content"], message["role"] == "tool"
        if was_result:
            text = f"{called[message['tool_call_id']]} returned: {text}"
        for call in message.get("tool_calls", ()):
            line = f'{{"name": {json.dumps(call["function"]["name"])}, "arguments": {call["function"]["arguments"]}}}'
            text = f"{text}\n{line}" if text else line
        if results and message["role"] in ("tool", "user"):
            found[-1]["content"] += f"\n{text}"
        else:
            kept = {key: value for key, value in message.items() if key not in ("tool_calls", "tool_call_id")}
            found.append({**kept, "role": "user" if was_result else message["role"], "content": text})
        results = was_result
    return found


def prompts_in(value: Any) -> list[Any]:
    """The prompts, not yet checked, of a field that holds one or several."""
    return value if isinstance(value, list) and value and isinstance(value[0], str | list) else [value]


def validated_prompts(value: Any) -> list[tuple[str, str | list[int]]]:
    """The prompts, each a text or token ids, by the names of their places. Raises ApiError."""
    prompts, found = prompts_in(value), list[tuple[str, str | list[int]]]()
    for number, prompt in enumerate(prompts):
        name = f"prompt[{number}]" if len(prompts) > 1 else "prompt"
        if not isinstance(prompt, str) and not (prompt and is_list_of(is_whole)(prompt)):
            raise ApiError(400, f"{name} must be a text, or a list of token ids.", name)
        found.append((name, prompt))
    return found
