"""Replay recorded log-probabilities of published trainers: ``python tests/rollouts.py FILE... [--models DIR]``.

Every value and every gradient of a file is compared, its closed forms included; a field that is unknown here is a
failure. The last line says how many cases are equal; the exit code is 1, and stderr says why, where one is not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from functools import cache
from math import sin
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "support"))  # what the tests share

import torch
from enumerated import closed_form
from flattened import load
from made_rollouts import made_rollouts
from torch import Tensor

from dllm.parts import (
    Model,
    Rollouts,
    Sampling,
    coupled,
    elbo,
    one_step,
    parameter_sources,
    prediction,
    sandwich,
    slices_of,
    trajectory_logprobs,
)

MODELS = Path(__file__).parent / "data" / "models"
METHOD, CLOSED_MODEL, CLOSED_LENGTH = "rl_logprobs", "tiny-llada", 3  # the last two: of enumerations
TOLERANCE = 1e-9  # values have 12 decimals, gradients as many
BASICS = {"model", "prompt", "completions", "step_map", "completion_mask", "mask_id", "eos_id"}
Case = dict[str, Any]
Differences = Iterator[str]


@cache
def model_of(folder: Path) -> Model:
    return load(folder, dtype="float64", trainable=True)


def rollouts_of_case(case: Case, model: Model, guidance: float = 0.0, temperature: float = 1.0) -> Rollouts:
    """A case's answers. Forwards are recorded from 0, and counted from 1 here."""
    answers, steps, mask = (torch.tensor(case[name]) for name in ("completions", "step_map", "completion_mask"))
    return made_rollouts(
        model,
        case["prompt"],
        answers,
        steps + 1,
        completion_mask=mask,
        sampling=Sampling(guidance=guidance),
        temperature=temperature,
    )


def far(found: Tensor, recorded: Any) -> bool:
    """Whether numbers differ by more than their rounding."""
    wanted = torch.as_tensor(recorded, dtype=torch.float64)
    return found.shape != wanted.shape or not torch.allclose(found.double(), wanted, rtol=TOLERANCE, atol=TOLERANCE)


def slope(rows: int, columns: int) -> Tensor:
    """Weights [R, G] of the recorded gradients: ((3 row + column) mod 7 - 3) / 7."""
    return ((3 * torch.arange(rows)[:, None] + torch.arange(columns)) % 7 - 3).double() / 7


def gradient_differences(case: Case, model: Model, loss: Tensor, part: Case) -> Differences:
    """Whether the norms by published tensor, and the first entries of the first one, are as recorded."""
    network = model.transformer
    network.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    gradients: dict[str, Tensor] = {}
    for ours, source in parameter_sources(network).items():
        assert source.rows is None, "these models hold every matrix by itself"
        gradient = network.get_parameter(ours).grad
        gradients[source.name] = torch.zeros_like(network.get_parameter(ours)) if gradient is None else gradient
    if "dream" in case["model"]:  # its class pads: that row of the embedding has no gradient there
        gradients["model.embed_tokens.weight"][case["eos_id"]] = 0
    for name, recorded in part["gradient"].items():
        if far(gradients[name].norm(), recorded):
            yield f"gradient of {name}"
    for name, recorded in part.get("gradient_first", {}).items():
        first = gradients[name].flatten()[: len(recorded)]
        if not bool(first.any()) and gradients[name].dim() == 2:
            first = gradients[name][case["mask_id"]][: len(recorded)]
        if far(first, recorded):
            yield f"gradient_first of {name}"


def one_step_differences(case: Case, model: Model) -> Differences:
    part, losses = case["d1"], []
    rollouts = rollouts_of_case(case, model, part["cfg_scale"])
    for masks, recorded in zip(part["prompt_masked"], part["logps"], strict=True):
        found = one_step(model, rollouts, p=part["p_mask_prompt"], masks=torch.tensor(masks), ban=False).values
        losses.append((found * slope(*found.shape) * rollouts.completion_mask).sum())
        if far(found, recorded):
            yield "logps"
    yield from gradient_differences(case, model, losses[0], part)


def coupled_differences(case: Case, model: Model) -> Differences:
    part, rollouts = case["coupled"], rollouts_of_case(case, model)
    found = coupled(model, rollouts, masks=torch.tensor(part["masked"]), share=part["mask_ratio"], ban=False).values
    if far(found, part["logps"]):
        yield "logps"
    loss = (found * slope(*found.shape) * rollouts.completion_mask).sum()
    yield from gradient_differences(case, model, loss, part)


def elbo_differences(case: Case, model: Model) -> Differences:
    part, rollouts = case["espo"], rollouts_of_case(case, model)
    masks = torch.tensor(part["masked"]).transpose(0, 1)
    found = elbo(model, rollouts, part["samples"], masks=masks, ban=False).values
    columns = masks.shape[2]
    plain = elbo(model, rollouts, part["samples"], coupled=False, masks=masks, ban=False).values
    if far(found, part["coupled"]):
        yield "coupled"
    if far(plain * (columns + 1) / columns, part["plain"]):  # the masked half of the coupled one: by n + 1, not by n
        yield "plain"
    yield from gradient_differences(case, model, (found * torch.arange(1, len(found) + 1)).sum(), part)


def sandwich_differences(case: Case, model: Model) -> Differences:
    part, rollouts = case["spg"], rollouts_of_case(case, model)
    masks = torch.tensor(part["canvas_masked"])
    for name, mix in (("eubo", 1.0), ("mix", part["mix_weight"]), ("elbo", 0.0)):
        for sign, advantage in (("positive", 1.0), ("negative", -1.0)):
            found = sandwich(
                model,
                rollouts,
                torch.full((len(rollouts),), advantage),
                part["num_t"],
                kind=part["forward_type"],
                block_length=part["block_length"],
                p=part["p_mask_prompt"],
                beta=part["eubo_beta"],
                mix=mix,
                masks=masks,
                ban=False,
            )
            if far(found.values, part[name][sign]):
                yield f"{name} {sign}"


def prediction_differences(case: Case, model: Model) -> Differences:
    part = case["mdpo"]
    rollouts = rollouts_of_case(case, model, temperature=part["temperature"])
    found = prediction(model, rollouts, part["step"] + 1, tokens=rollouts.completion_ids, ban=False)
    if far(found.values, part["logps"]):
        yield "logps"


def slices_differences(case: Case, model: Model) -> Differences:
    for part in case["tracerl"]:
        for name in _slices_differences(case, model, part):
            yield f"shrink={part['shrink']} post_num={part['post_num']} {name}"


def _slices_differences(case: Case, model: Model, part: Case) -> Differences:
    rollouts = rollouts_of_case(case, model)
    only = post_columns(rollouts, part["post_num"])
    cells = slices_of(rollouts, part["shrink"], only=only)
    start, scored = len(case["prompt"]), torch.zeros_like(rollouts.completion_ids)
    scored[cells.row, cells.column] = 1
    owner = torch.zeros(len(cells.canvases.width), dtype=torch.int64).scatter(0, cells.cells.canvas, cells.row)
    made = {
        "slices": len(owner),
        "owner": owner.tolist(),
        "scored": scored.tolist(),
        "canvases": cells.canvases.tokens[:, start:].tolist(),
    }
    yield from (name for name, value in made.items() if value != part[name])
    found = trajectory_logprobs(model, rollouts, shrink=part["shrink"], only=only, ban=False)
    if far(found, part["logps"]):
        yield "logps"
    if far(ppo_loss(found, owner, cells.cells.canvas, cells.row, cells.column, start), part["ppo_loss"]):
        yield "ppo_loss"
    yield from gradient_differences(case, model, (found * slope(*found.shape) * scored).sum(), part)


def post_columns(rollouts: Rollouts, most: int | None) -> Tensor:
    """Columns [R, G] that TraceRL scores: all but the ends of text after the first ``most`` (None: all)."""
    is_end = rollouts.completion_ids == rollouts.ends[0]
    return torch.ones_like(is_end) if most is None else ~is_end | (is_end.cumsum(1) <= most)


def ppo_loss(values: Tensor, owner: Tensor, canvas: Tensor, row: Tensor, column: Tensor, start: int) -> Tensor:
    """TraceRL's loss with the advantages, old values and clip range of the recording."""
    new = values[row, column]
    ratio = torch.tensor([0.3 * sin(start + at) for at in column.tolist()], dtype=new.dtype).exp()
    advantage = torch.where(owner % 2 == 0, 1.0, -0.5)[canvas]
    gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    count = torch.zeros(len(owner), dtype=new.dtype)
    mean = count.index_add(0, canvas, gain.to(new.dtype)) / count.index_add(0, canvas, torch.ones_like(new))
    return -mean.mean()


PARTS: dict[str, Callable[[Case, Model], Differences]] = {
    "d1": one_step_differences,
    "coupled": coupled_differences,
    "espo": elbo_differences,
    "spg": sandwich_differences,
    "tracerl": slices_differences,
    "mdpo": prediction_differences,
}


def differences(case: Case, models: Path) -> list[str]:
    """Names of what is recorded and not reproduced."""
    model = model_of(models / case["model"])
    found = [f"{name} cannot be compared here" for name in case.keys() - BASICS - PARTS.keys()]
    for name, compare in PARTS.items():
        if name in case:
            found += [f"{name}: {what} differs" for what in compare(case, model)]
    return found


def closed_differences(recorded: Case, models: Path) -> list[str]:
    """The same of an enumeration."""
    model = model_of(models / recorded.get("model", CLOSED_MODEL))
    found = closed_form(model, recorded["prompt"], CLOSED_LENGTH, recorded["rule"])
    likely = sorted(found.probability.items(), key=lambda one: -one[1])[: len(recorded.get("likeliest", ()))]
    cos = (found.commit @ found.true / found.commit.norm() / found.true.norm()).item()
    numbers = {
        "paths": found.paths,
        "answers": len(found.probability),
        "J": found.value,
        "gradient": found.true.norm(),
        "commit": found.commit.norm(),
        "err_commit": (found.commit - found.true).norm(),
        "err_own": (found.own - found.true).norm(),
        "likeliest": [p for _, p in likely],
    }
    others = recorded.keys() - numbers.keys() - {"model", "prompt", "rule", "cos_commit"}
    unlike = [f"{name} cannot be compared here" for name in others]
    wanted = {**recorded, "likeliest": [p for _, p in recorded.get("likeliest", ())]}
    unlike += [
        f"{name} differs"
        for name, value in numbers.items()
        if name in recorded and far(torch.as_tensor(value, dtype=torch.float64), wanted[name])
    ]
    if [list(answer) for answer, _ in likely] != [answer for answer, _ in recorded.get("likeliest", ())]:
        unlike.append("likeliest answers differ")
    if abs(cos - recorded.get("cos_commit", cos)) > 1e-6:
        unlike.append("cos_commit differs")
    return unlike


def quick(case: Case) -> tuple[int, int]:
    """Sorts cases: those of the most fields first, of these the ones of the fewest canvases."""
    return -len(case), sum(part["slices"] for part in case.get("tracerl", ()))


def replay_rollouts(file: Path, models: Path = MODELS, sample: int | None = None) -> list[str]:
    """What is wrong with every case of a file; an empty text where all is equal. sample: that many cases alone, those
    of the most fields first, and no closed form."""
    data = json.loads(file.read_text())
    if data.get("method") != METHOD:
        return [f"method={data.get('method')} is unknown here"]
    cases, closed = data.get("cases", []), data.get("closed_form", [])
    if sample is not None:
        cases, closed = sorted(cases, key=quick)[:sample], []
    found = [
        f"case {number}: {', '.join(bad)}" if (bad := differences(case, models)) else ""
        for number, case in enumerate(cases)
    ]
    found += [
        f"closed form {number}: {', '.join(bad)}" if (bad := closed_differences(one, models)) else ""
        for number, one in enumerate(closed)
    ]
    return found or ["it has no cases"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--models", type=Path, default=MODELS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    outcome = [(file.name, fault) for file in options.files for fault in replay_rollouts(file, options.models)]
    faults = [f"  {name}, {fault}" for name, fault in outcome if fault]
    if faults:
        print("Not equal, or not to be replayed:", *faults, sep="\n", file=sys.stderr)
    print(f"{len(outcome) - len(faults)} of {len(outcome)} cases equal")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
