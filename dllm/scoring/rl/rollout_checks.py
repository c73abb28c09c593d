"""What can be said of rollouts before they are decoded: what is refused, and what cannot be computed again later.

Only traits are asked, so that parts of other packages are judged like ours.
"""

from __future__ import annotations

from collections.abc import Sequence

from dllm.common.errors import Refusal, Set, UserError, name_of
from dllm.compose.fitted import Parts
from dllm.contract.canvas import Request

PLAIN_RULES = tuple(Set("sampler", name) for name in ("confidence", "static", "order"))


def refuse_parts(parts: Parts) -> None:
    """Raise UserError for a rule whose tokens one forward did not draw."""
    traits = parts.sampler.traits
    why = (
        "draws every undecided position again in every forward, so that no forward alone decides a token. Use a model "
        "of masks"
        if traits.renoises
        else "replaces tokens that it has decided, so that no single forward drew what is left"
        if traits.edits
        else "tries several canvases, and the others decide with which it goes on"
        if traits.branches
        else "lets a later forward judge what it drafts"
        if traits.verifies
        else "writes tokens that no forward drew"
        if traits.tokens == "given"
        else ""
    )
    if parts.length.traits.changes:
        raise Refusal(
            "{length} changes the columns of an answer from turn to turn, and rollouts have the same in all.",
            [name_of(parts.length)],
            (Set("length", "fixed"),),
        )
    if parts.sampling.doubts:
        raise Refusal(
            "{sampling.guidance_against=doubted} mixes logits of a second canvas, which rollouts do not keep, so "
            "their log-probabilities cannot be computed again.",
            [],
            (Set("sampling.guidance_against", "prompt"), Set("sampling.guidance", 0)),
        )
    if traits.soft is not None and not why:
        raise Refusal(
            "{sampler} shows the model mixtures of tokens and the mask, which rollouts do not keep, so their "
            "log-probabilities cannot be computed again.",
            [name_of(parts.sampler)],
            PLAIN_RULES,
        )
    if why:
        raise Refusal(f"{{sampler}} {why}: its tokens have no log-probability.", [name_of(parts.sampler)], PLAIN_RULES)


def refuse_requests(requests: Sequence[Request]) -> None:
    """Raise UserError for rows without answer columns, and for infillings."""
    for number, request in enumerate(requests):
        start = request.answer_start
        if not any(request.masked):
            raise Refusal(f"rollout {number} has no answer columns. Set {{gen_length:name}} to 1 or more.")
        if request.infill or not all(request.masked[start:]) or any(request.masked[:start]):
            raise UserError(
                f"rollout {number} is an infilling, and rollouts are answers after a prompt. Give prompts without "
                "holes."
            )


def refuse_copies(parts: Parts, n: int, temperatures: Sequence[float]) -> None:
    """Raise UserError for groups whose rows would all be the same. temperatures: of every row."""
    if n > 1 and parts.sampler.traits.deterministic and (cold := [heat for heat in temperatures if heat <= 0]):
        raise Refusal(
            f"n={n} rollouts of a prompt would be the same at {{sampling.temperature}}. Set it above 0.", [cold[0]]
        )


def limits_of(parts: Parts) -> dict[str, str]:
    """Which log-probabilities of rollouts cannot be computed again, and why (``Rollouts.limits``)."""
    rule, limits = parts.sampler.traits, dict[str, str]()
    back = f"{{sampler={name_of(parts.sampler)}}}" if rule.revocable else f"{{blocks={name_of(parts.blocks)}}}"
    if rule.revocable or parts.blocks.traits.rolls_back:
        limits["slices"] = (
            f"{back} takes commits back, so step_map does not tell the canvases of these rollouts. Decode with "
            "draws=True, and score every draw with draws=True."
        )
    if rule.tokens != "proposed":
        limits["drawn"] = limits["draws"] = (
            f"{{sampler={name_of(parts.sampler)}}} writes the likeliest token of logits that it has changed, which the "
            "model did not draw. Score with law='own'."
        )
    return limits


def notes_of(parts: Parts, dtype: str, narrow: str | None, is_rescored: bool) -> list[str]:
    """What a trainer should know of the noted log-probabilities. is_rescored: they are not those of the decode."""
    notes: list[str] = []
    if is_rescored:
        return notes
    if not parts.cache.traits.exact:
        notes.append(
            f"cache={name_of(parts.cache)}: the noted log-probabilities are those of forwards that a cache shortened. "
            "Take old log-probabilities from rollouts(..., rescore=True), not the noted ones."
        )
    if narrow is not None or dtype not in ("float32", "float64"):
        notes.append(
            f"{narrow or dtype}: noted and rescored log-probabilities differ by its rounding. For ratios take both "
            "from trajectory_logprobs: rollouts(..., rescore=True)."
        )
    return notes
