"""A server under load: ``python -m experiments.bench.serve [--connections 500] [--soak 20]``.

It starts ``dllm serve`` with the small model in a process of its own. Prints what became of many connections at once,
and how long /health took meanwhile. A soak then asks at random times, at 0.8 of what the server answered in the crowd,
and prints the server's memory, threads and open files every minute. Exit code 1: a reply was lost or failed, or memory
grew by more than 2 % after the second minute.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

CHAT = "/v1/chat/completions"
MAX_GROWTH = 0.02  # of memory between minute 2 and the end
NAMES = ("Kai", "Emma", "Hugo", "Nell", "Ada", "Otto")


@contextmanager
def started(*settings: str) -> Iterator[tuple[str, int]]:
    """Address and process id of a server on a free port. settings: of its command line."""
    command = [sys.executable, str(Path(__file__).parents[2] / "run.py"), "serve", "task.port=0", *settings]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert found, "the server did not start"
        yield found[0], process.pid
        process.send_signal(signal.SIGTERM)


def drawn(dice: random.Random) -> dict[str, object]:
    """A request: a list task of the small model."""
    names = ", ".join(f'"{name}"' for name in dice.sample(NAMES, dice.randint(3, 5)))
    ask = dice.choice(["Copy", "Sort", "Reverse", "Shuffle"])
    diffusion = {"sampler": dice.choice(["confidence", "static"]), "cache": dice.choice(["none", "dual"])}
    messages = [{"role": "user", "content": f"{ask} the list:\n[{names}]"}]
    return {"messages": messages, "diffusion": diffusion, "stream": dice.random() < 0.5}


async def crowd(url: str, count: int) -> tuple[float, bool]:
    """``count`` requests at once, each on a connection of its own. Returns replies a second, and whether each request
    was answered or told to come again."""
    dice, limits = random.Random(0), httpx.Limits(max_connections=None)
    watch = multiprocessing.get_context("spawn")
    done, slowest = watch.Event(), watch.Value("d", 0.0)
    watching = watch.Process(target=look, args=(url, done, slowest))
    watching.start()
    while not slowest.value:
        await asyncio.sleep(0.1)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        began = time.perf_counter()
        asking = [client.post(CHAT, json=drawn(dice)) for _ in range(count)]
        found = Counter(reply.status_code for reply in await asyncio.gather(*asking))
        spent = time.perf_counter() - began
    done.set()
    watching.join()
    told = ", ".join(f"{found[status]} times {status}" for status in sorted(found))
    print(f"{count} connections at once: {told} in {spent:.1f} s; /health took at most {slowest.value:.2f} s")
    return found[200] / spent, set(found) <= {200, 429}


def look(url: str, done: Any, slowest: Any) -> None:
    """In a process of its own, which nothing keeps busy: the longest time that /health took, until ``done``."""
    with httpx.Client(base_url=url, timeout=300) as client:
        while not done.is_set():
            began = time.perf_counter()
            client.get("/health")
            slowest.value = max(slowest.value, time.perf_counter() - began)
            time.sleep(0.05)


async def soak(url: str, process: int, minutes: float, rate: float) -> bool:
    """Requests at random times, ``rate`` a second; prints what the server holds every minute. Returns whether all were
    answered and memory stayed as it was."""
    dice, began, statuses, open_ = random.Random(1), time.monotonic(), Counter[int](), set[asyncio.Task[None]]()
    sizes: list[float] = []

    async def ask(client: httpx.AsyncClient) -> None:
        statuses[(await client.post(CHAT, json=drawn(dice))).status_code] += 1

    print(f"{rate:.2f} requests a second\nminute  resident MiB  threads  files  replies")
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits(max_connections=None)) as client:
        minute = 0
        while time.monotonic() - began < 60 * minutes:
            task = asyncio.create_task(ask(client))
            open_.add(task)
            task.add_done_callback(open_.discard)
            await asyncio.sleep(dice.expovariate(rate))
            if time.monotonic() - began >= 60 * (minute + 1):
                minute += 1
                sizes.append(held(process)[0])
                print(minute, *held(process), dict(statuses), sep="  ", flush=True)
        await asyncio.gather(*open_)
    sizes.append(held(process)[0])
    grown = sizes[-1] / sizes[min(1, len(sizes) - 1)] - 1
    print(f"at the end {sizes[-1]} MiB, {grown:+.1%} since minute 2; {dict(statuses)}")
    return set(statuses) == {200} and grown <= MAX_GROWTH


def held(process: int) -> tuple[float, int, int]:
    """Resident memory in MiB, threads, and open files of a process (Linux)."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    threads, files = (len(list(Path(f"/proc/{process}/{name}").iterdir())) for name in ("task", "fd"))
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1), threads, files


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=500)
    parser.add_argument("--soak", type=float, default=0.0, help="minutes")
    parser.add_argument("--load", type=float, default=0.8, help="of the soak, as a share of the crowd's throughput")
    given = parser.parse_args(arguments)
    with started() as (url, process):
        rate, sound = asyncio.run(crowd(url, given.connections))
        if given.soak:
            sound &= asyncio.run(soak(url, process, given.soak, given.load * rate))
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
