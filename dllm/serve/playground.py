"""The playground at ``/``: one page, with styles set in, that asks nobody but this server."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from html import escape
from importlib.resources import files

from dllm.common.palette import GRADIENT
from dllm.record.page import page_asset

POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@cache
def playground_page(model: str, prompt: str = "", length: int = 32, chat: bool = True) -> tuple[str, dict[str, str]]:
    """The page, and the headers that let a browser run only what stands in it. prompt, length: what stands in its
    fields. chat: the model has a chat template."""
    page = (files("dllm.serve") / "playground.html").read_text(encoding="utf-8")
    parts = {
        "STYLE": page_asset("trace.css"), "GRADIENT": json.dumps(GRADIENT), "MODEL": escape(model),
        "LENGTH": str(length), "CHAT": "checked" if chat else "", "PROMPT": escape(prompt),
    }  # fmt: skip
    for name, text in parts.items():
        page = page.replace(f"{{{{{name}}}}}", text)
    policy = POLICY.format(script=source_hash(between(page, "script")), style=source_hash(between(page, "style")))
    return page, {
        "Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }  # fmt: skip


def between(page: str, tag: str) -> str:
    """What stands in the page's only element of a kind."""
    return page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]


def source_hash(text: str) -> str:
    """The source expression of a text, as Content-Security-Policy has it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
