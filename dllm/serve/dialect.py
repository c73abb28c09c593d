"""Requests of other programs' forms, made requests of chat: refusals come back in the words of the form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dllm.serve.api_errors import ApiError
from dllm.serve.fields import Answered, ChatBody
from dllm.serve.request_parts import Defaults
from dllm.serve.typed import wrong
from dllm.serve.wire import ParsedRequest, parse_request


def parse_as_chat(
    chat: Mapping[str, Any], called: Mapping[str, str], defaults: Defaults, kind: type[Answered] = ChatBody
) -> ParsedRequest:
    """What a request asks for that was made one of ``kind``. called: of the names there, the longer first, the form's
    own. Raises ApiError with those, as later refusals have them: a constraint is compiled last."""
    try:
        found = parse_request(chat, issubclass(kind, ChatBody), defaults, kind)
    except ApiError as refused:
        raise in_words_of(refused, called) from None
    names = {usual: sent_name(sent, called) for usual, sent in found.names.items()}
    return replace(found, names={**names, **{one: sent for one, sent in called.items() if one not in names}})


def in_words_of(refused: ApiError, called: Mapping[str, str]) -> ApiError:
    """A refusal with fields as this request calls them."""
    found = refused.renamed(called)
    if found.param is not None and found.param == refused.param:
        found.param = sent_name(found.param, called)
    return found


def sent_name(name: str, called: Mapping[str, str]) -> str:
    """What this request calls a field of chat, or the field that holds it."""
    for usual, sent in called.items():
        if name == usual or name.startswith((f"{usual}.", f"{usual}[")):
            return sent + name.removeprefix(usual)
    return name


def refuse_snapshots(sent: Mapping[str, Any]) -> None:
    """Refuse a request for the canvas of each turn, which only the streams of chat and completions send."""
    own = sent.get("diffusion")
    if isinstance(own, Mapping) and own.get("snapshots"):
        raise wrong("is served by /v1/chat/completions. Drop it.", "diffusion.snapshots")
