"""What a terminal would obey never reaches it: what counts as such, and that nothing is printed in another way."""

from __future__ import annotations

import ast
import io
import logging
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from dllm.parts import VisibleLog, VisibleParser, as_text, complain, excepthook, say, visible

PACKAGE = Path(__file__).parents[2] / "dllm"
THE_PLACE = PACKAGE / "common" / "terminal.py"
REORDERING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}  # of Unicode's bidirectional algorithm
HOSTILE = "A\x1b[2J\x1b]0;title\x07B\x9b2J\u202eC\r\x08\x7f"


def obeyed(character: str) -> bool:
    """What Unicode calls a control, a line's or paragraph's end, or a mark that reorders others."""
    category = unicodedata.category(character)
    return category in ("Cc", "Zl", "Zp") or unicodedata.bidirectional(character) in REORDERING


def test_exactly_what_a_terminal_may_obey_is_shown_and_the_rest_of_unicode_stays() -> None:
    for character in [*map(chr, range(0x3000)), "\ufeff", "\U0001f600", "\U000e0041"]:
        changes = obeyed(character) and character not in "\n\t"
        assert (visible(character) != character) == changes, hex(ord(character))
        assert not changes or not any(map(obeyed, visible(character)))


def test_c0_controls_take_one_column_with_the_picture_that_unicode_has_of_them() -> None:
    for code in [*range(0x20), 0x7F]:
        if chr(code) not in "\n\t":
            assert len(visible(chr(code))) == 1 and unicodedata.name(visible(chr(code))).startswith("SYMBOL FOR ")
    assert visible("\x1b[2J\x9b2J\u202e") == "␛[2J\\x9b2J\\u202e"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_standard_output_is_visible_on_a_terminal_and_raw_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, expected in ((Terminal(), visible(HOSTILE)), (io.StringIO(), HOSTILE)):
        monkeypatch.setattr(sys, "stdout", stream)
        say(HOSTILE, 3)
        assert stream.getvalue() == f"{expected} 3\n"


def test_errors_arguments_tracebacks_and_logs_are_visible_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    complain("Error:", HOSTILE)
    with pytest.raises(SystemExit):
        VisibleParser("command").parse_args([HOSTILE])
    excepthook(ValueError, ValueError(HOSTILE), None)
    record = logging.LogRecord("dllm", logging.INFO, "", 0, "%s\nbelow", (HOSTILE,), None)
    lines = [*capsys.readouterr().err.splitlines(), *VisibleLog().format(record).splitlines()]
    assert [visible(HOSTILE) in line for line in lines] == [True, False, True, True, True, False]
    assert not any(map(obeyed, "".join(lines)))


def test_a_table_obeys_neither_escapes_nor_markup() -> None:
    table, console = Table(), Console(file=io.StringIO(), width=80)
    table.add_column(as_text(HOSTILE))
    table.add_row(as_text("[/b] [red]:smile:"))
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert visible(HOSTILE) in shown and "[/b] [red]:smile:" in shown


DRAWN = ("as_text(", "Text.assemble(", "scores_table(", "summary_table(", "text_table(", "tested_table(", "table")
PRINTS = ("print", "stdout.write", "stderr.write", "StreamHandler", "ArgumentParser")
WATCHED = re.compile(r"print|write|StreamHandler|ArgumentParser|input|Text|from_markup|basicConfig|tqdm")


def loose(tree: ast.AST) -> Iterator[str]:
    """Calls by which a text could reach a terminal as it is."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not WATCHED.fullmatch(last(node.func)):
            continue
        name, given = ast.unparse(node.func), ", ".join(map(ast.unparse, [*node.args, *node.keywords]))
        fixed = not any(isinstance(part, ast.Name | ast.JoinedStr) for one in node.args[:1] for part in ast.walk(one))
        if (
            name.removeprefix("sys.").removeprefix("logging.").removeprefix("argparse.") in PRINTS
            or (name in ("input", "Text", "Text.from_markup") and not fixed)
            or (name == "logging.basicConfig" and "VisibleLog" not in given)
            or (name == "tqdm" and "desc=" in given and "desc=visible(" not in given)
            or (name.lower().endswith(("console.print", "console().print")) and not given.startswith(DRAWN))
        ):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def last(name: ast.expr) -> str:
    """The last word of what is called."""
    return name.attr if isinstance(name, ast.Attribute) else name.id if isinstance(name, ast.Name) else ""


def test_the_package_prints_in_one_place() -> None:
    files = [file for file in PACKAGE.rglob("*.py") if file != THE_PLACE]
    assert len(files) > 200
    found = {str(file): [*loose(ast.parse(file.read_text(encoding="utf-8")))] for file in files}
    assert {file: lines for file, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "print(text)",
        "console.print(text)",
        "self.console.print(Text(text))",
        "Console().print('[red]' + text)",
        "Text(text)",
        "input(text)",
        "logging.basicConfig(level=3)",
        "tqdm(desc=title)",
        "sys.stderr.write(text)",
    ],
)
def test_another_way_to_print_would_be_noticed(line: str) -> None:
    assert [*loose(ast.parse(line))]


PROGRAM = """
import dllm.common.terminal as t, os, sys
t.say("a"); t.complain("b"); t.complain_folded("c"); t.VisibleLog()
assert os.open(os.devnull, os.O_RDONLY) > 2
sys.stdout.flush(); os._exit(7)
"""


@pytest.mark.parametrize("closed", ["", ">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_silent(closed: str) -> None:
    assert subprocess.run(["/bin/sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, PROGRAM]).returncode == 7
