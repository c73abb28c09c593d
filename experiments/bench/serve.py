"""A server under load: ``python -m experiments.bench.serve [--soak 20] [--streams 1 8 32]``.

It starts ``dllm serve`` with the small model in a process of its own. Prints what became of many connections at once,
and how long /health took meanwhile. A soak then asks at random times, at 0.8 of what the server answered in the crowd,
and prints the server's memory, threads and open files every minute. Exit code 1: a reply was lost or failed, or memory
grew by more than 2 % after the second minute.

``--streams`` asks nothing of the crowd. It prints the requests that the server answers a second of its processor's
time, to so many clients at once, whole and as streams, beside a batch of as many rows that ``Decoder`` decodes. Server
and batches have the last core, clients the first (Linux). Exit code 1: an answer differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from dllm import Decoder, load

CHAT = "/v1/chat/completions"
CONNECTIONS, LOAD = 500, 0.8  # of the crowd; of the soak, as a share of the crowd's throughput
MAX_GROWTH = 0.02  # of memory between minute 2 and the end
NAMES = ("Kai", "Emma", "Hugo", "Nell", "Ada", "Otto")
ANSWERS, LENGTH, ROUNDS = 64, 64, 3  # of ``--streams``: requests of a round, masks of each answer, rounds


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


def streams(url: str, process: int, counts: Sequence[int]) -> bool:
    """Print requests a CPU second by clients at once. Returns whether all answers are those of ``Decoder``."""
    dice = random.Random(2)
    prompts = [drawn(dice)["messages"] for _ in range(ANSWERS)]
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    offline = multiprocessing.get_context("spawn").Process(target=decode, args=(theirs, prompts), daemon=True)
    offline.start()
    cores = sorted(os.sched_getaffinity(0))
    for one, core in ((process, cores[-1]), (offline.pid, cores[-1]), (os.getpid(), cores[0])):
        for thread in Path(f"/proc/{one}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {core})
    httpx.get(f"{url}/v1/parts", timeout=300)  # composes what the server offers, which it else does when it is idle
    same, least = True, dict[tuple[int, str], float]()
    for _ in range(ROUNDS):
        for count in counts:
            ours.send(count)
            seconds, texts = ours.recv()
            found = {"offline": seconds}
            for way in ("whole", "stream"):
                began = cpu_seconds(process)
                said = asyncio.run(answers(url, prompts, count, way == "stream"))
                found[way] = cpu_seconds(process) - began
                same &= said == texts
            for way, seconds in found.items():
                least[count, way] = min(seconds, least.get((count, way), seconds))
    print("| clients | offline | whole | share | stream | share |\n|---:|---:|---:|---:|---:|---:|")
    for count in counts:
        alone, *others = (ANSWERS / least[count, way] for way in ("offline", "whole", "stream"))
        cells = (f"{rate:.1f} | {rate / alone:.2f}" for rate in others)
        print(f"| {count} | {alone:.1f} | {' | '.join(cells)} |")
    print(f"same answers: {same}")
    ours.send(0)
    return same


def decode(asked: Any, prompts: Sequence[Any]) -> None:
    """In a process of its own: CPU seconds and texts of all prompts in batches of the size that is asked for, until
    that is 0."""
    model, made = load("mini-llada"), dict[int, Callable[[Sequence[Any]], Any]]()
    while size := asked.recv():
        if size not in made:
            made[size] = Decoder(model, sampler="confidence", cache="dual", gen_length=LENGTH, batch_size=size)
            made[size](prompts)
        began = time.process_time()
        texts = [one.text for one in made[size](prompts)]
        asked.send((time.process_time() - began, texts))


async def answers(url: str, prompts: Sequence[Any], count: int, stream: bool) -> list[str]:
    """The texts that ``count`` clients get, each of which asks again as soon as it is answered."""
    todo, texts = iter(enumerate(prompts)), [""] * len(prompts)

    async def ask(client: httpx.AsyncClient) -> None:
        for at, messages in todo:
            parts = {"sampler": "confidence", "cache": "dual"}
            body = {"messages": messages, "max_tokens": LENGTH, "diffusion": parts, "stream": stream}
            reply = (await client.post(CHAT, json=body)).raise_for_status()
            if not stream:
                texts[at] = reply.json()["choices"][0]["message"]["content"]
                continue
            events = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
            texts[at] = "".join(json.loads(one)["choices"][0]["delta"].get("content", "") for one in events)

    async with httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits(max_connections=None)) as client:
        await asyncio.gather(*(ask(client) for _ in range(count)))
    return texts


def cpu_seconds(process: int) -> float:
    """Processor time of another process, to the nanosecond (Linux: clock_getcpuclockid)."""
    return time.clock_gettime(~process << 3 | 2)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--soak", type=float, default=0.0, help="minutes")
    parser.add_argument("settings", nargs="*", help="of the server, such as task.max_rows=32")
    parser.add_argument("--streams", type=int, nargs="+", default=(), help="clients at once")
    given = parser.parse_args(arguments)
    with started(*given.settings) as (url, process):
        if given.streams:
            return 0 if streams(url, process, given.streams) else 1
        rate, sound = asyncio.run(crowd(url, CONNECTIONS))
        if given.soak:
            sound &= asyncio.run(soak(url, process, given.soak, LOAD * rate))
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
