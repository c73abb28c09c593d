"""``model.tp=N`` from the command line: one voice, one folder, one end, whoever started the ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.app.conftest import QUESTIONS, ROOT, cells_of, rows_of, timeless

pytestmark = pytest.mark.program
EXACT = "model.dtype=float64"  # in float32 a sum over ranks rounds the fourth digit of some figures otherwise
PROMPT = ["prompt=Latin square: A,B,C,D", "trace=true", EXACT]
SLOW = ["prompts=many.jsonl", "gen_length=32", "sampler=static", "eos=none", "name=slow"]  # 32 turns a prompt


def started(folder: Path, *words: str, program: tuple[str, ...] = ("-m", "dllm")) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ranks = [] if any(word.startswith("model.tp=") for word in words) else ["model.tp=2"]
    command = [sys.executable, *program, *words, *ranks]
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def ended(process: subprocess.Popen[str], seconds: float = 300) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def torchrun(ranks: int) -> tuple[str, ...]:
    return ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks), "-m", "dllm")


@pytest.mark.parametrize("program", [("-m", "dllm"), torchrun(2)], ids=["alone", "torchrun"])
def test_two_ranks_write_and_print_what_one_process_does(program: tuple[str, ...], tmp_path: Path) -> None:
    code, out, err = ended(started(tmp_path, *PROMPT, "name=two", program=program))
    assert code == 0, err
    alone = ended(started(tmp_path, *PROMPT, "name=one", "model.tp=1"))
    answers = [text.split("\n\n")[0].splitlines()[:4] for text in (out, alone[1])]
    assert answers[0] == answers[1] and len(answers[0]) == 4
    assert err.count("Run folder") + out.count("Run folder") == 1
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["one", "two"]
    one, two = (rows_of(tmp_path / "runs" / name) for name in ("one", "two"))
    assert list(map(timeless, one)) == list(map(timeless, two))


def test_an_evaluation_of_two_ranks_is_that_of_one_and_resumes(tmp_path: Path) -> None:
    words = [*QUESTIONS, "batch_size=2", "+task.count=5", "samples=2", EXACT]
    assert ended(started(tmp_path, *words, "name=one", "model.tp=1"))[0] == 0
    assert ended(started(tmp_path, *words, "name=two"))[0] == 0
    results = tmp_path / "runs" / "two" / "results.jsonl"
    whole = results.read_bytes()
    results.write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
    assert ended(started(tmp_path, *words, "name=two"))[0] == 0
    one, two = (rows_of(tmp_path / "runs" / name) for name in ("one", "two"))
    key = lambda row: (row["id"], row["sample"])  # noqa: E731
    assert sorted(map(timeless, one), key=key) == sorted(map(timeless, two), key=key)


def test_groups_of_ranks_share_an_evaluation(tmp_path: Path) -> None:
    """Four processes under engine=accelerate: two groups of two ranks."""
    words = [*QUESTIONS, "batch_size=2", "+task.count=9", EXACT]
    assert ended(started(tmp_path, *words, "name=one", "model.tp=1"))[0] == 0
    code, out, err = ended(started(tmp_path, *words, "name=four", "engine=accelerate", program=torchrun(4)), 240)
    assert code == 0, err
    assert out.count("Run folder: runs/four") == 1
    one, four = (
        sorted(map(timeless, rows_of(tmp_path / "runs" / name)), key=lambda row: row["id"]) for name in ("one", "four")
    )
    assert one == four and len(four) == 9
    assert sorted(path.name for path in (tmp_path / "runs" / "four").iterdir() if path.suffix == ".jsonl") == [
        "results.jsonl"
    ]


def test_a_sweep_of_two_ranks_has_the_cells_of_one_process(tmp_path: Path) -> None:
    words = ["-m", *QUESTIONS, "+task.count=3", "sampler=static,eb", EXACT]
    assert ended(started(tmp_path, *words, "name=one", "model.tp=1"))[0] == 0
    code, out, err = ended(started(tmp_path, *words, "name=two"))
    assert code == 0, err
    assert out.count("Sweep folder: runs/two") == 1
    one, two = ([rows for _, rows in sorted(cells_of(tmp_path / "runs" / name).items())] for name in ("one", "two"))
    assert sorted(map(str, one)) == sorted(map(str, two)) and len(two) == 2


def follower_of(process: subprocess.Popen[str], results: Path) -> psutil.Process:
    """The other rank, when rows are decoded."""
    until = time.monotonic() + 60
    while not (results.exists() and results.stat().st_size):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.05)
    (other,) = psutil.Process(process.pid).children()
    return other


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_rank_that_dies_or_hangs_ends_all(sign: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "many.jsonl").write_text('{"prompt": "Latin square: A,B,C,D"}\n' * 200)
    process = started(tmp_path, *SLOW, "model.tp_timeout=6")
    follower = follower_of(process, tmp_path / "runs" / "slow" / "results.jsonl")
    began = time.monotonic()
    follower.send_signal(sign)
    code, _, err = ended(process, 15)
    how = "has died" if sign == signal.SIGKILL else "has not answered for 6 s"
    sentences = [line for line in err.splitlines() if line.startswith("Error")]
    assert sentences == [f"Error: rank 1 of 2 {how}, so all ranks end. Give the same command again."]
    assert code == 75 and "Traceback" not in err
    assert time.monotonic() - began < 15
    assert not follower.is_running() or follower.status() == psutil.STATUS_ZOMBIE


def test_a_follower_ends_with_rank_0(tmp_path: Path) -> None:
    (tmp_path / "many.jsonl").write_text('{"prompt": "Latin square: A,B,C,D"}\n' * 200)
    process = started(tmp_path, *SLOW)
    follower = follower_of(process, tmp_path / "runs" / "slow" / "results.jsonl")
    process.kill()
    assert follower.wait(15) in (75, None)


def test_sigterm_ends_both_with_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "many.jsonl").write_text('{"prompt": "Latin square: A,B,C,D"}\n' * 200)
    process = started(tmp_path, *SLOW)
    follower = follower_of(process, tmp_path / "runs" / "slow" / "results.jsonl")
    process.terminate()
    code, _, err = ended(process, 15)
    assert code == 143
    assert err.count("Go on with resume=runs/slow") == 1
    assert not follower.is_running()


REFUSED = [
    (["sampler=no"], "sampler='no' is unknown"),
    (["gen_length=0"], "gen_length=0 must be at least 1."),
    (["model.tp=3"], "model.tp=3 takes 3 processes, and there are 2."),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSED, ids=["choice", "range", "ranks"])
def test_a_refusal_is_said_once(words: list[str], sentence: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *torchrun(2), *PROMPT, "model.tp=2", *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=240)
    assert done.returncode != 0
    assert done.stderr.count(f"Error: {sentence}") == 1


def test_ranks_of_different_settings_are_refused_by_name(tmp_path: Path) -> None:
    """The second rank runs another command, as a job script may have it."""
    code, _, err = ended(started(tmp_path, *PROMPT, "model.prompt=of-${oc.env:LOCAL_RANK,0}"))
    assert code == 2
    assert "Error: model.tp=2: model.prompt is of-0 on rank 0 and of-1 on rank 1. Give all ranks the same." in err


def test_a_file_that_one_rank_lacks_is_refused_once(tmp_path: Path) -> None:
    (tmp_path / "0.jsonl").write_text('{"prompt": "a"}\n')
    script = f'exec {sys.executable} -m dllm prompts="$LOCAL_RANK.jsonl" model.tp=2'
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        "--no-python",
        "sh",
        "-c",
        script,
    ]
    done = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=240)
    assert done.stderr.count("prompts is 0.jsonl on rank 0 and 1.jsonl on rank 1") == 1
