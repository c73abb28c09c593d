"""Replay recorded decodes of published implementations: ``python tests/replay.py FILE... [--models DIR]``.

``replay_parts`` maps each reference's parameter names to the parts of this project, ``replay_caches`` those of the
caches that came later, ``replay_causal`` those of causal models. Every field of a case is compared, and a file's
sampler_cases and batches. The exit code is 1, and stderr says why, where a case is not equal, and also where its
method, its cache or one of its fields is unknown here. Files that hold no decodes of a model have scripts of their own
(``ELSEWHERE``), which are named and not run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import replay_caches
import replay_causal
import replay_parts
import torch
from replay_parts import CACHES, ELSEWHERE, Case, Parts

from dllm.blocks.fixed import Fixed
from dllm.cache.base import Cache, Session
from dllm.cache.dllm_cache import FeaturePass
from dllm.cache.passes import Pass
from dllm.canvas import Canvas, Request
from dllm.common.rowwise import Owner
from dllm.contract import Scores, Turn, View
from dllm.denoise import TakeTurn, denoise
from dllm.forward import Forward
from dllm.models.ids import Ids
from dllm.models.transformer import Transformer
from dllm.models.weights import load_model
from dllm.runtime.runtime import Network
from dllm.samplers.bacd import BACD
from dllm.samplers.prophet import given
from dllm.setting import altered

MODELS = Path(__file__).parent / "data" / "models"
METHODS = replay_parts.METHODS | replay_caches.METHODS


@dataclass
class Record:
    """What a decode did, in the terms of the golden files.

    Booking follows each source: most count what a turn's step changed, ``fills`` included or not (LocalLeap counts
    what the end-of-text policy fills); FreeDave books a draft on the forward that verifies it; LoPA books what the
    kept state has decided on the forward that drafted it.
    """

    gen_length: int
    fills: bool = True
    verified: bool = False
    drafted: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    forward_tokens: list[int] = field(default_factory=list)
    layer_tokens: list[list[int]] = field(default_factory=list)
    layer_values: list[list[int]] = field(default_factory=list)
    first_refreshed_layer: list[int] = field(default_factory=list)
    committed: list[list[int]] = field(default_factory=list)
    blocks: list[tuple[int, int, int]] = field(default_factory=list)
    early: int | None = None
    exit_step: int | None = None
    static_nfe: int | None = None
    lossless: bool | None = None
    branches: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    edited: list[list[list[int]]] = field(default_factory=list)
    masked: torch.Tensor | None = None
    untested_forwards: int = 0
    start: int = 0
    entropies: list[float] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)

    def observe(self, turn: Turn, start: int) -> None:
        self.start = start
        layers = turn.cost.queries.sum(0).tolist()
        refreshed = [bool(rows) for rows in turn.cost.refreshed.sum(0).tolist()] + [True]
        self.forward_tokens.append(layers[0])
        self.layer_tokens.append(layers)
        self.layer_values.append([] if isinstance(turn.cost.values, int) else turn.cost.values.sum(0).tolist())
        self.first_refreshed_layer.append(refreshed.index(True) if self.layer_tokens[1:] else -1)
        self.branches.append(len(turn.tried.request))
        self.kept.append((int(turn.chosen[0]) - 1) % self.branches[-1])  # LoPA's own order: its anchor is the last
        if "entropy" in turn.view.scores.statistics and turn.step.owner.is_single:
            said = turn.view.scores.stat("entropy")[turn.step.commit].tolist()
            self.entropies.append(max(said, default=0.0))
        canvas, edit = turn.candidates, turn.step.edit
        places = [] if edit is None else edit[0].nonzero()[:, 0].tolist()
        self.edited.append([[at - start, int(canvas.tokens[0, at])] for at in places])
        if self.verified:
            self._book_verified(turn, start)
        elif self.drafted:
            self._book_drafted(turn, start)
        else:
            changed = turn.step.commit[0] | (turn.canvas.masked[0] & ~canvas.masked[0] & self.fills)
            self.committed.append(relative(changed, start))
        if turn.step.commit[0].sum() == turn.canvas.undecided[0].sum() and int(turn.view.blocks.turn[0]):
            self.early = int(turn.view.blocks.turn[0])
        blocks = turn.view.blocks
        self.untested_forwards += not bool((turn.canvas.undecided & blocks.in_block).any())
        self.blocks.append((int(blocks.number[0]), int(blocks.begin[0]), int(blocks.end[0])))
        self.tokens = canvas.tokens[0][canvas.valid[0]].tolist()

    def _book_verified(self, turn: Turn, start: int) -> None:
        """A draft counts on the forward that confirmed it; what the cache forces and a block's last mask need none."""
        before = turn.tried.masked.any(0) if self.masked is None else self.masked
        now = turn.canvas.masked[0]
        now = now & ~(turn.step.commit[0] if turn.step.owner.is_single else turn.view.forced[0])
        self.committed.append(relative(before & ~now, start))
        self.masked = now

    def _book_drafted(self, turn: Turn, start: int) -> None:
        """What this forward kept counts on the last one; what it leaves decided in all candidates counts on itself,
        until the next one is known."""
        now = turn.canvas.masked[0]
        if self.masked is not None:
            self.committed[-1] = relative(self.masked & ~now, start)
        self.committed.append(relative(now & ~turn.candidates.masked.any(0), start))
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


    @property
    def last_layer(self) -> list[int]:
        """Rows that the last layer of each forward computed."""
        return [layers[-1] for layers in self.layer_tokens]

    @property
    def selected(self) -> list[list[list[int] | None]]:
        """Positions that each layer of each forward chose by their values; None: it chose none."""
        assert all(call.columns is None for one in self.passes for call in one.calls)
        return [[None if rows is None else relative(rows[0], self.start) for rows in one.found.selected]
                for one in self.passes if isinstance(one, FeaturePass)]  # fmt: skip

    @property
    def value_tokens(self) -> list[list[int]]:
        """Rows of which each layer of each forward computed the value."""
        chose = [[len(layer or ()) for layer in layers] for layers in self.selected]
        return [[rows + more - twice for rows, more, twice in zip(*one, strict=True)]
                for one in zip(self.layer_tokens, self.layer_values, chose, strict=True)]  # fmt: skip

    @property
    def kept_masks(self) -> list[list[int]]:
        """Positions behind each block that its forwards saw."""
        first = [self.blocks.index(block) for block in dict.fromkeys(self.blocks)]
        columns = [relative(self.passes[at].keys[0], 0) for at in first]
        ends = [self.blocks[at][2] for at in first]
        return [[column - self.start for column in seen if column >= end]
                for seen, end in zip(columns, ends, strict=True)]  # fmt: skip

    @property
    def queries(self) -> list[list[int] | None]:
        """Columns that each forward computed; None: all."""
        return [None if one.queries.equal(one.valid) else relative(one.queries[0], 0) for one in self.passes]

    @property
    def ranges(self) -> list[list[int]]:
        """The first of them, and the one behind the last."""
        found = [relative(one.queries[0], 0) for one in self.passes]
        assert all(one == list(range(one[0], one[-1] + 1)) for one in found)
        return [[one[0], one[-1] + 1] for one in found]


def relative(where: torch.Tensor, start: int) -> list[int]:
    return (where.nonzero()[:, 0] - start).tolist()


@cache
def model_of(folder: Path, dtype: torch.dtype = torch.float32) -> Transformer:
    return load_model(folder, dtype=dtype)


def watched(cache: Cache, passes: list[Pass]) -> Cache:
    """The cache, whose sessions note their passes."""

    def start(*given: Any) -> Session:
        session = cache.start(*given)
        begin = session.begin

        def noted(*given: Any) -> Pass:
            passes.append(begin(*given))
            return passes[-1]

        session.begin = noted  # type: ignore[method-assign]
        return session

    return altered(cache, start=start)


Way = tuple[Network, TakeTurn, int]  # what runs the model, what takes turns, and how many turns late the host reads


def decode(
    model: Transformer, prompt: list[int], parts: Parts, record: Record, way: Way | None = None
) -> Record:
    """Decode on the model's device. way None: with exact shapes, as the recorded implementations did."""
    network, take, lag = way or (model, None, None)
    config = model.config
    assert config.mask_id is not None and config.eos_id is not None and config.pad_id is not None
    ids = Ids(config.mask_id, config.eos_id, ())
    policy = watched(parts.cache, record.passes)
    forward = Forward.of(model, policy, ids, parts.sampling, parts.sampler, parts.blocks, parts.eos, network)
    request = Request.answer(prompt, record.gen_length, config.mask_id)
    request = given(request, {len(prompt) + at: token for at, token in parts.given.items()})
    canvas = Canvas.of([request], config.pad_id, model.device, config.attention.grid_at_zero)
    with torch.inference_mode():
        running = denoise(canvas, forward, parts.sampler, parts.blocks, parts.eos, lag, take)
        for turn in islice(running, parts.turns):
            record.observe(turn, len(prompt))
    return record


# Fields whose word means something else here.
NAMES = {"suffix": {"kept": "kept_masks"}, "dllm_cache": {"forward_tokens": "last_layer"}}
ROUNDED = ("entropies",)
WIDE = ("dllm_cache",)  # similarities as close as 4e-14 decide: these compare in float64
NO_FILLS = ("freedave", "suffix", "vicinity")  # whose records leave out what the end-of-text policy fills
COMPARED = (
    "tokens", "nfe", "forward_tokens", "committed", "block_lengths", "nfe_per_block", "exit_step", "static_nfe",
    "lossless", "layer_tokens", "first_refreshed_layer", "branches", "kept", "edited", "ranges",
    "untested_forwards", "queries", "selected", "value_tokens", "entropies",
)  # fmt: skip
NOT_COMPARED = ("similarities",)  # floats behind first_refreshed_layer


def differences(case: Case, record: Record) -> list[str]:
    """Names of the recorded fields that this project does not reproduce."""
    names = record.names
    found = {name: getattr(record, names.get(name, name)) for name in COMPARED if name in case}
    return [name for name, value in found.items() if not same(case[name], value, name in ROUNDED)]


def same(recorded: Any, found: Any, rounded: bool) -> bool:
    """Whether two values of a field are equal; rounded: within 1e-4."""
    if not rounded:
        return bool(recorded == found)
    return len(recorded) == len(found) and all(abs(a - b) < 1e-4 for a, b in zip(recorded, found, strict=True))


def run_case(method: str, case: Case, model: Transformer, filters: Case) -> Record:
    params = {**case["params"], "filters": filters, "shown": case}
    length, parts = params.get("gen_length", params.get("max_new_tokens")), METHODS[method](params)
    length += -(len(case["prompt"]) + length) % parts.fills_up
    record = Record(
        length, fills=method not in NO_FILLS, verified=method == "freedave", drafted=method == "lopa",
        names=NAMES.get(method, {}),
    )  # fmt: skip
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


def replay(file: Path, models: Path, sample: bool = False) -> tuple[str, list[str | None]]:
    """The file's method, and what is wrong with every case: None where all is equal. sample: every second case is
    decoded, of the others only what they name is checked; for causal models as in ``replay_causal.outcomes``."""
    data, outcome = json.loads(file.read_text()), list[str | None]()
    if data["method"] in replay_causal.METHODS:
        return data["method"], [*replay_causal.outcomes(data, models, sample)] or ["it has no cases"]
    for number, case in enumerate(data.get("cases", ())):
        fault = unknown(data, case)
        if fault is None and not (sample and number % 2):
            model = model_of(models / case["model"], torch.float64 if data["method"] in WIDE else torch.float32)
            record = run_case(data["method"], case, model, data.get("filters", {}))
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
        if script := ELSEWHERE.get(json.loads(file.read_text())["method"]):
            print(f"{file.name} is replayed by: python {script} {file}")
            continue
        method, outcome = replay(file, options.models)
        found = {fault: [at for at, other in enumerate(outcome) if other == fault] for fault in outcome if fault}
        faults += [f"  {file.name}, case {', '.join(map(str, at))}: {fault}" for fault, at in found.items()]
        print(f"{method}: {outcome.count(None)} of {len(outcome)} cases equal")
    if faults:
        print("Not equal, or not to be replayed:", *faults, sep="\n", file=sys.stderr)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
