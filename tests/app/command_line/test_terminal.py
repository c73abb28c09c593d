"""On a terminal, a pseudo one here, no escape sequence of an answer, a file or a name arrives as it is."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dllm.app.command_line import main as cli
from dllm.view import __main__ as view

ESCAPES = "A\x1b[2J\x1b]0;t\x07B"
SHOWN = "A␛[2J␛]0;t␇B"
# What rich and tqdm send to move and colour: no clearing of screens, no titles, no bell.
OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[2K|\x1b\[[0-9]*A|\x1b\[\?25[lh]|\r")
Typed = Callable[..., str]


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Typed:
    """What a terminal receives of a command, as text without the sequences that are our own."""

    def call(command: Callable[[], Any], *arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
        master, slave = pty.openpty()
        received: list[bytes] = []
        reader = threading.Thread(target=drain, args=(master, received))
        reader.start()
        with os.fdopen(slave, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            patch.setattr(sys, "stderr", stream)
            with suppress(SystemExit):
                command()
        reader.join()
        os.close(master)
        return OWN.sub("", b"".join(received).decode())

    return call


def drain(master: int, received: list[bytes]) -> None:
    """All that arrives until the other side closes."""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # Linux says so when the last writer has left
            return
        if not part:
            return
        received.append(part)


def written(folder: Path) -> Path:
    """Two prompts whose ids and answers hold escape sequences."""
    chosen = {"name": "choice", "options": [ESCAPES]}
    rows = [{"prompt": "Sort", "id": f"{number}{ESCAPES}", "constraint": chosen} for number in range(2)]
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + f"{ESCAPES}\n")
    return file


@pytest.mark.parametrize("live", ["live=true", "live=false compare=true"])
def test_answers_ids_and_broken_lines(live: str, terminal: Typed, tmp_path: Path) -> None:
    settings = ["model=mini-llada", f"prompts={written(tmp_path)}", "gen_length=32", "sampler=static", "batch_size=2"]
    text = terminal(cli.main, *settings, *live.split())
    assert "\x1b" not in text and "\x07" not in text
    assert text.count(SHOWN) >= 4  # twice an id and an answer


def test_a_prompt_and_its_run_folder(terminal: Typed) -> None:
    text = terminal(cli.main, f"prompt='{ESCAPES}'", f"output='{ESCAPES}'", "gen_length=4", "trace=true")
    assert "\x1b" not in text and text.count(SHOWN) >= 3


def test_a_conversation(terminal: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{ESCAPES}\n"))
    chosen = ["constraint=choice", f"constraint.options=['{ESCAPES}']"]
    text = terminal(cli.main, "chat=true", "gen_length=32", *chosen)
    assert "\x1b" not in text and SHOWN in text


def test_names_in_errors_reports_and_replays(terminal: Typed, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / ESCAPES).symlink_to(tiny)
    trace = tmp_path / f"{ESCAPES}.json"
    trace.write_text(f'"{ESCAPES}')
    for command, *arguments in (
        (cli.main, "task=check", f"model.path='{ESCAPES}'"), (cli.main, f"{ESCAPES}=3"),
        (cli.main, "task=replay", f"trace='{trace}'"), (lambda: view.main([str(trace)]),),
        (lambda: view.main([ESCAPES] * 3),), (lambda: view.main(["no.json", "-o", ESCAPES]),),
    ):  # fmt: skip
        text = terminal(command, *arguments)
        assert text and "\x1b" not in text, arguments


def test_in_a_pipe_an_answer_is_raw(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["run.py", f"prompts={written(tmp_path)}", "gen_length=32"])
    cli.main()
    out, err = capfd.readouterr()
    assert out == f"{ESCAPES}\n" * 2 and "\x1b" not in err
