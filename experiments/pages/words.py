"""The last table of docs/terms.md, which the site makes: words of other programs, and what to write here.

``dllm.common.hint_table`` is what the messages of command line, Python and server are made of; the page shows the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dllm.common.errors import COMMAND_LINE
from dllm.common.hint_table import INSTEAD, SETTINGS
from experiments.support.markdown import table


def rows() -> Iterator[tuple[str, str]]:
    """The words that say one thing, and what to write for it, in the order of the table."""
    found: dict[str, list[str]] = {}
    for word, entry in SETTINGS.items():
        written = entry if isinstance(entry, str) else entry[-1] if isinstance(entry, tuple) else ""
        values = entry if not isinstance(entry, str | tuple) else {"": written}
        for value, text in values.items():
            found.setdefault(code(text), []).append(f"`{word}={value}`" if value else f"`{word}`")
    for word, text in INSTEAD.items():
        found.setdefault(plain_text(COMMAND_LINE.filled(text, {})), []).append(f"`{word}`")
    yield from ((", ".join(words), text) for text, words in found.items())


def code(text: str) -> str:
    return " or ".join(f"`{part.replace('{}', 'VALUE')}`" for part in text.split(" or "))


def plain_text(sentence: str) -> str:
    """A sentence with its settings as code."""
    return re.sub(r"[\w.]+=[\w.]+|\{.*?\]\}", lambda match: f"`{match[0]}`", sentence)


def section() -> str:
    return table(("elsewhere", "here"), rows(), 2) + "\n"
