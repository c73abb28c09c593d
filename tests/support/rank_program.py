"""Run by ``tests/loop/test_rank_program.py`` in each of several processes: decodes on gloo beside those of one process.

python -m tests.support.rank_program RANK SIZE PORT CASES    # CASES: names, joined by commas; a line of JSON for each
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist

from dllm import Decoder, Model, load, part
from dllm.parts import Ranks, RecordedTurns, Sampling, results
from tests.support.harness import Combination, model, parts_of, requests
from tests.support.recording import FakeGraph

PROMPTS = ('Sort the list:\n["Kai", "Emma", "Ada"]', "Latin square:\nA,B,C,D", 'Copy the list:\n["Hugo", "Ada"]')
MINI: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "temperature": ("static", "dual", {"temperature": 0.8}),
    "top_p": ("static", "none", {"temperature": 1.0, "top_p": 0.9}),
    "top_k": ("static", "none", {"temperature": 1.0, "top_k": 7}),
    "guidance": ("confidence", "dual", {"guidance": 0.5}),
    "joining": ("localleap", "dual", {"batch_size": 2}),
    "bans": ("confidence", "none", {"forbid_eos": True}),
    "candidates": ("freedave", "dual", {}),
    "lopa": ("lopa", "dual", {}),
    "credit": ("credit", "dual", {}),
    "regex": ("confidence", "dual", {"constraint": part("constraint", "regex", pattern="[a-z]{3,9}( [a-z]{3,9}){2}")}),
    "static": ("static", "elastic", {"runtime": "static", "batch_size": 2}),
}
CACHES = ("prefix", "dual", "dkv", "elastic", "d2cache", "dllm_cache", "flash_dllm", "window", "entropy", "delayed")
CASES = [*MINI, *(f"cache-{name}" for name in CACHES), "recorded-dual", "recorded-d2cache", "gemma", "float32", "bytes"]


def decoded(whole: Model, name: str) -> list[Any]:
    """What a decode gives of each prompt: canvas, turns, forwards, costs."""
    sampler, kv, more = MINI[name]
    more = dict(more)
    keys = ("temperature", "top_p", "top_k", "guidance", "forbid_eos")
    sampling = Sampling(**{key: more.pop(key) for key in keys if key in more})
    blocks = part("blocks", "fixed", block_length=16)
    decoder = Decoder(whole, sampler=sampler, cache=kv, blocks=blocks, gen_length=32, sampling=sampling, **more)
    return [(one.canvas, one.turns, one.nfe, one.query_tokens, one.flops, one.bytes) for one in decoder(PROMPTS)]


def recorded(network: Any, kv: str) -> tuple[list[Any], list[str]]:
    """Two decodes whose turns are recorded, and what was recorded and replayed, in order."""
    combination, log = Combination("static", "fixed", kv), list[str]()
    take = RecordedTurns(network, lambda: FakeGraph(log))
    for _ in range(2):
        found = results(network, parts_of(combination), requests(), Sampling(), 0, take=take)
    return [(one.canvas, one.turns, one.nfe, one.query_tokens) for one in found], log


def case(name: str, one: Model, own: Model) -> dict[str, Any]:
    """Whether ranks agree with one process and each other, and what they exchanged."""
    ranks, kind = own.ranks, name.partition("-")[2]
    ranks.account.clear()
    log: list[str] = []
    if name.startswith("recorded"):
        alone, _ = recorded(model("tiny-llada"), kind)
        found, log = recorded(model("tiny-llada", ranks=ranks), kind)
    elif name.startswith("cache"):
        combination = Combination("confidence", {"window": "whole", "flash_dllm": "whole"}.get(kind, "fixed"), kind)
        networks = model("tiny-llada"), model("tiny-llada", ranks=ranks)
        alone, found = (
            [
                (row.canvas, row.turns, row.nfe, row.query_tokens, row.flops)
                for row in results(each, parts_of(combination), requests(), Sampling())
            ]
            for each in networks
        )
    elif name == "gemma":
        noise = parts_of(Combination("renoise", "fixed", "finished", model="dg_dev"))
        networks = model("dg_dev"), model("dg_dev", ranks=ranks)
        alone, found = (
            [
                (row.canvas, row.turns, row.nfe, row.query_tokens, row.flops)
                for row in results(each, noise, requests(), noise.sampling)
            ]
            for each in networks
        )
    elif name == "float32":
        alone, found = (decoded(load("mini-llada", tp=size), "joining") for size in (1, ranks.size))
    elif name == "bytes":
        alone = found = decoded(own, "bans")
    else:
        alone, found = decoded(one, name), decoded(own, name)
    account = ranks.account
    return {
        "case": name,
        "equal": found == alone,
        "log": log,
        "sums": account.sums,
        "summed": account.summed,
        "gathers": account.gathers,
        "gathered": account.gathered,
        "forwards": sum(row[2] for row in found),
        "agree": agree(ranks, str((found, log))),  # last: it gathers
    }


def agree(ranks: Ranks, said: str) -> bool:
    """Whether all ranks say the same."""
    own = torch.tensor(list(sha256(said.encode()).digest()))
    return bool((ranks.gather(own) == own).all())


def main(rank: int, size: int, port: int, names: list[str], tell: Callable[[str], None] = print) -> None:
    torch.set_num_threads(1)
    where = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", where, timedelta(seconds=120), size, rank)
    one, own = load("mini-llada", dtype="float64"), load("mini-llada", dtype="float64", tp=size)
    for name in names:
        tell(json.dumps(case(name, one, own)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), names=sys.argv[4].split(","))
