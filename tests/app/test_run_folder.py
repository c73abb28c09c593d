"""What a run leaves on disk: never half a line in use, never a sample twice, never two runs in one folder."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from dllm.app.runs import folder
from dllm.parts import RunFolder, UserError, config_in, identity, read_results, trace_name

STATIC = {"_target_": "dllm.parts.samplers.static.Static", "steps": None}
CONFIG: dict[str, Any] = {"gen_length": 8, "sampler": STATIC, "live": None}
CONTENT = {"checkpoint": "abc"}
PART = {"_target_": "dllm.parts.samplers.static.Static"}
TURN = {
    "turn": 1,
    "kept": 0,
    "candidates": [{"positions": [0], "tokens": [4], "confidence": [0.5], "forced": [False]}],
    "remasked": [[]],
    "filled": [[]],
    "rolled": [[]],
    "queries": [2],
    "block": (0, 0, 1),
}
TRACE: dict[str, Any] = {
    "trace": {"prompt": [1, 9], "given": [1, 0], "mask_id": 9, "eos_id": 0, "start": 1, "length": 2, "turns": [TURN]},
    "config": {"model": {"name": "m"}, **dict.fromkeys(("sampler", "blocks", "cache", "eos"), PART)},
}


def row(name: str, sample: int = 0) -> dict[str, Any]:
    return {"id": name, "sample": sample, "text": "grün \n$ ${x}"}


def test_a_finished_sample_is_on_disk_before_the_next_one(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "run", CONFIG, CONTENT) as run:
        run.write(row("a"))
        assert read_results(run.path / "results.jsonl")[0] == [row("a")]
        run.write(row("a", 1), trace={**TRACE, "id": "a", "sample": 1})
        assert json.loads((run.path / "traces" / "a-1.json").read_text())["config"] == TRACE["config"]
        assert "<h1>run: a, answer 2</h1>" in (run.path / "traces" / "a-1.html").read_text()
        assert run.done_keys == {("a", 0), ("a", 1)}


def test_a_resumed_run_knows_what_is_done_and_drops_a_half_written_line(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, CONFIG, CONTENT) as run:
        run.write(row("a"))
        run.write(row("b"))
    whole = (tmp_path / "results.jsonl").read_bytes()
    middle = len(whole) // 2
    for cut in (len(whole) - 1, len(whole) - 7, middle + 1, middle):
        (tmp_path / "results.jsonl").write_bytes(whole[:cut])
        with RunFolder.open(tmp_path, CONFIG, CONTENT) as run:
            assert run.done_keys == {("a", 0)}
            run.write(row("b"))
        assert (tmp_path / "results.jsonl").read_bytes() == whole


def test_a_broken_line_before_the_last_is_no_killed_run(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text('{"id": "a", "sample": 0}\n{"id": \n{"id": "b", "sample": 0}\n')
    with pytest.raises(UserError, match=r"line 2 of .*results.jsonl is broken .* Delete it, then resume"):
        read_results(tmp_path / "results.jsonl")


def test_a_folder_of_another_configuration_is_refused_with_the_difference(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, CONFIG, CONTENT).close()
    with pytest.raises(UserError, match=r"was run with gen_length=8, not 16\. Start a new run"):
        RunFolder.open(tmp_path, {**CONFIG, "gen_length": 16}, CONTENT)
    other = {**CONFIG, "sampler": {"_target_": "dllm.parts.samplers.order.Order", "steps": None}}
    with pytest.raises(UserError, match="was run with sampler=static, not order"):
        RunFolder.open(tmp_path, other, CONTENT)
    with pytest.raises(UserError, match="another content of checkpoint"):
        RunFolder.open(tmp_path, CONFIG, {"checkpoint": "def"})
    RunFolder.open(tmp_path, {**CONFIG, "live": True}, CONTENT).close()


def test_the_identity_depends_on_what_can_change_an_outcome_and_on_nothing_else() -> None:
    same = [CONFIG, {**CONFIG, "live": True}, {**CONFIG, "name": "x", "output": "y"}, dict(reversed(CONFIG.items()))]
    assert len({identity(config, CONTENT) for config in same}) == 1
    different = [CONFIG, {**CONFIG, "gen_length": 9}, {**CONFIG, "seed": 1}]
    hashes = {identity(config, CONTENT) for config in different} | {identity(CONFIG, {"checkpoint": "x"})}
    assert len(hashes) == 4


def test_an_edited_configuration_is_refused_with_the_key(tmp_path: Path) -> None:
    """Also by ``resume=``, which hands over what the folder itself says."""
    RunFolder.open(tmp_path, CONFIG, CONTENT).close()
    file = tmp_path / folder.CONFIG
    before = file.read_text()
    file.write_text(before.replace("gen_length: 8", "gen_length: 16"))
    with pytest.raises(UserError, match=r"config.yaml was edited: .* with gen_length=8, not 16\. Put that back"):
        RunFolder.open(tmp_path, config_in(tmp_path), CONTENT)
    file.write_text(before.replace("live: null", "live: true"))  # decides nothing
    RunFolder.open(tmp_path, config_in(tmp_path), CONTENT).close()


def test_settings_that_are_no_numbers_are_the_same_after_a_round_trip(tmp_path: Path) -> None:
    odd = {**CONFIG, "threshold": float("nan"), "bound": float("inf"), "small": 1e-7, "stop": ["a", "ü"], "none": None}
    RunFolder.open(tmp_path, odd, CONTENT).close()
    RunFolder.open(tmp_path, config_in(tmp_path), CONTENT).close()


def test_a_folder_that_does_not_say_what_it_was_made_of_is_not_gone_on_with(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, CONFIG, CONTENT).close()
    old = {"identity": identity(CONFIG, CONTENT), "content": CONTENT}
    (tmp_path / folder.ENVIRONMENT).write_text(json.dumps(old))
    with pytest.raises(UserError, match="older version, which did not note its settings. Start a new run"):
        RunFolder.open(tmp_path, CONFIG, CONTENT)


def test_two_processes_cannot_fill_one_folder(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, CONFIG, CONTENT), pytest.raises(UserError, match="another process is writing"):
        RunFolder.open(tmp_path, CONFIG, CONTENT)


@pytest.fixture(params=[errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP], ids=lambda code: errno.errorcode[code])
def no_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system as NFS without its lock service, or Lustre mounted without flock."""

    def flock(*arguments: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_file_stands_for_one(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, CONFIG, CONTENT) as run:
        run.write(row("a"))
        words = rf"another process \(number {os.getpid()} on .*\) is writing .* If it is gone, delete .*results.jsonl"
        with pytest.raises(UserError, match=words):
            RunFolder.open(tmp_path, CONFIG, CONTENT)
    with RunFolder.open(tmp_path, CONFIG, CONTENT) as run:
        assert run.done_keys == {("a", 0)}


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.usefixtures("no_locks")
def test_without_locks_the_file_of_a_killed_process_is_taken_over_here_and_respected_elsewhere(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with RunFolder.open(tmp_path, CONFIG, CONTENT):
        (owner,) = (file for file in tmp_path.glob(".results.jsonl.*") if file.stat().st_size)
        number, host, *rest = owner.read_text().split("\n")
    for place, refused in ((host, False), ("elsewhere", True)):
        owner.write_text("\n".join([f"{gone.pid}", place, *rest]))
        with pytest.raises(UserError, match="on elsewhere") if refused else nullcontext():
            RunFolder.open(tmp_path, CONFIG, CONTENT).close()


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """No file may grow beyond ``limit`` bytes: the write in question is cut short and the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk_is_a_sentence_and_keeps_what_is_finished(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, CONFIG, CONTENT) as run:
        run.write(row("a"))
        size = (tmp_path / "results.jsonl").stat().st_size
        with full_disk(size + 10), pytest.raises(UserError, match=rf"cannot write to .* go on with resume={tmp_path}"):
            run.write(row("b"))
        assert (tmp_path / "results.jsonl").stat().st_size == size
        run.write(row("b"))
        assert read_results(tmp_path / "results.jsonl")[0] == [row("a"), row("b")]


@pytest.mark.parametrize(
    ("chat", "sweep", "advice"),
    [
        (False, True, "give the sweep's command again with name=sweep"),
        (True, False, "choose another place with output=FOLDER"),
    ],
)
def test_the_advice_on_a_full_disk_can_be_followed(tmp_path: Path, chat: bool, sweep: bool, advice: str) -> None:
    """A conversation cannot be resumed, and a cell only with its sweep."""
    folder = tmp_path / "sweep" / "cell"
    with RunFolder.open(folder, {**CONFIG, "chat": chat}, CONTENT) as run:
        if sweep:
            (folder.parent / "multirun.yaml").touch()
        with full_disk(10), pytest.raises(UserError) as caught:
            run.write(row("a"))
    assert advice in str(caught.value) and "resume=" not in str(caught.value)


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write to .* choose another place with output=FOLDER"):
        RunFolder.open(tmp_path / "file" / "run", CONFIG, CONTENT)


def test_trace_names_are_file_names_and_differ_where_ids_differ() -> None:
    names = {trace_name((name, sample)) for name in ("a", "a/b", "a_b", "..", "../x", "ä" * 300) for sample in (0, 1)}
    assert len(names) == 12
    assert not any("/" in name or len(name) > 120 for name in names)


def test_sessions_are_stamped_one_after_the_other(tmp_path: Path) -> None:
    for device in ("cpu", "cuda"):
        with RunFolder.open(tmp_path, CONFIG, CONTENT) as run:
            run.stamp({"python": "3", "device": device})
    known = json.loads((tmp_path / folder.ENVIRONMENT).read_text())
    assert known["device"] == "cpu" and known["resumed"] == [{"python": "3", "device": "cuda"}]
    assert known["identity"] == identity(CONFIG, CONTENT)


def replace_file(folder: Path) -> None:
    copy = folder / "copy"
    shutil.copy(folder / "results.jsonl", copy).replace(folder / "results.jsonl")


LOSSES = {
    "deleted": shutil.rmtree,
    "moved": lambda folder: folder.rename(folder.with_name("elsewhere")),
    "replaced": replace_file,
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("last", [False, True], ids=["between", "last"])
def test_a_folder_that_goes_in_mid_run_is_no_success(tmp_path: Path, loss: str, last: bool) -> None:
    """The open file would take every further line, and no reader find one."""
    folder = tmp_path / "run"
    with (
        pytest.raises(UserError, match=r"was deleted, moved or replaced"),
        RunFolder.open(folder, CONFIG, CONTENT) as run,
    ):
        run.write(row("a"))
        LOSSES[loss](folder)
        if not last:
            run.write(row("b"))
            raise AssertionError("it was written")
