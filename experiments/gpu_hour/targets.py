"""The targets, each met or missed by a figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.gpu_hour.store import Outcome

SHARE = 0.8
SCALING = {"H200": 4.0, "H100": 5.0}  # batch 16 over batch 1, in tokens/s of usual turns (floors: 4.9 and 6 to 7)
FORWARDS = {"H200": 220, "H100": 155}  # a second, of LLaDA-8B: 80 % at 4.3 and 3.0 TB/s
Figures = dict[str, Any]


@dataclass(frozen=True)
class Verdict:
    """A target, what was found, and whether that is enough (None: not measured)."""

    target: str
    found: str
    met: bool | None

    @property
    def word(self) -> str:
        return {None: "not measured", True: "met", False: "missed"}[self.met]


def measured_cells(steps: Mapping[str, Outcome], **wanted: Any) -> list[Figures]:
    """Figures of the measured decodes that have these settings."""
    found = [one["figures"] for one in steps.values() if "cache" in one.get("figures", {})]
    return [one for one in found if all(one[name] == value for name, value in wanted.items())]


def decodes(parts: Mapping[str, Mapping[str, Outcome]]) -> dict[str, Outcome]:
    """The timed decodes of all parts."""
    return {name: one for part in ("texts", "lags", "steps") for name, one in parts.get(part, {}).items()}


def best_turn(steps: Mapping[str, Outcome], model: str) -> Figures | None:
    """The decode with the fastest usual turns at batch 1 under dual, one token a turn."""
    weights = "float32" if model == "tiny" else "bfloat16"
    found = measured_cells(steps, model=model, cache="dual", batch=1, rule="fixed", weights=weights)
    return min(found, key=lambda one: one["p50_ms"], default=None)  # type: ignore[arg-type,return-value]


def turn_target(found: Figures) -> bool:
    """Whether usual turns take at most 1.25 times the time of copying the weights."""
    return bool(found["share_weights"] >= SHARE)


def verdicts(parts: Mapping[str, Mapping[str, Outcome]], device: str) -> list[Verdict]:
    steps, kernels = decodes(parts), parts.get("kernels", {})
    return [
        *(turns(steps, model, device) for model in ("llada-8b", "dream-7b")),
        bandwidth(kernels, "row_statistics", lambda rows: rows >= 256),
        scaling(steps, device),
        bandwidth(kernels, "add_norm", lambda rows: rows >= 8192),
        equal_tokens({**parts.get("checks", {}), **parts.get("tests", {})}),
    ]


def turns(steps: Mapping[str, Outcome], model: str, device: str) -> Verdict:
    named = next((f" ({rate} forwards/s)" for card, rate in FORWARDS.items() if card in device), "")
    goal = f"{model}, batch 1, dual: usual turns at 80 % of the weights' floor at the measured copy rate"
    goal += named if model == "llada-8b" else ""
    found = best_turn(steps, model)
    if found is None:
        return Verdict(goal, "", None)
    said = (
        f"{100 * found['share_weights']:.0f} %: {1000 / found['p50_ms']:.0f} forwards/s "
        f"({found['p50_ms']:.2f} ms, {found['runtime']}, lag {found['lag']})"
    )
    return Verdict(goal, said, turn_target(found))


def bandwidth(kernels: Mapping[str, Outcome], name: str, counts: Any) -> Verdict:
    goal = f"{name}: at 80 % of the copy rate"
    shapes = kernels.get(name, {}).get("figures", {})
    chosen = {
        shape: ways["triton"] for shape, ways in shapes.items() if "triton" in ways and counts(int(shape.split()[0]))
    }
    if not chosen:
        return Verdict(goal, "", None)
    found = ", ".join(f"{shape}: {100 * one['copy']:.0f} %" for shape, one in chosen.items())
    return Verdict(goal, found, all(one["copy"] >= SHARE for one in chosen.values()))


def scaling(steps: Mapping[str, Outcome], device: str) -> Verdict:
    least = next((times for card, times in SCALING.items() if card in device), None)
    goal = f"llada-8b, dual, blocks of 32: batch 16 at {least or 'several'} times the tokens/s of batch 1"
    same = {"model": "llada-8b", "cache": "dual", "rule": "fixed", "weights": "bfloat16"}
    one, many = (
        min((one["p50_ms"] for one in measured_cells(steps, batch=batch, **same)), default=None) for batch in (1, 16)
    )
    if one is None or many is None:
        return Verdict(goal, "", None)
    ratio = 16 * one / many
    return Verdict(goal, f"{ratio:.1f} times in usual turns", None if least is None else ratio >= least)


def equal_tokens(tests: Mapping[str, Outcome]) -> Verdict:
    """Float32: every runtime against eager, on the device."""
    goal = "no token changed by any runtime in float32"
    asked = {name: one for name, one in tests.items() if name.startswith("tokens under ")}
    if not asked or any("figures" not in one and "failed" not in one for one in asked.values()):
        return Verdict(goal, "", None)
    found = ", ".join(
        f"{name.removeprefix('tokens under ')}: {one['figures']['passed'] if 'figures' in one else 'failed'}"
        for name, one in asked.items()
    )
    return Verdict(goal, f"equal decodes by runtime: {found}", all("figures" in one for one in asked.values()))
