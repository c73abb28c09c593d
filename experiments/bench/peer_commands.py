"""Published repositories in processes of their own, which decode on request: see ``experiments.bench.peers``."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dllm import UserError


@dataclass(frozen=True)
class Repository:
    """name: on GitHub. commit: the one that this was tried with. caches: what it has of ours, by our names."""

    name: str
    commit: str
    caches: tuple[str, ...]


REPOSITORIES = {
    "fast-dllm": Repository("NVlabs/Fast-dLLM", "24cc59e", ("none", "prefix", "dual")),
    "d2cache": Repository("Kamichanw/d2Cache", "72feb60", ("none", "prefix", "dual")),
    "dkv-cache": Repository("horseee/dKV-Cache", "49a76fc", ("none", "dkv", "dkv_greedy")),
}


@dataclass(frozen=True)
class Time:
    """Seconds of one decode by the clock, and by the processor: other jobs lengthen the former only."""

    seconds: float
    processor: float


def timed(run: Callable[[], Any]) -> tuple[Any, Time]:
    began, used = time.perf_counter(), time.process_time()
    out = run()
    return out, Time(time.perf_counter() - began, time.process_time() - used)


class Worker:
    """A checkout in a process of its own. Raises UserError when it cannot decode."""

    def __init__(self, option: str, folder: Path, python: str, job: dict[str, Any]) -> None:
        self.known, self.errors = REPOSITORIES[option], tempfile.TemporaryFile("w+")  # noqa: SIM115  closed by ``close``
        self.place, self.commit = f"--{option}={folder} ({self.known.name})", commit_of(folder)
        script = Path(__file__).with_name("peer_worker.py")
        try:
            self.process = subprocess.Popen(
                [python, "-u", str(script), option, str(folder)],
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
            )
        except OSError as error:
            raise UserError(f"--python={python} cannot be run ({error}). Name a Python interpreter.") from error
        answer = self.ask(job)
        if "missing" in answer:
            self.close()
            raise self.unusable(answer["missing"])
        self.order: list[int] = answer["order"]

    def unusable(self, why: str) -> UserError:
        return UserError(
            f"{self.place} is at commit {self.commit}, and {why}. This benchmark was tried with commit "
            f"{self.known.commit}: check that one out, and name a Python that has its requirements by --python."
        )

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            print(json.dumps(question), file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            status = self.process.wait()
            self.errors.seek(0)
            said = self.errors.read().strip().splitlines() or ["it said nothing"]
            raise self.unusable(f"its process ended with status {status} ({said[-1]})")
        found: dict[str, Any] = json.loads(answer)
        return found

    def decode(self, cache: str) -> tuple[list[int], Time]:
        """The answer's tokens under a cache, and the time of the decode."""
        answer = self.ask({"cache": cache})
        return answer["tokens"], Time(answer["seconds"], answer["processor"])

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()


def commit_of(folder: Path) -> str:
    """The commit of a checkout; ``unknown`` where git does not say."""
    try:
        command = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def interpreters(given: Sequence[str]) -> dict[str, str]:
    """The Python of each repository: ``PATH`` is for all, ``NAME=PATH`` for one. Raises UserError for another NAME."""
    chosen = dict.fromkeys(REPOSITORIES, sys.executable)
    for one in given:
        name, equals, path = one.partition("=")
        if equals and name not in chosen:
            raise UserError(f"--python={one} must be PATH, or NAME=PATH with one of {', '.join(chosen)}.")
        chosen |= {name: path} if equals else dict.fromkeys(chosen, one)
    return chosen
