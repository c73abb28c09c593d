"""Decode with a published repository on request: the worker of ``experiments.bench.peers``, in a process of its own.

``PYTHON peer_worker.py REPOSITORY FOLDER``, under any Python that has what the repository needs, but not this package.
It reads JSON lines and answers each with one. The first is the job: checkpoint, prompts (ids, of one length), answer,
block, mask (its id), threads. Its answer is ``{"order": ...}``, or ``{"missing": ...}`` where the checkout is not what
is expected. Each further line is ``{"cache": NAME}``. Its answer holds the tokens of all answers, and the seconds of
the decode by the clock and of the processor.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

Job = dict[str, Any]
Decode = Callable[[], Any]  # the canvases: prompts and answers, a tensor [B, L]

# Functions of NVlabs/Fast-dLLM, by our caches.
FAST_DLLM = {"none": "generate", "prefix": "generate_with_prefix_cache", "dual": "generate_with_dual_cache"}
DKV_INTERVAL, GREEDY_INTERVAL, GREEDY_WINDOW = 8, 2, 4  # the defaults of our caches dkv and dkv_greedy


class Missing(Exception):
    """What a checkout lacks."""


def found(module: str, name: str, *parameters: str) -> Any:
    """A function or class of the checkout, which must take these parameters (functions only)."""
    try:
        thing = getattr(import_module(module), name)
    except Exception as error:  # a checkout under a Python that does not suit it fails in many ways
        raise Missing(f"{module}.{name} could not be imported ({type(error).__name__}: {error})") from error
    lacking = [one for one in parameters if one not in inspect.signature(thing).parameters]
    if lacking:
        raise Missing(f"{module}.{name} takes no {', '.join(lacking)}")
    return thing


def network(kind: Any, job: Job) -> Any:
    return kind.from_pretrained(job["checkpoint"], torch_dtype=torch.float32).eval()


def settings(job: Job) -> dict[str, Any]:
    """LLaDA's published settings for one token a forward, as two of the repositories take them."""
    answer = job["answer"]
    return {"steps": answer, "gen_length": answer, "block_length": job["block"], "mask_id": job["mask"]}


def fast_dllm(folder: Path, job: Job) -> dict[str, Decode]:
    """NVlabs/Fast-dLLM: three functions, which take one prompt, and return the canvas and the number of forwards."""
    sys.path.insert(0, str(folder / "llada"))
    functions = {cache: found("generate", name, *settings(job)) for cache, name in FAST_DLLM.items()}
    model, prompts = network(found("model.modeling_llada", "LLaDAModelLM"), job), torch.tensor(job["prompts"])

    def decode(function: Any) -> Decode:
        return lambda: torch.cat([function(model, prompt[None], **settings(job))[0] for prompt in prompts])

    return {cache: decode(function) for cache, function in functions.items()}


def d2cache(folder: Path, job: Job) -> dict[str, Decode]:
    """Kamichanw/d2Cache: one function, with a class for the cache; it records the decode."""
    os.environ["MASK_TOKEN_ID"] = str(job["mask"])
    sys.path.insert(0, str(folder))
    generate = found("src.generation", "generate", "strategy")
    # Frequencies of LLaDA's words, which a rule that is not used here reads, and a smaller vocabulary cannot hold.
    import_module("src.generation.utils").get_token_freq = lambda *_: None  # type: ignore[attr-defined]
    cache = found("src.cache", "PrefixCache", "use_dual")
    model = network(found("src.models.llada.modeling_llada", "LLaDAModelLM"), job)
    prompts, options = torch.tensor(job["prompts"]), {"strategy": "vanilla", "num_transfer_tokens": 1}
    lengths = {"gen_length": job["answer"], "block_length": job["block"], "mask_token_id": job["mask"]}

    def decode(cache_class: Any) -> Decode:
        def run() -> Any:
            frame = generate(model, prompts, cache_cls=cache_class, **options, **lengths)[-1]
            return torch.cat([frame.prompts, frame.generated_tokens], -1).view(len(prompts), -1)

        return run

    kinds = {
        "none": None,
        "prefix": lambda config: cache(config, use_dual=False),
        "dual": lambda config: cache(config, use_dual=True),
    }
    return {name: decode(kind) for name, kind in kinds.items()}


def dkv_cache(folder: Path, job: Job) -> dict[str, Decode]:
    """horseee/dKV-Cache: a function and a model for each of its two caches. Greedy commits in a random order."""
    sys.path.insert(0, str(folder))
    prompts, variants = torch.tensor(job["prompts"]), dict[str, Any]()
    for name in ("decode", "greedy"):
        function = found(f"generation_utils.llada_dkv_cache_{name}", "generate", *settings(job), "cache_reloading_step")
        variants[name] = function, network(found(f"models.modeling_llada_dkv_cache_{name}", "LLaDAModelLM"), job)

    def decode(name: str, **options: Any) -> Decode:
        function, model = variants[name]

        def run() -> Any:
            torch.manual_seed(0)  # the order that ``drawn_order`` reports
            return function(model, None, prompts, **settings(job), **options)

        return run

    greedy = {"cache_reloading_step": GREEDY_INTERVAL, "window_size": GREEDY_WINDOW, "remasking": "random"}
    return {
        "none": decode("decode", enable_cache=False),
        "dkv": decode("decode", enable_cache=True, cache_reloading_step=DKV_INTERVAL),
        "dkv_greedy": decode("greedy", enable_cache=True, **greedy),
    }


REPOSITORIES = {"fast-dllm": fast_dllm, "d2cache": d2cache, "dkv-cache": dkv_cache}


def drawn_order(job: Job) -> list[int]:
    """The order of the answer's positions in which dKV-Cache-Greedy commits one prompt's after
    ``torch.manual_seed(0)``: in every block it draws one number for each column of the canvas."""
    torch.manual_seed(0)
    prompt, answer, block = len(job["prompts"][0]), job["answer"], job["block"]
    order: list[int] = []
    for begin in range(0, answer, block):
        drawn = torch.rand(1, prompt + answer)[0, prompt + begin : prompt + begin + block]
        order += (begin + drawn.argsort(descending=True)).tolist()
    return order


def timed(decode: Decode, answer: int) -> dict[str, Any]:
    began, used = time.perf_counter(), time.process_time()
    with torch.no_grad():
        canvases = decode()
    seconds, processor = time.perf_counter() - began, time.process_time() - used
    return {"tokens": canvases[:, -answer:].flatten().tolist(), "seconds": seconds, "processor": processor}


def main() -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a checkout prints goes to the error stream

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    repository, folder = sys.argv[1:]
    job = json.loads(sys.stdin.readline())
    torch.set_num_threads(job["threads"])
    try:
        decodes = REPOSITORIES[repository](Path(folder).resolve(), job)
    except Missing as error:
        say({"missing": str(error)})
        return 0
    say({"order": drawn_order(job)})
    for line in sys.stdin:
        say(timed(decodes[json.loads(line)["cache"]], job["answer"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
