"""The playground at ``/``: one page, with styles set in, that asks no one but this server."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

from dllm.common.palette import GRADIENT
from dllm.compose.config_choices import choice_of, options_of_choices
from dllm.compose.naming import own_options, part_words, typed_name
from dllm.compose.parts import composed, plain_config
from dllm.models.weights.shipped import shipped_models
from dllm.serve.dialects.request_parts import Defaults
from dllm.serve.http.offered import OFFERED_GROUPS
from dllm.view.page import page_asset

POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


EXAMPLE_PROMPTS = ("Write a haiku about the sea.", "What is 17 times 23?", "Name three rivers of Europe as JSON.")
MINI_EXAMPLE_PROMPTS = (
    'Sort the list:\n["Kai", "Emma", "Hugo"]',
    "Latin square:\nA,B,C,D",
    "Shuffle these names: Ada, Felix, Zoe",
)
# What the example of a decision fills in, by the field.
EXAMPLE_DECISION = {
    "prompt": "My card was charged twice for one order.",
    "question": "Which team should answer?",
    "alternatives": "billing\nshipping\nreturns",
    "template": "",
}
MINI_EXAMPLE_DECISION = {
    "prompt": MINI_EXAMPLE_PROMPTS[0],
    "question": "",
    "alternatives": "Kai\nEmma\nHugo",
    "template": '["{slot}", "',
}


# The legend's entries for what is not decided.
OF_MASKS = (
    '<li><span class="t mask">&middot;</span> masked</li>\n'
    '    <li><span class="t guess">a</span> guessed, may change</li>'
)
OF_NOISE = '<li><span class="t noise">a</span> undecided: noise, or a draw</li>'


def default_parts(defaults: Defaults) -> dict[str, dict[str, Any]]:
    """The server's own parts: their names, with the options that differ from their choices', and the same as settings
    of the command line where that would choose others."""
    config, usual = {group: getattr(defaults, group) for group in OFFERED_GROUPS}, composed([])
    out = {}
    for group in OFFERED_GROUPS:
        name, options = typed_name(config, group), own_options(config, group)
        plain = not options and name == choice_of(group, plain_config(usual[group]))
        settings = [f"{group}={name}", *(f"{group}.{key}={json.dumps(value)}" for key, value in options.items())]
        out[group] = {"name": name, "words": part_words(config, group), "overrides": [] if plain else settings}
    return out


def model_overrides(model: Mapping[str, Any]) -> list[str]:
    """The model as settings of the command line. A folder of the server's is not told."""
    name = str(model.get("name") or "")
    options = options_of_choices("model").get(name)
    if options is None:
        return ["model.path=FOLDER"]
    return [f"model={name}", *(["model.path=FOLDER"] if str(model.get("path")) != str(options.get("path")) else [])]


def playground_page(defaults: Defaults, model: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The page of a server with these defaults, and the headers that let a browser run only what is in it. model: its
    settings, as the command line composed them."""
    tokenizer, mini = defaults.model.tokenizer, defaults.model.name in shipped_models()
    data = {
        "model": defaults.name,
        "gradient": GRADIENT,
        "examples": MINI_EXAMPLE_PROMPTS if mini else EXAMPLE_PROMPTS,
        "defaults": default_parts(defaults),
        "command": "dllm run",
        "overrides": model_overrides(model),
        "decision": MINI_EXAMPLE_DECISION if mini else EXAMPLE_DECISION,
    }
    parts = {
        "STYLE": page_asset("trace.css") + playground_asset("playground.css"),
        "SERVED": json.dumps(data).replace("<", "\\u003c"),
        "SCRIPT": page_asset("boxes.js") + playground_asset("playground.js") + playground_asset("playground.decide.js"),
        "MODEL": escape(defaults.name),
        "LENGTH": str(defaults.gen_length),
        "UNDECIDED": OF_NOISE if defaults.model.ids.mask is None else OF_MASKS,
        "CHAT": "checked" if tokenizer is not None and tokenizer.has_chat_template else "",
        "PROMPT": escape(str(model.get("prompt") or "")),
    }
    # one pass: a prompt may spell {{MODEL}}
    page = re.sub(r"{{([A-Z]+)}}", lambda match: parts[match[1]], playground_asset("playground.html"))
    return page, page_headers(source_hash(between(page, "script")), source_hash(between(page, "style")))


def page_headers(script: str, style: str) -> dict[str, str]:
    """Of a page that runs and shows only what these source expressions allow."""
    return {
        "Content-Security-Policy": POLICY.format(script=script, style=style),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }


def playground_asset(name: str) -> str:
    """The text of a file beside this one."""
    return (files("dllm.serve.http") / name).read_text(encoding="utf-8")


def between(page: str, tag: str) -> str:
    """What is in the page's only element of a kind."""
    return page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]


def source_hash(text: str) -> str:
    """The source expression of a text, as Content-Security-Policy has it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
