"""What is printed, made safe for a terminal: the only place of the package that prints.

A terminal obeys what it is sent: a text with escape sequences clears the screen, renames the window, fills the
clipboard, or hides a line. Models write such texts, and files, names and replies of servers hold them. So control
characters are shown, as one column each where Unicode has a picture of them (``visible``), and so are the marks that
reorder letters on a line (Trojan Source, CVE-2021-42574). New lines and tabs stay. An answer in a pipe or a file stays
as it is: a program reads it.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import textwrap
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

if TYPE_CHECKING:
    from rich.style import Style
    from rich.text import Text


def open_streams() -> None:
    """Open /dev/null in place of standard streams that are closed (daemons, cron with ``>&-``, pythonw).

    Python has None for these, and the system gives their numbers to the next files, where other code then prints.
    """
    streams = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
    for number in range(len(streams)):
        with suppress(OSError):
            os.fstat(number)
            continue
        new = os.open(os.devnull, os.O_RDWR)
        if new != number:
            os.dup2(new, number)
            os.close(new)
    for number, (name, mode) in enumerate(streams):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False, encoding="utf-8"))  # noqa: PTH123, SIM115


open_streams()  # every command imports this module first

PICTURES = 0x2400  # of U+0000 to U+001F, in their order
WITHOUT_PICTURE = [
    *range(0x80, 0xA0),  # C1: U+009B alone begins a sequence, as ESC [ does
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),  # embed, override and isolate directions
    0x2028,
    0x2029,  # end lines and paragraphs for some readers and not for others
]
SHOWN_AS = {
    **{code: chr(PICTURES + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "\N{SYMBOL FOR DELETE}",
    **{code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in WITHOUT_PICTURE},
}


def visible(text: str) -> str:
    """``text`` with a sign for every control character but new lines and tabs: ESC is ``␛``, U+009B ``\\x9b``."""
    return text.translate(SHOWN_AS)


def say(*words: object, flush: bool = False) -> None:
    """Print on standard output: visibly on a terminal, as it is in a pipe or a file."""
    line = " ".join(map(str, words))
    print(visible(line) if sys.stdout.isatty() else line, flush=flush)


def complain(*words: object) -> None:
    """Print on standard error, which people read wherever it goes: always visibly."""
    print(visible(" ".join(map(str, words))), file=sys.stderr, flush=True)


def complain_folded(sentence: str) -> None:
    """As ``complain``; on a terminal words are kept whole."""
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else 0
    complain(textwrap.fill(sentence, width) if width else sentence)


def as_text(text: object, style: str | Style = "") -> Text:
    """A text for a table or a console of rich, which would obey escape sequences, and square brackets as markup."""
    from rich.text import Text

    return Text(visible(str(text)), style)


class VisibleLog(logging.StreamHandler[TextIO]):
    """A log on standard error, whose lines quote what others sent. formatter: None is the plain message."""

    def __init__(self, formatter: logging.Formatter | None = None) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(formatter)

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


class VisibleParser(argparse.ArgumentParser):
    """A command's arguments, whose errors quote what was typed."""

    def error(self, message: str) -> NoReturn:
        complain(f"{self.format_usage()}{self.prog}: error: {message}")
        raise SystemExit(2)


def excepthook(kind: type[BaseException], error: BaseException, place: Any) -> None:
    """A traceback as Python prints it, but visibly: what an error says may quote a file."""
    complain("".join(traceback.format_exception(kind, error, place)).rstrip("\n"))
