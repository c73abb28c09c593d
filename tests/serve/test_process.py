"""The process: its exit codes, its sentences, and a signal while work is under way."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from dllm.parts import (
    DEAD,
    Model,
    ServeSettings,
    UserError,
    bound_socket,
    composed,
    key_of_server,
    plain_config,
    serve_until_signal,
    server_of,
)
from tests.app.conftest import ROOT, Run, run  # noqa: F401  a fixture
from tests.serve.conftest import Place
from tests.serve.stand_in import OneByOne
from tests.support.harness import full


def served_at(words: str) -> str:
    found = re.search(r"http://127.0.0.1:\d+", words)
    assert found, words
    return found[0]


@pytest.mark.program
def test_a_signal_lets_work_under_way_finish(tiny: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "run.py"),
        "serve",
        f"model.path={tiny}",
        "task.port=0",
        "sampler=static",
        "sampling.forbid_eos=true",
        "task.grace=60",
    ]
    place = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DLLM_API_KEY": "a-key-from-outside"}
    with subprocess.Popen(command, cwd=tmp_path, env=place, text=True, stdout=-1, stderr=-1) as process:
        assert process.stdout is not None
        url = served_at(process.stdout.readline())
        headers = {"authorization": "Bearer a-key-from-outside"}
        body = {"prompt": "w1 w2", "max_tokens": 48, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=headers, timeout=60) as reply:
            lines = reply.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            said = [line for line in lines if line]
        assert said[-1] == "data: [DONE]" and '"finish_reason":"' in said[-2]
        out, log = process.communicate(timeout=30)
    assert process.returncode == 0 and "Traceback" not in log and "w1 w2" not in log
    assert "POST /v1/completions 200 127.0.0.1 2+48 tokens" in log
    assert "INFO the server takes requests" in log and "INFO the server has stopped" in log
    assert list(tmp_path.iterdir()) == [], "a server leaves no run folder"


def test_a_dead_decode_thread_ends_the_process(served: Model) -> None:
    place = Place(served)
    place.scheduler.state = "failed"
    server = server_of(place.app, place.scheduler, ServeSettings())  # type: ignore[arg-type]
    with pytest.raises(SystemExit) as stop:
        serve_until_signal(server, bound_socket("127.0.0.1", 0))
    assert stop.value.code == DEAD == 70


@pytest.mark.program
@pytest.mark.parametrize("asked", [False, True] if full() else [False], ids="asked={}".format)
def test_a_signal_ends_in_order_at_any_time(tiny: Path, tmp_path: Path, asked: bool) -> None:
    """Right behind the start, while what is offered is composed; asked: twice with an answer under way, whose grace
    then ends."""
    command = [
        sys.executable,
        str(ROOT / "run.py"),
        "serve",
        f"model.path={tiny}",
        "task.port=0",
        "sampler=static",
        "sampling.forbid_eos=true",
        "blocks.block_length=8",
    ]
    place = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=tmp_path, env=place, text=True, stdout=-1, stderr=-1) as process:
        assert process.stdout is not None
        url = served_at(process.stdout.readline())
        if not asked:
            process.send_signal(signal.SIGTERM)
        else:
            body = {"prompt": "w1 w2", "max_tokens": 120, "n": 8, "stream": True}
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as reply:
                lines = reply.iter_lines()
                next(lines)
                process.send_signal(signal.SIGTERM)
                time.sleep(0.1)
                process.send_signal(signal.SIGTERM)
                said = [line for line in lines if line]
            assert "closing" in said[-1] and said[-1].startswith('data: {"error"'), said[-1]
        _, log = process.communicate(timeout=30)
    assert process.returncode == 0 and "Traceback" not in log and "INFO the server has stopped" in log


def test_a_third_signal_does_not_wait(served: Model) -> None:
    server = server_of(lambda *_: None, OneByOne(served), ServeSettings())  # type: ignore[arg-type, return-value]
    forced = []
    for _ in range(3):
        server.handle_exit(signal.SIGTERM, None)
        forced.append(server.force_exit)
    assert server.should_exit and forced == [False, False, True]


def test_what_cannot_be_served_is_a_sentence(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.delenv("DLLM_API_KEY", raising=False)
    with bound_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        cases: list[tuple[list[str], str]] = [
            ([f"task.port={port}"], f"task.port={port} is in use on 127.0.0.1"),
            (["task.host=192.0.2.1", "task.api_key=abcdefgh1"], "192.0.2.1"),
            (["task.hots=1"], "task.hosts"),
            ([f"task.api_key_file={tmp_path}/none"], "cannot be read"),
            (["samples=2"], "samples has no meaning"),
            (["engine=accelerate"], "engine=accelerate"),
            (["cache=dkv_greedy"], "cache=dkv_greedy"),
            ([f"task.api_key_file={tmp_path}"], "cannot be read"),
            (["task.max_row=2"], "Did you mean 'task.max_rows'"),
            (["sampler.thresold=1"], "Did you mean 'sampler.threshold'"),
            (["--port=1"], "write task.port=1"),
        ]
        for given, words in cases:
            found = run("serve", *given, bare=True)
            assert found.code == 2 and found.err.startswith("Error: ") and found.err.count("\n") == 1, (given, found)
            assert words in found.err and "Traceback" not in found.err, (given, found.err)


@pytest.mark.parametrize(
    "place", ["dllm.models.weights.files.safe_open", "dllm.models.weights.tensor_reader.safe_open"]
)
def test_a_model_that_does_not_fit_is_a_sentence(run: Run, monkeypatch: pytest.MonkeyPatch, place: str) -> None:  # noqa: F811
    """As the system says it where a file, or a tensor of it, is larger than what there is (``ulimit -v`` shows it)."""

    def too_large(*_: Any, **__: Any) -> None:
        raise (
            OSError(errno.ENOMEM, "Cannot allocate memory")
            if "files" in place
            else RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9216000000 bytes.")
        )

    monkeypatch.setattr(place, too_large)
    found = run("serve", "task.port=0", bare=True)
    assert found.code == 2 and found.err.startswith("Error: there is not enough memory (")
    assert found.err.count("\n") == 1 and "a smaller model" in found.err and "task.max_rows" in found.err


def test_a_missing_extra_is_a_sentence(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setitem(sys.modules, "dllm.serve.http.server", None)
    found = run("serve", bare=True)
    assert found.code == 2 and "[serve]'" in found.err


def test_where_the_key_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("key-of-the-file\n")
    outside = {"DLLM_API_KEY": "key-of-outside"}
    assert key_of_server(None, None, {}) is None
    assert key_of_server(None, None, outside) == "key-of-outside"
    assert key_of_server(None, str(file), outside) is None, "the file's keys are read while the server runs"
    assert key_of_server("key-of-the-command", None, outside) == "key-of-the-command"
    for given, name, words in (
        ("a", None, "at least"),
        ("has a space in it", None, "without spaces"),
        ("x", "y", "exclude"),
        (None, str(tmp_path), "cannot be read"),
    ):
        with pytest.raises(UserError, match=words):
            key_of_server(given, name, {})
    assert "key-of" not in repr(ServeSettings(api_key="key-of-the-command"))


def test_an_ipv6_address_is_listened_to() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        with bound_socket("::1", 0) as made:
            assert made.family == socket.AF_INET6
    except UserError:
        pytest.skip("this machine has no IPv6")


TASK = {**plain_config(composed(["task=serve"]).task)}


@pytest.mark.parametrize(("given", "words"), [
    ({"host": "0.0.0.0"}, "DLLM_API_KEY"), ({"port": 70000}, "65535"), ({"port": "x"}, "task.port"),
    ({"cors": ["*"]}, "every web page"), ({"timeout": 0}, "task.timeout"), ({"max_rows": 0}, "task.max_rows"),
    ({"hosts": ["*"]}, "so the server needs a key"), ({"names": ["a", "a"]}, "task.names"),
    ({"log": "xml"}, "task.log"), ({"api_key": "short"}, "at least 8"), ({"grace": -1}, "task.grace"),
    ({"hosts": "x"}, "task.hosts"),
], ids=str)  # fmt: skip
def test_settings_out_of_range_are_a_sentence(given: dict[str, Any], words: str) -> None:
    assert ServeSettings.of(TASK, {}) == ServeSettings(), "the file has the defaults of the class"
    with pytest.raises(UserError, match=words):
        ServeSettings.of({**TASK, **given}, {})


@pytest.mark.parametrize(("name", "least", "below"), [
    ("port", 0, -1), ("grace", 0, -0.1), ("prefix_gib", 0, -0.1),
    *((name, 0.1, 0.09) for name in ("timeout", "read_timeout", "send_timeout", "compile_seconds")),
    *((name, 1, 0) for name in ("max_connections", "max_tokens", "max_rows", "max_tokens_in_flight",
                                "max_prefill_tokens", "prefill_chunk", "max_lanes", "max_waiting")),
])  # fmt: skip
def test_the_least_of_a_setting_is_taken_and_nothing_below(name: str, least: float, below: float) -> None:
    ServeSettings.of({**TASK, name: least}, {})
    with pytest.raises(UserError, match=rf"task\.{name}"):
        ServeSettings.of({**TASK, name: below}, {})
