"""Replay recorded decodes of published implementations: ``python tests/replay.py FILE... [--models DIR]``.

METHOD.yaml beside a golden file maps the reference's parameter names to the parts of this project (``mapped``); what a
mapping cannot say is a function of ``replay_parts``, ``replay_caches`` or ``replay_authors``, and ``replay_causal`` has
the causal models. Every field of a case is compared, and a file's
sampler_cases and batches. ``model: tiny-llada-flat3`` is made from ``tiny-llada`` (``flattened``). The exit code is 1,
and stderr says why, where a case is not equal, and also where its method, its model, its cache or one of its fields is
unknown here, or the mapping does not read one of its parameters. Files that hold no decodes of a model have scripts of
their own (``ELSEWHERE``), which are named and not run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from math import isclose
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "support"))  # what the tests share

import accidents
import mapped
import replay_authors
import replay_caches
import replay_causal
import replay_families  # noqa: F401  adds its methods
import replay_lengths
import replay_noise
import replay_parts
import replay_requests
import replay_soft
import torch
from flattened import base_of, load_model, read_model_config
from replay_params import Params, left_out
from replay_parts import CACHES, ELSEWHERE, Case, CaseParts
from replay_record import Record, relative

from dllm.parts import (
    BACD,
    NOTHING_SHARED,
    Cache,
    Canvas,
    Fixed,
    Forward,
    ForwardPass,
    Ids,
    InBlocks,
    Network,
    Owner,
    Request,
    Scores,
    Session,
    TakeTurn,
    Transformer,
    UserError,
    View,
    accuracy_under_parallelism,
    denoise,
    replaced,
    with_tokens,
)

MODELS = Path(__file__).parent / "data" / "models"
METHODS = mapped.METHODS | replay_parts.METHODS | replay_caches.METHODS | replay_authors.METHODS


@cache
def model_of(folder: Path, dtype: torch.dtype = torch.float32, block: int | None = None) -> Transformer:
    """block: columns of an attention block (None: those that the checkpoint says)."""
    config = read_model_config(folder)
    if block is not None:
        own = config.attention
        config = (
            replace(config, attention=replace(own, length=block))
            if isinstance(own, InBlocks)
            else (config.with_attention_block(block))
        )
    return load_model(folder, dtype=dtype, config=config)


def watched(cache: Cache, passes: list[ForwardPass]) -> Cache:
    """The cache, whose sessions note their passes."""

    def start(*given: Any) -> Session:
        session = cache.start(*given)
        begin = session.begin

        def noted(*given: Any) -> ForwardPass:
            passes.append(begin(*given))
            return passes[-1]

        session.begin = noted  # type: ignore[method-assign]
        return session

    return replaced(cache, start=start)


Way = tuple[Network, TakeTurn, int]  # what runs the model, what takes turns, and how many turns late the host reads


def decode(model: Transformer, prompt: list[int], parts: CaseParts, record: Record, way: Way | None = None) -> Record:
    """Decode on the model's device. way None: with exact shapes, as the recorded implementations did."""
    network, take, lag = way or (model, None, None)
    config = model.config
    assert config.mask_id is not None and config.eos_id is not None and config.pad_id is not None
    ids = Ids(config.mask_id, config.eos_id, ())
    parts = replace(parts, cache=watched(parts.cache, record.passes))
    forward = parts.forward(**vars(Forward.of(model, ids, parts, network)))
    request = Request.answer(prompt, record.gen_length, config.mask_id)
    request = with_tokens(request, {len(prompt) + at: token for at, token in parts.given.items()})
    if parts.tail:
        more = parts.tail - len(request.tokens) % parts.tail
        request = replace(
            request, tokens=[*request.tokens, *[config.eos_id] * more], masked=[*request.masked, *[True] * more]
        )
    canvas = Canvas.of([request], config.pad_id, model.device, config.attention.grid_at_zero)
    with torch.inference_mode():
        running = denoise(canvas, forward, parts, lag, take)
        for turn in islice(running, parts.turns):
            record.observe(turn, len(prompt))
            if record.strayed:
                break
    return record


AUP = "aup"  # points of a curve, and the leaderboard's number
# Fields whose word means something else here.
KEPT = {"kept": "kept_masks"}
NAMES = {
    "suffix": KEPT,
    "easing": KEPT,
    "dllm_cache": {"forward_tokens": "last_layer"},
    "sparse_dllm": {"kept": "kept_columns"},
    "d2f": {"blocks": "opened", "forward_tokens": "not_kept"},
}
TABLES = ("filters", "baselines")  # of a file, which its cases name
ROUNDED = ("entropies",)
WIDE = ("dllm_cache",)  # similarities as close as 4e-14 decide: these compare in float64
OWN_BLOCKS = {"token_to_mask": "block_length", "d2f": "block_size"}  # their models attend by a case's blocks
NO_FILLS = ("d3llm", "freedave", "suffix", "easing", "vicinity")  # their records leave out what eos fills
COMPARED = (
    "tokens", "nfe", "forward_tokens", "committed", "block_lengths", "nfe_per_block", "exit_step", "static_nfe",
    "lossless", "layer_tokens", "first_refreshed_layer", "branches", "kept", "edited", "ranges",
    "untested_forwards", "remasked", "queries", "filled", "counted", "full", "schedule", "committed_tokens",
    "first_column", "keys", "duplicates", "selected", "value_tokens", "entropies", "verify", "steps", "pattern",
    "first_answer_block", "phase", "span", "settled", "forwards",
    "hidden", "answer", "blocks", "eos_stop", "query_positions",
)  # fmt: skip
NOT_COMPARED = ("similarities",)  # floats behind first_refreshed_layer
BESIDE = ("query_positions",)  # fields of a file that have an entry for each case


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


def parts_of(case: Case, model: Transformer, data: Case) -> CaseParts:
    """What a case of the file ``data`` decodes with."""
    tables = {name: data.get(name, {}) for name in TABLES}
    shifted = model.config.prediction_shift == 1
    params = case["params"] if isinstance(case["params"], Params) else Params(case["params"])
    return METHODS[data["method"]](params.more(**tables, shown=case, dream=shifted))


def record_of(case: Case, parts: CaseParts, method: str) -> Record:
    """An empty record, which books as the case's source does."""
    params = case["params"]
    length = params.get("gen_length", params.get("max_new_tokens"))
    asked = length
    length -= length % parts.whole_blocks
    length += -(len(case["prompt"]) + length) % parts.fills_up
    return Record(
        length,
        asked,
        fills=method not in NO_FILLS,
        counts_changes=method == "d3llm",
        verified=method == "freedave",
        drafted=method == "lopa",
        names=NAMES.get(method, {}),
    )


def run_case(case: Case, model: Transformer, data: Case) -> Record:
    params, parts = case["params"], parts_of(case, model, data)
    record = record_of(case, parts, data["method"])
    record.expected = case["committed"] if data.get("strays") else None  # a decode that strays ends there
    decode(model, case["prompt"], parts, record)
    if record.strayed:
        return record
    if "exit_step" in case:
        record.exit_step = record.stopped
    if "static_nfe" in case:
        # The loop without drafts does not test a block after its first forward.
        blocks = Fixed(params["block_length"], min_forwards=1 if params["confidence_threshold"] is None else 2)
        inner = CaseParts(parts.sampler.inner, blocks, parts.cache, parts.eos, parts.sampling)
        static = decode(model, case["prompt"], inner, Record(record.gen_length))
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
        view = View.of(canvas, scores, now, canvas.no_positions, Owner.single(1, canvas.start.device), NOTHING_SHARED)
        decision = sampler.propose(view, state)
        state = {**state, **decision.state}
        canvas = canvas.commit(decision.commit, canvas.tokens)
        if relative(decision.commit[0], 1) != step["committed"]:
            return ["committed"]
    return []


def unknown(case: Case) -> str | None:
    """What this project cannot compare in a case, as a sentence. A case that is not compared is a failure."""
    if (name := dict(case["params"]).get("cache", "none")) not in CACHES:
        return f"cache={name} is unknown here"
    fields = case.keys() - {"model", "prompt", "params", *COMPARED, *NOT_COMPARED}
    return f"{', '.join(sorted(fields))} cannot be compared here" if fields else None


# What cases of these methods say of their own accidents, which their mappings read.
MARKED, MARKS = {"dmax"}, {"mask proposed", "closes with masks"}
Replayer = Callable[[Case, Path, bool], Iterable[str | None]]  # of a file's cases, then of its other parts
PARTS = ("cases", "sampler_cases", "batches")


def cases_of(data: Case, models: Path, sample: bool) -> Iterator[str | None]:
    """What is wrong with each case of a method that decodes one row with one set of parts."""
    for number, case in enumerate(data.get("cases", ())):
        fault = unknown(case)
        if fault is None and not (sample and number % 3):
            dtype = torch.float64 if data["method"] in WIDE else torch.float32
            block = case["params"].get(OWN_BLOCKS.get(data["method"]))
            model = model_of(models / case["model"], dtype, block)
            record = run_case(case, model, data)
            fault = differ(["committed"] if record.strayed else differences(case, record))
        yield fault
    yield from (differ(sampler_differences(case)) for case in data.get("sampler_cases", ()))


def requests_of(data: Case, models: Path, sample: bool) -> Iterator[str | None]:
    def requested(case: Case, prompt: Sequence[int], length: int, parts: CaseParts) -> Record:
        return decode(model_of(models / case["model"]), list(prompt), parts, Record(length))

    return replay_requests.outcomes(data, requested, sample)


def points_of(data: Case, models: Path, sample: bool) -> Iterator[str | None]:
    return (aup_difference(case) for case in data["cases"])


REPLAYERS: dict[str, Replayer] = {
    **dict.fromkeys(METHODS, cases_of),
    **dict.fromkeys(replay_causal.METHODS, replay_causal.outcomes),
    **replay_lengths.METHODS,
    **replay_soft.METHODS,
    **replay_noise.METHODS,
    AUP: points_of,
    **dict.fromkeys(replay_requests.METHODS, requests_of),
}


def replay(file: Path, models: Path, sample: bool = False) -> tuple[str, list[str | None]]:
    """The file's method, and what is wrong with every case: None where all is equal. sample: every third case is
    decoded, of the others only what they name is checked; for causal models as in ``replay_causal.outcomes``."""
    data = json.loads(file.read_text())
    for name in data.keys() & BESIDE:
        data["cases"] = [{**case, name: value} for case, value in zip(data["cases"], data[name], strict=True)]
    return data["method"], outcomes(data, models, sample) or ["it has no cases"]


def outcomes(data: Case, models: Path, sample: bool = False) -> list[str | None]:
    """What is wrong with each case of a file, of its sampler_cases and batches: None where all is equal."""
    asked = [(part, case) for part in PARTS for case in data.get(part, ())]
    if data["method"] not in REPLAYERS:
        return [f"method={data['method']} is unknown here"] * max(1, len(asked))
    refused = [refusal(case, models, data["method"]) for _, case in asked]
    noted = [{**case, "params": Params(case["params"])} if "params" in case else case for _, case in asked]
    asked_for = [None if data["method"] in MARKED else case.get("accident") for _, case in asked]
    noted = [
        {name: value for name, value in case.items() if name != "accident" or data["method"] in MARKED}
        for case in noted
    ]
    sound = [one for one, fault in zip(zip(asked, noted, strict=True), refused, strict=True) if fault is None]
    kept = {part: [case for (name, _), case in sound if name == part] for part in PARTS if part in data}
    found = iter(REPLAYERS[data["method"]]({"cases": [], **data, **kept}, models, sample))
    out = list[str | None]()
    for fault, case, allowed in zip(refused, noted, asked_for, strict=True):
        with accidents.replaying(allowed if allowed is None or isinstance(allowed, list) else [allowed]):
            out.append(fault or next(found) or unread(data["method"], case))
    return out


def refusal(case: Case, models: Path, method: str) -> str | None:
    """Why a case cannot be tried at all."""
    model, marks = case.get("model", ""), MARKS if method in MARKED else set[str]()
    if not isinstance(model, str):
        return f"model={model} is no name of a folder in --models, as in tiny-llada or tiny-llada-flat3"
    try:
        if "model" in case:
            base_of(models / model)
    except UserError as error:
        return str(error)
    unknown = sorted({*accidents.named(case)} - accidents.ACCIDENTS.keys() - marks)
    known = f"those are {', '.join(sorted({*accidents.ACCIDENTS, *marks}))}; [] is the shipped parts alone"
    return f"accident={', '.join(unknown)} is unknown here: {known}" if unknown else None


def unread(method: str, case: Case) -> str | None:
    """A parameter that a decode has left out."""
    params = case.get("params")
    return left_out(method, params) if isinstance(params, Params) and params.read else None


def aup_difference(case: Case) -> str | None:
    """What is wrong with a number of the leaderboard, which needs no model."""
    points = [(speed, score) for speed, score in case["points"]]
    found = accuracy_under_parallelism(points, case["y_max"], case["alpha"], case["y_min_offset"])
    same = found == case["aup"] or (found is not None and case["aup"] is not None and isclose(found, case["aup"]))
    return None if same else f"aup is {found}"


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
