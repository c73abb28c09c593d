"""Time published code and ours in turn: ``python -m experiments.bench.peers --fast-dllm DIR``.

--fast-dllm, --d2cache and --dkv-cache name your own checkouts of NVlabs/Fast-dLLM, Kamichanw/d2Cache and
horseee/dKV-Cache; any of them may be missing. Each runs in a process of its own (``peer_worker``), under
the Python that ``--python`` names, which must have what the repository needs. The checkpoint is random, in the
published LLaDA format, and is in a temporary folder. One token is committed a forward, in float32. In each round all
decode once, one after the other, so that a busy machine slows all alike. Medians are printed: of the ratio by the clock
with its least and largest, and of that by processor time, which other jobs change least.

``--batch`` decodes several prompts at once, where the published code can: Fast-dLLM takes them one by one.

Beside them run the bare products: what the linear layers alone take for the same rows. Their share of our time says
what is left to gain.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import torch
from torch import nn

from dllm import Decoder, UserError, load, part
from dllm.contract import Need
from dllm.contract.readouts import Statistic
from dllm.kernels.packed import PackedLinear
from dllm.models.bundle import Model
from dllm.models.config import ModelConfig
from dllm.models.network.transformer import Transformer
from dllm.models.weights.shipped import CHECKPOINTS
from dllm.models.weights.weights import save_model
from dllm.parts.eos.base import EndOfText
from dllm.parts.eos.none import FullLength
from experiments.bench.peer_commands import REPOSITORIES, Time, Worker, interpreters, timed
from experiments.bench.step import random_model

ROUNDING = 1e-5  # what float32 moves log-probabilities by
HEAD = "cache       ours s  products   closest   repository theirs s   ratio                 CPU s  tokens  load"


def write_checkpoint(folder: Path, options: argparse.Namespace) -> None:
    """A random checkpoint in the published LLaDA format."""
    published = json.loads((CHECKPOINTS / "mini-llada" / "config.json").read_text())
    heads, vocabulary = options.width // 64 or 1, options.vocabulary
    published |= {
        "d_model": options.width,
        "n_layers": options.layers,
        "n_heads": heads,
        "n_kv_heads": heads,
        "mlp_hidden_size": options.mlp,
        "vocab_size": vocabulary,
        "embedding_size": vocabulary,
        "rope_theta": 5e5,
        "max_sequence_length": 4096,
        "mask_token_id": vocabulary - 128,
        "eos_token_id": vocabulary - 383,
        "pad_token_id": vocabulary - 383,
    }
    save_model(random_model(ModelConfig.from_published(published), torch.device("cpu"), torch.float32), folder)


class Watched(FullLength):
    """Keep every token, and have the gap between each token and its runner-up computed."""

    def needs(self) -> tuple[Need, ...]:
        return (Need(reads=Statistic.of("gap")),)


def decoder_for(
    model: Model, cache: str, order: Sequence[int] | None, options: argparse.Namespace, eos: EndOfText
) -> Decoder:
    """Ours, with the rule of the published code. order: in which dKV-Cache-Greedy commits."""
    by_order = part("sampler", "order", positions=order or "random")
    sampler = by_order if cache == "dkv_greedy" else part("sampler", "static")
    blocks = part("blocks", "fixed", block_length=options.block)
    given = {"gen_length": options.answer, "batch_size": options.batch, "suppress_mask": False}
    return Decoder(model, sampler, blocks, cache, eos, **given)


def followed(decoder: Decoder, prompts: list[list[int]]) -> tuple[list[tuple[int, int]], float]:
    """The rows of every turn, in a layer and in the head, and how near two choices ever came (nats): the committed
    token and the runner-up, or the committed position and the next of its row (by confidence)."""
    rows, least = list[tuple[int, int]](), float("inf")
    requests = [decoder.sampler.prepare(decoder.request(prompt)) for prompt in prompts]
    for turn in decoder.runner.stream(decoder.runner.sized(requests, len(requests)), decoder.batch_size):
        rows.append((int(turn.cost.computed.amax(-1).sum()), int(turn.cost.scored.sum())))
        scores, commit = turn.view.scores, turn.step.commit
        least = min(least, float(scores.statistic("gap")[commit].min()))
        if decoder.sampler.traits.by_confidence:
            chosen = scores.confidence.where(commit, float("inf")).amin(1)
            next_best = scores.confidence.where(turn.view.open & ~commit, 0.0).amax(1)
            least = min(least, float((chosen / next_best)[commit.any(1)].log().min()))
    return rows, least


def products(model: Transformer, rows: Sequence[tuple[int, int]]) -> Callable[[], None]:
    """Runs the linear layers alone: for each turn all those of the layers on n rows, and the head on r."""
    inner = [module for module in model.layers.modules() if isinstance(module, nn.Linear | PackedLinear)]
    most = max(max(pair) for pair in rows)
    inputs = {linear.in_features: torch.randn(most, linear.in_features) for linear in (*inner, model.lm_head)}

    @torch.inference_mode()
    def run() -> None:
        for n, scored in rows:
            for linear in inner:
                linear(inputs[linear.in_features][:n])
            model.lm_head(inputs[model.config.width][:scored])

    return run


def compare(
    cache: str, model: Model, workers: dict[str, Worker], prompts: list[list[int]], options: argparse.Namespace
) -> Iterator[str]:
    """Print the lines of one cache. Yields a sentence for each checkout whose tokens differ from ours."""
    order = next((worker.order for worker in workers.values()), None)
    decoder, watched = (decoder_for(model, cache, order, options, eos) for eos in (FullLength(), Watched()))
    rows, closest = followed(watched, prompts)
    bare, times = products(model.transformer, rows), {name: list[Time]() for name in ("ours", "bare", *workers)}
    answers: dict[str, list[int]] = {}
    for _ in range(options.rounds):
        results, ours = timed(lambda: decoder(prompts))
        found = {"ours": ([token for one in results for token in one.canvas], ours), "bare": ([], timed(bare)[1])}
        found |= {name: worker.decode(cache) for name, worker in workers.items()}
        for name, (tokens, one) in found.items():
            answers[name] = list(tokens)
            times[name].append(one)
    for name in workers or ("",):
        same = answers.get(name, answers["ours"]) == answers["ours"]
        print(line(cache, name, times, closest, same), flush=True)
        if not same:
            yield differs(workers[name], cache, answers[name], answers["ours"], closest)


def line(cache: str, name: str, times: dict[str, list[Time]], closest: float, same: bool) -> str:
    ours, tokens = times["ours"], "same  " if same else "DIFFER"
    share = median(ratios(times["bare"], times["ours"], "processor"))
    out = f"{cache:10} {median(one.seconds for one in ours):7.2f}   {100 * share:4.0f} %   {closest:8.0e}"
    if name:
        clock, used = (ratios(times[name], ours, kind) for kind in ("seconds", "processor"))
        out += (
            f"   {name:10} {median(one.seconds for one in times[name]):8.2f}  {median(clock):5.2f}x "
            f"({min(clock):4.2f} to {max(clock):4.2f})  {median(used):5.2f}x  {tokens}"
        )
    return f"{out}  {os.getloadavg()[0]:5.1f}"


def ratios(above: Sequence[Time], below: Sequence[Time], kind: str) -> list[float]:
    """The ratio of the times of each round, of a field of ``Time``."""
    return [getattr(one, kind) / getattr(other, kind) for one, other in zip(above, below, strict=True)]


def differs(worker: Worker, cache: str, theirs: Sequence[int], ours: Sequence[int], closest: float) -> str:
    """A sentence that names a checkout whose tokens differ from ours."""
    at = next(number for number, pair in enumerate(zip(theirs, ours, strict=True)) if len(set(pair)) == 2)
    near = "rounding can explain that" if closest < ROUNDING else "rounding cannot explain that"
    return (
        f"{worker.place} at commit {worker.commit} differs from ours under cache={cache}: position {at} of the answer "
        f"is {theirs[at]}, ours {ours[at]}. The closest choice was {closest:.0e} apart: {near}."
    )


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, known in REPOSITORIES.items():
        parser.add_argument(f"--{name}", type=Path, metavar="DIR", help=f"your checkout of {known.name}")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="[NAME=]PATH",
        help="interpreter of all repositories, or of one",
    )
    parser.add_argument("--caches", nargs="+", help="default: all that the repositories have")
    for name, size in (
        ("width", 384),
        ("layers", 19),
        ("mlp", 1536),
        ("vocabulary", 126_464),
        ("prompt", 128),
        ("answer", 64),
        ("block", 32),
        ("batch", 1),
        ("rounds", 3),
        ("threads", 1),
    ):
        parser.add_argument(f"--{name}", type=int, default=size, help=f"default: {size}")
    return parser.parse_args(arguments)


def checkouts(options: argparse.Namespace) -> dict[str, Path]:
    """The folder of each repository that was named. Raises UserError for one that does not exist."""
    named = {name: vars(options)[name.replace("-", "_")] for name in REPOSITORIES}
    for name, folder in named.items():
        if folder is not None and not folder.is_dir():
            raise UserError(f"--{name}={folder} is not a folder. Clone github.com/{REPOSITORIES[name].name} there.")
    return {name: folder for name, folder in named.items() if folder is not None}


def run(options: argparse.Namespace) -> list[str]:
    """Print the table. Returns the sentences of ``compare``."""
    torch.set_num_threads(options.threads)
    folders, pythons = checkouts(options), interpreters(options.python)
    known = [cache for name in folders for cache in REPOSITORIES[name].caches] or ["none", "prefix", "dual"]
    with ExitStack() as stack:
        checkpoint = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_checkpoint(checkpoint, options)
        model, drawn = load(checkpoint), torch.Generator().manual_seed(0)
        prompts = torch.randint(0, options.vocabulary // 2, (options.batch, options.prompt), generator=drawn).tolist()
        job = {name: vars(options)[name] for name in ("answer", "block", "threads")}
        job |= {"checkpoint": str(checkpoint), "prompts": prompts, "mask": model.ids.mask}
        workers = dict[str, Worker]()
        for name, folder in folders.items():
            workers[name] = Worker(name, folder, pythons[name], job)
            stack.callback(workers[name].close)
        print(
            f"width {options.width}, {options.layers} layers, MLP {options.mlp}, vocabulary {options.vocabulary}, "
            f"float32, prompt {options.prompt}, answer {options.answer}, blocks of {options.block}, "
            f"batch {options.batch}, threads {options.threads}, rounds {options.rounds}"
        )
        print(*(f"{name} {worker.commit}" for name, worker in workers.items()), sep=", ")
        print(HEAD, flush=True)
        differing = list[str]()
        if options.batch > 1:  # each row of theirs commits in an order of its own
            known = [cache for cache in known if cache != "dkv_greedy"]
        for cache in dict.fromkeys(options.caches or known):
            having = {name: worker for name, worker in workers.items() if cache in REPOSITORIES[name].caches}
            differing += compare(cache, model, having, prompts, options)
        return differing


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    try:
        differing = run(options)
    except UserError as error:
        differing = [str(error)]
    for sentence in differing:
        print(sentence, file=sys.stderr)
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
