"""Replay recorded decodes of published implementations: ``python tests/replay.py FILE... [--models DIR]``.

This file holds the whole mapping from each reference's parameter names to the parts of this project. Every field of a
case is compared, and a file's sampler_cases. The exit code is 1, and stderr says why, where a case is not equal, and
also where its method, its cache or one of its fields is unknown here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dllm.blocks.adablock import AdaBlock
from dllm.blocks.base import Blocks
from dllm.blocks.fixed import Fixed
from dllm.blocks.whole import Whole
from dllm.cache.base import Cache
from dllm.cache.dkv import DKV
from dllm.cache.dkv_greedy import DKVGreedy
from dllm.cache.dkv_prefill import DKVPrefill
from dllm.cache.dual import Dual
from dllm.cache.elastic import Elastic
from dllm.cache.none import NoCache
from dllm.cache.prefix import Prefix
from dllm.cache.window import Window
from dllm.canvas import Canvas, Request
from dllm.common.ranking import top
from dllm.common.rowwise import Owner
from dllm.contract import BlockState, Scores, State, Step, Turn, View
from dllm.denoise import denoise
from dllm.eos.base import EndOfText
from dllm.eos.cut_canvas import CutCanvas
from dllm.eos.cut_open import CutOpen
from dllm.eos.eotp import EoTP
from dllm.eos.fill_after_block import FillAfterBlock
from dllm.eos.keep import Keep
from dllm.forward import Forward
from dllm.models.ids import Ids
from dllm.models.transformer import Transformer
from dllm.models.weights import load_model
from dllm.samplers.bacd import BACD
from dllm.samplers.base import Sampler
from dllm.samplers.confidence import Confidence
from dllm.samplers.credit import Credit
from dllm.samplers.dparallel import DParallel
from dllm.samplers.dream import Dream
from dllm.samplers.ete import ETE
from dllm.samplers.factor import Factor
from dllm.samplers.freedave import FreeDave
from dllm.samplers.learn2pd import WEIGHTS, Learn2PD
from dllm.samplers.localleap import LocalLeap
from dllm.samplers.order import Order
from dllm.samplers.prophet import Prophet, given
from dllm.samplers.static import Static
from dllm.setting import Sampling

Case = Mapping[str, Any]
MODELS = Path(__file__).parent / "data" / "models"


@dataclass(frozen=True)
class Parts:
    """What a case decodes with, in this project's words."""

    sampler: Sampler
    blocks: Blocks = field(default_factory=Whole)
    cache: Cache = field(default_factory=NoCache)
    eos: EndOfText = field(default_factory=Keep)
    sampling: Sampling = field(default_factory=lambda: Sampling(suppress_mask=False))
    given: Mapping[int, int] = field(default_factory=dict)
    turns: int | None = None  # at most


def llada_generate(params: Case) -> Parts:
    """static: LLaDA's generate; threshold and factor: Fast-dLLM's, without cache."""
    blocks = Fixed(params["block_length"])
    if params["sampler"] == "static":
        return Parts(Static(params["steps"]), Fixed(params["block_length"], min_forwards=steps_of_a_block(params)))
    if params["sampler"] == "threshold":
        return Parts(Confidence(params["threshold"]), blocks)
    return Parts(Factor(params["factor"]), blocks)


def steps_of_a_block(params: Case) -> int:
    """LLaDA's loop always runs this many forwards on a block."""
    return int(params["steps"] // (params["gen_length"] // params["block_length"]))


def dream_generate(params: Case) -> Parts:
    """Dream's diffusion_generate: the whole answer, always all steps."""
    sampler = Dream(params["alg"], params["steps"], params["eps"], params["alg_temp"] or 0.0)
    sampling = Sampling(top_p=params["top_p"], top_k=params["top_k"], suppress_mask=False, tempered=True)
    return Parts(sampler, Whole(min_forwards=params["steps"]), sampling=sampling)


def localleap(params: Case) -> Parts:
    sampler = LocalLeap(params["threshold"], params["relaxed_threshold"], params["radius"])
    eos = FillAfterBlock("any") if params["early_stop"] else Keep()
    return Parts(sampler, Fixed(params["block_length"]), eos=eos)


def creditdecoding(params: Case) -> Parts:
    """dInfer's names: decay_beta, boost_gamma (the exponent), fusion_alpha."""
    inner = Confidence(params["threshold"])
    sampler = Credit(inner, params["decay_beta"], params["boost_gamma"], params["fusion_alpha"])
    return Parts(sampler, Fixed(params["block_length"]))


def ete(params: Case) -> Parts:
    options = {key: params[key] for key in params if key.startswith(("threshold", "cross", "lookahead", "explore"))}
    return Parts(ETE(**options), Fixed(params["block_length"]))


def dparallel(params: Case) -> Parts:
    return Parts(DParallel(params["threshold"]), Fixed(params["block_length"]))


def bacd(params: Case) -> Parts:
    return Parts(BACD(params["lower"], params["upper"]), Fixed(params["block_length"]))


def prophet(params: Case) -> Parts:
    """The region is relative to the answer; constraints are tokens of the answer given from the start."""
    region = {"region": "none"} if params["answer_start"] is None else {"region": "offset"}
    sampler = Prophet(
        Static(params["steps"]), params["thresholds"], params["breakpoints"], start=params["answer_start"],
        length=params["answer_length"], **region,
    )  # fmt: skip
    given = {int(at): token for at, token in (params["constraints"] or {}).items()}
    return Parts(sampler, Fixed(params["block_length"], min_forwards=steps_of_a_block(params)), given=given)


def learn2pd(params: Case) -> Parts:
    sampler: Sampler = Static(params["steps"])
    if params["filter"] is not None:
        weights = {name: torch.tensor(params["filters"][params["filter"]][name]) for name in WEIGHTS}
        sampler = Learn2PD(weights, params["accept_threshold"], params["steps"])
    eos = EoTP("suffix" if params["cache"] == "none" else "block") if params["eotp"] else Keep()
    return Parts(sampler, Fixed(params["block_length"]), CACHES[params["cache"]](), eos)


def adablock(params: Case) -> Parts:
    blocks = AdaBlock(
        params["block_length"], params["delimiter_ids"], params["delimiter_threshold"], params["window_ratio"]
    )
    return Parts(Confidence(params["threshold"]), blocks, CACHES[params["cache"]]())


def freedave(params: Case) -> Parts:
    threshold, length = params["confidence_threshold"], params["block_length"]
    inner = Static(params["gen_length"]) if threshold is None else Confidence(threshold)
    eos = FillAfterBlock("all") if params["early_exit"] else Keep()
    sampler = FreeDave(inner, params["draft_steps"], reference_branches=threshold is not None)
    blocks = Fixed(length) if threshold is None else Verified(length)
    return Parts(sampler, blocks, CACHES[params["cache"]](), eos)


class Verified(Fixed):
    """With a threshold FreeDave's published loop verifies a draft that fills its block, too, unless one token did.
    For one row."""

    def resize(self, canvas: Canvas, scores: Scores, blocks: BlockState) -> BlockState:
        self.left = int((canvas.undecided & blocks.in_block).sum())
        return blocks

    def advance(self, candidates: Canvas, blocks: BlockState, owner: Owner, stopped: Tensor) -> BlockState:
        stays = self.left > 1 and not bool(stopped.any())
        return blocks if stays else super().advance(candidates, blocks, owner, stopped)


def published(kind: type[Cache]) -> Callable[[], Cache]:
    """The published cached loops of Fast-dLLM, AdaBlock, FreeDave and Learn2PD: the quirks on."""
    return (
        (lambda: Dual(query_left=False, keep_stale_tail=True)) if kind is Dual else (lambda: Prefix(query_left=False))
    )


CACHES: dict[str, Callable[[], Cache]] = {"none": NoCache, "prefix": published(Prefix), "dual": published(Dual)}


def fastdllm(params: Case, cache: str) -> Parts:
    """LLaDA: the block is not tested after the build forward, so it gets two at least. Dream: never happens."""
    length, dream = params["block_length"], "alg" in params
    sampler: Sampler = Static(params["steps"])
    if params["threshold"] is not None:
        sampler = Confidence(params["threshold"])
    elif dream:
        sampler = Dream(params["alg"], params["steps"])
    sampling = Sampling(suppress_mask=False, tempered=dream)
    return Parts(sampler, Fixed(length, min_forwards=1 if dream else 2), CACHES[cache](), sampling=sampling)


def dkv_decode(params: Case) -> Parts:
    """LLaDA: fixed schedule per block. Dream: its time grid over the whole answer, cache_type decoded or prefill."""
    interval, steps = params.get("cache_refresh_interval", 8), params["steps"]
    if "alg" not in params:
        blocks = Fixed(params["block_length"], min_forwards=steps_of_a_block(params))
        return Parts(Static(steps), blocks, DKV(interval))
    kinds = {
        "decoded": DKV(interval, params["shift_type"]),
        "prefill": DKVPrefill(False, interval, params["shift_type"]),
    }
    sampling = Sampling(suppress_mask=False, tempered=True)
    return Parts(Dream(params["alg"], steps), Whole(min_forwards=steps), kinds[params["cache_type"]], sampling=sampling)


def dkv_greedy(params: Case) -> Parts:
    """The reference draws an order per block; the files record it."""
    order = [at for block in params["denoising_order"] for at in block]
    blocks = Fixed(params["block_length"], min_forwards=steps_of_a_block(params))
    return Parts(
        Order(order, params["steps"]), blocks, DKVGreedy(params["cache_refresh_interval"], params["window_size"])
    )


def elastic(params: Case) -> Parts:
    """Without a threshold so many tokens a step; a gamma outside [0, 1], which the option refuses, never or always
    triggers and is set behind its back."""
    options = {key: params[key] for key in ("window_length", "track_num", "similarity", "block_caching")}
    policy = Elastic(**options)
    policy.gamma = params["gamma"]
    if params["threshold"] is None:
        sampler: Sampler = EachTurn(params.get("tokens_per_iter", 1))
    else:
        sampler = Confidence(params["threshold"])
    return Parts(sampler, Whole(), policy, CutOpen())


class EachTurn(Sampler):
    """So many positions every turn, the surest first: no schedule that spreads what does not divide."""

    def __init__(self, count: int) -> None:
        self.count = count

    def step(self, view: View, state: State) -> Step:
        return view.step(top(view.scores.confidence, view.open, torch.full_like(view.canvas.start, self.count)))


def window_diffusion(params: Case) -> Parts:
    """LLaDA: a fixed schedule, the far field in every phase's first forward. Dream: its time grid, or one token a step
    and the adaptive length."""
    interval, steps = params["refresh_cycle"], params["steps"]
    if "alg" not in params:
        policy = Window(params["active_tokens"], params["window_tokens"], interval, refresh_scope="all",
                        refresh_candidates="all", recent_includes_refresh=False)  # fmt: skip
        return Parts(Static(steps), Whole(min_forwards=steps), policy)
    policy = Window(params["i_win_size"], params["o_win_size"], interval, "range",
                    refresh_candidates="first", reference_eos=params["early_stop"])  # fmt: skip
    if params["early_stop"]:
        return Parts(Static(score=params["alg"]), Whole(), policy, CutCanvas())
    sampling = Sampling(suppress_mask=False, tempered=True)
    # The published loop ends with its last step, even if that opens a phase and leaves masks.
    return Parts(Dream(params["alg"], steps, params["eps"]), Whole(), policy, sampling=sampling, turns=steps)


METHODS: dict[str, Callable[[Case], Parts]] = {
    "llada_generate": llada_generate, "dream_generate": dream_generate, "localleap": localleap, "ete": ete,
    "creditdecoding": creditdecoding, "dparallel": dparallel, "bacd": bacd, "prophet": prophet, "learn2pd": learn2pd,
    "adablock": adablock, "freedave": freedave, "dkv_decode": dkv_decode, "dkv_greedy": dkv_greedy, "elastic": elastic,
    "window_diffusion": window_diffusion,
    "fastdllm_prefix": partial(fastdllm, cache="prefix"), "fastdllm_dual": partial(fastdllm, cache="dual"),
}  # fmt: skip


@dataclass
class Record:
    """What a decode did, in the terms of the golden files.

    Booking follows each source: most count what a turn's step changed, ``fills`` included or not (LocalLeap counts
    what the end-of-text policy fills); FreeDave books a draft on the forward that verifies it.
    """

    gen_length: int
    fills: bool = True
    verified: bool = False
    tokens: list[int] = field(default_factory=list)
    forward_tokens: list[int] = field(default_factory=list)
    layer_tokens: list[list[int]] = field(default_factory=list)
    first_refreshed_layer: list[int] = field(default_factory=list)
    committed: list[list[int]] = field(default_factory=list)
    blocks: list[tuple[int, int, int]] = field(default_factory=list)
    early: int | None = None
    exit_step: int | None = None
    static_nfe: int | None = None
    lossless: bool | None = None
    masked: torch.Tensor | None = None

    def observe(self, turn: Turn, start: int) -> None:
        layers = turn.cost.queries.sum(0).tolist()
        refreshed = [bool(rows) for rows in turn.cost.refreshed.sum(0).tolist()] + [True]
        self.forward_tokens.append(layers[0])
        self.layer_tokens.append(layers)
        self.first_refreshed_layer.append(refreshed.index(True) if self.layer_tokens[1:] else -1)
        canvas = turn.candidates
        if self.verified:
            self._book_verified(turn, start)
        else:
            changed = turn.step.commit[0] | (turn.canvas.masked[0] & ~canvas.masked[0] & self.fills)
            self.committed.append(relative(changed, start))
        if turn.step.commit[0].sum() == turn.canvas.undecided[0].sum() and int(turn.view.blocks.turn[0]):
            self.early = int(turn.view.blocks.turn[0])
        blocks = turn.view.blocks
        self.blocks.append((int(blocks.number[0]), int(blocks.begin[0]), int(blocks.end[0])))
        self.tokens = canvas.tokens[0][canvas.valid[0]].tolist()

    def _book_verified(self, turn: Turn, start: int) -> None:
        """A draft counts on the forward that confirmed it; what the cache forces and a block's last mask need none."""
        before = turn.tried.masked.any(0) if self.masked is None else self.masked
        now = turn.canvas.masked[0]
        now = now & ~(turn.step.commit[0] if turn.step.owner.is_single else turn.view.forced[0])
        self.committed.append(relative(before & ~now, start))
        self.masked = now

    @property
    def nfe(self) -> int:
        return len(self.forward_tokens)

    @property
    def block_lengths(self) -> list[int]:
        return [end - begin for _, begin, end in dict.fromkeys(self.blocks)]

    @property
    def nfe_per_block(self) -> list[int]:
        return [self.blocks.count(block) for block in dict.fromkeys(self.blocks)]


def relative(where: torch.Tensor, start: int) -> list[int]:
    return (where.nonzero()[:, 0] - start).tolist()


@cache
def model_of(folder: Path) -> Transformer:
    return load_model(folder)


def decode(model: Transformer, prompt: list[int], parts: Parts, record: Record) -> Record:
    config = model.config
    assert config.mask_id is not None and config.eos_id is not None and config.pad_id is not None
    ids = Ids(config.mask_id, config.eos_id, ())
    forward = Forward.of(model, parts.cache, ids, parts.sampling, parts.sampler, parts.blocks, parts.eos)
    request = Request.answer(prompt, record.gen_length, config.mask_id)
    request = given(request, {len(prompt) + at: token for at, token in parts.given.items()})
    canvas = Canvas.of([request], config.pad_id)
    with torch.inference_mode():
        for turn in islice(denoise(canvas, forward, parts.sampler, parts.blocks, parts.eos), parts.turns):
            record.observe(turn, len(prompt))
    return record


COMPARED = (
    "tokens", "nfe", "forward_tokens", "committed", "block_lengths", "nfe_per_block", "exit_step", "static_nfe",
    "lossless", "layer_tokens", "first_refreshed_layer",
)  # fmt: skip
NOT_COMPARED = ("similarities",)  # floats behind first_refreshed_layer


def differences(case: Case, record: Record) -> list[str]:
    """Names of the recorded fields that this project does not reproduce."""
    return [name for name in COMPARED if name in case and case[name] != getattr(record, name)]


def run_case(method: str, case: Case, model: Transformer, filters: Case) -> Record:
    params = {**case["params"], "filters": filters}
    length, parts = params["gen_length"], METHODS[method](params)
    record = Record(length, fills=method != "freedave", verified=method == "freedave")
    decode(model, case["prompt"], parts, record)
    if "exit_step" in case:
        record.exit_step = record.early if record.early != params["steps"] else None
    if "static_nfe" in case:
        # The loop without drafts does not test a block after its first forward.
        blocks = Fixed(params["block_length"], min_forwards=1 if params["confidence_threshold"] is None else 2)
        inner = Parts(parts.sampler.inner, blocks, parts.cache, parts.eos, parts.sampling)
        static = decode(model, case["prompt"], inner, Record(length))
        record.static_nfe, record.lossless = static.nfe, static.tokens == record.tokens
    return record


def sampler_differences(case: Case) -> list[str]:
    """Feed recorded confidences to BACD, without a model."""
    params, length = case["params"], case["params"]["block_length"]
    sampler, blocks = BACD(params["lower"], params["upper"]), Fixed(length)
    canvas = Canvas.of([Request.answer([0], length, 60)], 61)
    state, now = sampler.start(canvas, blocks), blocks.start(canvas)
    for step in case["steps"]:
        now, confidence = now.after_forward(), torch.zeros(1, length + 1, dtype=torch.float64)
        confidence[0, torch.tensor(step["masked"]) + 1] = torch.tensor(step["conf"], dtype=torch.float64)
        scores = Scores(canvas.masked, torch.zeros_like(canvas.tokens), confidence, canvas.masked)
        view = View.of(canvas, scores, now, canvas.nothing, Owner.single(1, canvas.start.device))
        decision = sampler.propose(view, state)
        state = {**state, **decision.state}
        canvas = canvas.commit(decision.commit, canvas.tokens)
        if relative(decision.commit[0], 1) != step["committed"]:
            return ["committed"]
    return []


def unknown(data: Case, case: Case) -> str | None:
    """What this project cannot replay in a case, as a sentence. A case that is not compared is a failure."""
    if data["method"] not in METHODS:
        return f"method={data['method']} is unknown here"
    if (name := case["params"].get("cache", "none")) not in CACHES:
        return f"cache={name} is unknown here"
    fields = case.keys() - {"model", "prompt", "params", *COMPARED, *NOT_COMPARED}
    return f"{', '.join(sorted(fields))} cannot be compared here" if fields else None


def replay(file: Path, models: Path) -> tuple[str, list[str | None]]:
    """The file's method, and what is wrong with every case: None where all is equal."""
    data = json.loads(file.read_text())
    outcome = []
    for case in data.get("cases", ()):
        fault = unknown(data, case)
        if fault is None:
            record = run_case(data["method"], case, model_of(models / case["model"]), data.get("filters", {}))
            fault = differ(differences(case, record))
        outcome.append(fault)
    if data["method"] in METHODS:
        outcome += [differ(sampler_differences(case)) for case in data.get("sampler_cases", [])]
    return data["method"], outcome or [unknown(data, {"params": {}}) or "it has no cases"]


def differ(fields: list[str]) -> str | None:
    return f"{', '.join(fields)} differ" if fields else None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--models", type=Path, default=MODELS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    faults: list[str] = []
    for file in options.files:
        method, outcome = replay(file, options.models)
        found = {fault: [at for at, other in enumerate(outcome) if other == fault] for fault in outcome if fault}
        faults += [f"  {file.name}, case {', '.join(map(str, at))}: {fault}" for fault, at in found.items()]
        print(f"{method}: {outcome.count(None)} of {len(outcome)} cases equal")
    if faults:
        print("Not equal, or not to be replayed:", *faults, sep="\n", file=sys.stderr)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
