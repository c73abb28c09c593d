"""Decisions of a server alone and beside decodes: ``python -m experiments.bench.decisions``.

It starts ``dllm serve`` with mini-llada in a process of its own. 100 requests ask 10 questions each about their prompt,
five records: the town and the age of every record, among 16. They come one at a time, then from 8 clients at once, then
so beside 16 clients who decode records all the time; last those clients decode alone. Prints decisions a second, the
latency of a request and of a decode, and how far any probability is from the one of the first pass. Exit code 1: a
choice differs, or a probability by more than 3e-6.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from dllm.record.measures import quantile
from dllm.tasks.mini import tasks as mini
from dllm.tasks.mini.lexicon import TOWNS
from experiments.bench.serve import CHAT, started
from experiments.support import markdown
from experiments.support.scripts import counted, refusing

RECORDS, ALTERNATIVES, CLIENTS, DECODES = 5, 16, 8, 16
HEADS = ("situation", "decisions a second", "request p50, s", "p95", "decode p50, s", "p95", "furthest probability")
ALLOWED = 3e-6  # between a batch and another

Answers = list[list[dict[str, Any]]]


@dataclass
class Pass:
    """What became of one situation."""

    answers: Answers = field(default_factory=list)  # of every request
    requests: list[float] = field(default_factory=list)  # latencies, seconds
    decodes: list[float] = field(default_factory=list)  # the same of decodes
    seconds: float = 0.0  # that all requests took

    def line(self, situation: str, first: Pass) -> str:
        rate = f"{sum(map(len, self.answers)) / self.seconds:.0f}" if self.answers else "-"
        middle = [
            f"{quantile(times, q):.2f}" if times else "-"
            for times in (self.requests, self.decodes)
            for q in (0.5, 0.95)
        ]
        apart = "-" if self is first or not self.answers else f"{furthest(self.answers, first.answers):.0e}"
        return markdown.line((situation, rate, *middle, apart))


def bodies(count: int, seed: int) -> list[dict[str, Any]]:
    """The requests."""
    samples = mini.generate("records", seed, count, "test", (RECORDS, RECORDS))
    return [body_of(sample.messages, json.loads(sample.answer), random.Random(seed)) for sample in samples]


def body_of(messages: list[dict[str, str]], rows: list[dict[str, Any]], rng: random.Random) -> dict[str, Any]:
    """A request: of every record its town and its age, with what comes before it in the template."""
    questions, templates = [], dict[str, str]()
    for number, row in enumerate(rows):
        for key in ("town", "age"):
            before = json.dumps([*rows[:number], {k: v for k, v in row.items() if k != key}])
            ages = rng.sample([n for n in range(2, 100) if n != row["age"]], ALTERNATIVES - 1)
            values = list(TOWNS) if key == "town" else [str(n) for n in sorted([*ages, row["age"]])]
            name = f"{key} {number}"
            quote = '"' if key == "town" else ""
            templates[name] = f'{before[:-2]}, "{key}": {quote}{{slot}}{quote}'
            questions.append({"type": "choice", "name": name, "choices": [{"value": value} for value in values]})
    return {"input": messages, "questions": questions, "diffusion": {"template": templates}}


def furthest(found: Answers, first: Answers) -> float:
    """The largest distance of a probability to that of the first pass; inf where a choice differs."""
    pairs = [(a, b) for one, other in zip(found, first, strict=True) for a, b in zip(one, other, strict=True)]
    if any(a["choice"] != b["choice"] for a, b in pairs):
        return float("inf")
    return max(
        abs(x["probability"] - y["probability"])
        for a, b in pairs
        for x, y in zip(a["probabilities"], b["probabilities"], strict=True)
    )


async def ask(client: httpx.AsyncClient, asked: Sequence[dict[str, Any]], clients: int, found: Pass) -> None:
    """All requests, from that many clients."""
    found.answers = [[] for _ in asked]
    left = iter(range(len(asked)))

    async def one() -> None:
        for number in left:
            began = time.perf_counter()
            reply = await client.post("/v1/decisions", json=asked[number])
            found.requests.append(time.perf_counter() - began)
            found.answers[number] = reply.raise_for_status().json()["answers"]

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(clients)))
    found.seconds = time.perf_counter() - began


async def decode(client: httpx.AsyncClient, seed: int, until: asyncio.Event | None, found: Pass) -> None:
    """One client who decodes records, until told to stop (None: six times)."""
    for number, sample in enumerate(mini.generate("records", seed, 200, "test", (3, RECORDS))):
        if until.is_set() if until is not None else number == 6:
            return
        began = time.perf_counter()
        reply = await client.post(CHAT, json={"messages": sample.messages, "max_tokens": 128})
        reply.raise_for_status()
        found.decodes.append(time.perf_counter() - began)


async def situations(url: str, asked: Sequence[dict[str, Any]]) -> list[tuple[str, Pass]]:
    """All four, in turn."""
    first, together, beside, alone = Pass(), Pass(), Pass(), Pass()
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=None)) as client:
        await ask(client, asked[:5], 1, Pass())  # what is made once is made
        await ask(client, asked, 1, first)
        await ask(client, asked, CLIENTS, together)
        over = asyncio.Event()
        decodes = [asyncio.create_task(decode(client, 1000 + number, over, beside)) for number in range(DECODES)]
        await asyncio.sleep(2)  # until they run
        await ask(client, asked, CLIENTS, beside)
        over.set()
        await asyncio.gather(*decodes)
        await asyncio.gather(*(decode(client, 2000 + number, None, alone) for number in range(DECODES)))
    crowd = f"{CLIENTS} requests at a time"
    return [
        ("one request at a time", first),
        (crowd, together),
        (f"{crowd}, {DECODES} decodes beside", beside),
        (f"{DECODES} decodes", alone),
    ]


@refusing
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=counted, default=100, help="requests of 10 decisions")
    asked = bodies(parser.parse_args(arguments).count, 1)
    with started(f"task.max_rows={DECODES}") as (url, _):
        found = asyncio.run(situations(url, asked))
    print(markdown.head(HEADS))
    first = found[0][1]
    for situation, one in found:
        print(one.line(situation, first))
    apart = [furthest(one.answers, first.answers) for _, one in found[1:3]]
    return int(max(apart) > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
